#!/usr/bin/env python3
"""Write tests/golden/tiny/*.gguf: small models with random weights, one for each corner of the families.

    python tests/golden/make_tiny.py        (needs gguf and numpy; the output is the same on every machine)

Every block type that the real models use, and the simpler ones, occurs in some matrix; sizes are not multiples of the cache page or of vector registers; the sliding window is shorter than a page. The vocabulary is the 256
bytes in GPT-2 spelling, 30 merges and two control tokens, so that every program that reads GGUF can load the files."""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

OUT = pathlib.Path(__file__).resolve().parent / "tiny"
MERGES = ("t h", "h e", "i n", "e r", "a n", "r e", "o n", "a t", "e n", "n d", "t i", "e s", "o r", "t e", "o f", "e d",
          "i s", "i t", "a l", "a r", "s t", "t o", "n t", "Ġ t", "Ġ a", "th e", "Ġt h", "in g", "an d", "Ġ s")


def byte_spelling():
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in plain:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return [table[b] for b in range(256)]


TOKENS = byte_spelling() + [m.replace(" ", "") for m in MERGES] + ["<|start|>", "<|end|>"]
V = len(TOKENS)


def halves(x):
    return np.float16(x).view(np.uint16).astype("<u2").tobytes()


def k_blocks(rng, kind, n_blocks, std):
    """Random blocks of a type that gguf cannot write, with scales for the wanted standard deviation."""
    out = []
    for _ in range(n_blocks):
        if kind in (T.Q4_K, T.Q5_K):
            d = std / (150 if kind == T.Q4_K else 300)
            m = d * (7.5 if kind == T.Q4_K else 15.5)
            n = 12 + (128 if kind == T.Q4_K else 32 + 128)
            out.append(halves([d, m]) + rng.integers(0, 256, n, np.uint8).tobytes())
        elif kind == T.Q6_K:
            out.append(rng.integers(0, 256, 128 + 64 + 16, np.uint8).tobytes() + halves([std / 1200]))
    return np.frombuffer(b"".join(out), np.uint8)


def matrix(w, rng, name, rows, cols, kind, std=None):
    std = std if std is not None else 1.3 / np.sqrt(cols)
    if kind in (T.Q4_K, T.Q5_K, T.Q6_K):
        data = k_blocks(rng, kind, rows * cols // 256, std).reshape(rows, -1)
        w.add_tensor(name, data, raw_dtype=kind)
        return
    x = (rng.standard_normal((rows, cols)) * std).astype(np.float32)
    if kind in (T.F32, T.F16):
        w.add_tensor(name, x if kind == T.F32 else x.astype(np.float16))
    else:
        w.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)


def vector(w, rng, name, n, mean=1.0, std=0.2):
    w.add_tensor(name, (mean + rng.standard_normal(n) * std).astype(np.float32))


def write(name, arch, seed, size, types, extra=lambda w, rng: None, biases=(), gemma=False, tied=False):
    D, H, G, K, F, L = size
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(OUT / f"{name}.gguf", arch)
    w.add_name(f"tiny {name}")
    w.add_context_length(512)
    w.add_embedding_length(D)
    w.add_block_count(L)
    w.add_feed_forward_length(F)
    w.add_head_count(H)
    w.add_head_count_kv(G)
    w.add_key_length(K)
    w.add_value_length(K)
    w.add_rope_dimension_count(K)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(V)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(TOKENS)
    w.add_token_types([1] * (V - 2) + [3, 3])
    w.add_token_merges(list(MERGES))
    w.add_bos_token_id(V - 2)
    w.add_eos_token_id(V - 1)
    w.add_add_bos_token(False)
    extra(w, rng)
    matrix(w, rng, "token_embd.weight", V, D, types["embed"], 0.3)
    vector(w, rng, "output_norm.weight", D)
    if not tied:
        matrix(w, rng, "output.weight", V, D, types["head"], 2.5 / np.sqrt(D))
    for i in range(L):
        b = f"blk.{i}."
        vector(w, rng, b + "attn_norm.weight", D)
        for part, rows in (("q", H * K), ("k", G * K), ("v", G * K)):
            matrix(w, rng, f"{b}attn_{part}.weight", rows, D, types[part])
            if part in biases:
                vector(w, rng, f"{b}attn_{part}.bias", rows, 0.0, 0.5)
        matrix(w, rng, b + "attn_output.weight", D, H * K, types["o"])
        if "o" in biases:
            vector(w, rng, b + "attn_output.bias", D, 0.0, 0.3)
        vector(w, rng, b + "ffn_norm.weight", D)
        matrix(w, rng, b + "ffn_gate.weight", F, D, types["gate"])
        matrix(w, rng, b + "ffn_up.weight", F, D, types["up"])
        matrix(w, rng, b + "ffn_down.weight", D, F, types["down"])
        if gemma:
            vector(w, rng, b + "attn_q_norm.weight", K)
            vector(w, rng, b + "attn_k_norm.weight", K)
            vector(w, rng, b + "post_attention_norm.weight", D)
            vector(w, rng, b + "post_ffw_norm.weight", D)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{name}.gguf", (OUT / f"{name}.gguf").stat().st_size)


def llama3_rope(w, rng):
    w.add_rope_freq_base(500000.0)
    w.add_tensor("rope_freqs.weight", np.array([1, 1, 1, 1.7, 3.9, 8, 8, 8], np.float32))


def yarn_rope(w, rng):
    w.add_rope_freq_base(10000.0)
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(4.0)
    w.add_rope_scaling_orig_ctx_len(128)


def linear_rope(w, rng):
    w.add_rope_freq_base(10000.0)
    w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    w.add_rope_scaling_factor(2.0)


def gemma_keys(w, rng):
    w.add_rope_freq_base(1000000.0)
    w.add_sliding_window(48)


def main():
    OUT.mkdir(exist_ok=True)
    write("llama", "llama", 1, (64, 4, 2, 16, 256, 3),
          dict(embed=T.Q8_0, head=T.Q8_0, q=T.Q4_1, k=T.Q8_0, v=T.Q5_0, o=T.Q4_0, gate=T.Q5_1, up=T.Q4_0, down=T.Q4_K),
          llama3_rope)
    write("llama-yarn", "llama", 2, (32, 2, 1, 16, 96, 2),
          dict(embed=T.F16, head=T.BF16, q=T.F32, k=T.BF16, v=T.F16, o=T.F32, gate=T.BF16, up=T.F16, down=T.F32),
          yarn_rope, biases="qkvo")
    write("qwen2", "qwen2", 3, (64, 2, 1, 32, 256, 3),
          dict(embed=T.Q8_0, q=T.Q8_0, k=T.Q5_1, v=T.Q4_1, o=T.Q5_0, gate=T.Q4_0, up=T.Q8_0, down=T.Q6_K),
          linear_rope, biases="qkv", tied=True)
    write("qwen2-kq", "qwen2", 4, (256, 4, 1, 64, 256, 1),
          dict(embed=T.Q6_K, q=T.Q4_K, k=T.Q5_K, v=T.Q6_K, o=T.Q4_K, gate=T.Q6_K, up=T.Q4_K, down=T.Q5_K),
          linear_rope, biases="qkv", tied=True)
    write("gemma3", "gemma3", 5, (64, 2, 1, 64, 96, 7),
          dict(embed=T.Q8_0, q=T.Q5_0, k=T.Q8_0, v=T.Q8_0, o=T.Q4_0, gate=T.Q5_0, up=T.Q5_0, down=T.Q8_0),
          gemma_keys, gemma=True, tied=True)
    # f16 throughout: no rounding of activations, so goldens of another engine must be met wherever there is no near tie
    f16 = dict.fromkeys(("embed", "head", "q", "k", "v", "o", "gate", "up", "down"), T.F16)
    write("llama-f16", "llama", 6, (48, 3, 1, 16, 64, 3), f16, llama3_rope)
    write("qwen2-f16", "qwen2", 7, (48, 2, 1, 24, 80, 3), f16, linear_rope, biases="qkv", tied=True)
    write("gemma3-f16", "gemma3", 8, (32, 2, 1, 32, 48, 7), f16, gemma_keys, gemma=True)


if __name__ == "__main__":
    main()
