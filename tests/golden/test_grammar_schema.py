"""JSON schemas as grammars: the JSON-Schema-Test-Suite, and the schemas of function tools (tests/golden/grammar), by `jsonschema`."""

import collections
import json
import os
import pathlib
import sys

import jsonschema
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import schema_samples  # noqa: E402
from grammar_server import GOLDEN, GrammarServer, tools  # noqa: E402

WEAK = {"uniqueItems", "oneOf", "format"}  # keywords that say more than is enforced: named in the notes
WALKS = int(os.environ.get("WALKS", "50"))


@pytest.fixture(scope="module")
def server():
    with GrammarServer() as s:
        yield s


# --- the suite ---


def suite():
    return json.loads((GOLDEN / "suite.json").read_text())["groups"]


def reason(error):
    """Without the path before it and the texts of one schema in it."""
    return error.split(": ", 1)[-1] if error.startswith("#") else error


def test_suite_accepts_nothing_invalid(server):
    refused, wrong = collections.defaultdict(list), []
    n_valid = n_accepted = n_groups = 0
    for group in suite():
        name = f"{group['file']}: {group['group']}"
        answer = server.ask(json.dumps(group["schema"]), texts=[json.dumps(t[0]) for t in group["tests"]])
        if "error" in answer:
            assert answer["code"] in ("invalid", "unsupported", "full"), (name, answer)
            refused[reason(answer["error"])].append(name)
            continue
        n_groups += 1
        weak = set(filter(None, answer["notes"].split(",")))
        for (value, is_valid), accepts in zip(group["tests"], answer["accepts"]):
            n_valid += is_valid
            n_accepted += is_valid and accepts
            if accepts and not is_valid and not weak & WEAK:
                wrong.append((name, value))
    lines = [f"{n_groups} groups of {len(suite())} compile; of their {n_valid} valid values {n_accepted} are accepted", ""]
    for why, names in sorted(refused.items(), key=lambda x: (-len(x[1]), x[0])):
        lines += [f"{len(names)} {why}", *(f"    {n}" for n in names)]
    text = "\n".join(lines) + "\n"
    golden = GOLDEN / "suite.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert not wrong, wrong[:10]
    assert text == golden.read_text(), "what compiles has changed: WRITE_GOLDEN=1 writes tests/golden/grammar/suite.txt"


# --- tools ---


def validator(schema):
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def has_plain_strings(text):
    """Constants, patterns and formats are written in their plain spelling alone."""
    return "\\u" not in text


def test_tools_values_are_accepted(server):
    missed = []
    n = 0
    for tool in tools():
        schema = tool["parameters"]
        rng = schema_samples.random_for(tool["name"])
        valid = validator(schema)
        values = [schema_samples.sample(rng, schema, schema) for _ in range(20)]
        texts = [t for t in (schema_samples.dump(rng, v) for v in values if valid.is_valid(v)) if has_plain_strings(t)]
        answer = server.ask(json.dumps(schema), texts=texts)
        assert "error" not in answer, (tool["name"], answer)
        missed += [(tool["name"], t) for t, ok in zip(texts, answer["accepts"]) if not ok]
        n += len(texts)
    assert n > 2500
    assert not missed, (len(missed), missed[:5])


def test_tools_faults_are_refused(server):
    wrong = []
    n = 0
    for tool in tools():
        schema = tool["parameters"]
        rng = schema_samples.random_for(tool["name"], 1)
        valid = validator(schema)
        texts = [schema_samples.mutate(rng, schema_samples.dump(rng, schema_samples.sample(rng, schema, schema))) for _ in range(40)]
        for text, accepts in zip(texts, server.ask(json.dumps(schema), texts=texts)["accepts"]):
            n += 1
            try:
                is_valid = valid.is_valid(json.loads(text))
            except ValueError:
                is_valid = False
            if accepts and not is_valid:
                wrong.append((tool["name"], text))
    assert n > 8000
    assert not wrong, (len(wrong), wrong[:5])


# --- walks ---


class Coverage:
    """Branches of a schema that values have taken: values of enum, alternatives, optional properties there and not there."""

    def __init__(self, schema):
        self.schema, self.seen, self.wanted = schema, set(), {}
        self.plan(schema, "#", set())

    def plan(self, s, path, above):
        if not isinstance(s, dict) or id(s) in above:
            return
        above = above | {id(s)}
        if "$ref" in s:
            self.plan(schema_samples.resolve(s["$ref"], self.schema), s["$ref"], above)
        for i in range(len(s.get("enum", ()))):
            self.wanted[path, "enum", i] = s["enum"][i]
        for word in ("anyOf", "oneOf", "allOf"):
            for i, branch in enumerate(s.get(word, ())):
                if word != "allOf":
                    self.wanted[path, word, i] = None
                self.plan(branch, f"{path}/{word}/{i}", above)
        for key, child in s.get("properties", {}).items():
            self.wanted[path, "with", key] = None
            if key not in s.get("required", ()):
                self.wanted[path, "without", key] = None
            self.plan(child, f"{path}/{key}", above)
        for word in ("items", "additionalProperties"):
            self.plan(s.get(word), f"{path}/{word}", above)
        for word in ("prefixItems", "items"):
            for i, child in enumerate(s[word] if isinstance(s.get(word), list) else ()):
                self.plan(child, f"{path}/{word}/{i}", above)

    def take(self, s, path, value, depth=0):
        if not isinstance(s, dict) or depth > 60:
            return
        if "$ref" in s:
            self.take(schema_samples.resolve(s["$ref"], self.schema), s["$ref"], value, depth + 1)
        for i, one in enumerate(s.get("enum", ())):
            if one == value and isinstance(one, bool) == isinstance(value, bool):
                self.seen.add((path, "enum", i))
        for word in ("anyOf", "oneOf", "allOf"):
            for i, branch in enumerate(s.get(word, ())):
                if jsonschema.Draft202012Validator({**branch, **{k: v for k, v in self.schema.items() if k in ("$defs", "definitions")}}).is_valid(value):
                    self.seen.add((path, word, i))
                    self.take(branch, f"{path}/{word}/{i}", value, depth + 1)
        if isinstance(value, dict):
            for key, child in s.get("properties", {}).items():
                self.seen.add((path, "with" if key in value else "without", key))
                if key in value:
                    self.take(child, f"{path}/{key}", value[key], depth + 1)
            for key in value:
                if key not in s.get("properties", {}):
                    self.take(s.get("additionalProperties"), f"{path}/additionalProperties", value[key], depth + 1)
        if isinstance(value, list):
            prefix = s.get("prefixItems") or (s["items"] if isinstance(s.get("items"), list) else [])
            word = "prefixItems" if "prefixItems" in s else "items"
            for i, item in enumerate(value):
                if i < len(prefix):
                    self.take(prefix[i], f"{path}/{word}/{i}", item, depth + 1)
                elif isinstance(s.get("items"), dict):
                    self.take(s["items"], f"{path}/items", item, depth + 1)

    def missing(self):
        return sorted(map(str, set(self.wanted) - self.seen))


def test_walks_are_valid_and_take_every_branch(server):
    n = unfinished = moves = taken = 0
    missing = []
    for tool in tools():
        schema = tool["parameters"]
        valid, coverage = validator(schema), Coverage(schema)
        for round_ in range(12):
            answer = server.ask(json.dumps(schema), walks=WALKS if round_ == 0 else 200, seed=round_ + 1, length=400)
            for text in answer["walks"]:
                if text is None:
                    unfinished += 1
                    continue
                value = json.loads(text)
                error = jsonschema.exceptions.best_match(valid.iter_errors(value))
                assert error is None, (tool["name"], text, error.message)
                coverage.take(schema, "#", value)
                n += 1
            if not coverage.missing():
                break
        missing += [f"{tool['name']}: {m}" for m in coverage.missing()]
        moves += answer["moves"]
        taken += answer["taken"]
    print(f"{n} walks, {unfinished} without an end, {taken} of {moves} moves of the automata in the last round", file=sys.stderr)
    assert n >= 10000 * WALKS // 50
    assert unfinished < n // 100
    assert not missing, (len(missing), missing[:10])
