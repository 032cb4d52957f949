"""tools/measure with a program that prints known rates, and the charts."""

import csv
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
from xml.dom import minidom

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import svg_plot  # noqa: E402

PLUMB = """#!/usr/bin/env python3
import json, sys, time
if sys.argv[1] == "run":
    held = bytearray(150 << 20)
    for i in range(0, len(held), 4096):
        held[i] = 1
    time.sleep(0.1)
    sys.exit(0)
slow = 2 if sys.argv[sys.argv.index("--cpu-mask") + 1] == "generic" else 1
print(json.dumps({"token_bytes": 10**8, "weight_bytes": 120 << 20}), flush=True)
for n, _ in enumerate(sys.stdin):
    print(json.dumps({"depths": [{"depth": d, "prefill": (100 + n) / slow, "decode": (20 + n) / slow} for d in (0, 256)],
                      "rows": [{"rows": r, "step_us": 1000 * slow * (r + 3) / 4} for r in (1, 2, 4, 8, 16)], "bandwidth": 4e9}), flush=True)
"""


def measure_module():
    loader = importlib.machinery.SourceFileLoader("measure", str(ROOT / "tools/measure"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("measure", loader))
    loader.exec_module(module)
    return module


def test_tables_csv_and_chart(tmp_path):
    plumb = tmp_path / "plumb"
    plumb.write_text(PLUMB)
    plumb.chmod(0o755)
    out = tmp_path / "out"
    r = subprocess.run(["python3", str(ROOT / "tools/measure"), "--plumb", str(plumb), "--models", "a/one.gguf", "--masks", "auto,generic",
                        "--rounds", "3", "--depth", "0,256", "--out", str(out)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    lines = [" ".join(line.split()) for line in (out / "perf.txt").read_text().splitlines()]
    assert "a/one.gguf auto generic" in lines
    assert "prefill 512 at 0, tokens/s 101.0 (-1..+1 %) 50.5 (-1..+1 %)" in lines
    assert "decode at 256, tokens/s 21.0 (-5..+5 %) 10.5 (-5..+5 %)" in lines
    assert "share that decoding at 0 has, % 52 (-5..+5 %) 26 (-5..+5 %)" in lines
    assert "step of 16 rows to 1 4.75 (+0..+0 %) 4.75 (+0..+0 %)" in lines
    assert "packed weights 120 MiB" in lines[-1]
    beside = int(lines[-1].split("packed weights 120 MiB, ")[1].split()[0])
    assert 30 <= beside < 60, lines[-1]  # 150 MiB, and the interpreter
    rows = list(csv.DictReader((out / "perf.csv").open()))
    assert [x["value"] for x in rows if (x["mask"], x["kind"], x["at"]) == ("generic", "decode", "0")] == ["10", "10.5", "11"]
    assert len([x for x in rows if x["kind"] == "first_token_s"]) == 3
    minidom.parse(str(out / "perf.svg"))


def test_masks_that_change_nothing_are_left_out():
    m = measure_module()
    assert m.masks_of_machine(["auto", "avx512", "avxvnni", "avx2"], {"avx2", "avx_vnni"}) == ["auto", "avxvnni", "avx2"]
    assert m.masks_of_machine(["auto", "avx512", "avx2"], {"avx2", "avx512_vnni"}) == ["auto", "avx512", "avx2"]


def test_the_longest_bar_fits_and_lengths_are_proportional():
    svg = svg_plot.bars([("a < b", [("x", {"one": 50.0, "two": 25.0}), ("y", {"two": 0.0})]), ("none", [])])
    doc = minidom.parseString(svg)
    bars = {r.firstChild.firstChild.data: float(r.getAttribute("width")) for r in doc.getElementsByTagName("rect") if r.firstChild}
    assert bars == {"one: 50": svg_plot.WIDTH, "two: 25": svg_plot.WIDTH / 2, "two: 0": 0}
    assert "a &lt; b" in svg
    width = float(doc.documentElement.getAttribute("width"))
    assert all(float(t.getAttribute("x")) < width for t in doc.getElementsByTagName("text"))


def test_axes_end_at_round_numbers():
    assert [svg_plot.round_up(x) for x in (1, 1.1, 2.5, 5.1, 99, 0.003)] == pytest.approx([1, 2, 5, 10, 100, 0.005])
