"""tools/compare with two programs that print known rates."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

FAKE = """#!/usr/bin/env python3
import json, pathlib, sys
count = pathlib.Path(__file__ + ".n")
n = int(count.read_text()) if count.exists() else 0
count.write_text(str(n + 1))
"""
OURS = FAKE + """
print(json.dumps({"depths": [{"depth": d, "prefill": 100 + 10 * n, "decode": 20 + n} for d in (0, 64)]}))
"""
THEIRS = FAKE + """
print(json.dumps([{"n_depth": d, "n_prompt": 0 if g else 512, "n_gen": g, "avg_ts": 10 + n if g else 50} for d in (0, 64)
                  for g in (0, 64)]))
"""


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_medians_and_ratios(tmp_path):
    ours, theirs = program(tmp_path / "plumb", OURS), program(tmp_path / "llama-bench", THEIRS)
    table = tmp_path / "table.csv"
    r = subprocess.run(["python3", str(ROOT / "tools/compare"), "--llama-bench", theirs, "--plumb", ours, "--model", "a/m.gguf",
                        "--depth", "0,64", "--repeat", "3", "--csv", str(table)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    assert "m prefill at depth 0: plumb 110.0 (100.0..120.0), llama.cpp 50.0 (50.0..50.0) tokens/s, ratio 2.20" in r.stdout
    assert "m decode at depth 64: plumb 21.0 (20.0..22.0), llama.cpp 11.0 (10.0..12.0) tokens/s, ratio 1.91" in r.stdout
    assert ours in r.stdout and theirs in r.stdout  # both command lines are told
    assert len(table.read_text().splitlines()) == 1 + 3 * 2 * 4


def test_a_program_that_fails_is_named(tmp_path):
    broken = program(tmp_path / "broken", "#!/bin/sh\necho no such model >&2\nexit 3\n")
    ours = program(tmp_path / "plumb", OURS)
    r = subprocess.run(["python3", str(ROOT / "tools/compare"), "--llama-bench", broken, "--plumb", ours, "--repeat", "1"],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "no such model" in r.stderr and "exit status 3" in r.stderr
