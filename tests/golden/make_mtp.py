#!/usr/bin/env python3
"""Write mtp/NAME.gguf, mtp/hf/NAME/ and mtp/NAME.json here: tiny models with a head for multi-token prediction, as a file and as a
directory, and what the published maths gives of the head.

    python tests/golden/make_mtp.py --converter DIR [NAME...]

Needs what families/make_families.py needs, whose pieces it uses; DIR is a source tree of llama.cpp. transformers leaves out the head
(`mtp.*`), so it is put together here of its own decoder layer and norms, in the order that vLLM's qwen3_next_mtp.py and
qwen3_5_mtp.py have: the norms of the next token's embedding and of the model's state behind its final norm, side by side, through fc;
one layer with full attention at the state's position; a norm; the model's vocabulary head. The state that its next guess is made of is its own
behind that norm.

NAME.json holds a prompt, the model's states of all of its rows, of some rows the head's logits where it is given each row's state and the
next id, and from those rows the ids that it guesses one after another, greedily, each with the gap between the two best logits. Of
the model `agrees` the head says nearly what the model says."""

import argparse
import copy
import json
import pathlib
import sys
import tempfile

import torch

HERE = pathlib.Path(__file__).resolve().parent
N_GUESSES = 4


class Head(torch.nn.Module):
    def __init__(self, model, config):
        super().__init__()
        module = sys.modules[type(model).__module__]
        layer = next(c for n, c in vars(module).items() if n.endswith("DecoderLayer"))
        norm = type(model.model.norm)
        one = copy.deepcopy(config)
        one.num_hidden_layers += 1
        one.layer_types = [*config.layer_types, "full_attention"]
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = torch.nn.ModuleList([layer(one, config.num_hidden_layers)])
        self.norm = norm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, model, ids, states):
        """ids [1, n]: behind each state."""
        n = ids.shape[1]
        x = torch.cat([self.pre_fc_norm_embedding(model.model.embed_tokens(ids)), self.pre_fc_norm_hidden(states)], dim=-1)
        x = self.fc(x)
        pos = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        x = self.layers[0](x, position_embeddings=model.model.rotary_emb(x, pos), attention_mask=mask, position_ids=pos)
        return self.norm(x[0] if isinstance(x, tuple) else x)


class Named:
    """What randomise of make_families.py walks."""

    def __init__(self, head):
        self.head = head

    def named_parameters(self):
        return self.head.named_parameters()

    def tie_weights(self):
        pass


def agree(model, head):
    """The branches of all layers are weak, so that a token says which one follows; the head looks at the token alone."""
    with torch.no_grad():
        for part in (model.model, head):
            for name, p in part.named_parameters():
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    p.mul_(1 / 64)
        model.model.embed_tokens.weight.mul_(4)
        n = head.fc.weight.shape[0]
        head.fc.weight.copy_(torch.cat([torch.eye(n), torch.zeros(n, n)], dim=1))
        head.pre_fc_norm_embedding.weight.zero_()  # stored without its 1
        head.norm.weight.copy_(model.model.norm.weight)


def follow(model, head, ids, states, row):
    """Greedy guesses behind ids[: row + 2]: the model has computed all but the last of them."""
    ids, states = ids[:, 1:row + 2], states[:, :row + 1]
    out, gaps = [], []
    for _ in range(N_GUESSES):
        made = head(model, ids, states)[:, -1:]
        logits = model.lm_head(made)[0, -1]
        best = torch.topk(logits, 2).values
        out.append(int(logits.argmax()))
        gaps.append(round(float(best[0] - best[1]), 4))
        ids = torch.cat([ids, torch.tensor([[out[-1]]])], dim=1)
        states = torch.cat([states, made], dim=1)
    return out, gaps


def golden_of(model, head, prompt):
    rows = [0, 1, len(prompt) // 2, 63, 64, len(prompt) - 2]
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        states = model.model(ids, use_cache=False).last_hidden_state
        logits = model.lm_head(head(model, ids[:, 1:], states[:, :-1]))[0]
        guesses = [follow(model, head, ids, states, row) for row in rows]
    short = lambda x: [float(f"{v:.9g}") for v in x.tolist()]  # noqa: E731
    return {"prompt": prompt, "states": [short(x) for x in states[0]], "rows": rows,
            "logits": [short(logits[row]) for row in rows],
            "guesses": [g for g, _ in guesses], "gaps": [g for _, g in guesses]}


def publish(model, head, folder):
    from safetensors.torch import load_file, save_file
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, p in head.named_parameters():
        tensors["mtp." + name] = p.detach().contiguous().clone()
    if any(".mlp.experts.0." in name for name in tensors):  # Qwen3-Next publishes its experts one by one
        tensors = dict(singles(tensors))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "qwen3_next":
        config["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    return config["architectures"][0]


def singles(tensors):
    for name, x in tensors.items():
        stem, _, tail = name.rpartition(".mlp.experts.")
        if not name.startswith("mtp.") or tail not in ("gate_up_proj", "down_proj"):
            yield name, x
            continue
        for i, one in enumerate(x):
            if tail == "down_proj":
                yield f"{stem}.mlp.experts.{i}.down_proj.weight", one.clone()
                continue
            gate, up = one.chunk(2)
            yield f"{stem}.mlp.experts.{i}.gate_proj.weight", gate.clone()
            yield f"{stem}.mlp.experts.{i}.up_proj.weight", up.clone()


def make(case, agrees):
    import make_families as fam
    from make_tiny import V
    from transformers import AutoModelForCausalLM
    torch.manual_seed(case.seed)
    config = case.config()
    config.vocab_size = V
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    head = Head(model, config).to(torch.float32).eval()
    fam.randomise(model, case)
    fam.randomise(Named(head), case)
    if agrees:
        agree(model, head)
    out = HERE / "mtp" / f"{case.name}.gguf"
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        arch = publish(model, head, folder)
        fam.store(folder, HERE / "mtp" / "hf" / case.name)
        fam.convert(folder, arch, out, False, no_mtp=False)
    golden = golden_of(model, head, fam.prompt_of(case))
    (HERE / "mtp" / f"{case.name}.json").write_text(json.dumps(golden) + "\n")
    print(f"{case.name}: {out.stat().st_size} bytes, smallest gap {min(min(g) for g in golden['gaps'])}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--converter", type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    sys.path[:0] = [str(args.converter), str(args.converter / "gguf-py"), str(HERE / "families"), str(HERE)]
    from case import Case
    from family_hybrid import CASES, alter
    cases = {c.name: (c, False) for c in CASES if c.name in ("qwen35", "qwen35-tied", "qwen35moe", "qwen3next")}
    cases["agrees"] = (Case("agrees", next(c for c in CASES if c.name == "qwen35").config, alter, seed=9), True)
    for name, (case, agrees) in cases.items():
        if not args.names or name in args.names:
            make(case, agrees)


if __name__ == "__main__":
    main()
