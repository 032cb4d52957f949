"""Random values of a JSON schema, members in declared order, with the words that such values have; and faults in their texts.

Knows the keywords that tests/golden/grammar/tools.json uses. sample() may miss what only a solver would find (a pattern beside a length);
callers ask `jsonschema` before they rely on a value."""

import json
import random
import re
import uuid

WORDS = ("the of and to in is for on with as by at from this that it be are was report server data order city river light paper user time name list "
         "value error file update meeting customer Paris München São-Paulo 東京 naïve café 😀 e.g. 42 v2.1 (draft) don't #7 50%").split()


def text(rng, lo=0, hi=None):
    n = rng.choice((1, 2, 4, 8, 20))
    out = " ".join(rng.choice(WORDS) for _ in range(n))
    if rng.random() < 0.1:
        out += rng.choice(('"quoted"', "a\\b", "two\nlines", "tab\there", "</end>"))
    while len(out) < lo:
        out += " " + rng.choice(WORDS)
    return out[:hi] if hi is not None else out


# --- patterns ---


def from_set(rng, items):
    kinds = [(str(op), arg) for op, arg in items]
    if kinds and kinds[0][0] == "NEGATE":
        return rng.choice("xyz09 -_é")
    op, arg = rng.choice(kinds)
    if op == "RANGE":
        return chr(rng.randint(*arg))
    if op == "LITERAL":
        return chr(arg)
    return rng.choice({"CATEGORY_DIGIT": "0123456789", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "abz_09"}.get(str(arg), "x"))


def from_parsed(rng, parsed):
    out = ""
    for op, arg in parsed:
        name = str(op)
        if name == "LITERAL":
            out += chr(arg)
        elif name == "IN":
            out += from_set(rng, arg)
        elif name == "ANY":
            out += rng.choice("abc xyz")
        elif name == "NOT_LITERAL":
            out += "x" if arg != ord("x") else "y"
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            lo, hi, inner = arg
            out += "".join(from_parsed(rng, inner) for _ in range(rng.randint(lo, min(int(hi), lo + 6))))
        elif name == "SUBPATTERN":
            out += from_parsed(rng, arg[3])
        elif name == "BRANCH":
            out += from_parsed(rng, rng.choice(arg[1]))
    return out


def from_pattern(rng, pattern):
    return from_parsed(rng, re._parser.parse(pattern))


# --- formats ---


def label(rng):
    return rng.choice(("example", "host-1", "a", "mail", "x9"))


def from_format(rng, name):
    date = f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}{rng.choice(('', '.5', '.123456'))}{rng.choice(('Z', '+02:00', '-11:30'))}"
    host = ".".join(label(rng) for _ in range(rng.randint(1, 3)))
    return {
        "date": date, "time": time, "date-time": f"{date}T{time}", "duration": rng.choice(("P3D", "PT5M", "P1Y2M", "P2W", "PT1H30M5S")),
        "uuid": str(uuid.UUID(int=rng.getrandbits(128))), "email": f"{label(rng)}.x@{host}.org", "hostname": host,
        "ipv4": ".".join(str(rng.randint(0, 255)) for _ in range(4)),
        "ipv6": rng.choice(("::", "::1", "fe80::1:2", "2001:db8:0:0:1:0:0:1", "1:2:3:4:5:6:7:8")), "uri": f"https://{host}/p/{rng.randint(1, 99)}?q=a%20b#x",
    }.get(name)


# --- values ---


def number(rng, s, whole):
    lo = s.get("minimum", s.get("exclusiveMinimum", -1000))
    hi = s.get("maximum", s.get("exclusiveMaximum", lo + 2000 if lo > -1000 else 1000))
    step = s.get("multipleOf")
    for _ in range(50):
        v = rng.randint(int(lo // 1), int(hi // 1)) if whole or step or rng.random() < 0.3 else round(rng.uniform(lo, hi), rng.randint(1, 6))
        if step:
            v = int(v // step) * step
        if lo <= v <= hi and v != s.get("exclusiveMinimum") and v != s.get("exclusiveMaximum"):
            return v
    return lo


def resolve(ref, root):
    for part in ref[2:].split("/") if len(ref) > 1 else []:
        part = part.replace("~1", "/").replace("~0", "~")
        root = root[int(part)] if isinstance(root, list) else root[part]
    return root


def string(rng, s):
    if "pattern" in s:
        return from_pattern(rng, s["pattern"])
    return from_format(rng, s.get("format")) or text(rng, s.get("minLength", 0), s.get("maxLength"))


def array(rng, s, root, depth):
    prefix = s.get("prefixItems", s["items"] if isinstance(s.get("items"), list) else [])
    items = s.get("items", {}) if not isinstance(s.get("items"), list) else s.get("additionalItems", {})
    lo = s.get("minItems", 0)
    hi = s.get("maxItems", max(lo, 4))
    n = max(lo, min(hi, lo if depth > 6 else rng.randint(lo, min(hi, lo + 3)) or len(prefix)))
    if items is False:
        n = min(n, len(prefix))
    return [sample(rng, prefix[i] if i < len(prefix) else items, root, depth + 1) for i in range(n)]


def members(rng, s, root, depth, out):
    required = set(s.get("required", ()))
    chance = rng.choice((0, 0.3, 0.7, 1)) if depth < 6 else 0
    for key, child in s.get("properties", {}).items():
        if key in required or rng.random() < chance:
            out[key] = sample(rng, child, root, depth + 1)
    for key in sorted(required - set(s.get("properties", {}))):
        out[key] = sample(rng, {}, root, depth + 1)
    more = s.get("additionalProperties", not s.get("properties") and "patternProperties" not in s)
    for pattern, child in s.get("patternProperties", {}).items():
        if rng.random() < 0.7:
            out[from_pattern(rng, pattern)] = sample(rng, child, root, depth + 1)
    if more is not False and rng.random() < 0.7:
        for _ in range(rng.randint(1, 3)):
            out.setdefault(f"{rng.choice(('key', 'X-Header', 'col'))}{rng.randint(0, 99)}", sample(rng, {} if more is True else more, root, depth + 1))
    return out


def of_type(rng, kind, s, root, depth):
    if kind == "string":
        return string(rng, s)
    if kind in ("integer", "number"):
        return number(rng, s, kind == "integer")
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        return array(rng, s, root, depth)
    return members(rng, s, root, depth, {})


def sample(rng, s, root, depth=0):
    if s is True or s == {}:
        return rng.choice(("any", 7, -0.5, True, None, [1, "x"], {"k": "v"}))
    if "$ref" in s:
        return sample(rng, resolve(s["$ref"], root), root, depth + 1)
    if "const" in s:
        return s["const"]
    if "enum" in s:
        return rng.choice(s["enum"])
    for word in ("anyOf", "oneOf"):
        if word in s:
            branches = s[word]
            return sample(rng, branches[-1] if depth > 8 else rng.choice(branches), root, depth + 1)
    if "allOf" in s:
        parts = [sample(rng, {**x}, root, depth) for x in s["allOf"]]
        return {k: v for p in parts for k, v in p.items()} if all(isinstance(p, dict) for p in parts) else parts[0]
    kind = s.get("type", "object" if "properties" in s else "string")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    return of_type(rng, kind, s, root, depth)


def dump(rng, value):
    """As models write JSON."""
    style = rng.randint(0, 3)
    if style == 0:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if style == 1:
        return json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=style == 2)


def mutate(rng, text):
    """A text with a fault or two: most are none of the schema's any more."""
    for _ in range(rng.randint(1, 2)):
        if not text:
            return text
        i = rng.randrange(len(text))
        kind = rng.randint(0, 5)
        if kind == 0:
            text = text[:i] + text[i + 1:]
        elif kind == 1:
            text = text[:i] + rng.choice('{}[]",:0159-.aetn \\') + text[i:]
        elif kind == 2:
            text = text[:i] + rng.choice('{}[]",:0159-.aetn \\') + text[i + 1:]
        elif kind == 3:
            j = rng.randrange(len(text))
            text = text[:min(i, j)] + text[max(i, j):]
        elif kind == 4:
            text = text.replace(rng.choice(("true", "null", "1", '"')), rng.choice(("false", "7", "{}", "[]")), 1)
        else:
            text = text[:i] + text[max(0, i - 5):]
    return text


def random_for(name, seed=0):
    return random.Random(f"{name}/{seed}")
