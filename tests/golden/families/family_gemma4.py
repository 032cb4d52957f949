"""Goldens of Gemma 4: heads of two sizes, shared keys and values, inputs for layers; values that are the keys; experts beside the ffn."""

import torch
from safetensors.torch import load_file, save_file

from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

from case import Case

SIZE = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, global_head_dim=16,
            max_position_embeddings=512, sliding_window=24, rms_norm_eps=1e-6, final_logit_softcapping=30.0)
LOCAL, FULL = "sliding_attention", "full_attention"


def alter(name, x):
    if "norm" in name or name.endswith(("router.scale", "per_expert_scale")):
        return 1 + 0.2 * x if "norm" in name else 1 + x
    return x * 0.5 if "embed_tokens.weight" in name else x


def add_unused(folder):
    """Published checkpoints have keys and values for the layers that read others' too."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for layer in (4, 5, 6):
        for name in ("k_proj", "v_proj", "k_norm"):
            stem = "model.layers.{}.self_attn." + name + ".weight"
            tensors[stem.format(layer)] = torch.full_like(tensors[stem.format(2 if layer != 5 else 1)], 0.5)
    save_file(tensors, path, {"format": "pt"})
    return "Gemma4ForCausalLM"


CASES = [
    Case("gemma4-e", lambda: Gemma4TextConfig(
        **SIZE, num_hidden_layers=7, layer_types=[LOCAL, LOCAL, FULL, LOCAL, FULL, LOCAL, FULL], num_kv_shared_layers=3,
        hidden_size_per_layer_input=12, use_double_wide_mlp=True, vocab_size_per_layer_input=288), alter, publish=add_unused),
    Case("gemma4", lambda: Gemma4TextConfig(
        **SIZE, num_hidden_layers=6, layer_types=[LOCAL, LOCAL, FULL, LOCAL, LOCAL, FULL], attention_k_eq_v=True,
        num_global_key_value_heads=1, hidden_size_per_layer_input=0), alter, seed=2),
    Case("gemma4-moe", lambda: Gemma4TextConfig(
        **SIZE, num_hidden_layers=4, layer_types=[LOCAL, FULL, LOCAL, FULL], attention_k_eq_v=True,
        num_global_key_value_heads=1, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6, top_k_experts=2,
        moe_intermediate_size=20), alter, seed=3),
]
