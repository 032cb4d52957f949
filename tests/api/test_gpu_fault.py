"""A fault of a real GPU in a running server: what clients see, and that it serves again with the same answers. The faults of a simulated
one, each in every place, are in test_cuda.py."""

import concurrent.futures
import socket
import subprocess
import time
from pathlib import Path

import pytest
from serving import ROOT, Server

PROGRAM = ROOT / "build/cuda/plumb"
MODEL = ROOT / "tests/golden/tiny/llama.gguf"
TEXT, BAD = "/v1/completions", "an illegal memory access was encountered"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    path = tmp_path_factory.mktemp("fault") / "fault.so"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, ROOT / "tests/gpu/fault.c", "-ldl", "-lpthread"], check=True)
    return path


@pytest.fixture
def library(built):
    """What makes the fault, where there is a GPU to make it on."""
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no-gpu: there is no /dev/nvidiactl")
    if not PROGRAM.exists():
        pytest.skip("no-gpu: build/cuda/plumb was not built (make CUDA=1)")
    return built


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve(library, order):
    """A server that the GPU fails once the file `order` is there. Its port stays when it starts anew."""
    args = [PROGRAM, "serve", "--model", MODEL, "--device", "cuda", "--port", free_port(), "--rows", "4", "--ctx", "320", "--kv-memory", "64M"]
    args += ["--no-store", "--speculate", "off"]
    return Server([str(a) for a in args], env={"CUDA_INJECTION64_PATH": str(library), "GPU_FAULT": str(order)})


def ask(server, prompt, n):
    status, _, value = server.call(TEXT, {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True}, timeout=60)
    return value["choices"][0]["token_ids"] if status == 200 else (status, value["error"]["message"])


def fail_while_asked(server, order):
    """Answers that run while the GPU fails: three rows that ask again and again until they are told."""

    def until_told(i):
        end = time.time() + 30
        while time.time() < end:
            try:
                got = ask(server, f"row {i}", 128)
            except OSError as e:
                got = (0, str(e))  # nobody listens any more
            if isinstance(got, tuple):
                return got
        return None

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        told = [pool.submit(until_told, i) for i in range(3)]
        time.sleep(0.5)
        order.touch()
        return [t.result() for t in told]


def check_told(told):
    assert (500, f"GPU 0, step: {BAD}") in told, told
    assert all(t and t[0] in (500, 503, 0) for t in told), told


def test_within_a_minute_it_says_why_and_ends(library, tmp_path):
    order = tmp_path / "order"
    with serve(library, order) as s:
        s.checks_exit = False
        check_told(fail_while_asked(s, order))
        assert s.proc.wait(30) == 1
        err = s.stop(check=False)
    assert f"{BAD}; this process cannot use it again: " in err


def test_later_it_starts_anew_with_the_same_answers(library, tmp_path):
    order = tmp_path / "order"
    with serve(library, order) as s:
        start = time.time()
        want = ask(s, "Once upon a time", 64)
        time.sleep(max(0, start + 62 - time.time()))
        check_told(fail_while_asked(s, order))
        got, end = None, time.time() + 60
        while not isinstance(got, list) and time.time() < end:
            time.sleep(0.1)
            try:
                got = ask(s, "Once upon a time", 64)
            except OSError:
                pass  # between the two
        assert got == want
        assert s.proc.poll() is None
