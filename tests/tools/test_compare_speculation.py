"""tools/compare-speculation on the default model: a table, and answers that are the same with guesses and without."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/api"))
from fetched import fetched_model  # noqa: E402


def test_pairs_are_told_task_by_task():
    r = subprocess.run([ROOT / "tools/compare-speculation", "--model", str(fetched_model("smollm2")), "--pairs", "2", "--tokens", "24"],
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    lines = r.stdout.splitlines()
    assert lines[0] == "smollm2, 24 tokens, 2 pairs, medians in tokens per second"
    assert [line.split()[0] for line in lines[2:]] == ["edit", "code", "story"]
    assert all("rounds; answers the same" in line for line in lines[2:])
