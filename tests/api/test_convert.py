"""plumb convert: every kind of model file to every other, what is kept exactly, and what happens when it goes wrong."""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

import gguf
import numpy as np
import pytest

from fetched import fetched_model

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
FAMILIES = ROOT / "tests/golden/families"
# Every golden model that is whole; those that make embeddings have no perplexity.
EMBED = ["bert", "bert-cls", "roberta", "nomic-bert", "embeddinggemma", "embeddinggemma-dense"]
# Of these a directory becomes a file, and not the other way yet.
ONE_WAY = sorted(p.stem for p in FAMILIES.glob("qwen4exp*.gguf"))
RANK = ["qwen3-rank", "roberta-rank"]
BOTH_WAYS = sorted(p.stem for p in FAMILIES.glob("*.gguf") if p.stem not in (*EMBED, *ONE_WAY, *RANK, "qwen3moe-q8"))
# What a directory has in another order, in stacks of another make, or turned.
MOVED = ["gemma4-moe", "gpt-oss", "gpt-oss-mxfp4", "mixtral", "qwen2moe", "qwen35", "qwen35-tied", "qwen35moe", "qwen3moe", "qwen3next"]
TEXT = "The quick brown fox. It's 12345 o'clock; na\u00efve \u4e2d\u6587 text,\n\n  two lines\t and a tab.\n" * 12


def plumb(*args, check=True, **kwargs):
    p = subprocess.run([PLUMB, *map(str, args)], capture_output=True, text=True, timeout=300, **kwargs)
    assert not check or p.returncode == 0, p.stderr
    return p


def convert(src, dst, *flags):
    plumb("convert", src, dst, "--quiet", *flags)
    return dst


def tensors(path):
    return {t.name: (t.tensor_type.name, t.data.tobytes()) for t in gguf.GGUFReader(str(path)).tensors}


def safetensors(folder):
    """Tensors by name: type, shape and bytes."""
    data = (folder / "model.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}


def perplexity(model, tmp):
    text = tmp / "text.txt"
    text.write_text(TEXT)
    out = plumb("perplexity", "--model", model, "--file", text, "--ctx", 128, "--windows", 2, "--json").stdout
    return json.loads(out)["perplexity"]


@pytest.fixture(scope="module")
def smollm2():
    return fetched_model("smollm2")


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_a_family_comes_back_from_a_directory_byte_for_byte(name, tmp_path):
    source = FAMILIES / f"{name}.gguf"
    plain = convert(source, tmp_path / "plain.gguf", "--type", "f32")
    folder = convert(source, tmp_path / "folder", "--type", "f32")
    back = convert(folder, tmp_path / "back.gguf")
    assert tensors(back) == tensors(plain)
    values = [perplexity(m, tmp_path) for m in (plain, folder, back)]
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("name", ONE_WAY)
def test_what_has_no_way_back_says_so(name, tmp_path):
    p = plumb("convert", FAMILIES / f"{name}.gguf", tmp_path / "folder", check=False)
    assert p.returncode == 1 and "qwen4exp" in p.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", RANK)
def test_a_reranker_comes_back_with_its_head(name, tmp_path):
    source = FAMILIES / f"{name}.gguf"
    plain = convert(source, tmp_path / "plain.gguf", "--type", "f32")
    folder = convert(source, tmp_path / "folder", "--type", "f32")
    assert tensors(convert(folder, tmp_path / "back.gguf")) == tensors(plain)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"][0].endswith("ForSequenceClassification") and config["id2label"] == {"0": "LABEL_0"}
    assert json.loads(plumb("inspect", folder, "--json").stdout)["loads"]


@pytest.mark.parametrize("name", EMBED)
def test_an_encoder_comes_back_with_its_pooling(name, tmp_path):
    source = FAMILIES / f"{name}.gguf"
    plain = convert(source, tmp_path / "plain.gguf", "--type", "f32")
    folder = convert(source, tmp_path / "folder", "--type", "f32")
    again = convert(folder, tmp_path / "again")
    back = convert(again, tmp_path / "back.gguf")
    assert tensors(back) == tensors(plain)
    arch = "gemma-embedding" if "gemma" in name else "nomic-bert" if "nomic" in name else "bert"
    kinds = [int(gguf.GGUFReader(str(p)).fields[f"{arch}.pooling_type"].parts[-1][0]) for p in (source, back)]
    assert kinds[0] == kinds[1] == (2 if name == "bert-cls" else 1)
    modules = [m["type"].rsplit(".", 1)[1] for m in json.loads((again / "modules.json").read_text())]
    dense = ["Dense", "Dense"] if name.endswith("dense") else []
    assert modules == ["Transformer", "Pooling", *dense, "Normalize"]
    assert json.loads(plumb("inspect", again, "--json").stdout)["loads"]


# Checkpoints as transformers saved them. Names and layouts of the files: the published converter's.
@pytest.mark.parametrize("name", [n for n in BOTH_WAYS + EMBED + RANK if (FAMILIES / "hf" / n).exists()])
def test_a_checkpoint_becomes_the_published_converters_file(name, tmp_path):
    texts = convert(FAMILIES / f"{name}.gguf", tmp_path / "texts")
    folder = tmp_path / "folder"
    shutil.copytree(FAMILIES / "hf" / name, folder)
    shutil.copy(texts / "tokenizer.json", folder)
    got = tensors(convert(folder, tmp_path / "got.gguf", "--type", "f32"))
    want = tensors(convert(FAMILIES / f"{name}.gguf", tmp_path / "want.gguf", "--type", "f32"))
    fused = {k for k in want if "gate_up_exps" in k} ^ {k for k in got if "gate_up_exps" in k}
    assert got.keys() ^ want.keys() == fused
    assert {k: v for k, v in got.items() if k in want} == {k: v for k, v in want.items() if k in got}


# mlx-lm's names and layouts say the same model, and the codes are the same from a file and from a checkpoint.
@pytest.mark.parametrize("name", MOVED)
def test_mlx_directories_of_moved_tensors(name, tmp_path):
    source = FAMILIES / f"{name}.gguf"
    flags = ("--type", "mlx8", "--group-size", "32", "--plain-type", "f32")
    plain = convert(source, tmp_path / "plain", "--to", "mlx", "--type", "f32")
    assert "quantization" not in json.loads((plain / "config.json").read_text())
    assert perplexity(plain, tmp_path) == perplexity(convert(source, tmp_path / "plain.gguf", "--type", "f32"), tmp_path)
    codes = convert(source, tmp_path / "codes", *flags)
    assert json.loads(plumb("inspect", codes, "--json").stdout)["codes"] == {"bits": [8, 8], "group_size": [32, 32]}
    folder = tmp_path / "folder"
    shutil.copytree(FAMILIES / "hf" / name, folder)
    for text in codes.glob("*tokenizer*"):
        shutil.copy(text, folder)
    other = convert(folder, tmp_path / "other", *flags)
    assert safetensors(other) == safetensors(codes)


def test_a_file_kept_is_the_same_file(tmp_path, smollm2):
    kept = convert(smollm2, tmp_path / "kept.gguf")
    assert kept.read_bytes() == pathlib.Path(smollm2).read_bytes()


@pytest.mark.parametrize("qtype", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"])
def test_blocks_are_those_of_the_gguf_package(qtype, tmp_path):
    source = FAMILIES / "mixtral.gguf"
    got = tensors(convert(source, tmp_path / "q.gguf", "--type", qtype.lower(), "--head-type", qtype.lower()))
    want_type = gguf.GGMLQuantizationType[qtype]
    n = 0
    for t in gguf.GGUFReader(str(source)).tensors:
        name, data = got[t.name]
        if name != qtype or name == t.tensor_type.name:
            continue
        x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        assert gguf.quants.quantize(x, want_type).tobytes() == data, t.name
        n += 1
    assert n > 5 or qtype == "F16"


def test_directories_of_codes_and_of_shards(tmp_path):
    source = FAMILIES / "qwen3.gguf"
    before = perplexity(source, tmp_path)
    whole = convert(source, tmp_path / "whole", "--type", "f32")
    parts = convert(whole, tmp_path / "parts", "--shard-size", "32K")
    assert len(list(parts.glob("model-*.safetensors"))) > 2
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(np.prod(t.shape) for t in gguf.GGUFReader(str(source)).tensors)
    assert perplexity(parts, tmp_path) == perplexity(whole, tmp_path)
    for bits in (2, 3, 4, 5, 6, 8):
        codes = convert(whole, tmp_path / f"mlx{bits}", "--type", f"mlx{bits}", "--group-size", "32",
                        "--embedding-type", "mlx8")
        config = json.loads((codes / "config.json").read_text())
        assert config["quantization"]["bits"] == bits and config["quantization"]["group_size"] == 32
        if bits != 8:
            assert config["quantization"]["model.embed_tokens"] == {"group_size": 32, "bits": 8}
        assert perplexity(codes, tmp_path) == pytest.approx(before, rel=0.5 if bits == 2 else 0.12 if bits == 3 else 0.05)
        # codes are kept as they are, and the way to GGUF goes through their values
        again = convert(codes, tmp_path / f"again{bits}", "--to", "mlx", "--type", "keep")
        assert (again / "model.safetensors").read_bytes() == (codes / "model.safetensors").read_bytes()
        back = convert(codes, tmp_path / f"back{bits}.gguf", "--type", "f32")
        assert perplexity(back, tmp_path) == pytest.approx(perplexity(codes, tmp_path), rel=3e-2)


def write_llama(path, n_layers):
    """Tensors of a llama with rows of 64 and 256, enough for what decides types."""
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_block_count(n_layers)
    rng = np.random.default_rng(3)
    for name, shape in [("token_embd.weight", (96, 64)), ("output_norm.weight", (64,))] + [
            (f"blk.{i}.{k}.weight", s) for i in range(n_layers)
            for k, s in (("attn_v", (64, 64)), ("ffn_down", (64, 256)), ("ffn_up", (256, 64)), ("attn_norm", (64,)))]:
        w.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def test_the_head_and_mixes_get_more_bits(tmp_path):
    source = tmp_path / "source.gguf"
    write_llama(source, 8)

    def types(*flags):
        return {k: v[0] for k, v in tensors(convert(source, tmp_path / "x.gguf", "--force", *flags)).items()}

    mix = types("--type", "q4_k_m")
    assert mix["token_embd.weight"] == "Q8_0"  # the head too: Q6_K, but 64 columns are no blocks of 256
    assert [mix[f"blk.{i}.ffn_down.weight"] for i in range(8)] == ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"]
    assert [mix[f"blk.{i}.attn_v.weight"] for i in range(3)] == ["Q8_0", "Q5_0", "Q5_0"]
    assert {mix[f"blk.{i}.ffn_up.weight"] for i in range(8)} == {"Q5_0"} and mix["blk.3.attn_norm.weight"] == "F32"
    five = types("--type", "q5_k_m")
    assert [five[f"blk.{i}.ffn_down.weight"] for i in range(2)] == ["Q6_K", "Q5_K"] and five["blk.0.ffn_up.weight"] == "Q5_1"
    flagged = types("--type", "q8_0", "--embedding-type", "q5_1")
    assert flagged["token_embd.weight"] == "Q5_1" and flagged["blk.0.ffn_up.weight"] == "Q8_0"
    assert types("--type", "q4_0")["token_embd.weight"] == "Q8_0"
    number = int(gguf.GGUFReader(str(tmp_path / "x.gguf")).fields["general.file_type"].parts[-1][0])
    assert number == gguf.LlamaFileType.MOSTLY_Q4_0


def ids(model, text):
    return plumb("tokenize", "--model", model, "--special", input=text).stdout.split()


def test_smollm2_keeps_its_tokens_template_and_answer(tmp_path, smollm2):
    folder = convert(smollm2, tmp_path / "folder", "--type", "f32")
    back = convert(folder, tmp_path / "back.gguf")
    text = (ROOT / "tests/golden/text/code.txt").read_text()[:4000] + TEXT + "<|im_start|>user\n"
    assert ids(folder, text) == ids(back, text) == ids(smollm2, text)
    fields = gguf.GGUFReader(str(back)).fields
    assert bytes(fields["tokenizer.ggml.pre"].parts[-1]).decode() == "smollm"
    say = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True})
    shown = [plumb("template", "--model", m, "--input", "-", input=say).stdout for m in (smollm2, folder, back)]
    assert shown[0] == shown[1] == shown[2] and "Hi" in shown[0]
    ask = ("--prompt", "Why is the sky blue?", "--temperature", "0", "--max-tokens", "24", "--json")
    assert json.loads(plumb("run", "--model", folder, *ask).stdout)["text"] == \
        json.loads(plumb("run", "--model", back, *ask).stdout)["text"]


def test_inspect_says_what_each_kind_is_and_why_it_would_not_load(tmp_path):
    source = FAMILIES / "gemma3.gguf"
    folder = convert(source, tmp_path / "folder", "--type", "f32")
    codes = convert(folder, tmp_path / "codes", "--type", "mlx4", "--group-size", "32", "--embedding-type", "mlx8")
    for model, words in ((source, ["GGUF v3"]), (folder, ["safetensors directory"]),
                         (codes, ["safetensors directory", "MLX affine, 4 to 8 bits in groups of 32"])):
        said = plumb("inspect", model).stdout
        for word in (*words, "layers 7, width 32", "288 tokens, byte-level BPE, no chat template", "yes, as gemma3"):
            assert word in said, (model, word)
    found = json.loads(plumb("inspect", codes, "--json").stdout)
    assert found["loads"] and found["family"] == "gemma3" and found["codes"] == {"bits": [4, 8], "group_size": [32, 32]}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 8, "layer_types": None}))
    assert "loads         no: tensor blk.7.attn_norm.weight: missing" in plumb("inspect", folder).stdout
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Nobody"], "model_type": "nobody"}))
    assert not json.loads(plumb("inspect", folder, "--json").stdout)["loads"]


# --- what goes wrong ---


def test_what_is_there_stays_unless_told(tmp_path):
    source = FAMILIES / "qwen2.gguf"
    there = tmp_path / "there.gguf"
    there.write_text("mine")
    p = plumb("convert", source, there, check=False)
    assert p.returncode == 1 and "--force" in p.stderr and there.read_text() == "mine"
    plumb("convert", source, there, "--force")
    assert there.read_bytes()[:4] == b"GGUF"
    p = plumb("convert", there, there, "--force", check=False)
    assert p.returncode == 1 and "source itself" in p.stderr
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    p = plumb("convert", source, mine, "--force", check=False)
    assert p.returncode == 1 and "no model" in p.stderr and (mine / "letter.txt").read_text() == "dear"
    folder = tmp_path / "folder"
    convert(source, folder)
    convert(source, folder, "--force", "--type", "f32")
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "float32"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "mine", "there.gguf"]


@pytest.mark.parametrize("args, words", [
    (("--type", "q3_k"), ["q3_k", "q4_k_m"]),
    (("--type", "mlx4"), ["mlx4", "known are"]),
    (("--to", "onnx"), ["onnx", "gguf, hf or mlx"]),
    (("--to", "mlx", "--group-size", "48"), ["48"]),
    (("--group-size", "64"), ["--to mlx"]),
    (("--plain-type", "q8_0"), ["q8_0"]),
])
def test_flags_that_make_no_sense_are_refused(args, words, tmp_path):
    p = plumb("convert", FAMILIES / "qwen2.gguf", tmp_path / "x.gguf", *args, check=False)
    assert p.returncode in (1, 2)
    assert all(w in p.stderr for w in words), p.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))

    for name in ("x.gguf", "folder"):
        p = plumb("convert", FAMILIES / "qwen3.gguf", tmp_path / name, "--type", "f32", check=False, preexec_fn=limit)
        assert p.returncode == 1 and name in p.stderr and "File too large" in p.stderr, p.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.gguf", "folder"])
def test_ctrl_c_leaves_nothing(name, tmp_path, smollm2):
    flags = ["--type", "q5_k"] if name == "x.gguf" else ["--type", "mlx5"]
    p = subprocess.Popen([PLUMB, "convert", smollm2, str(tmp_path / name), *flags, "--threads", "1"], stderr=subprocess.PIPE, text=True)
    for _ in range(500):
        if any(".part-" in f.name for f in tmp_path.iterdir()):
            break
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    _, said = p.communicate(timeout=60)
    assert p.returncode == 130 and "stopped" in said
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_a_type_cannot_hold_are_refused_by_name(tmp_path):
    folder = convert(FAMILIES / "qwen2.gguf", tmp_path / "folder", "--type", "f32")
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    n = int.from_bytes(data[:8], "little")
    at = json.loads(data[8:8 + n])["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0] + 8 + n
    data[at + 400:at + 404] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    p = plumb("convert", folder, tmp_path / "x.gguf", "--type", "q8_0", check=False)
    assert p.returncode == 1 and "blk.1.ffn_up.weight" in p.stderr and "NaN" in p.stderr
    assert not (tmp_path / "x.gguf").exists()


def test_an_unknown_pre_tokenizer_is_named_and_can_be_overridden(tmp_path):
    folder = convert(FAMILIES / "qwen2.gguf", tmp_path / "folder")
    path = folder / "tokenizer.json"
    text = json.loads(path.read_text())
    text["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[abc]+|[^abc]{1,7}"
    path.write_text(json.dumps(text))
    p = plumb("convert", folder, tmp_path / "x.gguf", check=False)
    assert p.returncode == 1 and "[abc]+|[^abc]{1,7}" in p.stderr and "--pre" in p.stderr
    convert(folder, tmp_path / "x.gguf", "--pre", "qwen2")
    fields = gguf.GGUFReader(str(tmp_path / "x.gguf")).fields
    assert bytes(fields["tokenizer.ggml.pre"].parts[-1]).decode() == "qwen2"


def test_a_directory_over_a_damaged_one_is_not_written(tmp_path):
    folder = convert(FAMILIES / "qwen2.gguf", tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"], config["model_type"] = ["NobodyForCausalLM"], "nobody"
    (folder / "config.json").write_text(json.dumps(config))
    p = plumb("convert", folder, tmp_path / "x.gguf", check=False)
    assert p.returncode == 1 and "NobodyForCausalLM" in p.stderr
    shutil.rmtree(folder)
    p = plumb("convert", folder, tmp_path / "x.gguf", check=False)
    assert p.returncode == 1 and "folder" in p.stderr
    assert list(tmp_path.iterdir()) == []
