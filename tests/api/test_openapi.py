"""GET /openapi.json: it is a valid OpenAPI document, has what the server has and nothing else, and what it says of requests and of replies
is so. Over the scripted engine; /infill needs the tokens of a real model."""

import copy
import json
import re
import tempfile
import time
import urllib.parse

import jsonschema
import pytest
import requests
import schemathesis
from fetched import fetched_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import (content_type_conformance, not_a_server_error, response_headers_conformance, response_schema_conformance,
                                 status_code_conformance)
from serving import PLUMB, SLOW, Reply, Server, request, script, strict_json

METHODS = ("get", "post", "delete", "put", "patch")
KEY = "sk-test-12345678"
THINKS = "--style=<tool_call><think></think>"
FUNCTION = {"name": "ping", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = '<think>\nHm.\n</think>\n\nSo.\n<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
PATCH = '<tool_call>{"name": "patch", "arguments": {"input": "x"}}</tool_call>'


def say(text):
    return "!json " + json.dumps(text).replace("!", "\\u0021")


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with script(THINKS, "--rows=4", "--ctx=512", f"--state-dir={tmp_path_factory.mktemp('state')}") as s:
        yield s


@pytest.fixture(scope="module")
def doc(server):
    status, headers, value = server.call("/openapi.json")
    assert status == 200 and headers["content-type"] == "application/json"
    return value


def operations(doc):
    return {(method, path): op for path, methods in doc["paths"].items() for method, op in methods.items()}


def closed(schema):
    """The same, but an object has no members beside those that are listed: so that a reply cannot have more than is said of it."""
    if isinstance(schema, list):
        return [closed(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: closed(v) for k, v in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        out["additionalProperties"] = False
    return out


class Client:
    """Calls, and holds each reply against the description: status, media type, headers, body, and each event of a stream."""

    def __init__(self, server, doc):
        self.server, self.doc, self.done, self.events = server, doc, set(), set()
        self.components = closed(doc["components"])

    def check(self, value, ref):
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": ref, "components": self.components}
        error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
        assert error is None, f"{ref}: {error.json_path}: {error.message}"

    def resolve(self, value):
        return self.doc["components"]["responses"][value["$ref"].rsplit("/", 1)[1]] if "$ref" in value else value

    def call(self, method, path, body=None, want=200, query="", **ids):
        op = self.doc["paths"][path][method]
        url = path.format(**{k: urllib.parse.quote(v, safe="") for k, v in ids.items()}) + query
        status, headers, value = self.server.call(url, body, method=method.upper())
        assert status == want, (status, value)
        said = self.resolve(op["responses"][str(status)])
        for name in said["headers"]:
            assert name in headers or name in ("x-plumb-ignored", "x-plumb-resumable"), (name, headers)
        assert {h for h in headers if h.startswith("x-plumb")} <= set(said["headers"])
        media = headers["content-type"].split(";")[0]
        content = said["content"][media]
        if media == "application/json":
            self.check(value, content["schema"]["$ref"])
        elif media == "text/event-stream":
            value = self.stream(value, content["schema"]["properties"]["data"])
        if status == 200:
            self.done.add((method, path, media))
        return value

    def stream(self, data, said):
        out, has_done = [], "anyOf" in said
        ref = (said["anyOf"][1] if has_done else said)["contentSchema"]["$ref"]
        assert data.endswith(b"data: [DONE]\n\n") == has_done
        for block in data.decode().split("\n\n")[:-1]:
            text = block.split("data: ", 1)[1]
            if text == "[DONE]":
                continue
            out.append(strict_json(text))
            self.check(out[-1], ref)
        assert out
        return out


# --- (a) what there is ---

def test_it_has_every_route_and_no_other(server, doc):
    endpoints = set(server.call("/v1")[2]["endpoints"])
    paths = set(doc["paths"])
    assert endpoints <= paths
    for path in paths - endpoints:  # what follows an id is no route of its own
        assert any(e.endswith("{id}") and path.startswith(e) for e in endpoints), path
    assert len({op["operationId"] for op in operations(doc).values()}) == len(operations(doc))


def test_each_path_has_the_methods_that_are_told(server, doc):
    for path in doc["paths"]:
        url = path.replace("{id}", "nothing")
        # "/v1/responses/input_tokens" is also what an id may look like
        methods = {m for other, ms in doc["paths"].items() if re.fullmatch(other.replace("{id}", ".+" if "requests" in other else "[^/]+"), url) for m in ms}
        for method in METHODS:
            status, headers, value = server.call(url, {} if method != "get" else None, method=method.upper())
            text = json.dumps(value) if isinstance(value, dict) else ""
            is_served = status != 405 and "no such path" not in text
            assert is_served == (method in methods), (method, path, status, value)
            if status == 405:
                assert set(headers["allow"].lower().split(", ")) - {"head", "options"} >= set(methods), (path, headers["allow"])


def test_keys_are_told_where_there_are_some(doc):
    assert "security" not in doc and not any("401" in op["responses"] for op in operations(doc).values())
    with script(f"--api-key={KEY}", "--metrics-public") as s:
        assert s.call("/openapi.json")[0] == 401
        status, _, keyed = s.call("/openapi.json", headers={"Authorization": f"Bearer {KEY}"})
        assert status == 200 and keyed["security"] and set(keyed["components"]["securitySchemes"]) == {"bearer", "key"}
        validate(keyed)
        for (method, path), op in operations(keyed).items():
            is_open = op.get("security") == []
            status = s.call(path.replace("{id}", "x"), None if method == "get" else {}, method=method.upper())[0]
            assert is_open == (status != 401) == ("401" not in op["responses"]), path
            assert is_open == ("health" in path or path == "/metrics")


def test_while_the_model_loads_there_is_no_vocabulary(doc):
    def token(value):
        return value["components"]["schemas"]["Token"]

    with script("--load-ms=1500", ready=False) as s:
        status, _, early = s.call("/openapi.json")
        assert status == 200 and "maximum" not in token(early)
        end = time.time() + 20 * SLOW
        while s.call("/health")[0] != 200 and time.time() < end:
            time.sleep(0.05)
        late = s.call("/openapi.json")[2]
        assert token(late)["maximum"] == token(doc)["maximum"] > 255
        assert {**early, "components": None} == {**late, "components": None}


# --- (b) the document ---

def test_the_document_is_valid(server, doc):
    validate(doc)
    assert doc["openapi"].startswith("3.1")
    used = set(re.findall(r'"\$ref": "#/components/(\w+/\w+)"', json.dumps(doc)))
    there = {f"{kind}/{name}" for kind, values in doc["components"].items() for name in values}
    assert used <= there
    assert {x for x in there - used if not re.search(r"responses/(Messages)?Error\d", x)} == set()  # a status that no operation has
    assert server.call("/openapi.json")[2] == doc


def test_fields_are_those_of_the_table(doc):
    """What reads requests and what describes them is one table; here a sample of it, against the docs."""
    chat = doc["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    temperature = chat["properties"]["temperature"]
    assert {"type": "number", "minimum": 0, "maximum": 100} in temperature["anyOf"] and temperature["description"]
    assert chat["properties"]["stream"]["type"] == ["boolean", "null"]
    assert "suffix" not in chat["properties"] and "suffix" in doc["components"]["schemas"]["CompletionRequest"]["properties"]
    assert doc["components"]["schemas"]["MessagesRequest"]["required"] == ["messages", "max_tokens"]


# --- (c) requests ---

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance]

# Left out: these are served by the same code under another name, and described alike (tested below).
ALIASES = {"/health/ready", "/v1/health", "/models", "/chat/completions", "/completions", "/responses", "/embeddings", "/rerank", "/score"}

# Why a request that fits its schema may be refused all the same: fields must fit each other, the model, or what is kept.
REFUSALS = [
    r"max_tokens: 0 asks for no answer", r"n: with max_tokens 0", r"best_of: only the value of n", r"top_logprobs: needs logprobs",
    r"prompts x n: more than", r"tool_choice: .* (is none of the tools|needs tools|cannot be forced with)", r"tool_choice: the name is over",
    r"background: needs store", r"instruction: needs texts, not token ids", r"input: has no message",
    # the model's: its vocabulary, context and size
    r"'.*' is not a token id", r"the prompt has no tokens", r"maximum context length", r"no fill-in-the-middle tokens", r"dimensions: \d+, this",
    r"(\]|input): it has no tokens", r"texts for \d+: 1 to", r"truncate_prompt_tokens: -?\d+; what stands",
    # characters are counted there, bytes here; single precision
    r"(stop|stop_sequences|tools\[\d+\]): (a string of \d+ bytes|needs a function with a name)", r"minimum: must be below 0", r"the name is no name",
    # what cannot be compiled, or is given twice
    r"^(response_format|text\.format|output_config|structured_outputs|guided_\w+|grammar|json_schema|tools): ",
    # ids of what is not there
    r"there is no (saved )?session", r"sessions are saved in a directory", r"cache_salt: must be at most",
    r"no (kept response|live request) has", r"no request (can be resumed|of the id)", r"is not kept here", r"no response with the id", r"the model '(.|\n)*' does not exist",
]


def judge(case, response, is_positive):
    """What schemathesis checks; and what it cannot know: only statuses that are listed, a 5xx only where a deadline was asked for, and a refusal
    of what fits the schema only for one of those reasons."""
    status, body = response.status_code, case.body
    if status == 504:
        assert isinstance(body, dict) and body["deadline_ms"] is not None
        return
    case.validate_response(response, checks=CHECKS)
    is_cut_path = "no such path" in response.text  # an id of dots: HTTP clients take "." and ".." out of paths
    assert is_cut_path or status in (200, 400) or str(status) in case.operation.definition.raw["responses"], (status, response.text)
    if is_positive and status != 200 and not is_cut_path:
        message = response.json()["error"]["message"]
        assert any(re.search(r, message, re.S) for r in REFUSALS), (message, body)


def explore(schema, mode, examples, server):
    n = taken = 0
    session = requests.Session()
    for result in schema.get_all_operations():
        operation = result.ok()
        method = operation.method.lower()
        raw = operation.definition.raw
        has_input = method == "post" and "{id}" not in operation.path and "requestBody" in raw or raw.get("parameters")
        if operation.path in ALIASES or (mode.is_negative and not has_input):
            continue

        @settings(max_examples=examples if has_input else 1, derandomize=True, database=None, deadline=None,
                  suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case):
            nonlocal n, taken
            response = case.call(session=session, timeout=20 * SLOW)
            judge(case, response, mode.is_positive)
            n, taken = n + 1, taken + (response.status_code == 200)

        try:
            run()
        except Unsatisfiable:  # every string is an id, so that nothing is wrong there
            assert mode.is_negative and "{id}" in operation.path
    return n, taken


@pytest.fixture(scope="module")
def schema(server, doc):
    loaded = schemathesis.openapi.from_dict(copy.deepcopy(doc))
    loaded.config.update(base_url=server.url)
    return loaded


def test_requests_that_fit_are_taken(server, schema):
    n, taken = explore(schema, GenerationMode.POSITIVE, 12, server)
    assert n > 100 and taken > n / 3, (n, taken)
    assert server.call("/health")[0] == 200


def test_requests_that_do_not_fit_break_nothing(server, schema):
    n, taken = explore(schema, GenerationMode.NEGATIVE, 6, server)
    assert n > 50 and taken < n / 10, (n, taken)  # the few: switches of /tokenize count as absent, members of messages are the template's
    assert server.call("/health")[0] == 200


# --- (d) replies ---

def both(client, path, body, stream=True):
    """As a whole, then as a stream."""
    whole = client.call("post", path, body)
    return whole, client.call("post", path, {**body, "stream": True}) if stream else None


def replies_of_chat_and_completions(client):
    chat, comp = "/v1/chat/completions", "/v1/completions"
    tools = [{"type": "function", "function": FUNCTION}]
    for body in ({"messages": user(say("hi"))}, {"messages": user(say("hi é")), "logprobs": True, "top_logprobs": 2, "n": 2, "strange": 1},
                 {"messages": user(say(CALL)), "tools": tools}, {"messages": user("!forever"), "max_tokens": 3},
                 {"messages": user(say("hi")), "stream_options": {"include_usage": True}}):
        whole, _ = both(client, chat, body)
    message = client.call("post", chat, {"messages": user(say(CALL)), "tools": tools})["choices"][0]["message"]
    assert message["tool_calls"] and message["reasoning_content"]
    for body in ({"prompt": "!say hi"}, {"prompt": ["!say hi", "!say ho"], "logprobs": 2, "echo": True, "prompt_logprobs": 1},
                 {"prompt": "!say a b", "stop": ["b"]}, {"prompt": "!count 9", "max_tokens": 2, "stream_options": {"include_usage": True}}):
        both(client, comp, body)
    for path in (chat, comp):
        failed = {"messages": user("!fail 2")} if path == chat else {"prompt": "!fail 2"}
        client.call("post", path, failed, want=500)
        assert "error" in client.call("post", path, {**failed, "stream": True})[-1]
        client.call("post", path, {"messages": 5, "prompt": 5}, want=400)


def replies_of_responses(client):
    path, tools = "/v1/responses", [{"type": "function", **FUNCTION}, {"type": "custom", "name": "patch"}]
    bodies = [{"input": say("hi")}, {"input": say(CALL), "tools": tools, "metadata": {"a": "b"}, "text": {"verbosity": "low"}},
              {"input": say(CALL), "tools": tools, "reasoning": {"summary": "auto", "effort": "low"}},
              {"input": say("x"), "tools": tools, "tool_choice": {"type": "function", "name": "ping"}},
              {"input": say(PATCH), "tools": tools}, {"input": "!forever", "max_output_tokens": 3},
              {"input": say("hi"), "top_logprobs": 2, "instructions": "x", "truncation": "auto", "temperature": 0.5}]
    for body in bodies:
        whole, events = both(client, path, body)
        assert client.call("get", path + "/{id}", id=whole["id"]) == whole
        assert client.call("get", path + "/{id}", id=events[-1]["response"]["id"], query="?stream=true") == events
        client.events |= {e["type"] for e in events}
    last = whole["id"]
    items = [*user("a"), {"type": "function_call", "call_id": "c", "name": "ping", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "1"},
             {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}, {"type": "item_reference", "id": whole["output"][-1]["id"]}, *user(say("hi"))]
    whole = client.call("post", path, {"input": items, "previous_response_id": last})
    listed = client.call("get", path + "/{id}/input_items", id=whole["id"], query="?limit=3&order=asc")
    assert len(listed["data"]) == 3 and listed["has_more"]
    client.call("get", path + "/{id}/input_items", id=whole["id"], query="?limit=0", want=400)
    client.call("post", path + "/input_tokens", {"input": items})
    client.call("post", path, {"input": "!fail 2"}, want=500)
    client.events |= {e["type"] for e in client.call("post", path, {"input": "!fail 2", "stream": True})}
    running = client.call("post", path, {"input": "!forever", "background": True, "ignore_eos": True})
    assert client.call("post", path + "/{id}/cancel", id=running["id"])["status"] in ("cancelled", "incomplete")
    client.events |= {e["type"] for e in client.call("get", path + "/{id}", id=running["id"], query="?stream=true")}
    client.call("post", path + "/{id}/cancel", id=last, want=400)
    client.call("delete", path + "/{id}", id=last)
    for method, tail in (("get", ""), ("get", "/input_items"), ("post", "/cancel"), ("delete", "")):
        client.call(method, path + "/{id}" + tail, id=last, want=404)
    names = set(re.findall(r"response\.[a-z_.]+", json.dumps(client.doc["components"]["schemas"]["ResponseEvent"])))
    assert names == client.events - {"error"}  # each event that is described comes


def replies_of_messages(client):
    path, tools = "/v1/messages", [{"name": "ping", "input_schema": {"type": "object"}}]
    for body in ({"messages": user(say("hi"))}, {"messages": user(say(CALL)), "tools": tools}, {"messages": user(say("a b")), "stop_sequences": ["b"]},
                 {"messages": user("!count 9"), "max_tokens": 2}):
        both(client, path, {"max_tokens": 100, **body})
    client.call("post", path + "/count_tokens", {"messages": user("hi"), "tools": tools})
    client.call("post", path, {"messages": user("hi")}, want=400)
    client.call("post", path, {"messages": user("!fail 2"), "max_tokens": 9}, want=500)
    assert client.call("post", path, {"messages": user("!fail 2"), "max_tokens": 9, "stream": True})[-1]["type"] == "error"


def replies_of_the_rest(client):
    for body in ({"input": ["a", "b"]}, {"input": [1, 2], "encoding_format": "base64", "dimensions": 3}):
        client.call("post", "/v1/embeddings", body)
    client.call("post", "/v1/embeddings", {"input": []}, want=400)
    client.call("post", "/v1/rerank", {"query": "q", "documents": ["a", {"text": "b"}], "return_documents": True})
    client.call("post", "/v1/rerank", {"query": "q", "documents": []}, want=400)
    client.call("post", "/v1/score", {"text_1": "q", "text_2": ["a", "b"]})
    client.call("post", "/v1/score", {"text_1": "q"}, want=400)
    client.call("post", "/signal", {"prompt": "x", "count": 7})
    client.call("post", "/signal", {"messages": user("x")})
    client.call("post", "/signal", {}, want=400)
    for body in ({"content": "é", "with_pieces": True}, {"prompt": "a", "return_token_strs": True}, {"messages": user("a")}):
        tokens = client.call("post", "/tokenize", body)["tokens"]
    client.call("post", "/detokenize", {"tokens": tokens})
    client.call("post", "/detokenize", {"tokens": [-1]}, want=400)
    client.call("post", "/apply-template", {"messages": user("a"), "add_generation_prompt": False})
    client.call("post", "/infill", {"input_prefix": "a"}, want=400)  # the model has no tokens for it
    model = client.call("get", "/v1/models")["data"][0]["id"]
    client.call("get", "/v1/models/{id}", id=model)
    client.call("get", "/v1/models/{id}", id="other", want=404)
    client.call("post", "/admin/cache/flush")
    for path in ("/health", "/health/live", "/metrics", "/stats", "/v1", "/openapi.json"):
        client.call("get", path)


def replies_about_sessions(client):
    path = "/admin/sessions"
    with tempfile.TemporaryDirectory() as d, script(f"--session-dir={d}") as server:
        kept = Client(server, client.doc)
        server.chat("!say hi", session_id="s")
        kept.call("post", path + "/{id}/save", id="s")
        kept.call("get", path, query="?cache_salt=a%20b")
        assert kept.call("get", path)["data"][0] == kept.call("get", path + "/{id}", id="s")
        kept.call("post", path + "/{id}/restore", id="s")
        kept.call("delete", path + "/{id}", id="s")
        for method, tail in (("get", ""), ("post", "/save"), ("post", "/restore"), ("delete", "")):
            kept.call(method, path + "/{id}" + tail, id="s", want=404)
            kept.call(method, path + "/{id}" + tail, id="a b", want=400)
    client.done |= kept.done


def replies_about_what_runs(client):
    with tempfile.TemporaryDirectory() as d, script("--generation-checkpoint=4", f"--journal-dir={d}") as server:
        body = {"messages": user("!count 9"), "stream": True, "disconnect": "resumable"}
        with server.connect() as s:
            s.sendall(request("/v1/chat/completions", body))
            _, headers, _ = Reply(s).read()
        assert headers["x-plumb-resumable"] == "true"
        again = Client(server, client.doc)
        again.call("get", "/v1/requests/{id}/stream", id=headers["x-request-id"])
        again.call("get", "/v1/requests/{id}/stream", id="other", want=404)
        client.done |= again.done
    with script("--step-us=10000") as server:
        slow = Client(server, client.doc)
        with server.connect() as s:
            s.sendall(request("/v1/chat/completions", {"messages": user("!forever"), "stream": True}, headers={"X-Request-Id": "mine"}))
            assert Reply(s).head()[0] == 200
            slow.call("delete", "/v1/requests/{id}", id="mine")
        slow.call("delete", "/v1/requests/{id}", id="mine", want=404)
        slow.call("post", "/v1/chat/completions", {"messages": user("!forever"), "deadline_ms": 100}, want=504)
        client.done |= slow.done


GROUPS = [replies_of_chat_and_completions, replies_of_responses, replies_of_messages, replies_of_the_rest, replies_about_sessions, replies_about_what_runs]


@pytest.mark.parametrize("group", GROUPS, ids=lambda f: f.__name__)
def test_replies(server, doc, group):
    group(Client(server, doc))


def test_every_reply_has_been_seen(server, doc):
    """Each kind of reply of each operation is among those."""
    client = Client(server, doc)
    for group in GROUPS:
        group(client)
    described = {(method, path, media) for (method, path), op in operations(doc).items() if path not in ALIASES
                 for media in op["responses"]["200"]["content"]}
    infill = {x for x in described if x[1] == "/infill"}  # below
    assert described - infill == client.done


def test_aliases_are_described_alike(doc):
    for alias in ALIASES:
        full = {"/health/ready": "/health", "/v1/health": "/health"}.get(alias, "/v1" + alias)
        for method, op in doc["paths"][alias].items():
            assert {**op, "operationId": 0} == {**doc["paths"][full][method], "operationId": 0}


def test_replies_of_infill():
    path = fetched_model("qwen2.5-coder-0.5b")
    with Server([PLUMB, "serve", "--model", str(path), "--port", "0", "--ctx", "512", "--no-store"]) as s:
        client = Client(s, s.call("/openapi.json")[2])
        both(client, "/infill", {"input_prefix": "def f(", "input_suffix": "return 1", "n_predict": 3, "stop": ["\n\n"]})
        client.call("get", "/v1/models")
        client.call("post", "/infill", {}, want=400)
