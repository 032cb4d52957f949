"""What the lints share: the list of files, C text without comments and strings, one way to report."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

_LITERALS = re.compile(
    r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""", re.S | re.X
)


def tracked():
    """Paths, relative to the root, that git tracks or would track."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode()
    return sorted({p for p in out.split("\0") if p and (ROOT / p).is_file()})


def c_files(*tops):
    return [p for p in tracked() if p.endswith((".c", ".h")) and p.split("/")[0] in (tops or ("src", "tests", "include"))]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def code_of(text):
    """C text with comments and the inside of literals blanked; line numbers stay."""
    def blank(m):
        s = m.group(0)
        if s[0] in "\"'":
            return s[0] + " " * (len(s) - 2) + s[0]
        return re.sub(r"[^\n]", " ", s)

    return _LITERALS.sub(blank, text)


def report(name, findings, checked):
    """Print the findings ("file:line: text") and end the program."""
    for f in findings:
        print(f)
    print(f"{name}: {checked} checked, {len(findings)} found")
    sys.exit(1 if findings else 0)
