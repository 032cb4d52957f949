#!/usr/bin/env python3
"""Write mlx.bin: numbers and what mlx.core.quantize (0.32.4, on a CPU) makes of them.

usage: make_mlx_quantize.py      (needs mlx and numpy)
Record: u32 bits, group, n, type (0 f16, 1 bf16, 2 f32), n bytes each of codes, scales and biases; f32 [n], values of the type; those."""
import pathlib
import struct

import mlx.core as mx
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "mlx.bin"
TYPES = (mx.float16, mx.bfloat16, mx.float32)
N = 256


def raw(a):
    return np.array(a.view(mx.uint8)).tobytes()


def inputs(rng):
    yield rng.standard_normal(N) * 0.05
    yield np.round(rng.standard_normal(N) * 3) / 4
    yield np.where(np.arange(N) < 128, 0.0, np.abs(rng.standard_normal(N)))


with open(OUT, "wb") as f:
    rng = np.random.default_rng(11)
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for kind, dtype in enumerate(TYPES):
                x = list(inputs(rng))[(bits + group // 32 + kind) % 3]
                w = mx.array(x.astype(np.float32)).astype(dtype).reshape(1, N)
                parts = [raw(a) for a in mx.quantize(w, group_size=group, bits=bits)]
                f.write(struct.pack("<7I", bits, group, N, kind, *(len(p) for p in parts)))
                f.write(np.array(w.astype(mx.float32)).astype("<f4").tobytes() + b"".join(parts))
print(f"{OUT.name}: {OUT.stat().st_size} bytes")
