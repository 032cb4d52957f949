"""plumb verify: every op against ref at every instruction level, and distributions against a reference's.

tests/golden/llama_cpp/llama-f16.kld is llama.cpp's (11434), of the first 3,000 bytes of tests/golden/text/prose.txt:

    llama-perplexity -m tests/golden/tiny/llama-f16.gguf -f TEXT -c 64 --chunks 2 -t 1 --kl-divergence-base llama-f16.kld
"""
import json
import math
import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest
from fetched import fetched_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
TINY = ROOT / "tests/golden/tiny"
FAMILIES = ROOT / "tests/golden/families"
SLOW = float(os.environ.get("SLOW", "1"))
STORED = ROOT / "tests/golden/llama_cpp/llama-f16.kld"
TEXT = ROOT / "tests/golden/text/prose.txt"


def verify(*args, status=0, timeout=120):
    r = subprocess.run([PLUMB, "verify", *map(str, args)], capture_output=True, timeout=timeout, check=False,
                       stdin=subprocess.DEVNULL)
    assert r.returncode == status, r.stderr.decode()
    return r.stdout.decode() if status == 0 else r.stderr.decode()


def verify_json(*args):
    return json.loads(verify(*args, "--json"))


@pytest.mark.parametrize("path", [TINY / "llama.gguf", TINY / "qwen2-kq.gguf", FAMILIES / "qwen35moe.gguf",
                                  FAMILIES / "gpt-oss.gguf"], ids=lambda p: p.stem)
def test_every_level_gives_the_bits_of_ref(path):
    levels = verify_json(path, "--cpu-mask", "all")["levels"]
    assert levels[0]["cpu_mask"] == "generic" and len({x["cpu_mask"] for x in levels}) == len(levels)
    for level in levels:
        assert level["is_equal"] and level["tokens"] == 48
        assert {"embed", "linear", "attention", "kv_store", "argmax"} <= {op["op"] for op in level["ops"]}
        for op in level["ops"]:
            assert op["different"] == 0 and op["largest_deviation"] == 0 and "first" not in op
            assert op["calls"] > 0 and op["elements"] > 0
    counts = [[(op["op"], op.get("type"), op["calls"], op["elements"]) for op in x["ops"]] for x in levels]
    assert all(c == counts[0] for c in counts)


def test_cache_types_lists_of_levels_and_a_text(tmp_path):
    text = tmp_path / "text"
    text.write_text("Hello, world! " * 9)
    for kind in ("f16", "bf16", "f32", "q8", "q4"):
        out = verify_json(TINY / "llama.gguf", "--cache-type", kind, "--cpu-mask", "generic,auto", "--tokens", 20,
                          "--file", text)
        assert [x["tokens"] for x in out["levels"]] == [20, 20]
        assert all(x["is_equal"] for x in out["levels"])
    assert "not one of" in verify(TINY / "llama.gguf", "--cpu-mask", "generic,no", status=1)
    text.write_text("")
    assert "no tokens" in verify(TINY / "llama.gguf", "--file", text, status=1)


def test_a_trace_has_a_line_for_every_op_and_the_same_hashes_at_every_level():
    lines = [verify(TINY / "llama.gguf", "--trace", "--cpu-mask", m).splitlines() for m in ("generic", "auto")]
    assert lines[0] == lines[1] and len(lines[0]) > 100
    assert any("blk.1.attn_q.weight" in line for line in lines[0])


def test_a_model_is_its_own_reference_and_what_it_saved_is_too(tmp_path):
    saved = tmp_path / "x.kld"
    d = verify_json(TINY / "llama.gguf", "--tokens", 0, "--reference", TINY / "llama.gguf", "--save", saved)
    assert d["kl_mean"] == d["kl_max"] == 0 and d["same_top"] == 1
    assert d["perplexity"] == d["reference_perplexity"]
    n, vocab, windows = struct.unpack("<3i", saved.read_bytes()[8:20])
    assert (n, windows) == (128, d["positions"] // 63) and d["window"] == 128
    assert saved.stat().st_size == 20 + 4 * n * windows + 2 * (vocab + 4) * 63 * windows
    again = verify_json(TINY / "llama.gguf", "--tokens", 0, "--reference", saved)
    assert again["positions"] == d["positions"] and again["same_top"] == 1
    assert abs(again["kl_mean"]) < 1e-5 and math.isclose(again["reference_perplexity"], d["perplexity"], rel_tol=1e-4)


def stored_logprobs(path):
    raw = path.read_bytes()
    n, vocab, windows = struct.unpack("<3i", raw[8:20])
    ids = np.frombuffer(raw, "<i4", n * windows, 20).reshape(windows, n)
    words = 4 + (vocab + 1) // 2 * 2
    rows = np.frombuffer(raw, "<u2", offset=20 + 4 * n * windows).reshape(windows, n - 1 - n // 2, words)
    line = rows[:, :, :4].copy().view("<f4").astype(np.float64)
    return ids, line[:, :, 1:] + line[:, :, :1] * rows[:, :, 4:4 + vocab]


def test_divergence_from_what_llama_cpp_stored_as_numpy_computes_it(tmp_path):
    saved = tmp_path / "x.kld"
    d = verify_json(TINY / "llama-f16.gguf", "--tokens", 0, "--reference", STORED, "--save", saved)
    ids, p = stored_logprobs(STORED)
    own_ids, q = stored_logprobs(saved)
    assert (ids == own_ids).all() and d["positions"] == p.shape[0] * p.shape[1] == 62
    kl = np.where(p > -16, np.exp(p) * (p - q), 0).sum(-1).reshape(-1)
    assert d["kl_mean"] < 1e-4 and d["same_top"] == 1
    assert abs(d["kl_mean"] - kl.mean()) < 2e-5 and abs(d["kl_max"] - kl.max()) < 1e-4
    assert abs(d["kl_median"] - np.sort(kl)[31]) < 2e-5
    first = ids.shape[1] // 2
    nll = -np.take_along_axis(p, ids[:, first + 1:, None], -1).mean()
    assert math.isclose(d["reference_perplexity"], math.exp(nll), rel_tol=1e-5)
    assert math.isclose(d["perplexity"], d["reference_perplexity"], rel_tol=2e-3)


def test_a_coarser_file_of_the_same_weights_diverges(tmp_path):
    """tiny/llama.gguf is llama-f16.gguf in block types."""
    d = verify_json(TINY / "llama.gguf", "--tokens", 0, "--reference", TINY / "llama-f16.gguf")
    assert 1e-4 < d["kl_median"] < d["kl_mean"] < d["kl_99"] <= d["kl_max"]
    assert d["same_top"] < 1


def test_references_that_do_not_fit_are_refused(tmp_path):
    assert "no-such" in verify(TINY / "llama.gguf", "--tokens", 0, "--reference", tmp_path / "no-such", status=1)
    cut = tmp_path / "cut.kld"
    for n in (8, 19, 100, 5000):
        cut.write_bytes(STORED.read_bytes()[:n])
        assert "ends too early" in verify(TINY / "llama-f16.gguf", "--tokens", 0, "--reference", cut, status=1)
    bad = bytearray(STORED.read_bytes())
    bad[12:16] = struct.pack("<i", 290)
    cut.write_bytes(bad)
    assert "vocabulary of 290" in verify(TINY / "llama-f16.gguf", "--tokens", 0, "--reference", cut, status=1)
    bad = bytearray(STORED.read_bytes())
    bad[20:24] = struct.pack("<i", 1 << 30)
    cut.write_bytes(bad)
    assert "id 1073741824" in verify(TINY / "llama-f16.gguf", "--tokens", 0, "--reference", cut, status=1)
    assert "smaller --ctx" in verify(TINY / "llama.gguf", "--tokens", 0, "--ctx", 100000, status=1)


def test_the_default_model():
    d = json.loads(verify(fetched_model("smollm2"), "--tokens", 6, "--json", timeout=120 * SLOW))
    assert d["levels"][0]["is_equal"]
