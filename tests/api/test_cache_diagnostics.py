"""Why the prompt cache gave no more: each reason, the message that differs with the text around it, and the vendors' own forms."""

import anthropic
import openai
import pytest
from fetched import fetched_model
from serving import PLUMB, ROOT, Server

RULES = " ".join(f"Rule {i}: keep the {w} in mind." for i, w in enumerate(
    "river stone copper window garden harbor meadow winter engine paper silver market candle bridge forest".split()))
SYSTEM = "You are a careful assistant. " + RULES


@pytest.fixture(scope="module")
def path():
    return str(fetched_model("smollm2"))


def serve(path, *flags):
    store = () if "--state-dir" in flags else ("--no-store",)
    return Server([PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "2048", *store, *flags])


@pytest.fixture(scope="module")
def real(path, tmp_path_factory):
    with serve(path, "--state-dir", str(tmp_path_factory.mktemp("state"))) as s:
        yield s


def turns(*texts, system=SYSTEM):
    roles = ["user", "assistant"]
    return [{"role": "system", "content": system}, *({"role": roles[i % 2], "content": t} for i, t in enumerate(texts))]


def ask(server, messages, **fields):
    status, r = server.chat(messages, **{"max_tokens": 6, "temperature": 0, "cache_diagnostics": True, **fields})
    assert status == 200, r
    d = r["usage"]["cache_diagnostics"]
    assert d["reused_tokens"] == r["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert d["prompt_tokens"] == r["usage"]["prompt_tokens"]
    return r["choices"][0]["message"]["content"], d


def test_only_who_asks_is_told_and_the_answer_is_the_same(real):
    body = {"max_tokens": 12, "temperature": 0.9, "seed": 5, "logprobs": True}
    _, plain = real.chat(turns("Say something about salt."), **body)
    _, told = real.chat(turns("Say something about salt."), cache_diagnostics=True, **body)
    assert "cache_diagnostics" not in plain["usage"] and told["choices"] == plain["choices"]
    for bad in (1, "true", []):
        status, r = real.chat("Hi", cache_diagnostics=bad)
        assert status == 400 and r["error"]["param"] == "cache_diagnostics"


def test_nothing_kept_whole_and_ends(real):
    salt = {"cache_salt": "fresh"}
    text, d = ask(real, turns("Name a river."), **salt)
    assert d["reason"] == "empty" and d["reused_tokens"] == d["nearest_tokens"] == 0 and d["first_difference"] is None
    _, d = ask(real, turns("Name a river."), **salt)
    assert d["reason"] == "whole" and d["reused_tokens"] == d["prompt_tokens"] - 1 and d["goes_on_at"] is None
    _, d = ask(real, turns("Name a river.", text, "Another one."), **salt)
    assert d["reason"] == "ends" and d["first_difference"] is None
    assert d["goes_on_at"]["path"] in ("messages[2]", "messages[3]") and d["goes_on_at"]["token"] == d["reused_tokens"]


def test_a_date_at_the_head_of_the_system_prompt_is_named(real):
    for i, date in enumerate(("Monday, 30 November", "Tuesday, 1 December")):
        _, d = ask(real, turns("Name a stone.", system=f"Today is {date} 2026.\n{SYSTEM}"), cache_salt="dates")
    diff = d["first_difference"]
    assert d["reason"] == "differs" and d["reused_tokens"] < 20 < d["prompt_tokens"]
    assert diff["path"] == "messages[0]" and diff["role"] == "system" and not diff["in_template"]
    assert diff["before"].endswith("Today is") and diff["here"].startswith(" Tuesday, 1 December")
    assert diff["kept"].startswith(" Monday, 30 November 2026.")


@pytest.mark.parametrize("at", range(5))
def test_the_message_that_was_changed_is_named(real, at):
    texts = ["Please name a river.", "Certainly: the Danube.", "Now name a stone.", "That would be granite.", "And a metal?"]
    ask(real, turns(*texts), cache_salt=f"change {at}")
    texts[at] = texts[at][:8] + " zebra" + texts[at][8:]
    _, d = ask(real, turns(*texts), cache_salt=f"change {at}")
    diff = d["first_difference"]
    assert d["reason"] == "differs" and diff["path"] == f"messages[{at + 1}]" and not diff["in_template"]
    assert diff["role"] == ("assistant" if at % 2 else "user")
    assert "zebra" in diff["here"][:16] and "zebra" not in diff["before"] + diff["kept"]


def test_what_was_given_up_is_told(path):
    with serve(path, "--prompt-cache", "6M") as s:  # 4 pages of 64 tokens
        ask(s, turns("Name a window."))
        for other in range(6):  # each newcomer is worth more than what was last given up
            ask(s, turns("Name a garden.", system=f"Other words: {other}. " + RULES[::-1]))
        _, d = ask(s, turns("Name a window."))
        assert d["reason"] == "evicted" and d["evicted_tokens"] >= 64
        assert d["evicted_tokens"] + d["nearest_tokens"] <= d["prompt_tokens"]


def test_what_keeps_nothing_says_so(path, real):
    with serve(path, "--prompt-cache", "0") as s:
        for _ in range(2):
            _, d = ask(s, turns("Name a market."))
            assert d["reason"] == "off" and d["reused_tokens"] == d["nearest_tokens"] == 0
    r = real.complete(SYSTEM, max_tokens=2, echo=True, logprobs=1, cache_diagnostics=True)[1]
    assert r["usage"]["cache_diagnostics"]["reason"] == "scored"


def test_windows_stand_at_their_ends():
    ids = [(i * 37 + i * i) % 5000 + 300 for i in range(700)]  # longer than the window
    with serve(str(fetched_model("gemma3-270m"))) as s:
        s.complete(ids, max_tokens=1, temperature=0)
        changed = [*ids[:353], 77, *ids[354:]]
        r = s.complete(changed, max_tokens=1, temperature=0, cache_diagnostics=True)[1]
        d = r["usage"]["cache_diagnostics"]
        assert d["reason"] == "state" and d["nearest_tokens"] == 353 > d["reused_tokens"]
        assert d["first_difference"]["token"] == 353 and d["first_difference"]["path"] == "prompt"
        assert d["goes_on_at"]["token"] == d["reused_tokens"]


def test_the_tool_that_was_changed_is_named():
    def tools(word):
        return [{"type": "function", "function": {"name": f"look_{n}", "description": f"Looks up {what}.", "parameters": {
            "type": "object", "properties": {"q": {"type": "string"}}}}} for n, what in (("up", "words"), ("down", word), ("away", "roads"))]

    with serve(str(fetched_model("qwen2.5-coder-0.5b"))) as s:
        ask(s, turns("Hello."), tools=tools("mines"))
        _, d = ask(s, turns("Hello."), tools=tools("wells"))
        diff = d["first_difference"]
        assert diff["path"] == "tools[1]" and diff["tool"] == "look_down" and "wells" in diff["here"] and "mines" in diff["kept"]
        _, d = ask(s, turns("Hello."), tools=tools("wells")[::-1])
        assert d["first_difference"]["path"] == "tools[0]" and d["first_difference"]["tool"] == "look_away"
        _, d = ask(s, turns("Hello look_down."), tools=tools("wells"))
        assert d["first_difference"]["path"] == "messages[1]"


def test_no_other_tenants_text_is_told(path, real, tmp_path):
    secret = "The password of the vault is marmalade."
    ask(real, turns(secret), cache_salt="alice")
    for salt in ("bob", None, ""):
        r = real.chat(turns("The password of the vault is zzz"), cache_diagnostics=True, max_tokens=2, cache_salt=salt)[1]
        assert "marmalade" not in str(r)
    keys = tmp_path / "keys"
    keys.write_text("alice-key-0\nbob-key-000\n")
    with serve(path, "--api-key-file", str(keys)) as s:
        def told(key, text, **fields):
            status, r = s.post("/v1/chat/completions", {"messages": turns(text), "max_tokens": 2, "cache_diagnostics": True, **fields},
                               headers={"Authorization": f"Bearer {key}"})
            assert status == 200
            return r["usage"]["cache_diagnostics"]

        told("alice-key-0", secret)
        d = told("bob-key-000", "The password of the vault is zzz")  # the cache is shared, what is in it is not told
        assert d["reason"] == "differs" and d["first_difference"]["kept"] is None and "marmalade" not in str(d)
        told("alice-key-0", secret, cache_salt="a long secret")
        d = told("alice-key-0", "The password of the vault is zzz", cache_salt="a long secret")
        assert "marmalade" in d["first_difference"]["kept"]


def test_streams_and_the_other_dialects(real):
    body = {"messages": turns("Name a forest."), "max_tokens": 4, "cache_diagnostics": True, "stream_options": {"include_usage": True}}
    real.events("/v1/chat/completions", body)
    last = real.events("/v1/chat/completions", body)[-2]
    assert last["usage"]["cache_diagnostics"]["reason"] == "whole"
    body = {"prompt": [SYSTEM, "other"], "max_tokens": 2, "cache_diagnostics": True, "cache_salt": "c"}
    real.post("/v1/completions", body)
    d = real.post("/v1/completions", {**body, "prompt": [SYSTEM[:-30] + "end.", "x"]})[1]["usage"]["cache_diagnostics"]
    assert d["reason"] == "differs" and d["first_difference"]["path"] == "prompt" and d["goes_on_at"]["token"] == d["nearest_tokens"]


def test_places_are_told_in_the_terms_of_the_api(real):
    def message(system, texts):
        roles = ["user", "assistant"]
        return {"model": "m", "max_tokens": 4, "system": system, "temperature": 0, "cache_diagnostics": True, "cache_salt": "msg",
                "messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)]}

    def difference(path, body):
        status, r = real.post(path, body)
        assert status == 200, r
        return r["usage"]["cache_diagnostics"]["first_difference"]

    texts = ["Name a bridge.", "London.", "Another."]
    real.post("/v1/messages", message(SYSTEM, texts))
    assert difference("/v1/messages", message("Also, " + SYSTEM, texts))["path"] == "system"
    assert difference("/v1/messages", message(SYSTEM, [texts[0], "Tower.", texts[2]]))["path"] == "messages[1]"

    def response(instructions, texts, **fields):
        roles = ["user", "assistant"]
        return {"max_output_tokens": 4, "instructions": instructions, "temperature": 0, "cache_diagnostics": True, "cache_salt": "resp",
                "input": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)], **fields}

    first = real.post("/v1/responses", response(SYSTEM, texts))[1]
    assert difference("/v1/responses", response("Also, " + SYSTEM, texts))["path"] == "instructions"
    assert difference("/v1/responses", response(SYSTEM, [texts[0], "Tower.", texts[2]]))["path"] == "input[1]"
    status, r = real.post("/v1/responses", response(SYSTEM, ["Go on."], previous_response_id=first["id"]))
    assert status == 200 and r["usage"]["cache_diagnostics"]["reused_tokens"] > 100
    kept = real.call(f"/v1/responses/{r['id']}")[2]  # as it was told
    assert kept["usage"] == r["usage"] and kept["output"] == r["output"]
    events = real.call("/v1/responses", response(SYSTEM, texts, stream=True))[2].decode()
    assert '"cache_diagnostics":{' in events.split("event: response.completed")[-1].split("event: response.incomplete")[-1]


def test_anthropics_form(real):
    cl = anthropic.Anthropic(base_url=real.url, api_key="anthropic-form", max_retries=0)
    tool = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}

    def say(previous, *texts, system=SYSTEM, **fields):
        roles = ["user", "assistant"]
        return cl.messages.create(model="m", max_tokens=5, system=system, diagnostics={"previous_message_id": previous},
                                  messages=[{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)], **fields)

    a = say(None, "Name a candle.")
    assert a.diagnostics is None
    b = say(a.id, "Name a candle.", "Wax.", "Another.")
    assert b.diagnostics is None
    for want, r in (("messages_changed", say(b.id, "Name a candle.", "Tallow.", "Another.")),
                    ("system_changed", say(b.id, "Name a candle.", "Wax.", "Another.", system="X. " + SYSTEM)),
                    ("tools_changed", say(b.id, "Name a candle.", "Wax.", "Another.", tools=[tool])),
                    ("unavailable", say(b.id, "Name a candle.", "Wax.", "Another.", extra_body={"cache_salt": "s"})),
                    ("previous_message_not_found", say("msg_0", "Name a candle."))):
        reason = r.diagnostics.cache_miss_reason
        assert reason.type == want
        missed = getattr(reason, "cache_missed_input_tokens", None)
        assert (missed is None) == (want in ("unavailable", "previous_message_not_found"))
        if want == "messages_changed":
            assert 0 < missed < b.usage.input_tokens + b.usage.cache_read_input_tokens
    other = anthropic.Anthropic(base_url=real.url, api_key="somebody-else", max_retries=0)
    r = other.messages.create(model="m", max_tokens=2, messages=[{"role": "user", "content": "Hi"}], diagnostics={"previous_message_id": b.id})
    assert r.diagnostics.cache_miss_reason.type == "previous_message_not_found"
    with cl.messages.stream(model="m", max_tokens=2, system="Y", messages=[{"role": "user", "content": "Hi"}],
                            diagnostics={"previous_message_id": b.id}) as stream:
        assert stream.get_final_message().diagnostics.cache_miss_reason.type == "system_changed"
    plain = cl.messages.create(model="m", max_tokens=2, messages=[{"role": "user", "content": "Hi"}])
    assert "diagnostics" not in plain.model_dump(exclude_unset=True)
    for bad in (7, {"previous_message_id": 7}):
        body = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}], "diagnostics": bad}
        assert real.post("/v1/messages", body)[0] == 400


def test_openais_form(real):
    cl = openai.OpenAI(base_url=real.url + "/v1", api_key="openai-form", max_retries=0)

    def say(compare, *texts, instructions=SYSTEM, **fields):
        roles = ["user", "assistant"]
        options = {"prompt_cache_options": {"comparison_response_id": compare}} if compare else {}
        return cl.responses.create(model="m", max_output_tokens=5, instructions=instructions, temperature=0,
                                   input=[{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)], **options, **fields)

    a = say(None, "Name a paper.")
    assert a.prompt_cache_diagnostics is None
    d = say(a.id, "Name a paper.", "Vellum.", "Another.").prompt_cache_diagnostics
    assert d.type == "cache_hit"
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
    for want, r in (("input_changed", say(a.id, "Name a plate.")),
                    ("input_changed", say(a.id, "Name a paper.", instructions="X. " + SYSTEM)),
                    ("tools_changed", say(a.id, "Name a paper.", tools=[tool])),
                    ("reasoning_effort_changed", say(a.id, "Name a paper.", reasoning={"effort": "high"}))):
        d = r.prompt_cache_diagnostics
        assert d.type == "cache_miss" and d.reason == want and d.comparison_reusable_tokens == a.usage.input_tokens
        assert 0 < d.cache_missed_tokens <= a.usage.input_tokens
    assert say("resp_0", "Name a paper.").prompt_cache_diagnostics.type == "comparison_response_not_found"
    assert say(a.id, "Name a paper.", extra_body={"cache_salt": "q"}).prompt_cache_diagnostics.type == "unavailable"
    status, r = real.post("/v1/responses", {"input": "Hi", "prompt_cache_options": 3})
    assert status == 400 and r["error"]["param"] == "prompt_cache_options"


def test_volatile_lines_are_moved_where_that_is_asked_for(path, real):
    q = {"max_tokens": 8, "temperature": 0.7, "seed": 2}
    texts = ["Name a copper thing.", "A kettle.", "And a silver one?"]
    with serve(path, "--hoist-volatile") as s:
        for i, line in enumerate(("Today's date is Monday, 30 November 2026.", "Today's date is Tuesday, 1 December 2026.",
                                  "x-anthropic-billing-header: cch=00ff1", "Request ID: 7f3a9c1e-b2d4", "Request ID: 8a4b0d2f-c3e5")):
            asked = turns(*texts, system=f"{line}\n\n{SYSTEM}")
            text, d = ask(s, asked, **q)
            assert d["hoisted_lines"] == 1
            by_hand = turns(*texts[:-1], f"{texts[-1]}\n\n{line}")  # the same prompt, written so
            assert ask(real, by_hand, **q)[0] == text
            prompt = s.post("/apply-template", {"messages": asked})[1]["prompt"]
            assert prompt == real.post("/apply-template", {"messages": by_hand})[1]["prompt"] and prompt.count(line) == 1
            if i:  # all but the last message's end
                assert d["first_difference"]["path"] == "messages[3]" and d["reused_tokens"] > d["prompt_tokens"] - 60
            body = {"system": asked[0]["content"], "messages": asked[1:], "max_tokens": 4}
            count = s.post("/v1/messages/count_tokens", body)[1]["input_tokens"]
            assert count == d["prompt_tokens"] == s.post("/tokenize", {"messages": asked})[1]["count"]
            usage = s.post("/v1/messages", {**body, "cache_diagnostics": True})[1]["usage"]
            assert usage["cache_diagnostics"]["hoisted_lines"] == 1 and usage["cache_read_input_tokens"] == count - 1
        assert ask(s, turns(*texts), **q)[1]["hoisted_lines"] == 0
    asked = turns(*texts, system=f"Date: 2026-11-30\n{SYSTEM}")
    assert ask(real, asked, **q)[1]["hoisted_lines"] == 0  # off unless asked for
    assert "Date: 2026-11-30\nYou are" in real.post("/apply-template", {"messages": asked})[1]["prompt"]


def test_what_came_from_disk_is_told(path, tmp_path):
    disk = ("--ssd-cache", str(tmp_path / "ssd"))
    with serve(path, *disk) as s:
        ask(s, turns("Name a harbor."))
    with serve(path, *disk) as s:
        _, d = ask(s, turns("Name a harbor."))
        assert d["reason"] == "whole" and 64 <= d["disk_tokens"] <= d["reused_tokens"]
        _, d = ask(s, turns("Name a harbor."))
        assert d["reason"] == "whole" and d["disk_tokens"] == 0


# Templates with roles spelled by themselves or taken from the message, with the system prompt at the front or in the last message.
TEMPLATES = ["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407", "microsoft-Phi-3.5-mini-instruct",
             "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "openai-gpt-oss-120b"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_published_templates(path, name):
    shared = ROOT.parent / "shared/data/chat_templates"
    if not shared.is_dir():
        pytest.skip("no-shared-data: ../shared/data/chat_templates")
    texts = ["Please name a river.", "Certainly: the Danube.", "Now name a stone.", "That would be granite.", "rules"]
    system = "You are careful and kind. Mind the rules."
    with serve(path, "--chat-template", str(shared / f"{name}.jinja")) as s:
        for at in range(6):
            messages = turns(*texts, system=system)
            ask(s, messages, cache_salt=f"{at}")
            messages[at]["content"] = messages[at]["content"][:4] + " zebra" + messages[at]["content"][4:]
            _, d = ask(s, messages, cache_salt=f"{at}")
            assert d["first_difference"]["path"] == f"messages[{at}]", (name, at, d)
            assert "zebra" in d["first_difference"]["here"] and not d["first_difference"]["in_template"]
