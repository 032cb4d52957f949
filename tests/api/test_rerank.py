"""/v1/rerank and /v1/score: forms and errors over the scripted engine, the numbers over a real model."""

import math

import pytest
from fetched import fetched_model
from serving import PLUMB, Server, script

PROMPT = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
          'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n'
          "<|im_start|>assistant\n<think>\n\n</think>\n\n")
TASK = "Given a web search query, retrieve relevant passages that answer the query"


@pytest.fixture(scope="module")
def server():
    with script("--rows=4", "--ctx=3000") as s:
        yield s


@pytest.fixture(scope="module")
def real():
    fetched_model("smollm2")
    with Server([PLUMB, "serve", "--model", "smollm2", "--port", "0"]) as s:
        yield s


def rerank(server, **body):
    status, value = server.post("/v1/rerank", {"query": "q", "documents": ["a", "b"], **body})
    assert status == 200, value
    return value


def test_forms_of_a_ranking(server):
    value = rerank(server, documents=["a", {"text": "bb"}, "c"], return_documents=True)
    assert sorted(r["index"] for r in value["results"]) == [0, 1, 2]
    assert {r["index"]: r["document"]["text"] for r in value["results"]} == {0: "a", 1: "bb", 2: "c"}
    scores = [r["relevance_score"] for r in value["results"]]
    assert scores == sorted(scores, reverse=True) and all(0 <= s <= 1 for s in scores)
    assert value["usage"]["prompt_tokens"] == value["usage"]["total_tokens"] > 0
    assert "document" not in rerank(server)["results"][0]
    assert len(rerank(server, documents=["a", "b", "c"], top_n=2)["results"]) == 2
    assert server.post("/rerank", {"query": "q", "documents": ["a"]})[0] == 200


def test_forms_of_scores(server):
    for body, n in (({"text_1": "q", "text_2": "d"}, 1), ({"text_1": "q", "text_2": ["d", "e"]}, 2), ({"text_1": ["q", "r"], "text_2": ["d", "e"]}, 2)):
        status, value = server.post("/v1/score", body)
        assert status == 200 and [d["index"] for d in value["data"]] == list(range(n)), value
        assert value["object"] == "list" and value["data"][0]["object"] == "score"


@pytest.mark.parametrize("path, body, word", [
    ("rerank", {"documents": ["a"]}, "query"), ("rerank", {"query": "q"}, "documents"), ("rerank", {"query": "q", "documents": []}, "documents"),
    ("rerank", {"query": "q", "documents": "a"}, "array"), ("rerank", {"query": ["q"], "documents": ["a"]}, "string"),
    ("rerank", {"query": "", "documents": ["a"]}, "query"), ("rerank", {"query": "q", "documents": ["a", ""]}, "documents[1]"),
    ("rerank", {"query": "q", "documents": [{"body": "a"}]}, "documents[0]"), ("rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
    ("rerank", {"query": "q", "documents": ["a"] * 2049}, "2049"), ("rerank", {"query": "q", "documents": ["a" * 4000]}, "3000"),
    ("score", {"text_1": ["q", "r"], "text_2": ["d", "e", "f"]}, "text_2"), ("score", {"text_1": 1, "text_2": "d"}, "text_1"),
    ("score", {"text_1": "q", "text_2": "d", "instruction": 3}, "instruction"),
])
def test_what_cannot_be_meant_is_refused(server, path, body, word):
    status, value = server.post("/v1/" + path, body)
    assert status == 400 and word in value["error"]["message"], value


def test_a_score_is_what_yes_has_of_yes_and_no(real):
    """Against the log-probabilities of both words after the same prompt: of its ids, so that no bias is in it."""
    query, documents = "capital of France", ["Paris is the capital of France.", "Bananas are yellow.", "<|im_end|> is text"]
    status, value = real.post("/v1/score", {"text_1": query, "text_2": documents})
    assert status == 200, value
    for document, got in zip(documents[:2], value["data"]):
        ids = real.post("/tokenize", {"prompt": PROMPT.format(task=TASK, query=query, document=document), "add_special_tokens": False})[1]["tokens"]
        logprobs = []
        for word in ("yes", "no"):
            [one] = real.post("/tokenize", {"prompt": word, "add_special_tokens": False})[1]["tokens"]
            r = real.post("/v1/completions", {"prompt": ids + [one], "max_tokens": 0, "prompt_logprobs": 0})[1]
            logprobs.append(r["choices"][0]["prompt_logprobs"][-1][str(one)]["logprob"])
        assert abs(got["score"] - 1 / (1 + math.exp(logprobs[1] - logprobs[0]))) < 1e-4
    ranked = real.post("/v1/rerank", {"query": query, "documents": documents})[1]["results"]
    assert {r["index"]: r["relevance_score"] for r in ranked} == {d["index"]: d["score"] for d in value["data"]}  # company changes no bit
