"""Goldens of mixtures of experts: Qwen3, Mixtral, gpt-oss (with a window shorter than the prompt)."""

from transformers import GptOssConfig, MixtralConfig, Qwen3MoeConfig, Starcoder2Config

from case import Case, embedding_times

SIZE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512)


def alter_gpt_oss(name, x):
    return x * 2 if "sinks" in name else x


CASES = [
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
    Case("gpt-oss", lambda: GptOssConfig(**SIZE | dict(num_hidden_layers=3, intermediate_size=32), rms_norm_eps=1e-5, head_dim=16,
                                         num_local_experts=4, num_experts_per_tok=2, sliding_window=24, pad_token_id=0,
                                         rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0,
                                                              beta_slow=1.0, truncate=False,
                                                              original_max_position_embeddings=64)), alter_gpt_oss, seed=3),
    Case("starcoder2", lambda: Starcoder2Config(**SIZE, norm_epsilon=1e-5, sliding_window=None, hidden_act="gelu_pytorch_tanh"),
         embedding_times(0.1), seed=4),
]
