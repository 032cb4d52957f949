"""Answers that are held to a form, over a real model: every text validates, whatever is sampled; all the ways to ask for a form; what is
refused, and what is named. The models are small and the temperature is high: what is right here is the grammar's work."""

import concurrent.futures
import json
import re
import typing

import anthropic
import openai
import pydantic
import pytest
from fetched import fetched_model
from serving import PLUMB, Server, text_of
from test_grammars import BY_NAME, CHAT, POINT, TEXT, TOOLS, VALIDATOR, WAYS, check, closed, rf, user

MSG = "/v1/messages"

SHORT = {"type": "string", "maxLength": 12}

# Shapes that tools and formats have; each kept small, so that a warm answer ends.
SCHEMAS = {
    "point": POINT,
    "constants": closed({"a": {"const": "x/y"}, "b": {"enum": [1, 2.5, None, True, "é\"\\\n", {"k": [1]}]}}),
    "numbers": closed({"i": {"type": "integer", "exclusiveMinimum": 3, "maximum": 120}, "n": {"type": "number", "minimum": 0, "exclusiveMaximum": 1.5},
                       "m": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000}}),
    "formats": closed({"d": {"type": "string", "format": "date"}, "t": {"type": "string", "format": "time"}, "u": {"type": "string", "format": "uuid"},
                       "e": {"type": "string", "format": "email", "maxLength": 30}, "v4": {"type": "string", "format": "ipv4"}}),
    "when": closed({"at": {"type": "string", "format": "date-time"}, "v6": {"type": "string", "format": "ipv6"}}),
    "patterns": closed({"zip": {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"}, "id": {"type": "string", "pattern": "^(ab|c[d-f]{2})+$", "maxLength": 9}}),
    "lengths": closed({"s": {"type": "string", "minLength": 3, "maxLength": 8}, "l": {"type": "array", "items": SHORT, "minItems": 1, "maxItems": 3}}),
    "tuple": {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 99}, SHORT], "items": False, "minItems": 2},
    "optional": {"type": "object", "properties": {"a": SHORT, "b": {"type": "boolean"}, "c": {"type": "null"}}, "required": ["b"], "additionalProperties": False},
    "alternatives": {"anyOf": [closed({"kind": {"const": "circle"}, "r": {"type": "integer", "minimum": 0, "maximum": 99}}),
                               closed({"kind": {"const": "box"}, "w": {"type": "integer", "minimum": 0, "maximum": 99}}), {"type": "null"}]},
    "all": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]},
                      {"type": "object", "properties": {"b": SHORT}, "required": ["b"]}], "maxProperties": 2},
    "beside": {"type": "object", "properties": {"k": SHORT}, "required": ["k"], "maxProperties": 2,
               "anyOf": [{"properties": {"v": {"type": "boolean"}}, "required": ["v"]}, {"properties": {"w": {"type": "null"}}, "required": ["w"]}]},
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": closed({"v": {"type": "integer", "minimum": 0, "maximum": 9},
                                                                   "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})}},
    "map": {"type": "object", "patternProperties": {"^x_[a-z]{1,4}$": {"type": "boolean"}}, "additionalProperties": False, "minProperties": 1, "maxProperties": 3},
    "values": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99}, "minProperties": 1, "maxProperties": 2,
               "propertyNames": {"maxLength": 6}},
    "types": {"type": ["boolean", "null", "integer"]},
}


@pytest.fixture(scope="module")
def server():
    path = fetched_model("smollm2")
    with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "2048", "--no-store", "--speculate", "auto"]) as s:
        yield s


@pytest.fixture(scope="module")
def agent():
    path = fetched_model("qwen2.5-coder-0.5b")
    with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "4096", "--no-store"]) as s:
        yield s


def client(s):
    return openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0, timeout=300)


# --- every text validates ---

@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_validates(server, name):
    schema = SCHEMAS[name]

    def one(seed):
        r = server.chat("Write an example.", response_format=rf(schema), temperature=(0, 0.8, 1.5, 2.0)[seed % 4], seed=seed, max_tokens=160, timeout=300)
        assert r[0] == 200, r
        choice = r[1]["choices"][0]
        if choice["finish_reason"] == "stop":
            check(choice["message"]["content"], schema)
        else:
            assert choice["finish_reason"] == "length" and r[1]["usage"]["completion_tokens"] == 160
        return choice["finish_reason"] == "stop"

    with concurrent.futures.ThreadPoolExecutor(8) as ex:
        done = list(ex.map(one, range(12)))
    assert sum(done) >= (3 if name == "recursive" else 6), done  # what goes on for ever proves nothing


def test_objects_and_streams(server):
    for seed in range(6):
        k = {"response_format": {"type": "json_object"}, "temperature": 1, "seed": seed, "max_tokens": 200}
        status, r = server.chat("An object with two numbers in it, please.", **k)
        whole = r["choices"][0]
        chunks = server.chat_stream("An object with two numbers in it, please.", **k)
        assert text_of(chunks) == whole["message"]["content"]
        if whole["finish_reason"] == "stop":
            assert isinstance(json.loads(whole["message"]["content"]), dict)


class Colour(pydantic.BaseModel):
    name: typing.Literal["red", "green", "blue"]
    share: int = pydantic.Field(ge=0, le=100)
    notes: list[str] = pydantic.Field(max_length=2)


def test_the_official_client_parses(server):
    cl = client(server)
    k = {"model": "x", "temperature": 0, "max_tokens": 200}
    r = cl.chat.completions.parse(messages=user("A colour?"), response_format=Colour, **k)
    assert isinstance(r.choices[0].message.parsed, Colour)
    with cl.chat.completions.stream(messages=user("A colour?"), response_format=Colour, **k) as s:
        final = s.get_final_completion()
    assert final.choices[0].message.parsed == r.choices[0].message.parsed
    p = cl.responses.parse(model="x", input="A colour?", text_format=Colour, temperature=0, max_output_tokens=200)
    assert isinstance(p.output_parsed, Colour) and p.text.format.type == "json_schema"
    with cl.responses.stream(model="x", input="A colour?", text_format=Colour, temperature=0, max_output_tokens=200) as s:
        assert s.get_final_response().output_parsed == p.output_parsed
    j = cl.responses.create(model="x", input="An object.", text={"format": {"type": "json_object"}}, temperature=0, max_output_tokens=200)
    assert j.status == "incomplete" or isinstance(json.loads(j.output_text), dict)


def test_anthropic(server):
    cl = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, timeout=300)
    k = {"model": "x", "max_tokens": 100, "messages": user("A point?"), "extra_body": {"temperature": 1, "seed": 3}}
    r = cl.messages.create(output_config={"format": {"type": "json_schema", "schema": POINT}}, **k)
    check(r.content[0].text, POINT)
    with cl.messages.stream(output_config={"format": {"type": "json_schema", "schema": POINT}}, **k) as s:
        assert s.get_final_message().content[0].text == r.content[0].text
    status, e = server.post(MSG, {"max_tokens": 9, "messages": user("x"), "output_config": {"format": {"type": "json_schema", "schema": {"type": "egg"}}}})
    assert status == 400 and "output_config" in e["error"]["message"] and "type" in e["error"]["message"]


# --- ways to ask ---

@pytest.mark.parametrize("fields,check_text", WAYS)
def test_ways_to_ask(server, fields, check_text):
    for i, (path, prompt) in enumerate(((CHAT, {"messages": user("Go on.")}), (TEXT, {"prompt": "Once upon"}))):
        for seed in range(4):
            status, r = server.post(path, {**prompt, **fields, "temperature": 1.5, "seed": seed, "max_tokens": 60})
            assert status == 200, r
            choice = r["choices"][0]
            text = choice["message"]["content"] if i == 0 else choice["text"]
            if choice["finish_reason"] == "stop":
                check_text(text)
            else:
                assert choice["finish_reason"] == "length", r


def test_tags(server):
    """A trigger that every text comes to."""
    tag = {"type": "structural_tag", "triggers": ["e", "o"], "structures": [{"begin": "e<f>", "schema": POINT, "end": "</f>"},
                                                                             {"begin": "o<g>", "schema": {"type": "boolean"}, "end": "</g>"},
                                                                             {"begin": "or", "schema": {"const": 7}, "end": ""}]}
    n = 0
    for fields in ({"response_format": tag}, {"structured_outputs": {"structural_tag": tag}}, {"structured_outputs": {"structural_tag": json.dumps(tag)}}):
        for seed in range(4):
            status, r = server.chat("Tell me more.", **fields, temperature=1, seed=seed, max_tokens=120)
            assert status == 200, r
            rest, is_cut = r["choices"][0]["message"]["content"], r["choices"][0]["finish_reason"] == "length"
            while m := re.search("[eo]", rest):
                rest = rest[m.start():]
                m = re.match(r"e<f>(?P<f>.*?)</f>|o<g>(?P<g>.*?)</g>|or7", rest, re.S)
                if not m:
                    assert is_cut, rest
                    break
                n += 1
                if m["f"] or m["g"]:
                    check(m["f"] or m["g"], POINT if m["f"] else {"type": "boolean"})
                rest = rest[m.end():]
    assert n > 10


# --- with everything else ---

def test_log_probabilities_are_of_what_is_left(server):
    status, r = server.chat("Go on.", guided_choice=["banana"], logprobs=True, top_logprobs=5, temperature=0)
    tokens = r["choices"][0]["logprobs"]["content"]
    assert "".join(t["token"] for t in tokens) == "banana" and r["choices"][0]["finish_reason"] == "stop"
    k = {"guided_regex": "[ab]c", "logprobs": True, "top_logprobs": 20, "temperature": 0}
    first = server.chat("Go on.", **k)[1]["choices"][0]["logprobs"]["content"][0]
    assert {t["token"] for t in first["top_logprobs"]} <= {"a", "b", "ac", "bc"}
    from math import exp
    assert abs(sum(exp(t["logprob"]) for t in first["top_logprobs"]) - 1) < 1e-4


def test_choices_ends_bias_and_stops(server):
    k = {"response_format": rf(POINT), "temperature": 1.3, "seed": 11, "max_tokens": 60}
    one = server.chat("Go on.", **k)[1]["choices"][0]["message"]["content"]
    many = server.chat("Go on.", n=4, **k)[1]["choices"]
    assert many[0]["message"]["content"] == one and len({c["message"]["content"] for c in many}) > 1
    for c in many:
        check(c["message"]["content"], POINT)
    for fields in ({"ignore_eos": True}, {"repetition_penalty": 1.8}, {"presence_penalty": 2, "frequency_penalty": 2}, {"logit_bias": {"2": 100, "0": 100}},
                   {"top_k": 1}, {"min_p": 0.9}, {"xtc_probability": 1, "xtc_threshold": 0.01}, {"speculation": False}):
        r = server.chat("Go on.", **{**k, **fields})[1]["choices"][0]
        assert r["finish_reason"] == "stop", (fields, r)
        check(r["message"]["content"], POINT)
    r = server.chat("Go on.", guided_regex="(abc){40}", stop=["cabca"], max_tokens=200)[1]["choices"][0]
    assert (r["message"]["content"], r["finish_reason"]) == ("ab", "stop")
    cut = server.chat("Go on.", **{**k, "max_tokens": 3})[1]
    assert cut["choices"][0]["finish_reason"] == "length" and cut["usage"]["completion_tokens"] == 3
    assert one.startswith(cut["choices"][0]["message"]["content"])
    assert server.chat("Go on.", **{**k, "speculation": False})[1]["choices"][0]["message"]["content"] == one


def test_neighbours_are_not_touched(server):
    def free(_=None):
        return server.chat("Count from one to twenty.", temperature=0.7, seed=5, max_tokens=60, timeout=300)[1]["choices"][0]["message"]["content"]

    def bound(seed):
        r = server.chat("Go on.", response_format=rf(SCHEMAS["lengths"]), temperature=1, seed=seed, max_tokens=60, timeout=300)[1]
        return r["choices"][0]["message"]["content"]

    alone, bound_alone = free(), [bound(s) for s in range(6)]
    with concurrent.futures.ThreadPoolExecutor(12) as ex:
        crowd = [ex.submit(bound, s) for s in range(6)] + [ex.submit(free) for _ in range(4)]
        got = [f.result() for f in crowd]
    assert got[:6] == bound_alone and got[6:] == [alone] * 4


# --- tools ---

@pytest.mark.parametrize("model", ["server", "agent"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "note"}}])
def test_forced_calls_have_valid_arguments(request, model, choice):
    cl = client(request.getfixturevalue(model))
    names = set()
    for seed in range(6):
        k = {"model": "x", "messages": user("It is dark in the bath."), "tools": TOOLS, "tool_choice": choice, "temperature": 1.5, "seed": seed, "max_tokens": 120,
             "parallel_tool_calls": False}
        r = cl.chat.completions.create(**k).choices[0]
        assert r.finish_reason == "tool_calls" and not r.message.content and len(r.message.tool_calls) == 1, r
        call = r.message.tool_calls[0].function
        check(call.arguments, BY_NAME[call.name])
        names.add(call.name)
        if seed == 0:
            with cl.chat.completions.stream(**{a: v for a, v in k.items()}) as s:
                got = s.get_final_completion().choices[0].message.tool_calls[0].function
            assert (got.name, got.arguments) == (call.name, call.arguments)
        if choice == "required":  # several, if it likes; one at least
            r = cl.chat.completions.create(**{**k, "parallel_tool_calls": True, "max_tokens": 300}).choices[0]
            assert r.message.tool_calls and r.finish_reason in ("tool_calls", "length"), r
            for call in r.message.tool_calls[:-1 if r.finish_reason == "length" else None]:
                check(call.function.arguments, BY_NAME[call.function.name])
    assert names == ({"note"} if choice != "required" else names)


def test_forced_calls_of_the_other_apis(agent):
    cl = client(agent)
    flat = [{"type": "function", "strict": True, **t["function"]} for t in TOOLS]
    r = cl.responses.create(model="x", input="It is dark in the bath.", tools=flat, tool_choice="required", temperature=1.2, max_output_tokens=120)
    call = next(i for i in r.output if i.type == "function_call")
    check(call.arguments, BY_NAME[call.name])
    an = anthropic.Anthropic(base_url=agent.url, api_key="x", max_retries=0, timeout=300)
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"], "strict": True} for t in TOOLS]
    for choice in ({"type": "any"}, {"type": "tool", "name": "set_light"}):
        m = an.messages.create(model="x", max_tokens=120, messages=user("It is dark in the bath."), tools=tools, tool_choice=choice, extra_body={"temperature": 1.3, "seed": 4})
        block = next(b for b in m.content if b.type == "tool_use")
        assert m.stop_reason == "tool_use"
        VALIDATOR(BY_NAME[block.name]).validate(block.input)


def test_strict_tools_that_may_be_called(agent):
    """The text is free, calls are not: a bias makes the model begin one that it would not have made well."""
    strict = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
    ids = agent.post("/tokenize", {"content": "<tool_call>", "parse_special": True})[1]["tokens"]
    n_calls = n_texts = 0
    for seed in range(10):
        status, r = agent.chat("It is dark in the bath. Switch on the light.", tools=strict, temperature=1.3, seed=seed, max_tokens=150,
                               logit_bias={str(ids[0]): 6} if len(ids) == 1 and seed % 2 == 0 else {})
        assert status == 200, r
        message = r["choices"][0]["message"]
        for i, call in enumerate(message.get("tool_calls") or []):
            n_calls += 1
            if r["choices"][0]["finish_reason"] != "length" or i + 1 < len(message["tool_calls"]):
                check(call["function"]["arguments"], BY_NAME[call["function"]["name"]])
        n_texts += not message.get("tool_calls")
    assert n_calls > 0


def test_a_format_beside_tools(agent):
    for seed in range(6):
        status, r = agent.chat("Say where the light is, or switch it on.", tools=TOOLS, response_format=rf(POINT), temperature=1.4, seed=seed, max_tokens=100)
        assert status == 200, r
        choice = r["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            for call in choice["message"]["tool_calls"]:
                check(call["function"]["arguments"], BY_NAME[call["function"]["name"]])
        elif choice["finish_reason"] == "stop":
            check(choice["message"]["content"], POINT)
    r = agent.chat("x", tools=TOOLS, tool_choice="required", response_format=rf(POINT), max_tokens=100, temperature=0)[1]
    assert r["choices"][0]["finish_reason"] == "tool_calls"


def test_a_small_cache_gives_up_grammars():
    path = fetched_model("smollm2")
    size = 1 << 40
    for n_kept in (5, 2):
        room = size * 5 // 2 if n_kept == 2 else size
        with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "1024", "--no-store", "--grammar-cache", str(room)]) as s:
            for i in range(5):
                status, r = s.chat("x", guided_choice=[f"only {i}"], temperature=0)
                assert status == 200 and r["choices"][0]["message"]["content"] == f"only {i}"
            st = s.stats()
            assert st["grammars_kept"] == n_kept and st["grammars_evicted"] == 5 - n_kept and st["grammars_kept_bytes"] <= room
            size = st["grammars_kept_bytes"] // n_kept
