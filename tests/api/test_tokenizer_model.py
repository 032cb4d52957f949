"""A directory with tokenizer.model alone against the `sentencepiece` package that wrote it: ids and decoded texts, equal one by one.

Texts are random with a fresh seed, which is printed; PLUMB_SEED=N runs one again."""

import io
import json
import random
import subprocess

import pytest
import sentencepiece
import tokenizers
from test_tokenizer import PLUMB, SEED, Server, fuzz_text, same, well_formed  # noqa: F401
from test_tokenizer_json import TRAIN, run, write_dir

KINDS = {
    "llama": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
              "remove_extra_whitespaces": False, "split_digits": True},
    "gemma": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "add_dummy_prefix": False,
              "remove_extra_whitespaces": False, "user_defined_symbols": ["<start_of_turn>", "\n\n", "▁▁", "  "], "pad_id": 0, "eos_id": 1,
              "bos_id": 2, "unk_id": 3},
    "no-bytes": {"model_type": "bpe", "normalization_rule_name": "identity", "character_coverage": 0.98},
    "unigram": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc", "control_symbols": ["<pad>"]},
    "unigram-plain": {"model_type": "unigram", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
}


def train(name):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(TRAIN).splitlines()), model_writer=out, vocab_size=700, hard_vocab_limit=False,
        minloglevel=2, num_threads=1, **KINDS[name])
    return out.getvalue()


def model_dir(folder, model, config=None, added=None):
    write_dir(folder, "{}", config)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(model)
    if added is not None:
        (folder / "added_tokens.json").write_text(json.dumps(added))
    return folder


def plain(text):
    """Control symbols are found by the engine's callers, not by the encoder; NUL ends what the trainer saw."""
    return "\0" not in text and "▁" not in text


@pytest.mark.parametrize("name", KINDS)
def test_ids_are_those_of_sentencepiece(tmp_path, name):
    model = train(name)
    spm = sentencepiece.SentencePieceProcessor(model_proto=model)
    r = random.Random(SEED)
    texts = [fuzz_text.SCRIPTS.encode(), b"", b" ", b"  a  b ", b"\n\n \n",
             *("a\u00e9☃ {}b".format("-" * n).encode() for n in range(1, 60))] + [fuzz_text.text(r, []) for _ in range(600)]
    with Server(model_dir(tmp_path / "m", model)) as server:
        for text in texts:
            if not plain(well_formed(text)):
                continue
            ids, whole, _ = server(text)
            same("ids", ids, spm.encode(well_formed(text)), text)
            if name in ("llama", "gemma"):
                same("decoding", well_formed(whole), spm.decode(ids), text)


def test_what_tokenizer_config_and_added_tokens_say(tmp_path):
    model = train("llama")
    n = sentencepiece.SentencePieceProcessor(model_proto=model).vocab_size()
    config = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "add_bos_token": True,
              "added_tokens_decoder": {"1": {"content": "<s>", "special": True},
                                       str(n): {"content": "<|im_start|>", "special": True},
                                       str(n + 1): {"content": "<|im_end|>", "special": True},
                                       str(n + 3): {"content": "plain_added", "special": False}}}
    folder = model_dir(tmp_path / "m", model, config, {"<|im_start|>": n, "<|tool|>": n + 4})
    def ids(text, *args):
        return [int(x) for x in run_args(folder, text, *args).split()]
    assert ids("<|im_start|>", "--special")[-1] == n and ids("<|im_end|>", "--special")[-1] == n + 1
    assert ids("<|tool|>", "--special")[-1] == n + 4 and ids("<|tool|>")[-1] != n + 4
    assert n + 3 in ids("a plain_added b") and n + 1 not in ids("<|im_end|>")


def bpe_of(model, legacy):
    """The same vocabulary as transformers gives it to the `tokenizers` library: every split of a piece is a merge, better pieces first."""
    spm = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = {spm.id_to_piece(i): i for i in range(spm.vocab_size())}
    merges = [(score, left, piece[len(left):]) for piece, i in vocab.items() for score in [spm.get_score(i)]
              for left in (piece[:k] for k in range(1, len(piece))) if left in vocab and piece[len(left):] in vocab and not spm.is_control(i)]
    merges.sort(key=lambda m: -m[0])
    hf = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [m[1:] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if legacy:
        hf.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")])
    else:
        hf.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return hf


@pytest.mark.parametrize("legacy", [False, True, None])
def test_legacy_says_where_a_space_is_put(tmp_path, legacy):
    """legacy: false - in front of the text alone; else behind special tokens, too."""
    model = train("llama")
    n = sentencepiece.SentencePieceProcessor(model_proto=model).vocab_size()
    specials = ["<|user|>", "<|end|>"]
    config = {"added_tokens_decoder": {str(n + i): {"content": s, "special": True} for i, s in enumerate(specials)}, "add_bos_token": False}
    folder = model_dir(tmp_path / "m", model, config | ({} if legacy is None else {"legacy": legacy}))
    hf = bpe_of(model, legacy is not False)
    hf.add_special_tokens(specials)
    r = random.Random(SEED)
    words = [*specials, "Hello", " world", "  two", "a", " ", "été", "42", "-", "\n"]
    texts = ["Hello", "<|user|>Hello", "<|user|> Hello<|end|>x", "a<|end|>b", " a<|user|>  b", "<|user|><|end|>"]
    for text in texts + ["".join(r.choice(words) for _ in range(r.randrange(1, 9))) for _ in range(150)]:
        got = [int(x) for x in run_args(folder, text, "--special").split()]
        assert got == hf.encode(text, add_special_tokens=False).ids, (text, SEED)


def run_args(folder, text, *args):
    p = subprocess.run([PLUMB, "tokenize", "--model", folder, *args], input=text.encode(), capture_output=True, timeout=60, check=True)
    return p.stdout.decode()


def test_tokenizer_json_goes_first(tmp_path):
    folder = model_dir(tmp_path / "m", train("llama"))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    code, out, _ = run(folder, "a")
    assert code == 0 and out.split() == ["0"]


def test_what_is_not_known_is_refused_by_name(tmp_path):
    def refuses(text, **kind):
        KINDS["odd"] = kind
        code, _, err = run(model_dir(tmp_path / "m", train("odd")), "a")
        assert code != 0 and text in err and "tokenizer.model" in err, err
    refuses("words or characters", model_type="char")
    refuses("normalizer with rules", model_type="bpe", normalization_rule_name="nmt_nfkc")
    refuses("byte_fallback of a unigram", model_type="unigram", byte_fallback=True)
    refuses("suffix", model_type="bpe", normalization_rule_name="identity", treat_whitespace_as_suffix=True)


def test_damaged_files_are_errors(tmp_path):
    model = train("llama")
    r = random.Random(SEED)
    for n in [0, 1, 5, 100, *(r.randrange(len(model)) for _ in range(20))]:
        if n == 0:
            continue  # an empty file is none that can be mapped
        code, _, err = run(model_dir(tmp_path / "m", model[:n]), "a")
        assert code in (0, 1) and (code == 0 or err)
    assert "tokenizer.model" in run(model_dir(tmp_path / "m", b"\xff" * 40), "a")[2]
    for added in ({"x": -1}, {"x": 1 << 40}, {"x": "y"}):
        assert run(model_dir(tmp_path / "m", model, added=added), "a")[0] == 1
    assert run(model_dir(tmp_path / "m", model, {"added_tokens_decoder": {"no": {"content": "x"}}}), "a")[0] == 1
