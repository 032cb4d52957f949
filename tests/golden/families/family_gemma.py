"""Goldens of Gemma 1 to 3. Gemma 2's window is shorter than the prompt."""

from transformers import Gemma2Config, Gemma3TextConfig, GemmaConfig

from case import Case, embedding_times

SIZE = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            max_position_embeddings=512, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh")

CASES = [
    Case("gemma", lambda: GemmaConfig(**SIZE, num_hidden_layers=3), embedding_times(0.05)),
    Case("gemma2", lambda: Gemma2Config(**SIZE, num_hidden_layers=4, sliding_window=24, query_pre_attn_scalar=16,
                                        attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
         embedding_times(0.05), seed=2),
    Case("gemma3", lambda: Gemma3TextConfig(**SIZE, num_hidden_layers=7, sliding_window=24, query_pre_attn_scalar=16),
         embedding_times(0.05), seed=3),
]
