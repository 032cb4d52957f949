"""Responses that can be resumed: background ones after kill -9 and restarts, others by their request's id; and what comes of those that cannot."""

import concurrent.futures
import json
import random
import re
import time

import pytest
from serving import SLOW, Reply, request, script
from test_resume import CALLS, THINKS, kill, records
from test_tools import TOOLS, say

RESP = "/v1/responses"
TOOL = {"type": "function", "name": TOOLS[0]["function"]["name"], "parameters": TOOLS[0]["function"].get("parameters")}


def serve(directory, *flags, checkpoint=3, **kwargs):
    return script(THINKS, "--rows=8", "--step-us=3000", f"--state-dir={directory}", f"--journal-dir={directory}",
                  *([f"--generation-checkpoint={checkpoint}"] if checkpoint else []), *flags, **kwargs)


BODIES = {
    "plain": {"input": "!count 150"},
    "logprobs": {"input": "!count 120", "top_logprobs": 2},
    "length": {"input": "!forever", "max_output_tokens": 120},
    "tools": {"input": say(CALLS)["messages"][0]["content"], "tools": [TOOL]},
    "instructed": {"input": "!count 130", "instructions": "Be brief.", "reasoning": {"summary": "auto"}},
}


def get(server, id, **kwargs):
    return server.call(f"{RESP}/{id}", **kwargs)


def until_over(server, id):
    end = time.time() + 20 * SLOW
    while True:
        status, _, r = get(server, id)
        assert status == 200, r
        if r["status"] not in ("queued", "in_progress"):
            return r
        assert time.time() < end, r
        time.sleep(0.02)


def same(r):
    """What has to be equal: not the times, nor the ids, which follow from the response's own."""
    text = json.dumps({k: v for k, v in r.items() if k not in ("created_at", "completed_at")})
    return json.loads(re.sub(r"call_[0-9a-f]{16}", "CALL", text.replace(r["id"].removeprefix("resp_"), "ID")))


def events(server, id, after=None):
    status, _, data = get(server, id + "?stream=true" + (f"&starting_after={after}" if after is not None else ""))
    assert status == 200
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]


def begin(server, body, **kwargs):
    status, r = server.post(RESP, {**body, "background": True, "seed": 5}, **kwargs)
    assert status == 200, r
    return r["id"]


def wait_for_tokens(server, n):
    server.wait_at_least("tokens", n)
    time.sleep(0.02)


@pytest.mark.parametrize("name", BODIES)
def test_a_background_response_goes_on_after_a_kill(tmp_path, name):
    with serve(tmp_path / "whole") as s:
        id = begin(s, BODIES[name])
        want, told = until_over(s, id), events(s, id)
        s.wait_stats(journal_records=0)  # it is kept: its record is of no use any more
    s = serve(tmp_path, "--step-us=6000")
    id = begin(s, BODIES[name])
    wait_for_tokens(s, 12)
    kill(s)
    assert len(records(tmp_path)) == 1
    for _ in range(2):  # and once more, in the middle of what goes on
        s = serve(tmp_path, "--step-us=6000")
        assert get(s, id)[2]["status"] in ("queued", "in_progress")
        wait_for_tokens(s, 8)
        kill(s)
    with serve(tmp_path) as s:
        again = events(s, id, after=3)
        got = until_over(s, id)
        assert same(got) == same(want)
        kinds = [(e["type"], e["sequence_number"], e.get("delta")) for e in told]
        assert [(e["type"], e["sequence_number"], e.get("delta")) for e in again] == kinds[4:]
        assert s.stats()["resumed"] == 1
        s.wait_stats(journal_records=0)
    assert records(tmp_path) == []
    with serve(tmp_path) as s:  # it is kept like any other
        assert get(s, id)[2] == got
        assert s.post(RESP, {"input": "!say and on", "previous_response_id": id})[0] == 200


def test_many_who_ask_at_once_resume_it_once(tmp_path):
    s = serve(tmp_path)
    id = begin(s, {"input": "!count 80"})
    wait_for_tokens(s, 10)
    kill(s)
    with serve(tmp_path) as s:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            all_told = list(pool.map(lambda _: events(s, id), range(6)))
        assert all(t == all_told[0] for t in all_told) and all_told[0][-1]["type"] == "response.completed"
        assert s.stats()["resumed"] == 1


def test_one_with_a_history_goes_on(tmp_path):
    s = serve(tmp_path)
    first = s.post(RESP, {"input": "!say one"})[1]["id"]
    id = begin(s, {"input": "!count 50", "previous_response_id": first})
    wait_for_tokens(s, 20)
    kill(s)
    with serve(tmp_path) as s:
        got = until_over(s, id)
        assert got["status"] == "completed" and got["output"][0]["content"][0]["text"] == "0123456789" * 5
        assert got["previous_response_id"] == first
    s = serve(tmp_path)
    id = begin(s, {"input": "!count 50", "previous_response_id": first})
    wait_for_tokens(s, 10)
    kill(s)
    with serve(tmp_path) as s:
        assert s.call(f"{RESP}/{first}", method="DELETE")[0] == 200
        assert until_over(s, id)["status"] == "failed"  # what it goes on from is gone


def test_cancelled_and_deleted_after_a_restart(tmp_path):
    s = serve(tmp_path)
    ids = [begin(s, {"input": "!forever"}) for _ in range(2)]
    wait_for_tokens(s, 20)
    kill(s)
    with serve(tmp_path) as s:
        status, _, r = s.call(f"{RESP}/{ids[0]}/cancel", {}, method="POST")
        assert status == 200 and r["status"] == "cancelled", r
        assert get(s, ids[0])[2]["status"] == "cancelled"
        assert s.call(f"{RESP}/{ids[1]}", method="DELETE")[0] == 200 and get(s, ids[1])[0] == 404
        s.wait_stats(running=0)


def test_without_a_record_it_has_failed(tmp_path):
    for checkpoint in (0, 3):
        s = serve(tmp_path, checkpoint=checkpoint)
        id = begin(s, {"input": "!count 150"})
        wait_for_tokens(s, 10)
        kill(s)
        for f in records(tmp_path):
            f.unlink()
        with serve(tmp_path) as s:
            assert get(s, id)[2]["status"] == "failed"
            assert events(s, id)[-1]["type"] == "response.failed"


def test_an_orderly_stop_is_no_failure(tmp_path):
    s = serve(tmp_path, "--drain-seconds=0")
    id = begin(s, {"input": "!count 90"})
    wait_for_tokens(s, 10)
    s.stop()
    with serve(tmp_path) as s:
        assert until_over(s, id)["output"][0]["content"][0]["text"] == "0123456789" * 9


def test_a_foreground_response_by_its_requests_id(tmp_path):
    body, h = {"input": "!count 60", "seed": 4}, {"X-Request-Id": "mine"}
    s = serve(tmp_path)
    with s.connect() as c:
        c.sendall(request(RESP, {**body, "stream": True}, headers=h))
        wait_for_tokens(s, 12)
        kill(s)
    with serve(tmp_path) as s:
        other = s.post(RESP, {**body, "seed": 5, "stream": True}, headers=h)
        assert other[0] == 409 and other[1]["error"]["code"] == "request_id_in_use"
        with s.connect() as c:
            c.sendall(request(RESP, {**body, "stream": True}, headers=h))
            status, _, data = Reply(c).read()
        assert status == 200
        told = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]
        assert told[-1]["type"] == "response.completed"
        assert told[-1]["response"]["output"][0]["content"][0]["text"] == "0123456789" * 6
        assert get(s, told[-1]["response"]["id"])[2]["status"] == "completed"
        assert s.stats()["resumed"] == 1


def test_random_kills(tmp_path):
    dice = random.Random(7)
    s = serve(tmp_path, checkpoint=1)
    ids = {begin(s, {"input": f"!count {n}"}): n for n in (40, 90, 140)}
    for _ in range(5):
        time.sleep(dice.random() * 0.15 * SLOW)
        kill(s)
        s = serve(tmp_path, checkpoint=1)
        for id in ids:
            assert get(s, id)[2]["status"] in ("queued", "in_progress", "completed")
    for id, n in ids.items():
        assert until_over(s, id)["output"][0]["content"][0]["text"] == ("0123456789" * 20)[:n]
    s.stop()
