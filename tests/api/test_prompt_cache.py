"""Kept histories: what a request finds of earlier ones, that it changes no answer, and who does not find it."""

import concurrent.futures

import pytest
from fetched import fetched_model
from serving import PLUMB, Server

SYSTEM = "You are a careful assistant. " + " ".join(f"Rule {i}: keep the {w} in mind." for i, w in enumerate(
    "river stone copper window garden harbor meadow winter engine paper silver market candle bridge forest".split()))


@pytest.fixture(scope="module")
def path():
    return str(fetched_model("smollm2"))


def serve(path, *flags):
    return Server([PLUMB, "serve", "--model", path, "--port", "0", "--ctx", "2048", "--no-store", *flags])


@pytest.fixture(scope="module")
def real(path):
    with serve(path) as s:
        yield s


def ask(server, user, history=(), **fields):
    messages = [{"role": "system", "content": SYSTEM}, *history, {"role": "user", "content": user}]
    status, r = server.chat(messages, **{"max_tokens": 24, "temperature": 0.8, "seed": 3, "logprobs": True, **fields})
    assert status == 200, r
    return r["choices"][0], r["usage"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_the_next_turn_begins_with_the_last_one(real, path):
    with serve(path, "--prompt-cache", "0") as cold:
        history = []
        for turn, user in enumerate(["Name a river.", "And a stone?", "Thank you. Now count to five."]):
            choice, usage = ask(real, user, history)
            want, usage_cold = ask(cold, user, history)
            assert choice == want and cached(usage_cold) == 0
            if turn:  # the whole last turn, but for what the template writes behind an answer
                assert cached(usage) >= whole - 2
            whole = usage["total_tokens"]
            history += [{"role": "user", "content": user}, {"role": "assistant", "content": choice["message"]["content"]}]
        assert cold.stats()["cached_tokens"] == 0 and cold.stats()["cache"]["full"]["kept"] == 0


def test_the_same_again_and_a_changed_middle(real):
    first, usage = ask(real, "Tell me about the harbor, please.")
    again, usage_again = ask(real, "Tell me about the harbor, please.")
    assert again == first and cached(usage_again) == usage["prompt_tokens"] - 1
    before = real.stats()["cached_tokens"]
    _, changed = ask(real, "Tell me about the garden, please.")
    assert 0 < cached(changed) < usage["prompt_tokens"] - 5
    assert real.stats()["cached_tokens"] == before + cached(changed)


def test_salts_part_tenants(real):
    q = "What does the candle say to the bridge?"
    plain, _ = ask(real, q)
    for salt in ("a", "b", ""):
        mine, usage = ask(real, q, cache_salt=salt)
        assert mine == plain and cached(usage) == 0
        assert cached(ask(real, q, cache_salt=salt)[1]) > 100
    assert cached(ask(real, q, cache_salt=None)[1]) > 100
    for bad in (7, ["a"], "x" * 257):
        status, r = real.chat("Hi", cache_salt=bad)
        assert status == 400 and r["error"]["param"] == "cache_salt"


def test_the_other_dialects_tell_it_too(real):
    body = {"model": "m", "max_tokens": 8, "system": SYSTEM, "messages": [{"role": "user", "content": "Say silver."}], "temperature": 0}
    real.post("/v1/messages", body)
    usage = real.post("/v1/messages", body)[1]["usage"]
    assert usage["cache_read_input_tokens"] > 100 and usage["input_tokens"] >= 1
    assert real.post("/v1/messages", {**body, "cache_salt": "m"})[1]["usage"]["cache_read_input_tokens"] == 0
    body = {"model": "m", "max_output_tokens": 8, "instructions": SYSTEM, "input": "Say copper.", "temperature": 0, "store": False}
    real.post("/v1/responses", body)
    assert real.post("/v1/responses", body)[1]["usage"]["input_tokens_details"]["cached_tokens"] > 100
    prompt = {"prompt": SYSTEM, "max_tokens": 4, "temperature": 0}
    real.post("/v1/completions", prompt)
    usage = real.post("/v1/completions", {**prompt, "n": 3})[1]["usage"]
    assert cached(usage) == usage["prompt_tokens"] - 1  # a prompt counts once, however many answers it has


def test_requests_that_run_side_by_side_share_their_beginning(real):
    want = [ask(real, f"Number {i}?")[0] for i in range(6)]
    start = real.stats()["cached_tokens"]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda i: ask(real, f"Number {i}?"), range(6)))
    assert [choice for choice, _ in got] == want
    assert real.stats()["cached_tokens"] > start + 6 * 100


def test_the_budget_is_a_bound(path):
    with serve(path, "--prompt-cache", "6M") as s:  # pages of 1.4 MiB
        for i in range(8):
            ask(s, f"Question {i}: what is next?")
            cache = s.stats()["cache"]["full"]
            assert 0 < cache["kept"] * cache["page_bytes"] <= 6 << 20
        assert cache["free"] + cache["kept"] == cache["pages"] and cache["promised"] == 0
        assert b"plumb_cache_pages_kept{group=\"full\"}" in s.call("/metrics")[2]


def test_windows_begin_where_an_answer_ended():
    ids = [(i * 37 + i * i) % 5000 + 300 for i in range(700)]  # longer than the window
    q = {"max_tokens": 6, "temperature": 0, "logprobs": 2}
    gemma = str(fetched_model("gemma3-270m"))
    with serve(gemma) as s, serve(gemma, "--prompt-cache", "0") as cold:
        assert cached(s.complete(ids, max_tokens=1)[1]["usage"]) == 0
        for more, found in (([7, 8, 9], 700), ([7, 8, 10], 700), ([5], 700)):
            r = s.complete(ids + more, **q)[1]
            assert r["choices"] == cold.complete(ids + more, **q)[1]["choices"]
            assert cached(r["usage"]) >= found
        assert s.stats()["cache"]["window"]["kept"] > 0
