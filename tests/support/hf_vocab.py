"""A model file's tokenizer rebuilt in the field's own libraries, from nothing but the file's metadata: the oracle.

rebuild(path) gives Hugging Face tokenizers' Tokenizer; rebuild_spm(path) gives SentencePiece's processor. The pre-tokenizers are
written as their models publish them (tokenizer.json), not as src/tokenizer/pretok_table.c spells them."""

import io
import struct

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KEY = "tokenizer.ggml."

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def cl100k(digits):
    return (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def o200k(short_forms, digits):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (r"[^\r\n\p{L}\p{N}]?" + upper + "*" + lower + "+" + short_forms + r"|[^\r\n\p{L}\p{N}]?" + upper + "+" + lower +
            "*" + short_forms + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DEEPSEEK_V3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def digits():
    return pre_tokenizers.Digits(individual_digits=True)


# id: stages in front of the byte mapping (gpt2() maps by itself)
PRE = {
    "gpt-2": [gpt2()],
    "smollm": [digits(), gpt2()],
    "starcoder": [digits(), gpt2()],
    "refact": [digits(), gpt2()],
    "command-r": [digits(), gpt2()],
    "olmo": [gpt2()],
    "llama-bpe": [split(cl100k(r"\p{N}{1,3}"))],
    "llama3": [split(cl100k(r"\p{N}{1,3}"))],
    "dbrx": [split(cl100k(r"\p{N}{1,3}"))],
    "smaug-bpe": [split(cl100k(r"\p{N}{1,3}"))],
    "glm4": [split(cl100k(r"\p{N}{1,3}"))],
    "chatglm-bpe": [split(cl100k(r"\p{N}{1,3}"))],
    "qwen2": [split(cl100k(r"\p{N}"))],
    "qwen35": [split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                     r"|\s*[\r\n]+|\s+(?!\S)|\s+")],
    "minicpm5": [split(r"\p{N}{1,3}"), split(cl100k(r"\p{N}+"))],
    "seed-coder": [split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
                         r"|\s*[\r\n]+|\s+(?!\S)|\s+")],
    "bailingmoe": [split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
                         r"|\s+(?!\S)|\s+")],
    "exaone-moe": [split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                         r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")],
    "tekken": [split(o200k("", r"\p{N}"))],
    "gpt-4o": [split(o200k(SHORT, r"\p{N}{1,3}"))],
    "gpt-oss": [split(o200k(SHORT, r"\p{N}{1,3}"))],
    "tiny_aya": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(o200k(SHORT, r"\p{N}{1,3}"))],
    "superbpe": [split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))")],
    "kimi-k2": [split(r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
                      r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+" + SHORT +
                      r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
                      r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*" + SHORT +
                      r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")],
    "deepseek-v3": [split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK_V3)],
    "deepseek-coder": [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-\ud7ff]+"), digits()],
    "falcon": [pre_tokenizers.Punctuation("contiguous"), gpt2(), split("[0-9][0-9][0-9]")],
    "bloom": [split(" ?[^(\\s|.,!?…。，、।۔،)]+")],
    "viking": [split(" ?[^(\\s|.,!?…。，、।۔،)]+"), digits()],
}
IGNORES_MERGES = {"llama-bpe", "llama3", "tekken", "glm4", "minicpm5", "kimi-k2"}


# GGUF's value types as struct letters; 8 is a string, 9 an array. (The gguf package takes 14 s for 262,144 tokens, this 0.3 s.)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def metadata(path):
    """({key: value}, {key: (offset, end)} of each value with its type, end of them all)."""
    with open(path, "rb") as f:
        data = f.read(1 << 26)
    at, values, places = 24, {}, {}

    def take(letter):
        nonlocal at
        v, = struct.unpack_from("<" + letter, data, at)
        at += struct.calcsize(letter)
        return v

    def string():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        nonlocal at
        if kind == 8:
            return string()
        if kind != 9:
            return take(SCALARS[kind])
        of, n = take("I"), take("Q")
        if of not in SCALARS:
            return [value(of) for _ in range(n)]
        out = list(struct.unpack_from(f"<{n}{SCALARS[of]}", data, at))
        at += n * struct.calcsize(SCALARS[of])
        return out

    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        key = string()
        start = at
        values[key] = value(take("I"))
        places[key] = (start, at)
    return values, places, data[:at]


class Vocab:
    def __init__(self, path):
        fields, _, _ = metadata(path)

        def get(name, default=None):
            return fields.get(KEY + name, default)

        self.arch = fields["general.architecture"]
        self.model = get("model")
        self.pre = get("pre")
        self.pieces = get("tokens")
        self.types = get("token_type") or [NORMAL] * len(self.pieces)
        self.scores = get("scores")
        self.merges = [split_merge(m) for m in get("merges", [])]
        self.unk = get("unknown_token_id")
        self.add_space_prefix = get("add_space_prefix", self.model == "llama")

    def of_type(self, *types):
        return [(i, p) for i, (p, t) in enumerate(zip(self.pieces, self.types)) if t in types]

    def added(self):
        """Tokens that are matched in text. SentencePiece finds its user-defined pieces after a space has become U+2581, so that
        both spellings in a text match."""
        def takes_space(i, p):
            return self.arch == "phi3" and p not in ("<unk>", "<s>", "<|endoftext|>") and (p == "</s>" or self.types[i] != USER)

        return [AddedToken(p, normalized=self.model == "llama" and not self.add_space_prefix and self.types[i] == USER, special=self.types[i] != USER,
                           rstrip=takes_space(i, p)) for i, p in self.of_type(CONTROL, UNKNOWN, USER) if p]


def split_merge(merge):
    at = merge.index(" ", 1)
    return merge[:at], merge[at + 1:]


def merges_of_scores(vocab):
    """What Hugging Face's converter makes of a SentencePiece BPE: each way to split a piece in two, best score first."""
    pieces = {p: i for i, p in vocab.of_type(NORMAL)}
    merges = []
    for piece, i in pieces.items():
        local = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in pieces and piece[k:] in pieces]
        local.sort(key=lambda m: (pieces[m[0]], pieces[m[1]]))
        merges.extend((vocab.scores[i], left, right) for left, right in local)
    merges.sort(key=lambda m: (m[0], len(m[1]), len(m[2])), reverse=True)
    return [(left, right) for _, left, right in merges]


def byte_level(vocab, pre):
    tok = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(vocab.pieces)}, merges=vocab.merges,
                               ignore_merges=pre in IGNORES_MERGES))
    stages = list(PRE[pre])
    # the GPT-2 splitter also maps to bytes: other patterns must come before it or work on what it left of ASCII
    if not any(isinstance(s, pre_tokenizers.ByteLevel) for s in stages):
        stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tok.pre_tokenizer = pre_tokenizers.Sequence(stages)
    tok.decoder = decoders.ByteLevel()
    return tok


def characters(vocab):
    vocab.merges = merges = vocab.merges or merges_of_scores(vocab)
    tok = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(vocab.pieces)}, merges=merges, byte_fallback=True,
                               unk_token=vocab.pieces[vocab.unk], fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if vocab.add_space_prefix else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocab.add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tok.decoder = decoders.Sequence(steps)
    return tok


def word_piece(vocab):
    spelled = {(p[1:] if p.startswith("▁") else p if vocab.types[i] == CONTROL else "##" + p): i
               for i, p in enumerate(vocab.pieces)}
    tok = Tokenizer(models.WordPiece(vocab=spelled, unk_token=vocab.pieces[vocab.unk], max_input_chars_per_word=100))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=False)
    return tok


def rebuild(vocab, pre=None):
    """Control tokens match in text unless the result's encode_special_tokens is set."""
    if vocab.model == "gpt2":
        tok = byte_level(vocab, pre or vocab.pre)
    elif vocab.model == "bert":
        tok = word_piece(vocab)
    else:
        tok = characters(vocab)
    tok.add_tokens(vocab.added())
    return tok


def with_pre(source, target, pre):
    """Write source's metadata alone (no tensors) to target, with another pre-tokenizer id."""
    _, places, data = metadata(source)
    start, end = places[KEY + "pre"]
    with open(target, "wb") as f:
        f.write(data[:8] + struct.pack("<Q", 0) + data[16:start])
        f.write(struct.pack("<IQ", 8, len(pre)) + pre.encode() + data[end:])


# --- SentencePiece: its model file is a protocol buffer of pieces and two settings blocks, written here by hand ---

def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def block(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def number(field, n):
    return varint(field << 3) + varint(n)


def rebuild_spm(vocab):
    out = []
    for i, piece in enumerate(vocab.pieces):
        kind = UNKNOWN if i == vocab.unk else vocab.types[i]
        piece = piece.replace(" ", "▁") if kind == USER else piece
        out.append(block(1, block(1, piece.encode()) + b"\x15" + struct.pack("<f", vocab.scores[i]) + number(3, kind)))
    trainer = number(3, 2) + number(35, 1) + number(40, vocab.unk)  # BPE, byte fallback, unk_id
    normalizer = block(1, b"identity") + number(3, int(vocab.add_space_prefix)) + number(4, 0) + number(5, 1)
    out += [block(2, trainer), block(3, normalizer)]
    return sentencepiece.SentencePieceProcessor(model_proto=b"".join(out))


def fields(data):
    """The fields of one message: (number, int or bytes)."""
    at = 0

    def read():
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n

    while at < len(data):
        key = read()
        kind = key & 7
        if kind == 0:
            yield key >> 3, read()
            continue
        n = read() if kind == 2 else 4 if kind == 5 else 8
        yield key >> 3, data[at:at + n]
        at += n


def train_unigram(text, size):
    """A unigram model trained on text: (SentencePiece's processor, its pieces as (text, score, type), its precompiled map)."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text.splitlines()), model_writer=out, vocab_size=size,
                                             model_type="unigram", normalization_rule_name="nmt_nfkc", hard_vocab_limit=False,
                                             pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
    pieces, charsmap = [], b""
    for field, value in fields(out.getvalue()):
        if field == 1:
            piece = dict(fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece[2])[0], piece.get(3, NORMAL)))
        elif field == 3:
            charsmap = dict(fields(value))[2]
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue()), pieces, charsmap
