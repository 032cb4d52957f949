#!/usr/bin/env python3
"""Write the seed inputs of fuzz_model into tests/fuzz/corpus/model: whole tiny models (D 32, H 2, G 1, K 16, F 32, V 20, L 1)
of every family and tokenizer kind, each weight of another type."""
import math
import pathlib
import random
import struct

from make_gguf_corpus import ARRAY, BLOCKS, BOOL, F32, I32, STRING, U32, string, value

OUT = pathlib.Path(__file__).parent / "corpus" / "model"
D, H, G, K, F = 32, 2, 1, 16, 32
T_F32, T_F16, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_Q8_0, T_BF16 = 0, 1, 2, 3, 6, 7, 8, 30
TEXT = ["<s>", "</s>", "<unk>", "H", "e", "l", "o", "He", "ll", "Hell", "Hello", "a", "b", "\u0120", "\u0120a", "<|im_end|>", "c",
        "d", "r", "W"]
MERGES = ["H e", "l l", "He ll", "Hell o", "\u0120 a"]


def data_of(rng, kind, elems):
    """Small values: plain types as they are, blocks with a scale of about 0.01 and random quants."""
    if kind == T_F32:
        return struct.pack(f"<{elems}f", *(rng.uniform(0.1, 1) for _ in range(elems)))
    if kind == T_F16:
        return struct.pack(f"<{elems}e", *(rng.uniform(-1, 1) for _ in range(elems)))
    if kind == T_BF16:
        return b"".join(struct.pack("<f", rng.uniform(-1, 1))[2:] for _ in range(elems))
    per, size = BLOCKS[kind]
    n_scales = 2 if kind in (T_Q4_1, T_Q5_1) else 1
    return b"".join(struct.pack(f"<{n_scales}e", *[0.01] * n_scales) + rng.randbytes(size - 2 * n_scales)
                    for _ in range(elems // per))


def model_file(seed, keys, tensors):
    rng = random.Random(seed)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, kind, v in keys:
        out += string(key) + struct.pack("<I", kind) + value(kind, v)
    data = b""
    for name, kind, shape in tensors:
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        elems = math.prod(shape)
        data += data_of(rng, kind, elems)
        data += bytes(-len(data) % 32)
    return out + bytes(-len(out) % 32) + data


def vocabulary(kind):
    keys = [("tokenizer.ggml.model", STRING, kind), ("tokenizer.ggml.tokens", ARRAY, (STRING, TEXT)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3, 2] + [1] * 12 + [3] + [1] * 4)),
            ("tokenizer.ggml.bos_token_id", U32, 0), ("tokenizer.ggml.eos_token_id", U32, 1),
            ("tokenizer.ggml.unknown_token_id", U32, 2)]
    if kind == "gpt2":
        keys += [("tokenizer.ggml.pre", STRING, "qwen2"), ("tokenizer.ggml.merges", ARRAY, (STRING, MERGES))]
    else:
        keys += [("tokenizer.ggml.scores", ARRAY, (F32, [-float(i) for i in range(len(TEXT))])),
                 ("tokenizer.ggml.add_bos_token", BOOL, 1)]
    return keys


def family(arch, extra=(), norms=(), biases=False, kinds=(T_Q8_0,) * 8):
    keys = [("general.architecture", STRING, arch), (f"{arch}.block_count", U32, 1), (f"{arch}.embedding_length", U32, D),
            (f"{arch}.feed_forward_length", U32, F), (f"{arch}.attention.head_count", U32, H),
            (f"{arch}.attention.head_count_kv", U32, G), (f"{arch}.context_length", U32, 128),
            (f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5), (f"{arch}.rope.freq_base", F32, 10000.0), *extra]
    matrices = [("attn_q", [D, H * K]), ("attn_k", [D, G * K]), ("attn_v", [D, G * K]), ("attn_output", [H * K, D]),
                ("ffn_gate", [D, F]), ("ffn_up", [D, F]), ("ffn_down", [F, D])]
    tensors = [("token_embd.weight", kinds[0], [D, len(TEXT)]), ("output_norm.weight", T_F32, [D])]
    tensors += [(f"blk.0.{n}.weight", kinds[i + 1], shape) for i, (n, shape) in enumerate(matrices)]
    tensors += [(f"blk.0.{n}.weight", T_F32, [size]) for n, size in (("attn_norm", D), ("ffn_norm", D), *norms)]
    if biases:
        tensors += [(f"blk.0.{n}.bias", T_F32, [size]) for n, size in (("attn_q", H * K), ("attn_k", G * K), ("attn_v", G * K))]
    return keys, tensors


def hybrid(arch="qwen35"):
    """A recurrent layer, one with attention, and a head for multi-token prediction."""
    taps, dim, heads = 4, 8, 2
    cols, values = 2 * dim + heads * dim, heads * dim
    keys = [("general.architecture", STRING, arch), (f"{arch}.block_count", U32, 3), (f"{arch}.embedding_length", U32, D),
            (f"{arch}.feed_forward_length", U32, F), (f"{arch}.attention.head_count", U32, H),
            (f"{arch}.attention.head_count_kv", U32, G), (f"{arch}.attention.key_length", U32, K),
            (f"{arch}.attention.value_length", U32, K), (f"{arch}.context_length", U32, 128),
            (f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5), (f"{arch}.rope.dimension_count", U32, 4),
            (f"{arch}.ssm.conv_kernel", U32, taps), (f"{arch}.ssm.state_size", U32, dim), (f"{arch}.ssm.group_count", U32, 1),
            (f"{arch}.ssm.time_step_rank", U32, heads), (f"{arch}.ssm.inner_size", U32, values),
            (f"{arch}.full_attention_interval", U32, 2), (f"{arch}.nextn_predict_layers", U32, 1)]
    state = [("attn_qkv.weight", T_Q8_0, [D, cols]), ("attn_gate.weight", T_F16, [D, values]), ("ssm_alpha.weight", T_F32, [D, heads]),
             ("ssm_beta.weight", T_F32, [D, heads]), ("ssm_conv1d.weight", T_F32, [taps, cols]), ("ssm_dt.bias", T_F32, [heads]),
             ("ssm_a", T_F32, [heads]), ("ssm_norm.weight", T_F32, [dim]), ("ssm_out.weight", T_F16, [values, D])]
    attn = [("attn_q.weight", T_Q4_0, [D, 2 * H * K]), ("attn_k.weight", T_F16, [D, G * K]), ("attn_v.weight", T_F16, [D, G * K]),
            ("attn_q_norm.weight", T_F32, [K]), ("attn_k_norm.weight", T_F32, [K]), ("attn_output.weight", T_Q8_0, [H * K, D])]
    both = [("attn_norm.weight", T_F32, [D]), ("post_attention_norm.weight", T_F32, [D]), ("ffn_gate.weight", T_Q8_0, [D, F]),
            ("ffn_up.weight", T_Q8_0, [D, F]), ("ffn_down.weight", T_Q8_0, [F, D])]
    head = [("nextn.eh_proj.weight", T_Q8_0, [2 * D, D]), ("nextn.enorm.weight", T_F32, [D]), ("nextn.hnorm.weight", T_F32, [D]),
            ("nextn.shared_head_norm.weight", T_F32, [D]), ("nextn.embed_tokens.weight", T_F16, [D, len(TEXT)])]
    tensors = [("token_embd.weight", T_Q8_0, [D, len(TEXT)]), ("output_norm.weight", T_F32, [D])]
    for i, rows in enumerate((state + both, attn + both, attn + both + head)):
        tensors += [(f"blk.{i}.{name}", kind, shape) for name, kind, shape in rows]
    return keys, tensors


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    mixed = (T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_Q8_0, T_F16, T_BF16, T_Q4_1)
    llama = family("llama", kinds=mixed)
    plain = family("llama", [("llama.rope.dimension_count", U32, 8), ("llama.rope.scaling.type", STRING, "linear"),
                             ("llama.rope.scaling.factor", F32, 2.0)], kinds=(T_F32,) * 8)
    plain[1].append(("rope_freqs.weight", T_F32, [4]))
    qwen2 = family("qwen2", [("qwen2.rope.scaling.type", STRING, "yarn"), ("qwen2.rope.scaling.factor", F32, 4.0),
                             ("qwen2.rope.scaling.original_context_length", U32, 32)], biases=True)
    gemma3 = family("gemma3", [("gemma3.attention.sliding_window", U32, 4), ("gemma3.attention.key_length", U32, K),
                               ("gemma3.attention.value_length", U32, K)],
                    norms=(("attn_q_norm", K), ("attn_k_norm", K), ("post_attention_norm", D), ("post_ffw_norm", D)))
    norms = (("attn_q_norm", K), ("attn_k_norm", K))
    drafter = [("dflash.block_size", U32, 4), ("dflash.target_layers", ARRAY, (I32, [1, 3])), ("tokenizer.ggml.mask_token_id", U32, 16)]
    plain_block, head_block = family("dflash", drafter, norms), family("dflash", drafter + [("dflash.attention.sliding_window", U32, 4)], norms)
    for block in (plain_block, head_block):
        block[1].extend([("output.weight", T_Q8_0, [D, len(TEXT)]), ("fc.weight", T_Q8_0, [2 * D, D]), ("enc.output_norm.weight", T_F32, [D])])
    head_block[1].extend([("markov_w1.weight", T_F16, [8, len(TEXT)]), ("markov_w2.weight", T_F16, [8, len(TEXT)]),
                          ("markov_joint.weight", T_F16, [2 * 8 + D, 3 * 8]), ("markov_joint.bias", T_F32, [3 * 8]),
                          ("conf_proj.weight", T_F16, [D + 8, 1]), ("conf_proj.bias", T_F32, [1])])
    second = family("dflash", drafter + [("dflash.conv_kernel_size", U32, 2), ("dflash.conv_group_size", U32, 8),
                                         ("dflash.selector_top_k", U32, 4)], norms)
    second[1].extend([("output.weight", T_Q8_0, [D, len(TEXT)]), ("fc.weight", T_Q8_0, [2 * D, D]), ("enc.output_norm.weight", T_F32, [D]),
                      ("selector_predecessor.weight", T_F16, [8, len(TEXT)]), ("selector_successor.weight", T_F16, [8, len(TEXT)]),
                      ("selector_hidden.weight", T_F16, [D, 8])])
    for part in ("attn", "ffn"):
        second[1].extend([(f"blk.0.{part}_conv_base", T_F32, [D, 2, 2]), (f"blk.0.{part}_conv_proj.weight", T_F16, [D, 2 * 2 * D // 8])])
    files = {
        "llama": model_file(1, llama[0] + vocabulary("gpt2"), llama[1]),
        "llama_f32": model_file(2, plain[0] + vocabulary("llama"), plain[1]),
        "qwen2": model_file(3, qwen2[0] + vocabulary("gpt2"), qwen2[1]),
        "gemma3": model_file(4, gemma3[0] + vocabulary("llama"), gemma3[1]),
        "head": model_file(7, hybrid()[0] + vocabulary("gpt2"), hybrid()[1]),
        "dflash": model_file(8, plain_block[0] + vocabulary("gpt2"), plain_block[1]),
        "dspark": model_file(9, head_block[0] + vocabulary("gpt2"), head_block[1]),
        "dflash2": model_file(10, second[0] + vocabulary("gpt2"), second[1]),
        "bert_vocabulary": model_file(5, [("general.architecture", STRING, "bert")] + vocabulary("bert"), []),
        "t5_vocabulary": model_file(6, [("general.architecture", STRING, "t5")] + vocabulary("t5"), []),
    }
    for name, data in files.items():
        (OUT / name).write_bytes(data)


if __name__ == "__main__":
    main()
