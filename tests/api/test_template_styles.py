"""The way of calling tools and of thinking aloud that is read off each published chat template; what the template itself makes of a call
(by jinja2) is read back as that call, and begins as a forced one would; it is let through where tools are strict or must be called, and what
else a model may say then has no call with other arguments than the schema's."""

import json
import pathlib
import random
import subprocess
import sys

import jsonschema
import pytest

from serving import SERVE_SCRIPT, script

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import chat_oracle  # noqa: E402

SHARED = ROOT.parent / "shared/data/chat_templates"
THINK = ["<think>", "</think>"]
HARMONY = ["<|channel|>analysis<|message|>", "<|end|>"]
COHERE = ["<|START_THINKING|>", "<|END_THINKING|>"]

# template: format, think markers, and where its own text shows no call, one as its makers document it
STYLES = {
    "Apertus-8B-Instruct": ("keyed", ["<|inner_prefix|>", "<|inner_suffix|>"]),
    "Apriel-1.6-15b-Thinker-fixed": ("list", None),
    "Bielik-11B-v3.0-Instruct": ("hermes", THINK),
    "ByteDance-Seed-OSS": ("seed", ["<seed:think>", "</seed:think>"]),
    "Cohere2MoE": ("command-r", COHERE),
    "CohereForAI-c4ai-command-r-plus-tool_use": ("action", None),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command-r", COHERE),
    "GLM-4.6": ("glm", THINK),
    "GLM-4.7-Flash": ("glm", THINK),
    "GigaChat3-10B-A1.8B": ("gigachat", None),
    "HuggingFaceTB-SmolLM3-3B": ("json", THINK, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'),
    "Kimi-K2-Instruct": ("kimi", None, None),
    "Kimi-K2-Thinking": ("kimi", THINK, None),
    "LFM2-8B-A1B": ("python", None, '<|tool_call_start|>[get_weather(city="Oslo", days=3)]<|tool_call_end|>'),
    "LFM2.5-8B-A1B": ("python", THINK),
    "MiMo-VL": ("hermes", None),
    "MiniMax-M1": ("lines", None),
    "MiniMax-M2": ("minimax", THINK),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen-coder", THINK),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron", THINK),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-QwQ-32B": ("hermes", THINK),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", THINK),
    "Qwen3-Coder": ("qwen-coder", None),
    "Qwen3.5-4B": ("qwen-coder", THINK),
    "Spark2.5": ("glm", THINK),
    "StepFun3.5-Flash": ("qwen-coder", THINK),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek", THINK),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek", THINK),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek", THINK),
    "deepseek-ai-DeepSeek-V3.2": ("dsml", THINK),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("dsml", THINK),
    "fireworks-ai-llama-3-firefunction-v2": ("functools", None),
    "google-gemma-2-2b-it": ("json", None, '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}'),
    "google-gemma-4-31B-it": ("gemma", ["<|channel>thought", "<channel|>"]),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", THINK, '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}]'),
    "ibm-granite-granite-4.0": ("hermes", None),
    "inclusionai-ling-3.0-flash": ("glm", THINK),
    "llama-cpp-deepseek-r1": ("deepseek", THINK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
                              '{"city": "Oslo", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    "llama-cpp-rwkv-world": ("json", THINK, '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}'),
    "llm-jp-llm-jp-4.1-8b-thinking": ("harmony", HARMONY),
    "meetkai-functionary-medium-v3.2": ("functionary", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama", None),
    "microsoft-Phi-3.5-mini-instruct": ("json", None, '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}'),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral-list", None),
    "moonshotai-Kimi-K2": ("kimi", None),
    "muse-glimmer": ("muse", ["to=self<|message|>", "<|eom|>"]),
    "openai-gpt-oss-120b": ("harmony", HARMONY),
    "openbmb-MiniCPM5-1B": ("minicpm", THINK),
    "poolside-Laguna-XS-2.1": ("glm", THINK),
    "poolside-Laguna-XS.2": ("glm", THINK),
    "unsloth-Apriel-1.5": ("list", None),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", None),
}
KIMI = ('<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo", "days": 3}'
        "<|tool_call_end|><|tool_calls_section_end|>")  # jinja2's sandbox refuses their list.append
# Openings that are not the template's own first bytes, on purpose: the header names the channel first, as those models write it
OTHER_OPENING = {"harmony"}

ARGUMENTS = {"city": "Oslo", "days": 3}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "a city"}, "days": {"type": "integer", "description": "how many"}},
    "required": ["city"]}}}]


def rendered_call(text, calls=(("get_weather", ARGUMENTS),), tools=TOOLS):
    """What a template writes for an assistant's calls, behind what the answer's prompt has; None where it shows none."""
    template = chat_oracle.ENVIRONMENT.from_string(text)
    for content in ("", None):
        for write in (lambda x: x, json.dumps):
            written = [{"id": f"call0000{i + 1}", "type": "function", "function": {"name": name, "arguments": write(arguments)}}
                       for i, (name, arguments) in enumerate(calls)]
            messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content, "tool_calls": written}]
            common = {"tools": tools, "functions": json.dumps(tools), "datetime": "now", "bos_token": "", "eos_token": "", "date_string": "now"}
            ok, whole = chat_oracle.render(template, {**common, "messages": messages, "add_generation_prompt": False})
            ok2, prompt = chat_oracle.render(template, {**common, "messages": messages[:1], "add_generation_prompt": True})
            if not ok or not ok2:
                continue
            n = next((i for i, (a, b) in enumerate(zip(whole, prompt)) if a != b), min(len(whole), len(prompt)))
            if whole.rfind("<", 0, n) > whole.rfind(">", 0, n):
                n = whole.rfind("<", 0, n)  # inside a marker
            if all(name in whole[n:] for name, _ in calls):
                return whole[n:]
    return None


def shared_templates():
    paths = sorted(SHARED.glob("*.jinja"))
    if not paths:
        pytest.skip("no-shared-data: ../shared/data/chat_templates")
    return paths


@pytest.fixture(scope="module")
def styles():
    paths = shared_templates()
    out = subprocess.run([SERVE_SCRIPT, "--styles", *paths], capture_output=True, text=True, timeout=60, check=True).stdout
    return {p.stem: json.loads(line) for p, line in zip(paths, out.splitlines(), strict=True)}


def test_each_published_template_has_its_format(styles):
    got = {name: (s["format"], s["thought"]) for name, s in styles.items()}
    want = {name: row[:2] for name, row in STYLES.items()}
    assert {n: got[n] for n in got if got[n] != want.get(n)} == {} and len(got) == len(want)


def test_what_a_template_writes_is_read_back(styles):
    unread = {}
    n_rendered = 0
    for path in shared_templates():
        name = path.stem
        text = rendered_call(path.read_bytes().decode())
        documented = STYLES[name][2] if len(STYLES[name]) > 2 else None
        if (text is None) != (len(STYLES[name]) > 2):
            unread[name] = text
            continue
        n_rendered += text is not None
        call = text or documented or KIMI
        with script(f"--style={path.read_bytes().decode()}") as server:
            command = "!json " + json.dumps(call).replace("!", "\\u0021")
            status, r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": command}], "tools": TOOLS})
        message = r["choices"][0]["message"]
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
        if calls != [("get_weather", ARGUMENTS)]:
            unread[name] = (call, message)
        elif styles[name]["opening"].strip().replace("000000000", "call00001") not in call and styles[name]["format"] not in OTHER_OPENING:
            unread[name] = (call, styles[name]["opening"])
    print(f"{n_rendered} calls rendered by templates, {len(STYLES) - n_rendered} as documented")
    assert not unread, "\n".join(f"{k}: {v!r}" for k, v in unread.items())


# --- calls that a grammar governs ---

STRICT = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "strict": True, "parameters": {
        "type": "object", "properties": properties, "required": [k for k in properties if k != "days"], "additionalProperties": False}}}
    for name, properties in (("get_weather", {"city": {"type": "string"}, "days": {"type": "integer"}}),
                             ("mix", {"names": {"type": "array", "items": {"type": "string"}}, "text": {"type": "string"}, "ok": {"type": "boolean"}}))
]
SCHEMAS = {t["function"]["name"]: t["function"]["parameters"] for t in STRICT}
CALLS = [("get_weather", ARGUMENTS), ("mix", {"names": ["a", "b c"], "text": "it is", "ok": True})]
# Lists as Python shows them, which are not let through; the other header (OTHER_OPENING); the section is never closed
NOT_AS_RENDERED = {("seed", 2, "auto"), ("seed", 2, "required"), ("minicpm", 2, "auto"), ("minicpm", 2, "required"), ("harmony", 1, "required"),
                   ("harmony", 2, "required"), ("deepseek", 1, "auto")}


def answer(server, text, choice, n=1500, **fields):
    """The finish reason and the calls of what the model says, as far as it is let through."""
    command = "!json " + json.dumps(text).replace("!", "\\u0021")
    status, r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": command}], "tools": STRICT, "tool_choice": choice,
                                                     "max_tokens": n, **fields})
    assert status == 200, r
    choice = r["choices"][0]
    return choice["finish_reason"], [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls") or []]


def is_valid(name, arguments):
    return jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid(json.loads(arguments))


def test_strict_and_forced_calls_are_let_through_as_the_template_writes_them():
    other, n_same = [], 0
    for path in shared_templates():
        name, text = path.stem, path.read_bytes().decode()
        with script(f"--style={text}") as server:
            for n in (1, 2):
                call = rendered_call(text, CALLS[:n], STRICT)
                for choice in ("auto", "required") if call else ():
                    _, got = answer(server, call if choice == "auto" else call[call.index("get_weather"):], choice)
                    same = [(k, a) for k, a in got[:n] if (k, json.loads(a)) in CALLS]
                    n_same += len(same) == n
                    if len(same) < n and (STYLES[name][0], n, choice) not in NOT_AS_RENDERED:
                        other.append((name, n, choice, call, got))
    assert not other and n_same > 150, other


NOISE = ["get_weather", "mix", "{", "}", '"city"', "city", ":", '"Oslo"', ",", '"x"', "'", "5", "<", ">", "\n", " ", "(", ")", "=", "[", "]", "<tool_call>", "</tool_call>",
         "to=functions.", "to=", "<|message|>", "<|channel|>", "<|call|>", "<|end|>", "<|start|>", ">>>", "all\n", '<|"|>', "call:", "</parameter>", "<parameter=city>"]


def test_no_call_has_other_arguments_than_the_schemas():
    wrong, n_calls, n_none = [], 0, 0
    for path in shared_templates():
        text = path.read_bytes().decode()
        rng = random.Random(path.stem)
        call = rendered_call(text, CALLS[:1], STRICT) or KIMI
        with script(f"--style={text}") as server:
            for i in range(12):
                noise = "".join(rng.choice(NOISE) for _ in range(50))
                choice, alone = ("auto", "required")[i % 2], i % 3 == 0
                begun = call[: rng.randrange(len(call))] if choice == "auto" else ""
                finish, got = answer(server, begun + noise, choice, 700, parallel_tool_calls=not alone)
                if finish == "length":
                    continue
                n_calls += len(got)
                n_none += not got
                wrong += [(path.stem, choice, begun + noise, c) for c in got if not is_valid(*c)]
                if (choice == "required" and not got) or (alone and len(got) > 1):
                    wrong.append((path.stem, choice, begun + noise, got))
    print(f"{n_calls} calls, {n_none} answers without one")
    assert not wrong and n_calls > 300, wrong[:5]
