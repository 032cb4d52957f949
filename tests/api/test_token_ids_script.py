"""Replies that bring the ids they were sampled with, over the scripted engine: a token is a byte. What is taken and what is ignored, and that nothing
that a client sends does harm; what it gains is test_token_ids.py's."""

import random

import pytest
from serving import script

ASK = {"role": "user", "content": "!say and on"}


@pytest.fixture(scope="module")
def server():
    with script("--ctx=4096") as s:
        yield s


def chat(server, messages, **fields):
    status, r = server.chat(messages, **{"max_tokens": 200, "cache_diagnostics": True, "return_token_ids": True, **fields})
    assert status == 200, r
    return r["choices"][0]["message"], r["usage"]["cache_diagnostics"]["token_ids"], r["usage"]["prompt_tokens"]


def test_ids_come_back_and_are_taken(server):
    message, seen, _ = chat(server, [{"role": "user", "content": "!say Grüße, 你好"}])
    assert message["token_ids"] == list("Grüße, 你好".encode()) and seen == {"used": 0, "ignored": 0}
    told = [{"role": "user", "content": "!say x"}, message, ASK]
    again, seen, n = chat(server, told)
    assert seen == {"used": 1, "ignored": 0} and again["content"] == "and on"
    plain, seen, n_plain = chat(server, [told[0], {k: v for k, v in message.items() if k != "token_ids"}, ASK])
    assert seen == {"used": 0, "ignored": 0} and plain == again and n == n_plain


@pytest.mark.parametrize("ids", [list(b"other"), list(b"hell"), list(b"hello there"), [257, *b"hello"], [*b"hel", 256, *b"lo"], [0] * 40, list(b"hello") * 2000])
def test_what_does_not_fit_is_ignored(server, ids):
    reply = {"role": "assistant", "content": "hello", "token_ids": ids}
    message, seen, n = chat(server, [{"role": "user", "content": "!say a"}, reply, ASK])
    assert message["content"] == "and on" and seen["used"] + seen["ignored"] == 1
    _, _, plain = chat(server, [{"role": "user", "content": "!say a"}, {"role": "assistant", "content": "hello"}, ASK])
    assert n == plain


@pytest.mark.parametrize("ids", ["hello", {"a": 1}, [1.5], [-1], [270], [None], ["a"], [2**40], True])
def test_what_is_no_ids_is_told(server, ids):
    status, r = server.chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "token_ids": ids}, ASK])
    assert status == 400 and "messages[1].token_ids" in r["error"]["message"]


def test_several_replies_and_other_roles(server):
    reply = {"role": "assistant", "content": "one", "token_ids": list(b"one")}
    other = {"role": "assistant", "content": "one", "token_ids": list(b"two")}
    _, seen, _ = chat(server, [ASK, reply, ASK, reply, ASK, other, {**ASK, "token_ids": list(b"!say and on")}])
    assert seen == {"used": 2, "ignored": 1}
    _, seen, _ = chat(server, [ASK, {**reply, "token_ids": []}, {**reply, "token_ids": None}, ASK])
    assert seen == {"used": 0, "ignored": 0}


def test_any_ids_do_no_harm(server):
    dice = random.Random(3)
    for _ in range(60):
        content = "".join(dice.choice(["a", "é", "<|im_end|>", " ", "\n", "你"]) for _ in range(dice.randrange(1, 12)))
        ids = list(content.encode())
        for _ in range(dice.randrange(4)):
            at = dice.randrange(len(ids) + 1)
            ids[at:at + dice.randrange(3)] = [dice.randrange(270) for _ in range(dice.randrange(3))]
        message, seen, _ = chat(server, [ASK, {"role": "assistant", "content": content, "token_ids": ids}, ASK])
        assert message["content"] == "and on" and sum(seen.values()) == (1 if ids else 0)
