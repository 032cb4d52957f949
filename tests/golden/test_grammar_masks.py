"""Masks over the vocabularies of real models are what stepping every token by itself says, along random walks of tokens; steps back are
tried at every token. Tokens that add nothing to a text (control tokens) are never allowed."""

import json
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from grammar_server import GOLDEN, GrammarServer, tools  # noqa: E402

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "plumb/models"
STATES = int(os.environ.get("MASK_STATES", "12"))

GRAMMARS = [
    ("object", ""),
    ("schema", json.dumps({"type": "string", "maxLength": 40})),
    ("schema", json.dumps({"type": "string", "pattern": "^[^<>]{1,3000}$"})),
    ("schema", json.dumps({"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 3000}, "maxItems": 5000})),
    ("schema", json.dumps({"type": "array", "items": {"type": "number", "minimum": -5, "exclusiveMaximum": 1e6}})),
    ("regex", r"(?s).{0,60}"),
    ("regex", r"(日|é|😀|[^\x00-\x{10FF}])*"),
    ("gbnf", (GOLDEN / "gbnf/record.gbnf").read_text()),
    ("gbnf", (GOLDEN / "gbnf/letter.gbnf").read_text()),
    ("choice", json.dumps([f"choice {i}" for i in range(500)])),
    ("tags", json.dumps({"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f>"]})),
]


@pytest.mark.parametrize("model", ["smollm2", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_masks_are_what_every_token_says(model):
    path = CACHE / f"{model}.gguf"
    if not path.exists():
        pytest.skip(f"model-not-fetched: {model}")
    states = STATES if model == "smollm2" else max(2, STATES // 4)
    with GrammarServer(path) as server:
        for i, (kind, source) in enumerate(GRAMMARS):
            for any_order in (False, True) if kind == "object" else (False,):
                answer = server.ask(source if kind != "choice" else json.loads(source), kind=kind, brute=states, seed=i + 1, any_order=any_order)
                assert answer.get("brute") == "", (kind, source[:80], answer.get("brute"), answer.get("error"))
        for i, tool in enumerate(tools()[::20]):
            answer = server.ask(json.dumps(tool["parameters"]), brute=states, seed=i + 1, any_order=i % 2 == 1)
            assert answer.get("brute") == "", (tool["name"], answer)
