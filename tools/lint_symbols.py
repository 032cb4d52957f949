#!/usr/bin/env python3
"""Names of globals, read from the release objects: each starts with a module of its directory, and one that a single file
uses is static. A module is a file's stem, its first word, or a struct or enum that a header of the directory declares."""

import collections
import pathlib
import re
import subprocess
import sys

from lint_common import ROOT, c_files, code_of, read, report

ISA = re.compile(r"_(avx2|avxvnni|avx512|amx|neon)$")
BUILD = ROOT / "build/release"
EXTRA = {"base": {"bug"}}  # BUG_ON's function

words = collections.defaultdict(set)  # identifier -> files that use it
modules = collections.defaultdict(set, {d: set(names) for d, names in EXTRA.items()})
in_macros = set()
for p in c_files():
    code = code_of(read(p))
    for w in set(re.findall(r"\b[A-Za-z_]\w*\b", code)):
        words[w].add(p)
    if p.endswith(".h"):
        for body in re.findall(r"^\s*#\s*define((?:[^\n]*\\\n)*[^\n]*)", code, re.M):
            in_macros |= set(re.findall(r"\w+", body))
    parts = p.split("/")
    if parts[0] != "src":
        continue
    d = "/".join(parts[1:-1])
    stem = ISA.sub("", pathlib.PurePath(p).stem)
    modules[d] |= {stem, stem.split("_")[0], parts[1], parts[-2]}
    if p.endswith(".h"):
        types = re.findall(r"^(?:struct|enum|union) (\w+)", code, re.M)
        modules[d] |= set(types) | {t.split("_")[0] for t in types}

objects = sorted(o for o in (BUILD / "src").rglob("*.o") if (ROOT / o.relative_to(BUILD).with_suffix(".c")).exists())
if not objects:
    sys.exit("symbols: nothing built: run make")
found, n = [], 0
out = subprocess.run(["nm", "-A", "-g", "--defined-only", *map(str, objects)], check=True, capture_output=True, text=True)
for line in out.stdout.splitlines():
    obj, rest = line.split(":", 1)
    name = rest.split()[-1]
    source = str(pathlib.Path(obj).relative_to(BUILD).with_suffix(".c"))
    d = "/".join(source.split("/")[1:-1])
    n += 1
    if name == "main" or name.startswith(("__asan", "__odr")):
        continue
    if not any(re.match(re.escape(m) + r"(?![a-z])", name) for m in modules[d]):
        found.append(f"{source}:1: {name} does not start with a module of {d}/")
    stem = source[:-2]
    own = {source, stem + ".h", stem + "_int.h"}
    if name not in in_macros and not words[name] - own:
        found.append(f"{source}:1: {name} is used in no other file: make it static or remove it")
report("symbols", found, n)
