"""Each lint finds what it is for: a copy of the tools in an empty repository with one bad file."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def repo(tmp_path):
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", ".clang-format"):
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)

    def lint(name, files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        r = subprocess.run(["python3", f"tools/lint_{name}.py"], cwd=tmp_path, capture_output=True, text=True)
        return r.returncode, r.stdout

    return lint


@pytest.mark.parametrize("path, include, ok", [
    ("src/base/a.c", '"json/json.h"', False),
    ("src/weights/a.c", '"json/json.h"', True),
    ("src/engine/a.c", '"json/json.h"', False),
    ("src/model/a.c", '"engine/engine.h"', False),
    ("src/sched/a.c", '"tensor/backend.h"', False),
    ("src/server/a.c", '"engine/engine.h"', True),
    ("src/server/a.c", '"engine/step.h"', False),
    ("src/model/a.c", '"weights/gguf_int.h"', False),
    ("src/weights/a.c", '"weights/gguf_int.h"', True),
    ("src/server/a.c", "<pcre2.h>", False),
    ("src/tokenizer/a.c", "<pcre2.h>", True),
    ("src/model/a.c", "<immintrin.h>", False),
    ("tests/unit/t_a.c", '"base/a.c"', False),
    ("src/base/a.c", '"a.h"', False),
    ("src/extra/a.c", '"base/a.h"', False),
])
def test_layers(repo, path, include, ok):
    rc, out = repo("layers", {path: f"/* a */\n#include {include}\n"})
    assert (rc == 0) == ok, out
    assert ok or f"{path}:" in out


def test_a_comment_between_includes_is_no_include(repo):
    rc, out = repo("layers", {"src/base/a.c": '/* see\n   "json/json.h" */\nint base_x;\n'})
    assert rc == 0, out


@pytest.mark.parametrize("path, code, ok", [
    ("src/model/a.c", "p = malloc(n);", False),
    ("src/base/a.c", "p = malloc(n);", True),
    ("src/model/a.c", "be->ops->free(be, p); x.exit(1);", True),
    ("src/model/a.c", "strcpy(a, b);", False),
    ("src/model/a.c", "/* strcpy(a, b) */ f(\"strcpy(\");", True),
    ("src/server/a.c", 'getenv("X");', False),
    ("src/cli/a.c", 'getenv("X");', True),
    ("src/server/a.c", 'fprintf(stderr, "x");', False),
    ("src/kernels/ref/a.c", "y = expf(x);", False),
    ("src/kernels/ref/a.c", "y = op_expf(x); z = fmaf(a, b, c);", True),
    ("src/base/a.c", "/* TO" "DO later */", False),
])
def test_calls(repo, path, code, ok):
    rc, out = repo("text", {path: f"void f(void)\n{{\n    {code}\n}}\n"})
    assert (rc == 0) == ok, out


def test_sizes(repo):
    body = "    f();\n"
    rc, out = repo("text", {"src/base/a.c": "void base_f(void)\n{\n" + body * 151 + "}\n"})
    assert rc == 1 and "base_f has 151 lines" in out
    rc, out = repo("text", {"src/base/a.c": "void base_f(void)\n{\n" + body * 150 + "}\n"})
    assert rc == 0 and "1 warnings" in out
    rc, out = repo("text", {"src/base/a.c": "int x;\n" * 1000})
    assert rc == 1 and "1001 lines" in out
    rc, out = repo("text", {"src/base/a.c": "", "data.txt": "x" * ((1 << 20) + 1)})
    assert rc == 1 and "data.txt" in out


def test_flags(repo):
    rc, out = repo("text", {"Makefile": "CFLAGS := -ffast" "-math\n"})
    assert rc == 1 and "Makefile:1" in out
    rc, out = repo("text", {"Makefile": "# never -ffast" "-math\n"})
    assert rc == 0, out


@pytest.mark.parametrize("text, ok", [
    ("/* a.h - a */\n#ifndef PLUMB_BASE_A_H\n#define PLUMB_BASE_A_H\n#include <stdint.h>\nint8_t base_f(void);\n#endif\n", True),
    ("/* a.h - a */\n#ifndef PLUMB_BASE_A_H\n#define PLUMB_BASE_A_H\nint8_t base_f(void);\n#endif\n", False),
    ("/* a.h - a */\n#ifndef A_H\n#define A_H\nint base_f(void);\n#endif\n", False),
    ("#ifndef PLUMB_BASE_A_H\n#define PLUMB_BASE_A_H\nint base_f(void);\n#endif\n", False),
])
def test_headers(repo, text, ok):
    rc, out = repo("headers", {"src/base/a.h": text})
    assert (rc == 0) == ok, out
