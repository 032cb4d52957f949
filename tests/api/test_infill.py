"""/infill, the suffix of completions, and what /v1/models says: over the scripted engine, whose vocabulary has no tokens for gaps, and over
the real Qwen2.5-Coder-0.5B, which has."""

import json

import anthropic
import openai
import pytest
from fetched import fetched_model
from serving import PLUMB, Reply, Server, request, script, strict_json

CODE = ("def add(a, b):\n    return a ", "\n\n\nprint(add(1, 2))\n")


@pytest.fixture(scope="module")
def server():
    with script() as s:
        yield s


@pytest.fixture(scope="module")
def real():
    path = fetched_model("qwen2.5-coder-0.5b")
    with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "4096", "--no-store", "--top-k", "20"]) as s:
        yield s


def test_a_model_that_was_not_made_for_it_says_so(server):
    for path, body, param in (("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_prefix"),
                              ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix")):
        status, value = server.post(path, body)
        assert status == 400 and value["error"]["param"] == param and "fill-in-the-middle" in value["error"]["message"]
    assert server.complete("!say x", suffix="")[0] == server.complete("!say x", suffix=None)[0] == 200


@pytest.mark.parametrize("body, param", [
    ({}, "input_prefix"), ({"input_prefix": 5}, "input_prefix"), ({"input_prefix": "a", "input_suffix": []}, "input_suffix"),
    ({"input_prefix": "a", "prompt": 5}, "prompt"), ({"input_prefix": "a", "input_extra": {}}, "input_extra"),
    ({"input_prefix": "a", "input_extra": [5]}, "input_extra"), ({"input_prefix": "a", "input_extra": [{"filename": "x"}]}, "input_extra"),
    ({"input_prefix": "a", "n_predict": "x"}, "n_predict")])
def test_bad_requests_are_refused_and_named(real, body, param):
    status, value = real.post("/infill", body)
    assert status == 400 and value["error"]["param"] == param, value


def test_real_gaps_are_filled(real):
    body = {"input_prefix": CODE[0], "input_suffix": CODE[1], "n_predict": 16, "temperature": 0}
    status, value = real.post("/infill", body)
    assert status == 200 and value["content"].startswith("+ b") and value["stop"] is True and value["stop_type"] in ("eos", "limit")
    assert value["tokens_evaluated"] > 15 and value["tokens_predicted"] > 0
    c = openai.OpenAI(base_url=real.url + "/v1", api_key="x", max_retries=0)
    r = c.completions.create(model="x", prompt=CODE[0], suffix=CODE[1], max_tokens=16, temperature=0)
    assert r.choices[0].text == value["content"] and r.usage.prompt_tokens == value["tokens_evaluated"]
    with real.connect(120) as s:
        s.sendall(request("/infill", {**body, "stream": True}))
        status, _, data = Reply(s).read()
    parts = [strict_json(b[6:]) for b in data.decode().split("\n\n")[:-1]]
    assert "".join(p["content"] for p in parts) == value["content"] and [p["stop"] for p in parts] == [False] * (len(parts) - 1) + [True]
    assert real.complete(CODE[0], suffix=CODE[1], echo=True)[0] == 400 and real.complete([1, 2], suffix="x")[0] == 400


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"])
def test_markers_of_gaps_and_files_end_the_answer(real, name):
    (token,) = real.post("/tokenize", {"content": name})[1]["tokens"]
    body = {"input_prefix": CODE[0], "input_suffix": CODE[1], "n_predict": 6, "temperature": 0, "logit_bias": {str(token): 100}}
    status, value = real.post("/infill", body)
    assert status == 200 and (value["content"], value["stop_type"], value["tokens_predicted"]) == ("", "eos", 0), value
    status, r = real.complete(CODE[0], suffix=CODE[1], max_tokens=6, temperature=0, logit_bias={str(token): 100})
    assert (r["choices"][0]["text"], r["choices"][0]["finish_reason"]) == ("", "stop")
    if name != "<|endoftext|>":  # without a gap only the model's own end is one
        assert real.complete(CODE[0], max_tokens=6, temperature=0, logit_bias={str(token): 100})[1]["choices"][0]["finish_reason"] == "length"


def test_real_prompts_are_the_published_form(real):
    def count(**body):
        return real.post("/infill", {"n_predict": 1, **body})[1]["tokens_evaluated"]

    def tokens(text):
        return real.post("/tokenize", {"content": text})[1]["count"]

    form = "<|fim_prefix|>a = <|fim_suffix|>\nb<|fim_middle|>"
    assert count(input_prefix="a = ", input_suffix="\nb") == tokens(form)
    assert count(input_prefix="a = ", input_suffix="\nb", prompt="1 +") == tokens(form + "1 +")
    extra = [{"filename": "x.py", "text": "import os"}]
    assert count(input_prefix="a = ", input_suffix="\nb", input_extra=extra) == tokens("<|file_sep|>x.py\nimport os\n<|file_sep|>\n" + form)
    # what is typed is text
    assert count(input_prefix="<|fim_middle|>", input_suffix="") > tokens("<|fim_prefix|><|fim_middle|><|fim_suffix|><|fim_middle|>")


def test_models_say_what_is_true(server, real):
    (m,) = server.call("/v1/models")[2]["data"]
    assert m["capabilities"]["infill"] is False and m["capabilities"]["chat_completions"] is True and m["reasoning"] in (True, False)
    (m,) = real.call("/v1/models")[2]["data"]
    assert m["context_window"] == 4096 and m["capabilities"]["infill"] is True and m["embeddings"] is True and m["vision"] is False
    assert m["gen_defaults"] == {"temperature": None, "top_p": None, "top_k": 20} and m["batch_mode"] == "batch"
    client = anthropic.Anthropic(base_url=real.url, api_key="x", max_retries=0)
    assert [x.id for x in client.models.list()] == [m["id"]] and client.models.retrieve(m["id"]).display_name == m["id"]
    assert json.dumps(m) == json.dumps(real.call("/v1/models/" + m["id"])[2])
