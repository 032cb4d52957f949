#!/usr/bin/env python3
"""Each header compiles alone, has an include guard named after its path and opens with a comment that says what it is.

Exempt from the first two: bodies of kernels that several instruction sets share (X_impl.h, X_ymm.h, X_zmm.h in src/kernels), which
a variant's .c includes after its own macros. Those of tests/cudasim are C++."""

import concurrent.futures
import os
import re
import shutil
import subprocess

from lint_common import ROOT, c_files, read, report

FLAGS = "-std=c11 -D_GNU_SOURCE -Isrc -Iinclude -Itests -Wall -Wextra -Wno-unused-parameter -Werror -fsyntax-only -x c".split()
CXX_FLAGS = ["-std=c++17", "-Itests/cudasim/include", *FLAGS[2:-1], "c++"]
SUFFIX = {m[1]: m[2].split() for m in re.finditer(r"^\$\(B\)/%(_\w+)\.o: CFLAGS \+= (.*)$", read("Makefile"), re.M)}


SHARED_BODY = re.compile(r"^src/kernels/.*_(impl|ymm|zmm)\.h$")


def check(path):
    text, out = read(path), []
    if not re.match(rf"/\* {re.escape(os.path.basename(path))} - \S", text):
        out.append(f"{path}:1: does not open with '/* {os.path.basename(path)} - what it is'")
    if SHARED_BODY.match(path):
        return out
    guard = re.search(r"^#ifndef (\w+)\n#define \1$", text, re.M)
    want = "PLUMB_" + re.sub(r"\W", "_", re.sub(r"^(src|include)/", "", path)).upper()
    if not guard or guard[1] not in (want, want.replace("PLUMB_TESTS_", "PLUMB_")):
        out.append(f"{path}:1: include guard is not {want}")
    cc, flags = os.environ.get("CC", "cc"), []
    stem = path[:-2]
    for suffix, extra in SUFFIX.items():
        if stem.endswith(suffix):
            flags = extra
    if stem.endswith("_neon"):
        cc = shutil.which("aarch64-linux-gnu-gcc")
        if not cc:
            return out
    if path.startswith("tests/cudasim/"):
        cc, flags = os.environ.get("CXX", "c++"), CXX_FLAGS
    else:
        flags = [*FLAGS, *flags]
    r = subprocess.run([*cc.split(), *flags, path], cwd=ROOT, capture_output=True, text=True)
    if r.returncode:
        out.append(f"{path}:1: does not compile alone:\n{r.stderr.strip()}")
    return out


files = [p for p in c_files() if p.endswith(".h")]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    report("headers", [f for r in pool.map(check, files) for f in r], len(files))
