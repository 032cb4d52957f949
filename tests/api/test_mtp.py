"""Heads for multi-token prediction through the server (the same answers, guesses in usage and metrics, what is refused at the start)
and through convert (kept both ways, left out for mlx-lm)."""

import json
import shutil
import subprocess

import pytest
from serving import PLUMB, Server
from test_convert import ROOT, convert, perplexity, plumb, safetensors, tensors

HEADS = ROOT / "tests/golden/mtp"
NAMES = sorted(p.stem for p in HEADS.glob("*.gguf"))
KINDS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.7, "seed": 3, "top_p": 0.9},
    "penalised": {"temperature": 0.5, "seed": 5, "frequency_penalty": 0.4, "logit_bias": {"11": -5}},
    "scored": {"temperature": 0, "logprobs": 3},
    "several": {"temperature": 0.9, "seed": 9, "n": 2},
    "formed": {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["one", "two"]}}, "required": ["a", "b"]}}}},
}


def serve(model, how):
    return Server([PLUMB, "serve", "--model", str(model), "--port", "0", "--ctx", "512", "--no-store", "--speculate", how])


def prompt(i):
    return [(k * 37 + i * 11) % 280 for k in range(60)]


def write_tensors(path, all_of):
    head, data = {}, b""
    for k, (dtype, shape, body) in all_of.items():
        head[k] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


# The file whose head says what the model says, a head by chance, and one of a directory with experts.
@pytest.fixture(scope="module", params=["agrees", "qwen35-tied", "qwen3next"])
def server(request, tmp_path_factory):
    folder = HEADS / f"{request.param}.gguf"
    if request.param == "qwen3next":
        folder = convert(folder, tmp_path_factory.mktemp("mtp") / "folder")
    with serve(folder, "mtp") as s:
        yield s


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_the_same(server, kind):
    for i in range(2):
        got = {}
        for on in (True, False):
            status, got[on] = server.post("/v1/completions", {"prompt": prompt(i), "max_tokens": 120, "speculation": on} | KINDS[kind])
            assert status == 200, got[on]
        assert got[True]["choices"] == got[False]["choices"]
        assert kind == "formed" or "speculation" not in got[False]["usage"]  # what a form forces is no guess


def test_usage_and_metrics_tell_of_its_guesses():
    with serve(HEADS / "agrees.gguf", "mtp") as s:
        told = []
        for i in range(6):
            status, r = s.post("/v1/completions", {"prompt": prompt(i), "max_tokens": 150, "temperature": 0, "ignore_eos": True})
            assert status == 200, r
            told.append(r["usage"].get("speculation", {"rounds": 0, "drafted": 0, "accepted": 0, "accepted_per_position": []}))
        for t in told:
            assert t["accepted"] == sum(t["accepted_per_position"]) <= t["drafted"]
            assert t["accepted_per_position"] == sorted(t["accepted_per_position"], reverse=True)
        assert sum(t["accepted"] for t in told) > 100
        stats = s.stats()
        assert stats["drafted_tokens"] == sum(t["drafted"] for t in told)
        assert stats["accepted_tokens"] == sum(t["accepted"] for t in told)


@pytest.mark.parametrize("model, how, says", [
    ("tests/golden/families/qwen35.gguf", "mtp", "--speculate mtp: qwen35: the model has no head for multi-token prediction"),
    ("tests/golden/tiny/llama.gguf", "mtp", "the model has no head for multi-token prediction; auto does without"),
    ("tests/golden/mtp/agrees.gguf", "nextn", "'nextn' is not auto, off, ngram, mtp or draft:MODEL"),
])
def test_what_cannot_be_is_said_at_the_start(model, how, says):
    p = subprocess.run([PLUMB, "serve", "--model", str(ROOT / model), "--port", "0", "--no-store", "--speculate", how],
                       capture_output=True, text=True, timeout=120)
    assert p.returncode == 1 and says in p.stderr, p.stderr


# As Qwen3.5 is published: the text's model inside one that sees, the head beside both.
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_a_head_beside_a_model_that_sees(name, tmp_path):
    folder = convert(HEADS / f"{name}.gguf", tmp_path / "folder")
    inner = json.loads((folder / "config.json").read_text())
    arch = inner.pop("architectures")[0].replace("ForCausalLM", "ForConditionalGeneration")
    outer = {"architectures": [arch], "model_type": inner["model_type"].removesuffix("_text"), "text_config": inner,
             "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(outer))
    named = {k.replace("model.", "model.language_model.", 1) if k.startswith("model.") else k: v for k, v in safetensors(folder).items()}
    named["model.visual.patch_embed.proj.weight"] = ("F32", [1], bytes(4))
    write_tensors(folder / "model.safetensors", named)
    with serve(folder, "mtp") as s, serve(HEADS / f"{name}.gguf", "off") as plain:
        body = {"prompt": prompt(3), "max_tokens": 60, "temperature": 0, "logprobs": 2}
        assert s.post("/v1/completions", body)[1]["choices"] == plain.post("/v1/completions", body)[1]["choices"]


# A head may have an embedding of its own, which goes both ways too.
def test_a_head_with_its_own_embedding(tmp_path):
    folder = convert(HEADS / "qwen35.gguf", tmp_path / "folder")
    path = folder / "model.safetensors"
    all_of = safetensors(folder)
    all_of["mtp.embed_tokens.weight"] = all_of["model.embed_tokens.weight"]
    write_tensors(path, all_of)
    back = convert(folder, tmp_path / "back.gguf")
    assert tensors(back)["blk.5.nextn.embed_tokens.weight"] == tensors(back)["token_embd.weight"]
    assert "mtp.embed_tokens.weight" in safetensors(convert(back, tmp_path / "again"))
    with serve(back, "mtp") as s, serve(HEADS / "qwen35.gguf", "off") as plain:
        body = {"prompt": prompt(3), "max_tokens": 40, "temperature": 0}
        assert s.post("/v1/completions", body)[1]["choices"] == plain.post("/v1/completions", body)[1]["choices"]


# Of a head that lacks something auto does without, and what it lacks is named where it is asked for.
def test_a_head_that_lacks_a_tensor(tmp_path):
    folder = convert(HEADS / "qwen35.gguf", tmp_path / "folder")
    all_of = safetensors(folder)
    all_of["mtp.pre_fc_norm_other.weight"] = all_of.pop("mtp.pre_fc_norm_hidden.weight")
    write_tensors(folder / "model.safetensors", all_of)
    p = subprocess.run([PLUMB, "serve", "--model", str(folder), "--port", "0", "--no-store", "--speculate", "mtp"],
                       capture_output=True, text=True, timeout=120)
    assert p.returncode == 1 and "blk.5.nextn.hnorm.weight: missing" in p.stderr, p.stderr
    with serve(folder, "auto") as s:
        status, r = s.post("/v1/completions", {"prompt": prompt(0), "max_tokens": 5})
        assert status == 200, r


def without_head(folder, to):
    """The directory as it would be published without its head."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    del config["mtp_num_hidden_layers"]
    (to / "config.json").write_text(json.dumps(config))
    write_tensors(to / "model.safetensors", {k: v for k, v in safetensors(folder).items() if not k.startswith("mtp.")})
    return to


# The model is what it is without its head.
@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_the_same_as_without_a_head(name, tmp_path):
    folder = convert(HEADS / f"{name}.gguf", tmp_path / "folder")
    bare = without_head(folder, tmp_path / "bare")
    want = perplexity(bare, tmp_path)
    assert perplexity(HEADS / f"{name}.gguf", tmp_path) == perplexity(folder, tmp_path) == want
    assert perplexity(convert(HEADS / f"{name}.gguf", tmp_path / "mlx", "--to", "mlx", "--type", "f32"), tmp_path) == want


@pytest.mark.parametrize("name", NAMES)
def test_a_head_comes_back_from_a_directory_byte_for_byte(name, tmp_path):
    source = HEADS / f"{name}.gguf"
    plain = convert(source, tmp_path / "plain.gguf", "--type", "f32")
    folder = convert(source, tmp_path / "folder", "--type", "f32")
    back = convert(folder, tmp_path / "back.gguf")
    assert any("nextn.eh_proj" in k for k in tensors(plain)) and tensors(back) == tensors(plain)
    config = json.loads((folder / "config.json").read_text())
    assert config["mtp_num_hidden_layers"] == 1 and len(config["layer_types"]) == config["num_hidden_layers"]
    assert {k for k in safetensors(folder) if k.startswith("mtp.")} >= {"mtp.fc.weight", "mtp.norm.weight",
                                                                        "mtp.layers.0.self_attn.q_proj.weight"}
    other = tmp_path / "checkpoint"
    shutil.copytree(HEADS / "hf" / name, other)
    shutil.copy(folder / "tokenizer.json", other)
    got = tensors(convert(other, tmp_path / "got.gguf", "--type", "f32"))
    want = tensors(plain)
    assert {k: v for k, v in got.items() if k in want} == {k: v for k, v in want.items() if k in got}
    assert all("exps" in k for k in got.keys() ^ want.keys())  # a checkpoint has gate and up in one
    for model in (folder, back):
        with serve(model, "mtp") as s:
            status, r = s.post("/v1/completions", {"prompt": prompt(1), "max_tokens": 8, "temperature": 0})
            assert status == 200, r


@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_mlx_has_no_head(name, tmp_path):
    p = plumb("convert", HEADS / f"{name}.gguf", tmp_path / "mlx", "--to", "mlx", "--type", "f32")
    assert "tensors of the head for multi-token prediction are left out" in p.stderr
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert "mtp" not in json.dumps(config) and not [k for k in safetensors(tmp_path / "mlx") if "mtp" in k or "nextn" in k]
