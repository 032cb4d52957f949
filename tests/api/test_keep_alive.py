"""A stream is never silent for long, whatever its answer waits for: a place, its prompt, a slow step, a withheld piece of text. What is
sent are events of the API itself: some clients count no comments. The interval is shortened: 8 seconds are 8000 ms here."""

import time

import pytest
from serving import SLOW, parse_events, request, script, text_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EVERY = 0.2
BOUND = 1.5 * SLOW  # on a busy machine; each silence would be twice as long without the events


def timed(server, path, body):
    """(longest silence in seconds, the whole stream)"""
    with server.connect() as c:
        c.sendall(request(path, {**body, "stream": True}, version="1.0"))
        last, longest, data = time.time(), 0, b""
        while x := c.recv(65536):
            longest, last, data = max(longest, time.time() - last), time.time(), data + x
    return longest, data.split(b"\r\n\r\n", 1)[1]


def chat(text, **fields):
    return CHAT, {"messages": [{"role": "user", "content": text}], **fields}


def complete(text, **fields):
    return COMPLETIONS, {"prompt": text, **fields}


@pytest.mark.parametrize("form", [chat, complete])
@pytest.mark.parametrize("why", ["prompt", "step", "stop", "scores"])
def test_no_stream_is_silent_for_long(form, why):
    flags = {"prompt": ["--prompt-us=40000"], "step": ["--step-us=3000000"], "stop": ["--step-us=200000"], "scores": ["--prompt-us=40000"]}
    text, fields, want = "!say l", {}, "l"
    if why == "stop":  # what may become the stop string is held back
        text, fields, want = "!say abababababababa", {"stop": ["abababababababab"]}, "abababababababa"
    if why == "scores":
        if form is chat:
            return  # chat has none
        fields = {"prompt_logprobs": 1}
    with script(f"--keep-alive-ms={int(EVERY * 1000)}", *flags[why]) as s:
        path, body = form(text + (" " * 70 if why in ("prompt", "scores") else ""), **fields)
        longest, data = timed(s, path, body)
    assert longest < BOUND, longest
    events = parse_events(data)
    assert text_of(events).strip() == want
    quiet = [e for e in events[:-1] if e["choices"] and e["choices"][0]["finish_reason"] is None
             and (e["choices"][0].get("delta") == {} or e["choices"][0].get("text") == "")]
    assert len(quiet) >= 2 and len({(e["id"], e["object"], e["model"]) for e in events[:-1]}) == 1


def test_waiting_streams_are_kept_too():
    with script("--keep-alive-ms=200", "--step-us=30000", "--rows=1") as s:
        with s.connect() as first:
            first.sendall(request(*_stream(chat("!count 100"))))
            s.wait_stats(running=1)
            longest, data = timed(s, *chat("!say waited"))
            assert longest < BOUND and text_of(parse_events(data)) == "waited"


def _stream(call):
    path, body = call
    return path, {**body, "stream": True}


def test_only_answers_that_go_on_are_named():
    """Of several answers, one has ended: no chunk of it comes after its finish_reason."""
    with script("--keep-alive-ms=200", "--step-us=700000", "--rows=1") as s:  # one after the other
        _, data = timed(s, *chat("!say a", n=2))
    ended = set()
    for e in parse_events(data)[:-1]:
        for c in e["choices"]:
            assert c["index"] not in ended
            if c["finish_reason"]:
                ended.add(c["index"])
    assert ended == {0, 1}


def test_a_stream_that_flows_has_no_extra_events():
    with script("--keep-alive-ms=2000") as s:
        events = parse_events(timed(s, *chat("!count 100"))[1])
    assert len(events) == 100 + 3  # role, one a token, end, [DONE]


def test_responses_say_that_they_are_in_progress():
    with script("--keep-alive-ms=200", "--step-us=3000000") as s:
        longest, data = timed(s, "/v1/responses", {"model": "m", "input": "!say l"})
    events = [b.split("\n", 1) for b in data.decode().split("\n\n") if b]
    assert longest < BOUND and [e[0] for e in events].count("event: response.in_progress") >= 4
    assert events[-1][0] == "event: response.completed"
