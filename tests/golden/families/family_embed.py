"""Goldens of models that make embeddings or labels: BERT with its three poolings, RoBERTa, Nomic's BERT, EmbeddingGemma with and without
its dense layers, Qwen3-Embedding; RoBERTa and Qwen3 as rerankers with a classifier."""

import json

import torch
from safetensors.torch import load_file, save_file
from transformers import (BertConfig, BertModel, Gemma3TextConfig, Gemma3TextModel, NomicBertConfig, NomicBertModel, Qwen3Config,
                          Qwen3ForSequenceClassification, Qwen3Model, RobertaConfig, RobertaForSequenceClassification,
                          RobertaModel)

from case import Case

SIZE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=512)
GEMMA = SIZE | dict(num_hidden_layers=7, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=24,
                    use_bidirectional_attention=True)
QWEN3 = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=True)


def mean(model, ids):
    return model(ids).last_hidden_state.mean(1)


def first(model, ids):
    return model(ids).last_hidden_state[:, 0]


def dense_weights():
    gen = torch.Generator().manual_seed(9)
    return [(0.2 * torch.randn(shape, generator=gen)).half().float() for shape in ((56, 32), (24, 56))]


def mean_dense(model, ids):
    x = mean(model, ids)
    for w in dense_weights():
        x = x @ w.T
    return x


def modules(folder, kinds):
    listed = [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind}
              for i, (path, kind) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))


def pooled(mode, arch, has_dense=False):
    def publish(folder):
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
        if has_dense:
            kinds += [("2_Dense", "Dense"), ("3_Dense", "Dense")]
        modules(folder, kinds + [("4_Normalize", "Normalize")])
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(
            {"word_embedding_dimension": 32, **{f"pooling_mode_{m}": m == mode for m in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}}))
        for name, w in zip(("2_Dense", "3_Dense") if has_dense else (), dense_weights()):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(
                {"in_features": w.shape[1], "out_features": w.shape[0], "bias": False,
                 "activation_function": "torch.nn.modules.linear.Identity"}))
            save_file({"linear.weight": w}, folder / name / "model.safetensors", {"format": "pt"})
        return arch
    return publish


def nomic_published(folder):
    """Names and keys of the checkpoints on the hub, which come with code of their own."""
    path = folder / "model.safetensors"
    names = {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2", "self_attn.o_proj": "attn.out_proj",
             "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2"}
    tensors, out = load_file(path), {}
    for name, x in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")) or name.startswith("pooler"):
            continue
        if name.endswith("q_proj.weight"):
            x = torch.cat([tensors[name.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")])
            name = name.replace("self_attn.q_proj", "attn.Wqkv")
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        name = name.replace("embeddings.LayerNorm", "emb_ln")
        out[("encoder." if name.startswith("layers.") else "") + name] = x
    save_file(out, path, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "swiglu", "causal": False,
        "n_embd": 32, "n_inner": 48, "n_layer": 3, "n_head": 4, "n_positions": 8192, "max_trained_positions": 2048,
        "layer_norm_epsilon": 1e-12, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False,
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "type_vocab_size": 2,
        "vocab_size": 288}))
    return pooled("mean_tokens", "NomicBertModel")(folder)


def last(model, ids):
    return model(ids).last_hidden_state[:, -1]


def labels(model, ids):
    return model(ids).logits


def bert_layers(model):
    return model.encoder.layer


def gemma_layers(model):
    return model.layers


CASES = [
    Case("bert", lambda: BertConfig(**SIZE), make=BertModel, layers=bert_layers, publish=pooled("mean_tokens", "BertModel"),
         embed=mean),
    Case("bert-cls", lambda: BertConfig(**SIZE, type_vocab_size=1), make=BertModel, layers=bert_layers, seed=2,
         publish=pooled("cls_token", "BertModel"), embed=first),
    Case("roberta", lambda: RobertaConfig(**SIZE | dict(max_position_embeddings=514), type_vocab_size=1), make=RobertaModel,
         layers=bert_layers, seed=3, publish=pooled("mean_tokens", "RobertaModel"), embed=mean),
    Case("nomic-bert", lambda: NomicBertConfig(**SIZE), make=NomicBertModel, layers=gemma_layers, seed=4,
         publish=nomic_published, embed=mean),
    Case("embeddinggemma", lambda: Gemma3TextConfig(**GEMMA), make=Gemma3TextModel, layers=gemma_layers, seed=5,
         publish=pooled("mean_tokens", "Gemma3TextModel"), embed=mean),
    Case("embeddinggemma-dense", lambda: Gemma3TextConfig(**GEMMA), make=Gemma3TextModel, layers=gemma_layers, seed=6,
         publish=pooled("mean_tokens", "Gemma3TextModel", has_dense=True), embed=mean_dense),
    Case("qwen3-embedding", lambda: Qwen3Config(**QWEN3), make=Qwen3Model, layers=gemma_layers, seed=7,
         publish=pooled("lasttoken", "Qwen3Model"), embed=last),
    Case("roberta-rank", lambda: RobertaConfig(**SIZE | dict(max_position_embeddings=514), type_vocab_size=1, num_labels=1),
         make=RobertaForSequenceClassification, layers=lambda m: m.roberta.encoder.layer, seed=8, embed=labels),
    Case("qwen3-rank", lambda: Qwen3Config(**QWEN3, num_labels=1, pad_token_id=0), make=Qwen3ForSequenceClassification, seed=9,
         publish=lambda folder: "Qwen3ForCausalLM", embed=labels),
]
