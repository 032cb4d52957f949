"""tools/compare-cache with plumb on both sides: the other engine is plumb behind the other's flags and slots."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
sys.path.insert(0, str(ROOT / "tests/api"))
from fetched import fetched_model  # noqa: E402

# Slots are a flush, and nothing at all: what was flushed is found anyway.
OTHER = """#!/usr/bin/env python3
import http.server, os, subprocess, sys, urllib.request
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert a["-np"] == "1" and os.path.isdir(a["--slot-save-path"])
inner = subprocess.Popen([PLUMB, "serve", "--model", a["-m"], "--threads", a["-t"], "--port", "0", "--ctx", a["-c"], "--no-store",
                          "--ssd-cache", a["--slot-save-path"]], stdout=subprocess.PIPE, text=True)
url = inner.stdout.readline().split()[-1]

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def answer(self, path, data):
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as r:
                status, kind, body = r.status, r.headers["Content-Type"], r.read()
        except urllib.error.HTTPError as e:
            status, kind, body = e.code, "application/json", e.read()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(self.path, None)
    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/slots/0?action="):
            self.answer("/admin/cache/flush", b"{}")
        else:
            self.answer(self.path, data)

class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass

import signal
server = Quiet(("127.0.0.1", int(a["--port"])), Handler)
def stop(*_):
    inner.terminate()
    inner.wait(60)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
server.serve_forever()
"""


def run(*args):
    r = subprocess.run([ROOT / "tools/compare-cache", "--plumb", PLUMB, "--model", str(fetched_model("smollm2")), *args],
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return r.stdout


def test_each_step_of_both_engines_is_timed(tmp_path):
    other = tmp_path / "llama-server"
    other.write_text(OTHER.replace("[PLUMB", f"[{PLUMB!r}"))
    other.chmod(0o755)
    out = run("--llama-server", str(other), "--rounds", "1", "--tokens", "600", "--dir", str(tmp_path))
    assert re.search(r"a conversation of (5\d\d|6\d\d) tokens", out)
    for step in ("cold", "memory", "memory, after another", "disk", "device"):
        row = re.search(rf"^{step}  +([\d.]+) \([\d.]+\.\.[\d.]+\) +([\d.]+) +([\d.]+) \([\d.]+\.\.[\d.]+\) +([\d.]+) +([\d.]+)$", out, re.M)
        assert row and float(row[1]) > 0 and float(row[3]) > 0, (step, out)
    assert re.search(r"^memory: 1/[\d.]+ of cold, goal 1/50: (met|MISSED)$", out, re.M) and re.search(r"^disk: 1/[\d.]+ of cold, goal 1/15:", out, re.M)
    assert not [p for p in tmp_path.iterdir() if p != other]


def test_writing_behind_is_measured_in_pairs(tmp_path):
    out = run("--write-behind", "--pairs", "2", "--requests", "2", "--clients", "2", "--words", "80", "--answer", "4", "--dir", str(tmp_path))
    for key in ("engine thread", "all threads", "wall"):
        row = re.search(rf"^{key} +([\d.]+) +([\d.]+) +([\d.]+)$", out, re.M)
        assert row and abs(float(row[1]) / float(row[2]) - float(row[3])) < 0.05 * float(row[3]) + 0.02, (key, out)
    assert re.search(r"^disk thread +[\d.]+$", out, re.M) and re.search(r"^engine thread: [\d.]+ of without, goal 1.02: (met|MISSED)$", out, re.M)
