#!/usr/bin/env python3
"""Write dequant.bin: blocks of every type and their values as the `gguf` package (0.19.0) decodes them.

usage: make_dequant.py MODEL.gguf...   (the four development models, in the order of tools/fetch-models)
Each type has blocks of random bytes (scales of any bits: denormal, negative, infinite, NaN) and blocks with ordinary scales;
each type of each model has a block from a third of its first tensor and the last block of its last.
Record: type name[16], source[64], u32 n elements, u32 n bytes, the bytes, f32 [n]."""
import os
import struct
import sys
import warnings

import numpy as np
from gguf import GGUFReader, GGMLQuantizationType as Q
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

HERE = os.path.dirname(os.path.abspath(__file__))
# Where a block's f16 scales stand (for the blocks with ordinary scales).
SCALES = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.Q2_K: [80, 82], Q.Q3_K: [108],
          Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.IQ4_NL: [0], Q.IQ4_XS: [0], Q.MXFP4: []}
PLAIN = {Q.F32: "<f4", Q.F16: "<f2", Q.BF16: None, Q.I8: "i1", Q.I16: "<i2", Q.I32: "<i4", Q.I64: "<i8", Q.F64: "<f8"}


def values(qtype, data):
    if PLAIN.get(qtype):
        return np.frombuffer(data.tobytes(), PLAIN[qtype]).astype(np.float32)
    return dequantize(data, qtype).astype(np.float32).reshape(-1)


def record(qtype, source, data):
    data = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1)
    y = values(qtype, data)
    return struct.pack("<16s64sII", qtype.name.encode(), source.encode(), y.size, data.size) + data.tobytes() + y.tobytes()


def random_records(rng, qtype):
    n_bytes = GGML_QUANT_SIZES[qtype][1] * (40 if qtype in PLAIN else 3)
    yield record(qtype, "random bytes", rng.integers(0, 256, n_bytes, dtype=np.uint8))
    if qtype in SCALES:
        block = GGML_QUANT_SIZES[qtype][1]
        data = rng.integers(0, 256, (3, block), dtype=np.uint8)
        for at in SCALES[qtype]:
            scale = rng.normal(0, 0.01, 3).astype(np.float16)
            data[:, at:at + 2] = scale.view(np.uint8).reshape(3, 2)
        yield record(qtype, "random quants", data)


def model_records(path):
    name, seen = os.path.basename(path).removesuffix(".gguf"), {}
    for t in GGUFReader(path).tensors:
        seen.setdefault(t.tensor_type, []).append(t)
    for qtype, tensors in seen.items():
        block = GGML_QUANT_SIZES[qtype][1] * (32 if qtype in PLAIN else 1)
        for t, third in ((tensors[0], 1), (tensors[-1], 3)):
            raw = np.ascontiguousarray(t.data).view(np.uint8).reshape(-1)
            at = (raw.size // block * third // 3 - (third == 3)) * block
            yield record(qtype, f"{name} {t.name}", raw[at:at + block])


def main():
    rng = np.random.default_rng(20)
    warnings.simplefilter("ignore")  # infinities and NaN are wanted
    with open(os.path.join(HERE, "dequant.bin"), "wb") as out:
        for qtype in (*PLAIN, *SCALES):
            for r in random_records(rng, qtype):
                out.write(r)
        for path in sys.argv[1:]:
            for r in model_records(path):
                out.write(r)


if __name__ == "__main__":
    main()
