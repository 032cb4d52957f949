#!/usr/bin/env python3
"""Store what the weights of a file say without any rounding of activations: the oracle of tests/golden/golden.c.

    make_oracle.py NAME=MODEL.gguf                             writes tests/golden/oracle/NAME.json
    make_oracle.py NAME=MODEL.gguf --logits ROWS=OUT...        raw float32 logits instead (ROWS as in oracle/logits_plumb.c)
    make_oracle.py NAME=MODEL.gguf --logits ROWS=OUT@SCALE     Gemma's embedding times SCALE instead of the root of its width

The forward pass is the `transformers` package's (llama, qwen2, gemma3_text), its GGUF loader brings every tensor to float32 with
the `gguf` package; all arithmetic and the cache are float32. The ids are those of tests/golden/llama_cpp/NAME.json, so that each
position is judged in the same context by three engines. For each position of an answer: the five best ids, their logits, and the
logarithm of the sum of all exponentials. Made with torch 2.8.0, transformers 5.24.0, gguf 0.19.0, numpy 2.4.6 on x86-64:

    pip install torch==2.8.0 transformers==5.24.0 gguf==0.19.0 accelerate==1.15.0
    for m in smollm2 gemma3-270m qwen2.5-coder-0.5b; do tests/golden/make_oracle.py $m=~/.cache/plumb/models/$m.gguf; done
"""

import argparse
import json
import os
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
TOP = 5


def load(path):
    path = pathlib.Path(path).resolve()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    return model.eval()


@torch.no_grad()
def logits(model, ids, first):
    """Of positions first.. as [n][V] float32."""
    hidden = model.model(torch.tensor([ids])).last_hidden_state[0, first:]
    return model.lm_head(hidden)


def golden_row(model, row):
    ids = row["prompt"] + row["greedy"]
    # position i of the answer is said by the id before it
    rows = logits(model, ids[:-1], len(row["prompt"]) - 1).double()
    best = rows.topk(TOP)
    # equal logits: the lowest id is the best, as in both engines
    for l, top in zip(rows, best.indices):
        assert int(top[0]) == int(l.argmax()) and l[top[0]] > l[top[1]]
    return {
        "text": row["text"],
        "ids": best.indices.tolist(),
        "logits": [[round(x, 4) for x in r] for r in best.values.tolist()],
        "lse": [round(x, 4) for x in rows.logsumexp(-1).tolist()],
    }


def write_golden(name, model):
    rows = json.loads((HERE / "llama_cpp" / f"{name}.json").read_text())
    lines = [json.dumps(golden_row(model, r), separators=(",", ":")) for r in rows]
    (HERE / "oracle").mkdir(exist_ok=True)
    (HERE / "oracle" / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def write_logits(model, jobs):
    for job in jobs:
        rows, out = job.split("=", 1)
        out, _, scale = out.partition("@")
        embed = model.model.embed_tokens
        if scale:
            embed.embed_scale.fill_(float(scale))
        with open(rows) as lines, open(out, "wb") as f:
            for line in lines:
                first, *ids = map(int, line.split())
                f.write(logits(model, ids, first).numpy().tobytes())
        if scale:
            embed.embed_scale.fill_(embed.scalar_embed_scale)
        print(job, flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--logits", nargs="+", default=[])
    o = p.parse_args()
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    name, path = o.model.split("=", 1)
    model = load(path)
    print(model.config, file=sys.stderr)
    if o.logits:
        write_logits(model, o.logits)
    else:
        write_golden(name, model)


if __name__ == "__main__":
    main()
