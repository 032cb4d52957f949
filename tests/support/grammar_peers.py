"""llguidance or xgrammar behind stdin and stdout, for tools/compare-grammar: one JSON object a line in, one out.

    grammar_peers.py llguidance|xgrammar
    {"tokens": [hex, ...]}                     the vocabulary, first
    {"schema": ..., "ids": [[...], ...], "texts": [...]}
    -> {"ms": ..., "masks": [{"ns": [...]}, ...], "accepts": [...]} or {"error": "..."}

Tokens without bytes are special; the first of them ends a text. A mask's time is the thread's own."""

import json
import sys
import time

import numpy


class LLGuidance:
    def __init__(self, tokens, end):
        import llguidance
        import llguidance.numpy as masks

        class Wrapper:
            is_tokenizer_wrapper = True
            eos_token_id, bos_token_id = end, None
            special_token_ids = [i for i, t in enumerate(tokens) if not t]

            def __init__(self):
                self.tokens = [t or b"\xff<%d>" % i for i, t in enumerate(tokens)]

            def __call__(self, text):
                return []
        self.lib, self.masks = llguidance, masks
        self.tokenizer = llguidance.LLTokenizer(Wrapper(), n_vocab=len(tokens))
        self.mask = masks.allocate_token_bitmask(1, len(tokens))

    def compile(self, schema):
        grammar = self.lib.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        self.matcher = self.lib.LLMatcher(self.tokenizer, grammar)
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())

    def reset(self):
        self.matcher.reset()

    def fill(self):
        self.masks.fill_next_token_bitmask(self.matcher, self.mask, 0)

    def step(self, token):
        return self.matcher.try_consume_tokens([token]) == 1

    def is_complete(self):
        return self.matcher.is_accepting()


class XGrammar:
    def __init__(self, tokens, end):
        import xgrammar
        self.lib = xgrammar
        info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self.mask = xgrammar.allocate_token_bitmask(1, len(tokens))
        self.end = end

    def compile(self, schema):
        self.matcher = self.lib.GrammarMatcher(self.compiler.compile_json_schema(json.dumps(schema)))

    def reset(self):
        self.matcher.reset()

    def fill(self):
        self.matcher.fill_next_token_bitmask(self.mask)

    def step(self, token):
        return self.matcher.accept_token(token)

    def is_complete(self):
        return self.matcher.is_completed()


def masks_of(engine, ids):
    engine.reset()
    ns = []
    for token in ids:
        start = time.thread_time_ns()
        engine.fill()
        ns.append(time.thread_time_ns() - start)
        if not engine.step(token):
            break
    return {"ns": ns if len(ns) == len(ids) else ns[:-1]}


def accepts(engine, text, by_byte):
    engine.reset()
    return all(engine.step(by_byte[b]) for b in text.encode()) and engine.is_complete()


def answer(engine, query, by_byte):
    start = time.process_time()
    try:
        engine.compile(query["schema"])
    except Exception as error:  # each library has kinds of its own
        return {"error": str(error)}
    ms = (time.process_time() - start) * 1000
    return {"ms": ms, "masks": [masks_of(engine, ids) for ids in query.get("ids", [])],
            "accepts": [bool(accepts(engine, text, by_byte)) for text in query.get("texts", [])]}


def main():
    engine, by_byte = None, {}
    for line in sys.stdin:
        query = json.loads(line)
        if "tokens" in query:
            tokens = [bytes.fromhex(t) for t in query["tokens"]]
            engine = {"llguidance": LLGuidance, "xgrammar": XGrammar}[sys.argv[1]](tokens, tokens.index(b""))
            by_byte = {t[0]: i for i, t in enumerate(tokens) if len(t) == 1}
            out = {"tokens": len(tokens), "numpy": numpy.__version__}
        else:
            out = answer(engine, query, by_byte)
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
