"""Regular expressions against Python's, and grammars in GBNF, choices and tags with texts that fit and that do not."""

import json
import os
import pathlib
import random
import re
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from grammar_server import GOLDEN, GrammarServer  # noqa: E402

REGEXES = int(os.environ.get("REGEXES", "600"))
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))


@pytest.fixture(scope="module")
def server():
    with GrammarServer() as s:
        yield s


# --- regular expressions ---


class Maker:
    """Random regular expressions in what RE2 and Python both read, and texts near them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def atom(self, depth):
        rng = self.rng
        kind = rng.randint(0, 9 if depth < 2 else 6)
        if kind < 3:
            return re.escape(rng.choice("abcxyz019 -_.\"'\\/{}"))
        if kind == 3:
            return rng.choice((r"\d", r"\w", r"\s", ".", r"\D", r"\W", r"\S", "é", "日"))
        if kind < 6:
            return self.char_class()
        if kind == 6:
            return rng.choice(("ab", "abc", "x1"))
        head = rng.choice(("(", "(?:", "(?i:", "(?P<n%d>" % rng.randint(0, 10**9)))
        return f"{head}{self.alternatives(depth + 1)})"

    def char_class(self):
        rng = self.rng
        items = [rng.choice(("a-c", "x", "0-9", "_", r"\d", r"\w", r"\s", r"\-", "A-Z", ".", r"\]", "é-ü", r"\W", r"\S", "^a"[1:])) for _ in range(rng.randint(1, 3))]
        return f"[{rng.choice(('', '', '^'))}{''.join(items)}]"

    def sequence(self, depth):
        rng, out = self.rng, ""
        for _ in range(rng.randint(0 if depth else 1, 3)):
            out += self.atom(depth)
            lo = rng.randint(0, 3)
            out += rng.choice(("", "", "", "*", "+", "?", "*?", "+?", f"{{{lo}}}", f"{{{lo},}}", f"{{{lo},{lo + rng.randint(0, 3)}}}"))
        return out

    def alternatives(self, depth=0):
        return "|".join(self.sequence(depth) for _ in range(self.rng.choice((1, 1, 1, 2))))

    def texts(self, samples):
        rng = self.rng
        out = ["", *("".join(rng.choice("abcxyzA019 -_.") for _ in range(rng.randint(1, 8))) for _ in range(10))]
        for text in samples:
            out.append(text)
            i = rng.randrange(len(text) + 1)
            out.append(text[:i] + rng.choice(PRINTABLE) + text[i + rng.randint(0, 1):])
            out.append(text[:i] + text[i + 1:])
        return out


class Slow(Exception):
    pass


def fullmatch(compiled, text):
    """None, a match, or Slow: Python's matcher tries every way."""
    def give_up(*_):
        raise Slow
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        return compiled.fullmatch(text)
    except Slow:
        return Slow
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_regular_expressions_are_pythons(server):
    seed = random.SystemRandom().randrange(10**9)
    print("seed", seed, file=sys.stderr)
    n_texts = n_accepted = refused = 0
    for i in range(REGEXES):
        maker = Maker(seed + i)
        source = maker.alternatives()
        try:
            theirs = re.compile(source, re.ASCII)
        except re.error:
            continue
        first = server.ask(source, kind="regex", walks=6, seed=i, length=10)
        if "error" in first:  # what is too large, and what fits nothing, as [^\w\W]
            assert first["code"] in ("full", "unsupported") or "nothing can fit" in first["error"], (seed + i, source, first)
            refused += 1
            continue
        samples = [w for w in first["walks"] if w is not None]
        for text in samples:
            assert fullmatch(theirs, text), (seed + i, source, text)
        texts = maker.texts(samples)
        for text, accepts in zip(texts, server.ask(source, kind="regex", texts=texts)["accepts"]):
            n_texts += 1
            n_accepted += accepts
            found = fullmatch(theirs, text)
            if found is Slow:
                break
            match = found is not None
            assert match or not accepts, (seed + i, source, text)
            # Where the dialects differ beyond printable ASCII the smaller set is taken.
            assert accepts or not match or not all(c in PRINTABLE for c in text), (seed + i, source, text)
    assert refused < REGEXES / 10
    assert n_accepted > n_texts / 10


# --- GBNF ---


@pytest.mark.parametrize("name", sorted(json.loads((GOLDEN / "gbnf.json").read_text())))
def test_gbnf(server, name):
    texts = json.loads((GOLDEN / "gbnf.json").read_text())[name]
    source = (GOLDEN / f"gbnf/{name}.gbnf").read_text()
    answer = server.ask(source, kind="gbnf", texts=texts["accepts"] + texts["refuses"], walks=200)
    assert "error" not in answer, answer
    n = len(texts["accepts"])
    assert answer["accepts"] == [True] * n + [False] * len(texts["refuses"]), list(zip(texts["accepts"] + texts["refuses"], answer["accepts"]))
    walks = [w for w in answer["walks"] if w is not None]
    assert len(walks) > 20
    assert all(server.ask(source, kind="gbnf", texts=walks)["accepts"])


# --- Lark ---


def test_lark_lets_through_what_lark_reads(server):
    """Refused are grammars in which a rule leads to itself behind what may be empty."""
    rows = json.loads((GOLDEN / "lark.json").read_text())
    n_texts = refused = 0
    for row in rows:
        answer = server.ask(row["grammar"], kind="lark", texts=[text for text, _ in row["texts"]])
        if "error" in answer:
            assert re.search(r"line \d+: r\d refers to itself without anything before it", answer["error"]), (row["grammar"], answer)
            refused += 1
            continue
        n_texts += len(row["texts"])
        assert answer["accepts"] == [reads for _, reads in row["texts"]], (row["grammar"], list(zip(row["texts"], answer["accepts"])))
    assert n_texts > 800 and refused < len(rows) / 3, (n_texts, refused)


# --- tags ---


def test_tags(server):
    source = {"structures": [{"begin": "<call name=a>", "schema": {"type": "integer"}, "end": "</call>"},
                             {"begin": "<call name=b>", "schema": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}, "end": "</call>"},
                             {"begin": "[[", "schema": {"enum": ["x", "y"]}, "end": "]]"}],
              "triggers": ["<call", "[["]}
    rows = {"": True, "plain text, 1 < 2 and [1]": True, "<call name=a>12</call>": True, "so: <call name=b>{\"k\": \"v\"}</call> and [[\"x\"]]!": True,
            "<cal <call name=a>1</call><call name=a>2</call>": True, "<<call name=a>1</call>": True, "<call": False, "<call name=c>1</call>": False,
            "<call name=a>x</call>": False, "<call name=a>1": False, "[[[": False, "[[\"z\"]]": False, "日本[[\"y\"]]": True}
    answer = server.ask(source, kind="tags", texts=list(rows), walks=100)
    assert answer["accepts"] == list(rows.values()), list(zip(rows, answer["accepts"]))
    for text in filter(None, answer["walks"]):
        for part in re.findall(r"<call.*?>(.*?)</call>", text, re.S):
            json.loads(part)
