"""What every verb has in common: help, refused flags, exit codes, no colours in a pipe."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))


def plumb(*args):
    return subprocess.run([PLUMB, *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


VERBS = re.findall(r"^  ([a-z]+)  +\S", plumb("--help").stdout, re.M)


def flags_of(verb):
    """{name: placeholder or None} from the help text."""
    return dict(re.findall(r"^  --([a-z0-9-]+)(?: ([^a-z\s]\S*))?  ", plumb(verb, "--help").stdout, re.M))


def test_there_are_verbs():
    assert "version" in VERBS


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_lists_the_verbs(flag):
    r = plumb(flag)
    assert r.returncode == 0 and r.stderr == ""
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", r.stdout, re.M)


def test_version():
    a, b = plumb("version"), plumb("--version")
    assert a.returncode == b.returncode == 0 and a.stdout == b.stdout
    assert re.match(r"plumb \d+\.\d+\.\d+", a.stdout)


@pytest.mark.parametrize("args", [(), ("nosuchverb",), ("--nosuchflag",)])
def test_wrong_usage_of_the_program(args):
    r = plumb(*args)
    assert r.returncode == 2 and r.stdout == "" and "usage: plumb" in r.stderr
    assert not args or args[0] in r.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(verb):
    r = plumb(verb, "--help")
    assert r.returncode == 0 and r.stderr == ""
    assert r.stdout.startswith(f"usage: plumb {verb}")
    assert "\x1b" not in r.stdout
    assert plumb(verb, "-h").stdout == r.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_flag_is_refused(verb):
    for flag in ("--no-such-flag", "--no-such-flag=1", "--hel"):
        r = plumb(verb, flag)
        assert r.returncode == 2 and r.stdout == "", flag
        assert flag in r.stderr and f"plumb {verb} --help" in r.stderr
        assert "\x1b" not in r.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_a_flag_without_its_value_is_refused(verb):
    for name, value in flags_of(verb).items():
        if value:
            r = plumb(verb, f"--{name}")
            assert r.returncode == 2 and f"--{name}" in r.stderr, name
        else:
            r = plumb(verb, f"--{name}=1")
            assert r.returncode == 2 and f"--{name}" in r.stderr, name


@pytest.mark.parametrize("verb", VERBS)
def test_a_number_flag_takes_only_numbers(verb):
    for name, value in flags_of(verb).items():
        if value in ("N", "X", "P") or name == "temperature":
            for bad in ("", "x", "1x", "nan", "99999999999999999999999"):
                r = plumb(verb, f"--{name}={bad}")
                assert r.returncode == 2 and f"--{name}" in r.stderr, (name, bad)


@pytest.mark.parametrize("verb", VERBS)
def test_a_second_positional_is_refused(verb):
    r = plumb(verb, "one", "two", "three")
    assert r.returncode == 2 and any(f"argument '{word}'" in r.stderr for word in ("one", "two", "three")), r.stderr
