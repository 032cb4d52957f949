"""Tool calls and reasoning end to end, without a model: what the scripted engine says in each family's way becomes the API's parts, the same
in a stream as at once; tool_choice, budgets, stop strings, usage. Cases B12, B23, B25, B28 of this area."""

import json

import pytest

from serving import script

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
PING = {"type": "function", "function": {"name": "ping"}}
TOOLS = [WEATHER, PING]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
OSLO = {"city": "Oslo"}

# style (text that the way is inferred from), what the model says, content, reasoning, calls
WAYS = {
    "hermes": ("<tool_call>", 'Hm.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n<tool_call>\n{"name": '
               '"ping", "arguments": {}}\n</tool_call>', "Hm.", None, [("get_weather", OSLO), ("ping", {})]),
    "hermes-think": ("<tool_call><think></think>", '<think>\nWhich? <tool_call>\n</think>\n\n<tool_call>\n{"name": "ping", "arguments": {}}\n'
                     '</tool_call>', None, "Which? <tool_call>", [("ping", {})]),
    "qwen-coder": ("<tool_call><function=<parameter=", "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter="
                   "days>\n3\n</parameter>\n</function>\n</tool_call>", None, None, [("get_weather", {"city": "Oslo", "days": 3})]),
    "glm": ("<tool_call><arg_key>", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n</tool_call>", None, None,
            [("get_weather", {"city": "12"})]),
    "minicpm": ("<function name= <param name=", '<function name="get_weather"><param name="city"><![CDATA[O<s>lo]]></param></function>',
                None, None, [("get_weather", {"city": "O<s>lo"})]),
    "mistral": ("[TOOL_CALLS][ARGS]", 'Ok[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]ping[ARGS]{}', "Ok", None,
                [("get_weather", OSLO), ("ping", {})]),
    "mistral-list": ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "ping", "arguments": {}}]',
                     None, None, [("get_weather", OSLO), ("ping", {})]),
    "gemma": ("<|tool_call><|channel>thought", '<|tool_call>call:get_weather{city:<|"|>Os"lo<|"|>,days:3}<tool_call|>', None, None,
              [("get_weather", {"city": 'Os"lo', "days": 3})]),
    "harmony": ("<|channel|><|message|>", "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions."
                'get_weather <|constrain|>json<|message|>{"city": "Oslo"}', None, "Hm", [("get_weather", OSLO)]),
    "harmony-text": ("<|channel|><|message|>", "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
                     "Yes.", "Hm", []),
    "deepseek": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
                 '{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', None, None, [("get_weather", OSLO)]),
    "llama": ('{"name": function name, "parameters":', '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}', None, None,
              [("get_weather", OSLO)]),
    "fenced": ("", '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```', None, None, [("get_weather", OSLO)]),
    "unknown": ("<tool_call>", '<tool_call>{"name": "nope", "arguments": {}}</tool_call>',
                '<tool_call>{"name": "nope", "arguments": {}}</tool_call>', None, []),
    "none": ("<tool_call>", "Just text.\n\n", "Just text.\n\n", None, []),
}


def say(text, **fields):
    command = "!json " + json.dumps(text).replace("!", "\\u0021")
    return {"messages": [{"role": "user", "content": command}], **fields}


def ask(server, text, **fields):
    status, r = server.post("/v1/chat/completions", say(text, **fields))
    assert status == 200, r
    return r


def joined(events):
    """A stream's choice 0 as a message, with the rules that clients rely on checked on the way."""
    assert events[-1] == "[DONE]"
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for d in events[:-1]:
        for c in d["choices"]:
            delta = c["delta"]
            finish = c["finish_reason"] or finish
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for t in delta.get("tool_calls", []):
                calls = message["tool_calls"]
                if t["index"] == len(calls):
                    calls.append({"id": t["id"], "name": t["function"]["name"], "arguments": ""})
                else:
                    assert t["index"] == len(calls) - 1 and "id" not in t and "name" not in t["function"]
                calls[-1]["arguments"] += t["function"]["arguments"]
    return message, finish


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_call(way):
    style, text, content, reasoning, calls = WAYS[way]
    with script(f"--style={style}") as server:
        r = ask(server, text, tools=TOOLS)
        message, finish = r["choices"][0]["message"], r["choices"][0]["finish_reason"]
        got = [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in message.get("tool_calls", [])]
        assert (message["content"], message.get("reasoning_content"), got) == (content, reasoning, calls)
        assert finish == ("tool_calls" if calls else "stop")
        assert (r["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0) == (reasoning is not None)
        streamed, finish = joined(server.events("/v1/chat/completions", say(text, tools=TOOLS)))
        assert finish == ("tool_calls" if calls else "stop")
        assert (streamed["content"], streamed["reasoning_content"]) == (content or "", reasoning or "")
        assert [(t["name"], json.loads(t["arguments"])) for t in streamed["tool_calls"]] == calls
        assert len({t["id"] for t in streamed["tool_calls"]}) == len(calls)
        # without tools nothing is a call; with tool_choice none neither
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            assert "tool_calls" not in ask(server, text, **fields)["choices"][0]["message"]


def test_arguments_are_streamed_as_they_come():
    with script("--style=<tool_call>") as server:
        text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "' + "a long name " * 40 + '"}}\n</tool_call>'
        events = server.events("/v1/chat/completions", say(text, tools=TOOLS))
        pieces = [d for d in events[:-1] for c in d["choices"] for _ in c["delta"].get("tool_calls", [])]
        assert len(pieces) > 300


def test_choice_forces_a_call():
    """Case B28."""
    with script("--style=<tool_call>") as server:
        # the model goes on behind the opening that it was given
        for choice, rest in ((NAMED, ' {"city": "Oslo"}}\n</tool_call>'), ("required", 'ping", "arguments": {}}\n</tool_call>')):
            r = ask(server, rest, tools=TOOLS, tool_choice=choice, logprobs=True)
            call = r["choices"][0]["message"]["tool_calls"][0]["function"]
            assert call["name"] == ("ping" if choice == "required" else "get_weather")
            assert r["choices"][0]["finish_reason"] == "tool_calls" and r["choices"][0]["message"]["content"] is None
            opening = '<tool_call>\n{"name": "' + ("" if choice == "required" else 'get_weather", "arguments":')
            assert r["usage"]["completion_tokens"] == len(opening) + len(rest)
            streamed, finish = joined(server.events("/v1/chat/completions", say(rest, tools=TOOLS, tool_choice=choice)))
            assert finish == "tool_calls" and json.loads(streamed["tool_calls"][0]["arguments"]) == json.loads(call["arguments"])
        one = ask(server, " {}}", tools=[PING], tool_choice="required")
        assert one["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "ping"
        for n in (2, 3, 5, 8, 60):
            r = ask(server, ' {"city": "' + "x" * 90, tools=TOOLS, tool_choice=NAMED, max_tokens=n)
            assert r["choices"][0]["finish_reason"] == "length" and r["usage"]["completion_tokens"] == n
        for fields, param in (({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
                              ({"tool_choice": "required"}, "tool_choice"), ({"tools": TOOLS, "tool_choice": "banana"}, "tool_choice"),
                              ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"), ({"tool_choice": NAMED}, "tool_choice"),
                              ({"tools": [{"type": "function"}]}, "tools[0]"), ({"tools": {}}, "tools"),
                              ({"reasoning_effort": "huge"}, "reasoning_effort"), ({"reasoning_effort": 3}, "reasoning_effort"),
                              ({"thinking": True}, "thinking"), ({"thinking_budget": -1}, "thinking_budget"),
                              ({"parallel_tool_calls": 1}, "parallel_tool_calls")):
            status, r = server.post("/v1/chat/completions", say("x", **fields))
            assert status == 400 and r["error"]["param"] == param, (fields, r)
        assert ask(server, "x", tool_choice="none")["choices"][0]["message"]["content"] == "x"
        assert ask(server, "x", tool_choice="auto")["choices"][0]["message"]["content"] == "x"


def test_one_call_is_enough_where_it_is_said():
    text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>' * 3 + "more"
    with script("--style=<tool_call>") as server:
        assert len(ask(server, text, tools=TOOLS)["choices"][0]["message"]["tool_calls"]) == 3
        seen = set()
        for stream in (False, True):
            for _ in range(3):
                if stream:
                    events = server.events("/v1/chat/completions", say(text, tools=TOOLS, parallel_tool_calls=False,
                                                                       stream_options={"include_usage": True}))
                    message, finish = joined(events)
                    usage = events[-2]["usage"]
                else:
                    r = ask(server, text, tools=TOOLS, parallel_tool_calls=False)
                    message, finish, usage = r["choices"][0]["message"], r["choices"][0]["finish_reason"], r["usage"]
                assert len(message["tool_calls"]) == 1 and finish == "tool_calls" and not message["content"]
                seen.add(usage["completion_tokens"])
        assert len(seen) == 1  # not a matter of how far the model got meanwhile
        server.wait_stats(running=0)


def test_strict_is_enforced_in_every_way_to_call():
    strict = {"type": "function", "function": {**PING["function"], "strict": True}}
    broken = {"type": "function", "function": {"name": "odd", "strict": True, "parameters": {"properties": {"a": {"type": "egg"}}}}}
    for style in ("<tool_call>", "<|tool_call_start|>", "<|tool_call>", "<|channel|><|message|>", ">>>all", "<atem:function_calls><|message|>"):
        with script("--style=" + style) as server:
            for tools in (TOOLS, [strict]):
                _, headers, _ = server.call("/v1/chat/completions", say("x", tools=tools))
                assert "tools.strict" not in headers.get("x-plumb-ignored", "")
            status, r = server.post("/v1/chat/completions", say("x", tools=[strict, broken]))
            assert status == 400 and "odd" in r["error"]["message"] and "#/properties/a" in r["error"]["message"] and r["error"]["param"] == "tools"


def test_several_calls_where_one_must_be_made():
    """One at least; as many as the model makes, unless it is told to make one, or which."""
    said = ('get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>\n<tool_call>\n'
            '{"name": "ping", "arguments": {}}\n</tool_call>')
    with script("--style=<tool_call>") as server:
        for fields, n in (({}, 3), ({"parallel_tool_calls": True}, 3), ({"parallel_tool_calls": False}, 1)):
            for stream in (False, True):
                if stream:
                    message, finish = joined(server.events("/v1/chat/completions", say(said, tools=TOOLS, tool_choice="required", **fields)))
                    names = [c["name"] for c in message["tool_calls"]]
                else:
                    r = ask(server, said, tools=TOOLS, tool_choice="required", **fields)["choices"][0]
                    names, finish = [c["function"]["name"] for c in r["message"]["tool_calls"]], r["finish_reason"]
                assert names == ["get_weather", "ping", "ping"][:n] and finish == "tool_calls"
        named = {"type": "function", "function": {"name": "ping"}}
        r = ask(server, ' {}}\n</tool_call>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>', tools=TOOLS, tool_choice=named)
        assert [c["function"]["name"] for c in r["choices"][0]["message"]["tool_calls"]] == ["ping"]
        r = ask(server, ' {}}\n</tool_call>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>', tools=[PING], tool_choice="required")
        assert [c["function"]["name"] for c in r["choices"][0]["message"]["tool_calls"]] == ["ping", "ping"]


def test_stop_strings_are_looked_for_outside_reasoning():
    """Case B25 with a think span."""
    with script("--style=<think></think>") as server:
        text = "<think>a STOP b</think>\n\nc STOP d"
        r = ask(server, text, stop=["STOP"])
        assert r["choices"][0]["message"]["reasoning_content"] == "a STOP b"
        assert r["choices"][0]["message"]["content"] == "c " and r["choices"][0]["finish_reason"] == "stop"
        message, _ = joined(server.events("/v1/chat/completions", say(text, stop="STOP")))
        assert (message["reasoning_content"], message["content"]) == ("a STOP b", "c ")
        r = ask(server, "x STOP y", stop=["STOP"])
        assert r["choices"][0]["message"]["content"] == "x " and "reasoning_content" not in r["choices"][0]["message"]


def test_budgets_end_reasoning_and_the_answer_goes_on():
    with script("--style=<think></think>") as server:
        text = "<think>" + "0123456789" * 5 + "</think>\n\nend"
        for fields in ({"thinking_budget": 10}, {"thinking": {"type": "enabled", "budget_tokens": 10}},
                       {"chat_template_kwargs": {"thinking_budget": 10}}):
            r = ask(server, text, **fields)
            m = r["choices"][0]["message"]
            assert m["reasoning_content"] == "0123456789" and m["content"].startswith("0123456789"), m
            assert r["usage"]["completion_tokens"] == len(text) + len("\n</think>\n\n")
            assert r["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10 + len("\n</think>")
        for fields in ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}},
                       {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}):
            m = ask(server, text, **fields)["choices"][0]["message"]
            assert "reasoning_content" not in m and m["content"].startswith("0123"), m
        for fields in ({}, {"reasoning_effort": "low"}, {"reasoning_effort": None}, {"thinking_budget": 1000}):
            m = ask(server, text, **fields)["choices"][0]["message"]
            assert (m["reasoning_content"], m["content"]) == ("0123456789" * 5, "end")
        r = ask(server, text, max_tokens=20)
        assert r["choices"][0]["finish_reason"] == "length" and r["choices"][0]["message"]["content"] == ""


def test_log_probabilities_are_those_of_the_content():
    with script("--style=<tool_call><think></think>") as server:
        text = '<think>Hm</think>\n\nYes 👍.\n<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
        r = ask(server, text, tools=TOOLS, logprobs=True)
        tokens = r["choices"][0]["logprobs"]["content"]
        assert bytes(b for t in tokens for b in t["bytes"]).decode().strip() == "Yes 👍."
        events = server.events("/v1/chat/completions", say(text, tools=TOOLS, logprobs=True))
        streamed = [t for d in events[:-1] for c in d["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
        assert streamed == tokens


def test_history_with_calls_and_reasoning_is_taken_back():
    """Case B12 through the whole server; ids, order and nulls as agents send them."""
    with script("--style=<tool_call><think></think>") as server:
        call = ask(server, '<think>Hm</think>\n<tool_call>{"name": "ping", "arguments": {"a": [1, {"b": null}]}}</tool_call>', tools=TOOLS)
        message = call["choices"][0]["message"]
        history = [{"role": "user", "content": "x"}, message,
                   {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "pong"},
                   {"role": "user", "content": "!say fine"}]
        status, r = server.post("/v1/chat/completions", {"messages": history, "tools": TOOLS})
        assert status == 200 and r["choices"][0]["message"]["content"] == "fine", r
