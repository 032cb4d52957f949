"""Goldens of mixtures of experts: Qwen2 (with a shared one), Qwen3, Mixtral, gpt-oss (with a window shorter than the prompt)."""

import json

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig, Starcoder2Config

from case import Case, embedding_times

SIZE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512)


def alter_gpt_oss(name, x):
    return x * 2 if "sinks" in name else x


def to_mxfp4(folder):
    """Experts as published: codes of two neighbours in a byte, and exponents, for blocks of 32 inputs."""
    path = folder / "model.safetensors"
    tensors, gen = {}, torch.Generator().manual_seed(7)
    for name, x in load_file(path).items():
        if not name.endswith((".down_proj", ".gate_up_proj")):
            tensors[name] = x
            continue
        experts, inputs, outputs = x.shape
        shape = (experts, outputs, inputs // 32)
        tensors[name + "_blocks"] = torch.randint(0, 256, (*shape, 16), generator=gen, dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(121, 125, shape, generator=gen, dtype=torch.uint8)
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return "GptOssForCausalLM"


def gpt_oss():
    return GptOssConfig(**SIZE | dict(num_hidden_layers=3, intermediate_size=32), rms_norm_eps=1e-5, head_dim=16,
                        num_local_experts=4, num_experts_per_tok=2, sliding_window=24, pad_token_id=0,
                        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                             truncate=False, original_max_position_embeddings=64))


CASES = [
    Case("qwen2moe", lambda: Qwen2MoeConfig(**SIZE | dict(num_hidden_layers=2), rms_norm_eps=1e-6, num_experts=6,
                                            num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=40,
                                            norm_topk_prob=False, decoder_sparse_step=1), seed=5),
    Case("qwen3moe", lambda: Qwen3MoeConfig(**SIZE | dict(num_hidden_layers=2), rms_norm_eps=1e-6, head_dim=16, num_experts=8,
                                            num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True,
                                            tie_word_embeddings=True), embedding_times(0.1)),
    # no golden: for tests/exact, where experts are quantised
    Case("qwen3moe-q8", lambda: Qwen3MoeConfig(**SIZE | dict(num_hidden_layers=2), rms_norm_eps=1e-6, head_dim=16, num_experts=8,
                                               num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True,
                                               tie_word_embeddings=True), embedding_times(0.1), is_quantised=True),
    Case("mixtral", lambda: MixtralConfig(**SIZE | dict(num_hidden_layers=2, intermediate_size=32), rms_norm_eps=1e-6,
                                          num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True),
         embedding_times(0.1), seed=2),
    Case("gpt-oss", gpt_oss, alter_gpt_oss, seed=3),
    Case("gpt-oss-mxfp4", gpt_oss, alter_gpt_oss, seed=3, publish=to_mxfp4, has_golden=False),
    Case("starcoder2", lambda: Starcoder2Config(**SIZE, norm_epsilon=1e-5, sliding_window=None, hidden_act="gelu_pytorch_tanh"),
         embedding_times(0.1), seed=4),
]
