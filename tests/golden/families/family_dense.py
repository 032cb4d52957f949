"""Goldens of dense families that differ from llama by a little: Qwen2, Phi-3, OLMo 2 and 3, GLM-4, Granite, MiniCPM."""

import json

from transformers import (Glm4Config, GraniteConfig, Olmo2Config, Olmo3Config, Phi3Config, Qwen2Config)

from case import Case, embedding_times

SIZE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, rms_norm_eps=1e-6)
PHI = SIZE | dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


def longrope(context):
    return dict(rope_type="longrope", rope_theta=10000.0, long_factor=[1.1, 2.0, 5.5, 9.0],
                short_factor=[1.0, 1.2, 1.5, 2.5], original_max_position_embeddings=64, factor=context / 64)


# MiniCPM's code is not in transformers; it computes what Granite's does.
def minicpm():
    return GraniteConfig(**SIZE, attention_multiplier=8**-0.5, embedding_multiplier=12.0, residual_multiplier=1.4 / 3**0.5,
                         logits_scaling=32 / 16, tie_word_embeddings=True)


def minicpm4():
    """As published: the original context is the context, so that the short divisors are used; the converter does not write it."""
    rope = longrope(512) | dict(original_max_position_embeddings=512, factor=1.0)
    return GraniteConfig(**minicpm().to_dict() | dict(rope_parameters=rope))


def publish_minicpm(folder):
    config = json.loads((folder / "config.json").read_text())
    rope = config["rope_parameters"]
    if rope["rope_type"] == "longrope":  # as MiniCPM 4 has it
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = {k: rope[k] for k in ("rope_type", "long_factor", "short_factor", "original_max_position_embeddings")}
        del config["rope_parameters"]
    config |= dict(architectures=["MiniCPMForCausalLM"], model_type="minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=16)
    (folder / "config.json").write_text(json.dumps(config))
    return "MiniCPMForCausalLM"


CASES = [
    Case("qwen2", lambda: Qwen2Config(**SIZE, tie_word_embeddings=True)),
    Case("phi3", lambda: Phi3Config(**PHI, sliding_window=24, original_max_position_embeddings=512), seed=2),
    # longer than the original context: the long divisors. transformers takes the short ones for short texts
    Case("phi3-long", lambda: Phi3Config(**PHI, rope_parameters=longrope(512), original_max_position_embeddings=64), seed=3),
    Case("phi3-short", lambda: Phi3Config(**PHI | dict(max_position_embeddings=64), rope_parameters=longrope(64),
                                          original_max_position_embeddings=64), seed=4, n_prompt=36),
    Case("olmo2", lambda: Olmo2Config(**SIZE), seed=5),
    Case("olmo3", lambda: Olmo3Config(**SIZE | dict(num_hidden_layers=4), sliding_window=24,
                                      rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                                           original_max_position_embeddings=128)), seed=6),
    Case("glm4", lambda: Glm4Config(**SIZE, head_dim=16, attention_bias=True, pad_token_id=0, partial_rotary_factor=0.5),
         seed=7),
    Case("granite", lambda: GraniteConfig(**SIZE, attention_multiplier=0.3, embedding_multiplier=3.0, residual_multiplier=0.4,
                                          logits_scaling=4.0, tie_word_embeddings=True),
         embedding_times(0.1), seed=8),
    Case("minicpm", minicpm, embedding_times(0.05), seed=9, publish=publish_minicpm),
    Case("minicpm4", minicpm4, embedding_times(0.05), seed=12, publish=publish_minicpm),
]
