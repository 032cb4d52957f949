#!/usr/bin/env python3
"""How far two engines are from the oracle and from each other: compare.py V ORACLE A B [NEXT_IDS]

Each file: raw float32 logits [n][V] of the same positions (../make_oracle.py --logits, logits_plumb, logits_llama). NEXT_IDS: the
ids that really follow, for perplexity. Prints for A and B: mean KL(oracle || engine), root mean square of the difference of the
oracle's 1000 best logits after both are centred, greedy choices that are not the oracle's; then each position where A's and B's
choices differ, with the gaps of all three."""

import sys

import numpy as np

NEAR = 0.1


def log_softmax(x):
    m = x.max()
    return x - np.float32(m + np.log(np.exp(x - m).sum(dtype=np.float64)))


def gap(row):
    a, b = np.partition(row, -2)[-2:]
    return b - a


def main():
    v = int(sys.argv[1])
    files = [np.memmap(f, dtype=np.float32, mode="r").reshape(-1, v) for f in sys.argv[2:5]]
    assert len({f.shape for f in files}) == 1, [f.shape for f in files]
    n = len(files[0])
    after = np.array(open(sys.argv[5]).read().split(), dtype=int) if len(sys.argv) > 5 else None
    nll, kl, square, best, gaps = np.zeros((3, n)), np.zeros((3, n)), np.zeros((3, n)), np.zeros((3, n), int), np.zeros((3, n))
    for i in range(n):
        rows = [np.array(f[i]) for f in files]
        logp = [log_softmax(r) for r in rows]
        p = np.exp(logp[0])
        top = np.argpartition(-rows[0], 1000)[:1000]
        for e in range(3):
            kl[e, i] = (p * (logp[0] - logp[e])).sum(dtype=np.float64)
            d = rows[e][top] - rows[0][top]
            square[e, i] = ((d - d.mean()) ** 2).mean()
            best[e, i] = rows[e].argmax()
            gaps[e, i] = gap(rows[e])
            if after is not None:
                nll[e, i] = -logp[e][after[i]]
    far = gaps[0] >= NEAR
    print(f"{n} positions; the oracle's two best are nearer than {NEAR} at {n - far.sum()}")
    for e, name in ((0, "oracle"), (1, "A"), (2, "B")):
        wrong = best[e] != best[0]
        print(f"{name}: mean KL {kl[e].mean():.6f} (median {np.median(kl[e]):.6f}, worst {kl[e].max():.4f}), "
              f"rms {square[e].mean() ** 0.5:.4f}, "
              f"other choices than the oracle {wrong.sum()}, of them at its gap >= {NEAR}: {(wrong & far).sum()} "
              f"(largest {gaps[0][wrong].max() if wrong.any() else 0:.3f})"
              + (f", perplexity {np.exp(nll[e].mean()):.4f}" if after is not None else ""))
    if after is not None:
        d = nll[1] - nll[2]
        print(f"A - B in nll: {d.mean():.5f} +- {d.std() / n ** 0.5:.5f}; A - oracle {(nll[1] - nll[0]).mean():.5f} "
              f"+- {(nll[1] - nll[0]).std() / n ** 0.5:.5f}; B - oracle {(nll[2] - nll[0]).mean():.5f} "
              f"+- {(nll[2] - nll[0]).std() / n ** 0.5:.5f}")
    b = kl[1] - kl[2]
    print(f"KL A - B: {b.mean():.6f} +- {b.std() / n ** 0.5:.6f}")
    print("A and B differ at (position: choices of oracle, A, B; gaps of oracle, A, B):")
    for i in np.nonzero(best[1] != best[2])[0]:
        print(f"  {i}: {best[0, i]} {best[1, i]} {best[2, i]}; {gaps[0, i]:.3f} {gaps[1, i]:.3f} {gaps[2, i]:.3f}")


if __name__ == "__main__":
    main()
