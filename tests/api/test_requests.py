"""How API requests end otherwise than by their answer: DELETE, disconnects and deadlines in every phase, failing answers, full lines."""

import json
import os
import signal
import socket
import threading
import time

import openai
import pytest
from serving import SLOW, Reply, parse_events, request, reset, script, text_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ID = {"X-Request-Id": "the-one"}


def body_of(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


def preparation(st):
    return st["preparation"]["text"]


def wait_for(server, test, seconds=10):
    end = time.time() + seconds * SLOW
    while not test(st := server.stats()):
        assert time.time() < end, st
        time.sleep(0.005)
    return st


# Each phase: flags of the server, requests that come before, the request, and what /stats says when it is there.
PHASES = {
    "queued": (["--prepare-ms=400"], 2, "!count 3", lambda st: preparation(st)["running"] == 2 and preparation(st)["queued"] == 1),
    "preparing": (["--prepare-ms=400"], 0, "!count 3", lambda st: preparation(st)["running"] == 1),
    "waiting": (["--step-us=2000"], 1, "!count 3", lambda st: st["waiting"] == 1 and st["running"] == 1),
    "prefill": (["--prompt-us=1000"], 0, "x" * 6000, lambda st: st["running"] == 1 and st["prompt_tokens"] > 0),
    "decode": (["--step-us=2000"], 0, "!forever", lambda st: st["running"] == 1 and st["tokens"] > 3),
}


class Phase:
    """A server with a request of ID in a phase, and other clients' requests before it."""

    def __init__(self, name, stream):
        flags, n, text, self.is_there = PHASES[name]
        self.server = script(*flags)
        self.others = []
        for _ in range(n):
            self.others.append(self.server.connect())
            self.others[-1].sendall(request(CHAT, body_of("!forever", stream=True)))
            wait_for(self.server, lambda st: st["calls"] == len(self.others))
        if name == "waiting":
            wait_for(self.server, lambda st: st["running"] == 1)
        self.conn = self.server.connect()
        self.conn.sendall(request(CHAT, body_of(text, stream=stream), headers=ID))
        wait_for(self.server, self.is_there)

    def end(self):
        for c in [*self.others, self.conn]:
            c.close()
        st = wait_for(self.server, lambda st: not (st["calls"] or st["running"] or st["waiting"]))
        assert st["memory"]["request"] == 0
        assert preparation(st)["queued"] == preparation(st)["running"] == 0
        assert self.server.chat("!say next")[0] == 200
        self.server.stop()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_delete_ends_a_request_in_any_phase(phase, stream):
    p = Phase(phase, stream)
    t = time.time()
    status, _, value = p.server.call("/v1/requests/the-one", method="DELETE")
    assert status == 200 and value == {"id": "the-one", "object": "request", "cancelled": 1}
    status, headers, value = Reply(p.conn).read()
    assert time.time() - t < 0.3 * SLOW  # before its preparation would have ended
    if status == 200:
        assert stream and phase not in ("queued", "preparing")
        events = parse_events(value)
        assert events[-2]["error"]["code"] == "cancelled" and all(e["choices"] for e in events[:-2])
    else:
        assert status == 499 and value["error"]["code"] == "cancelled" and value["error"]["type"] == "cancelled_error"
        assert headers["x-should-retry"] == "false"
    assert headers["x-request-id"] == "the-one" and headers["connection"] == "keep-alive"
    if phase == "queued":
        assert preparation(p.server.stats())["queued"] == 0
    assert p.server.call("/v1/requests/the-one", method="DELETE")[0] == 404
    p.conn.sendall(request("/health"))  # the connection goes on
    assert Reply(p.conn).read()[0] == 200
    st = wait_for(p.server, lambda st: st["calls"] == len(p.others))
    assert st["outcomes"]["error"] == 1 and st["failed"] == 0
    p.end()


@pytest.mark.parametrize("how", ["close", "reset", "half", "vanish"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_may_go_in_any_phase(phase, stream, how):
    p = Phase(phase, stream)
    if how == "close":
        p.conn.close()
    elif how == "reset":
        reset(p.conn)
    elif how == "half":
        p.conn.shutdown(socket.SHUT_WR)
    elif not vanish(p.conn):
        reset(p.conn)
    if how == "vanish" and not (stream and phase == "decode"):
        # Nothing tells of it before something is sent or the keep-alive probes come: the DELETE stands in for those.
        p.server.call("/v1/requests/the-one", method="DELETE")
    st = wait_for(p.server, lambda st: st["calls"] == len(p.others))
    assert st["outcomes"]["abort"] + st["outcomes"]["error"] == 1
    if phase == "queued":
        assert preparation(st)["queued"] == 0
    p.end()


def vanish(sock):
    """The client's machine is gone: its socket ends without a packet (TCP_REPAIR; needs a capability)."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, 19, 1)
    except PermissionError:
        return False
    sock.close()
    return True


def test_a_delete_ends_all_of_an_id_and_others_go_on():
    with script("--rows=8", "--step-us=2000") as s:
        conns = {}
        for i, name in enumerate(["a/b:c.d-e_f", "a/b:c.d-e_f", "other", "a/b:c.d-e_f"]):
            c = conns[i] = s.connect()
            c.sendall(request(CHAT, body_of("!count 300", stream=i % 2 == 0), headers={"X-Request-Id": name}))
        wait_for(s, lambda st: st["running"] == 4)
        status, headers, value = s.call("/v1/requests/a/b:c.d-e_f", method="DELETE", headers={"X-Request-Id": "del"})
        assert status == 200 and value["cancelled"] == 3 and headers["x-request-id"] == "del"
        assert text_of(parse_events(Reply(conns[2]).read()[2])) == "0123456789" * 30
        for i in (0, 1, 3):
            assert b"cancelled" in (json.dumps(v).encode() if isinstance(v := Reply(conns[i]).read()[2], dict) else v)
            conns[i].close()
        assert s.call("/v1/requests/a%2Fb:c.d-e_f", method="DELETE")[0] == 404
        for path in ("/v1/requests/", "/v1/requests", "/v1/requests/" + "x" * 3000, "/v1/requests/%00"):
            assert s.call(path, method="DELETE")[0] in (400, 404), path
        status, headers, _ = s.call("/v1/requests/x")
        assert status == 405 and "DELETE" in headers["allow"]


def test_ends_of_pipelined_requests_may_end_each_other():
    """After a reply's end its connection takes up its next request, which may be a DELETE of another one, and so on: a chain as
    deep as there are connections must not become a stack as deep."""
    n = 600
    with script("--rows=8", "--step-us=2000", "--max-waiting=1000") as s:
        conns = []
        for i in range(n):
            c = s.connect()
            c.sendall(request(CHAT, body_of("!forever", stream=i % 2 == 0), headers={"X-Request-Id": f"id-{i}"})
                      + request(f"/v1/requests/id-{i + 1}", method="DELETE"))
            conns.append(c)
        wait_for(s, lambda st: st["running"] + st["waiting"] == n)
        assert s.call("/v1/requests/id-0", method="DELETE")[0] == 200  # and then all of them
        for i, c in enumerate(conns):
            reply = Reply(c)
            assert reply.read()[0] == (200 if i % 2 == 0 else 499)
            assert reply.read()[0] == (200 if i < n - 1 else 404)
            c.close()
        assert s.wait_stats(running=0, calls=0)["outcomes"]["error"] == n


def test_pages_may_cancel():
    with script("--cors-origin=https://page.test") as s:
        ask = {"Origin": "https://page.test", "Access-Control-Request-Method": "DELETE"}
        status, headers, _ = s.call("/v1/requests/x", method="OPTIONS", headers=ask)
        assert status == 204 and "DELETE" in headers["access-control-allow-methods"]
        assert {"authorization", "x-api-key", "x-request-id"} <= set(headers["access-control-allow-headers"].split(", "))
        status, headers, _ = s.call("/v1/requests/x", method="DELETE", headers={"Origin": "https://page.test"})
        assert status == 404 and headers["access-control-allow-origin"] == "https://page.test"
        assert s.call("/v1/requests/x", method="DELETE", headers={"Origin": "http://evil.test"})[0] == 403


def test_official_clients_do_not_repeat_a_cancelled_request():
    with script("--step-us=2000") as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="secret-key", max_retries=3)
        errors = []

        def ask():
            try:
                client.chat.completions.create(
                    model="x", messages=[{"role": "user", "content": "!forever"}], extra_headers={"X-Request-Id": "c-1"}
                )
            except openai.APIStatusError as e:
                errors.append(e)

        t = threading.Thread(target=ask)
        t.start()
        s.wait_at_least("tokens", 2)
        assert s.call("/v1/requests/c-1", method="DELETE")[2]["cancelled"] == 1
        t.join(20)
        assert errors[0].status_code == 499 and errors[0].code == "cancelled"
        time.sleep(1)
        st = s.wait_stats(calls=0, running=0)
        assert st["outcomes"] == {"abort": 0, "success": 0, "error": 1}
        assert "secret-key" not in s.stop()


# --- full lines ---


def is_full(reply):
    status, headers, value = reply
    return (status == 429 and int(headers["retry-after"]) > 0 and value["error"]["type"] == "rate_limit_error"
            and value["error"]["code"] == "queue_full" and value["error"]["message"] and value["error"]["param"] is None)


def test_a_full_preparation_line_refuses_and_a_client_that_goes_makes_room():
    with script("--prepare-ms=1500") as s:
        conns = []
        for i in range(66):  # two slots and 64 places
            conns.append(s.connect())
            conns[-1].sendall(request(CHAT, body_of("!say x", stream=bool(i % 2))))
            if i == 1:
                wait_for(s, lambda st: preparation(st)["running"] == 2)
        wait_for(s, lambda st: preparation(st)["queued"] == 64)
        for stream in (False, True):
            assert is_full(s.call(CHAT, body_of("!say x", stream=stream)))
        for c in conns[40:50]:  # the slots are still busy: room comes from the line alone
            c.close()
        st = wait_for(s, lambda st: preparation(st)["queued"] == 54)
        assert preparation(st)["running"] == 2 and preparation(st)["done"] == 0 and preparation(st)["refused"] == 2
        late = s.connect()
        late.sendall(request(CHAT, body_of("!say x"), headers=ID))
        wait_for(s, lambda st: preparation(st)["queued"] == 55)
        assert s.call("/v1/requests/the-one", method="DELETE")[0] == 200
        for c in [*conns, late]:
            c.close()
        st = wait_for(s, lambda st: st["calls"] == 0)
        assert preparation(st)["queued"] == 0 and preparation(st)["done"] == 2


def test_a_full_answer_line_refuses():
    with script("--max-waiting=1", "--step-us=2000") as s:
        conns = [s.connect() for _ in range(2)]
        for i, c in enumerate(conns):
            c.sendall(request(CHAT, body_of("!forever")))
            wait_for(s, lambda st: st["running"] == 1 and st["waiting"] == i)
        for path, body in ((CHAT, body_of("!say x")), (CHAT, body_of("!say x", stream=True)), (COMPLETIONS, {"prompt": "x"}),
                           ("/signal", {"prompt": "x"})):
            assert is_full(s.call(path, body))
        for c in conns:
            c.close()
        s.wait_stats(running=0, waiting=0, calls=0)


# --- answers that fail beside others ---


def test_a_failing_answer_ends_itself_alone():
    with script("--rows=4", "--step-us=500") as s:
        prompts = ["!count 40", "!fail 3", "!count 20", "!nan"]
        events = s.events(COMPLETIONS, {"prompt": prompts})
        texts = {i: "" for i in range(4)}
        for e in events[:-2]:
            for c in e["choices"]:
                texts[c["index"]] += c["text"]
        assert texts == {0: "0123456789" * 4, 1: "xxx", 2: "0123456789" * 2, 3: ""}
        error = events[-2]["error"]
        assert error["type"] == "server_error" and error["message"].startswith("answer ")
        ends = [c["index"] for e in events[:-2] for c in e["choices"] if c["finish_reason"]]
        assert sorted(ends) == [0, 2]
        status, value = s.complete(prompts)
        assert status == 500 and value["error"]["message"].startswith("answer ")
        st = s.wait_stats(running=0, calls=0)
        assert st["failed"] >= 3 and st["memory"]["request"] == 0
        assert s.chat_stream("!fail 2", n=3)[-2]["error"]["type"] == "server_error"
        assert s.chat("!refuse", n=2)[0] == 400
        assert s.chat_stream("!refuse", n=2)[-2]["error"]["type"] == "invalid_request_error"
        assert s.chat("!say alive")[0] == 200


# --- deadlines ---


def test_a_deadline_that_passes_in_preparation():
    with script("--prepare-ms=300") as s:
        for stream in (False, True):
            status, headers, value = s.call(CHAT, body_of("!say late", stream=stream, deadline_ms=50))
            assert status == 504 and value["error"]["code"] == "deadline_exceeded" and headers["x-should-retry"] == "false"
        assert s.chat("!say soon", deadline_ms=60000)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["waiting", "prefill", "decode"])
def test_a_deadline_ends_a_request_wherever_it_is(where, stream):
    flags, n, text, _ = PHASES[where]
    with script(*flags, "--ctx=100000") as s:
        others = [s.connect() for _ in range(n)]
        for c in others:
            c.sendall(request(CHAT, body_of("!forever", stream=True)))
            s.wait_at_least("tokens", 1)
        t = time.time()
        text = "x" * 90000 if where == "prefill" else text
        status, headers, value = s.call(CHAT, body_of(text, stream=stream, deadline_ms=int(500 * SLOW)))
        assert 0.45 * SLOW < time.time() - t < 2 * SLOW + 1
        if stream:
            events = parse_events(value)
            error = events[-2]["error"]
            assert (len(text_of(events[:-2])) > 5) == (where == "decode")  # what was streamed stays
        else:
            error = value["error"]
            assert status == 504 and headers["x-should-retry"] == "false"
        assert error["code"] == "deadline_exceeded" and error["type"] == "timeout_error"
        st = wait_for(s, lambda st: st["calls"] == n)
        assert st["expired"] == 1 and st["failed"] == 0 and st["cancelled"] == 0
        for c in others:
            c.close()
        s.wait_stats(calls=0, running=0)


# --- whose turn it is ---


def in_order(server, requests):
    """Send each when the one before is accepted, behind a first one that holds the only row; the order of their ends."""
    first = server.connect()
    first.sendall(request(CHAT, body_of("!forever", stream=True), headers={"X-Request-Id": "first", "x-api-key": "holder"}))
    server.wait_at_least("tokens", 1)
    done, threads = [], []
    for i, (name, fields, headers) in enumerate(requests):
        c = server.connect()
        c.sendall(request(CHAT, body_of("!count 4", **fields), headers=headers))
        server.wait_at_least("accepted", i + 2)

        def wait(c=c, name=name):
            assert Reply(c).read()[0] == 200
            done.append(name)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
    assert server.call("/v1/requests/first", method="DELETE")[0] == 200
    [t.join(30) for t in threads]
    first.close()
    return done


def test_lower_priority_numbers_go_first():
    with script("--step-us=5000") as s:
        got = in_order(s, [(k, {"priority": k}, {}) for k in (0, 5, -5, 1000, -1000)])
        assert got == [-1000, -5, 0, 5, 1000]


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_keys_take_turns(header):
    def key(k):
        return {header: f"Bearer {k}" if header == "Authorization" else k}

    with script("--step-us=5000") as s:
        got = in_order(s, [(f"a{i}", {}, key("flood")) for i in range(4)] + [("b", {}, key("other")), ("c", {}, {})])
        assert got.index("b") < 3 and got.index("c") < 4  # not behind all that "flood" asks for
        assert [g for g in got if g[0] == "a"] == ["a0", "a1", "a2", "a3"]


def test_background_requests_run_only_while_nothing_else_is_there():
    with script("--rows=4", "--step-us=3000") as s:
        b = s.connect()
        b.sendall(request(CHAT, body_of("!count 60", background=True)))
        s.wait_at_least("tokens", 3)
        c = s.connect()
        c.sendall(request(CHAT, body_of("!count 60")))
        assert Reply(c).read()[0] == 200
        assert s.stats()["calls"] == 1  # the background one rested meanwhile
        assert Reply(b).read()[2]["choices"][0]["message"]["content"] == "0123456789" * 6
        b.close()
        c.close()


@pytest.mark.parametrize(
    "fields, param",
    [({"priority": 1001}, "priority"), ({"priority": -1001}, "priority"), ({"priority": "high"}, "priority"), ({"priority": 0.5}, "priority"),
     ({"deadline_ms": 0}, "deadline_ms"), ({"deadline_ms": -5}, "deadline_ms"), ({"deadline_ms": 1e12}, "deadline_ms"),
     ({"background": 1}, "background"), ({"background": "yes"}, "background")],
)
def test_turns_are_checked(fields, param):
    with script() as s:
        for path, body in ((CHAT, body_of("!say x")), (COMPLETIONS, {"prompt": "!say x"}), ("/signal", {"prompt": "x"})):
            status, value = s.post(path, {**body, **fields})
            assert status == 400 and value["error"]["param"] == param
        for good in ({"priority": -1000}, {"priority": 1000}, {"background": False}, {"background": True}, {"priority": None}):
            status, headers, _ = s.call(CHAT, body_of("!say x", **good))
            assert status == 200 and "x-plumb-ignored" not in headers


def test_where_memory_is_short_answers_are_computed_again_and_are_the_same():
    with script("--rows=6", "--step-us=300", "--ctx=1024", "--pages=20") as s:  # of 64 tokens: two and a half requests
        conns = []
        for i in range(12):
            c = s.connect()
            c.sendall(request(CHAT, body_of("y" * 150 + f"!count {300 + i}", stream=bool(i % 2), priority=i % 3)))
            conns.append(c)
        for i, c in enumerate(conns):
            status, _, value = Reply(c).read()
            text = text_of(parse_events(value)) if i % 2 else value["choices"][0]["message"]["content"]
            assert status == 200 and text == ("0123456789" * 40)[: 300 + i]
            c.close()
        st = s.wait_stats(calls=0, running=0)
        assert st["preempted"] > 0 and st["recomputed_tokens"] > 0 and st["failed"] == 0
        for group in st["cache"].values():
            assert group["pages"] == group["free"] == 20 and group["promised"] == 0


# --- stopping ---


def test_a_second_signal_ends_at_once():
    with script("--step-us=2000", "--drain-seconds=60") as s:
        c = s.connect()
        c.sendall(request(CHAT, body_of("!forever", stream=True)))
        s.wait_stats(running=1)
        s.proc.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert s.proc.poll() is None
        t = time.time()
        s.proc.send_signal(signal.SIGTERM)
        assert s.proc.wait(timeout=20) == 1 and time.time() - t < 2 * SLOW
        s.checks_exit = False
        c.close()


def test_an_engine_that_does_not_come_back_does_not_hold_up_the_end():
    with script("--step-us=60000000", "--drain-seconds=0", "--wedged-seconds=1") as s:
        c = s.connect()
        c.sendall(request(CHAT, body_of("!forever")))
        wait_for(s, lambda st: st["running"] == 1 and st["step_us_now"] > 0)
        t = time.time()
        s.proc.send_signal(signal.SIGTERM)
        assert Reply(c).read()[0] == 503
        assert s.proc.wait(timeout=40) == 1 and time.time() - t < 20 * SLOW
        s.checks_exit = False
        c.close()


def test_while_stopping_nothing_new_is_taken():
    with script("--step-us=3000", "--drain-seconds=30") as s:
        c, idle = s.connect(), s.connect()
        c.sendall(request(CHAT, body_of("!count 300", stream=True)) + request(CHAT, body_of("!say more")))
        idle.sendall(request("/stats"))
        reply = Reply(idle)
        reply.read()
        wait_for(s, lambda st: st["running"] == 1)
        half = s.connect()
        half.sendall(request(CHAT, body_of("!say x"))[:-5])
        time.sleep(0.1)
        s.proc.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        stream = Reply(c)
        assert text_of(parse_events(stream.read()[2])) == "0123456789" * 30  # what ran is finished
        half.close()
        assert s.proc.wait(timeout=30) == 0
        idle.close()
        c.close()
