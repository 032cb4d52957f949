#!/usr/bin/env python3
"""lark.json: grammars in Lark's notation with texts, and which of them Lark itself reads: its Earley parser with the lexer that tries every
length of a terminal, the longest that there is (regex.POSIX) and shorter ones. Made with lark 1.3.1 and regex, not needed by the tests:

    VENV/bin/python tests/golden/grammar/make_lark.py > tests/golden/grammar/lark.json

The texts are walks over plumb's automata (tests/support/serve_grammar), the same with a fault, and some of each grammar's own letters."""

import json
import pathlib
import random
import signal
import sys

import lark
import regex

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))

from grammar_server import GrammarServer  # noqa: E402

# As people write them: documentation, tutorials, tool grammars
GRAMMARS = [
    'start: expr\nexpr: term (SP ADD SP term)* -> add\nterm: factor (SP MUL SP factor)+ -> mul\n    | factor\nfactor: INT\nSP: " "\nADD: "+"\nMUL: "*"\n%import common.INT\n',
    '?start: sum\n\n?sum: product\n    | sum "+" product   -> add\n    | sum "-" product   -> sub\n\n?product: atom\n    | product "*" atom  -> mul\n    | product "/" atom  -> div\n\n'
    '?atom: NUMBER           -> number\n     | "-" atom         -> neg\n     | "(" sum ")"\n\n%import common.NUMBER\n%import common.WS_INLINE\n\n%ignore WS_INLINE\n',
    'start: value\n?value: object | array | string | SIGNED_NUMBER -> number | "true" -> true | "false" -> false | "null" -> null\narray: "[" [value ("," value)*] "]"\n'
    'object: "{" [pair ("," pair)*] "}"\npair: string ":" value\nstring: ESCAPED_STRING\n%import common.ESCAPED_STRING\n%import common.SIGNED_NUMBER\n%import common.WS\n%ignore WS\n',
    '// SELECT statements\nstart: "SELECT" SP columns SP "FROM" SP NAME [SP where] ";"\ncolumns: "*" | NAME ("," SP NAME)*\nwhere: "WHERE" SP NAME SP OP SP value\nvalue: NUMBER | "\'" /[^\']*/ "\'"\n'
    'OP: "=" | "<" | ">" | "<=" | ">=" | "!="\nNAME: /[a-z_][a-z0-9_]{0,8}/\nNUMBER: /\\d+(\\.\\d+)?/\nSP: " "\n',
    'start: date "T" time\ndate: YEAR "-" MONTH "-" DAY\ntime: /[0-2][0-9]/ ":" /[0-5][0-9]/\nYEAR: DIGIT~4\nMONTH: "0" "1".."9" | "1" "0".."2"\nDAY: DIGIT~1..2\nDIGIT: "0".."9"\n',
    'start: (command NEWLINE)+\ncommand: "move" " " DIR " " STEPS | "turn"i " " DIR\nDIR: "left" | "right"i\nSTEPS: /[1-9][0-9]?/\n%import common.NEWLINE\n',
    'start: item ("," item)*\nitem: expr\nexpr: call | NAME | add\ncall: expr "(" [expr ("," expr)*] ")"\nadd: expr "+" expr\nNAME: /[a-z]/\n',
    'start: a\na: b "x" | "y"\nb: c "z" | "w"\nc: a "v" | "u"\n',
    'start: patch\npatch: "*** Begin" LF hunk+ "*** End" LF?\nhunk: "*** Add File: " /[a-z.]+/ LF ("+" /(.+)/ LF)+\n%import common.LF\n',
    'start: block\nblock: "{" stmt* "}"\nstmt: NAME "=" expr ";" | "if" "(" expr ")" block ["else" block]\nexpr: NAME | INT | expr "<" expr\n%import common.CNAME -> NAME\n%import common (INT, WS)\n%ignore WS\n%ignore /#[^\\n]*/\n',
    'start.2: _list\n_list: "(" _list* ")" | ATOM\nATOM.1: /[a-z]+/ | STRING\nSTRING: "\\"" ("\\\\\\"" | /[^"\\\\]/)* "\\""\n',
    'start: "\\u00e9" "\\x41" "\\t" "\\\\" "\\d" | "日" /\\u65e5/ /[^\\x00-\\x7f]/\n',
    'start: /a\\/b/ /\\// "//" "#" // comment\n# another\n\n',
    'start: a~3 b~0..2 c?\na: "a"\nb: ("b" | "B")+\nc: ["c" "d"]\n',
    'start: "a" \\\n  "b"\n     | "c"\n\n     | "d"\n',
    'start: X | Y\nX: "x" Y\nY: "y"+ | Z~2\nZ: /z/i\n',
    'start: start "a" | "b" | start start\n',
    'start: | "x" start | "(" start ")"\n',
    '%import common.CNAME\n%import common.FLOAT -> F\nstart: CNAME "=" F\n',
    'start: NAME "." "let" | "lettuce"\nNAME: "let"i | /[a-z]{2}/\n',
]


def random_grammar(rng):
    """Rules and terminals of few letters, left recursion and things to ignore now and then."""
    rules, terminals = [f"r{i}" for i in range(rng.randint(1, 4))], [f"T{i}" for i in range(rng.randint(1, 3))]

    def text():
        return '"' + "".join(rng.choice("abc") for _ in range(rng.randint(1, 2))) + '"' + rng.choice(("", "", "", "i"))

    def atom(depth, names):
        kind = rng.randint(0, 9)
        if kind < 3:
            return text()
        if kind == 3:
            return rng.choice(('/[ab]/', '/b+/', '/[^c ]/', '/a|bc/', '"a".."c"', "/a{1,2}/"))
        if kind < 8 and names:
            return rng.choice(names)
        return ("(%s)" if rng.random() < 0.7 else "[%s]") % alternatives(depth + 1, names) if depth < 2 else text()

    def sequence(depth, names):
        out = []
        for _ in range(rng.randint(1, 3)):
            out.append(atom(depth, names) + rng.choice(("", "", "", "?", "*", "+", "~2", "~1..2")))
        return " ".join(out)

    def alternatives(depth, names):
        return " | ".join(sequence(depth, names) for _ in range(rng.randint(1, 2)))

    lines = [f"start: {alternatives(0, rules + terminals)}"]
    for r in rules:
        line = alternatives(0, rules + terminals)
        if rng.random() < 0.4:
            line = f"{rng.choice(rules)} {sequence(1, rules + terminals)} | {line}"
        lines.append(f"{r}: {line}")
    lines += [f"{t}: {alternatives(0, terminals[i + 1:])}" for i, t in enumerate(terminals)]
    if rng.random() < 0.3:
        lines.append('%ignore " "')
    return "\n".join(lines) + "\n"


def texts_of(rng, answer, letters):
    out = {"", *(t for t in answer.get("walks", ()) if t is not None and len(t) < 30)}
    for t in list(out):
        i = rng.randrange(len(t) + 1)
        out |= {t[:i] + rng.choice(letters) + t[i + rng.randint(0, 1):], t[:i] + t[i + 1:]}
    out |= {"".join(rng.choice(letters) for _ in range(rng.randint(1, 6))) for _ in range(5)}
    return sorted(out)


class Slow(Exception):
    pass


def late(*_):
    raise Slow


def main():
    signal.signal(signal.SIGALRM, late)
    rng = random.Random(1)
    out = []
    with GrammarServer() as server:
        grammars = GRAMMARS + [random_grammar(rng) for _ in range(600)]
        for i, grammar in enumerate(grammars):
            try:
                parser = lark.Lark(grammar, parser="earley", lexer="dynamic_complete", ambiguity="resolve", maybe_placeholders=False,
                                   regex=True, g_regex_flags=regex.POSIX)
            except lark.exceptions.LarkError as e:
                if i < len(GRAMMARS):
                    print(f"{grammar}: {e}", file=sys.stderr)
                continue  # a terminal that may be empty
            answer = server.ask(grammar, kind="lark", walks=6, seed=i + 1, length=14)
            letters = "abcC " if i >= len(GRAMMARS) else "".join(sorted({c for t in answer.get("walks", ()) for c in t or ""} | set(' ax1"')))
            rows = []
            for text in texts_of(rng, answer, letters):
                signal.setitimer(signal.ITIMER_REAL, 0.2, 0.1)
                try:
                    parser.parse(text)
                    rows.append([text, True])
                except lark.exceptions.UnexpectedInput:
                    rows.append([text, False])
                except Slow:
                    pass  # very ambiguous
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            out.append({"grammar": grammar, "texts": rows})
            if len(out) == 90:
                break
    print("[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in out) + "\n]")


main()
