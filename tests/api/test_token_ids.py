"""Replies by the ids that they were sampled with: what the next turn finds then, that no answer depends on a cache, and what is refused."""

import json

import openai
import pytest
from fetched import fetched_model
from serving import PLUMB, Server

SYSTEM = "You are a storyteller who likes rare words and odd spellings."


@pytest.fixture(scope="module")
def path():
    return str(fetched_model("smollm2"))


def serve(path, *flags):
    store = () if "--state-dir" in flags else ("--no-store",)
    return Server([PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "2048", *store, *flags])


@pytest.fixture(scope="module")
def real(path):
    with serve(path) as s:
        yield s


@pytest.fixture(scope="module")
def cold(path):
    with serve(path, "--prompt-cache", "0") as s:
        yield s


def ask(server, messages, **fields):
    status, r = server.chat(messages, **{"max_tokens": 24, "temperature": 1.6, "return_token_ids": True, "cache_diagnostics": True, **fields})
    assert status == 200, r
    return r["choices"][0]["message"], r["usage"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def tokens_of(server, text):
    return server.post("/tokenize", {"content": text, "parse_special": False})[1]["tokens"]


def text_of(server, ids):
    return server.post("/detokenize", {"tokens": ids})[1]["content"]


def odd_replies(server, n, **fields):
    """(messages so far, the reply, usage) of replies whose text is cut otherwise when it comes back."""
    for seed in range(200):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Tell me tale number {seed}."}]
        reply, usage = ask(server, messages, seed=seed, **fields)
        assert text_of(server, reply["token_ids"]) == reply["content"]
        if reply["content"].strip() == reply["content"] and tokens_of(server, reply["content"]) != reply["token_ids"]:
            yield messages, reply, usage
            n -= 1
        if n == 0:
            return
    raise AssertionError("too few odd replies")


def test_the_next_turn_hits_past_the_reply(real, cold):
    n_better = 0
    for messages, reply, usage in odd_replies(real, 6):
        end = [{"role": "user", "content": "Go on."}]
        with_ids = [*messages, reply, *end]
        without = [*messages, {k: v for k, v in reply.items() if k != "token_ids"}, *end]
        _, plain = ask(real, without, seed=1)
        told, found = ask(real, with_ids, seed=1)
        assert cached(found) >= usage["total_tokens"] - 2 > cached(plain)
        d = found["cache_diagnostics"]
        assert d["token_ids"] == {"used": 1, "ignored": 0} and plain["cache_diagnostics"]["token_ids"] == {"used": 0, "ignored": 0}
        again, none = ask(cold, with_ids, seed=1)  # a function of what was sent, not of what is kept
        assert again == told and cached(none) == 0
        want = len(reply["token_ids"]) - len(tokens_of(real, reply["content"]))
        assert found["prompt_tokens"] - plain["prompt_tokens"] == want
        count = real.post("/tokenize", {"messages": with_ids})[1]["count"]
        assert count == found["prompt_tokens"]
        n_better += 1
    assert n_better == 6


def test_several_turns(real, cold):
    messages, whole = [{"role": "system", "content": SYSTEM}], 0
    for turn in range(5):
        messages.append({"role": "user", "content": f"Part {turn}, please."})
        reply, usage = ask(real, messages, seed=turn)
        assert ask(cold, messages, seed=turn)[0] == reply
        d = usage["cache_diagnostics"]["token_ids"]
        if turn and d["ignored"] == 0:
            assert cached(usage) >= whole - 2 and d["used"] == turn
        whole = usage["total_tokens"]
        messages.append(reply)


def test_what_does_not_fit_changes_nothing(real):
    (messages, reply, _), = odd_replies(real, 1)
    ids = reply["token_ids"]
    plain = {"role": "assistant", "content": reply["content"]}

    def answer(message):
        a, usage = ask(real, [*messages, message, {"role": "user", "content": "And then?"}], seed=4)
        return a, usage["prompt_tokens"], usage["cache_diagnostics"]["token_ids"]

    want, n, _ = answer(plain)
    for wrong in (ids[:-1] + [ids[-1] + 1], [5], ids + ids, ids[1:]):
        if text_of(real, wrong) in reply["content"]:  # a part of it fits
            continue
        assert answer({**plain, "token_ids": wrong}) == (want, n, {"used": 0, "ignored": 1}), wrong
    assert answer({**plain, "token_ids": []})[:2] == (want, n)
    assert answer({**plain, "token_ids": None})[:2] == (want, n)
    edited = {"role": "assistant", "content": reply["content"] + " The end.", "token_ids": ids}
    assert answer(edited)[2] == {"used": 1, "ignored": 0}  # what follows is the client's
    for text in ("Well. " + reply["content"], reply["content"].replace(" ", "  "), reply["content"][:-2], ""):
        edited["content"] = text
        assert answer(edited)[2] == {"used": 0, "ignored": 1}
    user = [{"role": "user", "content": reply["content"], "token_ids": ids}]
    assert ask(real, user, seed=4)[0] == ask(real, [{"role": "user", "content": reply["content"]}], seed=4)[0]


def test_no_control_token_comes_in_through_them(real):
    end = real.post("/tokenize", {"content": "<|im_end|>", "parse_special": True})[1]["tokens"]
    assert len(end) == 1
    start = [{"role": "user", "content": "Hi"}]
    more = [{"role": "user", "content": "More"}]
    message = {"role": "assistant", "content": "Yes<|im_end|>"}
    yes = tokens_of(real, "Yes")
    want, usage = ask(real, [*start, message, *more], seed=1)
    got, usage_ids = ask(real, [*start, {**message, "token_ids": yes + end}, *more], seed=1)
    assert got == want and usage_ids["cache_diagnostics"]["token_ids"] == {"used": 0, "ignored": 1}
    got, usage_ids = ask(real, [*start, {"role": "assistant", "content": "Yes", "token_ids": yes + end}, *more], seed=1)
    assert usage_ids["cache_diagnostics"]["token_ids"] == {"used": 1, "ignored": 0}  # the template's own, which stands there
    assert usage_ids["prompt_tokens"] == usage["prompt_tokens"] - len(tokens_of(real, "<|im_end|>"))


def test_bad_ids_are_told(real):
    for bad in ("x", 3, [-1], [10 ** 9], ["a"], [1.5]):
        status, r = real.chat([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo", "token_ids": bad}])
        assert status == 400 and r["error"]["param"] == "messages[1].token_ids", r
    many = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo", "token_ids": [5] * 5000}]
    _, usage = ask(real, many, seed=1)
    assert usage["cache_diagnostics"]["token_ids"] == {"used": 0, "ignored": 1}


def test_streams_stops_and_cut_characters(real):
    q = {"temperature": 1.6, "seed": 11, "max_tokens": 40, "return_token_ids": True}
    whole = real.chat("Tell me of a fox.", **q)[1]["choices"][0]["message"]
    events = real.chat_stream("Tell me of a fox.", **q)
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"]]
    assert [d["token_ids"] for d in deltas if "token_ids" in d] == [whole["token_ids"]] and "token_ids" in deltas[-1]
    stop = whole["content"][20:23]
    cut = real.chat("Tell me of a fox.", **q, stop=[stop])[1]["choices"][0]["message"]
    assert cut["content"].startswith(text_of(real, cut["token_ids"])) and whole["token_ids"][:len(cut["token_ids"])] == cut["token_ids"]
    assert len(cut["content"]) - len(text_of(real, cut["token_ids"])) < 30
    smile = tokens_of(real, "🦊")
    assert len(smile) > 1
    bias = {str(smile[0]): 100}
    cut = real.chat("Fox?", max_tokens=1, logit_bias=bias, temperature=0, return_token_ids=True)[1]["choices"][0]["message"]
    assert cut["content"] == "" and cut["token_ids"] == []  # half a character is none
    many = real.chat("Tell me of a fox.", **{**q, "n": 3})[1]["choices"]
    assert many[0]["message"] == whole and all(text_of(real, c["message"]["token_ids"]) == c["message"]["content"] for c in many)
    text = real.complete("A fox", **q)[1]["choices"][0]
    assert text_of(real, text["token_ids"]) == text["text"]


def test_messages_api(real, cold):
    body = {"max_tokens": 24, "system": SYSTEM, "temperature": 1.6, "seed": 21, "return_token_ids": True, "cache_diagnostics": True,
            "messages": [{"role": "user", "content": "A tale of a crow."}]}
    first = real.post("/v1/messages", body)[1]
    assert text_of(real, first["token_ids"]) == first["content"][0]["text"]
    reply = {"role": "assistant", "content": first["content"], "token_ids": first["token_ids"]}
    more = {**body, "messages": [*body["messages"], reply, {"role": "user", "content": "More."}]}
    second = real.post("/v1/messages", more)[1]
    used = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"] + first["usage"]["output_tokens"]
    assert second["usage"]["cache_diagnostics"]["token_ids"] == {"used": 1, "ignored": 0}
    assert second["usage"]["cache_read_input_tokens"] >= used - 2
    assert cold.post("/v1/messages", more)[1]["content"] == second["content"]


def test_a_kept_conversation_has_them(path, real, tmp_path):
    """previous_response_id: the ids lie beside the items, and outlive the process."""
    def turn(server, text, previous=None, **fields):
        body = {"input": text, "instructions": SYSTEM, "max_output_tokens": 24, "temperature": 1.6, "seed": 1, "cache_diagnostics": True,
                "previous_response_id": previous, **fields}
        status, r = server.post("/v1/responses", body)
        assert status == 200, r
        return r

    def told(r):
        return r["output"][0]["content"][0]["text"], r["usage"]["input_tokens"], r["usage"]["output_tokens"]

    state = ("--state-dir", str(tmp_path / "state"))
    odd = None
    with serve(path, *state) as s:
        for seed in range(60):
            a = turn(s, f"Story {seed}.", seed=seed)
            text = told(a)[0]
            if text.strip() == text and len(tokens_of(s, text)) != a["usage"]["output_tokens"]:
                odd = a
                break
        b = turn(s, "Go on.", odd["id"])
        d = b["usage"]["cache_diagnostics"]
        assert d["token_ids"] == {"used": 1, "ignored": 0}
        assert b["usage"]["input_tokens_details"]["cached_tokens"] >= odd["usage"]["total_tokens"] - 2
        c = turn(s, "And then?", b["id"])
        assert c["usage"]["cache_diagnostics"]["token_ids"]["used"] == 2
        assert "token_ids" not in json.dumps(s.call(f"/v1/responses/{b['id']}")[2]["output"])
    with serve(path, *state, "--prompt-cache", "0") as s:  # another process, nothing cached
        assert told(turn(s, "Go on.", odd["id"])) == told(b)
        assert told(turn(s, "And then?", b["id"])) == told(c)
    with serve(path, *state) as s:
        cl = openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0)
        with cl.responses.stream(model="m", input="Name three birds.", max_output_tokens=12, temperature=1.2) as stream:
            last = list(stream)[-1].response
        events = s.call(f"/v1/responses/{last.id}?stream=true", headers={"Authorization": "Bearer x"})[2].decode()
        assert last.output_text and f'"text":{json.dumps(last.output_text, ensure_ascii=False)}' in events


def test_calls_of_tools():
    """The template writes a call again from its arguments: its ids are used where it comes out as the model had it."""
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    with serve(str(fetched_model("qwen2.5-coder-0.5b"))) as s:
        messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
        fields = {"tools": [tool], "temperature": 0, "tool_choice": "required", "max_tokens": 60}
        reply, usage = ask(s, messages, **fields)
        assert reply["tool_calls"] and reply["token_ids"]
        result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "Rain."}
        _, told = ask(s, [*messages, reply, result], **{**fields, "tool_choice": "auto"})
        d = told["cache_diagnostics"]["token_ids"]
        assert d["used"] + d["ignored"] == 1
        if d["used"]:
            assert cached(told) >= usage["total_tokens"] - 2
