"""Calls and reasoning in the Responses API, over the scripted engine: every way in which a model writes them, whole, streamed and kept."""

import json

import pytest
from serving import script
from test_responses import PATH, USER, events, get, make, parse, text_of, types
from test_tools import NAMED, TOOLS, WAYS

FLAT = [{"type": "function", **t["function"]} for t in TOOLS]
PATCH = {"type": "custom", "name": "patch", "description": "Changes a file.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)*/"}}
PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'


def say(text):
    return [{"role": "user", "content": "!json " + json.dumps(text).replace("!", "\\u0021")}]


def ask(server, text, **fields):
    status, r = make(server, say(text), **fields)
    assert status == 200, r
    return r


def parts(r):
    """content, reasoning, calls of a response, as test_tools has them."""
    reasoning = "".join(p["text"] for i in r["output"] if i["type"] == "reasoning" for p in i["content"] + i["summary"])
    calls = [(i["name"], json.loads(i["arguments"])) for i in r["output"] if i["type"] == "function_call"]
    return text_of(r) or None, reasoning or None, calls


def of_type(evs, name):
    return [e for e in evs if e["type"] == name]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_call(way, tmp_path):
    style, text, content, reasoning, calls = WAYS[way]
    with script(f"--style={style}", f"--state-dir={tmp_path}") as server:
        r = ask(server, text, tools=FLAT)
        assert parts(r) == (content, reasoning, calls) and r["status"] == "completed"
        assert (r["usage"]["output_tokens_details"]["reasoning_tokens"] > 0) == (reasoning is not None)
        evs = events(server, say(text), tools=FLAT)
        last = evs[-1]["response"]
        assert parts(last) == (content, reasoning, calls)
        assert [e["item"] for e in of_type(evs, "response.output_item.done")] == last["output"]
        for i, item in enumerate(last["output"]):
            mine = [e for e in evs if e.get("output_index") == i]
            assert mine[0]["type"] == "response.output_item.added" and mine[0]["item"]["id"] == item["id"]
            assert item["status"] == "completed" and mine[0]["item"]["status"] == "in_progress"
            joined = "".join(e["delta"] for e in mine if e["type"].endswith(".delta"))
            assert joined == (item.get("arguments") if "arguments" in item else item["content"][0]["text"])
            assert len({item["id"], *(e["item_id"] for e in mine if "item_id" in e)}) == 1
        assert get(server, last["id"])[1] == last
        assert parse(server.call(f"{PATH}/{last['id']}?stream=true")[2]) == evs
        # what came out can be sent back, and be continued
        back = [USER, *last["output"], *({"type": "function_call_output", "call_id": i["call_id"], "output": "1"}
                                         for i in last["output"] if i["type"] == "function_call"), *say("fine")]
        assert text_of(make(server, back, tools=FLAT)[1]) == "fine"
        assert text_of(ask(server, "fine", previous_response_id=last["id"], tools=FLAT)) == "fine"


def test_a_choice_forces_a_call():
    with script("--style=<tool_call>") as server:
        rest = ' {"city": "Oslo"}}\n</tool_call>'
        named = {"type": "function", "name": "get_weather"}
        for choice in (named, NAMED, {"type": "allowed_tools", "mode": "required", "tools": [named]}):
            evs = events(server, say(rest), tools=FLAT, tool_choice=choice)
            assert parts(evs[-1]["response"])[2] == [("get_weather", {"city": "Oslo"})], choice
        r = ask(server, 'ping", "arguments": {}}\n</tool_call>', tools=FLAT, tool_choice="required")
        assert parts(r)[2] == [("ping", {})]
        assert parts(ask(server, PING, tools=FLAT, tool_choice="none"))[2] == []
        only = {"type": "allowed_tools", "mode": "auto", "tools": [named]}
        assert parts(ask(server, PING, tools=FLAT, tool_choice=only))[2] == []  # not among the allowed
        r = ask(server, ' {"city": "' + "x" * 90, tools=FLAT, tool_choice=named, max_output_tokens=60)
        assert r["status"] == "incomplete" and r["output"][-1]["status"] == "incomplete"
        for choice in ({"type": "function", "name": "nope"}, "banana", {"type": "function"}):
            status, r = make(server, "x", tools=FLAT, tool_choice=choice)
            assert status == 400 and r["error"]["param"] == "tool_choice", (choice, r)
        status, r = make(server, "x", tool_choice="required")
        assert status == 400
        assert len(parts(ask(server, PING * 3, tools=FLAT))[2]) == 3
        assert len(parts(ask(server, PING * 3, tools=FLAT, parallel_tool_calls=False))[2]) == 1


def test_a_custom_tool():
    text = '*** Begin\n+"a" \\ é 👋\n*** End'
    call = "<tool_call>\n" + json.dumps({"name": "patch", "arguments": {"input": text}}, ensure_ascii=False) + "\n</tool_call>"
    with script("--style=<tool_call>") as server:
        evs = events(server, say("Ok." + call), tools=[PATCH, *FLAT])
        assert types(evs) == ["response.created", "response.in_progress", "response.output_item.added",
                              "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                              "response.content_part.done", "response.output_item.done", "response.output_item.added",
                              "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
                              "response.output_item.done", "response.completed"]
        item = evs[-1]["response"]["output"][1]
        assert item["type"] == "custom_tool_call" and item["name"] == "patch" and item["input"] == text
        deltas = of_type(evs, "response.custom_tool_call_input.delta")
        assert "".join(e["delta"] for e in deltas) == text and len(deltas) > 5
        assert of_type(evs, "response.custom_tool_call_input.done")[0]["input"] == text
        r = ask(server, "Ok." + call, tools=[PATCH, *FLAT])
        assert r["output"][1]["input"] == text and r["tools"][0] == PATCH
        # sent back it is the same text to the model as the call was
        output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
        assert text_of(make(server, [USER, item, output, *say("fine")], tools=[PATCH])[1]) == "fine"
        forced = events(server, say(' {"input": "a"}}\n</tool_call>'), tools=[PATCH, *FLAT], tool_choice={"type": "custom", "name": "patch"})
        assert forced[-1]["response"]["output"][0]["input"] == "a"


# --- custom tools' grammars ---

LARK = """start: sum
?sum: product | sum ("+" | "-") product
?product: atom | product /[*\\/]/ atom
?atom: INT | "(" sum ")" | "'" WORD "'" | QUOTED
QUOTED: "\\"" /[^"]/ "\\""
%import common (INT, WORD, WS)
%ignore WS
"""
SUMS = ["1", "(1 + 2)*3", "'a' -\n(\"b\"/ 4)", '"\\" + ((((5))))', '"é"']
NO_SUMS = ["", "1 +", "(1", "a", "1 2", "'a", '"ab"']


def custom(syntax, definition, name="calc"):
    return {"type": "custom", "name": name, "format": {"type": "grammar", "syntax": syntax, "definition": definition}}


# style: how a call of calc is written around its text, and the text in it
WRITTEN = {
    "<tool_call>": ('<tool_call>\n{"name": "calc", "arguments": {"input": %s}}\n</tool_call>', lambda t: json.dumps(t, ensure_ascii=False)),
    "<tool_call><function= <parameter=": ("<tool_call>\n<function=calc>\n<parameter=input>\n%s\n</parameter>\n</function>\n</tool_call>", str),
    "<seed:tool_call>": ("<seed:tool_call>\n<function=calc>\n<parameter=input>\n%s\n</parameter>\n</function>\n</seed:tool_call>", str),
    "<tool_call> <arg_key>": ("<tool_call>calc\n<arg_key>input</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>", str),
    "<|tool_call>": ("<|tool_call>call:calc{input:%s}<tool_call|>", lambda t: f'<|"|>{t}<|"|>'),
    "<|tool_call_start|>": ("<|tool_call_start|>[calc(input=%s)]<|tool_call_end|>",
                            lambda t: '"' + t.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'),
    "<|channel|><|message|>": ('<|channel|>commentary to=functions.calc <|constrain|>json<|message|>{"input": %s}', lambda t: json.dumps(t, ensure_ascii=False)),
    ">>>all": ('calc\n{"input": %s}', lambda t: json.dumps(t, ensure_ascii=False)),
}


@pytest.mark.parametrize("style", WRITTEN)
def test_a_custom_tools_grammar_is_enforced(style):
    call, write = WRITTEN[style]

    def inputs(server, text, tool, choice, n=500):
        r = ask(server, text, tools=[tool, *FLAT], tool_choice=choice, max_output_tokens=n)
        return [i["input"] for i in r["output"] if i["type"] == "custom_tool_call"] if r["status"] == "completed" else None

    with script("--style=" + style) as server:
        for syntax, definition, good, bad in (("lark", LARK, SUMS, NO_SUMS),
                                              ("regex", "[a-c]{2,4}(?:é|\"|\n|\\\\)?", ["ab", "abcé", 'aa"', "aa\n", "cc\\"], ["a", "abcde", "xy"])):
            tool = custom(syntax, definition)
            for text in good:
                got = inputs(server, call % write(text), tool, "auto")
                assert got == [text] or ("seed" in style and syntax == "regex" and len(got) == 1), (text, got)  # there it stands without line ends
            for text in bad:
                got = inputs(server, call % write(text), tool, "auto")
                assert got is None or (len(got) == 1 and text not in got), (text, got)
            forced = call[call.index("calc") + 4:] % write(good[1])
            got = inputs(server, forced.replace('"name": "calc', ""), tool, {"type": "custom", "name": "calc"})
            assert got is None or len(got) == 1
        # what cannot be compiled is told with its line
        for grammar, words in (("start: x\n", "line 1: 'x' is not defined"), ('start: "a"\nx: /(?=a)b/\n', "line 2"), ("start: y\ny{a}: a\n", "line 2: templates"),
                               ('begin: "a"', "no rule named start"), ('%import python.NAME\nstart: NAME', "line 1: %import"), ('start: "a', "line 1: a string"),
                               ('start: <|x|>', "line 1: tokens"), ('start: a\n\na: b\nb: [a] a "x"\n', "line 3: a refers to itself")):
            status, r = make(server, say("x"), tools=[custom("lark", grammar)])
            assert status == 400 and "calc: " in r["error"]["message"] and words in r["error"]["message"], (grammar, r)
        for form in ({"type": "grammar"}, {"type": "grammar", "syntax": "ebnf", "definition": "x"}, {"type": "grammar", "syntax": "lark", "definition": 5}, {"type": "x"}):
            status, r = make(server, say("x"), tools=[{"type": "custom", "name": "calc", "format": form}])
            assert status == 400 and "tools[0].format" in r["error"]["message"], r
        assert make(server, say("x"), tools=[{"type": "custom", "name": "calc", "format": {"type": "text"}}])[0] == 200


def test_reasoning_as_text_and_as_a_summary():
    with script("--style=<think></think>") as server:
        text = "<think>Hm 👋.</think>\n\nYes"
        evs = events(server, say(text))
        assert types(evs)[2:9] == ["response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
                                   "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
                                   "response.output_item.added"]
        item = evs[-1]["response"]["output"][0]
        assert item["content"] == [{"type": "reasoning_text", "text": "Hm 👋."}] and item["summary"] == []
        evs = events(server, say(text), reasoning={"summary": "auto"})
        assert types(evs)[2:9] == ["response.output_item.added", "response.reasoning_summary_part.added",
                                   "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
                                   "response.reasoning_summary_part.done", "response.output_item.done", "response.output_item.added"]
        item = evs[-1]["response"]["output"][0]
        assert item["summary"] == [{"type": "summary_text", "text": "Hm 👋."}] and item["content"] == []
        assert all(e["summary_index"] == 0 for e in evs if "summary" in e["type"])
        assert evs[-1]["response"]["reasoning"] == {"effort": None, "summary": "auto"}
        for fields in ({"thinking_budget": 1}, {"thinking": {"type": "enabled", "budget_tokens": 1}}):
            r = ask(server, "<think>0123</think>\n\nend", **fields)
            assert r["output"][0]["content"][0]["text"] == "0" and r["output"][1]["type"] == "message", r
        r = ask(server, text, reasoning={"effort": "none"})
        assert [i["type"] for i in r["output"]] == ["message"]
        assert make(server, "x", reasoning={"effort": "huge"})[1]["error"]["param"] == "reasoning.effort"
        cut = ask(server, text, max_output_tokens=9)
        assert cut["status"] == "incomplete" and [i["status"] for i in cut["output"]] == ["incomplete"]
