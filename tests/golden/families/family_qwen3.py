"""Goldens of Qwen3: norms on the heads of q and k."""

from transformers import Qwen3Config

from case import Case

SIZE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, rms_norm_eps=1e-6)

CASES = [Case("qwen3", lambda: Qwen3Config(**SIZE, head_dim=16, tie_word_embeddings=True))]
