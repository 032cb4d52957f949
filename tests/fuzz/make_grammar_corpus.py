#!/usr/bin/env python3
"""First inputs of fuzz_json_schema, fuzz_regex and fuzz_gbnf: the suite's schemas, small tools, and expressions of every kind. Names are
digests of the contents, so that a second run changes nothing."""

import hashlib
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"

REGEXES = [
    r"a{2,4}b?", r"[^a-c]+", r"\p{Lu}\d+(?i:ab)", r"(?:x|yy)*z", r"^(a|b)$", r"[a-z]{1,50000}", r"x{300,50000}", r"(a*)*", r"(a|ab)(c|bcd)(d*)",
    r"\d{3}-\d{4}", r"[\w.+-]+@\w+\.\w{2,3}", r"(?s:.)*", r".*\.txt", r"[[:alpha:]_][[:alnum:]_]*", r"\x41\x{1F600}é[à-ü]", r"[^\W\d_]", r"\S+\s\S+",
    r"(?P<y>\d{4})-(?<m>\d\d)", r"(|a|b)*?c", r"[]a]", r"[^]a]", r"[a\-z]", r"a||b", r"\Qx\E", r"(?:(?:a{1,3}){1,3}){1,3}", r"((((a?){9}){9}){9})", r"(a|b|c|d|e)*f(a|b){12}",
]
TEXTS = ["aaab", "abab", "12-3456", "x@y.org", "", "a.txt", "_a1", "é", "2024-01", "]"]
GBNFS = [
    'root ::= "a" | "b" root "c"', "root ::= [a-z]+ ([0-9] | [^0-9a-z]{2,5})*", 'root ::= item ("," item)*\nitem ::= [^,\\n]+ # text\n', 'root ::= (a b?){2,}\na ::= "x"\n\nb ::=\n  "y" |\n  "z"\n',
    'root ::= "\\"" ([^"\\\\] | "\\\\" ["\\\\/bfnrt])* "\\""', "root ::= .{0,20} \"\\u00e9\" \"\\U0001F600\" \"\\x41\"", 'root ::= root2\nroot2 ::= "(" root2 ")" | ""', "root ::= a\na ::= a b | \"c\"\nb ::= \"d\"",
    'expr ::= term ([-+] term)*\nterm ::= [0-9]+ | "(" expr ")"\nroot ::= expr "\\n"',
]


def write(target, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def main():
    golden = ROOT / "tests/golden/grammar"
    groups = json.loads((golden / "suite.json").read_text())["groups"]
    for group in groups[::4]:
        write("json_schema", b"0" + json.dumps(group["schema"]).encode())
    for tool in json.loads((golden / "tools.json").read_text())[::8]:
        text = json.dumps(tool["parameters"], separators=(",", ":"))
        if len(text) < 800:
            write("json_schema", b"1" + text.encode())
    for regex in REGEXES:
        write("regex", "\n".join([regex, *TEXTS]).encode())
    for gbnf in GBNFS:
        write("gbnf", gbnf.encode())


if __name__ == "__main__":
    main()
