"""What a model's configuration says beside its sizes. Flags that stretch positions: numbers of llama.cpp with the same ones, what is
refused and warned of, and that an answer's fingerprint tells them apart. config.json: dynamic scaling, Gemma 3's query scale.
generation_config.json: every default, alone and together."""
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess

import numpy as np
import pytest
from serving import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
TINY = ROOT / "tests/golden/tiny"
TEXT = ROOT / "tests/golden/text/code.txt"


def plumb(*args):
    return subprocess.run([PLUMB, *map(str, args)], capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


def perplexity(*args, model="llama-f16"):
    p = plumb("perplexity", "--model", TINY / f"{model}.gguf", "--file", TEXT, "--ctx", 256, "--windows", 3, "--json", *args)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["perplexity"]


# llama-perplexity (11434) -m tests/golden/tiny/llama-f16.gguf -f tests/golden/text/code.txt -c 256 --chunks 3 and these flags; its
# --rope-freq-base is ours --rope-base. (It takes no heed of its --yarn-attn-factor.)
LLAMA_CPP = [
    ((), 4802.7429),
    (("--rope-scaling", "linear", "--rope-scale", 3), 3587.9989),
    (("--rope-scale", 3), 3587.9989),
    (("--rope-base", 50000), 4720.8),
    (("--rope-scaling", "yarn", "--rope-scale", 4, "--yarn-orig-ctx", 128), 4075.3966),
    (("--rope-scaling", "yarn", "--rope-scale", 8, "--yarn-orig-ctx", 64, "--yarn-beta-fast", 16, "--yarn-beta-slow", 2), 4454.5480),
]


@pytest.mark.parametrize("flags, want", LLAMA_CPP, ids=lambda x: " ".join(map(str, x)) if isinstance(x, tuple) else "")
def test_numbers_are_those_of_llama_cpp(flags, want):
    assert math.isclose(perplexity(*flags), want, rel_tol=1e-3)


def test_flags_stand_in_the_place_of_the_files_keys():
    """llama-yarn.gguf says yarn, factor 4, original context 128."""
    own = perplexity(model="llama-yarn")
    assert perplexity("--rope-scaling", "yarn", "--rope-scale", 4, "--yarn-orig-ctx", 128, model="llama-yarn") == own
    assert perplexity("--yarn-beta-fast", 32, model="llama-yarn") == own
    none = perplexity("--rope-scaling", "none", model="llama-yarn")
    assert none != own and perplexity("--rope-scaling", "linear", "--rope-scale", 1, model="llama-yarn") == none
    assert len({own, none, perplexity("--rope-scale", 2, model="llama-yarn"),
                perplexity("--yarn-attn-factor", 1.2, model="llama-yarn")}) == 4


@pytest.mark.parametrize("flags, text", [
    (("--rope-scaling", "ntk"), "not one of none, linear, yarn"),
    (("--yarn-beta-fast", 8), "the scaling is linear, not yarn"),
    (("--rope-scaling", "none", "--yarn-orig-ctx", 8), "--yarn-orig-ctx: the scaling is none"),
    (("--rope-scale", 0), "not a number from"),
])
def test_what_makes_no_sense_is_refused(flags, text):
    p = plumb("run", "--model", TINY / "llama-f16.gguf", "--raw", "--prompt", "a", *flags)
    assert p.returncode != 0 and text in p.stderr.decode()


def test_longrope_models_keep_their_divisors():
    p = plumb("run", "--model", ROOT / "tests/golden/families/phi3-long.gguf", "--raw", "--prompt", "a", "--rope-scale", 2)
    assert p.returncode == 1 and b"longrope" in p.stderr


def ask(model, *flags):
    return plumb("run", "--model", model, "--raw", "--prompt", "Hello", "--max-tokens", 1, "--seed", 1, *flags).stderr.decode()


def test_a_context_beyond_the_trained_one_is_warned_of():
    """llama-f16.gguf was trained for 512 tokens."""
    model = TINY / "llama-f16.gguf"
    assert "trained for" not in ask(model, "--ctx", 512)
    text = ask(model, "--ctx", 2048)
    assert "--ctx 2048" in text and "trained for 512" in text and "--rope-scale 4" in text
    assert "trained for" not in ask(model, "--ctx", 2048, "--rope-scaling", "yarn", "--rope-scale", 4)


def directory(folder, **config):
    """A directory of the llama family with other values in its config.json."""
    folder.mkdir(exist_ok=True)
    source = ROOT / "tests/golden/mlx/llama-8-32"
    shutil.copyfile(source / "model.safetensors", folder / "model.safetensors")
    own = json.loads((source / "config.json").read_text())
    for key in ("rope_theta", "rope_parameters", "rope_scaling"):
        own.pop(key, None)
    (folder / "config.json").write_text(json.dumps(own | config))
    (folder / "tokenizer.json").write_text(json.dumps(
        {"model": {"type": "BPE", "vocab": {"abcdefghijklmnopqrstuvwxyzHelo "[i % 31] * (1 + i // 31): i for i in range(280)},
                   "merges": []}}))
    return folder


def test_dynamic_scaling_is_none_up_to_the_trained_length_and_named_beyond(tmp_path):
    plain = directory(tmp_path / "plain", rope_theta=10000.0)
    dynamic = directory(tmp_path / "dynamic", rope_theta=10000.0, rope_scaling={"type": "dynamic", "factor": 4.0})
    out = [plumb("verify", d, "--tokens", 0, "--file", TEXT, "--json") for d in (plain, dynamic)]
    assert [p.returncode for p in out] == [0, 0], out[0].stderr
    assert json.loads(out[0].stdout)["perplexity"] == json.loads(out[1].stdout)["perplexity"]
    assert "dynamic" not in ask(dynamic, "--ctx", 512)
    assert "'dynamic' is not followed" in ask(dynamic, "--ctx", 4096) and "dynamic" not in ask(plain, "--ctx", 4096)
    linear = directory(tmp_path / "linear", rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0})
    assert json.loads(plumb("verify", linear, "--tokens", 0, "--file", TEXT, "--json").stdout)["perplexity"] != \
        json.loads(out[0].stdout)["perplexity"]


def serve(model, *flags):
    return Server([PLUMB, "serve", "--model", str(model), "--port", "0", *flags])


def test_the_fingerprint_tells_flags_apart():
    prints = set()
    for flags in ((), ("--rope-scale", "2"), ("--rope-base", "20000")):
        with serve(TINY / "llama-f16.gguf", *flags) as server:
            status, body = server.complete("Hello", max_tokens=1, seed=1)
            assert status == 200
            prints.add(body["system_fingerprint"])
    assert len(prints) == 3


ADVICE = {"temperature": 5, "top_p": 0.3, "top_k": 2, "min_p": 0.3, "typical_p": 0.3, "repetition_penalty": 2.5}


def answers(server, **fields):
    out = []
    for seed in range(12):
        status, body = server.complete("Hello all", max_tokens=12, seed=seed, **fields)
        assert status == 200, body
        out.append(body["choices"][0]["text"])
    return out


def test_generation_config_gives_the_defaults(tmp_path):
    folder = directory(tmp_path / "m", rope_theta=10000.0)
    def advise(values):
        (folder / "generation_config.json").write_text(json.dumps(values | {"transformers_version": "5.0.0"}))
        return serve(folder)
    with advise({}) as server:
        plain, greedy = answers(server), answers(server, temperature=0)
        asked = {name: answers(server, **{name: v}) for name, v in ADVICE.items()}
        together = answers(server, **ADVICE)
    assert all(x != plain for x in asked.values())
    for name, v in ADVICE.items():
        with advise({name: v}) as server:
            assert answers(server) == asked[name], name
    with advise(ADVICE | {"do_sample": True}) as server:
        assert answers(server) == together
        model = server.call("/v1/models")[2]["data"][0]
        assert model["gen_defaults"] == {k: ADVICE[k] for k in ("temperature", "top_p", "top_k")}
    with advise({"do_sample": False}) as server:
        assert answers(server) == greedy


def test_generation_config_says_what_ends_an_answer(tmp_path):
    folder = directory(tmp_path / "m", rope_theta=10000.0, eos_token_id=3)
    def ends(ids):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        with serve(folder) as server:
            return [server.complete("Hello", max_tokens=3, temperature=0, logit_bias={str(i): 100})[1]["choices"][0]["finish_reason"]
                    for i in (3, 5, 9, 11)]
    assert ends([5, 9]) == ["stop", "stop", "stop", "length"]
    assert ends(11) == ["stop", "length", "length", "stop"]


def gemma3(folder, scalar, norm=1.0):
    """families/hf/gemma3 with another query_pre_attn_scalar, and (1 + w) of q_norm times norm."""
    source = ROOT / "tests/golden/families/hf/gemma3"
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config.pop("query_pre_attn_scalar")
    (folder / "config.json").write_text(json.dumps(config | ({"query_pre_attn_scalar": scalar} if scalar else {})))
    shutil.copyfile(directory(folder.parent / "any") / "tokenizer.json", folder / "tokenizer.json")
    raw = (source / "model.safetensors").read_bytes()
    n, = struct.unpack("<Q", raw[:8])
    header, out, data = json.loads(raw[8:8 + n]), {}, b""
    for name, t in header.items():
        if name == "__metadata__":
            continue
        x = np.frombuffer(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], "<f2").astype("<f4")
        if "q_norm" in name:
            x = ((1 + x) * np.float32(norm) - 1).astype("<f4")
        out[name] = {"dtype": "F32", "shape": t["shape"], "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    head = json.dumps(out).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return folder


def test_gemma3_divides_scores_by_the_root_of_its_query_scalar(tmp_path):
    """Its heads have 16 numbers, which is what files without the key mean."""
    def value(name, *args):
        p = plumb("verify", gemma3(tmp_path / name, *args), "--tokens", 0, "--file", TEXT, "--json")
        assert p.returncode == 0, p.stderr
        return json.loads(p.stdout)["perplexity"]
    plain = value("plain", None)
    assert value("sixteen", 16) == plain
    quarter = value("larger", 64)
    assert not math.isclose(quarter, plain, rel_tol=1e-3)
    assert math.isclose(quarter, value("norm", 16, 0.5), rel_tol=1e-6)
