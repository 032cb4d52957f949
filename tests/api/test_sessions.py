"""Sessions: which requests are turns of one, whose it is, what is listed, saved, restored and deleted, over restarts too, and what is refused.
Over the scripted engine; that answers do not change and that less is computed is test_sessions_model.py's."""

import re
import shutil
import threading

import pytest
from serving import request, script

CHAT, TEXT, MSG, RESP = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"


def user(text):
    return [{"role": "user", "content": text}]


BODIES = {
    CHAT: {"messages": user("!say hello there")},
    TEXT: {"prompt": "!say hello there"},
    MSG: {"messages": user("!say hello there"), "max_tokens": 30},
    RESP: {"input": "!say hello there"},
}


def serve(directory=None, *flags, **kwargs):
    return script(*([f"--session-dir={directory}", f"--state-dir={directory}"] if directory else []), *flags, **kwargs)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("sessions")) as s:
        yield s


def turn(server, path=CHAT, headers=None, **fields):
    status, value = server.post(path, {**BODIES[path], **fields}, headers=headers)
    assert status == 200, value
    return value


def admin(server, path="", method="GET", **kwargs):
    status, _, value = server.call("/admin/sessions" + path, method=method, **kwargs)
    return status, value


def names(server, **kwargs):
    status, value = admin(server, **kwargs)
    assert status == 200 and value["object"] == "list"
    return sorted(s["id"] for s in value["data"])


@pytest.mark.parametrize("path", BODIES)
def test_every_dialect_names_sessions_in_three_ways(shared, path):
    tag = path[4:].replace("/", "-")
    turn(shared, path, session_id=f"id-{tag}", prompt_cache_key="not this", headers={"x-session-affinity": "nor-this"})
    turn(shared, path, prompt_cache_key=f"key-{tag}", headers={"x-session-affinity": "nor-this"})
    turn(shared, path, headers={"x-session-affinity": f"head-{tag}"})
    turn(shared, path, session_id=None, prompt_cache_key="")
    got = names(shared)
    assert {f"id-{tag}", f"key-{tag}", f"head-{tag}"} <= set(got) and not {"not this", "nor-this"} & set(got)
    status, s = admin(shared, f"/id-{tag}")
    assert status == 200
    assert s["object"] == "session" and s["turns"] == 1 and s["tokens"] == s["histories"][0] > 10
    assert s["saved"] is False and s["saved_at"] is None and s["last_used"] >= s["created"] > 0


def test_a_stream_and_several_answers_are_turns_too(shared):
    shared.events(CHAT, {**BODIES[CHAT], "session_id": "stream"})
    whole = turn(shared, session_id="whole")
    streamed, one = admin(shared, "/stream")[1], admin(shared, "/whole")[1]
    assert streamed["tokens"] == one["tokens"] == whole["usage"]["total_tokens"]
    turn(shared, session_id="many", n=4)
    assert admin(shared, "/many")[1]["histories"] == [one["tokens"]]  # the first answer's


def test_keys_of_any_text_get_a_name(shared):
    for key in ("with a blank", "slash/ed", "ä" * 10, "x" * 300):
        turn(shared, prompt_cache_key=key)
        assert [n for n in names(shared) if re.fullmatch(r"sha256:[0-9a-f]{32}", n)]
        for n in names(shared):
            if n.startswith("sha256:"):
                assert admin(shared, f"/{n}", "DELETE")[0] == 200


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "x" * 129, 7, ["a"], "a\u0000b"])
@pytest.mark.parametrize("path", BODIES)
def test_bad_ids_are_refused(shared, path, bad):
    status, value = shared.post(path, {**BODIES[path], "session_id": bad})
    assert status == 400
    assert "session_id" in value["error"]["message"] and "128" in value["error"]["message"]
    status, value = shared.post(path, {**BODIES[path], "prompt_cache_key": 7})
    assert status == 400 and "prompt_cache_key" in value["error"]["message"]


def test_a_turn_goes_on_and_others_are_branches(shared):
    history = user("!say " + "one " * 60)
    first = turn(shared, session_id="talk", messages=history)
    history += [first["choices"][0]["message"], {"role": "user", "content": "!say two"}]
    second = turn(shared, session_id="talk", messages=history)
    s = admin(shared, "/talk")[1]
    assert s["histories"] == [second["usage"]["total_tokens"]] and s["turns"] == 2
    turn(shared, session_id="talk", messages=user("!say a title " + "of another kind " * 20))
    assert len(admin(shared, "/talk")[1]["histories"]) == 2
    for i in range(6):
        turn(shared, session_id="talk", messages=user(f"!say {i} " + f"{i} other " * 40))
    assert len(admin(shared, "/talk")[1]["histories"]) == 4


def test_sessions_are_a_keys_and_a_salts(tmp_path):
    a, b = ({"Authorization": f"Bearer key-number-{k}"} for k in "ab")
    with serve(tmp_path, "--api-key=key-number-a", "--api-key=key-number-b") as s:
        turn(s, headers=a, session_id="mine")
        turn(s, headers=a, session_id="mine", cache_salt="x y&z")
        assert names(s, headers=a) == ["mine"] and names(s, headers=b) == []
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/save"), ("POST", "/restore")):
            status, value = admin(s, "/mine" + path, method, headers=b)
            assert status == 404 and value["error"]["code"] == "session_not_found"
            assert admin(s, "/mine" + path + "?cache_salt=y", method, headers=a)[0] == 404
        assert admin(s, "/mine/save", "POST", headers=a)[0] == 200
        assert admin(s, "/mine", headers=a)[1]["saved"] and not admin(s, "/mine?cache_salt=x%20y%26z", headers=a)[1]["saved"]
        assert admin(s, "/mine/restore", "POST", headers=b)[0] == 404
        assert admin(s, "/mine/restore?cache_salt=x%20y%26z", "POST", headers=a)[0] == 404
        assert admin(s, "/mine/restore", "POST", headers=a)[0] == 200
        assert admin(s, "")[0] == 401
        assert admin(s, "?cache_salt=%zz", headers=a)[0] == 400
        assert admin(s, "?cache_salt=" + "x" * 257, headers=a)[0] == 400


def test_saved_restored_and_deleted_over_a_restart(tmp_path):
    with serve(tmp_path) as s:
        total = turn(s, session_id="talk", messages=user("!say " + "a long one " * 40))["usage"]["total_tokens"]
        status, saved = admin(s, "/talk/save", "POST")
        assert status == 200 and saved["saved"] is True and saved["tokens"] == total and saved["pages_durable"] is True  # the scripted engine says so
        assert s.stats()["sessions_saved"] == 1 and s.stats()["sessions"] == 1
    files = list((tmp_path / "sessions").iterdir())
    assert len(files) == 1 and files[0].stat().st_mode & 0o777 == 0o600
    with serve(tmp_path) as s:
        assert s.stats()["sessions"] == 0
        _, listed = admin(s)
        assert [(x["id"], x["saved"], x["tokens"], x["turns"], x["last_used"]) for x in listed["data"]] == [("talk", True, total, 0, None)]
        assert admin(s, "/talk/save", "POST")[0] == 404  # nothing of it is known yet
        status, r = admin(s, "/talk/restore", "POST")
        assert status == 200 and r["restored"] is True and r["tokens"] == total and r["histories"] == 1
        assert r["cached_tokens"] + r["computed_tokens"] == total
        assert s.stats()["sessions_restored"] == 1
        now = admin(s, "/talk")[1]
        assert now["histories"] == [total] and now["saved"]
        assert admin(s, "/talk/save", "POST")[0] == 200
        assert admin(s, "/talk", "DELETE")[1] == {"id": "talk", "object": "session.deleted", "deleted": True}
        assert admin(s, "/talk", "DELETE")[0] == 404 and names(s) == []
    assert list((tmp_path / "sessions").iterdir()) == []


def test_a_killed_server_has_what_it_said_it_saved(tmp_path):
    for _ in range(3):
        s = serve(tmp_path)
        turn(s, session_id="talk")
        assert admin(s, "/talk/save", "POST")[0] == 200
        s.proc.kill()
        s.proc.communicate()
    with serve(tmp_path) as s:
        assert admin(s, "/talk/restore", "POST")[0] == 200


def test_damaged_and_foreign_records_are_not_found(tmp_path):
    with serve(tmp_path) as s:
        for n in ("one", "two", "three"):
            turn(s, session_id=n)
            assert admin(s, f"/{n}/save", "POST")[0] == 200
    files = sorted((tmp_path / "sessions").iterdir())
    data = files[0].read_bytes()
    files[0].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shutil.copy(files[1], files[2])  # another session's, under the wrong name
    (tmp_path / "sessions/README").write_text("not ours")
    with serve(tmp_path) as s:
        got = {n: admin(s, f"/{n}/restore", "POST")[0] for n in ("one", "two", "three")}
        assert sorted(got.values()) == [200, 404, 404]
    bad = [f for f in (tmp_path / "sessions").iterdir() if f.suffix == ".bad"]
    assert len(bad) == 2 and (tmp_path / "sessions/README").exists()


def test_without_a_directory_nothing_is_saved_and_it_says_why():
    with serve() as s:
        turn(s, session_id="a")
        assert names(s) == ["a"]
        for action in ("save", "restore"):
            status, value = admin(s, f"/a/{action}", "POST")
            assert status == 400 and value["error"]["code"] == "no_state_dir" and "--state-dir" in value["error"]["message"]
        assert admin(s, "/a", "DELETE")[0] == 200 and admin(s, "/a", "DELETE")[0] == 404


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "sessions").write_text("a file")
    with serve(tmp_path) as s:
        turn(s, session_id="a")
        status, value = admin(s, "/a/save", "POST")
        assert status == 503 and str(tmp_path) in value["error"]["message"]
        assert s.chat("!say on")[0] == 200


def test_paths_that_are_none(shared):
    turn(shared, session_id="p")
    assert admin(shared, "/a%20b")[0] == 400
    assert admin(shared, "/" + "x" * 129)[0] == 400
    assert admin(shared, "/p/other", "POST")[0] == 404 and admin(shared, "/p/save/more", "POST")[0] == 404
    assert admin(shared, "/p", "POST")[0] == 405 and admin(shared, "/p/save")[0] == 405 and admin(shared, "/p/save", "DELETE")[0] == 405
    assert admin(shared, "/p", "PUT")[0] in (405, 501)
    assert admin(shared, "", "DELETE")[0] == 405


def test_what_a_client_cut_off_stays_and_a_deleted_session_ends_with_its_call(tmp_path):
    with serve(tmp_path, "--step-us=2000") as s:
        with s.connect() as c:
            c.sendall(request(CHAT, {"messages": user("!forever"), "stream": True, "session_id": "cut"}))
            s.wait_at_least("tokens", 20)
            assert admin(s, "/cut")[1]["running"] is True
        s.wait_stats(running=0)
        left = admin(s, "/cut")[1]
        assert left["running"] is False and left["tokens"] > 20
        with s.connect() as c:
            c.sendall(request(CHAT, {"messages": user("!forever"), "stream": True, "session_id": "cut"}))
            s.wait_stats(running=1)
            assert admin(s, "/cut", "DELETE")[0] == 200 and names(s) == []
        s.wait_stats(running=0)
        assert names(s) == []


def test_the_number_of_sessions_is_bounded(tmp_path):
    with serve(tmp_path) as s:
        turn(s, session_id="first")
        for i in range(256):
            turn(s, TEXT, session_id=f"s{i}", max_tokens=1)
        got = names(s)
        assert len(got) == 256 and "first" not in got and "s0" in got  # one key's half
        turn(s, TEXT, session_id="s0", max_tokens=1)
        turn(s, TEXT, session_id="one-more", max_tokens=1)
        assert "s0" in names(s) and "s1" not in names(s)


def test_many_at_once(tmp_path):
    with serve(tmp_path, "--rows=8") as s:
        def work(k):
            for i in range(8):
                turn(s, CHAT, session_id=f"w{k % 3}", messages=user(f"!say {k} {i} " + "x " * (10 * i)))
                assert admin(s, f"/w{k % 3}/save", "POST")[0] in (200, 404)
                assert admin(s, f"/w{k % 3}/restore", "POST")[0] in (200, 404)
                if i % 4 == 3:
                    assert admin(s, f"/w{k % 3}", "DELETE")[0] in (200, 404)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(names(s)) <= 3
