"""What the tools that measure plumb share: where models are, programs that are measured, statistics, tables."""

import csv
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT = 1800
INTERVAL_ROUNDS = 20  # fewer pairs do not make an interval worth quoting


def model_path(name):
    if "/" in name or name.endswith(".gguf"):
        return name
    cache = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return f"{cache}/plumb/models/{name}.gguf"


# --- programs ---


def fail(cmd, why):
    sys.exit(f"{pathlib.PurePath(sys.argv[0]).name}: {' '.join(cmd)}: {why}")


def run(cmd):
    r = subprocess.run(cmd, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    if r.returncode:
        fail(cmd, f"exit status {r.returncode}\n{r.stderr[-2000:]}")
    return r.stdout


def wall_seconds(cmd):
    """From the start of the program to its end."""
    start = time.perf_counter()
    run(cmd)
    return time.perf_counter() - start


class Paced:
    """`plumb bench --paced`: loaded once, asleep between its rounds, so that several programs can take turns."""

    def __init__(self, cmd):
        self.cmd = [*cmd, "--paced"]
        self.process = subprocess.Popen(self.cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.head = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            fail(self.cmd, f"exit status {self.process.wait()}")
        return json.loads(line)

    def round(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            fail(self.cmd, f"exit status {self.process.wait()}")
        return self.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)


# --- statistics ---


def spread(values):
    """(least, greatest) over the median."""
    m = statistics.median(values)
    return min(values) / m, max(values) / m


def median_interval(values):
    """The narrowest pair of order statistics that holds the median of what the values are drawn from with at least 95 %, whatever their
    distribution (the sign test's interval). None for fewer than 6 values: not even the extremes do."""
    v, n = sorted(values), len(values)
    below, k = 0.0, 0  # below: the chance that fewer than k + 1 of n lie under the median
    while k < n // 2 and below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    return (v[k - 1], v[n - k]) if k else None


def ratio_text(ours, theirs, digits=2):
    """'1.81', or with enough pairs '1.81 (pairs 1.80, 95 % 1.77..1.84)'. Values of one index are of one round."""
    text = f"{statistics.median(ours) / statistics.median(theirs):.{digits}f}"
    pairs = [a / b for a, b in zip(ours, theirs)]
    if len(pairs) >= INTERVAL_ROUNDS:
        low, high = median_interval(pairs)
        text += f" (pairs {statistics.median(pairs):.{digits}f}, 95 % {low:.{digits}f}..{high:.{digits}f})"
    return text


# --- tables ---


def append_csv(path, header, rows):
    is_new = not os.path.exists(path)
    with open(path, "a", newline="", encoding="utf-8") as f:
        w = csv.writer(f)
        if is_new:
            w.writerow(header)
        w.writerows(rows)


def table(rows):
    """Rows of cells as lines: the first column to the left, the others to the right."""
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip()
                     for r in rows)
