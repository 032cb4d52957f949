"""Vocabularies through plumb convert: from every kind of a directory's texts to GGUF and to a directory again, with the ids of the library
that made them at each step.

Texts are random with a fresh seed, which is printed; PLUMB_SEED=N runs one again."""

import json
import random
import shutil
import struct

import numpy as np
import pytest
import sentencepiece
from fetched import fetched_model
from test_convert import FAMILIES, convert, plumb
from test_tokenizer import KEEP, SEED, Server, fuzz_text, same, well_formed
from test_tokenizer_json import metaspace, texts_for, word_piece
from test_tokenizer_model import KINDS, plain, train
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from test_tokenizer_json import TRAIN


def model_with(folder, n_tokens, texts):
    """A whole small model whose embedding has so many rows, with these files beside it."""
    convert(FAMILIES / "qwen3.gguf", folder, "--type", "f16")
    for text in folder.glob("*token*"):
        text.unlink()
    for name, data in texts.items():
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": n_tokens}))
    raw = (folder / "model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    head, out, at = json.loads(raw[8:8 + n]), {}, 0
    head.pop("__metadata__", None)
    parts = []
    for name, t in head.items():
        data = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        if t["shape"][0] == 288:
            data = np.resize(np.frombuffer(data, np.uint16).reshape(t["shape"]), (n_tokens, t["shape"][1])).tobytes()
            t["shape"] = [n_tokens, t["shape"][1]]
        out[name] = {"dtype": t["dtype"], "shape": t["shape"], "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(out).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return folder


def compare(model, texts, want, special=True, scores=None):
    """scores: of a unigram vocabulary, where rounding decides between equally good ways, and GGUF has them as f32."""
    with Server(model) as server:
        for text, ids in zip(texts, want):
            got = server(text, special)[0]
            if scores and got != ids and abs(sum(scores[i] for i in got) - sum(scores[i] for i in ids)) < 1e-3:
                continue
            same("ids", got, ids, text)


def ways(folder, tmp_path):
    """The directory, a file of it, a directory of that file, and a file again."""
    first = convert(folder, tmp_path / "first.gguf")
    second = convert(first, tmp_path / "second")
    return [folder, first, second, convert(second, tmp_path / "third.gguf")]


def test_a_real_word_piece_vocabulary(tmp_path):
    source = fetched_model("all-minilm-l6-v2")
    hf = Tokenizer.from_file(str(source / "tokenizer.json"))
    hf.no_truncation()
    hf.no_padding()
    texts = texts_for(hf, 300, KEEP["bert-bge"])  # the library's tables of BERT are of an old Unicode version
    want = [e.ids for e in hf.encode_batch([well_formed(t) for t in texts], add_special_tokens=False)]
    paths = ways(source, tmp_path)
    for model in paths:
        compare(model, texts, want)
    # what the library makes of our tokenizer.json, with the tokens around the text
    again = Tokenizer.from_file(str(paths[2] / "tokenizer.json"))
    texts = [well_formed(t) for t in texts]
    assert [e.ids for e in again.encode_batch(texts)] == [e.ids for e in hf.encode_batch(texts)]
    assert again.encode("a", "b").ids == hf.encode("a", "b").ids and again.encode("a", "b").type_ids == hf.encode("a", "b").type_ids
    names = json.loads((paths[2] / "tokenizer_config.json").read_text())
    assert (names["cls_token"], names["sep_token"], names["mask_token"], names["unk_token"]) == ("[CLS]", "[SEP]", "[MASK]", "[UNK]")


@pytest.mark.parametrize("norm", [{}, {"lowercase": False}, {"lowercase": False, "strip_accents": True}, {"lowercase": True, "strip_accents": False}])
def test_word_piece_of_every_case(tmp_path, norm):
    hf = word_piece(**norm)
    hf.post_processor = processors.BertProcessing(("[SEP]", hf.token_to_id("[SEP]")), ("[CLS]", hf.token_to_id("[CLS]")))
    folder = model_with(tmp_path / "m", hf.get_vocab_size(), {"tokenizer.json": hf.to_str()})
    texts = texts_for(hf, 200, KEEP["bert-bge"])
    want = [e.ids for e in hf.encode_batch([well_formed(t) for t in texts], add_special_tokens=False)]
    for model in ways(folder, tmp_path):
        compare(model, texts, want)


def unigram(normalizer, pre_tokenizer, **decoder):
    hf = Tokenizer(models.Unigram())
    hf.normalizer, hf.pre_tokenizer, hf.decoder = normalizer, pre_tokenizer, decoders.Metaspace(**decoder)
    hf.train_from_iterator(TRAIN, trainers.UnigramTrainer(vocab_size=900, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False))
    hf.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return hf


UNIGRAMS = {
    "prepended": lambda: unigram(normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), None),
    "squeezed": lambda: unigram(normalizers.Sequence([normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]),
                                pre_tokenizers.Metaspace()),
    "stripped": lambda: unigram(normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]),
                                pre_tokenizers.Metaspace()),
}


@pytest.mark.parametrize("name", ["prepended", "squeezed"])
def test_unigram_of_a_tokenizer_json(tmp_path, name):
    hf = UNIGRAMS[name]()
    config = json.dumps({"unk_token": "<unk>", "eos_token": "</s>"})
    folder = model_with(tmp_path / "m", hf.get_vocab_size(), {"tokenizer.json": hf.to_str(), "tokenizer_config.json": config})
    texts = [t for t in texts_for(hf, 200) if plain(well_formed(t))]
    want = [e.ids for e in hf.encode_batch([well_formed(t) for t in texts], add_special_tokens=False)]
    scores = [score for _, score in json.loads(hf.to_str())["model"]["vocab"]]
    paths = ways(folder, tmp_path)
    compare(paths[0], texts, want)
    for model in paths[1:]:
        compare(model, texts, want, scores=scores)
    # the library with our tokenizer.json, the end token behind the text
    again = Tokenizer.from_file(str(paths[2] / "tokenizer.json"))
    for text in map(well_formed, texts):
        a, b = again.encode(text).ids, hf.encode(text).ids
        assert a == b or abs(sum(scores[i] for i in a) - sum(scores[i] for i in b)) < 1e-3, text


@pytest.mark.parametrize("name", KINDS)
def test_a_sentencepiece_file_alone(tmp_path, name):
    data = train(name)
    spm = sentencepiece.SentencePieceProcessor(model_proto=data)
    folder = model_with(tmp_path / "m", spm.vocab_size(), {"tokenizer.model": data})
    r = random.Random(SEED)
    texts = [t for t in [fuzz_text.SCRIPTS.encode(), b"", b" ", b"  a  b ", b"\n\n \n", *(fuzz_text.text(r, []) for _ in range(200))]
             if plain(well_formed(t))]
    want = [spm.encode(well_formed(t)) for t in texts]
    for model in (folder, convert(folder, tmp_path / "x.gguf")):
        compare(model, texts, want, special=False)
    # as it is from directory to directory
    copy = convert(folder, tmp_path / "copy")
    assert (copy / "tokenizer.model").read_bytes() == data


@pytest.mark.parametrize("change, words", [
    (lambda t: t["normalizer"].update(clean_text=False), ["normalizer", "BertNormalizer"]),
    (lambda t: t.update(post_processor=None, pre_tokenizer={"type": "Whitespace"}), ["token 0 of the text"]),
    (lambda t: t.update(normalizer={"type": "NFKC"}), ["normalizer", "BertNormalizer"]),
])
def test_steps_that_gguf_cannot_say_are_refused(tmp_path, change, words):
    hf = word_piece()
    text = json.loads(hf.to_str())
    change(text)
    folder = model_with(tmp_path / "m", hf.get_vocab_size(), {"tokenizer.json": json.dumps(text)})
    p = plumb("convert", folder, tmp_path / "x.gguf", check=False)
    assert p.returncode == 1 and all(w in p.stderr for w in words), p.stderr
    assert not (tmp_path / "x.gguf").exists()
    shutil.rmtree(folder)
