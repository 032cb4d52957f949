#!/usr/bin/env python3
"""Write target.gguf, NAME/ and NAME.json here: a tiny model with random weights, drafters that read its hidden states, and what the
published code makes of them.

    python tests/golden/projected/make_projected.py --dflash DIR --deepspec DIR [--converter DIR] [NAME...]

Needs torch (CPU), transformers 5 (5.7 for Gemma 4's, which DeepSpec was written against) and gguf; the first two DIRs are source trees of
z-lab/dflash and deepseek-ai/DeepSpec, whose classes compute the goldens, the third one of llama.cpp, whose converter (PYTHONPATH=DIR/gguf-py) writes NAME.gguf of what
it knows, from the directories that are there. Windows are theirs too: the class takes the mask that this script makes of the rule in its newer attention.

Weights are numbers that f16 holds exactly. They are random at first; drafters that are marked `fit` then learn for a minute what the target says
of its own texts, so that some of their guesses come true. NAME.json holds, for each of some texts (the first `start` ids of the
target's text, of which the drafter knows the states from `first` on), the block's logits, what a markov head makes of them from guess to
guess, the greedy guesses, and the confidence in each. Goldens are made once and stored; tests need none of this."""

import argparse
import importlib.util
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from make_tiny import MERGES, TOKENS, V  # noqa: E402

WIDTH, LAYERS, N_TEXT = 32, 4, 170
MASK_ID = V - 3
SIZE = dict(hidden_size=WIDTH, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            max_position_embeddings=512, rms_norm_eps=1e-6, vocab_size=V, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
FULL, SLIDING = "full_attention", "sliding_attention"


class Drafter:
    """kind: the published class. config: what its config.json has besides SIZE. fit: it learns from the target."""

    def __init__(self, name, kind, config, fit=0, seed=1):
        self.name, self.kind, self.config, self.fit, self.seed = name, kind, config, fit, seed


def dflash(block, taps, types=(FULL, FULL), **more):
    names = ("output_multiplier", "final_logit_softcapping", "input_embedding_scale", "conv_kernel_size", "conv_group_size", "selector_rank",
             "selector_top_k")
    inner = {k: more.pop(k) for k in list(more) if k in names}
    return dict(num_hidden_layers=len(types), layer_types=list(types), block_size=block, num_target_layers=LAYERS,
                dflash_config={"mask_token_id": MASK_ID, "target_layer_ids": list(taps), **inner}, **more)


def dspark(block, taps, markov, rank=16, confidence=True, with_markov=True, **more):
    return dict(num_hidden_layers=2, layer_types=[FULL, FULL], block_size=block, num_target_layers=LAYERS, mask_token_id=MASK_ID,
                target_layer_ids=list(taps), num_anchors=8, tie_word_embeddings=False, markov_rank=rank, markov_head_type=markov,
                enable_confidence_head=confidence, confidence_head_with_markov=with_markov, **more)


def gemma4(k_eq_v, taps):
    return dspark(5, taps, "vanilla", enable_moe_block=False, hidden_size_per_layer_input=0, global_head_dim=16, attention_k_eq_v=k_eq_v,
                  num_global_key_value_heads=1, num_kv_shared_layers=0, use_double_wide_mlp=False, final_logit_softcapping=8.0,
                  hidden_activation="gelu_pytorch_tanh", target_model_type="gemma4",
                  rope_parameters={FULL: {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                                   SLIDING: {"rope_type": "default", "rope_theta": 10000.0}})


DRAFTERS = [
    Drafter("dflash", "dflash", dflash(8, [0, 2]), fit=4000),
    Drafter("dflash-window", "dflash", dflash(6, [1], [SLIDING, FULL], sliding_window=20, use_sliding_window=True, output_multiplier=0.5,
                                              final_logit_softcapping=4.0, input_embedding_scale=1.5), seed=2),
    Drafter("dflash-both-ways", "dflash", dflash(6, [0, 1, 2], [SLIDING, SLIDING], sliding_window=70, use_sliding_window=True,
                                                 is_causal=False, attention_bias=True), seed=3),
    Drafter("dflash2", "dflash2", dflash(8, [0, 2], [SLIDING, FULL], sliding_window=30, use_sliding_window=True, conv_kernel_size=3,
                                         conv_group_size=8, selector_rank=12, selector_top_k=6), seed=10),
    Drafter("dspark", "dspark", dspark(7, [0, 2], "vanilla"), fit=4000, seed=4),
    Drafter("dspark-gated", "dspark", dspark(5, [-1, 1], "gated", with_markov=False), seed=5),
    Drafter("dspark-rnn", "dspark", dspark(5, [2], "rnn", confidence=False), seed=6),
    Drafter("dspark-plain", "dspark", dspark(5, [1], "vanilla", rank=0, with_markov=False), seed=7),
    Drafter("dspark-gemma4", "gemma4", gemma4(False, [0, 2]), seed=8),
    Drafter("dspark-gemma4-kv", "gemma4", gemma4(True, [0, 2]), seed=9),
]

# --- models ---


def randomise(model, seed):
    gen = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        x = torch.randn(p.shape, generator=gen)
        if "norm" in name:
            x = 1 + 0.2 * x
        elif "embed" in name or "w1" in name or "codebook" in name or "base_kernel" in name:
            x = 0.5 * x
        elif p.dim() >= 2:
            x = (2.5 if "lm_head" in name else 1.3) / p.shape[-1] ** 0.5 * x
        else:
            x = 0.3 * x
        p.data = x.half().float()


def target_new():
    from transformers import Qwen3Config, Qwen3ForCausalLM
    config = Qwen3Config(**SIZE, num_hidden_layers=LAYERS, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = Qwen3ForCausalLM(config).float().eval()
    randomise(model, 77)
    for name, p in model.named_parameters():  # branches are small: what comes next mostly follows from the last token, which can be learnt
        if "o_proj" in name or "down_proj" in name:
            p.data = (p.data * 0.3).half().float()
    return model


def target_write(model):
    import gguf
    names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    w = gguf.GGUFWriter(HERE / "target.gguf", "qwen3")
    w.add_name("tiny target")
    w.add_context_length(512)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(SIZE["intermediate_size"])
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_key_length(16)
    w.add_value_length(16)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(V)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(TOKENS)
    w.add_token_types([1] * (V - 2) + [3, 3])
    w.add_token_merges(list(MERGES))
    w.add_bos_token_id(V - 2)
    w.add_eos_token_id(V - 1)
    w.add_add_bos_token(False)
    for name, x in model.state_dict().items():
        out = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
               "lm_head.weight": "output.weight"}.get(name)
        if not out:
            _, _, i, rest = name.split(".", 3)
            out = f"blk.{i}.{names[rest.removesuffix('.weight')]}.weight"
        w.add_tensor(out, x.numpy().astype(np.float32 if x.dim() == 1 else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def drafter_new(d, published):
    from transformers import Qwen3Config
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
    config = (Gemma4TextConfig if d.kind == "gemma4" else Qwen3Config)(**{**SIZE, **d.config})
    for key, value in d.config.items():  # names that the newest transformers has no field for
        if not hasattr(config, key):
            setattr(config, key, value)
    config._attn_implementation = "sdpa"
    torch.manual_seed(d.seed)
    model = published[d.kind](config).float().eval()
    randomise(model, d.seed)
    return model


def drafter_write(d, model):
    from safetensors.torch import save_file
    folder = HERE / d.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = model.config.to_dict()
    config["architectures"] = [{"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "Qwen3DSparkModel", "gemma4": "Gemma4DSparkModel"}[d.kind]]
    config["dtype"] = "float16"
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    save_file({k.replace("_codebook.weight", "_codebook"): v.half().contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors", {"format": "pt"})


# --- what they say ---


def taps_of(d):
    return d.config.get("target_layer_ids") or d.config["dflash_config"]["target_layer_ids"]


def features(target, d, ids):
    states = target(ids, output_hidden_states=True).hidden_states
    return torch.cat([states[t + 1] for t in taps_of(d)], dim=-1)


def mask_of(d, n_keys, n_block):
    """The newer attention's rule: sliding layers look `window` far, and not ahead unless is_causal says so."""
    if not d.kind.startswith("dflash") or "sliding_window" not in d.config:
        return None
    at = n_keys - n_block + torch.arange(n_block)[:, None]
    key = torch.arange(n_keys)[None, :]
    seen = (at - key < d.config["sliding_window"]) & (key - at < d.config["sliding_window"])
    return seen if d.config.get("is_causal") is False else seen & (key <= at)


def layer_masks(d, model, mask):
    """Sliding layers get the mask, the others none."""
    hooks = []
    for layer, kind in zip(model.layers, d.config["layer_types"]):
        def give(_module, args, kwargs, kind=kind):
            kwargs["attention_mask"] = mask[None, None] if kind == SLIDING else None
            return args, kwargs
        if mask is not None:
            hooks.append(layer.register_forward_pre_hook(give, with_kwargs=True))
    return hooks


def head_of(d, target, model):
    if not d.kind.startswith("dflash"):
        return model.compute_logits
    more = d.config["dflash_config"]

    def head(hidden):
        logits = target.lm_head(hidden) * more.get("output_multiplier", 1.0)
        cap = more.get("final_logit_softcapping")
        return torch.tanh(logits / cap) * cap if cap else logits
    return head


def block_hidden(d, target, model, states, ids, first, start, n_block):
    """The block behind ids [start]: its first row is the last of them, whose states are not known yet."""
    block = torch.full((1, n_block), MASK_ID)
    block[0, 0] = ids[start]
    if d.kind.startswith("dflash"):
        noise = F.embedding(block, target.get_input_embeddings().weight) * d.config["dflash_config"].get("input_embedding_scale", 1.0)
        call = dict(target_hidden=states[:, first:start])
    else:
        noise = model.embed_tokens(block)
        call = dict(target_hidden_states=states[:, first:start], is_causal=False)
    positions = torch.arange(first, start + n_block)[None]
    hooks = layer_masks(d, model, mask_of(d, start - first + n_block, n_block))
    forward = model.forward if d.kind.startswith("dflash") else model._forward_backbone
    hidden = forward(position_ids=positions, attention_mask=None, noise_embedding=noise, **call)
    for h in hooks:
        h.remove()
    return hidden[:, 1:] if d.kind.startswith("dflash") else hidden


def guess(d, target, model, states, ids, first, start, n_block):
    hidden = block_hidden(d, target, model, states, ids, first, start, n_block)
    logits = head_of(d, target, model)(hidden)
    out = {"first": first, "start": start, "rows": n_block, "base": logits[0]}
    confidence = None
    if d.kind == "dflash2":
        anchor = torch.tensor([ids[start]])
        picked = model.propose(hidden, anchor, target.lm_head, 0)[0]
        return out | {"ids": picked[0], "gaps": selector_gaps(model.candidate_selector, hidden, logits, anchor, picked)}
    if d.kind == "dflash":
        picked, said = logits.argmax(-1), logits
    else:
        picked, said = model.sample_draft_tokens(logits, first_prev_token_ids=torch.tensor([ids[start]]), hidden_states=hidden)
        before = torch.cat([torch.tensor([[ids[start]]]), picked[:, :-1]], dim=1)
        confidence = model.predict_confidence_step(hidden, prev_token_ids=before)
    gap = torch.topk(said[0], 2, dim=-1).values
    out |= {"logits": said[0], "ids": picked[0], "gaps": gap[:, 0] - gap[:, 1]}
    if confidence is not None:
        out["confidence"] = torch.sigmoid(confidence[0].reshape(-1))
    return out


def selector_gaps(selector, hidden, logits, anchor, picked):
    """Between the two best candidates of each place."""
    before = torch.cat([anchor[None], picked[:, :-1]], dim=1)
    unary, candidates = torch.topk(logits, selector.top_k, dim=-1)
    ahead = selector.predecessor_codebook(before) * selector.hidden_projection(hidden)
    best = torch.topk(unary + torch.einsum("btr,btkr->btk", ahead, selector.successor_codebook(candidates)), 2, dim=-1).values[0]
    return best[:, 0] - best[:, 1]


def plain(x):
    if isinstance(x, torch.Tensor):
        return [plain(y) for y in x] if x.dim() else (int(x) if x.dtype == torch.int64 else float(f"{float(x):.7g}"))
    return x


# --- learning ---


def texts_of(target, n, length, seed):
    """The target's own texts behind random ids."""
    gen = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, V * 9 // 10, (n, 24), generator=gen)
    with torch.inference_mode():
        while ids.shape[1] < length:
            ids = torch.cat([ids, target(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids.clone()


def fit(d, target, model):
    texts = texts_of(target, 512, 112, d.seed)
    with torch.no_grad():
        states = features(target, d, texts)
        said = target(texts).logits.argmax(-1)
    if d.kind != "dflash":
        model.initialize_embeddings_and_head(embed_tokens=target.get_input_embeddings(), lm_head=target.lm_head)
    learn = [p for n, p in model.named_parameters() if p.requires_grad]
    best = torch.optim.Adam(learn, lr=3e-3)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(best, d.fit)
    block = d.config["block_size"]
    gen = torch.Generator().manual_seed(d.seed)
    for step in range(d.fit):
        start = int(torch.randint(24, 112 - block, (1,), generator=gen))
        rows = torch.randint(0, len(texts), (32,), generator=gen)
        loss = fit_loss(d, target, model, texts[rows], states[rows], said[rows], start, block)
        best.zero_grad()
        loss.backward()
        best.step()
        rate.step()
        if step % 1000 == 0:
            print(f"  {d.name}: step {step}, loss {float(loss):.3f}", flush=True)
    for p in model.parameters():
        p.data = p.data.half().float()
        p.requires_grad_(False)


def fit_loss(d, target, model, texts, states, said, start, block):
    noise_ids = torch.full((len(texts), block), MASK_ID)
    noise_ids[:, 0] = texts[:, start]
    positions = torch.arange(0, start + block)[None].expand(len(texts), -1)
    if d.kind == "dflash":
        noise = F.embedding(noise_ids, target.get_input_embeddings().weight.detach())
        hidden = model(position_ids=positions, noise_embedding=noise, target_hidden=states[:, :start])[:, 1:]
        logits = F.linear(hidden, target.lm_head.weight.detach())
        return F.cross_entropy(logits.reshape(-1, V), said[:, start:start + block - 1].reshape(-1))
    hidden = model._forward_backbone(position_ids=positions, noise_embedding=model.embed_tokens(noise_ids),
                                     target_hidden_states=states[:, :start], is_causal=False)
    want, before = said[:, start:start + block], texts[:, start:start + block]
    logits = model.compute_logits(hidden) + model.markov_head.project_bias(model.markov_head.get_prev_embeddings(before))
    confidence = model.predict_confidence_step(hidden, prev_token_ids=before)
    right = (logits.argmax(-1) == want).float()
    return (F.cross_entropy(logits.reshape(-1, V), want.reshape(-1)) +
            F.binary_cross_entropy_with_logits(confidence, right))


def accepted(d, target, model, n=20):
    """How many guesses of a block come true, on texts it has not seen."""
    texts = texts_of(target, n, 112, 1000 + d.seed)
    states = features(target, d, texts)
    total = 0
    for i in range(n):
        ids = texts[i].tolist()
        got = guess(d, target, model, states[i:i + 1], ids, 0, 60, d.config["block_size"])["ids"].tolist()
        while got and got[0] == ids[61]:
            got, ids = got[1:], ids[1:]
            total += 1
    return total / n


# --- the whole ---


def make(d, target, published):
    model = drafter_new(d, published)
    if d.fit:
        fit(d, target, model)
    drafter_write(d, model)
    ids = texts_of(target, 1, N_TEXT, 5)[0].tolist()
    block = d.config["block_size"]
    with torch.inference_mode():
        states = features(target, d, torch.tensor([ids]))
        cases = [guess(d, target, model, states, ids, first, start, rows)
                 for first, start, rows in ((0, 64, 4), (0, 100, block), (0, 129, block), (70, 160, block))]
        rate = accepted(d, target, model)
    golden = {"text": ids, "cases": [{k: plain(v) for k, v in c.items()} for c in cases]}
    (HERE / f"{d.name}.json").write_text(json.dumps(golden) + "\n")
    gap = min(float(c["gaps"].min()) for c in cases)
    print(f"{d.name}: {sum(p.numel() for p in model.parameters())} parameters, smallest gap {gap:.4f}, {rate:.2f} guesses of a block come true")


def convert(d):
    """NAME.gguf of the directory, with the tiny vocabulary."""
    import gguf
    from conversion import get_model_class
    from families.make_families import write_vocab
    cls = get_model_class(json.loads((HERE / d.name / "config.json").read_text())["architectures"][0])

    def vocab(self):
        write_vocab(self)
        self.gguf_writer.add_mask_token_id(MASK_ID)
    ours = type(cls.__name__, (cls,), {"set_vocab": vocab, "model_arch": cls.model_arch})
    with torch.inference_mode():
        ours(HERE / d.name, gguf.LlamaFileType.MOSTLY_F16, HERE / f"{d.name}.gguf", model_name=f"tiny {d.name}").write()


CONVERTED = ("dflash", "dflash2", "dflash-window", "dspark")  # the head that a DSpark's file leaves out must be the target's


def published_of(args):
    spec = importlib.util.spec_from_file_location("published_dflash", args.dflash / "dflash" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.insert(0, str(args.deepspec))
    from deepspec.modeling.dspark import Gemma4DSparkModel, Qwen3DSparkModel
    newer = getattr(module, "DFlash2DraftModel", None)  # a tree of 2026-08 or later
    return {"dflash": module.DFlashDraftModel, "dflash2": newer, "dspark": Qwen3DSparkModel, "gemma4": Gemma4DSparkModel}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dflash", type=pathlib.Path)
    parser.add_argument("--deepspec", type=pathlib.Path)
    parser.add_argument("--converter", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.converter:
        sys.path.insert(0, str(args.converter))
        for d in DRAFTERS:
            if d.name in (args.names or CONVERTED):
                convert(d)
        return
    target = target_new()
    for p in target.parameters():
        p.requires_grad_(False)
    target_write(target)
    published = published_of(args)
    for d in DRAFTERS:
        if not args.names or d.name in args.names:
            make(d, target, published)


if __name__ == "__main__":
    main()
