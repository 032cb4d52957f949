"""plumb inspect: what it says of good files (against the gguf package), and how models are named."""
import functools
import json
import os
import pathlib
import subprocess
import sys
import tarfile

import gguf
import numpy as np
import pytest
from fetched import fetched_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
sys.path.insert(0, str(ROOT / "tests/fuzz"))
import make_gguf_corpus as corpus  # noqa: E402


@functools.cache
def read(path):
    return gguf.GGUFReader(path)


def inspect(*args, env=None, cwd=None):
    return subprocess.run([PLUMB, "inspect", *map(str, args)], capture_output=True, timeout=60, check=False,
                          env={**os.environ, **(env or {})}, cwd=cwd)


# --- what good files hold ---

def field_value(field):
    """A field's value as JSON has it; strings that are not UTF-8 have U+FFFD."""
    kinds = field.types
    def one(i):
        part = field.parts[i]
        if kinds[-1] == gguf.GGUFValueType.STRING:
            return bytes(part).decode("utf-8", "replace")
        if kinds[-1] == gguf.GGUFValueType.BOOL:
            return bool(part[0])
        return float(part[0]) if part.dtype.kind == "f" else int(part[0])
    values = [one(i) for i in field.data]
    return values if kinds[0] == gguf.GGUFValueType.ARRAY else values[0]


# Two vocabularies of two kinds; the package takes half a minute to read a large one.
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_json_holds_what_the_gguf_package_reads(name):
    path = fetched_model(name)
    done = inspect(name, "--json")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    want = read(path)
    keys = {k: f for k, f in want.fields.items() if not k.startswith("GGUF.")}
    assert list(got["metadata"]) == list(keys)
    for key, field in keys.items():
        assert got["metadata"][key] == field_value(field), key
    assert len(got["tensors"]) == len(want.tensors)
    for t, w in zip(got["tensors"], want.tensors):
        assert (t["name"], t["type"], t["bytes"], t["offset"], t["file"]) == (
            w.name, w.tensor_type.name, w.n_bytes, w.data_offset, 0)
        assert t["shape"] == [int(d) for d in w.shape]
    assert got["total"] == {"tensors": len(want.tensors), "elements": int(sum(t.n_elements for t in want.tensors)),
                            "bytes": int(sum(t.n_bytes for t in want.tensors))}
    assert got["files"] == [{"path": str(path), "bytes": path.stat().st_size}]
    assert len(got["digest"]) == 64


def test_text_summarises_and_lists():
    fetched_model("smollm2")
    out = inspect().stdout.decode()
    for words in ("134.52 M in 272 tensors", '"llama"  layers 30, width 576', "49152 tokens, byte-level BPE, chat template",
                  "loads         yes, as llama",
                  "tokenizer.ggml.tokens", '["<|endoftext|>", "<|im_start|>"', "[576, 49152]", "metadata (33)"):
        assert words in out, words
    assert max(len(line) for line in out.splitlines()) < 240


def test_control_characters_of_a_file_stay_off_the_terminal(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([("general.name", corpus.STRING, b"a\x1b]0;x\x07\xc2\x9b\xff\n"),
                                  ("general.architecture", corpus.STRING, "\x1b[31m")], [("t", 0, [1])]))
    out = inspect(path).stdout
    assert b'"a\\x1B]0;x\\x07\\xC2\\x9B\\xFF\\n"' in out
    assert not any(c < 32 and c != 10 for c in out)


def test_vocabulary_files_are_listed(tmp_path):
    archive = ROOT.parent / "shared/data/vocabs.tar.xz"
    if not archive.exists():
        pytest.skip("no-shared-data: vocabs.tar.xz")
    with tarfile.open(archive) as tar:
        for m in tar:
            if m.isfile() and m.name.endswith(".gguf"):
                (tmp_path / pathlib.Path(m.name).name).write_bytes(tar.extractfile(m).read())
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 14
    for path in paths:
        text = inspect(path).stdout.decode()
        assert "parameters    none" in text, path
        got = json.loads(inspect(path, "--json").stdout)
        n = len(got["metadata"]["tokenizer.ggml.tokens"])
        assert f"vocabulary    {n} tokens" in text and n > 20000 and got["tensors"] == []


def test_every_corpus_file_is_an_answer_or_an_error(tmp_path):
    n_read = 0
    for path in sorted((ROOT / "tests/fuzz/corpus/gguf").iterdir()):
        for flags in ([], ["--json"]):
            done = inspect("--model", path, *flags)
            assert done.returncode in (0, 1), path
            assert bool(done.stderr) == bool(done.returncode), path
            if flags and done.returncode == 0:
                json.loads(done.stdout)
                n_read += 1
    assert n_read >= 7


def test_an_output_that_cannot_be_written_is_a_failure():
    fetched_model("smollm2")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PLUMB, "inspect", "--json"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1 and b"cannot be written" in done.stderr


# --- how models are named ---

def test_a_missing_model_lists_the_names_and_the_remedy(tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    text = inspect("nonsense", env=env).stderr.decode()
    for name in ("smollm2", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "tools/fetch-models NAME"):
        assert name in text
    done = inspect(env=env)
    assert done.returncode == 1 and b"tools/fetch-models smollm2" in done.stderr


def test_names_do_not_leave_the_directory(tmp_path):
    (tmp_path / "plumb/models/sub").mkdir(parents=True)
    good = corpus.gguf([("k", corpus.U32, 1)], [])
    (tmp_path / "plumb/secret.gguf").write_bytes(good)
    (tmp_path / "plumb/models/sub/in.gguf").write_bytes(good)
    (tmp_path / "plumb/models/own.gguf").write_bytes(good)
    (tmp_path / "plumb/models/.hidden.gguf").write_bytes(good)
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert inspect("own", env=env).returncode == 0
    for name in ("../secret", "sub/in", ".hidden", "..", ".", ""):
        assert inspect("--model", name, env=env, cwd="/").returncode == 1, name


def test_a_relative_cache_home_is_not_used(tmp_path):
    env = {"XDG_CACHE_HOME": "cache", "HOME": str(tmp_path)}
    (tmp_path / ".cache/plumb/models").mkdir(parents=True)
    (tmp_path / ".cache/plumb/models/own.gguf").write_bytes(corpus.gguf([("k", corpus.U32, 1)], []))
    assert inspect("own", env=env).returncode == 0


def test_split_files_of_the_real_model_are_one_model(tmp_path):
    """Written by the gguf package, whose split writer is the published one."""
    reader = read(fetched_model("smollm2"))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for t in reader.tensors[1:6]:
        writer.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.iterdir())
    assert [p.name for p in parts] == [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    done = inspect(parts[0], "--json")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert [t["name"] for t in got["tensors"]] == [t.name for t in reader.tensors[1:6]]
    assert [t["file"] for t in got["tensors"]] == [0, 0, 1, 1, 2]
    assert b"part 2 of 3" in inspect(parts[1]).stderr
    parts[2].unlink()
    assert b"m-00003-of-00003.gguf: No such file" in inspect(parts[0]).stderr


# --- types by the parts of a model ---

def test_groups_say_which_types_the_parts_have(tmp_path):
    def groups(model):
        found = json.loads(inspect(model, "--json").stdout)
        out = found["groups"]
        for key in ("tensors", "elements", "bytes"):
            assert sum(t[key] for g in out.values() for t in g.values()) == found["total"][key]
        assert all(abs(t["bits"] - 8 * t["bytes"] / t["elements"]) < 1e-9 for g in out.values() for t in g.values())
        return {g: {t: v["tensors"] for t, v in types.items()} for g, types in out.items()}

    families = ROOT / "tests/golden/families"
    moe = groups(families / "qwen35moe.gguf")
    assert moe["experts"] == {"F16": 12} and moe["routers"] == {"F32": 8} and moe["head"] == {"F16": 1}
    assert set(moe) == {"embeddings", "attention", "state layers", "mlp", "experts", "routers", "norms", "head"}
    # names of GGUF, of transformers and of mlx-lm: the same parts, but that experts stand alone or in stacks
    subprocess.run([PLUMB, "convert", families / "qwen35moe.gguf", tmp_path / "mlx", "--type", "mlx4", "--group-size", "32", "--quiet"], check=True)
    for model in (families / "hf/qwen35moe", tmp_path / "mlx"):
        assert set(groups(model)) == set(moe), model
    codes = json.loads(inspect(tmp_path / "mlx", "--json").stdout)["groups"]["attention"]["MLX4"]
    assert codes["bits"] == 5.0  # four, and 16 bits of scale and of bias for 32 numbers
    shown = inspect(tmp_path / "mlx").stdout.decode()
    assert "groups\n" in shown and "  attention     MLX4 " in shown and " 5.000\n" in shown
    for name in ("bert", "nomic-bert", "gemma4-moe", "gpt-oss-mxfp4", "mixtral", "embeddinggemma-dense"):
        assert "other" not in groups(families / f"{name}.gguf") and "other" not in groups(families / "hf" / name), name
