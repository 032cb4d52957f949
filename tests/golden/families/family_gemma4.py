"""Goldens of Gemma 4: heads of two sizes, shared keys and values, inputs for layers; values that are the keys."""

from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

from case import Case

SIZE = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, global_head_dim=16,
            max_position_embeddings=512, sliding_window=24, rms_norm_eps=1e-6, final_logit_softcapping=30.0)
LOCAL, FULL = "sliding_attention", "full_attention"


def alter(name, x):
    return 1 + 0.2 * x if "norm" in name else x * 0.5 if "embed_tokens.weight" in name else x


CASES = [
    Case("gemma4-e", lambda: Gemma4TextConfig(
        **SIZE, num_hidden_layers=7, layer_types=[LOCAL, LOCAL, FULL, LOCAL, FULL, LOCAL, FULL], num_kv_shared_layers=3,
        hidden_size_per_layer_input=12, use_double_wide_mlp=True, vocab_size_per_layer_input=288), alter),
    Case("gemma4", lambda: Gemma4TextConfig(
        **SIZE, num_hidden_layers=6, layer_types=[LOCAL, LOCAL, FULL, LOCAL, LOCAL, FULL], attention_k_eq_v=True,
        num_global_key_value_heads=1, hidden_size_per_layer_input=0), alter, seed=2),
]
