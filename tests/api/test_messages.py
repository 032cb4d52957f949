"""Anthropic's Messages API: the official client's flows, the shapes of events and errors, and what a coding agent sends. Over the scripted
engine (case B31); test_messages_model.py does the same over a real model."""

import json

import anthropic
import pytest
from serving import request, script, strict_json, Reply

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"


@pytest.fixture(scope="module")
def server():
    with script("--rows=4", "--ctx=60000") as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)


def user(text):
    return [{"role": "user", "content": text}]


def post(server, say, **fields):
    body = {"model": "m", "max_tokens": 100, "messages": user(say) if isinstance(say, str) else say, **fields}
    return server.post(PATH, {k: v for k, v in body.items() if v is not ...})


def events(server, messages, **fields):
    """[(event, data)]; each event is its data's type."""
    body = {"model": "m", "max_tokens": 100, "messages": user(messages) if isinstance(messages, str) else messages, "stream": True, **fields}
    with server.connect() as c:
        c.sendall(request(PATH, body))
        status, headers, value = Reply(c).read()
    assert status == 200 and headers["content-type"].startswith("text/event-stream") and headers["request-id"], value
    out = []
    for block in value.decode().split("\n\n")[:-1]:
        event, data = block.split("\n")
        assert event.startswith("event: ") and data.startswith("data: ")
        out.append((event[7:], strict_json(data[6:])))
        assert out[-1][0] == out[-1][1]["type"]
    return out


def prompt(server, messages, **fields):
    """What the model is given, by way of the chat request that says the same."""
    status, value = server.post("/apply-template", {"messages": messages, **fields})
    assert status == 200, value
    return value["prompt"]


def count(server, messages, **fields):
    status, value = server.post(COUNT, {"model": "m", "messages": messages, **fields})
    assert status == 200, value
    return value["input_tokens"]


# --- the official client ---


def test_client_create(client):
    r = client.messages.create(model="any", max_tokens=50, messages=user("!say Grüße 👋"))
    assert [(b.type, b.text) for b in r.content] == [("text", "Grüße 👋")]
    assert (r.stop_reason, r.stop_sequence, r.role, r.type, r.model) == ("end_turn", None, "assistant", "message", "script")
    assert r.id.startswith("msg_") and r.usage.output_tokens == len("Grüße 👋".encode()) and r.usage.input_tokens > 10
    assert (r.usage.cache_creation_input_tokens, r.usage.cache_read_input_tokens) == (0, 0) and r._request_id


def test_client_stream(client):
    with client.messages.stream(model="any", max_tokens=50, messages=user("!say Grüße 👋")) as s:
        assert "".join(s.text_stream) == "Grüße 👋"
        r = s.get_final_message()
    assert r.content[0].text == "Grüße 👋" and r.stop_reason == "end_turn" and r.usage.output_tokens == 12
    kinds = [e.type for e in client.messages.create(model="any", max_tokens=50, messages=user("!say ab"), stream=True)]
    assert kinds == ["message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
                     "message_delta", "message_stop"]


def test_client_stop_sequences(client):
    for stop in ("cd", "xyz"):
        k = {"model": "any", "max_tokens": 50, "messages": user("!say abcdef"), "stop_sequences": ["qq", stop]}
        r = client.messages.create(**k)
        want = ("stop_sequence", "cd", "ab") if stop == "cd" else ("end_turn", None, "abcdef")
        assert (r.stop_reason, r.stop_sequence, r.content[0].text) == want
        with client.messages.stream(**k) as s:
            f = s.get_final_message()
        assert (f.stop_reason, f.stop_sequence, f.content[0].text) == want and f.usage.output_tokens == r.usage.output_tokens
    assert client.messages.create(model="any", max_tokens=3, messages=user("!say abcdef")).stop_reason == "max_tokens"


def test_client_count_tokens(client):
    k = {"model": "any", "messages": user("!say x"), "system": "Be brief."}
    n = client.messages.count_tokens(**k).input_tokens
    assert n == client.messages.create(max_tokens=5, **k).usage.input_tokens
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert client.messages.count_tokens(**{**k, "system": blocks}).input_tokens == n
    tools = [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}]
    assert client.messages.count_tokens(tools=tools, **k).input_tokens >= n


def test_client_errors(client):
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(model="any", max_tokens=5, messages=[])
    assert e.value.body["error"]["type"] == "invalid_request_error" and "messages" in str(e.value)
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(model="any", max_tokens=5, messages=user("x" * 70000))
    assert "60000" in str(e.value) and "context" in str(e.value)
    assert client.messages.count_tokens(model="any", messages=user("x" * 70000)).input_tokens > 70000
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(model="any", max_tokens=5, messages=user("!fail 2"))
    with pytest.raises(anthropic.APIError):
        list(client.messages.create(model="any", max_tokens=5, messages=user("!fail 2"), stream=True))
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()


def test_client_keys():
    with script("--api-key=sk-ant-12345678") as s:
        k = {"model": "any", "max_tokens": 5, "messages": user("!say in")}
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=s.url, api_key="sk-ant-wrong", max_retries=0).messages.create(**k)
        assert anthropic.Anthropic(base_url=s.url, api_key="sk-ant-12345678").messages.create(**k).content[0].text == "in"
        assert anthropic.Anthropic(base_url=s.url, auth_token="sk-ant-12345678", api_key=None).messages.create(**k).content[0].text == "in"


# --- a stream ---


def test_events_in_order(server):
    got = events(server, "!say hello")
    names = [n for n, _ in got]
    assert names[:2] == ["message_start", "content_block_start"] and names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    start = got[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["input_tokens"] > 0
    assert got[1][1] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert "".join(d["delta"]["text"] for n, d in got if n == "content_block_delta") == "hello"
    delta = got[-2][1]
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None} and delta["usage"]["output_tokens"] == 5
    assert delta["usage"]["input_tokens"] == start["usage"]["input_tokens"]


def test_an_empty_answer_is_whole(server):
    assert [n for n, _ in events(server, "!say ")] == ["message_start", "message_delta", "message_stop"]
    status, value = post(server, "!say ")
    assert status == 200 and value["content"] == [] and value["stop_reason"] == "end_turn"


def test_a_failure_in_a_stream_is_an_event(server):
    got = events(server, "!fail 2")
    assert got[-1][0] == "error" and got[-1][1]["error"]["type"] == "api_error" and "message_stop" not in [n for n, _ in got]


def test_pings_while_there_is_nothing_to_say():
    with script("--keep-alive-ms=100", "--step-us=1000000") as s:
        got = [n for n, _ in events(s, "!say a")]
    assert got.count("ping") >= 3
    assert [n for n in got if n != "ping"] == ["message_start", "content_block_start", "content_block_delta", "content_block_stop",
                                               "message_delta", "message_stop"]


# --- requests ---

CALLS = [
    {"type": "text", "text": "ok"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "k9"}},
    {"type": "tool_use", "id": "t2", "name": "g", "input": {"x": 1.50, "y": [1, None]}},
]


def test_what_is_sent_reaches_the_prompt_in_order(server):
    """As the chat request that says the same: results of tools before the text beside them, failures marked."""
    blocks = [
        {"type": "text", "text": "first"},
        {"type": "tool_result", "tool_use_id": "t1", "content": "A"},
        {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "B"}, {"type": "text", "text": "C"}], "is_error": True},
        {"type": "text", "text": "then", "cache_control": {"type": "ephemeral"}},
    ]
    anthropic_form = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": CALLS}, {"role": "user", "content": blocks}]
    chat_form = [
        {"role": "system", "content": "S1\nS2"}, {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "ok", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": "k9"}}},
            {"id": "t2", "type": "function", "function": {"name": "g", "arguments": {"x": 1.50, "y": [1, None]}}}]},
        {"role": "tool", "tool_call_id": "t1", "name": "f", "content": "A"},
        {"role": "tool", "tool_call_id": "t2", "name": "g", "content": "Error: B\nC"},
        {"role": "user", "content": "first\nthen"},
    ]
    system = [{"type": "text", "text": "S1"}, {"type": "text", "text": "S2", "cache_control": {"type": "ephemeral"}}]
    text = prompt(server, chat_form)
    assert text.index("Error: B\nC") < text.index("first\nthen")
    assert count(server, anthropic_form, system=system) == server.post("/tokenize", {"messages": chat_form})[1]["count"]


def test_turns_of_one_role_in_a_row_are_one(server):
    """As if their blocks stood in one message; results of tools come first then, too."""
    text = lambda t: {"type": "text", "text": t}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "A"}
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    said = {"type": "thinking", "thinking": "hm", "signature": "s"}
    split = [*user("a"), {"role": "user", "content": [text("b"), text("c")]}, *user("d"), {"role": "assistant", "content": [said, text("e")]},
             {"role": "assistant", "content": "f"}, {"role": "assistant", "content": [call]}, *user("g"), {"role": "user", "content": [result, text("h")]}]
    whole = [{"role": "user", "content": [text(t) for t in "abcd"]}, {"role": "assistant", "content": [said, text("e"), text("f"), call]},
             {"role": "user", "content": [text("g"), result, text("h")]}]
    chat_form = [{"role": "user", "content": "a\nb\nc\nd"},
                 {"role": "assistant", "content": "e\nf", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {}}}]},
                 {"role": "tool", "tool_call_id": "t1", "name": "f", "content": "A"}, {"role": "user", "content": "g\nh"}]
    counts = count(server, split), count(server, whole), server.post("/tokenize", {"messages": chat_form})[1]["count"]
    assert len(set(counts)) == 1, counts
    assert post(server, [*user("!say no"), *user("!say yes")])[1]["content"][0]["text"] == "yes"
    status, value = post(server, [*user("x"), {"role": "user", "content": [5]}])
    assert status == 400 and "messages[1].content[0]" in value["error"]["message"]


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": "A"}], None, ...])
def test_results_may_be_empty(server, content):
    block = {"type": "tool_result", "tool_use_id": "t1", **({} if content is ... else {"content": content})}
    assert post(server, [*user("x"), {"role": "assistant", "content": CALLS}, {"role": "user", "content": [block]}])[0] == 200


def test_prior_thinking_is_taken(server):
    m = [*user("x"), {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
         {"type": "redacted_thinking", "data": "zzz"}, {"type": "text", "text": "y"}]}, *user("!say z")]
    assert post(server, m)[1]["content"][0]["text"] == "z"


@pytest.mark.parametrize(
    "fields, where",
    [
        ({"max_tokens": ...}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": "x"}, "messages"), ({"messages": []}, "messages"), ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"), ({"messages": [{"role": "user", "content": [5]}]}, "content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]}]}, "image"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "x"}]}]}, "input"),
        ({"system": 5}, "system"), ({"system": [{"type": "image"}]}, "system[0]"), ({"stop_sequences": [1]}, "stop"),
        ({"stop_sequences": ["x"] * 17}, "stop"), ({"tools": {}}, "tools"), ({"tools": [1]}, "tools[0]"), ({"tools": [{"name": "f"}]}, "input_schema"),
        ({"tool_choice": "auto"}, "tool_choice"), ({"tool_choice": {"type": "tool"}}, "tool_choice"), ({"tool_choice": {"type": "x"}}, "tool_choice"),
        ({"thinking": {"type": "x"}}, "thinking"), ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "budget_tokens"),
        ({"temperature": "hot"}, "temperature"), ({"top_k": "x"}, "top_k"), ({"stream": 1}, "stream"),
    ],
)
def test_bad_requests_are_refused_and_named(server, fields, where):
    status, value = post(server, "x", **fields)
    assert status == 400 and value["type"] == "error" and value["error"]["type"] == "invalid_request_error" and value["request_id"]
    assert where in value["error"]["message"], value
    if not {"max_tokens", "stream"} & set(fields):
        body = {"model": "m", "messages": user("x"), **fields}
        assert {"stop_sequences", "temperature", "top_k"} & set(fields) or server.post(COUNT, body)[0] == 400


def test_odd_bodies(server):
    for body in (b"", b"{", b"[]", b"null"):
        status, _, value = server.call(PATH, body)
        assert status == 400 and value["type"] == "error"
    status, _, value = server.call(PATH)
    assert status == 405 and value["type"] == "error"


def test_null_means_absent(server):
    names = "system stop_sequences temperature top_p top_k tools tool_choice thinking metadata service_tier stream cache_control container".split()
    assert post(server, "!say x", **{n: None for n in names})[1]["content"][0]["text"] == "x"


def test_sampling_extras_pass(server):
    status, headers, value = server.call(PATH, {"model": "m", "max_tokens": 9, "messages": user("!say x"), "seed": 7, "min_p": 0.1,
                                                "repetition_penalty": 1.1, "logit_bias": {"120": -100}, "betas": ["x"]})
    assert status == 200 and headers["x-plumb-seed"] == "7" and headers["x-plumb-ignored"] == "betas"


# --- a coding agent's requests ---

AGENT_TOOLS = [
    {"name": name, "description": f"Does {name}. " * 10,
     "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False,
                      "properties": {"file_path": {"type": "string", "description": "path"}, "limit": {"type": "number"}},
                      "required": ["file_path"]}}
    for name in "Task Bash Glob Grep LS Read Edit MultiEdit Write NotebookEdit WebFetch TodoWrite WebSearch BashOutput KillShell Skill "
                "SlashCommand ExitPlanMode mcp__a__b mcp__c__d".split()
]


def agent_request(turns, **fields):
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nnote\n</system-reminder>"},
                                             {"type": "text", "text": "Fix the bug.", **mark}]}]
    for i in range(turns):
        messages.append({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"}, {"type": "text", "text": f"Step {i}."},
            {"type": "tool_use", "id": f"toolu_{i:04}", "name": "Read", "input": {"file_path": f"/src/{i}.c"}}]})
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": f"toolu_{i:04}", "content": [{"type": "text", "text": "int x;\n" * 8}], **(mark if i == turns - 1 else {})},
            {"type": "text", "text": "<system-reminder>todo</system-reminder>"}]})
    return {
        "model": "claude-sonnet-4-5-20250929", "max_tokens": 32000, "temperature": 1, "stream": True, "messages": messages,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=abcde;"},
                   {"type": "text", "text": "You are a coding agent.", **mark}, {"type": "text", "text": "Rules. " * 100, **mark}],
        "tools": [*AGENT_TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "metadata": {"user_id": "user_abc_account__session_1"}, "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, **fields,
    }


AGENT_HEADERS = {
    "x-api-key": "dummy", "anthropic-version": "2023-06-01", "User-Agent": "claude-cli/2.0 (external, cli)", "x-app": "cli",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,never-heard-of-2099-01-01",
    "anthropic-dangerous-direct-browser-access": "true", "X-Stainless-Lang": "js", "X-Stainless-Retry-Count": "0",
}


def test_an_agents_conversation_is_served(server):
    for turns in (0, 1, 12):
        body = agent_request(turns)
        body["messages"][-1]["content"].append({"type": "text", "text": "!say done"})
        with server.connect() as c:
            c.sendall(request(PATH + "?beta=true", body, headers=AGENT_HEADERS))
            status, headers, value = Reply(c).read()
        assert status == 200, value
        assert headers["x-plumb-ignored"] == "context_management,tools.web_search_20250305"
        assert value.decode().count("event: message_stop") == 1 and '"stop_reason":"end_turn"' in value.decode().replace(" ", "")
        assert "done" == "".join(json.loads(b.split("data: ")[1])["delta"]["text"] for b in value.decode().split("\n\n") if '"text_delta"' in b)
    body = agent_request(12)
    for name in ("max_tokens", "stream", "temperature", "metadata", "context_management"):
        del body[name]
    status, _, value = server.call(COUNT + "?beta=true", body, headers=AGENT_HEADERS)
    assert status == 200 and value["input_tokens"] > 2000


# --- tools and reasoning ---

TOOL = {"name": "get_weather", "description": "d", "strict": True,
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo \\u00e9", "days": 2}}'


def test_a_call_is_a_block(client, server):
    k = {"model": "any", "max_tokens": 300, "messages": user("!say Let me see.\n<tool_call>\\n" + CALL), "tools": [TOOL]}
    k["messages"] = user("!say " + CALL)
    r = client.messages.create(**k)
    with client.messages.stream(**k) as s:
        f = s.get_final_message()
    for x in (r, f):
        (b,) = x.content
        assert (b.type, b.name, b.input) == ("tool_use", "get_weather", {"city": "Oslo é", "days": 2}) and b.id.startswith("toolu_")
        assert x.stop_reason == "tool_use" and x.stop_sequence is None
    got = events(server, k["messages"], tools=[TOOL])
    names = [n for n, _ in got if n != "ping"]
    assert names[:2] == ["message_start", "content_block_start"] and names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert got[1][1]["content_block"]["input"] == {} and got[-2][1]["delta"]["stop_reason"] == "tool_use"
    deltas = [d["delta"] for n, d in got if n == "content_block_delta"]
    assert {d["type"] for d in deltas} == {"input_json_delta"}
    assert json.loads("".join(d["partial_json"] for d in deltas)) == {"city": "Oslo é", "days": 2}
    again = [*k["messages"], {"role": "assistant", "content": [b.model_dump() for b in r.content]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": r.content[0].id, "content": "9 degrees"}]},
             *user("!say It is cold.")]
    assert client.messages.create(**{**k, "messages": again}).content[0].text == "It is cold."


def test_what_is_no_call_is_text(client):
    for say in ('{"name": "unknown", "arguments": {}}', '{"name": "get_weather"'):
        r = client.messages.create(model="any", max_tokens=300, messages=user("!say " + say), tools=[{**TOOL, "strict": False}])
        assert [(b.type, b.text) for b in r.content] == [("text", say)] and r.stop_reason == "end_turn"


def test_tool_choice_is_checked(server):
    assert post(server, "x", tools=[TOOL], tool_choice={"type": "tool", "name": "nope"})[0] == 400
    assert post(server, "x", tool_choice={"type": "any"})[0] == 400
    assert post(server, "!say x", tool_choice={"type": "none"})[1]["content"][0]["text"] == "x"
    status, headers, value = server.call(PATH, {"model": "m", "max_tokens": 200, "messages": user("!say x"), "tools": [TOOL]})
    assert status == 200 and "x-plumb-ignored" not in headers
