"""Goldens of the hybrids of attention and gated delta nets: Qwen3-Next, Qwen3.5 and their mixtures of experts."""

from transformers import Qwen3_5TextConfig, Qwen3NextConfig
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

from case import Case

SIZE = dict(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
            max_position_embeddings=512, rms_norm_eps=1e-6, linear_conv_kernel_dim=4, linear_num_key_heads=2)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24)
ROPE = dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25)


def alter(name, x):
    if name.endswith("A_log"):  # from slow to fast decay
        return x * 3 - 1
    if "norm" in name and not name.endswith("linear_attn.norm.weight"):  # stored without their 1
        return x - 1
    return x


CASES = [
    # the last layer is a recurrent one
    Case("qwen35", lambda: Qwen3_5TextConfig(**SIZE, num_hidden_layers=5, linear_num_value_heads=4, linear_key_head_dim=8,
                                             linear_value_head_dim=8, rope_parameters=ROPE), alter),
    Case("qwen35-tied", lambda: Qwen3_5TextConfig(**SIZE, num_hidden_layers=4, linear_num_value_heads=2,
                                                  linear_key_head_dim=16, linear_value_head_dim=20, tie_word_embeddings=True,
                                                  rope_parameters=ROPE), alter, seed=2),
    Case("qwen35moe", lambda: Qwen3_5MoeTextConfig(**SIZE, **MOE, num_hidden_layers=4, linear_num_value_heads=4,
                                                   linear_key_head_dim=8, linear_value_head_dim=8, rope_parameters=ROPE),
         alter, seed=5),
    Case("qwen3next", lambda: Qwen3NextConfig(**SIZE, **MOE, num_hidden_layers=5, linear_num_value_heads=6,
                                              linear_key_head_dim=8, linear_value_head_dim=8, rope_parameters=ROPE,
                                              decoder_sparse_step=1, mlp_only_layers=[]), alter, seed=4),
]
