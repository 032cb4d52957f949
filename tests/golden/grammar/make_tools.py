#!/usr/bin/env python3
"""Writes tools.json: the parameters of 200 function tools as people write them, one a line.

The table is short-hand: a trailing ! makes a property required. s string, i integer, n number, b boolean, e enum (a|b|c), [x] array,
dict object, | in a tuple anyOf, x? nullable; formats by their names; bounds as lo..hi behind a blank (lengths of strings, values of numbers,
counts of arrays); /regex/ a pattern. Each tool then gets a style in turn: strict (closed, all said), loose (no additionalProperties), with
$defs, as pydantic and zod write them."""

import json
import pathlib

FORMATS = {"date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6", "uri"}


def number(text):
    return float(text) if "." in text else int(text)


def bounds(spec, low, high, out):
    lo, _, hi = spec.partition("..")
    if lo:
        out[low] = number(lo)
    if hi:
        out[high] = number(hi)


def schema(spec):
    if isinstance(spec, dict) and (not spec or "enum" in spec or "anyOf" in spec or spec.get("type") in ("object", "array")):
        return json.loads(json.dumps(spec))  # a schema as it is
    if isinstance(spec, dict):
        return obj(spec)
    if isinstance(spec, tuple):
        return {"anyOf": [schema(x) for x in spec]}
    if isinstance(spec, list):
        out = {"type": "array", "items": schema(spec[0])}
        if len(spec) > 1:
            bounds(spec[1], "minItems", "maxItems", out)
        return out
    head, _, rest = spec.partition(" ")
    nullable = head.endswith("?")
    head = head.rstrip("?")
    if head == "e":
        out = {"type": "string", "enum": rest.split("|")}
        if nullable:
            out = {"anyOf": [out, {"type": "null"}]}
        return out
    if head == "const":
        return {"const": rest}
    if head == "ref":
        return {"$ref": "#/$defs/" + rest}
    if head.startswith("/"):
        return {"type": "string", "pattern": spec[1:-1]}
    if head in FORMATS:
        out = {"type": "string", "format": head}
    else:
        out = {"type": {"s": "string", "i": "integer", "n": "number", "b": "boolean", "null": "null", "o": "object"}[head]}
        if rest.startswith("%"):
            out["multipleOf"] = number(rest[1:])
        elif rest:
            low, high = ("minLength", "maxLength") if head == "s" else ("minimum", "maximum")
            bounds(rest, low, high, out)
    if nullable:
        out["type"] = [out["type"], "null"]
    return out


def obj(props):
    out = {"type": "object", "properties": {}, "required": []}
    for key, spec in props.items():
        required = key.endswith("!")
        name = key.rstrip("!")
        if required:
            out["required"].append(name)
        out["properties"][name] = schema(spec)
    return out


def close(node):
    """Every object closed, as strict tools want it."""
    if isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
        for child in list(node.values()):
            close(child)
    elif isinstance(node, list):
        for child in node:
            close(child)
    return node


def described(node, name="parameters"):
    """Titles, descriptions and defaults, as generators of schemas add them: nothing that says what fits."""
    for key, child in node.get("properties", {}).items():
        described(child, key)
        child.setdefault("description", f"The {key.replace('_', ' ')} of the {name.replace('_', ' ')}; \"as given\", in plain text.")
        child.setdefault("title", key.replace("_", " ").title())
    return node


def styled(i, parameters):
    if i % 5 == 0:
        close(parameters)
    if i % 3 == 0:
        described(parameters)
    if i % 7 == 0:
        parameters["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    if i % 10 == 9 and not parameters.get("required"):
        parameters.pop("required", None)
    return parameters


PLACE = {"lat!": "n -90..90", "lon!": "n -180..180"}
MONEY = {"amount!": "n 0..", "currency!": "e EUR|USD|GBP|JPY|CHF"}
WHEN = {"start!": "date-time", "end": "date-time", "time_zone": "s"}
PERSON = {"name!": "s 1..80", "email": "email", "phone": "/^\\+?[0-9 ]{5,20}$/"}
PAGE = {"limit": "i 1..100", "cursor": "s?"}
SORT = ("e created|updated|name", {"by!": "e created|updated|name", "order!": "e asc|desc"})

TOOLS = {
    # files and code
    "read_file": {"path!": "s 1..", "offset": "i 0..", "limit": "i 1..2000"},
    "write_file": {"path!": "s", "content!": "s", "mode": "/^0[0-7]{3}$/"},
    "edit_file": {"path!": "s", "edits!": [{"old!": "s", "new!": "s", "all": "b"}, "1..20"]},
    "list_directory": {"path!": "s", "recursive": "b", "depth": "i? 1..10", "ignore": ["s"]},
    "glob": {"pattern!": "s", "path": "s"},
    "grep": {"pattern!": "s", "path": "s", "include": "s", "-i": "b", "-C": "i 0..20", "output_mode": "e content|files_with_matches|count"},
    "run_command": {"command!": "s", "timeout_ms": "i 1..600000", "description": "s 5..120", "background": "b"},
    "kill_shell": {"shell_id!": "s"},
    "apply_patch": {"patch!": "s", "strip": "i 0..3", "dry_run": "b"},
    "git_commit": {"message!": "s 1..500", "files": ["s"], "amend": "b", "author": {"name!": "s", "email!": "email"}},
    "git_log": {"branch": "s", "max_count": "i 1..500", "since": "date", "until": "date", "author": "s?"},
    "git_diff": {"base!": "/^[0-9a-f]{7,40}$/", "head": "/^[0-9a-f]{7,40}$/", "paths": ["s"], "stat_only": "b"},
    "create_branch": {"name!": "/^[a-z][a-z0-9/_-]*$/", "from": "s"},
    "open_pull_request": {"title!": "s 1..256", "body": "s", "base!": "s", "head!": "s", "draft": "b", "labels": ["e bug|feature|docs|chore", "0..4"]},
    "review_comment": {"file!": "s", "line!": "i 1..", "side": "e LEFT|RIGHT", "body!": "s", "suggestion": "s?"},
    "run_tests": {"targets!": ["s", "1.."], "parallel": "i 1..64", "filter": "s?", "env": {"type": "object", "additionalProperties": {"type": "string"}}},
    "lint": {"paths!": ["s", "1..50"], "fix": "b", "severity": "e info|warning|error"},
    "rename_symbol": {"file!": "s", "position!": {"line!": "i 0..", "character!": "i 0.."}, "new_name!": "/^[A-Za-z_][A-Za-z0-9_]*$/"},
    "find_references": {"symbol!": "s", "scope": "e file|package|workspace", "include_declaration": "b"},
    "notebook_edit": {"notebook_path!": "s", "cell_id": "s?", "new_source!": "s", "cell_type": "e code|markdown", "edit_mode": "e replace|insert|delete"},
    "todo_write": {"todos!": [{"content!": "s 1..", "status!": "e pending|in_progress|completed", "activeForm!": "s 1.."}]},
    "format_code": {"language!": "e c|python|go|rust|typescript", "code!": "s", "width": "i 40..200"},
    "compile": {"sources!": ["s", "1.."], "flags": ["s"], "standard": "e c99|c11|c17|c23", "optimise": "i 0..3"},
    "debug_break": {"file!": "s", "line!": "i 1..", "condition": "s?", "hit_count": "i? 1.."},
    "profile": {"pid!": "i 1..", "seconds": "n 0.1..300", "kind": "e cpu|heap|lock", "output": "uri"},
    # web and search
    "web_search": {"query!": "s 1..400", "num_results": "i 1..20", "safe": "b", "site": "hostname"},
    "fetch_url": {"url!": "uri", "prompt": "s", "max_chars": "i 100..100000"},
    "screenshot": {"url!": "uri", "viewport": {"width!": "i 100..4000", "height!": "i 100..4000"}, "full_page": "b", "format": "e png|jpeg|webp"},
    "click": {"target!": ({"selector!": "s"}, {"x!": "i 0..10000", "y!": "i 0..10000"}), "button": "e left|middle|right", "count": "i 1..3"},
    "type_text": {"selector!": "s", "text!": "s", "submit": "b", "delay_ms": "i 0..1000"},
    "scroll": {"direction!": "e up|down|left|right", "amount": "i 1..50", "at": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "items": False, "minItems": 2}},
    "wait_for": {"condition!": ({"text!": "s"}, {"selector!": "s", "state": "e visible|hidden|attached"}, {"seconds!": "n 0..60"})},
    "http_request": {"method!": "e GET|POST|PUT|PATCH|DELETE|HEAD", "url!": "uri", "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                     "body": ("s", "o", "null"), "timeout": "n 0..120"},
    "dns_lookup": {"name!": "hostname", "type": "e A|AAAA|MX|TXT|NS|CNAME", "server": ("ipv4", "ipv6")},
    "ping": {"host!": ("hostname", "ipv4", "ipv6"), "count": "i 1..10", "interval": "n 0.2..5"},
    "whois": {"domain!": "hostname"},
    "news_search": {"topics!": ["s 1..60", "1..5"], "from": "date", "to": "date", "language": "/^[a-z]{2}(-[A-Z]{2})?$/", "sort": "e relevance|newest"},
    "image_search": {"query!": "s", "size": "e small|medium|large", "colour": "e? red|green|blue|grey", "licence": "e any|free"},
    "translate": {"text!": "s", "source": "/^[a-z]{2}$/", "target!": "/^[a-z]{2}$/", "formality": "e default|more|less", "glossary": "uuid"},
    "summarise": {"text!": "s", "sentences": "i 1..10", "style": "e plain|bullets|headline"},
    "rss_add": {"feed!": "uri", "folder": "s?", "interval_minutes": "i %15"},
    "sitemap": {"root!": "uri", "depth": "i 0..5", "exclude": ["s"]},
    "robots_check": {"url!": "uri", "agent": "s 1..100"},
    "short_link": {"url!": "uri", "slug": "/^[a-z0-9-]{3,30}$/", "expires": "date-time"},
    "archive_page": {"url!": "uri", "at": "e now|latest"},
    # calendar, mail, messages
    "create_event": {"title!": "s 1..200", "when!": WHEN, "attendees": [PERSON, "0..50"], "location": "s?", "reminders": [{"minutes!": "i 0..40320", "method!": "e popup|email"}]},
    "find_slots": {"people!": ["email", "1..20"], "duration_minutes!": "i %15", "between!": WHEN, "working_hours_only": "b"},
    "cancel_event": {"id!": "uuid", "notify": "b", "reason": "s?"},
    "move_event": {"id!": "uuid", "to!": "date-time", "keep_duration": "b"},
    "set_reminder": {"text!": "s", "at!": ("date-time", {"in_minutes!": "i 1..10080"})},
    "set_alarm": {"time!": "time", "days": ["e mon|tue|wed|thu|fri|sat|sun", "0..7"], "label": "s"},
    "set_timer": {"duration!": "duration", "name": "s"},
    "send_email": {"to!": ["email", "1.."], "cc": ["email"], "bcc": ["email"], "subject!": "s 1..250", "body!": "s", "attachments": [{"name!": "s", "url!": "uri"}]},
    "search_mail": {"query!": "s", "folder": "e inbox|sent|archive|spam", "unread": "b?", "after": "date", "before": "date", **PAGE},
    "label_mail": {"ids!": ["uuid", "1..100"], "add": ["s"], "remove": ["s"]},
    "draft_reply": {"message_id!": "s", "tone": "e formal|friendly|short", "points!": ["s", "1..10"]},
    "send_sms": {"to!": "/^\\+[1-9][0-9]{6,14}$/", "text!": "s 1..1600"},
    "post_message": {"channel!": "/^[#@][a-z0-9_-]{1,80}$/", "text!": "s", "thread": "s?", "blocks": [({"type!": "const text", "text!": "s"}, {"type!": "const image", "url!": "uri", "alt": "s"},
                                                                                                {"type!": "const divider"})]},
    "create_channel": {"name!": "/^[a-z0-9_-]{1,80}$/", "private": "b", "members": ["s"], "topic": "s 0..250"},
    "set_status": {"emoji": "s", "text!": "s 0..100", "until": "date-time"},
    "schedule_call": {"with!": [PERSON, "1..10"], "when!": WHEN, "video": "b", "dial_in": "b"},
    "add_contact": {"contact!": PERSON, "groups": ["s"], "birthday": "date", "address": {"street!": "s", "city!": "s", "zip!": "/^[0-9]{4,5}$/", "country!": "/^[A-Z]{2}$/"}},
    "poll": {"question!": "s 1..300", "options!": ["s 1..100", "2..10"], "multiple": "b", "closes": "date-time"},
    "out_of_office": {"from!": "date", "to!": "date", "message!": "s", "external": "b"},
    "read_calendar": {"calendar": "s", "day!": "date", "include_declined": "b"},
    "invite": {"event!": "uuid", "people!": [({"email!": "email"}, {"user_id!": "uuid"}), "1..30"], "note": "s?"},
    "transcribe_call": {"recording!": "uri", "speakers": "i? 1..20", "language": "e auto|en|de|fr|es"},
    # places, travel, weather
    "get_weather": {"location!": "s", "unit": "e celsius|fahrenheit", "days": "i 1..14"},
    "forecast": {"at!": PLACE, "hours": "i 1..240", "fields": ["e temperature|wind|rain|snow|pressure", "1..5"]},
    "air_quality": {"place!": ("s", PLACE), "pollutants": ["e pm25|pm10|o3|no2"]},
    "geocode": {"address!": "s", "country": "/^[A-Z]{2}$/", "limit": "i 1..10"},
    "reverse_geocode": {"point!": PLACE, "language": "s 2..5"},
    "route": {"stops!": [("s", PLACE), "2..25"], "mode": "e car|bike|foot|transit", "avoid": ["e tolls|ferries|motorways"], "depart": "date-time"},
    "distance_matrix": {"origins!": [PLACE, "1..25"], "destinations!": [PLACE, "1..25"]},
    "search_flights": {"from!": "/^[A-Z]{3}$/", "to!": "/^[A-Z]{3}$/", "depart!": "date", "return": "date", "passengers": {"adults!": "i 1..9", "children": "i 0..8", "infants": "i 0..4"},
                       "cabin": "e economy|premium|business|first", "max_stops": "i 0..3"},
    "book_flight": {"offer_id!": "s", "travellers!": [{"first!": "s", "last!": "s", "born!": "date", "passport": {"number!": "/^[A-Z0-9]{6,9}$/", "expires!": "date", "country!": "/^[A-Z]{3}$/"}}, "1..9"],
                    "payment!": ({"kind!": "const card", "token!": "s"}, {"kind!": "const invoice", "po!": "s"})},
    "search_hotels": {"city!": "s", "check_in!": "date", "check_out!": "date", "guests": "i 1..12", "stars": ["i 1..5"], "price": {"min": "n 0..", "max": "n 0.."}, "amenities": ["e wifi|pool|parking|gym|breakfast"]},
    "book_table": {"restaurant!": "s", "at!": "date-time", "people!": "i 1..20", "notes": "s?", "allergies": ["s"]},
    "train_times": {"from!": "s", "to!": "s", "when": "date-time", "arrive_by": "b"},
    "rent_car": {"pick_up!": {"place!": "s", "at!": "date-time"}, "drop_off!": {"place!": "s", "at!": "date-time"}, "class": "e small|medium|large|van", "driver_age": "i 18..99"},
    "nearby": {"point!": PLACE, "radius_m!": "i 1..50000", "kinds": ["e cafe|atm|pharmacy|fuel|parking", "1.."], "open_now": "b"},
    "track_parcel": {"carrier": "e dhl|ups|fedex|post", "number!": "/^[A-Z0-9]{8,30}$/"},
    "visa_check": {"nationality!": "/^[A-Z]{2}$/", "destination!": "/^[A-Z]{2}$/", "days": "i 1..365"},
    "currency_convert": {"amount!": "n 0..", "from!": "/^[A-Z]{3}$/", "to!": "/^[A-Z]{3}$/", "on": "date"},
    "sun_times": {"at!": PLACE, "date": "date"},
    "tides": {"station!": "s", "from!": "date", "days": "i 1..30"},
    "elevation": {"path!": [PLACE, "1..512"], "samples": "i 2..512"},
    "time_in": {"zone!": "/^[A-Z][A-Za-z_]+/[A-Z][A-Za-z_]+$/", "at": "date-time"},
    "packing_list": {"trip!": {"where!": "s", "nights!": "i 1..60", "activities": ["s"]}, "people": [{"age!": "i 0..110"}]},
    # shop and money
    "search_products": {"query!": "s", "filters": {"brand": ["s"], "price": {"min": "n 0..", "max": "n 0.."}, "rating": "n 0..5", "in_stock": "b"}, "sort": SORT, **PAGE},
    "add_to_cart": {"sku!": "/^[A-Z]{2,4}-[0-9]{4,8}$/", "quantity!": "i 1..99", "options": {"type": "object", "additionalProperties": {"type": "string"}}},
    "checkout": {"cart!": "uuid", "ship_to!": "ref Address", "bill_to": "ref Address", "coupon": "/^[A-Z0-9]{4,12}$/", "gift": {"wrap!": "b", "note": "s 0..300"}},
    "refund": {"order!": "uuid", "items": [{"sku!": "s", "quantity!": "i 1.."}], "reason!": "e damaged|wrong|late|other", "amount": MONEY},
    "invoice": {"customer!": "s", "lines!": [{"text!": "s", "quantity!": "n 0..", "price!": MONEY, "vat": "n 0..100"}, "1..200"], "due": "date", "notes": "s?"},
    "transfer_money": {"from!": "/^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$/", "to!": "/^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$/", "amount!": MONEY, "reference": "s 0..140", "on": "date"},
    "list_transactions": {"account!": "s", "from": "date", "to": "date", "kind": "e debit|credit|all", "min": "n", "max": "n", **PAGE},
    "set_budget": {"category!": "e food|rent|travel|fun|other", "monthly!": "n 0..100000", "alert_at": "n 0..1"},
    "stock_quote": {"symbol!": "/^[A-Z]{1,5}(\\.[A-Z]{1,2})?$/", "fields": ["e price|volume|change|cap"]},
    "place_order": {"symbol!": "s 1..10", "side!": "e buy|sell", "quantity!": "i 1..1000000", "type!": ({"kind!": "const market"}, {"kind!": "const limit", "price!": "n 0.."}, {"kind!": "const stop", "trigger!": "n 0.."}),
                    "good_for": "e day|gtc|ioc"},
    "loan_rate": {"principal!": "n 1..", "years!": "i 1..40", "rate!": "n 0..30", "kind": "e fixed|variable"},
    "tax_estimate": {"income!": "n 0..", "country!": "/^[A-Z]{2}$/", "year": "i 2000..2100", "dependents": "i 0..20", "deductions": [{"kind!": "s", "amount!": "n 0.."}]},
    "split_bill": {"total!": MONEY, "people!": [{"name!": "s", "share": "n 0..1"}, "2..50"], "tip_percent": "n 0..50"},
    "price_alert": {"product!": "s", "below!": "n 0..", "channel": "e email|sms|push"},
    "compare_prices": {"ean!": "/^[0-9]{13}$/", "shops": ["s"], "condition": "e new|used|any"},
    "gift_card": {"value!": "i %5", "to!": "email", "message": "s 0..500", "design": "i 1..12"},
    "subscribe": {"plan!": "e free|pro|team", "seats": "i 1..10000", "billing": "e monthly|yearly", "trial": "b"},
    "expense": {"date!": "date", "amount!": MONEY, "category!": "s", "receipt": "uri", "billable": "b", "project": "s?"},
    "payslip": {"employee!": "uuid", "month!": "/^20[0-9]{2}-(0[1-9]|1[0-2])$/"},
    "crypto_price": {"coin!": "e btc|eth|sol", "fiat": "e usd|eur", "at": "date-time"},
    "inventory_adjust": {"sku!": "s", "delta!": "i -10000..10000", "warehouse!": "e A|B|C", "why": "s"},
    "warranty": {"serial!": "/^[0-9A-F]{12}$/", "bought": "date"},
    # data and databases
    "sql_query": {"query!": "s 1..", "params": [("s", "n", "b", "null")], "timeout_s": "i 1..300", "read_only": "b"},
    "list_tables": {"schema": "s", "like": "s"},
    "insert_rows": {"table!": "/^[a-z_][a-z0-9_]*$/", "rows!": [{"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}, "1..1000"], "on_conflict": "e error|ignore|update"},
    "create_index": {"table!": "s", "columns!": [("s", {"name!": "s", "order!": "e asc|desc"}), "1..8"], "unique": "b", "where": "s?"},
    "filter_data": {"where!": "ref Filter", "limit": "i 1.."},
    "aggregate": {"by!": ["s", "1..5"], "metrics!": [{"column!": "s", "op!": "e sum|avg|min|max|count"}, "1..10"], "having": "s?"},
    "chart": {"kind!": "e line|bar|pie|scatter", "x!": "s", "y!": ["s", "1..5"], "size": {"type": "array", "prefixItems": [{"type": "integer", "minimum": 100}, {"type": "integer", "minimum": 100}], "items": False, "minItems": 2},
              "log": {"x": "b", "y": "b"}},
    "csv_parse": {"text!": "s", "delimiter": "s 1..1", "header": "b", "types": {"type": "object", "additionalProperties": {"enum": ["int", "float", "text", "date"]}}},
    "json_path": {"document!": {}, "path!": "s"},
    "vector_search": {"collection!": "s", "vector!": ["n -1..1", "3..1024"], "top_k": "i 1..1000", "filter": {"type": "object"}},
    "embed": {"inputs!": [("s", ["i 0..200000", "1..512"]), "1..96"], "model": "s", "dimensions": "i %64"},
    "upsert_document": {"id!": "s", "text!": "s", "metadata": {"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}}},
    "key_get": {"key!": "s 1..512"},
    "key_set": {"key!": "s 1..512", "value!": {}, "ttl_s": "i 1..2592000", "if": "e absent|present|always"},
    "redis_command": {"args!": ["s", "1..64"]},
    "s3_list": {"bucket!": "/^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/", "prefix": "s", "max_keys": "i 1..1000"},
    "export": {"format!": ({"csv!": {"delimiter": "e ,|;|tab"}}, {"parquet!": {"compression": "e none|snappy|zstd"}}, {"json!": {"lines!": "b"}}), "to!": "uri"},
    "schedule_job": {"name!": "s", "cron!": "/^([0-9*,/-]+ ){4}[0-9*,/-]+$/", "command!": "s", "retry": {"times!": "i 0..10", "backoff_s": "n 0..3600"}},
    "migrate": {"direction!": "e up|down", "steps": "i? 1..100", "target": "/^[0-9]{14}$/"},
    "backup": {"databases!": ["s", "1.."], "keep": {"daily": "i 0..31", "weekly": "i 0..52", "monthly": "i 0..120"}, "encrypt": "b"},
    "graph_query": {"match!": "ref Node", "limit": "i 1..1000"},
    "tag_columns": {"tags!": {"type": "object", "patternProperties": {"^[a-z_]+$": {"type": "array", "items": {"enum": ["pii", "key", "metric"]}}}, "additionalProperties": False}},
    "sample": {"table!": "s", "fraction": "n 0..1", "seed": "i 0.."},
    "statistics": {"values!": ["n", "1.."], "which": ["e mean|median|stdev|min|max"]},
    # home and machines
    "set_light": {"room!": "s", "on": "b", "brightness": "i 0..100", "colour": ({"hex!": "/^#[0-9A-Fa-f]{6}$/"}, {"kelvin!": "i 1500..6500"}, "e red|green|blue|white")},
    "set_temperature": {"zone!": "s", "celsius!": "n 5..30", "until": "time", "mode": "e heat|cool|auto|off"},
    "lock_door": {"door!": "e front|back|garage", "locked!": "b", "code": "/^[0-9]{4,8}$/"},
    "vacuum": {"action!": "e start|stop|dock", "rooms": ["s"], "power": "e quiet|normal|max"},
    "camera_clip": {"camera!": "s", "from!": "date-time", "seconds": "i 1..600"},
    "play_music": {"query": "s", "uri": "uri", "shuffle": "b", "volume": "i 0..100", "device": "s?"},
    "tv": {"command!": ({"power!": "b"}, {"channel!": "i 1..999"}, {"input!": "e hdmi1|hdmi2|usb"}, {"volume!": "i 0..100"})},
    "scene": {"name!": "s", "steps!": [{"device!": "s", "set!": {"type": "object"}, "after_ms": "i 0..60000"}, "1..50"]},
    "irrigate": {"zones!": [{"id!": "i 1..16", "minutes!": "i 1..120"}, "1..16"], "skip_if_rain": "b"},
    "washing_machine": {"program!": "e cotton|wool|quick|eco", "temperature": {"enum": [20, 30, 40, 60, 90]}, "spin": {"enum": [400, 800, 1200, 1400]}, "delay_hours": "i 0..24"},
    "printer": {"document!": "uri", "copies": "i 1..99", "duplex": "b", "pages": "/^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$/", "paper": "e A4|A3|letter"},
    "robot_move": {"pose!": {"x!": "n", "y!": "n", "z!": "n", "rx": "n -180..180", "ry": "n -180..180", "rz": "n -180..180"}, "speed": "n 0..1", "gripper": "e open|closed"},
    "cnc_job": {"file!": "s", "feed": "n 1..10000", "origin": {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}},
    "read_sensor": {"id!": "/^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/", "metric!": "e temp|hum|lux|co2", "window_s": "i 1..86400"},
    "vm_create": {"name!": "hostname", "cpus!": "i 1..128", "memory_gib!": "i 1..1024", "disks!": [{"gib!": "i 1..65536", "kind": "e ssd|hdd"}, "1..8"], "network": {"vlan": "i 1..4094", "ip": "ipv4"}, "image!": "s"},
    "vm_scale": {"group!": "s", "min!": "i 0..", "max!": "i 0..", "metric": {"kind!": "e cpu|rps", "target!": "n 0.."}},
    "deploy": {"service!": "s", "version!": "/^v?[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?$/", "strategy": ({"rolling!": {"batch!": "i 1..100"}}, {"canary!": {"percent!": "i 1..50"}}, {"blue_green!": {}}), "dry_run": "b"},
    "rollback": {"service!": "s", "to": "s?", "reason!": "s"},
    "tail_logs": {"service!": "s", "lines": "i 1..10000", "level": "e debug|info|warn|error", "since": "duration"},
    "query_metrics": {"expr!": "s", "range!": {"from!": "date-time", "to!": "date-time", "step_s!": "i 1..3600"}},
    "create_alert": {"name!": "s", "when!": {"metric!": "s", "op!": {"enum": [">", "<", ">=", "<=", "==", "!="]}, "value!": "n"}, "for": "duration", "notify!": ["email", "1.."]},
    "firewall_rule": {"action!": "e allow|deny", "from": ("ipv4", "ipv6", "const any"), "port": ("i 1..65535", {"from!": "i 1..65535", "to!": "i 1..65535"}), "protocol": "e tcp|udp|icmp"},
    "dns_record": {"zone!": "hostname", "record!": ({"type!": "const A", "value!": "ipv4"}, {"type!": "const AAAA", "value!": "ipv6"}, {"type!": "const TXT", "value!": "s 0..255"}, {"type!": "const MX", "value!": "hostname", "priority!": "i 0..65535"}),
                   "ttl": "i 60..86400"},
    "rotate_key": {"id!": "uuid", "grace": "duration", "algorithm": "e ed25519|rsa4096"},
    "container_run": {"image!": "s", "command": ["s"], "env": [{"name!": "/^[A-Z_][A-Z0-9_]*$/", "value!": "s"}], "ports": ["/^[0-9]{1,5}:[0-9]{1,5}$/"], "restart": "e no|always|on-failure"},
    # people, learning, health, play
    "create_ticket": {"title!": "s 1..200", "body": "s", "priority!": {"enum": [1, 2, 3, 4, None]}, "assignee": "s?", "labels": ["s 1..40", "0..10"], "due": "date"},
    "update_ticket": {"id!": "/^[A-Z]{2,6}-[0-9]+$/", "changes!": {"status": "e open|doing|done", "title": "s", "estimate": "n? 0..100", "parent": "s?"}, "comment": "s"},
    "search_tickets": {"jql!": "s", "fields": ["s"], **PAGE},
    "time_entry": {"project!": "s", "started!": "date-time", "minutes!": "i 1..1440", "note": "s", "billable": "b"},
    "hire": {"candidate!": PERSON, "role!": "s", "salary!": MONEY, "start!": "date", "remote": ("b", "e partly")},
    "leave_request": {"kind!": "e holiday|sick|parental", "from!": "date", "to!": "date", "half_days": ["date"]},
    "quiz": {"topic!": "s", "questions!": [{"text!": "s", "answers!": ["s", "2..6"], "correct!": "i 0..5", "explain": "s"}, "1..30"]},
    "flashcards": {"deck!": "s", "cards!": [{"front!": "s", "back!": "s", "tags": ["s"]}, "1..100"]},
    "grade": {"student!": "s", "scores!": [{"criterion!": "s", "points!": "n 0..10"}, "1.."], "remarks": "s?"},
    "lesson_plan": {"subject!": "e maths|physics|history|art", "grade!": "i 1..13", "weeks!": [{"goal!": "s", "activities!": ["s"]}, "1..40"]},
    "dictionary": {"word!": "s 1..60", "language": "e en|de|fr|it|es", "etymology": "b"},
    "solve_equation": {"equation!": "s", "variable": "/^[a-z]$/", "domain": "e real|complex|integer"},
    "plot_function": {"f!": "s", "x!": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}, "points": "i 2..10000"},
    "unit_convert": {"value!": "n", "from!": "s", "to!": "s", "digits": "i 0..12"},
    "log_meal": {"at": "date-time", "items!": [{"food!": "s", "grams": "n 0..5000", "kcal": "i 0..10000"}, "1.."], "mood": "e? good|fine|bad"},
    "log_workout": {"kind!": "e run|bike|swim|lift", "minutes!": "i 1..600", "distance_km": "n? 0..500", "sets": [{"reps!": "i 1..200", "kg": "n 0..500"}]},
    "medication": {"name!": "s", "dose!": {"value!": "n 0..", "unit!": "e mg|ml|drops"}, "times!": ["time", "1..12"], "with_food": "b"},
    "appointment": {"doctor!": "s", "reason!": "s 1..500", "slots!": ["date-time", "1..5"], "insurance": {"kind!": "e public|private", "number": "/^[A-Z][0-9]{9}$/"}},
    "recipe": {"dish!": "s", "servings": "i 1..50", "diet": ["e vegan|vegetarian|halal|kosher|gluten-free"], "steps!": [{"text!": "s", "minutes": "i 0..600"}, "1..40"],
               "ingredients!": [{"name!": "s", "amount": ("n 0..", "s"), "unit": "e? g|ml|piece|spoon"}, "1..60"]},
    "roll_dice": {"dice!": "/^[1-9][0-9]?d(4|6|8|10|12|20|100)([+-][0-9]{1,2})?$/", "advantage": "b"},
    "chess_move": {"from!": "/^[a-h][1-8]$/", "to!": "/^[a-h][1-8]$/", "promote": "e? queen|rook|bishop|knight"},
    "spawn_entity": {"kind!": "e tree|rock|wolf|chest", "at!": {"type": "array", "items": {"type": "integer", "minimum": -1000, "maximum": 1000}, "minItems": 3, "maxItems": 3}, "props": {"type": "object"}},
    "make_character": {"name!": "s 1..40", "class!": "e wizard|knight|rogue", "stats!": {"str!": "i 3..18", "dex!": "i 3..18", "int!": "i 3..18"}, "inventory": [{"item!": "s", "count!": "i 1..99"}, "0..30"], "backstory": "s 0..2000"},
    "generate_image": {"prompt!": "s 1..4000", "size": "e 256x256|512x512|1024x1024", "n": "i 1..4", "seed": "i? 0..4294967295", "style": {"anyOf": [{"enum": ["photo", "ink", "oil"]}, {"type": "null"}]}},
    "edit_image": {"image!": "uri", "operations!": [({"crop!": {"x!": "i 0..", "y!": "i 0..", "w!": "i 1..", "h!": "i 1.."}}, {"rotate!": {"enum": [90, 180, 270]}}, {"blur!": "n 0..50"}, {"flip!": "e horizontal|vertical"}), "1..10"]},
    "text_to_speech": {"text!": "s 1..5000", "voice": "e alloy|echo|nova", "speed": "n 0.25..4", "format": "e mp3|wav|opus"},
    "make_document": {"title!": "s", "body!": "ref Block"},
    "make_form": {"title!": "s", "fields!": [({"kind!": "const text", "label!": "s", "max": "i 1..5000"}, {"kind!": "const choice", "label!": "s", "options!": ["s", "2..20"]}, {"kind!": "const number", "label!": "s", "min": "n", "max": "n"},
                                              {"kind!": "const date", "label!": "s"}), "1..40"], "submit": {"url!": "uri", "method": "e POST|PUT"}},
    "memory_store": {"facts!": [{"subject!": "s", "relation!": "s", "object!": "s", "confidence": "n 0..1"}, "1..50"], "expires": "date?"},
    "think": {"thought!": "s"},
    "ask_user": {"question!": "s", "options": ["s", "2..4"], "multi": "b"},
    "final_answer": {"answer!": "s", "sources": [{"title!": "s", "url!": "uri"}], "confidence": "e low|medium|high"},
    "noop": {},
    "delegate": {"agent!": "e coder|writer|reviewer", "task!": "ref Task"},
}

DEFS = {
    "Address": {"name!": "s 1..80", "street!": "s", "city!": "s", "zip!": "/^[0-9A-Z -]{3,10}$/", "country!": "/^[A-Z]{2}$/", "phone": "s?"},
    "Filter": ({"and!": ["ref Filter", "1..4"]}, {"or!": ["ref Filter", "1..4"]}, {"not!": "ref Filter"}, {"column!": "s", "op!": "e eq|ne|lt|gt|like", "value!": ("s", "n", "b", "null")}),
    "Node": {"label!": "s", "where": {"type": "object", "additionalProperties": {"type": ["string", "number"]}}, "to": [{"edge!": "s", "node!": "ref Node"}, "0..4"]},
    "Block": ({"heading!": "s", "level!": "i 1..6"}, {"paragraph!": "s"}, {"list!": ["ref Block", "1.."], "ordered": "b"}, {"table!": {"head!": ["s"], "rows!": [["s"]]}}),
    "Task": {"goal!": "s", "context": "s?", "steps": ["ref Task", "0..5"], "budget": {"tokens": "i 1..1000000", "seconds": "n 0..3600"}},
}


# As generators of other languages write them.
RAW = {
    "pydantic_order": {
        "$defs": {
            "Item": {"properties": {"sku": {"title": "Sku", "type": "string"}, "qty": {"default": 1, "exclusiveMinimum": 0, "title": "Qty", "type": "integer"}}, "required": ["sku"], "title": "Item", "type": "object"},
            "Speed": {"enum": ["slow", "fast"], "title": "Speed", "type": "string"},
        },
        "properties": {
            "items": {"items": {"$ref": "#/$defs/Item"}, "minItems": 1, "title": "Items", "type": "array"},
            "speed": {"allOf": [{"$ref": "#/$defs/Speed"}], "default": "slow", "description": "how fast"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Note"},
            "weight": {"anyOf": [{"exclusiveMinimum": 0, "maximum": 30, "type": "number"}, {"type": "null"}], "default": None},
        },
        "required": ["items"], "title": "Order", "type": "object",
    },
    "zod_union": {
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"shape": {"oneOf": [
            {"type": "object", "properties": {"kind": {"type": "string", "const": "circle"}, "r": {"type": "number", "exclusiveMinimum": 0}}, "required": ["kind", "r"], "additionalProperties": False},
            {"type": "object", "properties": {"kind": {"type": "string", "const": "rect"}, "w": {"type": "number"}, "h": {"type": "number"}}, "required": ["kind", "w", "h"], "additionalProperties": False}]},
            "at": {"type": "array", "items": [{"type": "number"}, {"type": "number"}], "minItems": 2, "maxItems": 2}},
        "required": ["shape"], "additionalProperties": False,
    },
    "openapi_pet": {
        "definitions": {"Base": {"type": "object", "properties": {"id": {"type": "integer", "format": "int64", "minimum": 1}}, "required": ["id"]}},
        "allOf": [{"$ref": "#/definitions/Base"}, {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "tag": {"type": "string", "nullable": True}}, "required": ["name"]}],
    },
    "go_struct": {"type": "object", "properties": {f"Field{i}": {"type": ["string", "integer", "boolean", "number"][i % 4]} for i in range(60)}, "required": ["Field0", "Field7", "Field59"]},
    "country_picker": {"type": "object", "properties": {"country": {"type": "string", "enum": [a + b for a in "ABCDEFGHIJKLMNOPQRST" for b in "ABCDEFGHIJKLMNOPQRSTUVWXY"]}}, "required": ["country"]},
    "deep_config": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "object", "properties": {"c": {"type": "object", "properties": {
        "d": {"type": "array", "items": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "boolean"}, "f": {"type": "null"}}, "required": ["e"]}, "maxItems": 3}, "minItems": 1}},
        "required": ["d"]}}, "required": ["c"]}}, "required": ["b"]}}, "required": ["a"], "additionalProperties": False},
    "mixed_values": {"type": "object", "properties": {"v": {"enum": ["x", 1, 2.5, True, None, ["a"], {"k": "v"}]}, "c": {"const": {"fixed": [1, "two"]}}, "s": {"const": "a\"b\\c\u00e9\n"}}, "required": ["v"]},
    "free_form": {"type": "object", "additionalProperties": True},
}


def references(node, out):
    if isinstance(node, dict):
        if "$ref" in node:
            out.add(node["$ref"].rpartition("/")[2])
        for child in node.values():
            references(child, out)
    elif isinstance(node, list):
        for child in node:
            references(child, out)
    return out


def tools():
    for i, (name, props) in enumerate(TOOLS.items()):
        parameters = obj(props)
        names = references(parameters, set())
        if names:
            parameters["$defs"] = {n: schema(DEFS[n]) for n in sorted(names)}
        yield {"name": name, "parameters": styled(i, parameters)}
    for name, parameters in RAW.items():
        yield {"name": name, "parameters": parameters}


if __name__ == "__main__":
    lines = [json.dumps(t, separators=(",", ":")) for t in tools()]
    path = pathlib.Path(__file__).parent / "tools.json"
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} tools, {path.stat().st_size} bytes")
