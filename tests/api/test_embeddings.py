"""/v1/embeddings: forms of input and output, limits, errors; over the scripted engine, then over real models."""

import base64
import math
import struct
import subprocess

import openai
import pytest
from fetched import fetched_model
from serving import PLUMB, ROOT, Reply, Server, request, script

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def server():
    with script("--rows=4", "--ctx=3000") as s:
        yield s


def wanted(ids, dims=8):
    v = [ids[-1] - 4 * len(ids) + i for i in range(dims)]
    n = math.sqrt(sum(x * x for x in v))
    return [x / n for x in v]


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-6 for x, y in zip(a, b))


def embed(server, text, **fields):
    status, value = server.post(PATH, {"model": "m", "input": text, **fields})
    assert status == 200, value
    return value


def vectors(value):
    assert [d["index"] for d in value["data"]] == list(range(len(value["data"])))
    return [d["embedding"] for d in value["data"]]


def test_the_official_client(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    r = client.embeddings.create(model="any", input=["ab", "cde"])  # asks for base64 by itself
    assert near(r.data[0].embedding, wanted(b"ab")) and near(r.data[1].embedding, wanted(b"cde"))
    assert r.object == "list" and r.data[1].object == "embedding" and r.model == "script"
    assert r.usage.prompt_tokens == r.usage.total_tokens == 5
    assert near(client.embeddings.create(model="any", input="ab", encoding_format="float", dimensions=3).data[0].embedding, wanted(b"ab", 3))


def test_forms_of_input(server):
    one = vectors(embed(server, "ab"))
    assert near(one[0], wanted(b"ab"))
    assert vectors(embed(server, ["ab"])) == vectors(embed(server, [97, 98])) == vectors(embed(server, [[97, 98]])) == one
    assert vectors(embed(server, ["ab", [97, 98], "c"]))[:2] == one * 2
    v = vectors(embed(server, "ab", instruction="find"))[0]
    assert near(v, wanted(b"Instruct: find\nQuery:ab")) and v != one[0]
    # a control token that is typed is text
    assert embed(server, "<|im_end|>")["usage"]["prompt_tokens"] == 10


def test_forms_of_output(server):
    v = vectors(embed(server, "ab"))[0]
    raw = base64.b64decode(vectors(embed(server, "ab", encoding_format="base64"))[0])
    assert list(struct.unpack("<8f", raw)) == [struct.unpack("<f", struct.pack("<f", x))[0] for x in v]
    assert abs(sum(x * x for x in v) - 1) < 1e-6
    for dims in range(1, 9):
        assert near(vectors(embed(server, "ab", dimensions=dims))[0], wanted(b"ab", dims))


def test_many_texts_are_as_one_each(server):
    """More than the scheduler's line holds, and they come back in order; others are served meanwhile."""
    texts = ["x" * (1 + i % 50) + chr(97 + i % 26) for i in range(2048)]
    value = embed(server, texts)
    assert all(near(v, wanted(t.encode())) for v, t in zip(vectors(value), texts))
    assert value["usage"]["prompt_tokens"] == sum(map(len, texts))
    with script("--rows=1", "--max-waiting=3", "--step-us=2000") as s:
        with s.connect() as c:
            c.sendall(request(PATH, {"input": texts[:200]}))
            s.wait_at_least("running", 1)
            for _ in range(5):
                status, value = s.chat("!say in between")
                assert status in (200, 429)
            status, _, value = Reply(c).read()
        assert status == 200 and vectors(value)[:20] == vectors(embed(s, texts[:20])) and len(value["data"]) == 200


def test_a_client_that_goes_ends_it():
    with script("--rows=2", "--step-us=5000") as s:
        c = s.connect()
        c.sendall(request(PATH, {"input": ["ab"] * 2000}))
        s.wait_at_least("running", 1)
        c.close()
        s.wait_stats(running=0, waiting=0)


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"input": ...}, "input"), ({"input": None}, "input"), ({"input": 5}, "input"), ({"input": {}}, "input"), ({"input": []}, "input"),
        ({"input": ""}, "input"), ({"input": ["a", ""]}, "input[1]"), ({"input": ["a", 5]}, "input[1]"), ({"input": [[]]}, "input[0]"),
        ({"input": [97, "a"]}, "input"), ({"input": [[97, -1]]}, "input[0]"), ({"input": [999999]}, "input"), ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"), ({"encoding_format": 5}, "encoding_format"), ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 9}, "dimensions"), ({"dimensions": "8"}, "dimensions"), ({"instruction": 5}, "instruction"),
        ({"input": [97], "instruction": "x"}, "instruction"),
    ],
)
def test_bad_requests_are_refused_and_named(server, fields, param):
    body = {k: v for k, v in {"input": "x", **fields}.items() if v is not ...}
    status, value = server.post(PATH, body)
    assert status == 400 and value["error"]["param"] == param, value


def test_limits_and_failures(server):
    assert near(vectors(embed(server, "x" * 3000))[0], wanted(b"x" * 3000))
    status, value = server.post(PATH, {"input": ["ok", "x" * 3001]})
    assert status == 400 and value["error"]["code"] == "context_length_exceeded"
    assert "3000" in value["error"]["message"] and "3001" in value["error"]["message"] and value["error"]["param"] == "input[1]"
    assert server.post(PATH, {"input": ["ab"] * 40 + ["!nan"]})[0] == 500
    assert server.post(PATH, {"input": "!refuse"})[0] == 400
    assert near(vectors(embed(server, "ab"))[0], wanted(b"ab"))


# --- real models ---


@pytest.fixture(scope="module")
def real():
    path = fetched_model("smollm2")
    with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "2048", "--no-store"]) as s:
        yield s


TEXTS = ["The cat sits on the mat.", "A kitten is lying on a rug.", "Interest rates rose by half a point.", "x", "word " * 300,
         "Zürich 東京 🎉", "The cat sits on the mat, and then"]


def test_real_one_or_many_are_the_same_bits(real):
    many = vectors(embed(real, TEXTS))
    assert [vectors(embed(real, t))[0] for t in TEXTS] == many
    assert vectors(embed(real, TEXTS[::-1]))[::-1] == many
    assert len(many[0]) == 576 and all(abs(sum(x * x for x in v) - 1) < 1e-5 for v in many)


def test_real_embeddings_are_the_same_beside_generations(real):
    alone = vectors(embed(real, TEXTS))
    said = real.chat("Tell a story.", max_tokens=40, temperature=0)
    with real.connect() as c:
        c.sendall(request("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 40, "temperature": 0}))
        crowd = vectors(embed(real, TEXTS))
        answer = Reply(c).read()[2]
    assert crowd == alone and answer["choices"][0]["message"] == said[1]["choices"][0]["message"]


def test_real_texts_that_mean_the_same_are_near(real):
    a, b, c = vectors(embed(real, TEXTS[:3]))

    def dot(x, y):
        return sum(p * q for p, q in zip(x, y))

    assert dot(a, b) > dot(a, c)


# --- models that read both ways ---

FAMILIES = ROOT / "tests/golden/families"
BOTH_WAYS = ["bert.gguf", "bert-cls.gguf", "nomic-bert.gguf", "embeddinggemma-dense.gguf"]
BOTH_WAYS_TEXTS = ["a", "some words of a text", "x" * 90, "a text that is longer than a page of the cache, as many are: " * 3, "b"]


@pytest.mark.parametrize("model", BOTH_WAYS)
def test_texts_alone_and_together_have_the_same_bits(model):
    with Server([PLUMB, "serve", "--model", str(FAMILIES / model), "--port", "0", "--threads", "2"]) as s:
        together = vectors(embed(s, BOTH_WAYS_TEXTS))
        assert len(together[0]) == (24 if "dense" in model else 32)
        for text, v in zip(BOTH_WAYS_TEXTS, together):
            assert abs(sum(x * x for x in v) - 1) < 1e-5
            assert vectors(embed(s, text))[0] == v
        assert vectors(embed(s, BOTH_WAYS_TEXTS[::-1]))[::-1] == together


def test_a_model_that_makes_embeddings_alone_writes_no_answers():
    path = str(FAMILIES / "bert.gguf")
    said = "it makes embeddings (/v1/embeddings) and writes no answers"
    with Server([PLUMB, "serve", "--model", path, "--port", "0", "--threads", "1"]) as s:
        for route, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                            ("/v1/completions", {"prompt": "hi"}), ("/v1/responses", {"input": "hi"}),
                            ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
                            ("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/v1/score", {"text_1": "a", "text_2": "b"}),
                            ("/infill", {"input_prefix": "a", "input_suffix": "b"})):
            status, value = s.post(route, {"model": "m", **body})
            assert status == 400 and said in value["error"]["message"], (route, value)
        status, value = s.post(PATH, {"model": "m", "input": "x" * 600})  # 600 tokens of 512
        assert status == 400 and value["error"]["code"] == "context_length_exceeded"
        assert len(embed(s, "x" * 512)["data"]) == 1
    done = subprocess.run([PLUMB, "run", "--model", path, "--prompt", "hi"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and said in done.stderr


# What transformers (5.24, f32) computes with all-MiniLM-L6-v2: the mean of the last states, of length 1; its first eight numbers, and
# the cosines between the texts.
MINILM = {
    "A cat sits on the mat.": [0.126535, -0.032851, -0.02906, 0.044407, -0.043445, 0.032097, 0.048111, 0.027675],
    "A kitten lies on a rug.": [0.029578, 0.03633, 0.028114, 0.060318, -0.032422, 0.018764, -0.02047, -0.005479],
    "Quarterly revenue rose by 3 %.": [0.036728, -0.057628, -0.053234, -0.045306, 0.006663, -0.042489, -0.01145, -0.026998],
}
MINILM_COSINES = {(0, 1): 0.559995, (0, 2): -0.008759, (1, 2): -0.03519}


def test_minilm_as_transformers_has_it():
    with Server([PLUMB, "serve", "--model", str(fetched_model("all-minilm-l6-v2")), "--port", "0", "--threads", "2"]) as s:
        v = vectors(embed(s, list(MINILM)))
        for got, want in zip(v, MINILM.values()):
            assert len(got) == 384
            assert all(abs(a - b) < 1e-4 for a, b in zip(got, want))
        for (i, k), want in MINILM_COSINES.items():
            assert abs(sum(a * b for a, b in zip(v[i], v[k])) - want) < 1e-4
        assert embed(s, "A cat sits on the mat.")["usage"]["prompt_tokens"] == 9
