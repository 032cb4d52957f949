"""What the tools that measure plumb share: where models are, programs and servers that are measured, statistics, tables."""

import asyncio
import contextlib
import csv
import json
import math
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

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


# --- servers ---

WORDS = "river stone copper window garden harbor meadow winter engine paper silver market candle bridge forest island mirror valley".split()
READY_S = 180


def prose(seed, words):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(words))


class Server:
    """One server process on a free port; ready when /health says so."""

    def __init__(self, command):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).read()
                return self
            time.sleep(0.1)
        self.__exit__()
        fail(self.process.args, "did not get ready")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)

    def post(self, path, body):
        """The reply's status and JSON."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode(errors="replace")


async def stream(port, messages, tokens, timeout, times, logprobs=False):
    """messages may be a user's text. Fills times with those of the chunks with text, from the start of the request; with logprobs, with
    (time, tokens in the chunk). Returns the usage."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": tokens, "temperature": 0,
                       "ignore_eos": True, "logprobs": logprobs, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()
    usage, start = None, time.perf_counter()
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        status = await reader.readline()
        if b" 200 " not in status:
            sys.exit(f"{status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices") or []:
                now, shown = time.perf_counter() - start, (choice.get("logprobs") or {}).get("content")
                if logprobs and shown:
                    times.append((now, len(shown)))
                elif not logprobs and (choice.get("delta") or {}).get("content"):
                    times.append(now)
        writer.close()
    if not usage:
        sys.exit("the stream ended without usage")
    return usage


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
