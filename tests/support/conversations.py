"""The conversations that every published template is rendered with."""

import copy
import itertools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather at a place: <b>now</b> & 'later', \"quoted\" \\ é 日本 😀\nsecond line",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City, e.g. São Paulo"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            },
            "required": ["location"],
        },
    },
}
NUMBERS = {
    "type": "function",
    "function": {
        "name": "set_numbers",
        "description": "Takes numbers",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "number", "minimum": 0.1, "maximum": 1e30, "default": 1.0, "multipleOf": 1e-07},
                "n": {"type": "integer", "maximum": 9223372036854775808, "minimum": -1},
                "big": {"type": "integer", "const": 1000000000000000000000000000000},
                "flag": {"type": "boolean", "default": False},
                "nothing": {"type": "null", "default": None},
                "many": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"deep": {"type": ["string", "null"], "description": "nested"}},
                        "additionalProperties": False,
                    },
                },
                "either": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "one of two"},
            },
            "required": ["x", "n"],
        },
        "return": {"type": "string", "description": "ok"},
    },
}
EMPTY = {"type": "function", "function": {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}}
BARE = {"type": "function", "function": {"name": "bare", "description": "No parameters"}}


def user(text="Hello, world"):
    return {"role": "user", "content": text}


def system(text="You are helpful."):
    return {"role": "system", "content": text}


def assistant(text="Hi there.", **more):
    return {"role": "assistant", "content": text, **more}


def call(name="get_weather", arguments=None, id="call00001"):
    arguments = {"location": "Zürich", "unit": "celsius"} if arguments is None else arguments
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text='{"temp": 21.5}', name="get_weather", id="call00001"):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": text}


SPECIAL = "<|im_start|>system\nfree<|im_end|></s><bos>[INST]<|eot_id|><think>{{ x }}{% if %}<|start_header_id|>"
UNICODE = "𝔘𝔫𝔦 العربية हिन्दी ไทย 한국어 🏳️‍🌈 e\u0301 \u00a0\u2003nbsp\u2028 ß İ ŉ " * 8

MESSAGES = {
    "user": [user()],
    "system and user": [system(), user()],
    "turns": [system(), user("One"), assistant("Two"), user("Three"), assistant("Four"), user("Five")],
    "turns without system": [user("One"), assistant("Two"), user("Three")],
    "ends with assistant": [user("One"), assistant("Two")],
    "blanks": [system("  padded \n"), user("\n\n lines \n\n"), assistant(" \n"), user(" x ")],
    "empty content": [system(""), user(""), assistant(""), user("")],
    "one empty": [user("")],
    "unicode": [system(UNICODE), user(UNICODE), assistant(UNICODE), user("ÀÉ")],
    "special tokens": [system(SPECIAL), user(SPECIAL), assistant(SPECIAL), user("ok")],
    "developer": [{"role": "developer", "content": "Be brief."}, user()],
    "system late": [user("One"), assistant("Two"), system("Later"), user("Three")],
    "two systems": [system("A"), system("B"), user()],
    "two users": [user("One"), user("Two")],
    "assistant first": [assistant("Hello"), user("Hi")],
    "unknown role": [user(), {"role": "narrator", "content": "once"}, user("x")],
    "no messages": [],
    "null content": [user(), assistant(None, tool_calls=[call()]), tool(), user("And?")],
    "call": [user("Weather?"), assistant("", tool_calls=[call()]), tool(), user("Thanks")],
    "call without content": [user("Weather?"), {"role": "assistant", "tool_calls": [call()]}, tool()],
    "call with text": [system(), user("W?"), assistant("Let me see.", tool_calls=[call()]), tool(), assistant("21.5"), user("!")],
    "call ends": [user("W?"), assistant("", tool_calls=[call()])],
    "two calls": [
        user("W?"),
        assistant("", tool_calls=[call(), call("set_numbers", {"x": 0.1, "n": 9223372036854775808, "l": [1, 2.0, None, True, {"a": "é"}]}, "call00002")]),
        tool(), tool("[1, 2]", "set_numbers", "call00002"), user("ok"),
    ],
    "calls in turn": [
        user("W?"), assistant("", tool_calls=[call()]), tool(), assistant("", tool_calls=[call("ping", {}, "call00002")]),
        tool("pong", "ping", "call00002"), assistant("Done."), user("ok"),
    ],
    "arguments as text": [user("W?"), assistant("", tool_calls=[call(arguments='{"location": "Oslo"}')]), tool(), user("ok")],
    "bad call id": [user("W?"), assistant("", tool_calls=[call(id="x")]), tool(id="x"), user("ok")],
    "tool first": [tool(), user()],
    "tool result as object": [user("W?"), assistant("", tool_calls=[call()]), tool({"temp": 21.5, "ok": True}), user("ok")],
    "tool result as parts": [user("W?"), assistant("", tool_calls=[call()]), tool([{"type": "text", "text": "21.5"}]), user("ok")],
    "reasoning": [user("1+1?"), assistant("2", reasoning_content="Add\nthem."), user("2+2?"), assistant("4", reasoning_content=""), user("?")],
    "reasoning and call": [user("W?"), assistant("", reasoning_content="Look it up.", tool_calls=[call()]), tool(), user("ok")],
    "thinking field": [user("1+1?"), assistant("2", thinking="Add.", reasoning="Add."), user("2+2?")],
    "think tags": [user("1+1?"), assistant("<think>\nAdd.\n</think>\n\n2"), user("2+2?"), assistant("</think>4"), user("?")],
    "think tags last": [user("1+1?"), assistant("<think>Add.</think>2")],
    "parts": [
        system([{"type": "text", "text": "Sys"}]), user([{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]),
        assistant([{"type": "text", "text": "Three"}]), user([{"type": "text", "text": "Four"}]),
    ],
    "image": [user([{"type": "image"}, {"type": "text", "text": "What is this?"}])],
    "image url": [user([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "data:,"}}])],
    "audio and video": [user([{"type": "audio"}, {"type": "video"}, {"type": "text", "text": "?"}])],
    "no content": [{"role": "user"}],
    "no role": [{"content": "x"}],
    "slash think": [system("/no_think be brief"), user("Hi /think"), assistant("a"), user("b /no_think")],
    "long": [user("word " * 2000), assistant("tok " * 1000), user("end")],
    "many": [m for i in range(20) for m in (user(f"q{i}"), assistant(f"a{i}"))] + [user("last")],
    "name": [{"role": "user", "content": "x", "name": "bob"}, assistant("y", name="bot"), user("z")],
}

TOOLS = {
    "no tools": None,
    "one tool": [WEATHER],
    "tools": [WEATHER, NUMBERS, EMPTY, BARE],
}

BASE = {
    "bos_token": "<BOS>",
    "eos_token": "<EOS>",
    "pad_token": "<PAD>",
    "unk_token": "<UNK>",
}


def conversations():
    """Yield (name, variables)."""
    for (name, messages), (tools_name, tools) in itertools.product(MESSAGES.items(), TOOLS.items()):
        if tools_name == "tools" and name not in ("user", "system and user", "two calls", "turns", "reasoning and call"):
            continue
        for prompt in (True, False):
            variables = {**BASE, "messages": copy.deepcopy(messages), "add_generation_prompt": prompt, "documents": None, "tools": copy.deepcopy(tools)}
            yield f"{name}, {tools_name}, prompt {prompt}", variables
    extras = [
        {"enable_thinking": True},
        {"enable_thinking": False},
        {"reasoning_effort": "high", "model_identity": "You are X."},
        {"documents": [{"title": "A", "text": "First."}, {"title": "B", "text": "Second <|x|>", "contents": "c"}]},
        {"builtin_tools": ["browser", "python"], "tools": [WEATHER]},
        {"date_string": "01 Jan 2026", "tools_in_user_message": False, "tools": [WEATHER, EMPTY]},
        {"thinking": True},
        {"add_generation_prompt": False, "enable_thinking": False, "preserve_thinking": True, "clear_thinking": False},
        {"chat_template_kwargs": {}, "add_vision_id": True, "max_tokens": 5},
        {"tools": []},
        {"citations": "on", "documents": []},
    ]
    for extra in extras:
        for name in ("system and user", "turns", "reasoning", "call", "parts", "reasoning and call"):
            variables = {**BASE, "messages": copy.deepcopy(MESSAGES[name]), "add_generation_prompt": True, **extra}
            yield f"{name}, {extra}", variables
