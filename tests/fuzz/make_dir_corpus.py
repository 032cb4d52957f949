#!/usr/bin/env python3
"""Write tests/fuzz/corpus/safetensors and corpus/tokenizer_json: small good inputs of each kind for the fuzzers to start from.

    python tests/fuzz/make_dir_corpus.py        (needs nothing but Python)"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
SIZE = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4, "F8_E4M3": 1}


def tensor_file(tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        n = SIZE[dtype]
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(i * 37 % 251 for i in range(at))


def directory(name, config, tensors, tokenizer=b""):
    config = json.dumps(config, separators=(",", ":")).encode()
    data = struct.pack("<H", len(config)) + config + struct.pack("<H", len(tokenizer)) + tokenizer + tensor_file(tensors)
    (CORPUS / "safetensors" / name).write_bytes(data)


def layer(d, f, kind="F32"):
    p = "model.layers.0."
    return {p + "self_attn.q_proj.weight": (kind, [d, d]), p + "self_attn.k_proj.weight": (kind, [d, d]),
            p + "mlp.down_proj.weight": (kind, [d, f]), p + "input_layernorm.weight": ("F32", [d])}


def safetensors():
    base = dict(hidden_size=8, intermediate_size=4, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64)
    table = {"model.embed_tokens.weight": ("BF16", [4, 8]), "model.norm.weight": ("F32", [8])}
    rope = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    directory("llama", base | dict(architectures=["LlamaForCausalLM"], rope_theta=1e4, rope_scaling=rope), table | layer(8, 4),
              b'{"chat_template":[{"name":"default","template":"x"}],"bos_token":{"content":"<s>"}}')
    directory("gemma3", base | dict(architectures=["Gemma3ForConditionalGeneration"], vision_config={},
                                    text_config=dict(base, model_type="gemma3_text", layer_types=["full_attention"])),
              {"model.language_model.norm.weight": ("BF16", [8]), "model.vision_tower.x": ("F32", [2, 1, 2, 1, 3])})
    directory("longrope", base | dict(architectures=["Phi3ForCausalLM"], original_max_position_embeddings=16,
                                      rope_scaling=dict(type="longrope", long_factor=[1.5, 2], short_factor=[1, 1.0])), table)
    directory("yarn", base | dict(model_type="qwen2", rope_parameters=dict(rope_type="yarn", factor=4, truncate=False)), table)
    mlx = {"model.embed_tokens.weight": ("U32", [2, 8]), "model.embed_tokens.scales": ("BF16", [2, 1]),
           "model.embed_tokens.biases": ("BF16", [2, 1])}
    directory("mlx", base | dict(architectures=["LlamaForCausalLM"],
                                 quantization={"group_size": 64, "bits": 4, "lm_head": False}), mlx)
    fp8 = {"lm_head.weight": ("F8_E4M3", [4, 8]), "lm_head.weight_scale_inv": ("F32", [1, 1]), "lm_head.input_scale": ("F32", [])}
    directory("fp8", base | dict(architectures=["LlamaForCausalLM"],
                                 quantization_config=dict(quant_method="fp8", weight_block_size=[128, 128])), fp8)


def tokenizer(name, text, **parts):
    data = json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.encode()
    (CORPUS / "tokenizer_json" / name).write_bytes(bytes([len(text)]) + text + data)


def tokenizers():
    added = [dict(id=5, content="<s>", special=True), dict(id=6, content="<T>", lstrip=True, rstrip=True, single_word=True)]
    letters = {c: i for i, c in enumerate("ab")} | {"ab": 2, "Ġa": 3, "Ġ": 4}
    tokenizer("byte-level", "ab <s>a<T> b1", added_tokens=added, normalizer={"type": "NFC"},
              pre_tokenizer={"type": "Sequence", "pretokenizers": [
                  {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": False},
                  {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}]},
              post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                              "special_tokens": {"<s>": {"ids": [5]}}},
              decoder={"type": "ByteLevel"}, model={"type": "BPE", "vocab": letters, "merges": ["a b", "Ġ a"], "ignore_merges": True})
    pieces = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<0x62>": 4, "aa": 7}
    tokenizer("metaspace", " a aab ", added_tokens=added, pre_tokenizer={"type": "Metaspace", "prepend_scheme": "first"},
              decoder={"type": "Metaspace"}, model={"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                                                    "vocab": pieces, "merges": [["▁", "a"], ["a", "a"]]})
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
             {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Lowercase"}, {"type": "NFKD"}, {"type": "StripAccents"}]
    tokenizer("llama2", "a  É a", normalizer={"type": "Sequence", "normalizers": steps},
              decoder={"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
              model={"vocab": pieces, "merges": ["▁ a"]})
    tokenizer("bert", "Aé, b中", normalizer={"type": "BertNormalizer", "lowercase": True}, pre_tokenizer={"type": "BertPreTokenizer"},
              post_processor={"type": "BertProcessing", "cls": ["a", 2], "sep": ["b", 3]},
              model={"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1, "##e": 2, ",": 3}})
    tokenizer("unigram", "a b aab", normalizer={"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAAAAAAAeAA="},
              pre_tokenizer={"type": "Metaspace"}, model={"type": "Unigram", "unk_id": 0,
                                                          "vocab": [["<unk>", 0], ["▁", -2.5], ["a", -3], ["▁a", -1]]})
    tokenizer("splits", "a, b-c", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Whitespace"}, {"type": "Punctuation", "behavior": "MergedWithNext"}, {"type": "WhitespaceSplit"},
        {"type": "CharDelimiterSplit", "delimiter": "-"}, {"type": "Split", "pattern": {"String": "."}, "behavior": "Removed"}]},
              model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []})


if __name__ == "__main__":
    for folder in ("safetensors", "tokenizer_json"):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    safetensors()
    tokenizers()
