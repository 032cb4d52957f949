"""HTTP, scheduling and faults, over the scripted engine: sockets cut anywhere, clients that go, bounds that hold."""

import json
import random
import signal
import socket
import threading
import time

import pytest
from serving import HOST, SLOW, Reply, request, reset, script, text_of

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server():
    with script("--rows=4") as s:
        yield s


def body_of(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


# --- bytes in ---


def test_a_request_may_be_cut_at_every_byte(server):
    raw = request(CHAT, body_of("!say cut"))
    with server.connect() as s:
        reply = Reply(s)
        for cut in range(1, len(raw)):
            s.sendall(raw[:cut])
            time.sleep(0.001)
            s.sendall(raw[cut:])
            status, _, value = reply.read()
            assert status == 200 and value["choices"][0]["message"]["content"] == "cut", cut


def test_a_chunked_body_may_be_cut_at_every_byte(server):
    data = json.dumps(body_of("!say chunks")).encode()
    raw = request(CHAT, headers={"Transfer-Encoding": "chunked"}, method="POST")
    for i in range(0, len(data), 7):
        raw += b"%x;x=y\r\n%s\r\n" % (len(data[i : i + 7]), data[i : i + 7])
    raw += b"0\r\nT: v\r\n\r\n"
    with server.connect() as s:
        reply = Reply(s)
        for cut in range(1, len(raw), 3):
            s.sendall(raw[:cut])
            time.sleep(0.001)
            s.sendall(raw[cut:])
            status, _, value = reply.read()
            assert status == 200 and value["choices"][0]["message"]["content"] == "chunks", cut


def test_one_byte_at_a_time(server):
    with server.connect() as s:
        for b in request(CHAT, body_of("!say slow")):
            s.sendall(bytes([b]))
            time.sleep(0.002)
        assert Reply(s).read()[2]["choices"][0]["message"]["content"] == "slow"


def test_keep_alive_and_requests_sent_ahead_are_answered_in_order(server):
    with server.connect() as s:
        s.sendall(b"".join(request(CHAT, body_of(f"!say n{i}"), headers={"X-Request-Id": f"id-{i}"}) for i in range(30)))
        reply = Reply(s)
        for i in range(30):
            status, headers, value = reply.read()
            assert headers["x-request-id"] == f"id-{i}"
            assert headers["connection"] == "keep-alive"
            assert value["choices"][0]["message"]["content"] == f"n{i}"


def test_streams_and_other_replies_share_a_connection(server):
    with server.connect() as s:
        reply = Reply(s)
        for _ in range(5):
            s.sendall(request(CHAT, body_of("!say x", stream=True)) + request("/health") + request("/nope"))
            assert b"[DONE]" in reply.read()[2]
            assert reply.read()[2] == {"status": "ok"}
            assert reply.read()[0] == 404


def test_http_1_0_and_connection_close(server):
    for version, headers in (("1.0", {}), ("1.1", {"Connection": "close"})):
        for stream in (False, True):
            with server.connect() as s:
                s.sendall(request(CHAT, body_of("!say old", stream=stream), headers=headers, version=version))
                status, got, value = Reply(s).read()
                assert status == 200 and got["connection"] == "close"
                if version == "1.0":
                    assert "transfer-encoding" not in got
                assert "old" in (text_of_bytes(value) if stream else value["choices"][0]["message"]["content"])
                assert s.recv(10) == b""


def text_of_bytes(data):
    from serving import parse_events

    return text_of(parse_events(data))


def test_head_requests_have_no_body(server):
    with server.connect() as s:
        s.sendall(request("/health", method="HEAD") + request("/health"))
        reply = Reply(s)
        status, headers, _ = reply.read(no_body=True)
        assert status == 200 and headers["content-length"] == "15"
        assert reply.read()[2] == {"status": "ok"}


def test_expect_100_continue(server):
    data = json.dumps(body_of("!say go on")).encode()
    with server.connect() as s:
        s.sendall(request(CHAT, method="POST", headers={"Content-Length": str(len(data)), "Expect": "100-continue"}))
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(data)
        assert Reply(s).read()[0] == 200


@pytest.mark.parametrize(
    "raw, status",
    [
        (b"\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n", 505),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n", 400),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"PUT /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_bad_requests_get_a_status_and_a_json_error(server, raw, status):
    with server.connect() as s:
        s.sendall(raw)
        got, headers, value = Reply(s).read()
    assert got == status
    assert status == 200 or (value["error"]["message"] and headers["content-type"] == "application/json")


def test_large_bodies_are_refused_before_they_are_sent():
    with script("--max-body=10000") as s:
        for expect in ({}, {"Expect": "100-continue"}):
            with s.connect() as c:
                c.sendall(request(CHAT, method="POST", headers={"Content-Length": str(64 << 20), **expect}))
                t = time.time()
                status, headers, value = Reply(c).read()
                assert status == 413 and "10000" in value["error"]["message"] and time.time() - t < 1 * SLOW
                assert headers["connection"] == "close"
        with s.connect() as c:  # a client that does not listen sends it all the same and still reads the answer
            c.sendall(request(CHAT, method="POST", headers={"Content-Length": "1000000"}))
            c.sendall(b"x" * 1000000)
            assert Reply(c).read()[0] == 413
        with s.connect() as c:
            c.sendall(request(CHAT, method="POST", headers={"Transfer-Encoding": "chunked"}) + b"8000\r\n" + b"x" * 0x8000)
            assert Reply(c).read()[0] == 413
        assert s.post(CHAT, {"messages": [{"role": "user", "content": "a" * 9000}], "max_tokens": 1})[0] == 400
        assert s.stats()["memory"]["request"] == 0


def test_the_default_limit_takes_a_large_body_and_refuses_64_mib(server):
    with server.connect() as c:
        c.sendall(request(CHAT, method="POST", headers={"Content-Length": str(64 << 20)}))
        assert Reply(c).read()[0] == 413
    status, value = server.post(CHAT, body_of("a" * (20 << 20)))
    assert status == 400 and value["error"]["code"] == "context_length_exceeded"


# --- slow and silent clients ---


def test_unfinished_requests_are_cut_and_the_rest_is_served():
    with script("--head-seconds=1", "--body-seconds=1", "--idle-seconds=1") as s:
        heads = [s.connect() for _ in range(50)]
        bodies = [s.connect() for _ in range(20)]
        idle = s.connect()
        idle.sendall(request("/health"))
        assert Reply(idle).read()[0] == 200
        for c in heads:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX: ")
        for c in bodies:
            c.sendall(request("/tokenize", method="POST", headers={"Content-Length": "1000"}) + b"{")
        end = time.time() + 1.5 * SLOW
        while time.time() < end:  # a byte now and then does not help
            for c in heads + bodies:
                try:
                    c.sendall(b"a")
                except OSError:
                    pass
            t = time.time()
            assert s.call("/health")[0] == 200 and time.time() - t < 1 * SLOW
            time.sleep(0.2)
        for c in heads + bodies:
            try:
                assert Reply(c).read()[0] == 408
            except (EOFError, ConnectionResetError):
                pass
        try:
            assert idle.recv(10) == b""
        except ConnectionResetError:
            pass
        for c in [idle] + heads + bodies:
            c.close()
        s.wait_stats(connections=1)


def test_more_connections_than_the_cap_close_the_idle_ones():
    with script() as s:
        idle = []
        for _ in range(1100):
            idle.append(s.connect())
        with s.connect() as c:
            c.sendall(request("/stats"))
            st = Reply(c).read()[2]
        assert st["connections"] <= 1024
        assert s.chat("!say here")[0] == 200
        for c in idle:
            c.close()
        s.wait_stats(connections=1)


def test_a_client_that_does_not_read_pauses_its_row_and_is_cut_off_in_the_end():
    with script("--rows=2", "--ctx=2000000", "--stall-seconds=4") as s:
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect((HOST, s.port))
            c.sendall(request(CHAT, body_of("!forever", stream=True)))
            s.wait_at_least("tokens", 1000, seconds=20)
            n, end = 0, time.time() + 30 * SLOW
            while n != (n := s.stats()["tokens"]) and time.time() < end:
                time.sleep(0.7)
            assert s.stats()["tokens"] == n and s.stats()["running"] == s.stats()["paused"] == 1  # its row is kept
            assert s.stats()["memory"]["server"] < 4 << 20
            assert s.chat("!say others go on")[0] == 200
            s.wait_stats(seconds=15, running=0, calls=0)


def test_a_slow_reader_gets_everything(server):
    want = "0123456789" * 400
    with server.connect() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.sendall(request(CHAT, body_of("!count 4000", stream=True)))
        data = b""
        while b"[DONE]" not in data:
            data += c.recv(20000)
            time.sleep(0.0005)
    text = "".join(json.loads(x)["choices"][0]["delta"].get("content", "") for x in find_data(data))
    assert text == want


def find_data(data):
    import re

    return re.findall(rb'data: (\{.*?\})\n', data)


# --- clients that go ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", ["fin", "rst"])
def test_a_client_that_goes_while_decoding_frees_its_row(stream, close):
    with script("--step-us=2000") as s:
        c = s.connect()
        c.sendall(request(CHAT, body_of("!forever", stream=stream)))
        s.wait_at_least("tokens", 3)
        assert s.stats()["running"] == 1
        reset(c) if close == "rst" else c.close()
        st = s.wait_stats(seconds=2, running=0, calls=0)
        assert st["cancelled"] == 1 and st["memory"]["request"] == 0
        assert s.chat("!say next")[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_during_its_prompt_stops_it(stream):
    with script("--prompt-us=2000", "--step-us=1000") as s:  # 6,000 tokens would take 12 s
        c = s.connect()
        c.sendall(request(CHAT, body_of("a" * 6000, stream=stream)))
        s.wait_at_least("prompt_tokens", 1)
        c.close()
        st = s.wait_stats(seconds=3, running=0, calls=0)
        assert st["prompt_tokens"] < 4000 and st["cancelled"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go_while_waiting_never_start(stream):
    with script("--step-us=2000") as s:
        first = s.connect()
        first.sendall(request(CHAT, body_of("!forever", stream=True)))
        s.wait_at_least("tokens", 1)
        waiting = [s.connect() for _ in range(5)]
        for c in waiting:
            c.sendall(request(CHAT, body_of("!say never" + "." * 500, stream=stream)))
        s.wait_stats(waiting=5)
        n = s.stats()["prompt_tokens"]
        for c in waiting:
            c.close()
        s.wait_stats(waiting=0, cancelled=5, running=1)
        first.close()
        st = s.wait_stats(running=0, calls=0)
        assert st["prompt_tokens"] == n and st["memory"]["request"] == 0


def test_a_client_that_goes_during_preparation_leaves_nothing(server):
    before = server.stats()
    big = request(CHAT, body_of("b" * (8 << 20)))
    for _ in range(4):
        c = server.connect()
        c.sendall(big)
        c.close()
    st = server.wait_stats(seconds=20, calls=0, running=0)
    assert st["memory"]["request"] == 0 and st["failed"] == before["failed"]


def test_a_half_closed_connection_counts_as_gone():
    with script("--step-us=2000") as s:
        with s.connect() as c:
            c.sendall(request(CHAT, body_of("!forever")))
            s.wait_at_least("tokens", 3)
            c.shutdown(socket.SHUT_WR)
            s.wait_stats(seconds=2, running=0, calls=0)


def test_a_client_that_sends_too_much_ahead_is_cut_off():
    with script("--step-us=2000") as s:
        with s.connect() as c:
            c.sendall(request(CHAT, body_of("!forever")))
            s.wait_at_least("tokens", 3)
            with pytest.raises(OSError):
                for _ in range(200):
                    c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
                    time.sleep(0.01)
            s.wait_stats(seconds=2, running=0, calls=0)


def test_many_clients_going_at_random_points_leave_nothing():
    rng = random.Random(5)
    with script("--rows=4", "--step-us=300", "--prompt-us=20") as s:

        def one(i):
            text = rng.choice(["!say hello", "!count 50", "!forever", "!fail 3", "x" * 3000])
            with s.connect() as c:
                c.sendall(request(CHAT, body_of(text, stream=bool(i % 2), max_tokens=200)))
                if rng.random() < 0.5:
                    time.sleep(rng.random() * 0.1)
                    if rng.random() < 0.5:
                        reset(c)
                else:
                    status, _, value = Reply(c).read()
                    assert status in (200, 429) or (status == 500 and text == "!fail 3"), (status, value)

        errors = []

        def many(k):
            try:
                for i in range(25):
                    one(k * 25 + i)
            except Exception as e:
                errors.append(e)

        threads = [threading.Thread(target=many, args=(k,)) for k in range(12)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not errors, errors[:3]
        st = s.wait_stats(seconds=20, running=0, waiting=0, calls=0, connections=1)
        assert st["memory"]["request"] == 0 and st["accepted"] == st["finished"]


# --- scheduling as a client sees it ---


def test_requests_are_answered_in_order_of_arrival():
    with script("--step-us=10000") as s:
        conns = []
        for i in range(6):
            c = s.connect()
            c.sendall(request(CHAT, body_of(f"!count {40 if i == 0 else 5}")))
            s.wait_at_least("accepted", i + 1)
            conns.append(c)
        done = []

        def wait(i, c):
            Reply(c).read()
            done.append(i)

        threads = [threading.Thread(target=wait, args=x) for x in enumerate(conns)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert done == sorted(done)


def test_a_full_line_answers_429_with_retry_after():
    with script("--max-waiting=2", "--step-us=2000") as s:
        conns = [s.connect() for _ in range(3)]
        for i, c in enumerate(conns):
            c.sendall(request(CHAT, body_of("!forever")))
            s.wait_at_least("accepted", i + 1)
            if i == 0:
                s.wait_stats(running=1)
        status, headers, value = s.call(CHAT, body_of("!say x"))
        assert status == 429 and int(headers["retry-after"]) > 0 and value["error"]["type"] == "rate_limit_error"
        status, headers, value = s.call(CHAT, body_of("!say x", stream=True))
        assert status == 429  # before any 200
        assert s.call("/health")[0] == 200
        for c in conns:
            c.close()
        s.wait_stats(running=0, waiting=0)
        assert s.chat("!say x")[0] == 200


def test_health_answers_while_everything_is_busy():
    with script("--rows=2", "--step-us=300000") as s:
        conns = [s.connect() for _ in range(20)]
        for c in conns:
            c.sendall(request(CHAT, body_of("!forever", stream=True)))
        for _ in range(5):
            t = time.time()
            assert s.call("/health")[0] == 200 and s.call("/v1/models")[0] == 200
            assert time.time() - t < 0.25 * SLOW
        for c in conns:
            c.close()
        s.wait_stats(running=0, waiting=0)


def test_a_failing_row_is_an_error_for_its_client_only():
    with script("--rows=4", "--step-us=2000") as s:
        with s.connect() as c:
            c.sendall(request(CHAT, body_of("!count 100", stream=True)))
            status, value = s.chat("!fail 3")
            assert status == 500 and value["error"]["type"] == "server_error"
            status, value = s.chat("!nan")
            assert status == 500 and "non-finite" in value["error"]["message"]
            status, value = s.complete("!nan", logprobs=2)
            assert status == 500
            events = s.chat_stream("!fail 3")
            assert text_of(events[:-2]) == "xxx" and events[-2]["error"]["type"] == "server_error"
            assert text_of_bytes(Reply(c).read()[2]) == "0123456789" * 10


def test_a_failing_step_ends_its_requests_and_the_server_lives():
    with script("--rows=2", "--step-us=2000") as s:
        assert s.chat("!break")[0] == 500
        assert s.chat("!say alive")[0] == 200


# --- start and stop ---


def test_health_says_when_the_model_is_loaded():
    with script("--load-ms=700", ready=False) as s:
        status, headers, value = s.call("/health")
        assert status == 503 and value["error"]["code"] == "loading" and "retry-after" in headers
        assert s.call("/health/live")[0] == 200
        assert s.call("/v1/models")[0] == 503
        status, headers, _ = s.call(CHAT, body_of("!say x"))
        assert status == 503 and "retry-after" in headers
        end = time.time() + 10
        while s.call("/health")[0] == 503 and time.time() < end:
            time.sleep(0.05)
        assert s.call("/health")[2] == {"status": "ok"} and s.call("/health/ready")[0] == 200
        assert s.chat("!say x")[0] == 200


def test_a_model_that_cannot_be_loaded_ends_the_program():
    s = script("--load-fails=1", ready=False)
    assert s.proc.wait(timeout=20) == 1
    assert "no model, as asked" in s.proc.stderr.read()
    s.proc.stdout.close()
    s.proc.stderr.close()


def test_a_stop_while_loading_ends_at_once():
    with script("--load-ms=20000", ready=False) as s:
        t = time.time()
        s.stop()
        assert time.time() - t < 5


def test_sigterm_finishes_what_runs_and_accepts_nothing_more():
    with script("--step-us=5000") as s:
        idle = s.connect()
        idle.sendall(request("/health"))
        assert Reply(idle).read()[0] == 200
        c = s.connect()
        c.sendall(request(CHAT, body_of("!count 100", stream=True)))
        s.wait_stats(running=1)  # two workers prepare: the second could overtake
        w = s.connect()
        w.sendall(request(CHAT, body_of("!say waiting")))
        s.wait_stats(running=1, waiting=1)
        s.proc.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(OSError):
            s.connect(timeout=2)
        assert text_of_bytes(Reply(c).read()[2]) == "0123456789" * 10
        assert Reply(w).read()[2]["choices"][0]["message"]["content"] == "waiting"
        assert s.proc.wait(timeout=20) == 0
        for x in (idle, c, w):
            x.close()


def test_a_drain_has_an_end():
    with script("--step-us=2000", "--drain-seconds=1", "--ctx=100000") as s:
        c = s.connect()
        c.sendall(request(CHAT, body_of("!forever", stream=True)))
        s.wait_stats(running=1)
        d = s.connect()
        d.sendall(request(CHAT, body_of("!say never")))
        s.wait_stats(running=1, waiting=1)
        t = time.time()
        s.proc.send_signal(signal.SIGTERM)
        data = Reply(c).read()[2]
        assert b'"error"' in data and b"the server stops" in data
        assert Reply(d).read()[0] == 503
        assert s.proc.wait(timeout=20) == 0 and time.time() - t < 6 * SLOW
        c.close()
        d.close()


# --- who may ask ---


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost", 200), ("localhost:1234", 200), ("127.0.0.1:80", 200), ("127.9.9.9", 200), ("[::1]:80", 200),
        ("my.localhost", 200), ("LOCALHOST", 200), ("evil.test", 403), ("evil.test:8080", 403), ("192.168.0.1", 403),
        ("localhost.evil.test", 403), ("127.0.0.1.evil.test", 403), ("", 403), ("localhost:x", 403), ("[::1", 403),
        ("0.0.0.0", 403), ("2130706433", 403), ("friend.test", 403),
    ],
)
def test_host_must_be_ours(server, host, status):
    for path, body in (("/health", None), (CHAT, body_of("!say x"))):
        got, _, value = server.call(path, body, headers={"Host": host})
        assert got == status and (status == 200 or value["error"]["code"] == "host_not_allowed")


def test_allowed_hosts_and_wildcards():
    with script("--host=0.0.0.0", "--insecure-listen", "--allow-host=friend.test, other.test") as s:
        for host, status in (("friend.test:80", 200), ("other.test", 200), ("192.168.0.1:8080", 200), ("evil.test", 403)):
            assert s.call("/health", headers={"Host": host})[0] == status


@pytest.mark.parametrize(
    "origin, status",
    [("http://evil.test", 403), ("null", 403), ("http://localhost:3000", 403), ("https://page.test", 200), ("http://localhost", 200)],
)
def test_origin_must_be_listed(origin, status):
    with script("--cors-origin=https://page.test") as s:
        got, headers, value = s.call(CHAT, body_of("!say x"), headers={"Origin": origin})
        assert got == status
        assert headers.get("access-control-allow-origin") == (origin if status == 200 else None)
        got, headers, _ = s.call(CHAT, method="OPTIONS", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
        assert got == (204 if status == 200 else 403)
        assert headers.get("access-control-allow-origin") == (origin if status == 200 else None)


def test_request_ids_are_echoed_if_they_are_harmless(server):
    assert server.call("/health", headers={"X-Request-Id": "abc-123"})[1]["x-request-id"] == "abc-123"
    for bad in ("a b", "<x>", "y" * 200, 'q"'):
        assert server.call("/health", headers={"X-Request-Id": bad})[1]["x-request-id"].startswith("req-")


def test_no_prompt_text_in_logs():
    with script("--rows=1") as s:
        s.chat("!say topsecretanswer")
        s.chat("!fail 1 topsecret")
        s.chat([{"role": "topsecret", "content": "topsecret"}])
        s.call(CHAT, b'{"topsecret')
        s.chat("topsecret", topsecret=1)
        err = s.stop()
    assert "topsecret" not in err
