"""Damaged copies of the SmolLM2 file: every verb that opens a model refuses them with the field's name, and no answer is
made of weights that are not numbers. (Cases B34 and B38 of the collection of other servers' faults.)"""
import os
import pathlib
import resource
import shutil
import struct
import subprocess

import gguf
import pytest
from fetched import fetched_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))


def lower_limits():
    """The damaged file may not cost memory. (A sanitizer reserves terabytes of address space.)"""
    if "asan" not in PLUMB and "tsan" not in PLUMB:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def plumb(*args, limits=None):
    return subprocess.run([PLUMB, *map(str, args)], capture_output=True, timeout=60, check=False, preexec_fn=limits)


def run(copy, limits=None):
    return plumb("run", "--model", copy, "--prompt", "Hi", "--max-tokens", 4, "--temperature", 0, limits=limits)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    source = fetched_model("smollm2")
    copy = tmp_path_factory.mktemp("damaged") / "x.gguf"
    shutil.copyfile(source, copy)
    yield source.read_bytes(), gguf.GGUFReader(source), copy
    copy.unlink()


def key_value_at(reader, raw, key):
    at = reader.fields[key].offset
    return at + 8 + struct.unpack_from("<Q", raw, at)[0]


def tensor_at(reader, raw, i):
    at = reader.tensors[i].field.offset
    return at + 8 + struct.unpack_from("<Q", raw, at)[0]


def lies(reader, raw):
    d0, d1 = tensor_at(reader, raw, 0), tensor_at(reader, raw, 1)
    tokens = key_value_at(reader, raw, "tokenizer.ggml.tokens")
    kind, offset = d0 + 4 + 16, d1 + 4 + 8 + 4
    embd, norm = "'token_embd.weight'", "'blk.0.attn_norm.weight'"
    return {
        "magic": (0, "<I", 0x58554747, ["'GGUX'"]),
        "ver_big_endian": (4, ">I", 3, ["big-endian"]),
        "ver_max": (4, "<I", 2**32 - 1, ["version 4294967295"]),
        "nt_2p63": (8, "<Q", 2**63, ["9223372036854775808 tensors"]),
        "nt_2p60": (8, "<Q", 2**60, ["1152921504606846976 tensors"]),
        "nt_plus1": (8, "<Q", 273, ["tensor"]),
        "nkv_2p63": (16, "<Q", 2**63, ["9223372036854775808 keys"]),
        "key_len": (24, "<Q", 2**63 - 1, ["a key", "9223372036854775807"]),
        "key_len_wrap": (24, "<Q", 2**64 - 9, ["a key", "18446744073709551607"]),
        "arr_len": (tokens + 8, "<Q", 2**61, ["'tokenizer.ggml.tokens'", "2305843009213693952"]),
        "tok_len": (tokens + 16, "<Q", 2**40, ["'tokenizer.ggml.tokens'", "1099511627776"]),
        "ndims0": (d0, "<I", 0, [embd, "n_dims is 0"]),
        "ndims5": (d0, "<I", 5, [embd, "n_dims is 5"]),
        "ndims_max": (d0, "<I", 2**32 - 1, [embd, "n_dims is 4294967295"]),
        "dim_wrap": (d0 + 12, "<Q", 2**42 + 1, [embd, "of the tensor data"]),
        "dim_neg": (d0 + 4, "<Q", 2**64 - 1, [embd, "dimension 0 is 18446744073709551615"]),
        "type255": (kind, "<I", 255, [embd, "type 255"]),
        "type4": (kind, "<I", 4, [embd, "type 4"]),
        "off_unaligned": (offset, "<Q", 30081025, [norm, "offset 30081025"]),
        "off_end": (offset, "<Q", 2**64 - 32, [norm, "18446744073709551584"]),
        "off_past": (offset, "<Q", len(raw), [norm, f"at {len(raw)}"]),
        "off_overlap": (offset, "<Q", 0, [norm, "overlaps", embd]),
    }


CUTS = [("minus1", -1, "cut"), ("half", 98362432 // 2, "cut"), ("midtok", 200000, "cut"), ("midkv", 3000, "cut"),
        ("hdr8", 8, "cut"), ("empty", 0, "empty")]


def assert_refused(name, copy, words):
    for done in (plumb("inspect", "--model", copy, limits=lower_limits), run(copy, lower_limits)):
        text = done.stderr.decode()
        assert done.returncode == 1, (name, done.returncode, text)
        assert done.stdout == b"" and text.count("\n") == 1, (name, text)
        for word in (str(copy), *words):
            assert word in text, (name, word, text)


def test_damaged_headers_are_refused_by_name(damaged):
    raw, reader, copy = damaged
    cases = lies(reader, raw)
    assert len(cases) == 22
    with open(copy, "r+b") as f:
        for name, (at, form, value, words) in cases.items():
            os.pwrite(f.fileno(), struct.pack(form, value), at)
            assert_refused(name, copy, words)
            os.pwrite(f.fileno(), raw[at:at + 8], at)
    assert plumb("inspect", "--model", copy, limits=lower_limits).returncode == 0
    for name, size, word in CUTS:
        os.truncate(copy, size if size >= 0 else len(raw) + size)
        assert_refused(name, copy, [word])
    copy.write_bytes(raw)


NAN_F32, NAN_F16 = struct.pack("<I", 0x7FC00000), struct.pack("<H", 0x7E00)


@pytest.mark.parametrize("tensor,value,count", [
    ("output_norm.weight", NAN_F32, 576),
    ("output_norm.weight", NAN_F32, 1),
    ("blk.29.ffn_norm.weight", struct.pack("<f", float("inf")), 1),
    ("blk.0.ffn_up.weight", NAN_F16, 1),  # the scale of the first block
    ("token_embd.weight", NAN_F16, 1),
])
def test_weights_that_are_not_numbers_make_no_answer(damaged, tensor, value, count):
    raw, reader, copy = damaged
    at = next(int(t.data_offset) for t in reader.tensors if t.name == tensor)
    with open(copy, "r+b") as f:
        os.pwrite(f.fileno(), value * count, at)
        done = run(copy)
        os.pwrite(f.fileno(), raw[at:at + len(value) * count], at)
    text = done.stderr.decode()
    assert done.returncode == 1 and done.stdout == b"", (done.returncode, done.stdout)
    assert "non-finite" in text or (tensor in text and ("nan" in text or "inf" in text)), text
    assert run(copy).returncode == 0
