"""Where prompts are cut for layers that go on only from places that were kept: as far as the conversation stays the same without its last message,
without its last two, and whatever is answered and asked next. The oracle renders by jinja2; a token is a byte, or a control token."""

import pathlib
import re
import sys

import pytest
from serving import script

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import chat_oracle  # noqa: E402

CONTROL = re.compile(rb"<\|im_start\|>|<\|im_end\|>|<\|end\|>")

CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Tools at the head, calls and results in tags; the newest turn of the user begins otherwise, reasoning is opened behind it.
TOOLS_TEMPLATE = """{% if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}{% for t in tools %}{{ t | tojson }}{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}\
{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'user' and loop.last %}{{ '[now] ' }}{% endif %}{{ m.content or '' }}\
{% for c in m.tool_calls or [] %}{{ '<tool_call>{"name": "' + c.function.name + '", "arguments": ' }}{{ c.function.arguments | tojson }}{{ '}</tool_call>' }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""

# What stands before an assistant's call differs from what stands before its text, far up in the conversation.
HEAD_TEMPLATE = """{% set ns = namespace(calls=0) %}{% for m in messages %}{% if m.tool_calls %}{% set ns.calls = ns.calls + 1 %}{% endif %}{% endfor %}\
{{ '<|im_start|>system\\n' + messages[0].content + (' calls' if ns.calls else ' none') + '<|im_end|>' }}""" + TOOLS_TEMPLATE

RAISES_ON_CALLS = """{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}{% endfor %}""" + CHATML
RAISES_ON_GOING_ON = """{% if messages[-1].content == 'x' %}{{ raise_exception('not that') }}{% endif %}""" + CHATML
NO_CONTROL = """{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""

TEMPLATES = {"chatml": CHATML, "tools": TOOLS_TEMPLATE, "head": HEAD_TEMPLATE, "raises on calls": RAISES_ON_CALLS,
             "raises on going on": RAISES_ON_GOING_ON, "no control tokens": NO_CONTROL}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look it up", "parameters": {"type": "object", "properties": {}}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {}}}]}


def tokens(text):
    data, out, at = text.encode(), [], 0
    for m in CONTROL.finditer(data):
        out += [*data[at:m.start()], m[0]]
        at = m.end()
    return out + list(data[at:])


def render(template, messages, tools, generation):
    is_fine, text = chat_oracle.render(template, {"messages": messages, **({"tools": tools} if tools else {}), "add_generation_prompt": generation})
    return tokens(text) if is_fine else None  # what the template refuses is no place


def alike(a, b):
    n = 0
    while b is not None and n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def cuts_of(template, messages, tools):
    prompt = render(template, messages, tools, True)
    go_on = {"role": "user", "content": "x"}
    after = [alike(prompt, render(template, [*messages, reply, go_on], tools, False)) for reply in
             ([{"role": "assistant", "content": "x"}, CALL] if tools else [{"role": "assistant", "content": "x"}])]
    stable = min((n for n in after if n), default=0)
    shorter = [alike(prompt, render(template, messages[:-k], tools, False)) if len(messages) > k else 0 for k in (2, 1)]
    out = []
    for n in (*shorter, stable):
        if n >= 256 and (not out or n > out[-1]):
            out.append(n)
    return out


def conversation(n, words):
    """n messages behind a system message, the last one a user's."""
    roles = ["user", "assistant"] if n % 2 else ["assistant", "user"]
    out = [{"role": "system", "content": "Be brief."}]
    out += [{"role": roles[i % 2], "content": f"{i}: " + " ".join(f"word {k}" for k in range(words))} for i in range(n - 1)]
    return [*out, {"role": "user", "content": "And now? é <|im_end|> is text here. !cuts"}]


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_cuts_are_where_conversations_part(name, has_tools):
    template, tools = TEMPLATES[name], [TOOL] if has_tools else None
    seen = set()
    with script("--keeps-ends=1", "--ctx=8192", f"--template={template}") as s:
        for n in (1, 2, 3, 4, 7):
            for words in (3, 40, 150):
                messages = conversation(n, words)
                plain = [{**m, "content": m["content"].replace("<|im_end|>", "\ue000")} for m in messages]  # the caller's is text, not a token
                want = [sum(len("<|im_end|>".encode()) - 2 if t == 0xEE else 1 for t in render(template, plain, tools, True)[:c])
                        for c in cuts_of(template, plain, tools)]
                status, r = s.chat(messages, max_tokens=200, **({"tools": tools} if tools else {}))
                assert status == 200, r
                text = r["choices"][0]["message"]["content"] or r["choices"][0]["message"].get("reasoning_content") or ""
                got = [int(x) for x in re.findall(r"\d+", text)]
                assert got == want, (n, words)
                seen.add(len(got))
    assert max(seen) >= (1 if "going on" in name else 2)


def test_replies_with_ids_are_cut_as_they_are(tmp_path):
    """A reply that brings its ids is cut no differently: the places are counted in the prompt's own ids."""
    with script("--keeps-ends=1", "--ctx=8192") as s:
        messages = conversation(3, 60)
        plain = s.chat(messages, max_tokens=100)[1]["choices"][0]["message"]["content"]
        messages[2]["token_ids"] = list(messages[2]["content"].encode())
        assert s.chat(messages, max_tokens=100)[1]["choices"][0]["message"]["content"] == plain and len(plain.split()) == 3


def test_prompts_that_keep_no_ends_are_not_rendered_again():
    with script("--ctx=8192") as s:
        assert s.chat(conversation(5, 60), max_tokens=100)[1]["choices"][0]["message"]["content"] == ""
