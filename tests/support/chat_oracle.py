"""The oracle of the template tests: Python's jinja2 with the set-up that Hugging Face's transformers 5 gives chat templates."""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

EPOCH = 1767225599  # 2025-12-31 23:59:59 UTC: every part of the date has two digits


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: a call block around its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    """A namespace without names that start with an underscore."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"underscore-prefixed attributes on a namespace: {name!r}")


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(text):
    return datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).replace(tzinfo=None).strftime(text)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = to_json
    env.globals.update(
        raise_exception=raise_exception, strftime_now=strftime_now, dict=Dict(), namespace=Namespace
    )
    return env


ENVIRONMENT = environment()


def render(template, variables):
    """(True, text), or (False, error). A compiled template may be given instead of its text."""
    try:
        if isinstance(template, str):
            template = ENVIRONMENT.from_string(template)
        return True, template.render(**variables)
    except RecursionError as error:
        return False, error
    except Exception as error:
        return False, error
