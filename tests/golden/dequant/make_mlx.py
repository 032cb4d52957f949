#!/usr/bin/env python3
"""Write mlx.bin: matrices as mlx.core.quantize packs them with what mlx.core.dequantize makes of them, and every code of the two
8-bit floats with its value as ml_dtypes has it.

usage: make_mlx.py      (needs mlx, ml_dtypes and numpy)
Record: u32 bits (2..8: affine; 43, 52: E4M3, E5M2), cols (of a scale), rows, in, type of scales (0 f16, 1 bf16, 2 f32), n bytes each of
codes, scales and biases; those; f32 [rows][in]. E4M3 and E5M2: one row, no scales, codes that are not finite left out."""
import pathlib
import struct

import ml_dtypes
import mlx.core as mx
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "mlx.bin"
TYPES = {0: mx.float16, 1: mx.bfloat16, 2: mx.float32}
ROWS, IN = 3, 256


def raw(a):
    return np.array(a.view(mx.uint8)).tobytes()


def record(bits, cols, rows, n_in, kind, codes, scales, biases, y):
    head = struct.pack("<8I", bits, cols, rows, n_in, kind, len(codes), len(scales), len(biases))
    return head + codes + scales + biases + y.astype("<f4").tobytes()


with open(OUT, "wb") as out:
    rng = np.random.default_rng(5)
    for bits in (2, 3, 4, 5, 6, 8):
        for cols in (32, 64, 128):
            for kind, dtype in TYPES.items():
                w = mx.array(rng.standard_normal((ROWS, IN)).astype(np.float32)).astype(dtype)
                q, scales, biases = mx.quantize(w, group_size=cols, bits=bits)
                # the formula in f32: what dequantize rounds to the scales' type is not what a kernel computes with
                y = mx.dequantize(q, scales.astype(mx.float32), biases.astype(mx.float32), group_size=cols, bits=bits)
                out.write(record(bits, cols, ROWS, IN, kind, raw(q), raw(scales), raw(biases), np.array(y)))
    for bits, dtype in ((43, ml_dtypes.float8_e4m3fn), (52, ml_dtypes.float8_e5m2)):
        codes = np.arange(256, dtype=np.uint8)
        y = codes.view(dtype).astype(np.float32)
        keep = np.isfinite(y)
        out.write(record(bits, 0, 1, int(keep.sum()), 0, codes[keep].tobytes(), b"", b"", y[keep]))
print(f"{OUT.name}: {OUT.stat().st_size} bytes")
