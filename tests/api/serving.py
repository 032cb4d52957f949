"""Start and talk to a server under test: the scripted one (serve_script) or the real program. Everything is loopback and bounded."""

import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / os.environ.get("V", "release")
PLUMB = os.environ.get("PLUMB", str(BUILD / "plumb"))
SERVE_SCRIPT = os.environ.get("SERVE_SCRIPT", str(BUILD / "tests/support/serve_script"))
SLOW = float(os.environ.get("SLOW", "1"))  # sanitizers: time bounds times this
HOST = "127.0.0.1"


class Server:
    """A running server; `with` stops it and checks its exit code."""

    def __init__(self, args, ready=True, start_timeout=120, env=None):
        env = {**os.environ, **env} if env else None
        self.proc = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.port = None
        self.lines = []
        end = time.time() + start_timeout
        for line in self.proc.stdout:
            self.lines.append(line.rstrip())
            m = re.search(r"https?://\S+:(\d+)", line)
            if m:
                self.port = int(m[1])
            if self.port and (not ready or not line.startswith("listening")):
                break
            assert time.time() < end, "the server did not start"
        if not self.port:
            raise AssertionError(f"{args[0]} did not start: {self.proc.communicate(timeout=20)[1]}")
        self.url = f"http://{HOST}:{self.port}"
        self.checks_exit = True

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop(check=kind is None and self.checks_exit)

    def stop(self, check=True, timeout=60):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        try:
            _, err = self.proc.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            _, err = self.proc.communicate()
            raise AssertionError(f"the server did not stop: {err}")
        if check:
            assert self.proc.returncode == 0, (self.proc.returncode, err)
        return err

    def connect(self, timeout=20 * max(1, SLOW / 2)):
        s = socket.create_connection((HOST, self.port), timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def call(self, path, body=None, method=None, headers=None, timeout=60):
        """(status, headers, JSON or bytes)"""
        with self.connect(timeout) as s:
            s.sendall(request(path, body, method, headers))
            return Reply(s).read()

    def post(self, path, body, **kwargs):
        status, _, value = self.call(path, body, **kwargs)
        return status, value

    def chat(self, content, **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": messages, **fields})

    def complete(self, prompt, **fields):
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def events(self, path, body, headers=None):
        """The data of a stream's events; each strict UTF-8 and strict JSON, the last one "[DONE]"."""
        with self.connect() as s:
            s.sendall(request(path, {**body, "stream": True}, headers=headers))
            status, got, value = Reply(s).read()
        assert status == 200, value
        assert got["content-type"].startswith("text/event-stream")
        return parse_events(value)

    def chat_stream(self, content, **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.events("/v1/chat/completions", {"messages": messages, **fields})

    def stats(self):
        return self.call("/stats")[2]

    def wait_stats(self, seconds=5, **want):
        end = time.time() + seconds * SLOW
        while True:
            st = self.stats()
            if all(st[k] == v for k, v in want.items()):
                return st
            assert time.time() < end, (want, st)
            time.sleep(0.02)

    def wait_at_least(self, name, n, seconds=5):
        end = time.time() + seconds * SLOW
        while self.stats()[name] < n:
            assert time.time() < end, (name, n, self.stats())
            time.sleep(0.01)


def script(*flags, **kwargs):
    return Server([SERVE_SCRIPT, *flags], **kwargs)


def request(path, body=None, method=None, headers=None, version="1.1"):
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    h = {"Host": "localhost", "Content-Type": "application/json"}
    if body is not None:
        h["Content-Length"] = str(len(data))
    h.update(headers or {})
    head = f"{method or ('GET' if body is None else 'POST')} {path} HTTP/{version}\r\n"
    head += "".join(f"{k}: {v}\r\n" for k, v in h.items() if v is not None)
    return head.encode() + b"\r\n" + data


class Reply:
    """Reads replies off one socket, one after the other."""

    def __init__(self, sock):
        self.sock = sock
        self.data = b""

    def _more(self):
        x = self.sock.recv(65536)
        if not x:
            raise EOFError(self.data)
        self.data += x

    def _line(self):
        while b"\r\n" not in self.data:
            self._more()
        line, self.data = self.data.split(b"\r\n", 1)
        return line.decode()

    def _bytes(self, n):
        while len(self.data) < n:
            self._more()
        out, self.data = self.data[:n], self.data[n:]
        return out

    def head(self):
        status = int(self._line().split()[1])
        headers = {}
        while line := self._line():
            k, v = line.split(":", 1)
            headers[k.lower()] = v.strip()
        return status, headers

    def read(self, no_body=False):
        status, headers = self.head()
        if status == 100:
            status, headers = self.head()
        if no_body or status == 204:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while n := int(self._line(), 16):
                body += self._bytes(n)
                assert self._line() == ""
            assert self._line() == ""
        elif "content-length" in headers:
            body = self._bytes(int(headers["content-length"]))
        else:
            body = b""
            try:
                while True:
                    self._more()
            except EOFError:
                body, self.data = self.data, b""
        if headers.get("content-type", "").startswith("application/json"):
            return status, headers, strict_json(body)
        return status, headers, body


def strict_json(data):
    def no_constant(x):
        raise ValueError(f"{x} is not JSON")

    return json.loads(data.decode("utf-8") if isinstance(data, bytes) else data, parse_constant=no_constant)


def parse_events(data):
    out = []
    for block in data.decode("utf-8").split("\n\n"):
        if block:
            assert block.startswith("data: ") and "\n" not in block, block
            out.append(block[6:] if block == "data: [DONE]" else strict_json(block[6:]))
    assert out[-1] == "[DONE]"
    return out


def text_of(events):
    out = ""
    for e in events:
        if e != "[DONE]":
            for c in e["choices"]:
                out += (c["delta"].get("content") or "") if "delta" in c else c["text"]
    return out


def reset(sock):
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
