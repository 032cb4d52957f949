"""tokenizer.json against the `tokenizers` library that wrote it: ids and decoded texts of random texts, equal one by one.

Texts are random with a fresh seed, which is printed; PLUMB_SEED=N runs one again."""

import functools
import json
import random
import struct
import subprocess
import unicodedata

import pytest
from fetched import fetched_model
from test_tokenizer import (KEEP, PLUMB, ROOT, SEED, SHARED_VOCABS, Server, fuzz_text, hf_vocab, same, vocabs,  # noqa: F401
                            well_formed)
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers)

N_TEXTS = 1000
# Where the library decodes to another text than was encoded: WordPiece joins words with blanks and cleans up; ByteLevel breaks
# added tokens spelled in Latin-1 letters; Metaspace drops every blank of the first token; added tokens are shown normalised.
NOT_DECODED = ("bert-bge", "deepseek-coder", "metaspace-first", "whitespace", "added")
TRAIN = [fuzz_text.SCRIPTS] + [p.read_text() for p in sorted((ROOT / "docs").glob("*.md"))[:6]]


def write_dir(folder, text, config=None):
    """A model directory with this tokenizer.json and one tensor that nobody reads."""
    header = json.dumps({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "none"}))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (folder / "tokenizer.json").write_text(text)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@functools.cache
def is_ordered(mark):
    """The library's normal forms are of Unicode 9: marks of later versions stay where they are in its text."""
    other = "\u0301" if unicodedata.combining(mark) != 230 else "\u0323"
    text = "q" + "".join(sorted((mark, other), key=unicodedata.combining, reverse=True))
    return normalizers.NFD().normalize_str(text) == unicodedata.normalize("NFD", text)


def texts_for(hf, n=N_TEXTS, keep=lambda text: True):
    r = random.Random(SEED)
    marks = [t.content for t in hf.get_added_tokens_decoder().values() if "[PAD" not in t.content][:40]
    texts = [fuzz_text.SCRIPTS.encode(), "the▁the ▁the ▁ the▁▁the".encode()] + [fuzz_text.text(r, marks) for _ in range(n)]
    if hf.normalizer:
        texts = [t for t in texts if all(is_ordered(c) for c in well_formed(t) if unicodedata.combining(c))]
    return [t for t in texts if keep(well_formed(t))]


def compare(folder, hf, texts, decodes=True):
    is_meta = isinstance(hf.decoder, decoders.Metaspace)
    for special in (False, True):
        hf.encode_special_tokens = not special
        want = hf.encode_batch([well_formed(t) for t in texts], add_special_tokens=False)
        with Server(folder) as server:
            for text, w in zip(texts, want):
                ids, whole, _ = server(text, special)
                same("ids", ids, w.ids, text)
                is_odd = is_meta and not text[:1].isalnum()  # its decoder drops every blank of a first token that is blanks alone
                if decodes and not special and not is_odd:
                    same("decoding", well_formed(whole), hf.decode(ids, skip_special_tokens=False), text)


@pytest.mark.parametrize("name", ["smollm2", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_real_vocabulary(tmp_path, name):
    hf = hf_vocab.rebuild(hf_vocab.Vocab(fetched_model(name)))
    compare(write_dir(tmp_path / "m", hf.to_str()), hf, texts_for(hf))


@pytest.mark.parametrize("name", [n for n in SHARED_VOCABS if n != "deepseek-llm"])
def test_shared_vocabulary(vocabs, tmp_path, name):  # noqa: F811
    hf = hf_vocab.rebuild(hf_vocab.Vocab(vocabs / f"ggml-vocab-{name}.gguf"))
    compare(write_dir(tmp_path / "m", hf.to_str()), hf, texts_for(hf, keep=KEEP.get(name, lambda text: True)), name not in NOT_DECODED)


def bpe(pre, alphabet=(), normalizer=None, **model):
    hf = Tokenizer(models.BPE(**model))
    if normalizer:
        hf.normalizer = normalizer
    if pre:
        hf.pre_tokenizer = pre
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if model.get("byte_fallback") else [])
    hf.train_from_iterator(TRAIN, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, initial_alphabet=list(alphabet),
                                                      show_progress=False, limit_alphabet=300))
    if model.get("byte_fallback"):  # the trainer lists the bytes as added tokens: published files do not
        text = json.loads(hf.to_str())
        text["added_tokens"] = [t for t in text["added_tokens"] if not t["content"].startswith("<0x")]
        hf = Tokenizer.from_str(json.dumps(text))
    return hf


def byte_level(*stages, **more):
    hf = bpe(pre_tokenizers.Sequence([*stages, pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False} | more)]),
             pre_tokenizers.ByteLevel.alphabet())
    hf.decoder = decoders.ByteLevel()
    return hf


def llama2():
    hf = bpe(None, normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
             byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    hf.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return hf


def metaspace(scheme, split):
    hf = bpe(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split), unk_token="<unk>", fuse_unk=True)
    hf.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    return hf


def word_piece(**norm):
    hf = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    hf.normalizer = normalizers.BertNormalizer(**norm)
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    hf.train_from_iterator(TRAIN, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=["[UNK]", "[CLS]", "[SEP]"],
                                                            show_progress=False, limit_alphabet=300))
    return hf


def unigram():
    hf = Tokenizer(models.Unigram())
    hf.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    hf.pre_tokenizer = pre_tokenizers.Metaspace()
    hf.decoder = decoders.Metaspace()
    hf.train_from_iterator(TRAIN, trainers.UnigramTrainer(vocab_size=1200, special_tokens=["<unk>", "</s>"], unk_token="<unk>",
                                                          show_progress=False))
    return hf


def added():
    """Every kind of added token, in a text that is lowered and composed first."""
    hf = byte_level(pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), use_regex=True)
    hf.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    hf.add_special_tokens([AddedToken("<|im_start|>", normalized=False), AddedToken("<mask>", lstrip=True, normalized=False)])
    hf.add_tokens([AddedToken("Der", normalized=True), AddedToken("word", single_word=True, normalized=False),
                   AddedToken("<tool>", rstrip=True, normalized=False), AddedToken("the", lstrip=True, rstrip=True, normalized=True),
                   AddedToken("ñé", normalized=True)])
    return hf


PATTERN = Regex(hf_vocab.cl100k(r"\p{N}{1,3}"))
SHAPES = {
    "split-regex": lambda: byte_level(pre_tokenizers.Split(PATTERN, "isolated")),
    "split-words": lambda: byte_level(pre_tokenizers.Split(Regex(r"\w+\b|[^\w\s]+|\W"), "isolated")),
    "split-digits": lambda: byte_level(pre_tokenizers.Split(Regex(r"\d{1,3}(?=(?:\d{3})*\b)"), "isolated")),
    "split-inverted": lambda: byte_level(pre_tokenizers.Split(PATTERN, "removed", invert=True)),
    "digits-punctuation": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True),
                                             pre_tokenizers.Punctuation("contiguous"), use_regex=True),
    "digit-runs": lambda: byte_level(pre_tokenizers.Digits(), use_regex=True, add_prefix_space=True),
    "whitespace": lambda: byte_level(pre_tokenizers.Whitespace()),
    "merged-next": lambda: byte_level(pre_tokenizers.Split(" ", "merged_with_next")),
    "merged-previous": lambda: byte_level(pre_tokenizers.Split(" ", "merged_with_previous")),
    "whitespace-split": lambda: byte_level(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()),
    "llama2": llama2,
    "metaspace-always": lambda: metaspace("always", True),
    "metaspace-first": lambda: metaspace("first", False),
    "metaspace-never": lambda: metaspace("never", True),
    "bert-lower": lambda: word_piece(lowercase=True),
    "bert-cased": lambda: word_piece(lowercase=False, handle_chinese_chars=False),
    "unigram": unigram,
    "added": added,
}


def is_old_enough(name):
    return KEEP["bert-bge"] if "bert" in name or "punct" in name or "whitespace-split" in name else lambda text: True


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_trained_shape(tmp_path, name):
    hf = SHAPES[name]()
    texts = texts_for(hf, keep=is_old_enough(name))
    if name == "added":
        r = random.Random(SEED)
        words = ["Der", "der", "word", "words", "sword", "<tool>", "the", " the ", "THE", "Ñé", "n\u0303é", "<mask>", "  ", "\n", "12345",
                 "<|im_start|>", ".", "É", "<|IM_START|>"]
        texts += ["".join(r.choice(words) for _ in range(12)).encode() for _ in range(500)]
    if name == "unigram":  # the library makes control tokens of a caller's text here, which we never do
        texts = [t for t in texts if b"<unk>" not in t and b"</s>" not in t]
    print(f"seed {SEED}, {len(texts)} texts")
    compare(write_dir(tmp_path / "m", hf.to_str()), hf, texts, "bert" not in name and "split" not in name and name not in NOT_DECODED)


def run(folder, text):
    p = subprocess.run([PLUMB, "tokenize", "--model", folder], input=text.encode(), capture_output=True, timeout=60)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


UNKNOWN = [
    ({"normalizer": {"type": "Nmt"}}, "normalizer 'Nmt'"),
    ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "pre_tokenizer 'UnicodeScripts'"),
    ({"post_processor": {"type": "Other"}}, "post_processor 'Other'"),
    ({"decoder": {"type": "CTC"}}, "decoder 'CTC'"),
    ({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "model 'WordLevel'"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}}, "pattern"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways"}}, "behavior 'Sideways'"),
    ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "two tokens have the id 0"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "a token's id"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}, "merges"),
]


@pytest.mark.parametrize("change, text", UNKNOWN, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_not_known_is_refused_by_name(tmp_path, change, text):
    good = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    code, _, err = run(write_dir(tmp_path / "m", json.dumps(good | change)), "a")
    assert code != 0 and text in err and "tokenizer" in err, err


def test_a_directory_without_tokenizer_json_says_so(tmp_path):
    folder = write_dir(tmp_path / "m", "{}")
    (folder / "tokenizer.json").unlink()
    code, _, err = run(folder, "a")
    assert code != 0 and "neither tokenizer.json nor tokenizer.model" in err
