#!/usr/bin/env python3
"""Checkpoints with random weights for open_with.py, of families whose golden models are too narrow for llama.cpp: it wants heads that hold
its rotary sections, key and value heads of one size in a delta net, and layers that read the keys of the last two that have some.

    python tests/golden/convert/make_wide.py OUT    # torch and transformers 5; PLUMB as for open_with.py

Each is a directory OUT/NAME in F16 with the golden models' vocabulary."""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

ROOT = pathlib.Path(__file__).resolve().parents[3]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
LOCAL, FULL = "sliding_attention", "full_attention"
HYBRID = dict(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_hidden_layers=4,
              max_position_embeddings=512, linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=32, linear_value_head_dim=32, vocab_size=288,
              rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25))
CASES = {
    "qwen35": lambda: Qwen3_5TextConfig(**HYBRID),
    "qwen35moe": lambda: Qwen3_5MoeTextConfig(**HYBRID, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
                                              shared_expert_intermediate_size=32),
    "gemma4-e": lambda: Gemma4TextConfig(
        hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16, global_head_dim=32,
        num_hidden_layers=6, layer_types=[LOCAL, LOCAL, FULL, LOCAL, LOCAL, FULL], num_kv_shared_layers=3, sliding_window=24,
        hidden_size_per_layer_input=16, use_double_wide_mlp=True, vocab_size=288, vocab_size_per_layer_input=288,
        max_position_embeddings=512, final_logit_softcapping=30.0),
}


def main():
    out = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as d:
        texts = pathlib.Path(d) / "texts"
        subprocess.run([PLUMB, "convert", str(ROOT / "tests/golden/families/qwen3.gguf"), str(texts), "--quiet"], check=True)
        for name, config in CASES.items():
            torch.manual_seed(1)
            model = AutoModelForCausalLM.from_config(config(), dtype=torch.float32)
            for key, p in sorted(model.named_parameters()):
                p.data = 0.3 * torch.randn(p.shape) if p.dim() < 2 else 1.3 / p.shape[-1] ** 0.5 * torch.randn(p.shape)
                if "gemma" in name and "norm" in key:
                    p.data += 1
            model.half().save_pretrained(out / name)
            for text in texts.glob("*tokenizer*"):
                (out / name / text.name).write_bytes(text.read_bytes())
            print(out / name)


if __name__ == "__main__":
    main()
