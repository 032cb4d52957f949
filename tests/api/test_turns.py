"""Turns of one role in a row, for templates that want them to alternate: each API allows them, so they are one turn then."""

import pytest
from serving import script

# raises as the published templates of Gemma, Mistral and Llama 2 do
ALTERNATES = (
    "{% set ns = namespace(i=0) %}{% for m in messages %}{% if m.role != 'system' and m.role != 'tool' %}"
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}{% set ns.i = ns.i + 1 %}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}{{ m.thinking or '' }}{% endfor %}")
U, A, S = "user", "assistant", "system"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}
CALLED = '[{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]'


@pytest.fixture(scope="module")
def server():
    with script(f"--template={ALTERNATES}") as s:
        yield s


def m(role, content, **more):
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize("messages, want", [
    ([m(U, "a"), m(A, "b"), m(U, "c")], "<user>a<assistant>b<user>c"),
    ([m(U, "a"), m(U, [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]), m(U, "d")], "<user>a\nb\nc\nd"),
    ([m(S, "s"), m(S, "t"), m(U, "a"), m(U, "b"), m(A, "c"), m(A, "d"), m(U, "e")], "<system>s\nt<user>a\nb<assistant>c\nd<user>e"),
    ([m(U, "a"), m(A, "b", reasoning_content="hm"), m(A, None, tool_calls=[CALL]), m("tool", "r", tool_call_id="c"), m("tool", "q", tool_call_id="c")],
     f"<user>a<assistant>b{CALLED}hm<tool>r<tool>q"),
    ([m(U, "a"), m(A, None, tool_calls=[CALL]), m(A, None)], f"<user>a<assistant>{CALLED}"),
])
def test_chat(server, messages, want):
    status, r = server.post("/apply-template", {"messages": messages})
    assert (status, r.get("prompt")) == (200, want), r


def test_what_merging_does_not_mend_is_400(server):
    for messages in ([m(A, "a"), m(A, "b")], [m(A, "a")]):
        status, r = server.post("/v1/chat/completions", {"messages": messages})
        assert status == 400 and "Roles must alternate" in r["error"]["message"]
    status, r = server.post("/v1/chat/completions", {"messages": [m(U, "a"), m(U, 5)]})
    assert status == 400 and "messages[1].content" in r["error"]["message"]


def test_responses_and_messages(server):
    turns = [m(U, "x"), m(U, "!say both")]
    status, r = server.post("/v1/responses", {"input": turns, "store": False})
    assert status == 200 and r["output"][0]["content"][0]["text"] == "both"
    status, r = server.post("/v1/messages", {"messages": turns, "max_tokens": 9})
    assert status == 200 and r["content"][0]["text"] == "both"


def test_templates_that_take_them_get_them_as_they_are():
    with script() as s:
        assert s.post("/apply-template", {"messages": [m(U, "a"), m(U, "b")]})[1]["prompt"].count("user") == 2
