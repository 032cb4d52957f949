"""What a GPU's faults, its memory and its kind come to, through the server and the verbs: the program of `make CUDA=sim`, whose device is
simulated (tests/cudasim/device.cc says what can be asked of it), with tiny models."""

import concurrent.futures
import json
import os
import re
import socket
import subprocess
import time

import pytest
from serving import PLUMB, ROOT, SLOW, Reply, Server, request, strict_json

NAME = os.environ.get("CUDASIM", "cudasim" if os.environ.get("V", "release") == "release" else f"{os.environ['V']}-cudasim")
PROGRAM = ROOT / "build" / NAME / "plumb"
MODELS = {p.stem: p for d in ("tiny", "families") for p in (ROOT / "tests/golden" / d).glob("*.gguf")}
TEXT, CHAT, MSG = "/v1/completions", "/v1/chat/completions", "/v1/messages"
BAD = "an illegal memory access was encountered"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"no-gpu: build/{NAME}/plumb, whose GPU is simulated, was not built (make CUDA=sim)")


def settings(fault=None, arch=None, size=None):
    return {k: str(v) for k, v in {"PLUMB_CUDASIM_FAULT": fault, "PLUMB_CUDASIM_ARCH": arch, "PLUMB_CUDASIM_BYTES": size}.items() if v is not None}


def serve(*flags, model="llama", device="cuda", program=PROGRAM, **kind):
    template = ROOT / "build/cuda-test-template.jinja"
    if not template.exists():
        template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    args = [program, "serve", "--model", MODELS[model], "--device", device, "--port", "0", "--ctx", "320", "--kv-memory", "8M", "--rows", "4",
            "--chat-template", template, "--threads", "1"]
    if "--state-dir" not in flags:
        args.append("--no-store")
    return Server([str(a) for a in (*args, *flags)], env=settings(**kind), start_timeout=120 * SLOW)


def body(i, max_tokens=10, n=40, **fields):
    """Of request i: its own text behind a common beginning, greedy or sampled."""
    prompt = "What the others have begun with, too. " + chr(ord("a") + i % 26) * (i % 5) + str(i) * (n // len(str(i)))
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": (0, 0.9)[i % 2], "seed": i, "return_token_ids": True, **fields}


def ask(server, i, **fields):
    """The ids of an answer, or its error's text."""
    status, _, value = server.call(TEXT, body(i, **fields), timeout=120 * SLOW)
    if status == 200:
        return value["choices"][0]["token_ids"]
    assert status == 500 and value["error"]["type"] == "server_error", (status, value)
    return value["error"]["message"]


def ask_all(server, numbers, **fields):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return dict(zip(numbers, pool.map(lambda i: ask(server, i, **fields), numbers)))


def ledger(server):
    """Memory of the device, by what it is for."""
    return server.stats()["device_memory"]


CALM = {}


def calm(numbers, *flags, model="llama", arch=None, **fields):
    """What a server answers that nothing disturbs, each request alone. Asked once for each set-up."""
    key = (flags, model, arch, tuple(fields.items()))
    known = CALM.setdefault(key, {})
    todo = [i for i in numbers if i not in known]
    if todo:
        with serve(*flags, "--prompt-cache", "0", model=model, arch=arch) as s:
            known.update({i: ask(s, i, **fields) for i in todo})
    return {i: known[i] for i in numbers}


def run(*args, program=PROGRAM, **kind):
    return subprocess.run([str(program), *map(str, args)], env={**os.environ, **settings(**kind)}, capture_output=True, text=True, errors="replace", timeout=300 * SLOW)


# --- faults while requests run ---

KINDS = {  # what fails, each so many: loading takes less, and the places wander through the requests' steps
    "197": BAD,
    "copy149": BAD,
    "launch97": "too many resources requested for launch",
    "refuse151": "invalid argument",
}
CASES = [(k, "llama") for k in KINDS] + [(k, m) for k, m in (("197", "gemma3"), ("launch97", "qwen35-tied"))]


@pytest.mark.parametrize("kind,model", CASES)
def test_a_fault_ends_its_step_and_nothing_else(kind, model):
    """Again and again, one request at a time and several: an answer has the bytes that it always has, or is the device's error."""
    numbers, text, n_failed = list(range(4)), KINDS[kind], 0
    want = calm(numbers, model=model)
    with serve(model=model, fault=f"{kind},every") as s:
        before = ledger(s)
        for turn in range(3):
            got = ask_all(s, numbers) if turn % 2 else {i: ask(s, i) for i in numbers}
            for i in numbers:
                assert got[i] == want[i] or (isinstance(got[i], str) and got[i].startswith("GPU 0") and text in got[i]), (turn, i, got[i], want[i])
            n_failed += sum(isinstance(x, str) for x in got.values())
            assert s.call("/health")[0] == 200
        stats = s.stats()
        assert n_failed > 0
        assert (stats["device_mended"] > 0) == (text == BAD)
        assert ledger(s) == before
        assert stats["running"] == stats["waiting"] == 0


def stream(server, path, fields):
    """(event, data) of a stream up to its end, whatever that is."""
    with server.connect(timeout=120 * SLOW) as c:
        c.sendall(request(path, {**fields, "stream": True}))
        status, _, data = Reply(c).read()
    assert status == 200, data
    out = []
    for block in data.decode().split("\n\n"):
        name = re.search(r"^event: (.+)$", block, re.M)
        value = re.search(r"^data: (.+)$", block, re.M)
        if value:
            out.append((name and name[1], value[1] if value[1] == "[DONE]" else strict_json(value[1])))
    return out


def test_streams_of_every_api_end_with_an_error_of_their_own():
    """Several at a time lose the device in the middle: each has its API's error event, no end that would look like an answer's, and the
    text that it had is the beginning of the undisturbed one."""
    def requests():
        chat = {"messages": [{"role": "user", "content": "A common question, and its end"}], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        return [(TEXT, body(3, 24, ignore_eos=True)), (CHAT, chat), (MSG, chat), ("/v1/responses", {
            "input": "A common question, and its end", "max_output_tokens": 24, "temperature": 0, "ignore_eos": True})]

    def text(events):
        out = ""
        for _, e in events:
            if e != "[DONE]" and "error" not in e:
                for c in e.get("choices", []):
                    out += c.get("text") or c.get("delta", {}).get("content") or ""
                if isinstance(e.get("delta"), (str, dict)):
                    out += e["delta"] if isinstance(e["delta"], str) else e["delta"].get("text", "")
        return out

    with serve() as s:
        whole = [stream(s, *r) for r in requests()]
    with serve(fault=700) as s:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            cut = list(pool.map(lambda r: stream(s, *r), requests()))
        again = [stream(s, *r) for r in requests()]
        assert s.stats()["device_mended"] == 1
    assert [text(e) for e in again] == [text(e) for e in whole]
    n_failed = 0
    for (path, _), got, all_of_it in zip(requests(), cut, whole):
        errors = [(name, e) for name, e in got if e != "[DONE]" and (e.get("error") or e.get("type") in ("error", "response.failed"))]
        assert text(all_of_it).startswith(text(got))
        if not errors:
            assert text(got) == text(all_of_it)
            continue
        n_failed += 1
        name, e = errors[0]
        assert BAD in json.dumps(e)
        if path in (TEXT, CHAT):
            assert e["error"]["type"] == "server_error" and got[-1][1] == "[DONE]"
            assert not any(c.get("finish_reason") for _, x in got if x != "[DONE]" for c in x.get("choices", []))
        elif path == MSG:
            assert name == "error" and e["error"]["type"] == "api_error" and "message_stop" not in [n for n, _ in got]
        else:
            assert "response.completed" not in [n for n, _ in got]
    assert n_failed >= 2


@pytest.mark.parametrize("kind", ["graph1,every", "malloc60,every"])
def test_memory_that_only_makes_it_faster_is_done_without(kind):
    """Graphs that find no memory: their steps are run command by command. Nothing else is asked for while requests run."""
    numbers = list(range(4))
    want = calm(numbers)
    with serve(fault=kind) as s:
        assert ask_all(s, numbers) == want
        assert {i: ask(s, i) for i in numbers} == want


@pytest.mark.parametrize("flags,model", [(("--cache-type", "q8"), "llama"), ((), "qwen3moe")])
def test_what_a_step_needs_is_taken_at_load(flags, model):
    """Quantised caches and mixtures of experts have buffers of their own: what others take of the device meanwhile is not missed."""
    with serve(*flags, model=model) as s:
        before = ledger(s)
        for i in range(3):
            ask(s, i, max_tokens=4)
        assert ledger(s) == before


def test_an_answer_with_a_record_goes_on_after_the_fault(tmp_path):
    """The request that lost the device, asked again by its id, is the answer that it would have been."""
    headers, fields = {"X-Request-Id": "again"}, body(1, 16, ignore_eos=True)
    del fields["seed"]  # drawn by the server, and kept in the record
    with serve("--generation-checkpoint", 1, "--state-dir", tmp_path, fault=420) as s:
        first = s.call(TEXT, fields, headers=headers, timeout=120 * SLOW)
        assert first[0] == 500 and BAD in first[2]["error"]["message"], first
        status, _, value = s.call(TEXT, fields, headers=headers, timeout=120 * SLOW)
        assert status == 200 and s.stats()["resumed"] == 1
        seed = value["seed"] if "seed" in value else None
        if seed is not None:
            assert value["choices"][0]["token_ids"] == ask(s, 1, max_tokens=16, ignore_eos=True, seed=seed)


# --- a device that is gone ---

AGAIN_SECONDS = 60  # a server that loses its GPU sooner than this after its start does not start itself anew


def test_a_device_that_is_gone_at_once_ends_the_server():
    with serve(fault="300,gone") as s:
        got = ask(s, 1, max_tokens=30)
        assert isinstance(got, str) and BAD in got
        s.proc.wait(timeout=60 * SLOW)
        err = s.stop(check=False)
        s.checks_exit = False
    assert s.proc.returncode == 1
    assert f"{BAD}; this process cannot use it again: " in err and "busy or unavailable" in err


def test_a_device_that_is_gone_later_is_had_by_the_program_anew(tmp_path):
    """In the same process id on the same port; what has a record is read on there."""
    fields = body(1, 40, ignore_eos=True)
    want = calm([1], max_tokens=40, ignore_eos=True)[1]
    with socket.socket() as c:
        c.bind(("127.0.0.1", 0))
        port = c.getsockname()[1]
    start = time.time()
    s = serve("--generation-checkpoint", 1, "--state-dir", tmp_path, "--port", port, fault="700,gone")
    try:
        assert ask(s, 0, max_tokens=2) == calm([0], max_tokens=2)[0]
        time.sleep(max(0, start + AGAIN_SECONDS + 1 - time.time()))
        status, _, value = s.call(TEXT, fields, headers={"X-Request-Id": "long"}, timeout=120 * SLOW)
        assert status == 500 and BAD in value["error"]["message"], value
        end, status = time.time() + 60 * SLOW, 0
        while status != 200:  # what still comes to the old program is refused, or its connection ends
            assert time.time() < end and s.proc.poll() is None and status in (0, 503), (status, value)
            time.sleep(0.1)
            try:
                status, _, value = s.call(TEXT, fields, headers={"X-Request-Id": "long"}, timeout=120 * SLOW)
            except (OSError, EOFError):
                status = 0
        assert value["choices"][0]["token_ids"] == want
        stats = s.stats()
        assert stats["resumed"] == 1 and stats["device_mended"] == 0
        assert ask(s, 0, max_tokens=2) == calm([0], max_tokens=2)[0]
    finally:
        err = s.stop(check=False)
    assert s.proc.returncode == 0 and "the server starts anew" in err


# --- faults at load, and of the verbs ---

@pytest.mark.parametrize("kind,text", [("1", BAD), ("9", BAD), ("copy20", BAD), ("refuse2", "invalid argument"), ("refuse33", "invalid argument"),
                                       ("launch7", "too many resources"), ("malloc3", "no memory for"), ("malloc20", "no memory for")])
def test_a_fault_at_load_ends_it_with_a_message(kind, text):
    """Whatever was being loaded: matrices, vectors (their copies are waited for at the end), step buffers, the first step."""
    for verb in (["serve", "--port", 0, "--no-store"], ["run", "--prompt", "x", "--raw", "--max-tokens", 2]):
        got = run(*verb, "--device", "cuda", "--model", MODELS["llama"], fault=kind)
        assert got.returncode == 1 and f"plumb {verb[0]}: " in got.stderr and text in got.stderr, got
        assert "serving" not in got.stdout


def test_each_copy_at_load_is_seen():
    """None of those that fails leaves a model that answers."""
    whole = run("run", "--device", "cuda", "--model", MODELS["qwen2"], "--raw", "--prompt", "x", "--max-tokens", 3, "--temperature", 0).stdout
    n_ended = 0
    for n in range(1, 75, 3):
        got = run("run", "--device", "cuda", "--model", MODELS["qwen2"], "--raw", "--prompt", "x", "--max-tokens", 3, "--temperature", 0, fault=f"refuse{n}")
        assert got.returncode == 1 or got.stdout == whole, (n, got)
        n_ended += got.returncode
    assert n_ended > 10


def test_verbs_end_with_the_fault(tmp_path):
    text = tmp_path / "text"
    text.write_text("It was the best of times, it was the worst of times. " * 20)
    model = ("--device", "cuda", "--model", MODELS["llama"])
    for verb in (["run", *model, "--raw", "--prompt", "x" * 50, "--max-tokens", 30], ["bench", *model, "--prompt-tokens", 32, "--gen-tokens", 8, "--repeat", 1],
                 ["perplexity", *model, "--file", text, "--ctx", 64]):
        for kind in ("120", "launch110"):
            got = run(*verb, fault=kind)
            assert got.returncode == 1, (verb, got)
            assert got.stderr.splitlines()[-1].startswith(f"plumb {verb[0]}: GPU 0"), got.stderr


# --- memory ---

def test_what_does_not_fit_is_told_with_numbers():
    for size, text in ((100 << 20, r"step buffers: no memory for \d+ MiB on GPU 0: \d+ of 100 MiB are free"),
                       (400 << 20, r"3 layers need \d+ MiB of the GPU's memory \(weights \d+, cache \d+, step buffers \d+, room 384\), \d+ MiB are free: "
                                   r"no layer fits, --device cpu runs it")):
        got = run("run", "--device", "cuda", "--model", MODELS["llama"], "--prompt", "x", "--raw", "--max-tokens", 2, size=size)
        assert got.returncode == 1 and re.search(text, got.stderr), got.stderr
        auto = run("run", "--device", "auto", "--model", MODELS["llama"], "--prompt", "x", "--raw", "--max-tokens", 2, "--temperature", 0, size=size)
        cpu = run("run", "--model", MODELS["llama"], "--prompt", "x", "--raw", "--max-tokens", 2, "--temperature", 0, "--device", "cpu")
        assert auto.returncode == 0 and auto.stdout == cpu.stdout  # the CPU takes what the GPU cannot


@pytest.mark.parametrize("flags,model", [(("--gpu-layers", 1), "llama"), (("--gpu-layers", 2, "--cache-type", "q8"), "gemma3"),
                                         (("--cpu-experts", 1), "qwen3moe"), (("--gpu-layers", 1), "qwen35-tied")])
def test_a_split_is_exact_and_outlives_faults(flags, model):
    """Layers or experts on the CPU: alone, with others, cached, and around lost devices the same bytes."""
    numbers = list(range(4))
    want = calm(numbers, *flags, model=model)
    with serve(*flags, model=model, fault="229,every") as s:
        for turn in range(3):
            got = ask_all(s, numbers) if turn != 1 else {i: ask(s, i) for i in numbers}
            assert all(got[i] == want[i] or (isinstance(got[i], str) and BAD in got[i]) for i in numbers), (got, want)


def test_layers_that_do_not_fit_stay_on_the_cpu():
    """--gpu-layers auto by what is free: the same as that number said."""
    cache = ("--kv-memory", "64M")
    for size, n in ((560, 1), (582, 2)):  # 131 MiB for step buffers before anything is loaded, 384 of room, 21 for a layer's cache
        s = serve(*cache, size=size << 20)
        got = ask(s, 1)
        assert f"the GPU has {n} of 3 layers" in s.stop()
        assert got == calm([1], *cache, "--gpu-layers", n)[1]


def test_many_long_answers_on_little_memory_all_come():
    """Rows that find no page wait, or give theirs up and begin anew; none ends for another's sake."""
    numbers, fields = list(range(6)), {"n": 15, "max_tokens": 90, "ignore_eos": True}
    few = ("--kv-memory", "1M", "--rows", "6")  # ten pages: each begins with two and ends with three
    want = calm(numbers, **fields)
    with serve(*few) as s:
        assert ask_all(s, numbers, **fields) == want
        assert s.stats()["preempted"] > 0
        status, _, value = s.call(TEXT, body(1, n=400), timeout=60)
        assert status == 400 and value["error"]["code"] == "context_length_exceeded", value


# --- which device ---

def test_auto_takes_the_gpu_and_cpu_is_the_cpu_s():
    with serve(device="auto") as s:
        assert ask(s, 2) == calm([2])[2] and ledger(s)
    with serve(device="cpu") as s:
        got = ask(s, 2)
    with serve(device="cpu", program=PLUMB) as s:
        assert ask(s, 2) == got


def test_a_build_without_cuda_says_so():
    got = run("run", "--device", "cuda", "--model", MODELS["llama"], "--prompt", "x", "--raw", program=PLUMB)
    assert got.returncode == 1 and "this build has no CUDA backend: build with make CUDA=1, or use --device cpu" in got.stderr


@pytest.mark.parametrize("arch,text", [(75, "GPU 0, simulated device: compute capability 7.5, at least 8.0 is needed"),
                                       (110, "GPU 0, simulated device: this build has no kernels for compute capability 11.0")])
def test_a_kind_of_gpu_that_cannot_be_used_is_named(arch, text):
    args = ("run", "--model", MODELS["llama"], "--prompt", "x", "--raw", "--max-tokens", 3, "--temperature", 0)
    got = run(*args, "--device", "cuda", arch=arch)
    assert got.returncode == 1 and text in got.stderr
    auto, cpu = run(*args, arch=arch), run(*args, "--device", "cpu")
    assert auto.returncode == 0 and auto.stdout == cpu.stdout


@pytest.mark.parametrize("arch", [80, 86, 89, 100, 120])
def test_kinds_of_gpu_are_exact_each(arch):
    """Other kernels, the same promise: alone, among others, and behind kept histories."""
    numbers = list(range(3))
    want = calm(numbers, arch=arch)
    with serve(arch=arch) as s:
        assert ask_all(s, numbers) == want
        assert ask_all(s, numbers) == want
