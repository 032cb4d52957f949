"""Answers that are held to a form, over the scripted engine, which says what the grammar lets through of its script: every way to ask, what is
refused and what is named, what is kept. These run under the sanitizers, too."""

import concurrent.futures
import json
import re

import jsonschema
import pytest
from serving import SLOW, script, text_of
from test_tools import say

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
VALIDATOR = jsonschema.Draft202012Validator
POINT = {"type": "object", "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}, "y": {"enum": ["left", "right"]}},
         "required": ["x", "y"], "additionalProperties": False}


def user(text):
    return [{"role": "user", "content": text}]


def closed(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more}


def rf(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def check(text, schema):
    VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER).validate(json.loads(text))


@pytest.fixture(scope="module")
def server():
    with script("--style=<tool_call><think></think>") as s:
        yield s


TOOLS = [
    {"type": "function", "function": {"name": "set_light", "description": "Switch a light.", "parameters": closed(
        {"room": {"enum": ["hall", "bath"]}, "level": {"type": "integer", "minimum": 0, "maximum": 10}})}},
    {"type": "function", "function": {"name": "note", "description": "Write a note.", "parameters": closed(
        {"text": {"type": "string", "maxLength": 30}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}})}},
]
BY_NAME = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}

# --- ways to ask ---

GBNF = 'root ::= "(" [0-9]+ ("+" root)? ")"'
WAYS = [
    ({"guided_json": POINT}, lambda t: check(t, POINT)),
    ({"guided_json": json.dumps(POINT)}, lambda t: check(t, POINT)),
    ({"guided_regex": "(ab|cd){2}-[0-9]"}, lambda t: re.fullmatch("(ab|cd){2}-[0-9]", t)[0]),
    ({"guided_choice": ["yes", "no", "it depends"]}, lambda t: ["yes", "no", "it depends"].index(t)),
    ({"guided_grammar": GBNF}, lambda t: re.fullmatch(r"(\([0-9]+\+)*\([0-9]+\)+", t)[0]),
    ({"structured_outputs": {"json": POINT}}, lambda t: check(t, POINT)),
    ({"structured_outputs": {"json": POINT, "disable_any_whitespace": True}}, lambda t: check(t, POINT) or t.index(t.replace(" ", "").replace("\n", ""))),
    ({"structured_outputs": {"regex": "[A-F]{3,5}"}}, lambda t: re.fullmatch("[A-F]{3,5}", t)[0]),
    ({"structured_outputs": {"choice": ["é", "日本"]}}, lambda t: ["é", "日本"].index(t)),
    ({"structured_outputs": {"grammar": GBNF}}, lambda t: re.fullmatch(r"(\([0-9]+\+)*\([0-9]+\)+", t)[0]),
    ({"grammar": 'root ::= "a"{3} | "b" '}, lambda t: ["aaa", "b"].index(t)),
    ({"json_schema": POINT}, lambda t: check(t, POINT)),
    ({"response_format": {"type": "json_schema", "schema": POINT}}, lambda t: check(t, POINT)),
    ({"response_format": {"type": "json_object", "schema": POINT}}, lambda t: check(t, POINT)),
]


@pytest.mark.parametrize("any_order", [False, True])
def test_order_of_properties(server, any_order):
    status, r = server.post(CHAT, {**say('{"y": "left", "x": 3}'), "structured_outputs": {"json": POINT, "any_order": any_order}, "max_tokens": 80})
    assert status == 200, r
    value = json.loads(r["choices"][0]["message"]["content"])
    assert list(value) == (["y", "x"] if any_order else ["x", "y"]), value


@pytest.mark.parametrize("fields,check_text", WAYS)
@pytest.mark.parametrize("text", ["Paris", '{"x": 3, "y": "left"}', "(12+(3))"])
def test_ways_to_ask(server, fields, check_text, text):
    for path, prompt in ((CHAT, say(text)), (TEXT, {"prompt": say(text)["messages"][0]["content"]})):
        status, r = server.post(path, {**prompt, **fields, "max_tokens": 80})
        assert status == 200, r
        choice = r["choices"][0]
        got = choice["message"]["content"] if path == CHAT else choice["text"]
        assert choice["finish_reason"] in ("stop", "length")
        if choice["finish_reason"] == "stop":
            check_text(got)


def test_what_fits_is_left_as_it_is(server):
    """Spelling and blanks that the form allows are the model's."""
    for text in ('{"x": 3, "y": "left"}', '{\n  "x":3,\n  "y":"right"\n}'):
        for stream in (False, True):
            k = say(text, response_format=rf(POINT))
            got = text_of(server.events(CHAT, k)) if stream else server.post(CHAT, k)[1]["choices"][0]["message"]["content"]
            assert got == text


def test_the_form_begins_behind_reasoning(server):
    for text, reasoning, content in (("<think>\nLet x be {3}.\n</think>\n\n" + '{"x": 3, "y": "left"}', "Let x be {3}.", '{"x": 3, "y": "left"}'),
                                     ('{"x": 3, "y": "left"}', None, '{"x": 3, "y": "left"}'),
                                     ("<think>Only this", "Only this", None)):
        k = say(text, response_format=rf(POINT), max_tokens=200)
        m = server.post(CHAT, k)[1]["choices"][0]["message"]
        assert (m.get("reasoning_content"), m["content"] or None)[: 2 if content else 1] == ((reasoning, content) if content else (m.get("reasoning_content"),))
        assert (m.get("reasoning_content") or "").startswith(reasoning or "")
    # a budget ends the reasoning, and the form goes on
    m = server.post(CHAT, say('<think>0123456789{"x": 3, "y": "left"}', response_format=rf(POINT), thinking_budget=5))[1]["choices"][0]["message"]
    assert len(m["reasoning_content"]) <= 5
    check(m["content"], POINT)


def test_forced_and_strict_calls(server):
    strict = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
    call = '<tool_call>\n{"name": "note", "arguments": {"text": "Hm", "tags": ["a"]}}\n</tool_call>'
    for rest, tools, choice in (("Paris", TOOLS, "required"), ("Paris", TOOLS, {"type": "function", "function": {"name": "set_light"}}),
                                ('note", "arguments": {"text": 5', TOOLS, "required"), (call, strict, "auto"), ("So: " + call.replace('"Hm"', "12"), strict, "auto")):
        for stream in (False, True):
            k = say(rest, tools=tools, tool_choice=choice, max_tokens=300)
            if stream:
                calls = {}
                for d in server.events(CHAT, k)[:-1]:
                    for c in (c for ch in d["choices"] for c in ch["delta"].get("tool_calls", [])):
                        one = calls.setdefault(c["index"], ["", ""])
                        one[0] += c["function"].get("name") or ""
                        one[1] += c["function"].get("arguments") or ""
                calls = list(calls.values())
            else:
                r = server.post(CHAT, k)[1]["choices"][0]
                assert r["finish_reason"] == "tool_calls", r
                calls = [(c["function"]["name"], c["function"]["arguments"]) for c in r["message"]["tool_calls"]]
            assert len(calls) == 1
            check(calls[0][1], BY_NAME[calls[0][0]])
    # JSON by itself and in a fence is one, too, and constrained
    for text in ('{"name": "note", "arguments": {"text": 5}}', '```json\n{\n  "name": "note",\n  "arguments": {"text": 5}\n}\n```', "Well:\n" + '{"name": "set_light", "arguments": 5'):
        m = server.post(CHAT, say(text, tools=strict, max_tokens=300))[1]["choices"][0]["message"]
        (c,) = m["tool_calls"]
        check(c["function"]["arguments"], BY_NAME[c["function"]["name"]])
    # what else looks like a call of a strict tool is text
    for text in ('{"name":"note", "arguments": {"text": 5}}', '```json\n{ "name": "note", "arguments": {}}\n```', '<tools>{"name":"note", "arguments": {}}</tools>',
                 '{"name": "other", "arguments": {}}', '{"name": "note"}'):
        m = server.post(CHAT, say(text, tools=strict))[1]["choices"][0]["message"]
        assert not m.get("tool_calls") and m["content"] == text


MIXED = {"type": "function", "function": {"name": "mix", "parameters": closed(
    {"s": {"type": "string", "maxLength": 9}, "free": {"type": "string"}, "e": {"enum": ["one", "two"]}, "n": {"type": "integer", "maximum": 50},
     "o": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "l": {"type": "array", "items": {"type": "string"}, "maxItems": 2}})}}

# the text that a model's template is known by, and how a call of it is written
ELEMENTS = {
    "qwen-coder": ("<tool_call><function= <parameter=", lambda n, a: f"<tool_call>\n<function={n}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in a) + "</function>\n</tool_call>"),
    "seed": ("<seed:tool_call>", lambda n, a: f"<seed:tool_call>\n<function={n}>\n" + "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in a) + "</function>\n</seed:tool_call>"),
    "glm": ("<tool_call> <arg_key>", lambda n, a: f"<tool_call>{n}\n" + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in a) + "</tool_call>"),
    "minimax": ("<minimax:tool_call>", lambda n, a: f'<minimax:tool_call>\n<invoke name="{n}">\n' + "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in a) + "</invoke>\n</minimax:tool_call>"),
    "minicpm": ("<function name= <param name=", lambda n, a: f'<function name="{n}">' + "".join(f'<param name="{k}">{v}</param>' for k, v in a) + "</function>"),
}
GOOD = [("s", "a b"), ("free", "x < y, <b>and</b>\nmore"), ("e", "two"), ("n", 7), ("o", "text"), ("l", '["a", "b"]')]


@pytest.mark.parametrize("name", ELEMENTS)
def test_arguments_that_are_elements(name):
    needles, write = ELEMENTS[name]
    strict = {**MIXED, "function": {**MIXED["function"], "strict": True}}
    schema = MIXED["function"]["parameters"]
    good = {"s": "a b", "free": "x < y, <b>and</b>\nmore", "e": "two", "n": 7, "o": "text", "l": ["a", "b"]}
    with script("--style=" + needles) as server:
        whole = write("mix", GOOD)
        r = server.post(CHAT, say("So.\n" + whole, tools=[strict]))[1]["choices"][0]
        assert json.loads(r["message"]["tool_calls"][0]["function"]["arguments"]) == good
        opening = whole[:whole.index("mix")]
        rest = whole[whole.index("mix") + 3:]
        rest = rest[rest.index("\n") + 1:] if name != "minicpm" else rest[2:]
        for tools, choice, text in (([MIXED], "required", rest), ([MIXED, *TOOLS], "required", whole[len(opening):]),
                                    ([*TOOLS, MIXED], {"type": "function", "function": {"name": "mix"}}, rest)):
            r = server.post(CHAT, say(text, tools=tools, tool_choice=choice))[1]["choices"][0]
            assert r["finish_reason"] == "tool_calls" and json.loads(r["message"]["tool_calls"][0]["function"]["arguments"]) == good, r
        # what does not fit does not come out, however the script goes on
        for bad in ([("s", "far too long to be it")], [("s", "a"), ("free", "b"), ("e", "three")], [("s", "a"), ("free", "b"), ("e", "one"), ("n", 5000)],
                    [("s", "a"), ("free", "b"), ("e", "one"), ("n", 5), ("o", "12")], [("s", "a"), ("free", "b"), ("e", "one"), ("n", 5), ("o", "null"), ("l", '["x</parameter>"]')]):
            for choice in ("auto", "required"):
                bare = write("mix", bad)
                text = bare if choice == "auto" else bare[bare.index("mix") + 3:][2 if name == "minicpm" else bare[bare.index("mix") + 3:].index("\n") + 1:]
                r = server.post(CHAT, say(text, tools=[strict], tool_choice=choice, max_tokens=400))[1]["choices"][0]
                if r["finish_reason"] != "length":
                    check(r["message"]["tool_calls"][0]["function"]["arguments"], schema)


def test_markers_that_are_control_tokens():
    """Harmony's content stands between markers, with reasoning in front or not; Mistral's calls begin with some."""
    text = '{"x": 3, "y": "left"}'
    with script("--style=<|channel|><|message|>") as server:
        for said, reasoning in (("<|channel|>final<|message|>" + text, None),
                                ("<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>" + text, "Let me see."),
                                ("<|channel|>final<|message|>Paris", None)):
            r = server.post(CHAT, say(said, response_format=rf(POINT), max_tokens=300))[1]["choices"][0]
            assert r["finish_reason"] == "stop" and r["message"].get("reasoning_content") == reasoning, r
            check(r["message"]["content"], POINT)
            assert "Paris" in said or r["message"]["content"] == text
        for tools in (TOOLS, TOOLS[1:]):
            r = server.post(CHAT, say("Paris", tools=tools, tool_choice="required", max_tokens=300))[1]["choices"][0]
            (call,) = r["message"]["tool_calls"]
            check(call["function"]["arguments"], BY_NAME[call["function"]["name"]])
        strict = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
        call = '<|channel|>commentary to=functions.note <|constrain|>json<|message|>{"text": "Hm", "tags": []}'
        for said in (call, "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant" + call, call.replace('"Hm"', "5"),
                     " to=functions.note<|channel|>commentary json<|message|>" + '{"text": "Hm", "tags": []}'):
            r = server.post(CHAT, say(said, tools=strict, max_tokens=300))[1]["choices"][0]
            (c,) = r["message"]["tool_calls"]
            check(c["function"]["arguments"], BY_NAME[c["function"]["name"]])
            assert "5" in said or json.loads(c["function"]["arguments"]) == {"text": "Hm", "tags": []}
        r = server.post(CHAT, say("<|channel|>final<|message|>No call: to=functions.note", tools=strict, max_tokens=300))[1]["choices"][0]
        assert r["message"]["content"] == "No call: to=functions.note" and not r["message"].get("tool_calls")
    with script("--style=[TOOL_CALLS][ARGS]") as server:
        call = '[TOOL_CALLS]note[ARGS]{"text": "Hm", "tags": []}'
        for said in (call, "So: " + call, call.replace('"Hm"', "5"), call + call):
            r = server.post(CHAT, say(said, tools=strict, max_tokens=300))[1]["choices"][0]
            assert len(r["message"]["tool_calls"]) == said.count("note")
            for c in r["message"]["tool_calls"]:
                check(c["function"]["arguments"], BY_NAME[c["function"]["name"]])
        for choice in ("required", {"type": "function", "function": {"name": "note"}}):
            r = server.post(CHAT, say("Paris", tools=TOOLS, tool_choice=choice, max_tokens=300))[1]["choices"][0]
            (c,) = r["message"]["tool_calls"]
            check(c["function"]["arguments"], BY_NAME[c["function"]["name"]])
        m = server.post(CHAT, say("[TOOL_CALLS] [ARGS] is how a call is written.", tools=strict, max_tokens=300))[1]["choices"][0]["message"]
        assert all(c["function"]["name"] in BY_NAME for c in m.get("tool_calls") or [])
    with script("--style=>>>all") as server:  # the prompt's end is >>>
        r = server.post(CHAT, say("Paris", response_format=rf(POINT), max_tokens=300))[1]["choices"][0]
        check(r["message"]["content"], POINT)
        r = server.post(CHAT, say("note", tools=TOOLS, tool_choice="required", max_tokens=300))[1]["choices"][0]
        (c,) = r["message"]["tool_calls"]
        assert c["function"]["name"] == "note"
        check(c["function"]["arguments"], BY_NAME["note"])
        m = server.post(CHAT, say('all\nSo:\n>>> x\n>>>note\n{"text": 5', tools=strict, max_tokens=300))[1]["choices"][0]["message"]
        (c,) = m["tool_calls"]
        assert m["content"] == "So:\n>>> x"
        check(c["function"]["arguments"], BY_NAME["note"])


MIXED_CALLS = {
    "gemma": ("<|tool_call>", '<|tool_call>call:mix{s:<|"|>a b<|"|>,free:<|"|>x < y, "q"\n\\<|"|>,e:<|"|>two<|"|>,n:7,o:<|"|>text<|"|>,l:[<|"|>a<|"|>,<|"|>b<|"|>]}<tool_call|>'),
    "python": ("<|tool_call_start|>", '<|tool_call_start|>[mix(s="a b", free=\'x < y, "q"\\n\\\\\', e="two", n=7, o="text", l=["a", \'b\'])]<|tool_call_end|>'),
}


@pytest.mark.parametrize("name", MIXED_CALLS)
def test_arguments_that_are_not_json(name):
    """Gemma's call format, and Python's; in the former `<|"|>` is a control token, so that its characters may stand in a string."""
    style, whole = MIXED_CALLS[name]
    strict = {**MIXED, "function": {**MIXED["function"], "strict": True}}
    good = {"s": "a b", "free": 'x < y, "q"\n\\', "e": "two", "n": 7, "o": "text", "l": ["a", "b"]}
    with script("--style=" + style) as server:
        r = server.post(CHAT, say("So.\n" + whole, tools=[strict]))[1]["choices"][0]
        assert json.loads(r["message"]["tool_calls"][0]["function"]["arguments"]) == good, r
        rest = whole[whole.index("mix") + 3:]
        for tools, choice, text in (([MIXED], "required", rest), ([MIXED, *TOOLS], "required", "mix" + rest),
                                    ([*TOOLS, MIXED], {"type": "function", "function": {"name": "mix"}}, rest)):
            r = server.post(CHAT, say(text, tools=tools, tool_choice=choice))[1]["choices"][0]
            assert r["finish_reason"] == "tool_calls" and json.loads(r["message"]["tool_calls"][0]["function"]["arguments"]) == good, r
        for bad in (rest.replace("a b", "far too long to be it"), rest.replace("two", "three"), rest.replace("7", "5000"), rest.replace("mix", ""), "Paris", rest[:20]):
            for choice in ("auto", "required"):
                text = whole[:whole.index("mix") + 3] + bad if choice == "auto" else bad
                r = server.post(CHAT, say(text, tools=[strict], tool_choice=choice, max_tokens=400))[1]["choices"][0]
                if r["finish_reason"] != "length":
                    check(r["message"]["tool_calls"][0]["function"]["arguments"], MIXED["function"]["parameters"])
        odd = {"type": "function", "function": {"name": "odd", "strict": True, "parameters": {"type": "object", "properties": {"a b": {}}}}}
        status, r = server.post(CHAT, say("x", tools=[odd]))
        assert status == (200 if name == "gemma" else 400)
        assert status == 200 or "odd: #/properties/a b: the name" in r["error"]["message"]


def test_many_strict_tools(server):
    """Each call may be written in four ways: 64 tools are compiled in a fraction of a second."""
    many = [{"type": "function", "function": {**TOOLS[i % 2]["function"], "name": f"tool_{i}", "strict": True}} for i in range(64)]
    text = '<tool_call>\n{"name": "tool_63", "arguments": {"text": "a", "tags": []}}\n</tool_call>'
    r = server.post(CHAT, say(text, tools=many))[1]["choices"][0]
    assert [c["function"]["name"] for c in r["message"]["tool_calls"]] == ["tool_63"]


def test_choices_and_prompts_share_one_grammar(server):
    r = server.post(TEXT, {"prompt": ["!say one", "!say two"], "n": 2, "guided_choice": ["one", "two", "three"], "max_tokens": 9})[1]
    assert [c["text"] for c in r["choices"]] == ["one", "one", "two", "two"]


# --- what is refused, and what is named ---

REFUSED = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "needs a schema"),
    ({"response_format": rf({"type": "object", "properties": {"a": {"not": {"type": "null"}}}})}, "response_format", "#/properties/a: not"),
    ({"response_format": rf({"type": "array", "items": {"$ref": "#/$defs/gone"}})}, "response_format", "#/items"),
    ({"response_format": rf({"type": "string", "pattern": "(?=a)b"})}, "response_format", "pattern"),
    ({"response_format": rf({"allOf": [{"type": "string"}, {"type": "null"}]})}, "response_format", "nothing can fit"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"guided_regex": "a(b"}, "guided_regex", "byte 3"),
    ({"guided_regex": "(a)\\1"}, "guided_regex", "regular expression"),
    ({"guided_choice": []}, "guided_choice", "not empty"),
    ({"guided_choice": ["a", 5]}, "guided_choice", "choice[1]"),
    ({"grammar": "root ::= x\n"}, "grammar", "x"),
    ({"grammar": "root ::= root \"a\" | \"b\"\n"}, "grammar", "refers to itself"),
    ({"guided_json": 5}, "guided_json", "JSON schema"),
    ({"structured_outputs": {"lark": "x"}}, "structured_outputs", "lark"),
    ({"structured_outputs": {"structural_tag": {"triggers": [], "structures": []}}}, "structured_outputs", "structures"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "response_format already"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "already"),
    ({"guided_regex": "a", "tools": TOOLS, "tool_choice": "required"}, "guided_regex", "cannot be both"),
    ({"guided_regex": "((((a{1,99}){1,99}){1,99}b){1,99}c){1,99}"}, "guided_regex", ""),
]


@pytest.mark.parametrize("fields,param,text", REFUSED)
def test_what_cannot_be_compiled_is_refused(server, fields, param, text):
    status, r = server.chat("x", **fields, max_tokens=4, timeout=10 * SLOW)
    if not text and status == 200:
        return  # bounded: taken or refused, soon
    assert status == 400 and r["error"]["param"] == param and r["error"]["message"].startswith(param + ": ") and text in r["error"]["message"], r


def test_what_is_not_enforced_is_named(server):
    schema = {"type": "array", "items": {"type": "string", "format": "color", "maxLength": 5}, "uniqueItems": True, "x-mine": 1, "maxItems": 2}
    for _ in range(2):  # compiled, and kept
        status, headers, r = server.call(CHAT, {"messages": user("x"), "response_format": rf(schema), "max_tokens": 4})
        assert status == 200 and {"schema.uniqueItems", "schema.format", "schema.x-mine"} == set(headers["x-plumb-ignored"].split(",")), headers


def test_a_tool_is_blamed_by_name(server):
    odd = {"type": "function", "function": {"name": "odd", "strict": True, "parameters": {"type": "object", "properties": {"q": {"not": {}}}}}}
    for fields in ({"tools": [*TOOLS, odd]}, {"tools": [*TOOLS, odd], "tool_choice": "required"}):
        status, r = server.chat("x", **fields)
        assert status == 400 and r["error"]["param"] == "tools" and "odd: #/properties/q: not" in r["error"]["message"], r


def test_what_is_kept_is_counted(server):
    before = server.stats()
    schema = closed({f"kept_{i}": {"type": "null"} for i in range(3)})
    for _ in range(3):
        assert server.chat("x", response_format=rf(schema), max_tokens=2)[0] == 200
    after = server.stats()
    assert after["grammars_compiled"] == before["grammars_compiled"] + 1 and after["grammars_found"] == before["grammars_found"] + 2
    assert after["grammar_mask_seconds"]["count"] > before["grammar_mask_seconds"]["count"] and after["grammars_kept"] > 0
    assert b"plumb_grammar_mask_seconds_bucket" in server.call("/metrics")[2]
    assert server.call("/v1/models")[2]["data"][0]["structured_output"] is True


def test_a_slow_grammar_holds_nobody_up():
    """Compiling has its own slots: other requests are prepared meanwhile."""
    with script() as s:
        slow = {"messages": user("!say x"), "guided_regex": "(([a-z]{1,300}x){1,60}[^y]{1,200}){1,90}z"}
        with concurrent.futures.ThreadPoolExecutor(4) as ex:
            jobs = [ex.submit(s.post, CHAT, {**slow, "seed": i}) for i in range(3)]
            for _ in range(5):
                assert s.chat("!say quick", timeout=3 * SLOW)[0] == 200
            for j in jobs:
                assert j.result()[0] in (200, 400)
