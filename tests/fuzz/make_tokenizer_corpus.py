#!/usr/bin/env python3
"""Write the first inputs of fuzz_tokenizer into tests/fuzz/corpus/tokenizer: texts for each kind, each pre-tokenizer, own vocabularies."""

import pathlib
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import fuzz_text  # noqa: E402

KINDS = ("bpe", "bpe_spm", "spm", "wpm", "ugm")
N_PRES = 30
MARKS = ["<|im_end|>", "<tool>", "<tool>!", "<s>", "<|im|>", "<|im_start|>"]


def head(kind, pre, flags, spec_flags, spans=b"\0"):
    return bytes([kind, pre, flags, spec_flags] if kind == 0 else [kind, 0, flags, spec_flags]) + spans


def inputs(r):
    for kind, name in enumerate(KINDS):
        for i in range(4):
            spans = bytes([2] + [r.randrange(20) for _ in range(4)])
            yield f"{name}_{i}", head(kind, r.randrange(N_PRES), 7, r.randrange(128), spans) + fuzz_text.text(r, MARKS)[:200]
        pieces = [b"a", b"b", b"ab", "▁".encode(), "▁a".encode(), b"<0x41>", b"<s>"]
        vocab = bytes([len(pieces)]) + b"".join(bytes([t, len(p)]) + p for t, p in zip([0, 0, 0, 0, 0, 5, 2], pieces))
        yield f"own_{name}", head(kind, 1, 7, 0x80) + vocab + bytes([1, 3]) + b"a b" + bytes([0, 1]) + "ab aé<s>".encode()
    for pre in range(N_PRES):
        at = r.randrange(1500)
        yield f"pre_{pre:02}", head(0, pre, 1, 0) + fuzz_text.SCRIPTS.encode()[at:at + 300]


def main():
    out = HERE / "corpus/tokenizer"
    out.mkdir(parents=True, exist_ok=True)
    for name, data in inputs(random.Random(1)):
        (out / name).write_bytes(data)


if __name__ == "__main__":
    main()
