"""Goldens of Qwen4-Exp (Qwen3.8-Flash-Next): residual streams with hyper-connections, n-grams in the second layer, attention to what an
index picks: all of the prompt, or a third of it. The end token occurs in the prompt, so that n-grams are cut."""

import json

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

from case import Case

SIZE = dict(hidden_size=32, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
            rms_norm_eps=1e-6, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=8, linear_num_key_heads=2,
            linear_num_value_heads=4, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_experts=6, num_experts_per_tok=2,
            hc_count=4, hc_lowrank=12, ple_layer_ids=[2], ple_embed_dim=32, ngram_vocab_size_base=50, make_ngram_vocab_size_divisible_by=8,
            heads_per_ngram=2, indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=8, indexer_budget=256, indexer_compress_ratio=4,
            eos_token_id=55, output_gate_type="sigmoid",
            rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1],
                                 mrope_interleaved=True))


def published(shards):
    """Published checkpoints have the hashes' constants beside the table, in int64; transformers leaves them out. Theirs call the layers with
    attention full."""
    def publish(folder):
        config = Qwen4ExpTextConfig.from_pretrained(folder)
        path = folder / "model.safetensors"
        tensors = load_file(path)
        embedding = Qwen4ExpForCausalLM(config).model.layers[1].ple.ple_embedding
        for name in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"):
            tensors["model.layers.1.ple.ple_embedding." + name] = getattr(embedding, name).clone()
        save_file(tensors, path, {"format": "pt"})
        text = json.loads((folder / "config.json").read_text())
        text["layer_types"] = ["full_attention" if kind == "indexed_attention" else kind for kind in text["layer_types"]]
        assert len([k for k in tensors if ".shard_" in k]) == shards
        (folder / "config.json").write_text(json.dumps(text))
        return "Qwen4ExpForCausalLM"
    return publish


def alter(name, x):
    if "norm" in name and name.endswith("weight") and "linear_attn" not in name:
        return x - 1  # the weights are kept without the one
    return 3 * x if "conv1d" in name else x


CASES = [
    Case("qwen4exp", lambda: Qwen4ExpTextConfig(**SIZE, split_ngram_parts=2), alter, publish=published(2), seed=3),
    # heads enough that no two blocks have the score 0: which of equal ones torch picks is not defined
    Case("qwen4exp-sparse", lambda: Qwen4ExpTextConfig(**SIZE | dict(indexer_budget=32, indexer_n_heads=8), split_ngram_parts=1), alter,
         publish=published(1), seed=4),
]
