"""What ./check makes of each kind of runner: what passes, and what must not."""

import importlib.util
import os
import pathlib
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("run_checks", ROOT / "tools/run_checks.py")
rc = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rc)

CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] a
[       OK ] a
[==========] 3 test(s) run.
[  PASSED  ] 3 test(s).
"""
CMOCKA_MIXED = """[==========] Running 4 test(s).
skip: no-gpu: cuda
[  SKIPPED ] b
[  FAILED  ] c
[==========] 4 test(s) run.
[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] b
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] c

 1 FAILED TEST(S)
"""


@pytest.mark.parametrize("status, text, passed, failed, skips", [
    (0, CMOCKA, 3, 0, []),
    (0, CMOCKA + CMOCKA, 6, 0, []),
    (1, CMOCKA_MIXED, 2, 1, ["no-gpu: cuda"]),
    (0, CMOCKA_MIXED.replace("skip: no-gpu: cuda\n", ""), 2, 1, ["unnamed: t"]),
    (1, CMOCKA, 3, 1, []),                                       # a leak after the last test
    (-11, "[==========] Running 3 test(s).\n", 0, 1, []),        # a crash
    (0, "[==========] Running 3 test(s).\n", 0, 2, []),          # ended early: none counted, three started
    (None, "[==========] Running 3 test(s).\n", 0, 1, []),       # too long
    (0, "", 0, 1, []),
])
def test_cmocka(status, text, passed, failed, skips):
    r = rc.parse_cmocka("t", status, text)
    assert (r.passed, r.failed, r.skips) == (passed, failed, skips), r.notes
    assert len(r.notes) >= (r.failed > 0)


@pytest.mark.parametrize("status, text, passed, failed, skips", [
    (0, "a\n12 passed, 0 failed, 0 skipped\n", 12, 0, []),
    (0, "skip: cpu-feature: amx\n12 passed, 0 failed, 1 skipped\n", 12, 0, ["cpu-feature: amx"]),
    (0, "12 passed, 0 failed, 1 skipped\n", 12, 0, ["unnamed: t"]),
    (1, "12 passed, 2 failed, 0 skipped\n", 12, 2, []),
    (1, "12 passed, 0 failed, 0 skipped\n", 12, 1, []),
    (-6, "12 passed, 0 failed, 0 skipped\n", 12, 1, []),
    (0, "done\n", 0, 1, []),
    (0, "0 passed, 0 failed, 0 skipped\n", 0, 1, []),
    (None, "", 0, 1, []),
])
def test_line(status, text, passed, failed, skips):
    r = rc.parse_line("t", status, text)
    assert (r.passed, r.failed, r.skips) == (passed, failed, skips), r.notes


@pytest.mark.parametrize("quick, skip, failed", [
    (False, "no-gpu: x", 0),
    (False, "no-shared-data", 0),
    (False, "model-not-fetched: gemma3-270m", 1),
    (True, "model-not-fetched: gemma3-270m", 0),
    (True, "slow today", 1),
    (True, "unnamed: t", 1),
])
def test_an_unknown_skip_fails(quick, skip, failed, capsys):
    args = rc.argparse.Namespace(quick=quick, only=None, list=False)
    checks = rc.Checks(args)
    checks.total.passed, checks.total.skips = 5, [skip]
    assert checks.finish(1) == failed
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == f"5 passed, {failed} failed, {1 - failed} skipped"


def test_run_ends_what_takes_too_long_and_what_is_left_behind(tmp_path):
    log = tmp_path / "log"
    assert rc.run(["sleep", "30"], log, 0.2) is None
    assert rc.run(["bash", "-c", "sleep 30 & echo $! >" + str(tmp_path / "pid")], log, 20) == 0
    pid = int((tmp_path / "pid").read_text())
    stat = pathlib.Path(f"/proc/{pid}/stat")
    for _ in range(100):  # the kill is sent, not waited for
        if not stat.exists() or stat.read_text().split(")")[1].split()[0] in "ZX":
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"process {pid} is still there")
    assert rc.run(["bash", "-c", "kill -SEGV $$"], log, 20) == -11


@pytest.mark.parametrize("skips, failed", [([], 0), (["cpu-feature: neon"], 1)])
def test_under_the_emulator_nothing_is_skipped(skips, failed, monkeypatch):
    said = rc.Result()
    said.passed, said.skips = 7, skips
    checks = rc.Checks(rc.argparse.Namespace(quick=True, only=None, list=False))
    monkeypatch.setattr(checks, "step", lambda *a, **k: rc.Result())
    monkeypatch.setattr(checks, "one", lambda *a, **k: said)
    r = checks.check_neon()
    assert (r.passed, r.failed) == (7, failed)


def test_stages_that_wait_run_beside_the_others_after_their_build(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rc, "LOGS", tmp_path)
    monkeypatch.setattr(rc, "JOBS", 2)
    order = []

    def work(name, seconds=0.0):
        def run():
            order.append(f"{name} starts")
            time.sleep(seconds)
            order.append(f"{name} ends")
            r = rc.Result()
            r.passed = 1
            return r
        return name, run

    checks = rc.Checks(rc.argparse.Namespace(quick=True, only=None, list=False))
    monkeypatch.setattr(checks, "venv", lambda: rc.Result())
    monkeypatch.setattr(checks, "models", lambda: rc.Result())
    monkeypatch.setattr(checks, "stages", lambda: iter([
        work("build-release", 0.2), work("build-cudasim"), work("build-asan", 0.2), work("exact-models", 0.8), work("lint"), work("unit-asan", 0.2), work("unit-release"),
        work("pytest", 0.4), work("server-asan"), work("server-tsan", 0.2)]))
    assert checks.main() == 0
    at = {line: i for i, line in enumerate(order)}
    assert {"build-release starts", "server-tsan starts"} == set(order[:2]), "a build that is no stage is not waited for"
    assert at["build-release ends"] < min(at[f"{n} starts"] for n in ("build-cudasim", "exact-models", "pytest", "lint"))
    assert at["build-cudasim ends"] < min(at["build-asan starts"], at["pytest starts"])
    assert at["build-asan ends"] < at["lint starts"], "two of those that compute at a time, in their order"
    assert at["build-asan ends"] < at["unit-asan starts"] < at["unit-release starts"] < at["exact-models ends"]
    assert at["build-asan ends"] < at["server-asan starts"] < at["pytest ends"] < at["exact-models ends"]
    assert "10 passed, 0 failed, 0 skipped" in capsys.readouterr().out


def test_what_computes_steps_back(tmp_path):
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    for name, steps in (("build-asan", 10), ("exact-families", 10), ("unit-asan", 0), ("pytest", 0)):
        log = tmp_path / f"{name}.log"
        assert rc.run(["bash", "-c", "sleep 0.5; nice"], log, 20) == 0
        assert int(log.read_text().splitlines()[-1]) == min(19, ours + steps)


def test_every_stage_needs_stages_that_there_are():
    names = [n for n, _ in rc.Checks(rc.argparse.Namespace(quick=False, only=None, list=False)).stages()]
    assert len(set(names)) == len(names)
    over = set()
    for name in names:
        assert set(rc.needs(name)) <= over, name
        over.add(name)
