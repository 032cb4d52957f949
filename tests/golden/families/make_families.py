#!/usr/bin/env python3
"""Write NAME.gguf, hf/NAME/ and NAME.json here: a tiny model of each family with random weights, as a file and as a directory, and
what `transformers` computes with it.

    python tests/golden/families/make_families.py --converter DIR [NAME...]

Needs torch (CPU), transformers 5 and gguf; DIR is a source tree of llama.cpp, whose convert_hf_to_gguf.py writes the files, so
that names, keys and permutations are those of the files people download. Each module family_*.py beside this one lists CASES.

Weights are random numbers that f16 holds exactly: the file stores matrices in f16, the directory all it has, and the reference computes
with the same numbers in f32. NAME.json holds a prompt, what three of its rows are after each layer, those rows' logits, and the greedy ids that
follow, each with the gap between the two best logits. Goldens are made once and stored; tests need none of this."""

import argparse
import importlib
import json
import logging
import pathlib
import shutil
import sys
import tempfile

import torch

HERE = pathlib.Path(__file__).resolve().parent
N_GREEDY = 24


def randomise(model, case):
    gen = torch.Generator().manual_seed(case.seed)
    for name, p in sorted(model.named_parameters()):
        x = torch.randn(p.shape, generator=gen)
        if "norm" in name and name.endswith("weight"):
            x = 0.2 * x + (0 if "gemma" in type(model).__name__.lower() else 1)
        elif "embed" in name:
            x = 0.5 * x
        elif p.dim() >= 2:
            x = 1.3 / p.shape[-1] ** 0.5 * x
        else:
            x = 0.3 * x
        if case.alter:
            x = case.alter(name, x)
        x = x.to(torch.float16).to(torch.float32)
        if name.endswith("A_log"):
            x = exact_exp(x)
        p.data = x
    model.tie_weights()


def exact_exp(x):
    """The nearest f16 numbers whose exponential torch rounds right: the file holds what the converter computed, the directory what it
    computed it from."""
    for i in range(x.numel()):
        while torch.exp(x[i]) != torch.exp(x[i].double()).float():
            x[i] = torch.nextafter(x[i].half(), torch.tensor(9, dtype=torch.float16)).float()
    return x


def prompt_of(case):
    from make_tiny import V
    return [(i * 7919 + i * i * 31 + case.seed * 101) % (V * 9 // 10) for i in range(case.n_prompt)]


def digits(seen, rows):
    return [[[float(f"{v:.7g}") for v in h[0, r].tolist()] for r in rows] for h in seen]


def run(model, case):
    model.eval()
    layers = case.layers(model) if case.layers else model.model.layers
    seen = []
    hooks = [layer.register_forward_hook(lambda _m, _a, out: seen.append(out[0] if isinstance(out, tuple) else out))
             for layer in layers]
    ids = prompt_of(case)
    rows = [0, len(ids) // 2, len(ids) - 1]
    greedy, gaps = [], []
    if case.embed:
        with torch.inference_mode():
            embedding = case.embed(model, torch.tensor([ids]))
        for h in hooks:
            h.remove()
        return {"prompt": ids, "rows": rows, "layers": digits(seen, rows),
                "embedding": [float(f"{v:.7g}") for v in embedding[0].tolist()]}
    with torch.inference_mode():
        out = model(torch.tensor([ids]), use_cache=False)
        for h in hooks:
            h.remove()
        golden = {
            "prompt": ids,
            "rows": rows,
            "layers": digits(seen, rows),
            "logits": [[float(f"{v:.7g}") for v in out.logits[0, r].tolist()] for r in rows],
        }
        text = list(ids)
        logits = out.logits[0, -1]
        for _ in range(N_GREEDY):
            best = torch.topk(logits, 2).values
            greedy.append(int(logits.argmax()))
            gaps.append(round(float(best[0] - best[1]), 4))
            text.append(greedy[-1])
            logits = model(torch.tensor([text]), use_cache=False).logits[0, -1]
    return golden | {"greedy": greedy, "gaps": gaps}


def write_vocab(self):
    from make_tiny import MERGES, TOKENS, V
    w = self.gguf_writer
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(TOKENS)
    w.add_token_types([1] * (V - 2) + [3, 3])
    w.add_token_merges(list(MERGES))
    w.add_bos_token_id(V - 2)
    w.add_eos_token_id(V - 1)
    w.add_add_bos_token(False)


def store(folder, to):
    """The directory as tests open it."""
    from safetensors.torch import load_file, save_file
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for path in [folder / "config.json", *folder.glob("*/*.json"), folder / "modules.json"]:
        if path.exists():
            target = to / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            text = path.read_text().replace('"float32"', '"float16"')
            target.write_text(json.dumps(json.loads(text), indent=1) + "\n")
    for path in [folder / "model.safetensors", *folder.glob("*/model.safetensors")]:
        tensors = {k: v.half() if v.is_floating_point() else v for k, v in load_file(path).items()}
        save_file(tensors, to / path.relative_to(folder), {"format": "pt"})


def convert(folder, arch, out, is_quantised, no_mtp=True):
    import gguf
    from conversion import get_model_class
    logging.disable(logging.WARNING)
    cls = get_model_class(arch)

    def name_of(self, name, *args, **kwargs):  # the head of Qwen3ForSequenceClassification, which the converter does not know
        return "cls.output.weight" if name == "score.weight" else cls.map_tensor_name(self, name, *args, **kwargs)

    ours = {"set_vocab": write_vocab, "model_arch": cls.model_arch, "no_mtp": no_mtp, "map_tensor_name": name_of,
            "_is_qwen3_reranker": lambda self: False}  # the vocabulary here has no yes
    with_vocab = type(cls.__name__, (cls,), ours)
    with torch.inference_mode():
        kind = gguf.LlamaFileType.MOSTLY_Q8_0 if is_quantised else gguf.LlamaFileType.MOSTLY_F16
        model = with_vocab(folder, kind, out, model_name=f"tiny {out.stem}", sentence_transformers_dense_modules=True)
        if "indexer_budget" in model.hparams:  # transformers gave the kinds of layers other names while reading
            model.hparams["layer_types"] = json.loads((folder / "config.json").read_text())["layer_types"]
        model.write()


def make(case):
    from make_tiny import V
    from transformers import AutoModelForCausalLM
    torch.manual_seed(case.seed)
    config = case.config()
    config.vocab_size = V
    config._attn_implementation = "eager"
    model = case.make(config) if case.make else AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model = model.to(torch.float32)
    randomise(model, case)
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        model.save_pretrained(folder)
        arch = json.loads((folder / "config.json").read_text())["architectures"][0]
        # the converter of Gemma 3 counts its tokens
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": dict.fromkeys(range(V))}, "added_tokens": []}))
        out = HERE / f"{case.name}.gguf"
        arch = case.publish(folder) if case.publish else arch
        if not case.is_quantised:
            store(folder, HERE / "hf" / case.name)
        convert(folder, arch, out, case.is_quantised)
    if case.is_quantised or not case.has_golden:
        print(f"{case.name}: {out.stat().st_size} bytes")
        return
    golden = run(model, case)
    (HERE / f"{case.name}.json").write_text(json.dumps(golden) + "\n")
    if case.embed:
        print(f"{case.name}: {out.stat().st_size} bytes, an embedding of {len(golden['embedding'])} numbers")
        return
    print(f"{case.name}: {out.stat().st_size} bytes, smallest gap {min(golden['gaps'])}, "
          f"{len(set(golden['greedy']))} different ids")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--converter", type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    sys.path[:0] = [str(args.converter), str(args.converter / "gguf-py"), str(HERE), str(HERE.parent)]
    cases = [c for f in sorted(HERE.glob("family_*.py")) for c in importlib.import_module(f.stem).CASES]
    for case in cases:
        if not args.names or case.name in args.names:
            make(case)


if __name__ == "__main__":
    main()
