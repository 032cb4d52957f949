#!/usr/bin/env python3
"""The docs against the tree: links lead somewhere, paths in backquotes exist, make targets exist, cli.md is what the program
says."""

import re
import subprocess
import sys

from lint_common import ROOT, read, report, tracked

PATH = re.compile(r"(?:src|tests|tools|docs|include|\.ci)/[\w./-]+")
found = []
files = tracked()
known = set(files) | {"/".join(p.split("/")[:i]) for p in files for i in range(1, p.count("/") + 1)}
targets = set(re.findall(r"[a-z-]+", " ".join(re.findall(r"^([a-z -]+):", read("Makefile"), re.M))))
pages = [p for p in files if p.endswith(".md")]


def anchors(page):
    heads = re.findall(r"^#+ (.+)$", read(page), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads}


for page in pages:
    text = read(page)
    prose = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    for m in re.finditer(r"\]\(([^)\s]+)\)", prose):
        where, link = f"{page}:{prose.count(chr(10), 0, m.start()) + 1}", m[1]
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        full = (ROOT / page).parent / file if file else ROOT / page
        if not full.exists():
            found.append(f"{where}: {link} leads nowhere")
        elif anchor and anchor not in anchors(str(full.resolve().relative_to(ROOT))):
            found.append(f"{where}: {link}: no such heading")
    for m in re.finditer(r"`([^`\n]+)`", prose):
        where, code = f"{page}:{prose.count(chr(10), 0, m.start()) + 1}", m[1]
        if PATH.fullmatch(code) and code.rstrip("/") not in known and "X" not in code:
            found.append(f"{where}: {code} does not exist")
        if code.startswith("make "):
            for word in code.split()[1:]:
                if "=" not in word and not word.startswith("-") and word not in targets:
                    found.append(f"{where}: make {word}: no such target")
r = subprocess.run([sys.executable, "tools/gen-limits-docs", "--check"], cwd=ROOT, capture_output=True, text=True)
if r.returncode:
    found.append(r.stderr.strip())
if (ROOT / "build/release/plumb").exists():
    r = subprocess.run([sys.executable, "tools/gen-cli-docs", "--check"], cwd=ROOT, capture_output=True, text=True)
    if r.returncode:
        found.append(r.stderr.strip())
else:
    found.append("docs/cli.md:1: nothing built: run make")
report("docs", found, len(pages))
