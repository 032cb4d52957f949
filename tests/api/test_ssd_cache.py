"""Kept histories on disk, with real servers: what a restart or a kill leaves, damaged and foreign files, disks that are full, read-only or
shared, the cap, what a flush promises, and who does not find what others kept. Each answer is that of a server that keeps nothing."""

import concurrent.futures
import os
import pathlib
import random
import resource
import shutil
import struct
import subprocess
import threading
import time

import pytest
from fetched import fetched_model
from serving import BUILD, PLUMB, SLOW, Server

IS_FAST = BUILD.name == "release"
WORDS = "river stone copper window garden harbor meadow winter engine paper silver market candle bridge forest".split()
HEADER = 4096


def prose(seed, n):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


SYSTEM = prose("system", 600 if IS_FAST else 130)


@pytest.fixture(scope="module")
def path():
    return str(fetched_model("smollm2"))


def serve(path, directory=None, *flags, wrap=(), **kwargs):
    disk = ["--ssd-cache", str(directory)] if directory else []
    return Server([*wrap, PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "2048", "--no-store", *disk, *flags], **kwargs)


@pytest.fixture(scope="module")
def cold(path):
    with serve(path, None, "--prompt-cache", "0") as s:
        yield s


def ask(server, user, history=(), **fields):
    messages = [{"role": "system", "content": SYSTEM}, *history, {"role": "user", "content": user}]
    status, r = server.chat(messages, **{"max_tokens": 12, "temperature": 0.8, "seed": 3, "logprobs": True, **fields}, timeout=120 * SLOW)
    assert status == 200, r
    return r


def said(reply):
    return reply["choices"]


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def flush(server):
    return server.post("/admin/cache/flush", {}, timeout=120 * SLOW)


def kill(server):
    server.proc.kill()
    server.proc.communicate()


def files(directory, where="*"):
    return sorted(p for p in pathlib.Path(directory).glob(f"{where}/*") if p.suffix in (".node", ".end") and p.parent.name != "quarantine")


def quarantined(directory):
    return sorted((pathlib.Path(directory) / "quarantine").glob("*"))


# --- restarts and kills ---


def test_a_restart_gives_the_history_back(path, cold, tmp_path):
    question, follow_up = "Name a river.", "And what stands beside it?"
    with serve(path, tmp_path) as s:
        first = ask(s, question)
        assert flush(s)[0] == 200
    history = [{"role": "user", "content": question}, {"role": "assistant", "content": said(first)[0]["message"]["content"]}]
    want = ask(cold, follow_up, history)
    took = []
    for _ in range(3):
        with serve(path, tmp_path) as s:
            got = ask(s, follow_up, history)
            st = s.stats()
            again = ask(s, question)
        assert said(got) == said(want) and cached(want) == 0
        assert cached(got) >= first["usage"]["total_tokens"] - 3  # the whole turn, but for what the template writes behind an answer
        assert said(again) == said(first)
        assert st["disk_cache_read"] > 0 and st["disk_cache_waits"] == 1 and st["disk_cache_quarantined"] == 0
        took.append(got["timings"]["prompt_ms"])
    assert min(took) < want["timings"]["prompt_ms"] / 2 or not IS_FAST, (took, want["timings"])


def test_kill_at_random_moments(path, cold, tmp_path):
    """Requests run, the process dies; what it left is whole, and answers are what they were."""
    dice = random.Random(5)
    questions = [f"Number {i}: {prose(i, 40)}?" for i in range(5)]
    want = {q: said(ask(cold, q)) for q in questions}
    found = 0
    for turn in range(6 if IS_FAST else 2):
        s = serve(path, tmp_path)
        if turn:
            got = ask(s, questions[turn % 5])
            found += cached(got)
            assert said(got) == want[questions[turn % 5]]
            assert s.stats()["disk_cache_quarantined"] == 0
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            running = [pool.submit(ask, s, q) for q in dice.sample(questions, 3)]
            time.sleep(dice.uniform(0.05, 1.5) * SLOW / 2)
            kill(s)
            for r in running:
                try:
                    assert said(r.result()) in want.values()
                except (OSError, EOFError, ValueError):
                    pass  # it had no answer yet
    with serve(path, tmp_path) as s:
        for q in questions:
            assert said(ask(s, q)) == want[q]
        assert s.stats()["disk_cache_quarantined"] == 0 and flush(s)[0] == 200
    assert found > 0
    assert not list(tmp_path.glob("*/*.tmp"))


def test_a_flush_outlives_a_kill(path, tmp_path):
    s = serve(path, tmp_path)
    total = ask(s, "Is all of it there?")["usage"]["prompt_tokens"]
    status, told = flush(s)
    kill(s)
    assert status == 200 and told["durable"] is True and told["pending"] == 0 and told["files"] == len(files(tmp_path))
    with serve(path, tmp_path) as s:
        assert cached(ask(s, "Is all of it there?")) == total - 1


# --- files that cannot be used ---


def damage_truncate(data):
    return data[: len(data) // 2]


def damage_header_bit(data):
    return data[:300] + bytes([data[300] ^ 1]) + data[301:]


def damage_payload_bit(data):
    at = HEADER + (len(data) - HEADER) // 3
    return data[:at] + bytes([data[at] ^ 64]) + data[at + 1:]


def damage_version(data):
    return data[:8] + struct.pack("<I", 0) + data[12:]


def damage_foreign(data):
    return random.Random(1).randbytes(len(data))


def damage_empty(_):
    return b""


@pytest.mark.parametrize("damage", [damage_truncate, damage_header_bit, damage_payload_bit, damage_version, damage_foreign, damage_empty])
def test_damaged_files_are_misses_and_put_aside(path, cold, tmp_path, damage):
    with serve(path, tmp_path) as s:
        ask(s, "Tell me of damage.")
        assert flush(s)[0] == 200
    all_files = files(tmp_path)
    for p in all_files:
        p.write_bytes(damage(p.read_bytes()))
    (tmp_path / "notes.txt").write_text("mine")
    (all_files[0].parent / "notes.txt").write_text("mine")
    with serve(path, tmp_path) as s:
        got = ask(s, "Tell me of damage.")
        st = s.stats()
        assert said(got) == said(ask(cold, "Tell me of damage.")) and cached(got) == 0
        # Payloads are looked at when they are read, and the first bad one ends the search; all else is found at the start.
        assert (1 if damage is damage_payload_bit else len(all_files)) <= st["disk_cache_quarantined"] <= len(all_files)
        assert st["disk_cache_on"] == 1 and flush(s)[0] == 200
        assert 1 <= len(quarantined(tmp_path)) <= 16
    assert (tmp_path / "notes.txt").read_text() == (all_files[0].parent / "notes.txt").read_text() == "mine"


def test_odd_things_in_the_directory_are_left_alone(path, tmp_path):
    with serve(path, tmp_path) as s:
        ask(s, "What is odd?")
        assert flush(s)[0] == 200
    space = files(tmp_path)[0].parent
    (space / ("0" * 32 + ".node")).mkdir()
    (space / ("1" * 32 + ".end")).symlink_to("/etc/passwd")
    os.mkfifo(space / ("2" * 32 + ".node"))
    (space / ("3" * 32 + ".node.tmp")).write_bytes(b"half")
    (tmp_path / "plumb-ssd-cache.lock").chmod(0o600)
    with serve(path, tmp_path) as s:
        assert cached(ask(s, "What is odd?")) > 0
    assert not (space / ("3" * 32 + ".node.tmp")).exists() and pathlib.Path("/etc/passwd").exists()


# --- disks in trouble ---


def test_a_full_disk_costs_no_answer(path, cold, tmp_path):
    with serve(path, tmp_path) as s:
        resource.prlimit(s.proc.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # a page is larger
        for q in ("Is it full?", "Is it still?"):
            assert said(ask(s, q)) == said(ask(cold, q))
        status, r = flush(s)
        st = s.stats()
        assert status == 503 and r["error"]["code"] == "not_durable"
        assert st["disk_cache_on"] == 0 and st["disk_cache_failed"] == 1 and st["disk_cache_files"] == 0
        err = s.stop()
    assert err.count("kept histories are not written to disk now") == 1 and "File too large" in err
    assert files(tmp_path) == [] and not list(tmp_path.glob("*/*.tmp"))


def plain_root():
    """A command after which root is bound by permissions like everybody else."""
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


def test_a_read_only_directory(path, cold, tmp_path):
    """At the start it is refused, by name; later answers go on, and what is there is still read."""
    with serve(path, tmp_path) as s:
        ask(s, "Who writes?")
        assert flush(s)[0] == 200
    space = files(tmp_path)[0].parent
    space.chmod(0o500)
    try:
        with serve(path, tmp_path, wrap=plain_root()) as s:
            got = ask(s, "Who writes?")
            assert cached(got) > 0 and said(got) == said(ask(cold, "Who writes?"))
            new = ask(s, "And who writes this?")
            assert said(new) == said(ask(cold, "And who writes this?"))
            assert flush(s)[0] == 503 and s.stats()["disk_cache_on"] == 0
        tmp_path.chmod(0o500)
        for p in tmp_path.glob("*.lock"):
            p.chmod(0o400)
        with pytest.raises(AssertionError, match=f"(?s){tmp_path}.*Permission denied"):
            serve(path, tmp_path, wrap=plain_root())
    finally:
        tmp_path.chmod(0o700)
        space.chmod(0o700)


def test_a_second_process_is_refused(path, tmp_path):
    with serve(path, tmp_path) as s:
        with pytest.raises(AssertionError, match="another process keeps its histories there"):
            serve(path, tmp_path)
        assert cached(ask(s, "Am I alone?")) == 0
    with serve(path, tmp_path) as s:
        assert cached(ask(s, "Am I alone?")) > 0


# --- the cap ---


def test_the_cap_holds_under_load(path, cold, tmp_path):
    cap, most, is_over = 12 << 20, 0, False

    def watch():
        nonlocal most
        while not is_over:
            n = 0
            for p in tmp_path.glob("*/*"):
                try:
                    n += p.stat().st_size
                except FileNotFoundError:
                    pass  # it went meanwhile
            most = max(most, n)
            time.sleep(0.002)

    with serve(path, tmp_path, "--ssd-cache-max", "12M") as s:
        watcher = threading.Thread(target=watch)
        watcher.start()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            questions = [prose(f"cap {i}", 200) for i in range(12 if IS_FAST else 4)]
            got = list(pool.map(lambda q: s.chat(q, max_tokens=8, temperature=0, timeout=120 * SLOW)[1], questions))
        status, _ = flush(s)
        is_over = True
        watcher.join()
        st = s.stats()
        assert status == 503  # memory keeps more than fits
        assert 0 < st["disk_cache_bytes"] <= cap == st["disk_cache_limit_bytes"] and st["disk_cache_dropped"] + st["disk_cache_evicted"] > 0
        assert 0 < most <= cap
    for q, r in zip(questions[:2], got):
        assert r["choices"] == cold.chat(q, max_tokens=8, temperature=0, timeout=120 * SLOW)[1]["choices"]
    with serve(path, tmp_path, "--ssd-cache-max", "4M") as s:  # a smaller one is kept from the start
        end = time.time() + 20 * SLOW
        while not 0 < s.stats()["disk_cache_bytes"] <= 4 << 20:
            assert time.time() < end, s.stats()
            time.sleep(0.02)


def test_flush_without_a_directory(cold):
    status, r = flush(cold)
    assert status == 400 and r["error"]["code"] == "no_disk_cache"


# --- namespaces ---


def other_weights(path, where):
    """The same model, of the same name, with one weight changed."""
    other = where / pathlib.Path(path).name
    shutil.copyfile(path, other)
    with open(other, "r+b") as f:
        f.seek(-1000, os.SEEK_END)
        b = f.read(1)
        f.seek(-1000, os.SEEK_END)
        f.write(bytes([b[0] ^ 1]))
    return str(other)


@pytest.mark.parametrize("what", ["weights", "cache type", "rope"])
def test_another_namespace_finds_nothing(path, tmp_path, what):
    disk, flags = tmp_path / "ssd", {"cache type": ("--cache-type", "bf16"), "rope": ("--rope-base", "90000")}.get(what, ())
    other = other_weights(path, tmp_path) if what == "weights" else path
    with serve(path, disk) as s:
        first = ask(s, "Whose is it?")
        assert flush(s)[0] == 200
    with serve(other, disk, *flags) as s, serve(other, None, *flags, "--prompt-cache", "0") as cold_other:
        got = ask(s, "Whose is it?")
        assert cached(got) == 0 and said(got) == said(ask(cold_other, "Whose is it?"))
        assert s.stats()["disk_cache_read"] == 0 and flush(s)[0] == 200
    assert len({p.parent for p in files(disk)}) == 2  # side by side
    with serve(path, disk) as s:
        got = ask(s, "Whose is it?")
        assert cached(got) == first["usage"]["prompt_tokens"] - 1 and said(got) == said(first)


def test_salts_part_tenants_on_disk(path, tmp_path):
    with serve(path, tmp_path) as s:
        ask(s, "What is secret?", cache_salt="mine")
        assert flush(s)[0] == 200
    with serve(path, tmp_path) as s:
        for salt in ({"cache_salt": "yours"}, {"cache_salt": ""}, {}):
            assert cached(ask(s, "What is secret?", **salt)) == 0
        assert cached(ask(s, "What is secret?", cache_salt="mine")) > 0


# --- while others go on ---


def test_a_restore_waits_for_nobody_and_nobody_for_it(path, cold, tmp_path):
    """Answers run while others come back from disk."""
    questions = [f"{prose(f'q{i}', 60)}?" for i in range(4)]
    with serve(path, tmp_path) as s:
        for q in questions:
            ask(s, q, cache_salt=q[:20])
        assert flush(s)[0] == 200
    want = [said(ask(cold, q)) for q in questions]
    with serve(path, tmp_path) as s, concurrent.futures.ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(s.chat, prose(f"busy {i}", 30), max_tokens=60, temperature=0, ignore_eos=True, timeout=120 * SLOW) for i in range(3)]
        got = list(pool.map(lambda q: ask(s, q, cache_salt=q[:20]), questions))
        assert [said(r) for r in got] == want and all(cached(r) > 0 for r in got)
        for b in busy:
            status, r = b.result()
            assert status == 200 and r["usage"]["completion_tokens"] == 60
        assert s.stats()["disk_cache_waits"] >= 4


def test_stopping_writes_what_is_kept(path, tmp_path):
    with serve(path, tmp_path) as s:
        total = ask(s, "Is it written at the end?")["usage"]["prompt_tokens"]
    with serve(path, tmp_path) as s:
        assert cached(ask(s, "Is it written at the end?")) == total - 1


