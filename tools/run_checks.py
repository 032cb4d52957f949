#!/usr/bin/env python3
"""Run every test program and add up what they say: ./check calls this after installing packages.

Each stage is one runner with its log in build/check/. A runner that says nothing, counts nothing, dies or takes too long is a
failure, whatever it counted before. A skip must name one of the reasons below; another one is a failure."""

import argparse
import collections
import concurrent.futures
import hashlib
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/check"
JOBS = os.cpu_count() or 2
REASONS = ("cpu-feature", "no-gpu", "no-shared-data")
QUICK_REASONS = ("model-not-fetched",)
MODELS = {"quick": ["smollm2"], "full": ["smollm2", "gemma3-270m", "qwen2.5-coder-0.5b", "all-minilm-l6-v2"]}
TAIL = 40
SIMULATED = "build/cudasim"
# Stages that mostly wait, for replies and for clocks: they have lanes of their own beside those that compute.
WAITING = ("pytest", "server-asan", "server-tsan")
WAITING_LANES = 2
# Stages that compute and look at no clock: they step back for those that do.
STEP_BACK = re.compile(r"build-|check-|exact-|cuda|fuzz-replay")

ENV = dict(
    os.environ,
    LC_ALL="C.UTF-8",
    PYTHONDONTWRITEBYTECODE="1",
    ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
    TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1",
)
ENV.pop("MAKEFLAGS", None)
ENV.pop("PLUMB", None)


class Result:
    """What one runner said."""

    def __init__(self):
        self.passed = self.failed = 0
        self.skips = []  # "reason: detail"
        self.notes = []  # why something failed, one line each

    def fail(self, note):
        self.failed += 1
        self.notes.append(note)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skips += other.skips
        self.notes += other.notes


def needs(name):
    """The stages that must be over before this one. Builds come one after another: each takes all processors."""
    if name == "build-release":
        return []
    if name.startswith("build-"):
        return {"build-cudasim": ["build-release"], "build-asan": ["build-cudasim"], "build-tsan": ["build-asan"]}[name]
    if name in ("cuda-sim", "pytest"):
        return ["build-cudasim"]
    if name == "fuzz-replay":
        return ["build-asan"]
    variant = name.rpartition("-")[2]
    return [f"build-{variant if variant in ('asan', 'tsan') else 'release'}"]


def step_back(pid):
    """The process and what it starts get what others leave. Where each session has its share (autogroup), the session does."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10))
        pathlib.Path(f"/proc/{pid}/autogroup").write_text("10")
    except OSError:
        pass  # it is over, or the system has no such groups


def run(cmd, log, timeout, env=None):
    """Run cmd with its output in log. Returns the exit status, negative for a signal, or None for a time-out."""
    with open(log, "ab") as out:
        out.write(f"$ {' '.join(map(str, cmd))}\n".encode())
        out.flush()
        p = subprocess.Popen(
            [str(c) for c in cmd], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env=env or ENV, start_new_session=True)
        if STEP_BACK.match(pathlib.Path(log).name):
            step_back(p.pid)
        try:
            return p.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:  # whatever the runner left behind in its own session
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()


def skips_of(text):
    return re.findall(r"^\s*skip: (.+)$", text, re.M)


def judge(result, what, rc, counted, skipped, text):
    """The rules that all runners share."""
    found = skips_of(text)[:skipped]
    result.skips += found + [f"unnamed: {what}"] * (skipped - len(found))
    if rc is None:
        result.fail(f"{what}: took too long")
    elif rc < 0:
        result.fail(f"{what}: died by {signal.Signals(-rc).name}")
    elif rc and not result.failed:
        result.fail(f"{what}: exit status {rc} although nothing failed")
    elif not counted:
        result.fail(f"{what}: counted no test")
    return result


def parse_line(what, rc, text):
    """Runners that end with "N passed, N failed, N skipped" (all such lines are added)."""
    r, skipped, counted = Result(), 0, 0
    for m in re.finditer(r"^(?:\w+: )?(\d+) passed, (\d+) failed, (\d+) skipped$", text, re.M):
        p, f, s = map(int, m.groups())
        r.passed += p
        r.failed += f
        skipped += s
        counted += p + f + s
    if r.failed:
        r.notes.append(f"{what}: {r.failed} failed")
    return judge(r, what, rc, counted, skipped, text)


def parse_last(what, rc, text):
    """parse_line of the last command of a log that several share."""
    return parse_line(what, rc, "$ " + text.rpartition("\n$ ")[2])


def parse_cmocka(what, rc, text):
    r, skipped, counted, expected = Result(), 0, 0, 0
    for name, n in re.findall(r"\[\s*(PASSED|FAILED|SKIPPED)\s*\] (\d+) test\(s\)", text):
        if name == "PASSED":
            r.passed += int(n)
        elif name == "FAILED":
            r.failed += int(n)
        else:
            skipped += int(n)
        counted += int(n)
    for n in re.findall(r"Running (\d+) test\(s\)", text):
        expected += int(n)
    failed = sorted(set(re.findall(r"\[\s*FAILED\s*\] (?!\d+ test)(.+)$", text, re.M)))
    r.notes += [f"{what}: {name}" for name in failed]
    judge(r, what, rc, counted, skipped, text)
    if rc is not None and rc >= 0 and counted != expected:
        r.fail(f"{what}: {expected} tests started, {counted} counted")
    return r


def tail(log):
    lines = pathlib.Path(log).read_text(errors="replace").splitlines()
    return "\n".join("    " + line[:300] for line in lines[-TAIL:])


class Checks:
    def __init__(self, args):
        self.args = args
        self.mode = "quick" if args.quick else "full"
        self.total = Result()
        self.env = ENV
        self.python = None
        self.telling = threading.Lock()
        self.turn = threading.Condition()  # guards done
        self.done = set()

    # -- helpers ---------------------------------------------------------------------------------------------------

    def one(self, name, cmd, parse, timeout=900, env=None):
        """One runner that is a whole stage."""
        log = LOGS / f"{name}.log"
        rc = run(cmd, log, timeout, env or self.env)
        return parse(name, rc, log.read_text(errors="replace"))

    def many(self, name, cmds, parse, timeout=600, jobs=JOBS):
        """Several runners beside each other, their logs joined."""
        result, log = Result(), LOGS / f"{name}.log"

        def work(cmd):
            program = next(c.name for c in cmd if isinstance(c, pathlib.Path))
            part = LOGS / f"{name}.{program}.part"
            rc = run(cmd, part, timeout, self.env)
            text = part.read_text(errors="replace")
            part.unlink()
            return parse(f"{name} {program}", rc, text), text

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool, open(log, "a", encoding="utf-8") as out:
            bad = []
            for r, text in pool.map(work, cmds):
                result.add(r)
                if r.failed:
                    bad.append(text)
                else:
                    out.write(text)
            out.write("".join(bad))  # last, so that the tail shows them
        if not cmds:
            result.fail(f"{name}: nothing to run")
        return result

    def step(self, name, cmd, timeout=1800, env=None):
        """A command that is no test but must work: a build, a download."""
        r, rc = Result(), run(cmd, LOGS / f"{name}.log", timeout, env or self.env)
        if rc != 0:
            r.fail(f"{name}: {'took too long' if rc is None else f'exit status {rc}'}")
        return r

    # -- stages ----------------------------------------------------------------------------------------------------

    def venv(self):
        home = pathlib.Path(os.environ.get("PLUMB_VENV", ROOT / ".venv"))
        python, stamp, wanted = home / "bin/python", home / "stamp", ROOT / "tests/requirements.txt"
        self.python = python
        key = hashlib.sha256(f"{sys.version} {home}\n{wanted.read_text()}".encode()).hexdigest()
        if stamp.exists() and stamp.read_text() == key:
            return Result()
        if "PLUMB_VENV" in os.environ and home.exists() and not stamp.exists() and any(home.iterdir()):
            raise RuntimeError(f"PLUMB_VENV={home} is not an environment of ours, and would be emptied: name another directory")
        r = self.step("venv", [sys.executable, "-m", "venv", "--clear", home])
        if r.failed and sys.executable != "/usr/bin/python3":
            r = self.step("venv", ["/usr/bin/python3", "-m", "venv", "--clear", home])
        if not r.failed:
            r = self.step("venv", [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
                                   "--retries", "5", "-r", wanted])
        if not r.failed:
            stamp.write_text(key)
        return r

    def models(self):
        r = self.step("models", [sys.executable, "tools/fetch-models", *MODELS[self.mode]])
        if self.args.quick and not r.failed:
            # A cache directory with the default model alone, so that a test of another one skips.
            real = pathlib.Path(ENV.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "plumb/models/smollm2.gguf"
            cache = LOGS / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            (cache / "plumb/models").mkdir(parents=True)
            (cache / "plumb/models/smollm2.gguf").symlink_to(real)
            self.env = dict(self.env, XDG_CACHE_HOME=str(cache))
        return r

    def build(self, variant, *targets):
        return self.step(f"build-{variant}", ["make", f"-j{JOBS}", f"V={variant}", *targets])

    def unit(self, variant):
        return self.many(f"unit-{variant}", [no_aslr(variant) + [p] for p in programs(variant, "unit", "t_*")], parse_cmocka)

    def suite(self, stage, *args, variant="release"):
        name = stage.partition("-")[0]
        return self.one(stage, [ROOT / f"build/{variant}/tests/{name}/{name}", *args], parse_line, 2400)

    def check_neon(self):
        """As `make check-neon`. The emulator has every instruction, so that a skip means that nothing was compared."""
        program = "build/neon/tests/check/check"
        r = self.step("check-neon", ["make", f"-j{JOBS}", "V=neon", program])
        if not r.failed:
            r = self.one("check-neon", ["qemu-aarch64-static", "-cpu", "max", program, "--quick"], parse_line, 1200)
            for skip in r.skips:
                r.fail(f"check-neon: skipped {skip}")
        return r

    def cuda(self):
        """Compile the CUDA backend where its toolkit is, and run it where there is a GPU too."""
        home = pathlib.Path(ENV.get("CUDA_HOME", "/usr/local/cuda"))
        if not (home / "bin/nvcc").exists():
            r = Result()
            r.skips.append(f"no-gpu: {home}/bin/nvcc is not installed, so the CUDA backend is not compiled")
            return r
        suites = [ROOT / f"build/cuda/tests/{name}/{name}" for name in ("check", "exact")]
        r = self.step("cuda", ["make", f"-j{JOBS}", "CUDA=1", "all", *(str(s.relative_to(ROOT)) for s in suites)])
        for suite in suites if not r.failed else []:
            r.add(self.one("cuda", [suite, "--device", "cuda"], parse_last, 1200))
        return r

    def build_cuda_sim(self):
        return self.step("build-cudasim", ["make", f"-j{JOBS}", "CUDA=sim", "all", *(f"{SIMULATED}/tests/{t}/{t}" for t in ("check", "exact"))])

    def cuda_sim(self):
        """The CUDA kernels on the simulated device. It is slow: of the exactness cells a part, another one each time."""
        seed = int(ENV.get("PLUMB_SEED") or random.randrange(10**6))
        draw = random.Random(seed)
        families = sorted(p.stem for p in (ROOT / "tests/golden/families").glob("*.gguf"))
        some = draw.sample(families, 2)
        print(f"     cuda-sim: PLUMB_SEED={seed}", flush=True)
        check = [ROOT / SIMULATED / "tests/check/check", "--quick", "--device", "cuda"]
        r = self.one("cuda-sim", check, parse_line, 1800)
        older = dict(self.env, PLUMB_CUDASIM_ARCH="80")  # products are other kernels there
        r.add(self.one("cuda-sim", [*check, "cuda/linear"], parse_last, 600, older))
        for parts, models in ((40, ["llama"]), (20, some)):
            r.add(self.one("cuda-sim", [ROOT / SIMULATED / "tests/exact/exact", "--device", "cuda", "--part",
                                        f"{draw.randrange(parts)}/{parts}", *models], parse_last, 1800))
        return r

    def fuzz(self):
        cmds = [[p, f"tests/fuzz/corpus/{p.name[5:]}"] for p in programs("asan", "fuzz", "fuzz_*")]
        return self.many("fuzz-replay", cmds, parse_line)

    def pytest(self, name, variant, *paths):
        log, report = LOGS / f"{name}.log", LOGS / f"{name}.xml"
        report.unlink(missing_ok=True)
        # V and SLOW: tests/api/serving.py takes its programs from build/V; sanitizers and neighbours need patience.
        env = dict(self.env, V=variant, PLUMB=str(ROOT / f"build/{variant}/plumb"), SLOW="2" if variant == "release" else "8")
        rc = run(no_aslr(variant) + [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10",
                                     "-o", "junit_family=xunit1", f"--junitxml={report}", *paths], log, 2400, env)
        r, skipped, counted = Result(), [], 0
        if report.exists():
            for case in xml.etree.ElementTree.parse(report).iter("testcase"):
                counted += 1
                skip = case.find("skipped")
                if case.find("failure") is not None or case.find("error") is not None:
                    r.failed += 1
                    r.notes.append(f"{name}: {case.get('classname')}::{case.get('name')}")
                elif skip is not None:
                    skipped.append(skip.get("message") or "unnamed")
                else:
                    r.passed += 1
        return judge(r, name, rc, counted, len(skipped), "".join(f"skip: {s.splitlines()[0]}\n" for s in skipped))

    def stages(self):
        # In the order in which they are begun, as far as what they need is there: what others wait for, then what takes long.
        quick = ["--quick"] if self.args.quick else []
        yield "build-release", lambda: self.build("release", "all", "tests")
        yield "build-cudasim", self.build_cuda_sim
        yield "build-asan", lambda: self.build("asan", "all", "tests")
        yield "build-tsan", lambda: self.build("tsan", "all", "tests")
        yield "exact-models", lambda: self.suite("exact-models", "--models", *quick)
        yield "exact-families", lambda: self.suite("exact-families", "--families", *quick)
        yield "cuda-sim", self.cuda_sim
        yield "lint", lambda: self.one("lint", ["tools/lint"], parse_line)
        yield "unit-release", lambda: self.unit("release")
        yield "unit-tsan", lambda: self.unit("tsan")
        yield "unit-asan", lambda: self.unit("asan")
        yield "check-neon", self.check_neon
        yield "cuda", self.cuda
        yield "check-release", lambda: self.suite("check-release", *quick)
        yield "check-asan", lambda: self.suite("check-asan", "--quick", variant="asan")
        yield "torture-release", lambda: self.suite("torture-release", *quick)
        yield "golden-release", lambda: self.suite("golden-release", *quick)
        yield "fuzz-replay", self.fuzz
        paths = [d for d in ("tests/tools", "tests/golden", "tests/api") if list((ROOT / d).glob("test_*.py"))]
        if paths:
            yield "pytest", lambda: self.pytest("pytest", "release", *paths)
        # The server over the scripted engine: parsers under asan, threads under tsan.
        names = ("server", "openai", "requests", "scores", "observing", "load", "responses", "messages", "security", "keep_alive",
                 "sessions", "token_ids_script", "cuts", "resume", "resume_responses", "responses_tools", "tools", "grammars")
        scripted = [f"tests/api/test_{t}.py" for t in names if (ROOT / f"tests/api/test_{t}.py").exists()]
        for variant in ("asan", "tsan") if scripted else ():
            yield f"server-{variant}", lambda variant=variant: self.pytest(f"server-{variant}", variant, *scripted, "-k", "not real_model")

    # -- the run ---------------------------------------------------------------------------------------------------

    def stage(self, name, work):
        start = time.monotonic()
        try:
            r = work()
        except Exception as e:  # a runner's trouble is that runner's failure; the others still run
            r = Result()
            r.fail(f"{name}: {type(e).__name__}: {e}")
        seconds = time.monotonic() - start
        with self.telling:
            self.tell(name, r, seconds)
        return not r.failed

    def tell(self, name, r, seconds):
        count = f"{r.passed} passed, {r.failed} failed, {len(r.skips)} skipped" if r.passed + r.failed + len(r.skips) else ""
        print(f"{'FAIL' if r.failed else 'ok':4} {name:14} {seconds:6.1f} s  {count}", flush=True)
        for note in r.notes[:20]:
            print(f"     {note}")
        log = LOGS / f"{name}.log"
        if r.failed and log.exists():
            print(f"     {log.relative_to(ROOT)} ends with:\n{tail(log)}", flush=True)
        self.total.add(r)

    def lane(self, some, names, fetching):
        """Take from some, which other lanes take from too, the first stage that is ready, until none is left."""
        while True:
            with self.turn:
                ready = None
                while some and not ready:
                    ready = next((s for s in some if all(n in self.done or n not in names for n in needs(s[0]))), None)
                    if not ready:
                        self.turn.wait()
                if not ready:
                    return
                some.remove(ready)
            name, work = ready
            if not name.startswith(("build-", "lint")):
                for t in fetching:
                    t.join()
            self.stage(name, work)
            with self.turn:
                self.done.add(name)
                self.turn.notify_all()

    def main(self):
        only = set(self.args.only or [])
        stages = [(n, w) for n, w in self.stages() if not only or n in only]
        if self.args.list:
            print("\n".join(n for n, _ in stages))
            return 0
        LOGS.mkdir(parents=True, exist_ok=True)
        for old in [*LOGS.glob("*.log"), *LOGS.glob("*.part")]:
            old.unlink()
        start = time.monotonic()
        # Downloads wait for the network, builds for the processors: side by side.
        fetching = [threading.Thread(target=self.stage, args=step) for step in (("venv", self.venv), ("models", self.models))]
        names = {n for n, _ in stages}
        waiting, busy = [s for s in stages if s[0] in WAITING], [s for s in stages if s[0] not in WAITING]
        lanes = [threading.Thread(target=self.lane, args=(some, names, fetching))
                 for some, n in ((waiting, WAITING_LANES), (busy, JOBS)) for _ in range(n)]
        for t in (*fetching, *lanes):
            t.start()
        for t in (*fetching, *lanes):
            t.join()
        return self.finish(time.monotonic() - start)

    def finish(self, seconds):
        t = self.total
        allowed = REASONS + (QUICK_REASONS if self.args.quick else ())
        by_reason = collections.Counter(s.split(":")[0].strip() for s in t.skips)
        for reason, n in sorted(by_reason.items()):
            details = sorted({s for s in t.skips if s.split(":")[0].strip() == reason})
            is_known = reason in allowed
            print(f"skipped, {reason if is_known else 'UNEXPECTED: ' + reason}: {n}")
            for d in details[:5]:
                print(f"     {d[:160]}")
            if not is_known:
                t.failed += n
        t.skips = [s for s in t.skips if s.split(":")[0].strip() in allowed]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"total: {seconds:.0f} s; {used.ru_utime + used.ru_stime:.0f} s of {JOBS} processors")
        print(f"{t.passed} passed, {t.failed} failed, {len(t.skips)} skipped")
        return 1 if t.failed or not t.passed else 0


def programs(variant, kind, pattern):
    """The test programs whose source is there (build/ may hold older ones)."""
    return [ROOT / f"build/{variant}" / s.relative_to(ROOT).with_suffix("") for s in sorted((ROOT / "tests" / kind).glob(pattern + ".c"))]


def no_aslr(variant):
    """ThreadSanitizer of gcc 12 cannot run where the kernel randomises more than 28 bits of addresses."""
    if variant != "tsan":
        return []
    cmd = ["setarch", os.uname().machine, "-R"]
    return cmd if shutil.which("setarch") and subprocess.run([*cmd, "true"], capture_output=True).returncode == 0 else []


def arguments():
    p = argparse.ArgumentParser(prog="check", description=__doc__.splitlines()[0])
    p.add_argument("--quick", action="store_true", help="only what needs no model but the default one")
    p.add_argument("--list", action="store_true", help="list the stages")
    p.add_argument("--only", nargs="+", metavar="STAGE", help="run these stages alone (builds are stages too)")
    return p.parse_args()


if __name__ == "__main__":
    sys.exit(Checks(arguments()).main())
