"""Guesses of a draft model through the server: the same answers, fewer steps; what is refused at the start."""

import subprocess

import pytest
from fetched import fetched_model
from serving import PLUMB, Server

PROMPT = [{"role": "user", "content": "Write a Python function that adds two numbers, then one that multiplies them."}]
KINDS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 3, "top_p": 0.9},
    "penalised": {"temperature": 0.5, "seed": 5, "frequency_penalty": 0.4, "logit_bias": {"11": -5}},
    "scored": {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    "stopped": {"temperature": 0, "stop": ["return"]},
    "several": {"temperature": 0.9, "seed": 9, "n": 2},
}


@pytest.fixture(scope="module")
def path():
    return str(fetched_model("smollm2"))


@pytest.fixture(scope="module")
def server(path):
    """The model guesses for itself."""
    with Server([PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "2048", "--no-store", "--speculate", f"draft:{path}"]) as s:
        yield s


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_the_same(server, kind):
    got = {}
    for on in (True, False):
        status, got[on] = server.chat(PROMPT, max_tokens=48, speculation=on, **KINDS[kind])
        assert status == 200, got[on]
    assert got[True]["choices"] == got[False]["choices"]
    assert got[True]["usage"]["completion_tokens"] == got[False]["usage"]["completion_tokens"]
    assert "speculation" not in got[False]["usage"]


EDIT = [{"role": "user", "content": "Repeat: alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"}]


@pytest.mark.parametrize("form", [str, lambda text: [{"type": "text", "text": text}]])
def test_a_prediction_changes_nothing_but_the_number_of_steps(server, form):
    fields = {"max_tokens": 60, "temperature": 0, "cache_salt": form.__name__}
    status, plain = server.chat(EDIT, speculation=False, **fields)
    assert status == 200, plain
    text = plain["choices"][0]["message"]["content"]
    status, r = server.chat(EDIT, prediction={"type": "content", "content": form(text)}, **fields)
    assert status == 200, r
    assert r["choices"] == plain["choices"]


@pytest.mark.parametrize("value, says", [
    ("text", "prediction: must be an object of type 'content'"),
    ({"type": "content"}, "prediction.content: must be a string"),
    ({"type": "content", "content": [{"type": "text"}]}, "prediction.content: must be a string"),
    ({"type": "other", "content": "x"}, "prediction: must be an object of type 'content'"),
])
def test_a_bad_prediction_is_refused(server, value, says):
    status, r = server.chat(EDIT, max_tokens=4, prediction=value)
    assert status == 400 and r["error"]["message"].startswith(says) and r["error"]["param"] == "prediction", r


@pytest.mark.parametrize("how, says", [
    ("draft:", "is not auto, off, ngram or draft:MODEL"),
    ("fast", "'fast' is not auto, off, ngram or draft:MODEL"),
    ("draft:/nowhere/model.gguf", "/nowhere/model.gguf"),
])
def test_what_cannot_guess_is_refused(path, how, says):
    r = subprocess.run([PLUMB, "serve", "--model", path, "--port", "0", "--no-store", "--speculate", how], capture_output=True, text=True, timeout=120)
    assert r.returncode != 0 and says in r.stderr, r.stderr


def test_another_vocabulary_is_refused_with_the_first_token_that_differs(path):
    other = str(fetched_model("gemma3-270m"))
    r = subprocess.run([PLUMB, "serve", "--model", path, "--port", "0", "--no-store", "--speculate", f"draft:{other}"], capture_output=True, text=True, timeout=120)
    assert r.returncode != 0
    assert "--speculate draft:" in r.stderr and "token 0 is" in r.stderr and "it needs the same vocabulary" in r.stderr, r.stderr
