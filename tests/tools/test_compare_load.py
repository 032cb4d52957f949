"""tools/compare-load with plumb on both sides: the other engine is plumb behind the other's flags."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
sys.path.insert(0, str(ROOT / "tests/api"))
from fetched import fetched_model  # noqa: E402

OTHER = """#!/usr/bin/env python3
import os, sys
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert a["-np"] == "2" and a["-c"] == "2048"
os.execv(PLUMB, [PLUMB, "serve", "--model", a["-m"], "--threads", a["-t"], "--port", a["--port"], "--ctx", "1024"])
"""


def run(*args):
    r = subprocess.run([ROOT / "tools/compare-load", "--plumb", PLUMB, "--model", str(fetched_model("smollm2")), *args],
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return r.stdout


def test_both_engines_get_the_same_load(tmp_path):
    other = tmp_path / "llama-server"
    other.write_text(OTHER.replace("PLUMB,", f"{PLUMB!r},").replace("[PLUMB", f"[{PLUMB!r}"))
    other.chmod(0o755)
    out = run("--llama-server", str(other), "--clients", "1,2", "--rounds", "1", "--requests", "3", "--words", "10", "--tokens", "4")
    rates = re.findall(r"(\d+) clients: plumb ([\d.]+), llama.cpp ([\d.]+) output tokens/s, ratio ([\d.]+)", out)
    assert [int(r[0]) for r in rates] == [1, 2]
    for _, ours, theirs, ratio in rates:
        assert abs(float(ours) / float(theirs) - float(ratio)) < 0.02 and float(ours) > 0


def test_gaps_are_counted_while_a_long_prompt_is_taken():
    out = run("--stall", "--streams", "2", "--long", "200", "--gaps", "5", "--stream-tokens", "300", "--settle", "30")
    meanwhile = re.search(r"meanwhile: p50 (\d+) ms, p99 (\d+) ms, most (\d+) ms \((\d+)\)", out)
    assert meanwhile and int(meanwhile[4]) >= 5 and int(meanwhile[1]) <= int(meanwhile[2]) <= int(meanwhile[3])
