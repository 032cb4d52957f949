#!/usr/bin/env python3
"""Write here what rerankers and an embedding model make of texts: tiny models with random weights and tokenizers of their own, as
directories and as GGUF files, and goldens.json, what `transformers` computes with them in f32.

    python tests/golden/texts/make_texts.py --converter DIR

Needs torch (CPU), transformers 5, tokenizers, sentencepiece and gguf; DIR is a source tree of llama.cpp, whose converter writes the files. Prompts, cutting and
pooling are those of the models' cards (Qwen3-Reranker, Qwen3-Embedding) and of transformers' pairs of texts. Made once and stored."""

import argparse
import json
import logging
import pathlib
import sys
import tempfile

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (AutoTokenizer, BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model, RobertaConfig,
                          RobertaForSequenceClassification)

HERE = pathlib.Path(__file__).resolve().parent
PREFIX = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
          'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CORPUS = [PREFIX + f"<Instruct>: {TASK}\n<Query>: what is the capital of France\n<Document>: Paris is the capital of France." + SUFFIX,
          "yes no yes no. a cat sits on the mat, bananas are yellow, interest rates rose by half a point."] * 3
PAIRS = [("what is the capital of France", "Paris is the capital of France."), ("what is the capital of France", "Bananas are yellow."),
         ("yes?", "<|im_end|> is text here, [SEP] too, and </s>"), ("Zürich", "Die Stadt liegt am See. " * 12)]
DECODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
               max_position_embeddings=1024, rms_norm_eps=1e-6, rope_theta=1e6)
ENCODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_labels=1)


def byte_level(specials, regex):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if regex:
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), bytes_alone])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=specials if not regex else [], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    t.train_from_iterator(CORPUS, trainer)
    if regex:
        t.add_special_tokens(specials)
    return t


def qwen_tokenizer(ends):
    t = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], QWEN)
    t.add_tokens(["<think>", "</think>"])
    assert all(t.token_to_id(w) is not None for w in ("yes", "no"))
    byte = processors.ByteLevel(trim_offsets=False)
    end = processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A <|endoftext|> $B <|endoftext|>",
                                        special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))])
    t.post_processor = processors.Sequence([byte, end]) if ends else byte
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|endoftext|>" if ends else "<|im_end|>", pad_token="<|endoftext|>")


def roberta_tokenizer():
    t = byte_level(["<s>", "<pad>", "</s>", "<unk>"], None)
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>", sep_token="</s>", cls_token="<s>",
                                   pad_token="<pad>", unk_token="<unk>")


def bert_tokenizer():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                     special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=t, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
                                   mask_token="[MASK]")


def card_ids(tokenizer, query, document, task, most):
    """Qwen3-Reranker's card: the piece between prefix and suffix is cut at its end."""
    prefix, suffix = (tokenizer(x, add_special_tokens=False).input_ids for x in (PREFIX, SUFFIX))
    text = f"<Instruct>: {task or TASK}\n<Query>: {query}\n<Document>: {document}"
    ids = plain(tokenizer, text)
    return prefix + (ids[:most - len(prefix) - len(suffix)] if most else ids) + suffix


def plain(tokenizer, text):
    """Ids of a caller's text: what looks like a control token in it is none."""
    t = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    t.encode_special_tokens = True
    return t.encode(text, add_special_tokens=False).ids


def pair_ids(tokenizer, query, document, most):
    """As the tokenizer frames pairs; of the longer text the end is cut first."""
    t = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    t.encode_special_tokens = True
    if most:
        t.enable_truncation(most, strategy="longest_first")
    e = t.encode(query, document)
    return e.ids, e.type_ids


def decoder_score(model, tokenizer, query, document, task, most):
    ids = card_ids(tokenizer, query, document, task, most)
    out = model(torch.tensor([ids])).logits[0]
    if out.dim() == 1:
        return torch.sigmoid(out[0]).item(), len(ids)
    yes, no = tokenizer.convert_tokens_to_ids("yes"), tokenizer.convert_tokens_to_ids("no")
    return torch.log_softmax(torch.stack([out[-1, no], out[-1, yes]]), 0)[1].exp().item(), len(ids)


def encoder_score(model, tokenizer, query, document, _task, most):
    ids, types = pair_ids(tokenizer, query, document, most)
    out = model(torch.tensor([ids]), token_type_ids=torch.tensor([types if model.config.type_vocab_size > 1 else [0] * len(ids)])).logits
    return torch.sigmoid(out[0, 0]).item(), len(ids)


def scores(model, tokenizer, score):
    cases = []
    with torch.inference_mode():
        for query, document in PAIRS:
            for task in (None, "Find what contradicts it"):
                for most in (0, 200 if score is decoder_score else 24):
                    value, n = score(model, tokenizer, query, document, task, most)
                    cases.append({"query": query, "document": document, "instruction": task, "truncate": most, "score": value, "tokens": n})
    return cases


TEXTS = ["a cat sits on the mat", "interest rates rose", "<|endoftext|> is text", "Zürich 東京 🎉", "word " * 60]


def embeddings(model, tokenizer):
    cases = []
    with torch.inference_mode():
        for text in TEXTS:
            for task in (None, TASK):
                for dims in (None, 12):
                    full = f"Instruct: {task}\nQuery:{text}" if task else text
                    ids = plain(tokenizer, full) + [tokenizer.convert_tokens_to_ids("<|endoftext|>")]
                    v = model(torch.tensor([ids])).last_hidden_state[0, -1][:dims]
                    v = torch.nn.functional.normalize(v, dim=0)
                    cases.append({"text": text, "instruction": task, "dimensions": dims, "tokens": len(ids), "embedding": [round(x, 8) for x in v.tolist()]})
    return cases


def convert(folder, arch, out, pre):
    import gguf
    from conversion import get_model_class
    cls = get_model_class(arch)
    cls = type(cls.__name__, (cls,), {"model_arch": cls.model_arch, "get_vocab_base_pre": lambda self, tokenizer: pre})
    with torch.inference_mode():
        cls(folder, gguf.LlamaFileType.MOSTLY_F16, out, model_name=f"tiny {out.stem}").write()


def lasttoken(folder):
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (folder / "modules.json").write_text(json.dumps([{"idx": i, "name": str(i), "path": p, "type": "sentence_transformers.models." + k}
                                                     for i, (p, k) in enumerate(kinds)]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(
        {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}))


# name, model, tokenizer, what is computed, pre-tokenizer of the GGUF file (None: no file), name of the folder that is converted
def cases():
    qwen, ends = qwen_tokenizer(False), qwen_tokenizer(True)
    decoder = lambda kind, **more: lambda n: kind(Qwen3Config(**DECODER, vocab_size=n, **more))
    yield "qwen3-reranker", decoder(Qwen3ForCausalLM, tie_word_embeddings=True), qwen, decoder_score, "qwen2", "plain"
    yield "qwen3-rank", decoder(Qwen3ForCausalLM, tie_word_embeddings=True), qwen, decoder_score, "qwen2", "qwen3-reranker"
    yield "qwen3-rank-untied", decoder(Qwen3ForCausalLM, tie_word_embeddings=False), qwen, decoder_score, "qwen2", "qwen3-reranker"
    yield "qwen3-classifier", decoder(Qwen3ForSequenceClassification, num_labels=1, pad_token_id=0), qwen, decoder_score, None, None
    yield "roberta-cross", lambda n: RobertaForSequenceClassification(RobertaConfig(
        **ENCODER, vocab_size=n, type_vocab_size=1, max_position_embeddings=514, pad_token_id=1)), roberta_tokenizer(), encoder_score, "roberta-bpe", "plain"
    yield "bert-cross", lambda n: BertForSequenceClassification(BertConfig(
        **ENCODER, vocab_size=n, max_position_embeddings=512)), bert_tokenizer(), encoder_score, None, None
    yield "qwen3-embedding", decoder(Qwen3Model), ends, embeddings, "qwen2", "plain"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--converter", type=pathlib.Path, required=True)
    args = parser.parse_args()
    sys.path[:0] = [str(args.converter), str(args.converter / "gguf-py"), str(HERE.parent), str(HERE.parent / "families")]
    from case import Case
    from make_families import randomise, store
    logging.disable(logging.WARNING)
    goldens = {}
    for i, (name, make, tokenizer, compute, pre, folder_name) in enumerate(cases()):
        torch.manual_seed(i)
        model = make(len(tokenizer)).float().eval()
        randomise(model, Case(name, None, seed=i + 1, alter=lambda n, x: 3 * x if "score" in n or "classifier" in n else x))
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d) / (folder_name or "plain")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if compute is embeddings:
                lasttoken(folder)
            arch = json.loads((folder / "config.json").read_text())["architectures"][0]
            if name not in ("qwen3-rank", "qwen3-rank-untied"):
                store(folder, HERE / name)
                for file in ("tokenizer.json", "tokenizer_config.json"):
                    (HERE / name / file).write_text((folder / file).read_text())
            if pre:
                convert(folder, arch, HERE / f"{name}.gguf", pre)
        goldens[name] = embeddings(model, tokenizer) if compute is embeddings else scores(model, tokenizer, compute)
        told = goldens[name]
        print(name, [round(c["score"], 4) for c in told] if compute is not embeddings else len(told))
    (HERE / "goldens.json").write_text(json.dumps(goldens, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
