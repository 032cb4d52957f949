"""Rendered chat templates are those of Python's jinja2, byte for byte; where it raises, so do we, with the template's own text."""

import concurrent.futures
import json
import os
import pathlib
import random
import struct
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import chat_oracle  # noqa: E402
import conversations  # noqa: E402

PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
SHARED = ROOT.parent / "shared/data/chat_templates"
ENV = {**os.environ, "SOURCE_DATE_EPOCH": str(chat_oracle.EPOCH)}


def run(template, data, *args):
    """Render template (a path) over data (JSON text)."""
    return subprocess.run(
        [PLUMB, "template", "--template", str(template), "--input", "-", *args], input=data, capture_output=True, env=ENV, timeout=60
    )


def render(tmp_path, text, variables):
    """(True, text), or (False, what stands on stderr)."""
    path = tmp_path / "t.jinja"
    path.write_bytes(text.encode())
    out = run(path, json.dumps(variables).encode())
    assert out.returncode in (0, 1), out
    return (True, out.stdout.decode()) if out.returncode == 0 else (False, out.stderr.decode())


def difference(ours, theirs):
    i = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"at {i}: ours {ours[max(0, i - 60):i + 60]!r}, jinja2 {theirs[max(0, i - 60):i + 60]!r}"


def compare(path, compiled, name, variables):
    """None if we do as jinja2 does, else what differs; and whether a text was rendered."""
    ok, theirs = chat_oracle.render(compiled, variables)
    out = run(path, json.dumps(variables).encode())
    if out.returncode not in (0, 1):
        return f"{name}: exit {out.returncode}: {out.stderr[-300:]!r}", ok
    if ok != (out.returncode == 0):
        return f"{name}: ours {out.stderr[:300]!r}, jinja2 {theirs!r:.300}", ok
    if ok:
        ours = out.stdout.decode()
        return None if ours == theirs else f"{name}: {difference(ours, theirs)}", ok
    if type(theirs).__name__ == "TemplateError" and out.stderr.decode() != f"plumb template: {theirs}\n":
        return f"{name}: ours {out.stderr!r}, jinja2 {theirs!r}", ok
    return None, ok


def shared_templates():
    return sorted(SHARED.glob("*.jinja"))


def test_published_templates_render_as_with_jinja2(record_property):
    templates = shared_templates()
    if not templates:
        pytest.skip("no-shared-data: ../shared/data/chat_templates")
    table = list(conversations.conversations())
    compiled = {path: chat_oracle.ENVIRONMENT.from_string(path.read_bytes().decode()) for path in templates}
    jobs = [(path, compiled[path], *c) for path in templates for c in table]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: compare(*job), jobs))
    bad = [f"{job[0].name}: {text}" for job, (text, _) in zip(jobs, results) if text]
    rendered = sum(ok for _, ok in results)
    print(f"{len(jobs) - len(bad)} of {len(jobs)} renders equal ({len(templates)} templates, {len(table)} conversations; "
          f"{rendered} texts, {len(jobs) - rendered} errors)")
    assert not bad, f"{len(bad)} differ:\n" + "\n".join(bad[:20])


CASES = json.loads((ROOT / "tests/golden/template/cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['case']}-{CASES.index(c)}")
def test_cases_of_other_servers(tmp_path, case):
    """Cases B08, B09 and B11: faults of other servers, with what jinja2 does."""
    ok, text = render(tmp_path, case["t"], case["k"])
    if "out" in case:
        assert (ok, text) == (True, case["out"])
    else:
        assert not ok and case["err"] in text


def test_doubles_are_pythons_repr(tmp_path):
    r = random.Random(20251231)
    doubles = [2.0**e for e in range(-1074, 1024)] + [r.random() * 10 ** r.randint(-20, 20) for _ in range(30000)]
    while len(doubles) < 100000:
        d = struct.unpack("<d", r.getrandbits(64).to_bytes(8, "little"))[0]
        if d == d and abs(d) != float("inf"):
            doubles.append(d)
    spelled = "[" + ",".join("%.17e" % d for d in doubles) + "]"
    path = tmp_path / "t.jinja"
    path.write_text("{{ x|tojson }}")
    out = run(path, b'{"x": ' + spelled.encode() + b"}")
    assert out.returncode == 0, out.stderr
    ours = out.stdout.decode()[1:-1].split(", ")
    bad = [(a, repr(d)) for a, d in zip(ours, doubles) if a != repr(d)]
    assert len(ours) == len(doubles) and not bad, bad[:10]


def test_an_exception_is_exit_1_with_its_text(tmp_path):
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('No system role: ' ~ messages[0].content) }}{% endif %}ok"
    path = tmp_path / "t.jinja"
    path.write_text(text)
    out = run(path, json.dumps({"messages": [{"role": "system", "content": "Z9"}]}).encode())
    assert (out.returncode, out.stdout, out.stderr) == (1, b"", b"plumb template: No system role: Z9\n")
    out = run(path, json.dumps({"messages": [{"role": "user", "content": "Z9"}]}).encode())
    assert (out.returncode, out.stdout, out.stderr) == (0, b"ok", b"")


def test_a_broken_template_names_its_line(tmp_path):
    ok, text = render(tmp_path, "a\n{% if %}", {})
    assert not ok and "line 2" in text


def test_usage_errors_are_exit_2(tmp_path):
    for args in ([], ["--template", "x"], ["--template", "x", "--model", "y", "--input", "-"]):
        assert subprocess.run([PLUMB, "template", *args], capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode == 2
    missing = subprocess.run([PLUMB, "template", "--template", str(tmp_path / "none"), "--input", "-"], capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    assert missing.returncode == 1 and b"none" in missing.stderr
