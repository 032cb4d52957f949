"""Answers that can be resumed: after kill -9, a lost connection, beside another reader; what is refused; what faults of the disk and of records
do. The whole answer is compared with the one that nothing interrupted."""

import json
import os
import random
import re
import shutil
import socket
import time

import pytest
from fetched import fetched_model
from serving import PLUMB, SLOW, Reply, Server, parse_events, request, script, text_of
from test_tools import TOOLS, say

THINKS = "--style=<tool_call><think></think>"
CALLS = '<think>\nWhich one?\n</think>\n\nLet me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 12}}\n</tool_call>'
STRICT = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
CHAT, TEXT, MSG = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def user(text):
    return [{"role": "user", "content": text}]


# name: path and body; each answer has some thirty tokens at least
REQUESTS = {
    "chat": (CHAT, {"messages": user("!count 40"), "stream": True, "stream_options": {"include_usage": True}}),
    "logprobs": (CHAT, {"messages": user("!count 33"), "stream": True, "logprobs": True, "top_logprobs": 3}),
    "ids": (CHAT, {"messages": user("!count 35"), "stream": True, "return_token_ids": True, "max_tokens": 33}),
    "stop": (CHAT, {"messages": user("!say one two three four five six seven stoop stop eight"), "stream": True, "stop": ["stop"]}),
    "utf8": (CHAT, {"messages": user("!hex " + "c3a9 e282ac f09f9880 61 ff " * 8), "stream": True}),
    "length": (CHAT, {"messages": user("!forever"), "stream": True, "max_tokens": 35}),
    "choices": (CHAT, {"messages": user("!count 30"), "stream": True, "n": 3}),
    "tools": (CHAT, {**say(CALLS), "tools": TOOLS, "stream": True}),
    "one call": (CHAT, {**say(CALLS + CALLS), "tools": TOOLS, "stream": True, "parallel_tool_calls": False}),
    "forced": (CHAT, {**say("Paris, and more of that"), "tools": TOOLS[:1], "tool_choice": "required", "stream": True, "max_tokens": 60}),
    "format": (CHAT, {**say('{"numbers": [1, 2, 3, 4, 5, 6, 7], "more": "' + "x" * 20 + '"} and more of it'), "response_format": {"type": "json_object"}, "stream": True}),
    "strict": (CHAT, {**say(CALLS.replace("12", '"no number", "days": 12')), "tools": STRICT, "stream": True}),
    "whole": (CHAT, {"messages": user("!count 300"), "n": 2, "logprobs": True}),
    "text": (TEXT, {"prompt": ["!count 30", "!say a second prompt, and its answer"], "stream": True, "logprobs": 2}),
    "echo": (TEXT, {"prompt": "!count 36", "stream": True, "echo": True}),
    "messages": (MSG, {"messages": user("!json " + json.dumps(CALLS)), "max_tokens": 300, "stream": True,
                       "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}]}),
    "messages whole": (MSG, {"messages": user("!count 400"), "max_tokens": 300}),
}


def serve(directory, *flags, checkpoint=3, **kwargs):
    return script(THINKS, "--rows=8", "--step-us=3000", f"--generation-checkpoint={checkpoint}", f"--journal-dir={directory}", *flags, **kwargs)


def kill(server):
    server.proc.kill()
    server.proc.communicate()


def records(directory):
    path = directory / "generations"
    return sorted(path.iterdir()) if path.exists() else []


def split(data):
    """(id or None, event) of a stream; what is not whole is left out."""
    out = []
    for block in data.decode().split("\n\n")[:-1]:
        ids = re.match(r"id: (\S+)\n", block)
        if "data: " in block:
            out.append((ids and ids[1], block.split("data: ", 1)[1]))
    return out


def plain(value):
    """Without what tells of the run and not of the answer."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    return {k: plain(v) for k, v in value.items() if k not in ("timings", "prompt_tokens_details", "cache_read_input_tokens", "input_tokens")}


def events_of(data):
    return [(i, e if e == "[DONE]" else plain(json.loads(e))) for i, e in split(data)]


def unnamed(value):
    """Without what is drawn for each request."""
    text = json.dumps(value)
    text = re.sub(r'"(chatcmpl-|cmpl-|msg_)[0-9a-f]+"', '"ID"', text)
    text = re.sub(r'"(call_|toolu_)[0-9a-f]+"', '"CALL"', text)
    text = re.sub(r'"plumb[0-9a-f]{16}"', '"SIGNATURE"', text)
    return re.sub(r'"created": \d+', '"created": 0', text)


def by_choice(events):
    """Choices arrive in any order: what each says, and what comes last."""
    out = {}
    for _, e in events:
        if e != "[DONE]":
            choices = e.get("choices") or [{}]
            out.setdefault(choices[0].get("index"), []).append(e)
    return out


def read_some(server, path, body, name, n_bytes, headers=None):
    """The first bytes of a stream's body, at least so many; then the connection is gone."""
    with server.connect() as s:
        s.sendall(request(path, body, headers={"X-Request-Id": name, **(headers or {})}))
        reply = Reply(s)
        status, _ = reply.head()
        assert status == 200
        data = b""
        try:
            while len(data) < n_bytes and (n := int(reply._line(), 16)):
                data += reply._bytes(n)
                reply._line()
        except (EOFError, ConnectionError):
            pass
    return data


def post(server, name, path, body, **headers):
    status, head, value = server.call(path, body, headers={"X-Request-Id": name, **headers})
    assert status == 200, value
    return head, value


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("calm")) as s:
        yield s


@pytest.mark.parametrize("kind", REQUESTS)
def test_after_kill_the_answer_is_the_same(calm, tmp_path, kind):
    """Cut at some place, killed, started again: by the same request, and from the last event that came."""
    path, body = REQUESTS[kind]
    body = {**body, "disconnect": "resumable"}  # on a busy machine the answer may have been told before the kill
    dice = random.Random(kind)
    _, want = post(calm, "calm-" + kind.replace(" ", "_"), path, body)
    server = serve(tmp_path)
    for turn in range(3):
        name = f"id-{turn}"
        if body.get("stream"):
            data = read_some(server, path, body, name, dice.randrange(200, len(want) * 3 // 4))
        else:
            data = b""
            with server.connect() as s:
                s.sendall(request(path, body, headers={"X-Request-Id": name}))
                server.wait_at_least("tokens", server.stats()["tokens"] + 5 + dice.randrange(20))
        kill(server)
        had = events_of(data)
        server = serve(tmp_path)
        if turn < 2:
            head, value = post(server, name, path, body)
        else:
            status, head, value = server.call(f"/v1/requests/{name}/stream")
            assert status == 200
        assert head["x-plumb-resumable"] == "true"
        if isinstance(value, dict):
            assert unnamed(plain(value)) == unnamed(plain(want))
        elif not body.get("stream"):
            texts = {}
            for _, e in events_of(value):
                for c in e["choices"] if "choices" in e else [] if e != "[DONE]" else []:
                    texts[c["index"]] = texts.get(c["index"], "") + (c["delta"].get("content") or "")
            if path == CHAT:
                assert texts == {c["index"]: c["message"]["content"] for c in want["choices"]}
        else:
            got = events_of(value)
            assert unnamed(by_choice(got)) == unnamed(by_choice(events_of(want)))
            for k, v in by_choice(had).items():  # ids, created, calls: those of before
                assert by_choice(got)[k][:len(v)] == v
        assert server.stats()["resumed"] == 1
    had = records(tmp_path)
    post(server, "told", path, {**body, "disconnect": "cancel"})
    end = time.time() + 5 * SLOW
    while records(tmp_path) != had:  # an answer that was told leaves none
        assert time.time() < end, records(tmp_path)
        time.sleep(0.02)
    server.stop()


@pytest.mark.parametrize("kind", [k for k, (_, b) in REQUESTS.items() if b.get("stream")])
def test_the_rest_follows_any_event(calm, tmp_path, kind):
    """Last-Event-ID and from: what came and what comes then are the stream that nothing interrupted."""
    path, body = REQUESTS[kind]
    body = {**body, "disconnect": "resumable"}
    with serve(tmp_path) as server:
        _, want = post(server, "whole", path, body)
        whole = events_of(want)
        ids = [i for i, _ in whole if i]
        assert len(set(ids)) == len(ids) and len(ids) > 4
        for cut in sorted({0, 1, 2, len(ids) // 3, len(ids) // 2, len(ids) - 2, len(ids) - 1}):
            _, rest = post(server, "whole", path, body, **{"Last-Event-ID": ids[cut]})
            at = [i for i, _ in whole].index(ids[cut]) + 1
            if body.get("n", 1) == 1 and kind != "text":
                assert events_of(rest) == whole[at:]
            status, _, again = server.call(f"/v1/requests/whole/stream?from={ids[cut]}")
            assert cut == 0 or status == 200 and unnamed(by_choice(events_of(again))) == unnamed(by_choice(events_of(rest)))
            both = by_choice(whole[:at] + events_of(rest))
            assert unnamed(both) == unnamed(by_choice(whole))
        assert server.call("/v1/requests/whole/stream?from=0")[2] and events_of(server.call("/v1/requests/whole/stream")[2])[0] == whole[0]
        for bad in ("x", "1,2,3,4,5", "1.", "-1", "9" * 30):
            assert server.call(f"/v1/requests/whole/stream?from={bad}")[0] == 400, bad


def test_a_lost_connection_comes_back(tmp_path):
    path, body = REQUESTS["chat"]
    body = {**body, "messages": user("!count 300"), "disconnect": "resumable"}  # not told whole before the client, which may be late, goes
    with serve(tmp_path) as server:
        _, want = post(server, "calm", path, body)
        had = events_of(read_some(server, path, body, "lost", 2500))
        status, _, rest = server.call("/v1/requests/lost/stream", headers={"Last-Event-ID": had[-1][0]})
        assert status == 200
        assert unnamed(had + events_of(rest)) == unnamed(events_of(want))
        server.wait_stats(running=0, calls=0)


def test_a_second_reader_gets_the_whole(tmp_path):
    path, body = REQUESTS["logprobs"]
    with serve(tmp_path) as server:
        socks = []
        for i in range(4):
            s = server.connect()
            s.sendall(request(path, body, headers={"X-Request-Id": "shared"}))
            socks.append(s)
            time.sleep(0.02)
        streams = [Reply(s).read()[2] for s in socks]
        for stream in streams[1:]:
            assert events_of(stream) == events_of(streams[0])
        st = server.stats()
        assert st["accepted"] == 1 and st["resumed"] == 3
        for s in socks:
            s.close()


def test_one_reader_goes_and_the_other_stays(tmp_path):
    path, body = REQUESTS["chat"]
    with serve(tmp_path) as server:
        _, want = post(server, "calm", path, body)
        with server.connect() as second:
            with server.connect() as first:
                first.sendall(request(path, body, headers={"X-Request-Id": "x"}))
                server.wait_stats(running=1)
                second.sendall(request(path, body, headers={"X-Request-Id": "x"}))
                server.wait_stats(resumed=1)
            got = Reply(second).read()[2]
        assert unnamed(events_of(got)) == unnamed(events_of(want))
        assert server.stats()["cancelled"] == 0


def test_what_is_refused(tmp_path):
    path, body = CHAT, {"messages": user("!count 400"), "stream": True}
    keys = ("--api-key=first-key-1", "--api-key=second-key-2")
    first, second = ({"Authorization": f"Bearer {k}", "X-Request-Id": "mine"} for k in ("first-key-1", "second-key-2"))
    with serve(tmp_path, *keys) as server:
        with server.connect() as s:
            s.sendall(request(path, body, headers=first))
            time.sleep(0.1)
            for other_path, other in ((path, {**body, "seed": 5}), (TEXT, body)):
                status, _, value = server.call(other_path, other, headers=first)
                assert (status, value["error"]["code"]) == (409, "request_id_in_use")
            status, _, value = server.call("/v1/requests/mine/stream", headers=second)
            assert (status, value["error"]["code"]) == (404, "request_not_found")
            assert read_some(server, path, body, "mine", 100, second)  # another key's id is another id
        server.checks_exit = False
        kill(server)
    for flags, code, text in ((("--fingerprint=fp_other",), "fingerprint_changed", "version: was 1, is 2"),
                              (("--template=x{{ messages[0].content }}",), "settings_changed", "the prompt"),
                              (("--ctx=60",), "settings_changed", "ends and limits")):
        with serve(tmp_path, *keys, *flags) as server:
            status, _, value = server.call(path, body, headers=first)
            assert (status, value["error"]["code"]) == (409, code) and text in value["error"]["message"], value
            metrics = server.call("/metrics", headers=first)[2].decode()
            assert "plumb_resume_refused_total 1\n" in metrics
    with serve(tmp_path, *keys) as server:
        assert server.call(path, {**body, "seed": 5}, headers=first)[0] == 409
        assert server.call(path, body, headers=first)[0] == 200  # refusing has changed nothing


def test_two_processes_share_a_directory(tmp_path):
    path, body = REQUESTS["chat"]
    with serve(tmp_path) as a, serve(tmp_path) as b:
        with a.connect() as s:
            s.sendall(request(path, {**body, "disconnect": "resumable"}, headers={"X-Request-Id": "x"}))
            a.wait_at_least("tokens", 5)
            status, _, value = b.call("/v1/requests/x/stream")
            assert (status, value["error"]["code"]) == (409, "other_process")
            want = Reply(s).read()[2]
        end = time.time() + 5 * SLOW
        while (reply := b.call("/v1/requests/x/stream"))[0] != 200:
            assert reply[0] == 409 and time.time() < end
        assert events_of(reply[2]) == events_of(want)


def test_disconnect(tmp_path):
    with serve(tmp_path, "--step-us=10000") as server:
        for n, (policy, tokens) in enumerate((("cancel", None), ("finish", 60), ("resumable", None)), 1):
            body = {"messages": user("!count 60"), "stream": True, "disconnect": policy}
            had = read_some(server, CHAT, body, policy, 1500)
            server.wait_stats(running=0, calls=0)
            before = server.stats()["tokens"]
            status, _, value = server.call(f"/v1/requests/{policy}/stream")
            assert text_of(parse_events(re.sub(rb"id: \S+\n", b"", value))) == "0123456789" * 6
            assert [e for _, e in events_of(value)][:len(events_of(had))] == [e for _, e in events_of(had)]
            computed = server.stats()["tokens"] - before
            assert computed == 0 if policy == "finish" else 0 < computed < 60, (policy, computed)
        status, _, value = server.call("/v1/requests/resumable/stream")
        assert status == 200  # told to its end, and still there
        assert server.call("/v1/requests/cancel/stream")[0] == 404
        # without an id of its own: the reply says which
        with server.connect() as s:
            s.sendall(request(CHAT, {"messages": user("!count 60"), "stream": True, "disconnect": "resumable"}))
            _, head = Reply(s).head()
        status, _, value = server.call(f"/v1/requests/{head['x-request-id']}/stream")
        assert status == 200 and text_of(parse_events(re.sub(rb"id: \S+\n", b"", value))) == "0123456789" * 6
        for bad in (3, "keep", ["finish"]):
            assert server.chat("!count 3", disconnect=bad)[0] == 400
    with script() as server:  # without records
        status, head, _ = server.call(CHAT, {"messages": user("!count 3"), "disconnect": "resumable"})
        assert status == 200 and head["x-plumb-ignored"] == "disconnect.resumable" and "x-plumb-resumable" not in head
        assert server.call("/v1/requests/x/stream")[0] == 404


def test_finish_goes_on_without_a_record():
    with script("--step-us=3000") as server:
        for policy, cancelled in (("finish", 0), ("cancel", 1)):
            with server.connect() as s:
                s.sendall(request(CHAT, {"messages": user("!count 80"), "stream": True, "disconnect": policy}))
                assert Reply(s).head()[0] == 200
            st = server.wait_stats(running=0, calls=0, waiting=0)
            assert st["cancelled"] == cancelled


def test_a_delete_leaves_the_record(tmp_path):
    path, body = REQUESTS["chat"]
    with serve(tmp_path) as server:
        with server.connect() as s:
            s.sendall(request(path, body, headers={"X-Request-Id": "x"}))
            server.wait_at_least("tokens", 5)
            assert server.call("/v1/requests/x", method="DELETE")[2]["cancelled"] == 1
            assert b"cancelled" in Reply(s).read()[2]
        server.wait_stats(running=0)
        assert text_of(parse_events(re.sub(rb"id: \S+\n", b"", post(server, "x", path, body)[1]))) == "0123456789" * 4


def test_a_drain_leaves_the_record(tmp_path):
    body = {"messages": user("!count 500"), "stream": True}
    with serve(tmp_path, "--drain-seconds=0") as server:
        had = read_some(server, CHAT, {**body, "disconnect": "finish"}, "x", 1000)
    with serve(tmp_path, "--step-us=0") as server:
        status, _, value = server.call("/v1/requests/x/stream")
        assert status == 200 and text_of(parse_events(re.sub(rb"id: \S+\n", b"", value))) == "0123456789" * 50
        assert events_of(value)[:len(events_of(had))] == events_of(had)


def test_what_fails_leaves_no_record(tmp_path):
    """Scored prompts have none; refused and failed ones lose theirs; a deadline leaves it, and the id stays its body's."""
    mine = {"X-Request-Id": "a"}
    late = {"messages": user("!count 400"), "deadline_ms": 100}
    with serve(tmp_path, "--max-waiting=1", "--rows=1") as server:
        status, head, value = server.call(TEXT, {"prompt": "!count 5", "echo": True, "logprobs": 1}, headers=mine)
        assert status == 200 and "x-plumb-resumable" not in head and value["choices"][0]["text"] == "!count 501234"
        for body, want in (({"messages": 3}, 400), (b"{", 400), ({"messages": user("!refuse")}, 400), ({"messages": user("!fail 4")}, 500),
                           (late, 504), ({"messages": user("!count 5")}, 409)):
            assert server.call(CHAT, body, headers=mine)[0] == want, body
        assert server.call(CHAT, late, headers={"Idempotency-Key": "a"})[0] == 504
        server.wait_stats(calls=0, running=0, waiting=0)
        assert len(records(tmp_path)) == 1


def test_old_records_go(tmp_path):
    path, body = REQUESTS["chat"]
    body = {**body, "messages": user("!count 300"), "disconnect": "resumable"}  # it is still under way when its reader goes
    with serve(tmp_path, "--resume-ttl=1") as server:
        read_some(server, path, body, "x", 1500)
        server.wait_stats(running=0)
        assert records(tmp_path)
        time.sleep(2.2)
        assert server.call("/v1/requests/x/stream")[0] == 404


def test_records_are_bounded(tmp_path):
    body = {"messages": user("!count 300 " + "x" * 5000), "stream": True, "disconnect": "resumable"}
    with serve(tmp_path, "--journal-bytes=20000") as server:
        for i in range(8):
            read_some(server, CHAT, body, f"id-{i}", 1500)
            server.wait_stats(running=0)
            assert sum(f.stat().st_size for f in records(tmp_path)) <= 20000
        assert server.call("/v1/requests/id-7/stream")[0] == 200
        assert server.call("/v1/requests/id-0/stream")[0] == 404
        big = {"messages": user("!count 60"), "stream": True, "user": "x" * 50000}  # over the bound by itself
        assert text_of(parse_events(re.sub(rb"id: \S+\n", b"", post(server, "big", CHAT, big)[1]))) == "0123456789" * 6


def test_damaged_records_change_no_answer(calm, tmp_path):
    """Cut, flipped, swapped, of another version, foreign: the answer is what it was, or the request runs anew."""
    path, body = REQUESTS["logprobs"]
    body = {**body, "seed": 3, "disconnect": "resumable"}
    _, want = post(calm, "damage", path, body)
    want = unnamed([e for _, e in events_of(want)])
    first = tmp_path / "first"
    server = serve(first)
    for name in ("x", "y"):
        read_some(server, path, body, name, 4000)
    server.wait_stats(running=0)
    kill(server)
    dice = random.Random(1)
    size = records(first)[0].stat().st_size
    damages = [lambda f, b, at=at: f.write_bytes(b[:at]) for at in (0, 3, 8, 20, size // 3, size // 2, size - 1)]
    damages += [lambda f, b, at=at: f.write_bytes(b[:at] + bytes([b[at] ^ 0x40]) + b[at + 1:]) for at in
                [0, 7, 9, 13, 30] + [dice.randrange(size) for _ in range(12)]]
    damages += [lambda f, b: f.write_bytes(b + b"more"), lambda f, b: f.write_bytes(b"x" * 5000)]
    for i, damage in enumerate(damages):
        d = tmp_path / str(i)
        shutil.copytree(first, d)
        for f in records(d):
            damage(f, f.read_bytes())
        (d / "generations" / "other").mkdir()
        (d / "generations" / "notes.txt").write_text("not ours")
        server = serve(d, "--step-us=0")
        for name in ("x", "y"):
            assert unnamed([e for _, e in events_of(post(server, name, path, body)[1])]) == want, i
        server.stop()
        assert (d / "generations" / "notes.txt").exists()
    a, b = records(first)
    x, y = a.read_bytes(), b.read_bytes()
    a.write_bytes(y)
    b.write_bytes(x)
    with serve(first, "--step-us=0") as server:
        for name in ("x", "y"):
            assert unnamed([e for _, e in events_of(post(server, name, path, body)[1])]) == want
    assert sum(f.name.endswith(".gen.bad") for f in records(first)) == 2
    mode = os.stat(first / "generations").st_mode & 0o777
    assert mode == 0o700 and all(f.stat().st_mode & 0o777 == 0o600 for f in records(first) if f.is_file())


def test_a_record_that_disagrees_is_moved_aside(tmp_path):
    """Whole and checked, but not what the model says: an error, once; then the request runs anew."""
    body = {"messages": user("!say abc"), "stream": True}
    with serve(tmp_path, "--step-us=20000") as server:
        read_some(server, CHAT, {"messages": user("!count 60"), "stream": True}, "x", 1500)
        server.wait_stats(running=0)
    (f,) = records(tmp_path)
    with serve(tmp_path, "--shift=1") as server:
        status, _, value = server.call("/v1/requests/x/stream")
        assert status == 200 and b"record_disagrees" in value
        server.wait_stats(calls=0)
        assert server.call("/v1/requests/x/stream")[0] == 404
        assert server.call(CHAT, body, headers={"X-Request-Id": "x"})[0] == 200
    assert any(r.name == f.name + ".bad" for r in records(tmp_path))


def test_the_disk_fails_and_answers_go_on(tmp_path):
    path, body = REQUESTS["chat"]
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with serve(blocked) as server:
        for i in range(3):
            _, value = post(server, f"x-{i}", path, body)
            assert text_of(parse_events(re.sub(rb"id: \S+\n", b"", value))) == "0123456789" * 4
        assert server.stats()["journal_on"] == 0
        server.proc.send_signal(15)
        log = server.proc.communicate(timeout=60)[1]
        assert log.count("answers go on") == 1, log


@pytest.mark.parametrize("errno", [5, 28])
def test_each_call_of_the_disk_may_fail(calm, tmp_path, errno):
    path, body = REQUESTS["chat"]
    _, want = post(calm, f"fail-{errno}", path, body)
    want = unnamed(events_of(want))
    for n in (*range(1, 14), 17, 20):
        d = tmp_path / str(n)
        with serve(d, f"--journal-fails-at={n}", f"--journal-errno={errno}", "--step-us=500") as server:
            had = read_some(server, path, body, "x", 1500)
            server.wait_stats(running=0)
            assert unnamed(events_of(post(server, "x", path, body)[1])) == want, n
            assert had


def test_a_disk_that_hangs_does_not_hold_up_the_end(calm, tmp_path):
    path, body = REQUESTS["chat"]
    want = unnamed(events_of(post(calm, "hang", path, body)[1]))
    with serve(tmp_path, "--journal-hangs-at=4", "--step-us=500") as server:
        assert unnamed(events_of(post(server, "x", path, body)[1])) == want  # answers do not wait for it
        begun = time.monotonic()
        server.checks_exit = False  # what the thread uses is not freed, which this program counts as an error
        said = server.stop(check=False)
    assert 5 < time.monotonic() - begun < 25 + 5 * SLOW
    assert "records of answers: the disk has not answered" in said


def test_it_dies_at_each_call_of_the_disk(calm, tmp_path):
    """Torn files included: a write is made in two halves there. Then the same request gives the same answer."""
    path, body = REQUESTS["logprobs"]
    _, want = post(calm, "dies", path, body)
    want = unnamed([e for _, e in events_of(want)])
    died = 0
    for n in range(1, 25):
        d = tmp_path / str(n)
        server = serve(d, f"--journal-dies-at={n}", "--step-us=1000")
        try:
            had = [e for _, e in events_of(read_some(server, path, body, "x", 10 ** 9))]
        except (EOFError, ConnectionError):
            had = []
        try:
            server.proc.wait(timeout=0.3)
        except Exception:
            pass
        died += server.proc.poll() is not None
        kill(server)
        with serve(d, "--step-us=0") as again:
            got = [e for _, e in events_of(post(again, "x", path, body)[1])]
            assert unnamed(got) == want, n
            if records(d) or had and had[0]["id"] == got[0]["id"]:
                assert got[:len(had)] == had or got[0]["id"] != had[0]["id"]
    assert died >= 10


def dechunk(raw):
    """The body so far, and whether it is whole."""
    body, _, rest = b"", *raw.partition(b"\r\n\r\n")[1:]
    while b"\r\n" in rest:
        size, rest = rest.split(b"\r\n", 1)
        n = int(size, 16)
        if n == 0 or len(rest) < n + 2:
            return body, n == 0
        body, rest = body + rest[:n], rest[n + 2:]
    return body, False


@pytest.mark.parametrize("seed", range(4))
def test_a_real_model_is_killed_at_random_moments(tmp_path, seed):
    """Sampled, with penalties, log-probabilities and several answers: killed until it is through, each time resumed another way."""
    dice = random.Random(seed)
    path = str(fetched_model("smollm2"))
    flags = [PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "1024", "--no-store", "--state-dir", str(tmp_path),
             "--generation-checkpoint", str(dice.choice([1, 7, 50]))]
    body = {"messages": user("Tell a story about a river and a mill."), "max_tokens": 100, "temperature": 0.9, "seed": 11 + seed, "stream": True,
            "logprobs": True, "top_logprobs": 2, "frequency_penalty": 0.3, "stop": [" the mill"], "n": 1 + seed % 2}
    if seed == 3:  # held to a form
        lines = {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 60}, "minItems": 4, "maxItems": 9}
        body.update(stop=None, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": lines}})
    with Server(flags) as server:
        _, want = post(server, "calm", CHAT, body)
    want = by_choice(events_of(want))
    had, kills, last = [], 0, None
    while True:
        server = Server(flags)
        headers = {"X-Request-Id": "x", **({"Last-Event-ID": last} if last and kills % 2 else {})}
        if not (last and kills % 2):
            had = []
        with server.connect() as s:
            s.sendall(request(CHAT, body, headers=headers) if kills % 3 < 2 or not last else
                      request("/v1/requests/x/stream", headers=headers))
            end, n_events, raw = time.time() + 30 * SLOW, dice.randint(0, 40), b""
            s.settimeout(0.05)
            while (raw.count(b"data: ") < n_events or kills == 5) and time.time() < end and not raw.endswith(b"\r\n0\r\n\r\n"):
                try:
                    raw += s.recv(65536)
                except socket.timeout:
                    continue
        assert not raw or raw.startswith(b"HTTP/1.1 200"), raw
        data, is_whole = dechunk(raw)
        events = events_of(data)
        had += events
        last = next((i for i, _ in reversed(had) if i), last)
        if is_whole:
            break
        kill(server)
        kills += 1
    server.stop()
    assert kills > 0 and unnamed(by_choice(had)) == unnamed(want)
