#!/usr/bin/env python3
"""Write kvq.bin: groups of the 8-bit and 4-bit cache types by a numpy statement of src/tensor/kvq.h.

  make_kvq.py           needs numpy
  make_kvq.py --mlx     also needs mlx: compares errors, scales and biases with mlx.core.quantize and writes nothing

A record, little-endian: u32 n, u32 top, u32 ok, u32 whether it has a base, u32 whether it is relative to it, f32 x[64],
f16 base[64], f16 scale, f16 bias, u8 codes[64], f32 value[64]; 0 behind n.
"""
import os
import sys

import numpy as np

F = np.float32


def quantise(x, top):
    """(ok, scale, bias, codes) of a group; scale and bias f16."""
    zero = (np.float16(0), np.float16(0), np.zeros(len(x), np.uint8))
    if not np.isfinite(x).all():
        return False, *zero
    lo, hi = x.min(), x.max()
    edge, other = (lo, hi) if abs(lo) > abs(hi) else (hi, lo)
    bias = np.float16(edge)
    if not np.isfinite(bias):
        return False, *zero
    b = F(bias)
    if b == 0:
        return True, *zero
    r = F(edge) / (F(other - edge) / F(top))
    if not abs(r) < F(2.0**20):
        return True, np.float16(0), bias, zero[2]
    scale = np.float16(b / np.rint(r))
    if scale == 0:
        return True, np.float16(0), bias, zero[2]
    codes = np.clip((x - b) * (F(1) / F(scale)), F(0), F(top))
    return True, scale, bias, np.rint(codes).astype(np.uint8)


def values(scale, bias, codes):
    """Exact in double (8 by 11 bits, plus 11 bits), then one rounding: a fused multiply-add."""
    return (codes.astype(np.float64) * np.float64(scale) + np.float64(bias)).astype(F)


def quantise_key(x, base):
    """(relative, the group to quantise)"""
    if base is None or not np.isfinite(x).all():
        return False, x
    y = x - base.astype(F)
    return (True, y) if F(y.max() - y.min()) < F(x.max() - x.min()) else (False, x)


def bases(rng, x):
    """A base of no use, one near x, and none."""
    with_noise = x + rng.standard_normal(len(x)) * np.abs(x).max() / 50
    far = [np.float16(y) for y in (rng.standard_normal(len(x)) * 30, with_noise)]
    return [np.where(np.isfinite(b).all(), b, np.float16(0)) for b in far] + [None]


def groups(rng):
    """Groups of every kind: [(x)]"""
    out = []
    for n in (1, 33, 64):
        for scale in (1, 1e-2, 1e-4, 1e-6, 1e-8, 300, 2e4):
            out.append(rng.standard_normal(n) * scale)
        out.append(rng.standard_normal(n) + 20)
        out.append(np.where(np.arange(n) == 5, -90, rng.standard_normal(n)))
        out.append(np.where(np.arange(n) % 9 == 5, 400, rng.standard_normal(n)))
        out.append(np.full(n, 3.14159))
        out.append(np.full(n, -0.0))
        out.append(3 + rng.integers(0, 2, n) * 2.0**-22)
        out.append(rng.integers(-15, 16, n) / 2)
        out.append(rng.standard_normal(n) * 2.0**-130)
        out.append(np.where(rng.integers(0, 2, n) > 0, 65504, -65504))
        for bad in (np.inf, -np.inf, np.nan, 65520, 3e38):
            out.append(np.where(np.arange(n) == n // 2, bad, rng.standard_normal(n)))
    return [x.astype(F) for x in out]


def record(x, base, top):
    relative, y = quantise_key(x, base)
    ok, scale, bias, codes = quantise(y, top)
    relative = relative and ok
    value = values(scale, bias, codes)
    if relative:
        value = (value.astype(np.float64) + base.astype(np.float64)).astype(F)
    n, pad = len(x), 64 - len(x)
    return b"".join([
        np.array([n, top, ok, base is not None, relative], "<u4").tobytes(),
        np.pad(x, (0, pad)).astype("<f4").tobytes(),
        np.pad(np.zeros(n) if base is None else base, (0, pad)).astype("<f2").tobytes(),
        np.array([scale, bias], "<f2").tobytes(),
        np.pad(codes, (0, pad)).tobytes(),
        np.pad(value, (0, pad)).astype("<f4").tobytes(),
    ])


def compare_with_mlx():
    import mlx.core as mx

    rng = np.random.default_rng(2)
    for name, x in (("normal", rng.standard_normal((2000, 64))),
                    ("one far channel", np.where(np.arange(64) == 5, 90, rng.standard_normal((2000, 64)))),
                    ("offset", rng.standard_normal((2000, 64)) + 20)):
        x = x.astype(F)
        for bits in (8, 4):
            w, s, b = mx.quantize(mx.array(x), group_size=64, bits=bits)
            theirs = np.array(mx.dequantize(w, s, b, group_size=64, bits=bits))
            ours = [quantise(g, 2**bits - 1) for g in x]
            mine = np.stack([values(*q[1:]) for q in ours])
            rms = [np.sqrt(((y - x).astype(np.float64)**2).mean()) for y in (mine, theirs)]
            far = [np.abs(np.array([F(q[i]) for q in ours]) / np.array(v)[:, 0] - 1).max() for i, v in ((1, s), (2, b))]
            print(f"{name}, {bits} bits: error {rms[0]:.6f}, mlx {rms[1]:.6f}; "
                  f"largest relative difference of scales {far[0]:.1e}, of biases {far[1]:.1e}")


def main():
    if "--mlx" in sys.argv:
        compare_with_mlx()
        return
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"), open(os.path.join(os.path.dirname(__file__), "kvq.bin"), "wb") as f:
        for x in groups(rng):
            for base in bases(rng, x):
                for top in (255, 15):
                    f.write(record(x, base, top))


if __name__ == "__main__":
    main()
