"""Sessions over real models: a turn begins where its session stands though others have come and gone since, or the server was restarted, and
its answer is the one that a server gives that keeps nothing."""

import time

import pytest
from fetched import fetched_model
from serving import PLUMB, SLOW, Server

SMALL = "40M"  # of smollm2's cache: some 1,800 tokens


@pytest.fixture(scope="module")
def path():
    return str(fetched_model("smollm2"))


def serve(path, *flags):
    return Server([PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "1024", "--no-store", *flags])


def text_of(n, word):
    return " ".join(f"{word} {i} and then" for i in range(n // 4))


def ask(server, messages, **fields):
    status, r = server.chat(messages, **{"max_tokens": 16, "temperature": 0.8, "seed": 3, "logprobs": True, **fields})
    assert status == 200, r
    return r["choices"][0], r["usage"]["prompt_tokens_details"]["cached_tokens"], r["usage"]


def admin(server, path, method="POST"):
    status, _, value = server.call("/admin/sessions" + path, method=method)
    assert status == 200, value
    return value


FIRST = [{"role": "user", "content": "Remember this: " + text_of(160, "river")}]


def next_turn(choice):
    return [*FIRST, {"role": "assistant", "content": choice["message"]["content"]}, {"role": "user", "content": "Go on, please."}]


@pytest.fixture(scope="module")
def cold(path):
    """The two turns as a server gives them that keeps nothing."""
    with serve(path, "--prompt-cache", "0") as s:
        first, _, usage = ask(s, FIRST)
        second, cached, _ = ask(s, next_turn(first))
        assert cached == 0
        return first, second, usage["prompt_tokens"]


def others(server, n=14):
    for i in range(n):
        ask(server, [{"role": "user", "content": text_of(160, f"stone {i}")}], max_tokens=2, logprobs=None)


@pytest.mark.parametrize("session", [{}, {"session_id": "talk"}, {"prompt_cache_key": "talk"}])
def test_a_session_stays_while_others_come_and_go(path, cold, session):
    first, second, n_prompt = cold
    with serve(path, "--prompt-cache", SMALL) as s:
        choice, _, _ = ask(s, FIRST, **session)
        assert choice == first
        others(s)
        choice, cached, _ = ask(s, next_turn(first), **session)
        assert choice == second
        assert cached >= n_prompt or not session  # without one it hangs on how long computing took
        pinned = s.stats()["cache"]["full"]["pinned"]
        assert (pinned > 0) == bool(session)
        if session:
            admin(s, "/talk", "DELETE")
            end = time.time() + 5 * SLOW
            while s.stats()["cache"]["full"]["pinned"]:
                assert time.time() < end
                time.sleep(0.01)


def test_sessions_never_hold_more_than_half(path):
    with serve(path, "--prompt-cache", SMALL) as s:
        most = 0
        for i in range(12):
            ask(s, [{"role": "user", "content": text_of(160, f"stone {i}")}], max_tokens=2, session_id=f"s{i}")
            most = max(most, s.stats()["cache"]["full"]["pinned"])
        full = s.stats()["cache"]["full"]
        assert 0 < most <= (40 << 20) // full["page_bytes"] // 2
        assert s.stats()["session_pins_lost"] > 0


@pytest.mark.parametrize("ssd", [False, True])
def test_a_restored_session_goes_on(path, cold, ssd, tmp_path):
    first, second, n_prompt = cold
    flags = ["--state-dir", str(tmp_path / "state"), *(["--ssd-cache", str(tmp_path / "ssd")] if ssd else [])]
    with serve(path, *flags) as s:
        ask(s, FIRST, session_id="talk")
        saved = admin(s, "/talk/save")
        assert saved["tokens"] == n_prompt + 16 and saved["pages_durable"] is ssd
        s.proc.kill()  # what was said to be saved is
        s.checks_exit = False
    with serve(path, *flags) as s:
        restored = admin(s, "/talk/restore")
        assert restored["tokens"] == n_prompt + 16
        assert restored["cached_tokens"] > n_prompt if ssd else restored["computed_tokens"] == restored["tokens"]
        choice, cached, _ = ask(s, next_turn(first), session_id="talk")
        assert choice == second and cached >= n_prompt


def test_a_session_of_another_model_is_not_found(path, tmp_path):
    other = str(fetched_model("qwen2.5-coder-0.5b"))
    with serve(path, "--state-dir", str(tmp_path)) as s:
        ask(s, FIRST[:1], max_tokens=1, session_id="talk")
        admin(s, "/talk/save")
    with serve(other, "--state-dir", str(tmp_path)) as s:
        status, _, value = s.call("/admin/sessions/talk/restore", method="POST")
        assert status == 404 and "model" in value["error"]["message"]
        assert s.call("/admin/sessions")[2]["data"] == []


def test_a_longer_session_than_the_context_says_so(path, tmp_path):
    with serve(path, "--state-dir", str(tmp_path)) as s:
        ask(s, FIRST, session_id="talk")
        admin(s, "/talk/save")
    with serve(path, "--ctx", "128", "--state-dir", str(tmp_path)) as s:
        status, _, value = s.call("/admin/sessions/talk/restore", method="POST")
        assert status == 400 and "128" in value["error"]["message"]


def test_windows_go_on_too(tmp_path):
    """Gemma's windows stand where an answer ended, or where its prompt was cut: both are kept for a session."""
    path = str(fetched_model("gemma3-270m"))
    prompt = "One day, " + text_of(400, "river")

    def complete(server, text, **fields):
        status, r = server.complete(text, max_tokens=8, temperature=0, logprobs=1, **fields)
        assert status == 200, r
        return r["choices"][0], r["usage"]["prompt_tokens_details"]["cached_tokens"]

    with serve(path, "--prompt-cache", "0") as s:
        first, _ = complete(s, prompt)
        second, _ = complete(s, prompt + first["text"] + " and so on")
    flags = ["--prompt-cache", "40M", "--state-dir", str(tmp_path)]
    with serve(path, *flags) as s:
        assert complete(s, prompt, session_id="talk")[0] == first
        for i in range(6):
            complete(s, f"Number {i}: " + text_of(400, "stone"))
        got, cached = complete(s, prompt + first["text"] + " and so on", session_id="talk")
        assert got == second and cached > 400
        admin(s, "/talk/save")
    with serve(path, *flags) as s:
        assert admin(s, "/talk/restore")["restored"] is True
        again, cached = complete(s, prompt + first["text"] + " and so on", session_id="talk")
        assert again == second and cached > 400
