"""tools/ask against a server that streams what it is told, good and broken."""

import http.server
import json
import pathlib
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def chunk(content=None, finish=None):
    delta = {} if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}


@pytest.fixture
def server():
    state = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            state["body"] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(state.get("status", 200))
            self.end_headers()
            for event in state["events"]:
                data = event if isinstance(event, str) else json.dumps(event)
                self.wfile.write(f": note\n\ndata: {data}\n\n".encode())

        def log_message(self, *args):
            pass

    httpd = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()

    def ask(events, status=200):
        state.update(events=events, status=status)
        r = subprocess.run(["python3", str(ROOT / "tools/ask"), f"http://127.0.0.1:{httpd.server_port}", "Why?", "7"],
                           capture_output=True, text=True, timeout=60)
        return r, state["body"]

    yield ask
    httpd.shutdown()
    httpd.server_close()


def test_an_answer(server):
    r, body = server([chunk(""), chunk("Bécau"), chunk("se."), chunk(None, "stop"), USAGE, "[DONE]"])
    assert r.returncode == 0, r.stderr
    assert r.stdout.startswith("Bécause.\n\n3 tokens, ") and "tokens/s" in r.stdout and "5 prompt tokens" in r.stdout
    assert body["stream"] and body["max_tokens"] == 7 and body["messages"] == [{"role": "user", "content": "Why?"}]


@pytest.mark.parametrize("events, status, text", [
    ([chunk("Be")], 200, "ended early"),
    ([], 200, "ended early"),
    ([chunk("Be"), {"error": {"message": "the row failed"}}], 200, "the row failed"),
    (['{"error": {"message": "no"}}'], 503, "503"),
])
def test_a_broken_answer_fails(server, events, status, text):
    r, _ = server(events, status)
    assert r.returncode == 1 and text in r.stderr
