"""Goldens of the llama family: each kind of rotary scaling, mistral's window, layers without rotation, MiniCPM5 (a llama whose head is
not its embedding)."""

from transformers import LlamaConfig, MistralConfig, SmolLM3Config

from case import Case

SIZE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, rms_norm_eps=1e-6)
HEAD = 8


def rope(kind, **more):
    return dict(rope_type=kind, rope_theta=10000.0, **more)


def llama(**more):
    return lambda: LlamaConfig(**SIZE, tie_word_embeddings=True, **more)


CASES = [
    Case("llama3", llama(rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                              original_max_position_embeddings=32))),
    Case("llama-linear", llama(rope_parameters=rope("linear", factor=4.0)), seed=2),
    Case("llama-yarn4", llama(rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=128)), seed=3),
    Case("llama-bias", lambda: LlamaConfig(**SIZE, attention_bias=True, head_dim=12), seed=4),
    Case("mistral", lambda: MistralConfig(**SIZE, sliding_window=None, head_dim=16), seed=5),
    Case("minicpm5", lambda: LlamaConfig(**SIZE | dict(num_hidden_layers=4), head_dim=16, rope_theta=5e6, attention_bias=False,
                                         tie_word_embeddings=False), seed=7),
    Case("smollm3", lambda: SmolLM3Config(**SIZE | dict(num_hidden_layers=5), no_rope_layer_interval=4, pad_token_id=0,
                                          tie_word_embeddings=True), seed=6),
]
