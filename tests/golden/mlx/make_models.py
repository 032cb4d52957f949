#!/usr/bin/env python3
"""Tiny MLX-quantised models as mlx-lm writes them, what mlx-lm answers on the CPU, and what two judges say: tests/golden/mlx/NAME.

    pip install mlx-cpu==0.32.4 mlx==0.32.4 mlx-lm==0.32.2 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    tests/golden/mlx/make_models.py [NAME...]

For each: config.json and model.safetensors (of `mlx_lm convert`), answers.json and judges.f16.

answers.json: PROMPTS prompts and mlx-lm's greedy ids after each, the gaps between its two best logits, and the two best ids of the
first judge with their gap, at each position of the answers, all along mlx-lm's ids.
judges.f16: logits [2][prompts * answer][V] as float16. Judge 0 computes with the decoded weights in float64: nothing is rounded but
these. Judge 1 rounds the inputs of quantised products to 8 bits in groups of 32, as docs/numerics.md has it, and nothing else: what
is left between it and plumb is the order of f32 sums, so plumb's distance from judge 0 is that rounding and not a fault.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import mlx.core as mx
import mlx_lm
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

HERE = pathlib.Path(__file__).resolve().parent
D, H, G, K, F, L, V = 128, 4, 2, 32, 128, 2, 288
EPS, THETA = 1e-6, 10000.0
PROMPTS, PROMPT, ANSWER = 3, 20, 16


def optiq(path, _module, *_):
    """Bits by layer, as OptiQ's mixed models have them."""
    if "lm_head" in path:
        return False
    if "down_proj" in path:
        return {"bits": 8, "group_size": 64}
    if "self_attn" in path:
        return {"bits": 4 if "layers.0" in path else 5, "group_size": 32}
    return {"bits": 3 if "layers.0" in path and "up_proj" in path else 6, "group_size": 128}


#       family, bits, group, dtype of scales and of mlx-lm's activations
CASES = {
    "llama-2-64": ("llama", 2, 64, "float32"),
    "llama-3-32": ("llama", 3, 32, "float32"),
    "llama-4-64": ("llama", 4, 64, "float32"),
    "llama-5-32": ("llama", 5, 32, "float16"),
    "llama-6-128": ("llama", 6, 128, "float32"),
    "llama-8-32": ("llama", 8, 32, "float32"),
    "llama-mixed": ("llama", optiq, 64, "float32"),
    "qwen2-3-64": ("qwen2", 3, 64, "float32"),
    "qwen2-4-128": ("qwen2", 4, 128, "bfloat16"),
}


def source(folder, family):
    rng = np.random.default_rng(7)
    def normal(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape)).astype(np.float32)
    t = {"model.embed_tokens.weight": normal(V, D, scale=0.5), "model.norm.weight": 1 + normal(D, scale=0.2)}
    if family == "llama":
        t["lm_head.weight"] = normal(V, D, scale=1.3 / D**0.5)
    for i in range(L):
        p = f"model.layers.{i}."
        for name, rows, cols in (("self_attn.q_proj", H * K, D), ("self_attn.k_proj", G * K, D),
                                 ("self_attn.v_proj", G * K, D), ("self_attn.o_proj", D, H * K),
                                 ("mlp.gate_proj", F, D), ("mlp.up_proj", F, D), ("mlp.down_proj", D, F)):
            t[f"{p}{name}.weight"] = normal(rows, cols, scale=1.3 / cols**0.5)
            if family == "qwen2" and name.split(".")[1][0] in "qkv" and "self_attn" in name:
                t[f"{p}{name}.bias"] = normal(rows, scale=0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            t[f"{p}{name}.weight"] = 1 + normal(D, scale=0.2)
    save_file(t, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM" if family == "llama" else "Qwen2ForCausalLM"], "model_type": family,
              "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L, "num_attention_heads": H,
              "num_key_value_heads": G, "head_dim": K, "max_position_embeddings": 512, "vocab_size": V,
              "rms_norm_eps": EPS, "rope_theta": THETA, "hidden_act": "silu",
              "tie_word_embeddings": family == "qwen2", "bos_token_id": V - 2, "eos_token_id": V - 1,
              "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    # mlx-lm converts nothing without a tokenizer; it is not stored
    Tokenizer(models.WordLevel({f"t{i}": i for i in range(V)}, unk_token="t0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


# --- judges ---

class Judge:
    """The forward pass of both families in float64."""

    def __init__(self, folder, rounds):
        config = json.loads((folder / "config.json").read_text())
        self.w, self.quantised, self.rounds = {}, set(), rounds
        raw = mx.load(str(folder / "model.safetensors"))
        for name, x in raw.items():
            stem = name.rsplit(".", 1)[0]
            if name.endswith((".scales", ".biases")):
                continue
            if stem + ".scales" in raw and name.endswith(".weight"):
                q = {**config["quantization"], **(config["quantization"].get(stem) or {})}
                x = mx.dequantize(x.astype(mx.uint32), raw[stem + ".scales"].astype(mx.float32),
                                  raw[stem + ".biases"].astype(mx.float32), group_size=q["group_size"], bits=q["bits"])
                self.quantised.add(stem)
            self.w[name] = np.array(x.astype(mx.float32)).astype(np.float64)

    def linear(self, x, stem):
        if self.rounds and stem in self.quantised:
            g = x.astype(np.float32).reshape(x.shape[0], -1, 32)
            top = np.abs(g).max(-1, keepdims=True)
            d = top / np.float32(127)
            q = np.rint(g * (np.float32(127) / np.where(top > 0, top, 1)))
            x = (d.astype(np.float64) * q).reshape(x.shape)
        return x @ self.w[stem + ".weight"].T + self.w.get(stem + ".bias", 0)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * self.w[name + ".weight"]

    def rope(self, x):
        a = np.arange(x.shape[0])[:, None] * THETA ** (-np.arange(0, K, 2) / K)
        c, s = np.cos(a)[:, None], np.sin(a)[:, None]
        lo, hi = x[..., : K // 2], x[..., K // 2:]
        return np.concatenate([lo * c - hi * s, hi * c + lo * s], -1)

    def attention(self, x, p):
        n = x.shape[0]
        q = self.rope(self.linear(x, p + "q_proj").reshape(n, H, K))
        k = self.rope(self.linear(x, p + "k_proj").reshape(n, G, K)).repeat(H // G, 1)
        v = self.linear(x, p + "v_proj").reshape(n, G, K).repeat(H // G, 1)
        s = np.einsum("ihk,jhk->hij", q, k) / K**0.5 + np.triu(np.full((n, n), -np.inf), 1)
        s = np.exp(s - s.max(-1, keepdims=True))
        return self.linear(np.einsum("hij,jhk->ihk", s / s.sum(-1, keepdims=True), v).reshape(n, H * K), p + "o_proj")

    def logits(self, ids):
        x = self.w["model.embed_tokens.weight"][np.array(ids)]
        for i in range(L):
            p = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, p + "input_layernorm"), p + "self_attn.")
            h = self.norm(x, p + "post_attention_layernorm")
            gate = self.linear(h, p + "mlp.gate_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * self.linear(h, p + "mlp.up_proj"), p + "mlp.down_proj")
        head = "lm_head" if "lm_head.weight" in self.w else "model.embed_tokens"
        return self.linear(self.norm(x, "model.norm"), head)


def logprobs(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def kl(p, q):
    p, q = logprobs(p), logprobs(q)
    return (np.exp(p) * (p - q)).sum(-1)


def best_two(row):
    a, b = np.argsort(-row, kind="stable")[:2]
    return [int(a), int(b), round(float(row[a] - row[b]), 4)]


# --- one model ---

def make(name):
    family, bits, group, dtype = CASES[name]
    out = HERE / name
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        source(folder, family)
        how = {"quant_predicate": bits, "q_bits": 4} if callable(bits) else {"q_bits": bits}
        mlx_lm.convert(str(folder), str(out), quantize=True, q_group_size=group, dtype=dtype, **how)
    for extra in ("README.md", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
                  "tokenizer_config.json", "special_tokens_map.json"):
        (out / extra).unlink(missing_ok=True)
    model, _ = mlx_lm.utils.load_model(out)
    plain, rounded = Judge(out, False), Judge(out, True)
    rows, judged, theirs = [], [[], []], []
    for k in range(PROMPTS):
        prompt = [(i * 7919 + i * i * 31 + k * 101) % 280 for i in range(PROMPT)]
        greedy, gaps = [], []
        for _ in range(ANSWER):
            row = np.array(model(mx.array([prompt + greedy]))[0, -1].astype(mx.float32)).astype(np.float64)
            theirs.append(row)
            a, _, gap = best_two(row)
            greedy.append(a)
            gaps.append(gap)
        for i, judge in enumerate((plain, rounded)):
            judged[i].append(judge.logits((prompt + greedy)[:-1])[PROMPT - 1:])
        rows.append({"prompt": prompt, "greedy": greedy, "gaps": gaps, "judge": [best_two(r) for r in judged[0][-1]]})
    judged = [np.concatenate(j) for j in judged]
    np.array(judged).astype(np.float16).tofile(out / "judges.f16")
    lines = [json.dumps(r, separators=(",", ":")) for r in rows]
    (out / "answers.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    theirs = np.array(theirs)
    same = (theirs.argmax(-1) == judged[0].argmax(-1)).sum()
    print(f"{name}: mlx-lm {same} of {len(theirs)} as the judge, KL {kl(judged[0], theirs).mean():.2e}; with 8-bit inputs "
          f"{(judged[1].argmax(-1) == judged[0].argmax(-1)).sum()}, KL {kl(judged[0], judged[1]).mean():.2e}; "
          f"near ties (0.1) {sum(j[2] < 0.1 for r in rows for j in r['judge'])}", flush=True)


for case in sys.argv[1:] or CASES:
    make(case)
