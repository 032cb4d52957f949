"""Random small templates render as with Python's jinja2; the seed is fresh each time and printed."""

import concurrent.futures
import copy
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import chat_oracle  # noqa: E402
import random_templates  # noqa: E402

PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
N = int(os.environ.get("TEMPLATES", "400"))
DATA = json.dumps(random_templates.VARIABLES).encode()

# Text that tells an address, or a Python class of which we have no twin: not compared.
PYTHON_ONLY = re.compile(r"(?i) at 0x|<built-in|<function|<bound|<class|undefined\b|<macro|<loopcontext|<namespace|_object|<gener|<list_rev")


def compare(seed, folder):
    """None if equal, else a description."""
    text = random_templates.Maker(seed).template()
    path = folder / f"{seed}.jinja"
    path.write_bytes(text.encode())
    ok, theirs = chat_oracle.render(text, copy.deepcopy(random_templates.VARIABLES))
    if ok and PYTHON_ONLY.search(theirs):
        return None
    out = subprocess.run([PLUMB, "template", "--template", str(path), "--input", "-"], input=DATA, capture_output=True, timeout=60)
    path.unlink()
    if out.returncode == (0 if ok else 1) and (not ok or out.stdout.decode() == theirs):
        return None
    return f"seed {seed}: {text!r}\n  ours {out.returncode} {out.stdout!r} {out.stderr[-300:]!r}\n  jinja2 {theirs!r}"


def test_random_templates_render_as_with_jinja2(tmp_path):
    first = int(os.environ.get("SEED", random.SystemRandom().randrange(10**9)))
    print(f"SEED={first} TEMPLATES={N}")
    with warnings.catch_warnings(), concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")
        bad = [text for text in pool.map(lambda seed: compare(seed, tmp_path), range(first, first + N)) if text]
    assert not bad, f"SEED={first}: {len(bad)} of {N} differ:\n" + "\n".join(bad[:10])
