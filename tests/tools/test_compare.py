"""tools/compare with programs that print known rates, and the statistics of what it shares with tools/measure."""

import csv
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import compare_common  # noqa: E402

OURS = """#!/usr/bin/env python3
import json, sys
if "run" in sys.argv:
    sys.exit(0)
assert "--paced" in sys.argv
print(json.dumps({"token_bytes": 100 * 10**6}), flush=True)
for n, _ in enumerate(sys.stdin):
    print(json.dumps({"depths": [{"depth": d, "prefill": 100 + 10 * n, "decode": 20 + n} for d in (0, 64)], "bandwidth": 4e9}), flush=True)
"""
THEIRS = """#!/usr/bin/env python3
import json, pathlib, sys, time
if "-d" not in sys.argv:  # llama-completion
    time.sleep(0.3)
    sys.exit(0)
count = pathlib.Path(__file__ + ".n")
n = int(count.read_text()) if count.exists() else 0
count.write_text(str(n + 1))
# as llama-bench -o json writes them: a test has n_prompt or n_gen, never both
print(json.dumps([{"n_depth": d, "n_prompt": 0 if g else 512, "n_gen": g, "avg_ts": 10 + n if g else 50, "samples_ts": [1.0]}
                  for d in (0, 64) for g in (0, 64)]))
"""


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def compare(*args):
    return subprocess.run(["python3", str(ROOT / "tools/compare"), "--model", "a/m.gguf", *args], capture_output=True, text=True, timeout=60)


def test_medians_and_ratios(tmp_path):
    ours, theirs = program(tmp_path / "plumb", OURS), program(tmp_path / "llama-bench", THEIRS)
    table = tmp_path / "table.csv"
    r = compare("--llama-bench", theirs, "--plumb", ours, "--depth", "0,64", "--repeat", "3", "--csv", str(table))
    assert r.returncode == 0, r.stderr
    lines = [" ".join(line.split()) for line in r.stdout.splitlines()]
    assert "prefill at depth 0 110.0 (100.0..120.0) 50.0 (50.0..50.0) 2.20" in lines
    assert "decode at depth 64 21.0 (20.0..22.0) 11.0 (10.0..12.0) 1.91" in lines
    assert "memory is read at 4.0 (4.0..4.0) GB/s" in lines
    assert "plumb's decoding at depth 0 reads 100 MB of weights a token: 52 (50..55) % of that" in lines
    assert f"plumb: {ours} bench" in r.stdout and f"llama.cpp: {theirs} -m a/m.gguf" in r.stdout  # both command lines are told
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 3 * (2 * 4 + 1)
    assert [r["value"] for r in rows if (r["engine"], r["depth"], r["kind"]) == ("plumb", "64", "decode")] == ["20", "21", "22"]


def test_an_interval_needs_twenty_rounds(tmp_path):
    ours, theirs = program(tmp_path / "plumb", OURS), program(tmp_path / "llama-bench", THEIRS)
    few = compare("--llama-bench", theirs, "--plumb", ours, "--repeat", "19")
    assert few.returncode == 0 and "95 %" not in few.stdout
    (tmp_path / "llama-bench.n").unlink()
    many = compare("--llama-bench", theirs, "--plumb", ours, "--repeat", "20")
    # pairs (20 + n) / (10 + n), n = 0..19: the 6th and the 15th of them by size
    assert "1.51 (pairs 1.51, 95 % 1.42..1.67)" in many.stdout, many.stdout + many.stderr


def test_first_token(tmp_path):
    ours, theirs = program(tmp_path / "plumb", OURS), program(tmp_path / "llama-completion", THEIRS)
    r = compare("--llama-completion", theirs, "--plumb", ours, "--repeat", "1")
    assert r.returncode == 0, r.stderr
    assert "start to first token" in r.stdout and "--no-warmup" in r.stdout
    assert float(r.stdout.split()[-1]) > 1


def test_a_program_that_fails_is_named(tmp_path):
    broken = program(tmp_path / "broken", "#!/bin/sh\necho no such model >&2\nexit 3\n")
    ours = program(tmp_path / "plumb", OURS)
    r = compare("--llama-bench", broken, "--plumb", ours, "--repeat", "1")
    assert r.returncode == 1 and "no such model" in r.stderr and "exit status 3" in r.stderr
    r = compare("--llama-bench", ours, "--plumb", broken, "--repeat", "1")
    assert r.returncode == 1 and "no such model" in r.stderr and "exit status 3" in r.stderr
    assert compare().returncode == 2


def test_the_medians_interval_covers_it():
    assert compare_common.median_interval([1, 2, 3, 4, 5]) is None
    assert compare_common.median_interval([6, 5, 4, 3, 2, 1]) == (1, 6)  # 2 of 64 samples miss: 96.9 %
    assert compare_common.median_interval(range(1, 21)) == (6, 15)  # the table of the sign test
    assert compare_common.median_interval(range(1, 26)) == (8, 18)
    r = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = compare_common.median_interval([r.expovariate(1) for _ in range(20)])
        hits += low <= 0.6931 <= high
    assert 1890 < hits < 1960, hits  # 95.9 % in theory


def test_spread_and_table():
    assert compare_common.spread([1.0, 2.0, 3.0]) == (0.5, 1.5)
    assert statistics.median([3.0, 1.0, 2.0]) == 2.0
    assert compare_common.table([["a", "bb"], ["ccc", 1]]) == "a    bb\nccc   1"
