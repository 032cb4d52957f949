"""Guesses of a draft model through the server: the same answers, fewer steps; what is refused at the start."""

import json
import shutil
import subprocess

import pytest
from fetched import fetched_model
from serving import PLUMB, ROOT, Server

PROMPT = [{"role": "user", "content": "Write a Python function that adds two numbers, then one that multiplies them."}]
KINDS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 3, "top_p": 0.9},
    "penalised": {"temperature": 0.5, "seed": 5, "frequency_penalty": 0.4, "logit_bias": {"11": -5}},
    "scored": {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    "stopped": {"temperature": 0, "stop": ["return"]},
    "several": {"temperature": 0.9, "seed": 9, "n": 2},
}


@pytest.fixture(scope="module")
def path():
    return str(fetched_model("smollm2"))


@pytest.fixture(scope="module")
def server(path):
    """The model guesses for itself."""
    with Server([PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "2048", "--no-store", "--speculate", f"draft:{path}"]) as s:
        yield s


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_the_same(server, kind):
    got = {}
    for on in (True, False):
        status, got[on] = server.chat(PROMPT, max_tokens=48, speculation=on, **KINDS[kind])
        assert status == 200, got[on]
    assert got[True]["choices"] == got[False]["choices"]
    assert got[True]["usage"]["completion_tokens"] == got[False]["usage"]["completion_tokens"]
    assert "speculation" not in got[False]["usage"]


EDIT = [{"role": "user", "content": "Repeat: alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"}]


@pytest.mark.parametrize("form", [str, lambda text: [{"type": "text", "text": text}]])
def test_a_prediction_changes_nothing_but_the_number_of_steps(server, form):
    fields = {"max_tokens": 60, "temperature": 0, "cache_salt": form.__name__}
    status, plain = server.chat(EDIT, speculation=False, **fields)
    assert status == 200, plain
    text = plain["choices"][0]["message"]["content"]
    status, r = server.chat(EDIT, prediction={"type": "content", "content": form(text)}, **fields)
    assert status == 200, r
    assert r["choices"] == plain["choices"]


@pytest.mark.parametrize("value, says", [
    ("text", "prediction: must be an object of type 'content'"),
    ({"type": "content"}, "prediction.content: must be a string"),
    ({"type": "content", "content": [{"type": "text"}]}, "prediction.content: must be a string"),
    ({"type": "other", "content": "x"}, "prediction: must be an object of type 'content'"),
])
def test_a_bad_prediction_is_refused(server, value, says):
    status, r = server.chat(EDIT, max_tokens=4, prediction=value)
    assert status == 400 and r["error"]["message"].startswith(says) and r["error"]["param"] == "prediction", r


@pytest.mark.parametrize("how, says", [
    ("draft:", "is not auto, off, ngram, mtp or draft:MODEL"),
    ("fast", "'fast' is not auto, off, ngram, mtp or draft:MODEL"),
    ("draft:/nowhere/model.gguf", "/nowhere/model.gguf"),
])
def test_what_cannot_guess_is_refused(path, how, says):
    r = subprocess.run([PLUMB, "serve", "--model", path, "--port", "0", "--no-store", "--speculate", how], capture_output=True, text=True, timeout=120)
    assert r.returncode != 0 and says in r.stderr, r.stderr


def test_another_vocabulary_is_refused_with_the_first_token_that_differs(path):
    other = str(fetched_model("gemma3-270m"))
    r = subprocess.run([PLUMB, "serve", "--model", path, "--port", "0", "--no-store", "--speculate", f"draft:{other}"], capture_output=True, text=True, timeout=120)
    assert r.returncode != 0
    assert "--speculate draft:" in r.stderr and "token 0 is" in r.stderr and "it needs the same vocabulary" in r.stderr, r.stderr


# --- drafters that read hidden states ---

PROJECTED = ROOT / "tests" / "golden" / "projected"
TARGET = str(PROJECTED / "target.gguf")
IDS = [(i * 37 + i * i * 11) % 280 for i in range(90)]
COMPLETIONS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 3, "top_p": 0.9},
    "penalised": {"temperature": 0.5, "seed": 5, "frequency_penalty": 0.4, "logit_bias": {"11": -5}},
    "scored": {"temperature": 0, "logprobs": 3},
    "stopped": {"temperature": 0, "stop": ["an"]},
    "several": {"temperature": 0.9, "seed": 9, "n": 3},
    "formed": {"temperature": 1, "seed": 2, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"type": "string", "maxLength": 20}}, "required": ["a"], "additionalProperties": False}}}},
}


@pytest.fixture(scope="module", params=["dflash", "dflash-window", "dflash2", "dspark", "dspark-rnn", "dspark-gemma4"])
def projected(request):
    with Server([PLUMB, "serve", "--model", TARGET, "--port", "0", "--no-store", "--speculate", f"draft:{PROJECTED / request.param}"]) as s:
        yield s


@pytest.mark.parametrize("kind", COMPLETIONS)
def test_with_a_drafter_of_its_states_the_answer_is_the_same(projected, kind):
    """Prompts that begin alike, so that what is kept is begun with; no drafter can be asked often by a model that takes 30 us a token."""
    for n_prompt in (90, 70, 89):
        got = {}
        for on in (True, False):
            status, got[on] = projected.post("/v1/completions", {"prompt": IDS[:n_prompt], "max_tokens": 200, "speculation": on, **COMPLETIONS[kind]})
            assert status == 200, got[on]
        assert got[True]["choices"] == got[False]["choices"]
        assert got[True]["usage"]["completion_tokens"] == got[False]["usage"]["completion_tokens"]
        assert kind == "formed" or "speculation" not in got[False]["usage"]  # what a form forces is a guess all the same
        told = got[True]["usage"].get("speculation")
        if told:
            assert 0 <= told["accepted"] <= told["drafted"] and sum(told["accepted_per_position"]) == told["accepted"], told


def start(*flags):
    return subprocess.run([PLUMB, "serve", "--port", "0", "--no-store", *flags], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("model, says", [
    ("tiny/llama.gguf", "it reads states of width 32, the model that it is to guess for has 64"),
    ("families/qwen3.gguf", "it is for a model of 4 layers, the one that it is to guess for has 3"),
])
def test_a_drafter_of_another_model_is_refused(model, says):
    drafter = str(PROJECTED / "dspark")
    r = start("--model", str(PROJECTED.parent / model), "--speculate", f"draft:{drafter}")
    assert r.returncode != 0 and f"--speculate draft:{drafter}: {says}" in r.stderr, r.stderr


CHANGES = {
    "a vocabulary": ({"vocab_size": 300}, "it has 300 tokens, the model that it is to guess for has 288"),
    "no mask": ({"dflash_config": {"target_layer_ids": [0, 2]}}, "config.json: mask_token_id: missing"),
    "a mask beyond": ({"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 288}}, "mask token 288 is none of its 288 tokens"),
    "no layers": ({"dflash_config": {"mask_token_id": 285}}, "config.json: target_layer_ids: want a list of 1 to 16 layers"),
    "the last layer": ({"dflash_config": {"target_layer_ids": [0, 3], "mask_token_id": 285}}, "it reads what stands behind layer 3"),
    "layers that do not ascend": ({"dflash_config": {"target_layer_ids": [2, 0], "mask_token_id": 285}}, "layers ascend"),
    "one layer": ({"dflash_config": {"target_layer_ids": [2], "mask_token_id": 285}}, "tensor fc.weight: want [32][32], file has [32][64]"),
    "a part of the vocabulary": ({"draft_vocab_size": 100}, "config.json: draft_vocab_size: 100 of 288 tokens"),
    "a block of one": ({"block_size": 1}, "1 rows leave none to guess with"),
    "convolutions": ({"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 285, "conv_kernel_size": 2}}, "tensor blk.0.attn_conv_base: want [2][2][32]"),
    "another layout": ({"transformer_layer_config": {"hidden_size": 32}}, "the layout of speculators is not supported"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_drafter_that_says_something_else_is_refused(tmp_path, name):
    change, says = CHANGES[name]
    config = json.loads((PROJECTED / "dflash" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    shutil.copy(PROJECTED / "dflash" / "model.safetensors", tmp_path)
    r = start("--model", TARGET, "--speculate", f"draft:{tmp_path}")
    assert r.returncode != 0 and says in r.stderr, r.stderr


def test_a_drafter_answers_nothing_itself():
    r = start("--model", str(PROJECTED / "dspark"))
    assert r.returncode != 0 and "it guesses for another model, and answers nothing itself: --model THAT --speculate draft:" in r.stderr, r.stderr


WEATHER = {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer"}},
    "required": ["city", "unit", "days"]}}
SEARCH = {"name": "search_files", "description": "Search files for a pattern", "parameters": {
    "type": "object", "properties": {"pattern": {"type": "string"}, "directory": {"type": "string"}}, "required": ["pattern", "directory"]}}


@pytest.fixture(scope="module")
def caller():
    with Server([PLUMB, "serve", "--model", str(fetched_model("qwen2.5-coder-0.5b")), "--port", "0", "--ctx", "4096", "--no-store"]) as s:
        yield s


def calls(reply):
    return [call["function"] for call in reply["choices"][0]["message"]["tool_calls"]]


@pytest.mark.parametrize("tools, says", [
    ([WEATHER], "What is the weather in Paris in celsius for the next 3 days? Call the tool."),
    ([WEATHER, SEARCH], "Search for deadline in the folder src. Use the tool."),
])
def test_calls_are_guessed_from_the_tools_on_offer(caller, tools, says):
    """Names, keys and what stands between them are known before the model writes them; what it writes stays its own."""
    offered = [{"type": "function", "function": t} for t in tools]
    got = {}
    for on in (True, False):
        status, got[on] = caller.chat([{"role": "user", "content": says}], tools=offered, max_tokens=120, temperature=0, speculation=on,
                                      cache_salt=f"{len(tools)} {on}")
        assert status == 200, got[on]
    assert calls(got[True]) == calls(got[False])
    assert got[True]["usage"]["completion_tokens"] == got[False]["usage"]["completion_tokens"]
    told = got[True]["usage"]["speculation"]
    assert told["accepted"] >= 8, told


def test_tools_whose_schema_cannot_be_enforced_are_offered_all_the_same(caller):
    """And are not compiled anew with every turn."""
    odd = {"name": "odd", "parameters": {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}}
    refused = []
    for _ in range(3):
        status, r = caller.chat([{"role": "user", "content": "Say hello."}], tools=[{"type": "function", "function": odd}], max_tokens=8, temperature=0)
        assert status == 200, r
        refused.append(caller.stats()["grammars_refused"])
    assert refused[0] > 0 and len(set(refused)) == 1, refused
