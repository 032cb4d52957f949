#!/usr/bin/env python3
"""Who may include whom: the table of docs/DESIGN.md, section Layers.

Own directory always; of another directory only its public headers (not X_int.h). Libraries belong to the directories that
wrap them. No file includes a .c."""

import re

from lint_common import c_files, read, report

# json is a directory of its own: engine, sched, model, tensor and kernels never see it.
ALLOW = {
    "base": "",
    "json": "base",
    "tensor": "base",
    "kernels": "base tensor",
    "weights": "base json tensor",
    "tokenizer": "base json",
    "template": "base json",
    "grammar": "base json",
    "media": "base",
    "model": "base tensor weights",
    "engine": "base tensor weights model grammar",
    "sched": "base engine",
    "server": "base json sched tokenizer template grammar media engine",
    "cli": "base json tensor kernels weights tokenizer template grammar media model engine sched server",
}
# The server prepares engine requests, so it includes engine.h (the vtable), and the guide that rows are stepped with, which says what
# a resumed answer may show; nothing else of engine/.
ONLY = {("server", "engine"): {"engine/engine.h", "engine/guide.h"}}

LIBRARIES = {
    r"event2?/": "server",
    r"event\.h": "server",
    r"yajl/": "json",
    r"pcre2": "tokenizer grammar",
    r"utf8proc": "tokenizer grammar template",
    r"openssl/": "server weights engine cli",
    r"(histedit|editline)": "cli",
    r"(xxhash|zstd)": "engine",
    r"sqlite3": "server engine",
    r"(immintrin|x86intrin|arm_neon|arm_acle|cpuid)\.h": "kernels",
    r"pthread\.h": "base kernels grammar engine sched server cli",
    r"cuda": "kernels",
    r"(setjmp|complex|fenv)\.h": "base kernels",
}

# Of the directories that may, the files that do: what waits for a disk stays on the disk thread.
FILES = {r"sqlite3": {"src/server/store_db.c"}}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def check(path, text):
    top, here = path.split("/")[0], path.split("/")[1]
    for m in INCLUDE.finditer(text):
        where = f"{path}:{text.count(chr(10), 0, m.start()) + 1}"
        name = m[2]
        if name.endswith(".c"):
            yield f"{where}: includes a .c file"
        if top != "src":
            continue
        if m[1] == "<":
            for pattern, dirs in LIBRARIES.items():
                if re.match(pattern, name) and here not in dirs.split():
                    yield f"{where}: {here} may not use <{name}> (only {dirs})"
            for pattern, files_that_may in FILES.items():
                if re.match(pattern, name) and path not in files_that_may:
                    yield f"{where}: only {', '.join(files_that_may)} may use <{name}>"
            continue
        if "/" not in name:
            if name != "plumb.h":
                yield f'{where}: write the directory: "{here}/{name}"'
            continue
        there = name.split("/")[0]
        if here not in ALLOW:
            yield f"{path}:1: src/{here} is not in the layer table (tools/lint_layers.py, docs/DESIGN.md)"
            return
        if there == here:
            continue
        if there not in ALLOW[here].split() or name not in ONLY.get((here, there), {name}):
            yield f"{where}: {here} may not include {name}"
        elif name.endswith("_int.h"):
            yield f"{where}: {name} is internal to {there}"


files = c_files()
report("layers", [f for p in files for f in check(p, read(p))], len(files))
