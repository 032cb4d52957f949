"""What a server tells about itself: /metrics, /stats, /health, and the trace."""

import json
import re
import subprocess
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import ROOT, SERVE_SCRIPT, SLOW, Reply, request, script

CHAT = "/v1/chat/completions"


def body_of(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


def metrics(server):
    status, headers, text = server.call("/metrics")
    assert status == 200 and headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {f.name: f for f in text_string_to_metric_families(text.decode())}


def test_metrics_are_prometheus_text_and_say_what_stats_says():
    with script("--rows=4") as s:
        for i in range(5):
            assert s.chat("!count 20", n=1 + i % 2)[0] == 200
        assert s.chat("!fail 1")[0] == 500
        s.wait_stats(calls=0, running=0)
        families, st = metrics(s), s.stats()
        table = subprocess.run([SERVE_SCRIPT, "--metrics"], check=True, capture_output=True, text=True).stdout
        rows = re.findall(r"^\| `plumb_(\w+)(?:\{(\w+)\})?` \| (\w+) \| `([\w.]+)` \| (.+) \|$", table, re.M)
        assert len(rows) > 30 and len({r[0] for r in rows}) == len(rows)
        for name, label, kind, key, doc in rows:
            family = families.pop("plumb_" + name.removesuffix("_total") if kind == "counter" else "plumb_" + name)
            assert family.type == kind and family.documentation == doc
            check_row(family, name, label, kind, key.split("."), st)
        assert not families


def check_row(family, name, label, kind, key, st):
    value = st[key[0]]
    if kind == "histogram":
        buckets = [x for x in family.samples if x.name.endswith("_bucket")]
        counts = [x.value for x in buckets]
        assert counts == sorted(counts) and buckets[-1].labels["le"] == "+Inf"
        assert [x.value for x in family.samples if x.name.endswith("_count")] == [counts[-1]]
        assert [b[1] for b in value["buckets"]] == counts and value["buckets"][-1][0] is None and value["count"] == counts[-1]
        assert [float(x.labels["le"]) for x in buckets[:-1]] == [b[0] for b in value["buckets"][:-1]]
        return
    for sample in family.samples:
        assert sample.name == "plumb_" + name and list(sample.labels) == ([label] if label else [])
        v = value
        if label:
            v = v[sample.labels[label]]
        if len(key) > 2:
            v = v[key[2]]
        if key[0] not in ("uptime_us", "replies", "resident_bytes", "fds", "threads", "connections", "memory"):
            assert sample.value == pytest.approx(v / 1e6 if key[0].endswith("_us") else v), name
    assert label or len(family.samples) == 1


def test_counters_count():
    with script("--rows=4") as s:
        for _ in range(3):
            s.chat("!count 10", n=2)
        s.chat("!fail 0")
        s.call("/nope")
        st = s.wait_stats(calls=0, running=0)
        assert st["accepted"] == st["finished"] == 7 and st["failed"] == 1 and st["tokens"] == 60
        assert st["outcomes"] == {"abort": 0, "success": 3, "error": 1}
        assert st["replies"]["4xx"] == 1 and st["replies"]["5xx"] == 1 and st["replies"]["2xx"] >= 3
        assert st["preparation"]["text"] == {"slots": 2, "queued": 0, "running": 0, "done": 4, "cancelled": 0, "refused": 0}
        assert st["preparation"]["grammar"]["slots"] == 2 and st["preparation"]["media"]["slots"] == 1
        assert st["ready"] == 1 and st["fds"] > 3 and st["threads"] >= 6 and st["resident_bytes"] > 1 << 20


def test_the_documented_metrics_are_those_that_are_told():
    table = subprocess.run([SERVE_SCRIPT, "--metrics"], check=True, capture_output=True, text=True).stdout
    text = (ROOT / "docs/observing.md").read_text()
    assert table in text, "docs/observing.md: put the output of build/release/tests/support/serve_script --metrics there"


def test_numbers_do_not_wait_for_the_engine():
    with script("--step-us=1500000", "--wedged-seconds=1") as s:
        c = s.connect()
        c.sendall(request(CHAT, body_of("!count 1")))
        s.wait_at_least("step_us_now", 1)
        for path in ("/metrics", "/stats", "/health/live"):
            t = time.time()
            assert s.call(path)[0] == 200
            assert time.time() - t < 0.3 * SLOW
        c.close()


def test_a_step_that_does_not_end_is_told():
    with script("--step-us=3000000", "--wedged-seconds=1") as s:
        assert s.call("/health")[0] == 200
        c = s.connect()
        c.sendall(request(CHAT, body_of("!count 1", max_tokens=1)))
        s.wait_at_least("step_us_now", 1200000)
        for path in ("/health", "/health/ready", "/v1/health"):
            status, headers, value = s.call(path)
            assert status == 503 and value["error"]["code"] == "wedged" and "retry-after" in headers
        assert s.call("/health/live")[0] == 200 and s.stats()["ready"] == 0
        assert Reply(c).read()[0] == 200
        end = time.time() + 10 * SLOW
        while s.call("/health")[0] != 200:
            assert time.time() < end
            time.sleep(0.05)
        time.sleep(1.1)  # the watch looks once a second
        c.close()
        err = s.stop()
    assert "has been running for" in err and "goes on" in err


# --- the trace ---


def read_trace(path):
    events = json.loads(path.read_text())
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return events, names


def test_a_trace_has_the_phases_of_every_request(tmp_path):
    path = tmp_path / "trace.json"
    with script("--rows=4", "--step-us=1000", f"--trace={path}") as s:
        status, headers, _ = s.call(CHAT, body_of("!count 5"), headers={"X-Request-Id": "r-1", "X-Trace-Id": "t.1:/_-"})
        assert headers["x-trace-id"] == "t.1:/_-" and headers["x-request-id"] == "r-1"
        for bad in ("a b", 'x"y', "z" * 129, ""):
            headers = s.call(CHAT, body_of("!count 5", stream=True), headers={"X-Trace-Id": bad, "X-Request-Id": "r-2"})[1]
            assert re.fullmatch(r"trace-[0-9a-f]{16}", headers["x-trace-id"])
        s.call(CHAT, body_of("!fail 2"), headers={"X-Request-Id": "r-3"})
        s.call(CHAT, b"not json", headers={"X-Request-Id": "r-4"})
        c = s.connect()
        c.sendall(request(CHAT, body_of("!forever", stream=True), headers={"X-Request-Id": "r-5"}))
        s.wait_at_least("tokens", 40)
        c.close()
        s.call(CHAT, body_of("!count 3", n=2), headers={"X-Request-Id": "r-6"})
        s.wait_stats(running=0, calls=0)
    events, names = read_trace(path)
    assert names[0] == "engine"
    by_name = {}
    for e in events:
        if e["ph"] in "Xi" and e["tid"] in names and e["tid"] != 0:
            by_name.setdefault(names[e["tid"]], []).append(e)
    common = {"engine.request_wait", "request.body_parse", "request.prompt_prepare", "completion.placement", "response.first_write",
              "response.final_write", "completion.total"}
    for name, outcome in (("r-1", "success"), ("r-2", "success"), ("r-3", "error"), ("r-5", "abort"), ("r-6", "success")):
        got = {e["name"] for e in by_name[name]}
        assert got >= common - ({"response.final_write"} if outcome == "abort" else set()) - (
            {"response.first_write"} if outcome == "error" else set()), (name, got)
        total = [e for e in by_name[name] if e["name"] == "completion.total"]
        assert {t["args"]["outcome"] for t in total} == {outcome}
        if name != "r-2":
            check_nesting(by_name[name], total[0])
    assert {e["args"]["trace_id"] for e in by_name["r-1"] if e["name"] == "completion.total"} == {"t.1:/_-"}
    wait = next(e for e in by_name["r-1"] if e["name"] == "engine.request_wait")
    assert wait["args"] == {"class": "text", "capacity": 2}
    assert "completion.placement" not in {e["name"] for e in by_name["r-4"]}
    assert "r-6 answer 1" in names.values()
    of_rows = {"engine.admission_wait", "prefill.total", "prefill.chunk", "token_zero.total", "decode.total"}
    for name in ("r-1", "r-2", "r-3", "r-5", "r-6", "r-6 answer 1"):
        assert {e["name"] for e in by_name[name]} >= of_rows - ({"prefill.chunk"} if name == "r-6 answer 1" else set()), name
    steps = [e for e in events if e["name"] == "engine.mixed_forward"]
    assert len(steps) > 40 and {e["tid"] for e in steps} == {0} and any(e["args"]["rows"] == 2 for e in steps)
    assert all(e["dur"] >= 900 for e in steps)


def check_nesting(events, total):
    """Everything within the whole; spans of one line follow or contain one another."""
    spans = sorted((e["ts"], -e["dur"]) for e in events if e["ph"] == "X")
    open_ends = []
    for ts, dur in spans:
        while open_ends and open_ends[-1] <= ts:
            open_ends.pop()
        assert not open_ends or ts - dur <= open_ends[-1], events
        open_ends.append(ts - dur)
    for e in events:
        assert total["ts"] <= e["ts"] and e["ts"] + e.get("dur", 0) <= total["ts"] + total["dur"], e


def test_without_a_trace_no_id_comes_back():
    with script() as s:
        assert "x-trace-id" not in s.call(CHAT, body_of("!say x"), headers={"X-Trace-Id": "t"})[1]


def test_a_trace_that_cannot_be_written():
    r = subprocess.run([SERVE_SCRIPT, "--trace=/nonexistent/dir/t.json"], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and "/nonexistent/dir/t.json" in r.stderr
    with script("--trace=/dev/full") as s:
        for _ in range(300):
            assert s.chat("!say x")[0] == 200
        assert "x-trace-id" not in s.call(CHAT, body_of("!say x"))[1]  # it has ended
        assert s.stop().count("No space left") == 1


def test_a_killed_server_leaves_a_readable_trace(tmp_path):
    path = tmp_path / "trace.json"
    s = script(f"--trace={path}")
    for _ in range(3):
        for _ in range(20):
            s.chat("!say x")
        time.sleep(0.6)
    s.proc.kill()
    s.proc.communicate()
    text = path.read_text()
    assert len(json.loads(text + "]")) > 100
