"""Log-probabilities of prompts (prompt_logprobs, echo with logprobs, max_tokens 0) and /signal: shapes and bounds over the scripted
engine, whose scores are -0.25 each; test_serve.py looks at the numbers of a real model."""

import time

import openai
import pytest
from serving import SLOW, Reply, parse_events, request, script

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with script("--rows=4") as s:
        yield s


def choices(events):
    """The choices of a stream put together: index -> {text, logprobs lists, prompt_logprobs, finish_reason}"""
    out = {}
    for e in events[:-1]:
        for c in e["choices"]:
            x = out.setdefault(c["index"], {"text": "", "logprobs": None, "finish_reason": None, "index": c["index"]})
            x["text"] += c["text"]
            x["finish_reason"] = c["finish_reason"] or x["finish_reason"]
            if "prompt_logprobs" in c:
                assert "prompt_logprobs" not in x
                x["prompt_logprobs"] = c["prompt_logprobs"]
            if c["logprobs"]:
                if not x["logprobs"]:
                    x["logprobs"] = {k: [] for k in c["logprobs"]}
                for k, v in c["logprobs"].items():
                    x["logprobs"][k] += v
    return [out[i] for i in sorted(out)]


def both(server, **body):
    """The whole reply's choices, equal to the stream's."""
    status, value = server.post(COMPLETIONS, {"seed": 1, **body})
    assert status == 200, value
    assert choices(server.events(COMPLETIONS, {"seed": 1, **body})) == value["choices"]
    return value["choices"], value["usage"]


def test_echo_with_logprobs_has_prompt_and_answer(server):
    (c,), usage = both(server, prompt="!say aé", echo=True, logprobs=2)
    p = c["logprobs"]
    assert c["text"] == "!say aéaé" and c["finish_reason"] == "stop"
    assert p["tokens"] == ["!", "s", "a", "y", " ", "a", "bytes:\\xc3", "bytes:\\xa9", "a", "bytes:\\xc3", "bytes:\\xa9"]
    assert p["text_offset"] == [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 8]
    assert p["token_logprobs"] == [None] + [-0.25] * 7 + [-0.5] * 3
    assert p["top_logprobs"][0] is None and len(p["top_logprobs"]) == 11 and all(isinstance(t, dict) for t in p["top_logprobs"][1:])
    assert usage["prompt_tokens"] == 8 and usage["completion_tokens"] == 3
    assert "prompt_logprobs" not in c


def test_echo_without_logprobs_is_as_before(server):
    (c,), _ = both(server, prompt="!say x", echo=True)
    assert c["text"] == "!say xx" and c["logprobs"] is None and "prompt_logprobs" not in c
    (c,), _ = both(server, prompt="!say x", echo=True, logprobs=0)
    assert c["logprobs"]["top_logprobs"] == [None] + [{}] * 6


def test_prompt_logprobs_have_vllms_shape(server):
    (c,), _ = both(server, prompt="!say ab", prompt_logprobs=1)
    assert c["text"] == "ab" and c["logprobs"] is None
    scores = c["prompt_logprobs"]
    assert scores[0] is None and len(scores) == 7
    for ch, place in zip("say ab", scores[1:]):
        first = next(iter(place))
        assert first == str(ord(ch)) and place[first]["logprob"] == -0.25 and place[first]["decoded_token"] == ch
        assert set(place[first]) == {"logprob", "rank", "decoded_token"}
    (c,), _ = both(server, prompt="!say ab", prompt_logprobs=0, echo=True, logprobs=3)
    assert all(len(p) == 1 for p in c["prompt_logprobs"][1:]) and len(c["logprobs"]["tokens"]) == 9


def test_max_tokens_0_scores_the_prompt(server):
    for extra in ({"echo": True, "logprobs": 1}, {"echo": True}, {"prompt_logprobs": 2}):
        (c,), usage = both(server, prompt="!forever", max_tokens=0, **extra)
        assert c["text"] == ("!forever" if "echo" in extra else "") and c["finish_reason"] == "length"
        assert usage["completion_tokens"] == 0 and usage["prompt_tokens"] == 8
    (c,), _ = both(server, prompt="!forever", max_tokens=0, echo=True, logprobs=1)
    assert len(c["logprobs"]["tokens"]) == 8 and c["logprobs"]["token_logprobs"][0] is None
    for body in ({"max_tokens": 0}, {"max_tokens": 0, "echo": False}, {"max_tokens": 0, "logprobs": 3}):
        status, value = server.post(COMPLETIONS, {"prompt": "x", **body})
        assert status == 400 and value["error"]["param"] == "max_tokens"
    status, value = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 0, "echo": True, "n": 2})
    assert status == 400 and value["error"]["param"] == "n"
    status, value = server.chat("x", max_tokens=0)
    assert status == 400 and value["error"]["param"] == "max_tokens"


def test_a_prompt_that_fills_the_context_can_be_scored():
    with script("--ctx=64") as s:
        status, value = s.complete("x" * 64, max_tokens=0, echo=True, logprobs=0)
        assert status == 200 and len(value["choices"][0]["logprobs"]["tokens"]) == 64
        assert s.complete("x" * 65, max_tokens=0, echo=True, logprobs=0)[0] == 400
        assert s.complete("x" * 64, echo=True, logprobs=0)[0] == 400


def test_several_prompts_and_answers_have_their_own(server):
    got, usage = both(server, prompt=["!say ab", "!say wxyz"], n=2, echo=True, logprobs=1, prompt_logprobs=1)
    assert [c["text"] for c in got] == ["!say abab"] * 2 + ["!say wxyzwxyz"] * 2
    assert [len(c["prompt_logprobs"]) for c in got] == [7, 7, 9, 9]
    assert [len(c["logprobs"]["tokens"]) for c in got] == [9, 9, 13, 13]
    assert usage["prompt_tokens"] == 16  # a prompt counts once
    got, _ = both(server, prompt=[[104, 105], [33, 115, 97, 121, 32, 113, 257]], echo=True, logprobs=0, max_tokens=1)
    assert got[1]["text"] == "!say qq" and got[1]["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert got[1]["logprobs"]["tokens"][6] == "<|im_end|>"
    (c,), _ = both(server, prompt="<|im_end|>!say q", echo=True, logprobs=0)  # there its spelling is part of the text
    assert c["logprobs"]["text_offset"][:3] == [0, 10, 11]


def test_the_official_client_reads_them(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    r = client.completions.create(model="x", prompt="!say ab", echo=True, logprobs=2, max_tokens=0)
    assert r.choices[0].logprobs.token_logprobs == [None] + [-0.25] * 6 and r.choices[0].text == "!say ab"


def test_failing_answers_with_scores():
    with script("--rows=4") as s:
        events = s.events(COMPLETIONS, {"prompt": ["!fail 0", "!say ab"], "echo": True, "logprobs": 1, "n": 2})
        assert events[-2]["error"]["type"] == "server_error"
        events = s.events(COMPLETIONS, {"prompt": ["!fail 3", "!count 20"], "echo": True, "logprobs": 1})
        got = choices([e for e in events if "error" not in e])
        assert got[0]["text"] == "!fail 3xxx" and got[1]["text"] == "!count 20" + "0123456789" * 2
        assert s.complete("!refuse", prompt_logprobs=1)[0] == 400
        assert s.wait_stats(calls=0, running=0)["memory"]["request"] == 0


@pytest.mark.parametrize("value", [-1, 21, "x", 1.5, True])
def test_wrong_values(server, value):
    status, got = server.complete("x", prompt_logprobs=value)
    assert status == 400 and got["error"]["param"] == "prompt_logprobs"
    assert server.chat("!say x", prompt_logprobs=1)[0] == 200  # not a field of chat: ignored


def test_scores_are_bounded():
    with script("--ctx=300000", "--step-rows=4096") as s:
        status, value = s.complete("x" * 200000, prompt_logprobs=0, max_tokens=1)
        assert status == 400 and "200000" in value["error"]["message"] and "195083" in value["error"]["message"]
        status, value = s.complete(["x" * 70000] * 3, prompt_logprobs=0, max_tokens=1)
        assert status == 400 and value["error"]["param"] == "prompt"
        status, value = s.complete(["x" * 60000] * 3, echo=True, logprobs=0, max_tokens=0)
        assert status == 200 and len(value["choices"][2]["logprobs"]["tokens"]) == 60000
        st = s.wait_stats(calls=0)
        assert st["score_bytes"] == 0 and st["memory"]["request"] == 0


def test_scores_of_all_requests_are_bounded():
    with script("--ctx=300000", "--step-rows=4096", "--prompt-us=1000") as s:
        conns = []
        for i in range(8):  # each near the limit of one: 31 of 32 MiB, 256 in all
            conns.append(s.connect())
            conns[-1].sendall(request(COMPLETIONS, {"prompt": "x" * 190000, "prompt_logprobs": 0, "stream": True}))
            s.wait_at_least("accepted", i + 1, seconds=20)
        status, headers, value = s.call(COMPLETIONS, {"prompt": "x" * 190000, "prompt_logprobs": 0})
        assert status == 429 and value["error"]["code"] == "queue_full" and "retry-after" in headers
        conns[-1].close()
        s.wait_stats(calls=7)
        with s.connect() as c:
            c.sendall(request(COMPLETIONS, {"prompt": "x" * 190000, "prompt_logprobs": 0}))
            s.wait_at_least("accepted", 9, seconds=20)
        for c in conns:
            c.close()
        assert s.wait_stats(seconds=20, calls=0, running=0, waiting=0)["score_bytes"] == 0


def test_scores_where_memory_is_short():
    """Rows give up their memory and are computed again: answers may come before their prompt's scores do, which then come first."""
    bodies = [
        {"prompt": ["q" * (60 + 20 * i) + f"!count {120 + i}", f"!say abc{i}"], "n": 1 + i % 3, "echo": True, "logprobs": i % 3,
         "prompt_logprobs": i % 2, "priority": -i, "seed": 1}
        for i in range(10)
    ]
    with script("--rows=8", "--ctx=1024", "--pages=17", "--step-us=200", "--max-waiting=200") as s:
        alone = [s.post(COMPLETIONS, b)[1]["choices"] for b in bodies]
        conns = [s.connect() for _ in bodies]
        for c, b in zip(conns, bodies):
            c.sendall(request(COMPLETIONS, {**b, "stream": True}))
        for c, want in zip(conns, alone):
            assert choices(parse_events(Reply(c).read()[2])) == want
            c.close()
        st = s.wait_stats(calls=0, running=0)
        assert st["preempted"] > 0 and st["failed"] == 0 and st["memory"]["request"] == 0


def test_a_client_that_goes_while_its_prompt_is_scored():
    with script("--prompt-us=2000") as s:
        for stream in (False, True):
            c = s.connect()
            c.sendall(request(COMPLETIONS, {"prompt": "x" * 5000, "prompt_logprobs": 5, "stream": stream}))
            s.wait_stats(running=1)
            assert s.stats()["score_bytes"] > 0
            c.close()
            st = s.wait_stats(running=0, calls=0)
            assert st["score_bytes"] == 0 and st["memory"]["request"] == 0


# --- /signal ---


def test_signal(server):
    status, value = server.post("/signal", {"prompt": "abc"})
    assert status == 200 and set(value) == {"bins", "count", "minimum", "vocab", "prompt_tokens"}
    assert value["bins"] == list(range(1, 81)) and value["count"] == 80 and value["minimum"] == -20
    assert value["prompt_tokens"] == 3 and value["vocab"] >= 256
    status, value = server.post("/signal", {"prompt": [97, 98], "count": 3, "minimum": -0.1, "model": "any", "priority": 3})
    assert status == 200 and value["bins"] == [1, 2, 3] and value["minimum"] == -0.1 and value["prompt_tokens"] == 2
    status, chat = server.post("/signal", {"messages": [{"role": "user", "content": "hi"}], "count": 4096})
    assert status == 200 and len(chat["bins"]) == 4096
    assert chat["prompt_tokens"] == server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})[1]["count"]
    assert server.wait_stats(calls=0, running=0)["memory"]["request"] == 0


@pytest.mark.parametrize(
    "body, param",
    [({}, "prompt"), ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"), ({"prompt": ""}, "prompt"),
     ({"prompt": ["a", "b"]}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": "x", "count": 0}, "count"),
     ({"prompt": "x", "count": 4097}, "count"), ({"prompt": "x", "count": 1.5}, "count"), ({"prompt": "x", "minimum": 0}, "minimum"),
     ({"prompt": "x", "minimum": 1}, "minimum"), ({"prompt": "x", "minimum": -1e-60}, "minimum"), ({"prompt": "x", "minimum": -1e99}, "minimum"),
     ({"prompt": "x", "minimum": "low"}, "minimum"), ({"messages": []}, "messages"), ({"prompt": "x" * 9000}, "prompt")],
)
def test_wrong_signals(server, body, param):
    status, value = server.post("/signal", body)
    assert status == 400 and value["error"]["param"] == param, value


def test_signals_can_be_cancelled_and_wait_their_turn():
    with script("--prompt-us=1000") as s:
        c = s.connect()
        c.sendall(request("/signal", {"prompt": "x" * 8000}, headers={"X-Request-Id": "sig"}))
        s.wait_stats(running=1)
        t = time.time()
        assert s.call("/v1/requests/sig", method="DELETE")[0] == 200
        assert Reply(c).read()[0] == 499 and time.time() - t < 2 * SLOW
        c.close()
        assert s.wait_stats(calls=0, running=0)["memory"]["request"] == 0
