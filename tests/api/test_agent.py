"""Tools against a real model with the official client: round trips that end with the right answer, and the shape of a coding agent's
conversation. The model is small: where it matters that it calls, tool_choice sees to it."""

import json

import openai
import pytest
from fetched import fetched_model
from serving import PLUMB, Server

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The current weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
        "required": ["city", "unit"], "additionalProperties": False}}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def client():
    path = fetched_model("qwen2.5-coder-0.5b")
    with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "8192"]) as s:
        yield openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0, timeout=300)


def collect(stream):
    """A stream as (content, calls, finish reason), with the client's own types."""
    content, calls, finish = "", [], None
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for t in choice.delta.tool_calls or []:
                if t.index == len(calls):
                    calls.append({"id": t.id, "type": "function", "function": {"name": t.function.name, "arguments": ""}})
                calls[t.index]["function"]["arguments"] += t.function.arguments or ""
    return content, calls, finish


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_a_round_trip_ends_with_the_right_answer(client, choice, stream):
    ask = {"model": "x", "tools": [WEATHER], "temperature": 0, "max_tokens": 100}
    messages = [{"role": "system", "content": "You are a helpful assistant. When a tool has answered, tell the user in plain words what it said."},
                {"role": "user", "content": "What is the weather in Oslo, in celsius?"}]
    r = client.chat.completions.create(messages=messages, tool_choice=choice, stream=stream, **ask)
    if stream:
        content, calls, finish = collect(r)
    else:
        content, finish = r.choices[0].message.content, r.choices[0].finish_reason
        calls = [t.model_dump() for t in r.choices[0].message.tool_calls or []]
    assert finish == "tool_calls" and not content and len(calls) == 1
    assert calls[0]["function"]["name"] == "get_weather"
    arguments = json.loads(calls[0]["function"]["arguments"])
    assert arguments == {"city": "Oslo", "unit": "c"}
    messages += [{"role": "assistant", "content": None, "tool_calls": calls},
                 {"role": "tool", "tool_call_id": calls[0]["id"], "content": json.dumps({"temperature": -17, "sky": "snow"})},
                 {"role": "user", "content": "Tell me in one sentence."}]
    answer = client.chat.completions.create(messages=messages, tool_choice="auto", **ask).choices[0]
    assert "-17" in answer.message.content and "snow" in answer.message.content.lower()
    assert answer.finish_reason == "stop" and not answer.message.tool_calls


def test_a_stream_of_the_clients_own_helper(client):
    with client.chat.completions.stream(model="x", messages=[{"role": "user", "content": "What is the weather in Oslo, in celsius?"}],
                                        tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=100) as s:
        kinds = [e.type for e in s]
        final = s.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments)["city"] == "Oslo"


def test_the_same_request_gives_the_same_call(client):
    def once():
        r = client.chat.completions.create(model="x", messages=[{"role": "user", "content": "Weather in Bergen?"}], tools=[WEATHER],
                                           tool_choice=NAMED, temperature=1, seed=7, max_tokens=60)
        return r.choices[0].message.tool_calls[0].function.arguments, r.usage.completion_tokens
    assert once() == once()


def agent_tools():
    """Twenty tools as coding agents offer them."""
    names = ["read_file", "write_file", "edit_file", "list_dir", "grep", "glob", "run_command", "run_tests", "git_status", "git_diff",
             "git_commit", "web_fetch", "todo_write", "todo_read", "ask_user", "open_url", "format_code", "lint", "rename_symbol", "finish"]
    props = {"path": {"type": "string"}, "content": {"type": "string"},
             "limit": {"type": "integer"}, "recursive": {"type": "boolean"}, "lines": {"type": "array", "items": {"type": "integer"}}}
    return [{"type": "function", "function": {
        "name": n, "description": f"{n.replace('_', ' ').capitalize()}, if it is needed.",
        "parameters": {"type": "object", "properties": {k: props[k] for k in list(props)[: 1 + i % 5]}, "required": ["path"]}}}
        for i, n in enumerate(names)]


SYSTEM = "You are a coding agent that works in a repository with the help of tools. " + " ".join(
    f"Rule {i}: keep changes small, read before you write, and never guess the content of file number {i}." for i in range(20))


def check_answer(message, finish, tools):
    """Whatever the model did, what the API says is well-formed."""
    names = {t["function"]["name"] for t in tools}
    calls = message["tool_calls"] or []
    assert finish in ("stop", "tool_calls", "length")
    assert (finish == "tool_calls") == bool(calls) or finish == "length"
    assert message["content"] is not None or calls
    assert len({t["id"] for t in calls}) == len(calls)
    for t in calls:
        assert t["type"] == "function" and t["function"]["name"] in names and t["id"].startswith("call_")
        if finish != "length":
            assert isinstance(json.loads(t["function"]["arguments"]), dict)


def test_a_coding_agents_conversation(client):
    tools = agent_tools()
    messages = [{"role": "system", "content": SYSTEM}]
    n_calls = 0
    for turn in range(12):
        name = tools[turn % 7]["function"]["name"]
        messages.append({"role": "user", "content": [{"type": "text", "text": f"Turn {turn}: use {name} on /src/module{turn}.py."}]})
        if turn in (3, 4, 5, 7, 8, 9, 10):  # replayed: a prompt of these takes seconds
            call = {"id": f"call_{turn}", "type": "function", "function": {"name": name, "arguments": json.dumps({"path": f"/src/module{turn}.py"})}}
            messages += [{"role": "assistant", "content": f"I look at module {turn}." if turn % 2 else None, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": call["id"], "content": f"def f{turn}():\n    return {turn}\n"}]
            continue
        forced = {"type": "function", "function": {"name": name}} if turn in (0, 6) else "required" if turn in (1, 11) else "auto"
        r = client.chat.completions.create(model="x", messages=messages, tools=tools, tool_choice=forced, temperature=0, max_tokens=40,
                                           stream=turn % 2 == 1, parallel_tool_calls=turn % 4 != 0)
        if turn % 2 == 1:
            content, calls, finish = collect(r)
            message = {"role": "assistant", "content": content or None, "tool_calls": calls}
            if not calls:
                message["content"] = content
        else:
            message, finish = r.choices[0].message.model_dump(), r.choices[0].finish_reason
        check_answer(message, finish, tools)
        calls = message["tool_calls"] or []
        if forced not in ("auto", "required"):
            assert calls and calls[0]["function"]["name"] == name
        n_calls += len(calls)
        if finish == "length":  # an agent does not go on from half a call
            messages.pop()
            continue
        messages.append({k: v for k, v in message.items() if v is not None and not (k == "tool_calls" and not v)} | {"role": "assistant"})
        messages += [{"role": "tool", "tool_call_id": t["id"], "content": f"def f{turn}():\n    return {turn}\n"} for t in calls]
    assert n_calls >= 3 and len(messages) > 30
