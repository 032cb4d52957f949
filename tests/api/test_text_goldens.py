"""/v1/rerank, /v1/score and /v1/embeddings against what transformers computes with tiny models (tests/golden/texts), of files and of
directories: prompts and pairs, instructions, cut texts, scores, vectors."""

import json

import pytest
from serving import PLUMB, ROOT, Server

TEXTS = ROOT / "tests/golden/texts"
GOLDENS = json.loads((TEXTS / "goldens.json").read_text())
RERANKERS = ["qwen3-reranker.gguf", "qwen3-reranker", "qwen3-rank.gguf", "qwen3-rank-untied.gguf", "qwen3-classifier", "roberta-cross.gguf",
             "roberta-cross", "bert-cross"]
CLASSIFIERS = RERANKERS[2:]


def serve(model):
    """Caches in f32, so that what is left is the order of sums."""
    return Server([PLUMB, "serve", "--model", str(TEXTS / model), "--port", "0", "--threads", "1", "--cache-type", "f32", "--no-store"])


def ok(answer):
    status, value = answer
    assert status == 200, value
    return value


def fields(case):
    return {k: v for k, v in (("instruction", case["instruction"]), ("truncate_prompt_tokens", case["truncate"])) if v}


@pytest.mark.parametrize("model", RERANKERS)
def test_scores_are_those_of_transformers(model):
    cases = GOLDENS[model.removesuffix(".gguf")]
    with serve(model) as s:
        alone = []
        for case in cases:
            value = ok(s.post("/v1/score", {"text_1": case["query"], "text_2": case["document"], **fields(case)}))
            assert value["usage"]["prompt_tokens"] == case["tokens"]
            alone.append(value["data"][0]["score"])
            assert abs(alone[-1] - case["score"]) < 2e-6, case
        assert len({round(x, 5) for x in alone}) > 4
        for instruction in {c["instruction"] for c in cases}:
            for most in {c["truncate"] for c in cases}:
                some = [(c, x) for c, x in zip(cases, alone) if c["instruction"] == instruction and c["truncate"] == most]
                texts = {"text_1": [c["query"] for c, _ in some], "text_2": [c["document"] for c, _ in some]}
                data = ok(s.post("/v1/score", {**texts, **fields(some[0][0])}))["data"]
                assert [d["score"] for d in data] == [x for _, x in some]  # company changes no bit
        query = cases[0]["query"]
        mine = [(c, x) for c, x in zip(cases, alone) if c["query"] == query and not c["instruction"] and not c["truncate"]]
        ranked = ok(s.post("/v1/rerank", {"query": query, "documents": [c["document"] for c, _ in mine]}))["results"]
        assert [r["relevance_score"] for r in ranked] == sorted((x for _, x in mine), reverse=True)
        assert all(mine[r["index"]][1] == r["relevance_score"] for r in ranked)


@pytest.mark.parametrize("model", ["qwen3-reranker", "roberta-cross"])
def test_a_pair_that_is_too_long_is_refused_or_cut(model):
    most = {"qwen3-reranker": 1024, "roberta-cross": 512}[model]
    room = 1 if model == "qwen3-reranker" else 0
    with serve(model) as s:
        body = {"text_1": "q", "text_2": "x" * 1100}
        status, value = s.post("/v1/score", body)
        assert status == 400 and value["error"]["code"] == "context_length_exceeded", value
        assert ok(s.post("/v1/score", {**body, "truncate_prompt_tokens": -1}))["usage"]["prompt_tokens"] == most - room
        assert ok(s.post("/v1/score", {**body, "truncate_prompt_tokens": 9999}))["usage"]["prompt_tokens"] == most - room
        for n in (0, -2, 1.5, "a"):
            status, value = s.post("/v1/score", {**body, "truncate_prompt_tokens": n})
            assert status == 400 and "truncate_prompt_tokens" in value["error"]["message"], value
        status, value = s.post("/v1/score", {**body, "truncate_prompt_tokens": 4})
        assert status == 400 and "4" in value["error"]["message"], value


@pytest.mark.parametrize("model", CLASSIFIERS)
def test_a_classifier_writes_no_answers(model):
    with serve(model) as s:
        for route, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}), ("/v1/completions", {"prompt": "hi"}),
                            ("/v1/embeddings", {"input": "hi"})):
            status, value = s.post(route, {"model": "m", **body})
            assert status == 400 and "classifier" in value["error"]["message"], (route, value)


@pytest.mark.parametrize("model", ["qwen3-embedding.gguf", "qwen3-embedding"])
def test_embeddings_are_those_of_transformers(model):
    cases = GOLDENS["qwen3-embedding"]
    with serve(model) as s:
        for case in cases:
            body = {k: v for k, v in (("input", case["text"]), ("instruction", case["instruction"]), ("dimensions", case["dimensions"])) if v}
            value = ok(s.post("/v1/embeddings", body))
            got = value["data"][0]["embedding"]
            assert value["usage"]["prompt_tokens"] == case["tokens"]
            assert len(got) == len(case["embedding"]) and all(abs(a - b) < 3e-6 for a, b in zip(got, case["embedding"]))
        texts = [c["text"] for c in cases if not c["instruction"] and not c["dimensions"]]
        many = ok(s.post("/v1/embeddings", {"input": texts}))["data"]
        for text, d in zip(texts, many):
            assert ok(s.post("/v1/embeddings", {"input": text}))["data"][0]["embedding"] == d["embedding"]
