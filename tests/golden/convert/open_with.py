#!/usr/bin/env python3
"""Directories and files that `plumb convert` writes, opened by other programs: the golden models of tests/golden/families go to a
directory of another kind, and what the other program computes with it is compared.

    python tests/golden/convert/open_with.py transformers [NAME...]   # in an environment with torch and transformers 5
    python tests/golden/convert/open_with.py mlx --logits PROGRAM [NAME...]  # ... with mlx-lm, and mlx-cpu where there is no Apple GPU;
                                                      # PROGRAM is tests/golden/oracle/logits_plumb.c
    python tests/golden/convert/open_with.py llama.cpp --bin DIR [NAME...]  # DIR has llama-perplexity; --from OUT: of make_wide.py's

transformers: GGUF -> directory in F32. Logits of the golden's rows and the 24 greedy ids after its prompt against the golden, which
transformers computed with the model that the file was made of. Encoders: the embedding.
mlx: GGUF -> MLX's layout in F32. Logits of 16 ids (some of mlx-lm's families know no window) against those that mlx-lm computes with the
checkpoint's weights, which it puts into that layout itself, and against plumb's of the same directory. And codes of 8 bits.
llama.cpp: GGUF -> directory -> GGUF in F16. Its perplexity on a text, that with the file that its own converter wrote, in F16 too, and
plumb's. Some of these shapes are too small for it: then it says so of both files.
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
EMBED = {"bert", "bert-cls", "roberta", "nomic-bert", "embeddinggemma", "embeddinggemma-dense", "qwen3-embedding"}
RANK = {"qwen3-rank", "roberta-rank"}
NO_TRANSFORMERS = {"minicpm", "minicpm4"}  # their code is not in the library
ONE_WAY = {"qwen4exp", "qwen4exp-sparse"}  # no way back from GGUF yet


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
    h = h[0] if pooling["pooling_mode_cls_token"] else h[-1] if pooling["pooling_mode_lasttoken"] else h.mean(0)
    for dense in sorted(folder.glob("*_Dense")):
        h = load_file(dense / "model.safetensors")["linear.weight"] @ h
    return h


def rank(folder, ids, torch):
    from transformers import AutoModelForSequenceClassification
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def open_transformers(name, tmp):
    import torch
    from transformers import AutoModelForCausalLM
    if not (FAMILIES / f"{name}.json").exists():
        return "no golden", True
    golden = json.loads((FAMILIES / f"{name}.json").read_text())
    folder = convert(FAMILIES / f"{name}.gguf", tmp / name, "--type", "f32")
    if name in EMBED | RANK:
        want = torch.tensor(golden["embedding"])
        err = ((embed if name in EMBED else rank)(folder, golden["prompt"], torch) - want).abs().max() / want.abs().max()
        return f"{'embedding' if name in EMBED else 'score'} within {err:.1e}", err < 2e-5
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

def mlx_logits(folder, ids, config=None):
    import mlx.core as mx
    import mlx_lm.utils
    import numpy as np
    model, _ = mlx_lm.utils.load_model(folder, model_config=config)
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def apart(a, b):
    import numpy as np
    return float(np.abs(a - b).max() / np.abs(b).max())


# What mlx-lm 0.32.2 computes otherwise than the model's authors, whoever wrote the directory.
MLX_OWN = {"gpt-oss": "yarn without truncate", "gpt-oss-mxfp4": "yarn without truncate",
           "phi3-short": "the long divisors always", "gemma": "a scale in bf16", "gemma2": "a scale in bf16",
           "gemma3": "a scale in bf16", "starcoder2": "the exact gelu"}


# Families that it cannot open as published either: of a tied head it makes a tensor that its own model has not.
MLX_NOT = {"minicpm"}


def open_mlx(name, tmp, program):
    source, checkpoint, said, ok = FAMILIES / f"{name}.gguf", FAMILIES / "hf" / name, [], True
    ids = [(i * 7919 + i * i * 31) % 280 for i in range(16)]
    plain = convert(source, tmp / f"{name}-plain", "--to", "mlx", "--type", "f32")
    try:
        first = mlx_logits(plain, ids)
    except ValueError as e:
        return f"mlx-lm: {' '.join(str(e).split())}", name in MLX_NOT
    if checkpoint.exists():
        config = json.loads((plain / "config.json").read_text())
        try:  # in F32, for mlx-lm adds the 1 of norms in the checkpoint's own type
            err = apart(first, mlx_logits(convert(checkpoint, tmp / f"{name}-checkpoint", "--type", "f32"), ids, config))
            said.append(f"its weights as the checkpoint's to {err:.1e}")
            ok = err < 1e-5
        except ValueError as e:  # a checkpoint that mlx-lm does not open
            said.append(f"(the checkpoint itself does not open: {str(e).splitlines()[0][:40]})")
    err = apart(plumb_logits(program, plain, ids), first)
    said.append(f"plumb's logits within {err:.1e}")
    ok &= err < 1e-4 or name in MLX_OWN  # qwen35moe's routers are near ties: 5e-5; all others 1e-6
    codes = convert(source, tmp / name, "--type", "mlx8", "--group-size", "32", "--plain-type", "f32")
    theirs = mlx_logits(codes, ids)
    said.append(f"8 bits: {apart(theirs, first):.1e} from F32, plumb {apart(plumb_logits(program, codes, ids), theirs):.1e}")
    if name in MLX_OWN:
        said.append("mlx-lm has " + MLX_OWN[name])
    return "; ".join(said), ok


def plumb_logits(program, model, ids):
    import numpy as np
    out = subprocess.run([str(program), str(model), "f32"], input=("0 " + " ".join(map(str, ids)) + "\n").encode(), check=True,
                         capture_output=True).stdout
    return np.frombuffer(out, np.float32).reshape(len(ids), -1)


# --- llama.cpp ---

def llama_perplexity(bin_dir, model, text, tmp):
    """Its perplexity, or why there is none. It loses its last lines now and then: six tries."""
    log, found = tmp / "log.txt", None
    for _ in range(6):
        with log.open("w") as f:
            subprocess.run([str(bin_dir / "llama-perplexity"), "-m", str(model), "-f", str(text), "-c", "128", "--chunks", "8", "-t", "2"],
                           stdout=f, stderr=subprocess.STDOUT)
        found = re.search(r"Final estimate: PPL = ([0-9.]+)", log.read_text())
        if found:
            return float(found[1])
        lines = [x for x in log.read_text().splitlines() if re.search(r"error loading|ASSERT", x)]
        if lines:
            return re.sub(r".*(GGML_ASSERT|error loading model: )", r"\1", lines[0])[:120]
    return "no result in six runs"


def open_checkpoint(folder, tmp, bin_dir):
    """A checkpoint of make_wide.py's: by way of GGUF and of a directory of that."""
    first = convert(folder, tmp / "first.gguf", "--type", "f16")
    back = convert(convert(first, tmp / "folder", "--type", "f16"), tmp / "back.gguf", "--type", "f16")
    text = tmp / "text.txt"
    text.write_text(TEXT.read_text()[:6000])
    theirs = [llama_perplexity(bin_dir, m, text, tmp) for m in (first, back)]
    if isinstance(theirs[0], str):
        return f"llama.cpp: {theirs[0]}", False
    ours = perplexity(back, text)
    return f"llama.cpp {theirs[0]:.3f}, by way of a directory {theirs[1]:.3f}; plumb {ours:.3f}", theirs[0] == theirs[1] and abs(theirs[0] / ours - 1) < 0.01


def open_llama_cpp(name, tmp, bin_dir):
    source = FAMILIES / f"{name}.gguf"
    back = convert(convert(source, tmp / name, "--type", "f32"), tmp / f"{name}.gguf", "--type", "f16")
    text = tmp / "text.txt"
    text.write_text(TEXT.read_text()[:6000])
    theirs, before = (llama_perplexity(bin_dir, m, text, tmp) for m in (back, convert(source, tmp / "source.gguf", "--type", "f16")))
    if isinstance(theirs, str) or isinstance(before, str):
        same = theirs == before
        return f"llama.cpp: {theirs}" + (" (of the source too)" if same else f" (of the source {before})"), same
    ours = perplexity(back, text)
    said = f"llama.cpp {theirs:.3f}, of the source {before:.3f}; plumb {ours:.3f}"
    return said + (f"; llama.cpp has {MLX_OWN[name]}" if name in MLX_OWN and "yarn" in MLX_OWN[name] else ""), theirs == before


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=["transformers", "mlx", "llama.cpp"])
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("--logits", type=pathlib.Path)
    parser.add_argument("--from", dest="checkpoints", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    names = args.names or sorted(p.name if args.checkpoints else p.stem for p in (args.checkpoints or FAMILIES).glob("*" if args.checkpoints else "*.gguf"))
    failed = []
    for name in names:
        if args.program == "transformers" and name in NO_TRANSFORMERS or args.program != "transformers" and name in EMBED | RANK or name in ONE_WAY:
            continue
        with tempfile.TemporaryDirectory() as d:
            tmp = pathlib.Path(d)
            try:
                if args.checkpoints:
                    said, ok = open_checkpoint(args.checkpoints / name, tmp, args.bin)
                else:
                    said, ok = {"transformers": lambda: open_transformers(name, tmp), "mlx": lambda: open_mlx(name, tmp, args.logits),
                                "llama.cpp": lambda: open_llama_cpp(name, tmp, args.bin)}[args.program]()
            except Exception as e:  # what the other program says is the finding
                said, ok = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:300], False
        print(f"{name}: {said}{'' if ok else '  <- off'}", flush=True)
        failed += [] if ok else [name]
    print(f"{len(failed)} of {len(names)} off: {' '.join(failed)}" if failed else "all well")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
