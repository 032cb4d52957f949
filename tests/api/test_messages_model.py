"""The Messages API over the real Qwen2.5-Coder-0.5B with the official client: the flows of test_messages.py, and a tool round trip."""

import json

import anthropic
import pytest
from fetched import fetched_model
from serving import PLUMB, Reply, Server, request
from test_messages import AGENT_HEADERS, COUNT, PATH, agent_request, events

GREEDY = {"temperature": 0}
EXTRA = {"extra_body": GREEDY}  # the client has no argument for it


@pytest.fixture(scope="module")
def real():
    path = fetched_model("qwen2.5-coder-0.5b")
    with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "16384", "--no-store"]) as s:
        yield s


@pytest.fixture(scope="module")
def client(real):
    return anthropic.Anthropic(base_url=real.url, api_key="x", max_retries=0, timeout=600)


def user(text):
    return [{"role": "user", "content": text}]


def taken(usage):
    """Tokens in and out; how many of them were cached depends on what came before."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0), usage.output_tokens


def test_whole_and_stream_are_the_same(client, real):
    k = {"model": "any", "max_tokens": 40, "messages": user("Count from 1 to 20, separated by commas."), **EXTRA}
    r = client.messages.create(**k)
    with client.messages.stream(**k) as s:
        f = s.get_final_message()
    assert r.content[0].text == f.content[0].text and taken(r.usage) == taken(f.usage) and len(r.content[0].text) > 20
    assert client.messages.count_tokens(model="any", messages=k["messages"]).input_tokens == taken(r.usage)[0]
    stop = r.content[0].text[8:12]
    c = client.messages.create(stop_sequences=[stop], **k)
    assert (c.stop_reason, c.stop_sequence) == ("stop_sequence", stop)
    assert c.content[0].text == r.content[0].text[: r.content[0].text.find(stop)]
    assert client.messages.create(**{**k, "max_tokens": 3}).stop_reason == "max_tokens"
    chat = real.chat(k["messages"], max_tokens=40, **GREEDY)[1]["choices"][0]["message"]["content"]
    assert chat == r.content[0].text


POPULATION = {"name": "get_population", "description": "Population of a city, in thousands",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_round_trip_ends_with_the_right_answer(client, stream):
    m = user("How many thousand people live in Oslo? Use the tool.")
    k = {"model": "any", "max_tokens": 200, "tools": [POPULATION], **EXTRA}

    def ask(**more):
        if not stream:
            return client.messages.create(**k, **more)
        with client.messages.stream(**k, **more) as s:
            return s.get_final_message()

    r = ask(messages=m, tool_choice={"type": "tool", "name": "get_population", "disable_parallel_tool_use": True})
    calls = [b for b in r.content if b.type == "tool_use"]
    assert r.stop_reason == "tool_use" and len(calls) == 1 and calls[0].name == "get_population" and "oslo" in calls[0].input["city"].lower()
    m += [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in r.content]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": calls[0].id, "content": "717"}]}]
    r = ask(messages=m, tool_choice={"type": "none"})
    assert r.stop_reason == "end_turn" and "717" in "".join(b.text for b in r.content if b.type == "text")


def test_any_tool_may_be_asked_for(client):
    tools = [POPULATION, {**POPULATION, "name": "get_area", "description": "Area of a city"}]
    r = client.messages.create(model="any", max_tokens=200, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True},
                               messages=user("How large is Oslo?"), **EXTRA)
    assert r.stop_reason == "tool_use" and any(b.type == "tool_use" and b.name.startswith("get_") for b in r.content)


def test_a_call_that_is_cut_is_not_called_whole(client, real):
    k = {"tools": [POPULATION], "tool_choice": {"type": "tool", "name": "get_population"}, "max_tokens": 4}
    r = client.messages.create(model="any", messages=user("Oslo?"), **k, **EXTRA)
    assert r.stop_reason == "max_tokens" and all(isinstance(b.input, dict) for b in r.content if b.type == "tool_use")
    got = events(real, "Oslo?", **k, **GREEDY)
    assert got[-2][1]["delta"]["stop_reason"] == "max_tokens" and got[-1][0] == "message_stop"


def test_an_agents_conversation_is_well_formed(real):
    body = agent_request(12, max_tokens=24, temperature=0)
    with real.connect(600) as c:
        c.sendall(request(PATH + "?beta=true", body, headers=AGENT_HEADERS))
        status, headers, value = Reply(c).read()
    assert status == 200, value
    blocks = [b.split("\n") for b in value.decode().split("\n\n")[:-1]]
    names = [b[0][7:] for b in blocks if b[0] != "event: ping"]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    last = json.loads(blocks[-2][1][6:])
    assert last["delta"]["stop_reason"] in ("end_turn", "tool_use", "max_tokens")
    counted = real.call(COUNT, {"model": "m", "messages": body["messages"], "system": body["system"], "tools": body["tools"]})[2]
    assert counted["input_tokens"] == last["usage"]["input_tokens"] + last["usage"]["cache_read_input_tokens"]
