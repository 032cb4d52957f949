#!/usr/bin/env python3
"""Write quantize.bin: numbers, what the `gguf` package (0.19.0) quantises them to, and the squared error of llama.cpp's K-quants.

usage: make_quantize.py LIBGGML_BASE.so     (llama.cpp's library; needs gguf and numpy)
File: u32 n inputs, u32 n of each; f32 [inputs][n]; then records: type name[16], u32 input, u32 n bytes, f64 error, the bytes.
Types that the package quantises have bytes; Q4_K, Q5_K and Q6_K have n bytes 0 and the error of ggml_quantize_chunk without weights."""
import ctypes
import pathlib
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

OUT = pathlib.Path(__file__).resolve().parent / "quantize.bin"
N = 2048
BYTES = (Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1)
ERROR = (Q.Q4_K, Q.Q5_K, Q.Q6_K)


def inputs():
    rng = np.random.default_rng(7)
    yield rng.standard_normal(N) * 0.05
    yield rng.standard_t(3, N) * 0.02  # heavy tails
    yield np.round(rng.standard_normal(N) * 4) / 8  # ties
    yield np.abs(rng.standard_normal(N))
    yield np.where(np.arange(N) % 96 == 5, 3.0, 0.0)  # one in three blocks, the others are zero
    yield rng.standard_normal(N) * np.repeat(10.0 ** rng.uniform(-4, 1, N // 32), 32)


def by_library(lib, qtype, x):
    out = np.zeros(N // GGML_QUANT_SIZES[qtype][0] * GGML_QUANT_SIZES[qtype][1], np.uint8)
    lib.ggml_quantize_chunk(int(qtype), x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
                            ctypes.c_int64(0), ctypes.c_int64(N // 256), ctypes.c_int64(256), None)
    return out


lib = ctypes.CDLL(sys.argv[1])
lib.ggml_quantize_chunk.restype = ctypes.c_size_t
xs = [x.astype(np.float32) for x in inputs()]
with open(OUT, "wb") as f:
    f.write(struct.pack("<II", len(xs), N))
    for x in xs:
        f.write(x.tobytes())
    for i, x in enumerate(xs):
        for qtype in BYTES:
            data = quantize(x, qtype).view(np.uint8).tobytes()
            f.write(struct.pack("<16sIId", qtype.name.encode(), i, len(data), 0) + data)
        for qtype in ERROR:
            y = dequantize(by_library(lib, qtype, x), qtype).astype(np.float64)
            f.write(struct.pack("<16sIId", qtype.name.encode(), i, 0, float(((y - x) ** 2).sum())))
print(f"{OUT.name}: {OUT.stat().st_size} bytes")
