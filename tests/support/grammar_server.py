"""tests/support/serve_grammar behind a class: questions and answers as dicts."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("SERVE_GRAMMAR", ROOT / "build" / os.environ.get("V", "release") / "tests/support/serve_grammar")
GOLDEN = ROOT / "tests/golden/grammar"


class GrammarServer:
    def __init__(self, model=None):
        self.process = subprocess.Popen([str(PROGRAM)] + ([str(model)] if model else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, encoding="utf-8")
        self.head = self.read() if model else None

    def read(self):
        line = self.process.stdout.readline()
        assert line, f"serve_grammar has ended with status {self.process.wait()}"
        return json.loads(line)

    def ask(self, source, kind="schema", **more):
        text = source if isinstance(source, str) and kind != "choice" else json.dumps(source)
        self.process.stdin.write(json.dumps({"kind": kind, "source": text, **more}) + "\n")
        self.process.stdin.flush()
        return self.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def tools():
    return json.loads((GOLDEN / "tools.json").read_text())
