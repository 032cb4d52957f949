#!/usr/bin/env python3
"""Directories and files that `plumb convert` writes, opened by other programs: the golden models of tests/golden/families go to a
directory of another kind, and what the other program computes with it is compared.

    python tests/golden/convert/open_with.py transformers [NAME...]   # in an environment with torch and transformers 5
    python tests/golden/convert/open_with.py mlx [NAME...]            # ... with mlx-lm, and mlx-cpu where there is no Apple GPU
    python tests/golden/convert/open_with.py llama.cpp --bin DIR [NAME...]  # DIR has llama-perplexity

transformers: GGUF -> directory in F32. Logits of the golden's rows and the 24 greedy ids after its prompt against the golden, which
transformers computed with the model that the file was made of. Encoders: the embedding.
mlx: GGUF -> MLX codes of 8 bits. Logits of all rows against plumb's own of the same directory are not to be had from outside, so the
greedy ids of both along mlx-lm's answer are: equal wherever mlx-lm's two best logits are more than 0.1 apart.
llama.cpp: GGUF -> directory -> GGUF in F16. Its perplexity on a text, and plumb's.
Exit status 1 where something is off."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
FAMILIES = ROOT / "tests/golden/families"
PLUMB = os.environ.get("PLUMB", str(ROOT / "build/release/plumb"))
TEXT = ROOT / "tests/golden/text/prose.txt"
EMBED = {"bert", "bert-cls", "roberta", "nomic-bert", "embeddinggemma", "embeddinggemma-dense"}
END = 287  # the golden models' end of text: an answer of one id may be nothing but it
NO_TRANSFORMERS = {"minicpm"}  # its code is not in the library


def convert(src, dst, *flags):
    subprocess.run([PLUMB, "convert", str(src), str(dst), "--quiet", *flags], check=True)
    return dst


def perplexity(model, text):
    out = subprocess.run([PLUMB, "perplexity", "--model", str(model), "--file", str(text), "--ctx", "128", "--windows", "8",
                          "--cache-type", "f32", "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)["perplexity"]


# --- transformers ---

def embed(folder, ids, torch):
    from safetensors.torch import load_file
    from transformers import AutoModel
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        h = model(torch.tensor([ids])).last_hidden_state[0]
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    h = h[0] if pooling["pooling_mode_cls_token"] else h.mean(0)
    for dense in sorted(folder.glob("*_Dense")):
        h = load_file(dense / "model.safetensors")["linear.weight"] @ h
    return h


def open_transformers(name, tmp):
    import torch
    from transformers import AutoModelForCausalLM
    if not (FAMILIES / f"{name}.json").exists():
        return "no golden", True
    golden = json.loads((FAMILIES / f"{name}.json").read_text())
    folder = convert(FAMILIES / f"{name}.gguf", tmp / name, "--type", "f32")
    if name in EMBED:
        want = torch.tensor(golden["embedding"])
        err = (embed(folder, golden["prompt"], torch) - want).abs().max() / want.abs().max()
        return f"embedding within {err:.1e}", err < 2e-5
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    left = [k for k in info["missing_keys"] if not re.search(r"self_attn\.[kv]_(proj|norm)", k)] + list(info["unexpected_keys"])
    model.eval()
    with torch.inference_mode():
        ids = list(golden["prompt"])
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        want = torch.tensor(golden["logits"])
        err = (logits[golden["rows"]] - want).abs().max() / want.abs().max()
        greedy = []
        for _ in golden["greedy"]:
            greedy.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            ids.append(greedy[-1])
    same = sum(a == b for a, b in zip(greedy, golden["greedy"]))
    said = f"logits within {err:.1e}, {same} of {len(greedy)} greedy ids" + (f", keys left {left[:3]}" if left else "")
    return said, err < 2e-5 and same == len(greedy) and not left


# --- mlx-lm ---

def open_mlx(name, tmp):
    import mlx.core as mx
    import mlx_lm.utils
    import numpy as np
    said, ok = [], True
    if (FAMILIES / f"{name}.json").exists():
        golden = json.loads((FAMILIES / f"{name}.json").read_text())
        plain = convert(FAMILIES / f"{name}.gguf", tmp / f"{name}-plain", "--to", "mlx", "--type", "f32")
        model, _ = mlx_lm.utils.load_model(plain)
        rows = np.array(model(mx.array([golden["prompt"]]))[0].astype(mx.float32))[golden["rows"]]
        want = np.array(golden["logits"])
        err = np.abs(rows - want).max() / np.abs(want).max()
        said.append(f"F32: logits within {err:.1e} of the golden")
        ok = err < 1e-3
    folder = convert(FAMILIES / f"{name}.gguf", tmp / name, "--type", "mlx8", "--group-size", "32", "--plain-type", "f32")
    model, _ = mlx_lm.utils.load_model(folder)
    ids, near, other = [(i * 7919 + i * i * 31) % 280 for i in range(40)], 0, []
    for _ in range(24):
        row = np.array(model(mx.array([ids]))[0, -1].astype(mx.float32))
        best = np.argsort(-row, kind="stable")[:2]
        ours = plumb_next(folder, ids)
        if ours != best[0]:
            gap = float(row[best[0]] - row[best[1]])
            near += gap <= 0.1
            other += [round(gap, 3)] if gap > 0.1 else []
        ids.append(int(best[0]))
    said.append(f"8 bits: {24 - near - len(other)} of 24 greedy ids, {near} near ties" + (f", others with gaps {other}" if other else ""))
    return "; ".join(said), ok and not other


def plumb_next(folder, ids):
    global SERVER
    try:
        if SERVER[0] != folder:
            SERVER[1].close()
            raise NameError
    except NameError:
        SERVER = (folder, Server(folder))
    return SERVER[1].next(ids)


class Server:
    """plumb serve on a loopback port, for greedy ids after a prompt of ids."""

    def __init__(self, folder):
        import socket
        import time
        import urllib.request
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.p = subprocess.Popen([PLUMB, "serve", "--model", str(folder), "--port", str(self.port), "--ctx", "256"],
                                  stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{folder}: plumb serve did not start")

    def next(self, ids):
        import urllib.request
        body = {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        r = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                   {"Content-Type": "application/json"})
        found = json.load(urllib.request.urlopen(r, timeout=60))["choices"][0]["token_ids"]
        return found[0] if found else END

    def close(self):
        self.p.terminate()
        self.p.wait()


# --- llama.cpp ---

def open_llama_cpp(name, tmp, bin_dir):
    folder = convert(FAMILIES / f"{name}.gguf", tmp / name, "--type", "f32")
    back = convert(folder, tmp / f"{name}.gguf", "--type", "f16")
    text = tmp / "text.txt"
    text.write_text(TEXT.read_text()[:6000])
    p = subprocess.run([str(bin_dir / "llama-perplexity"), "-m", str(back), "-f", str(text), "-c", "128", "--chunks", "8", "-t", "2"],
                       capture_output=True, text=True)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", p.stdout + p.stderr)
    if not found:
        return "llama.cpp: " + ((p.stderr + p.stdout).strip().splitlines() or ["?"])[-1][:160], False
    theirs, ours = float(found[1]), perplexity(back, text)
    return f"perplexity {ours:.3f}, llama.cpp {theirs:.3f}", abs(theirs / ours - 1) < 0.01


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=["transformers", "mlx", "llama.cpp"])
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    names = args.names or sorted(p.stem for p in FAMILIES.glob("*.gguf"))
    failed = []
    for name in names:
        if args.program == "transformers" and name in NO_TRANSFORMERS or args.program != "transformers" and name in EMBED:
            continue
        with tempfile.TemporaryDirectory() as d:
            tmp = pathlib.Path(d)
            try:
                said, ok = {"transformers": lambda: open_transformers(name, tmp), "mlx": lambda: open_mlx(name, tmp),
                            "llama.cpp": lambda: open_llama_cpp(name, tmp, args.bin)}[args.program]()
            except Exception as e:  # what the other program says is the finding
                said, ok = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:300], False
        print(f"{name}: {said}{'' if ok else '  <- off'}", flush=True)
        failed += [] if ok else [name]
    if "SERVER" in globals():
        SERVER[1].close()
    print(f"{len(failed)} of {len(names)} off: {' '.join(failed)}" if failed else "all well")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
