"""Random small templates: expressions over values of every type, with the statements around them."""

import random

TEXTS = ["", "a", "Hello World", "  padded\t\n", "a,b,,c", "x-y z", "ÀÉ ß ŉİ", "日本語 😀", "line1\nline2\r\n\nline4", "it's \"q\" \\", "<b>&amp;</b>",
         "42", "-7", "3.5", "1e3", "0x1f", "abcABC", "%s and %d", "{} {0} {x}", "Σας ΑΣ", "aaa", "word " * 5, "\u2028z\u00a0", "Ǆ ǆ"]
NAMES = ["i", "j", "f", "s", "t", "u", "l", "m", "d", "e", "n", "b", "users", "nested", "missing", "empty", "ns"]

VARIABLES = {
    "i": 7, "j": -3, "f": 2.5, "s": "Hello World", "t": "  a,b c\n", "u": "Größe 日本 😀", "l": [3, 1, 2], "m": ["b", "A", "c", "a", "B"],
    "d": {"b": 1, "a": "x", "items": [1, 2], "C": None}, "e": [], "n": None, "b": True, "empty": "",
    "users": [{"name": "bob", "age": 30, "tags": ["x", "y"]}, {"name": "Al", "age": 25, "tags": []}, {"name": "cy", "age": 30}],
    "nested": {"k": [1, [2, {"z": "deep"}], 1.5, 12345678901234567890, "s"], "x": {"y": {"z": 1}}},
}

FILTERS = {
    "abs": 0, "capitalize": 0, "default": (1, 2), "e": 0, "first": 0, "float": (0, 1), "int": (0, 2), "items": 0, "join": (0, 1), "last": 0, "length": 0,
    "list": 0, "lower": 0, "max": 0, "min": 0, "replace": (2, 3), "reverse": 0, "round": (0, 1), "safe": 0, "sort": 0, "string": 0, "sum": 0, "title": 0,
    "tojson": 0, "trim": (0, 1), "unique": 0, "upper": 0, "urlencode": 0, "wordcount": 0, "striptags": 0, "dictsort": 0, "count": 0, "d": (1, 2),
    "forceescape": 0, "center": (0, 1), "batch": (1, 2), "slice": (1, 2), "truncate": (0, 2), "indent": (0, 1), "format": (0, 2), "wordwrap": (0, 1),
    "filesizeformat": 0, "xmlattr": 0, "attr": 1,
}
KEYWORDS = {
    "sort": ["reverse=true", "case_sensitive=true", "attribute='age'", "attribute='name'", "attribute='age,name'"], "unique": ["attribute='age'", "case_sensitive=true"],
    "map": ["attribute='name'", "attribute='tags'", "attribute='x', default='-'", "'upper'", "'length'", "'string'", "'default', 'z'", "'int'", "'tojson'"],
    "select": ["", "'odd'", "'string'", "'defined'", "'gt', 1", "'in', [1, 'a']", "'equalto', 'a'"], "reject": ["", "'none'", "'number'", "'==', 1"],
    "selectattr": ["'age'", "'age', '>', 26", "'name', 'equalto', 'bob'", "'tags', 'defined'", "'missing', 'undefined'"],
    "rejectattr": ["'tags'", "'age', 'eq', 30"], "groupby": ["'age'", "attribute='tags', default='q'"], "tojson": ["indent=2", "sort_keys=true", "ensure_ascii=true", "separators=(',', ':')", "indent=0"],
    "join": ["', '", "'-', attribute='name'", "attribute='age'"], "sum": ["attribute='age'", "start=10"], "min": ["attribute='age'"], "max": ["case_sensitive=true"],
    "dictsort": ["true", "by='value'", "reverse=true"], "round": ["1", "2, 'floor'", "0, 'ceil'", "-1", "method='floor'"], "indent": ["2, true", "first=true", "'> '", "blank=true"],
    "default": ["'d', true", "boolean=true"], "truncate": ["9, true", "5, false, '~', 0"], "int": ["base=16", "default=5"], "replace": ["'a', 'b', 1"], "batch": ["2", "2, 'x'"], "slice": ["2", "3, 'x'"],
    "wordwrap": ["5", "6, false", "7, wrapstring='|'", "5, break_on_hyphens=false"], "center": ["20"], "filesizeformat": ["true"], "xmlattr": ["false"], "format": ["1, 'a'", "x=1"],
}
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "callable", "true", "false", "odd", "even",
         "lower", "upper", "escaped", "filter", "test"]
ARG_TESTS = ["equalto", "eq", "ne", "lt", "le", "gt", "ge", "in", "divisibleby", "sameas"]
METHODS = {
    "upper": "", "lower": "", "title": "", "capitalize": "", "swapcase": "", "casefold": "", "strip": "|' a'", "lstrip": "|'H'", "rstrip": "|'d\\n'", "split": "|','|' ', 1|none, 1",
    "rsplit": "|','|',', 1|none, 1", "splitlines": "|true", "startswith": "'H'|('a', 'H')|'e', 1", "endswith": "'d'|('x', '')", "replace": "'l', 'L'|'', '-'|'a', '', 1", "find": "'o'|'o', 5|'z'",
    "rfind": "'o'", "index": "'H'|1", "count": "'l'|''|1", "isdigit": "", "isalpha": "", "isupper": "", "islower": "", "isspace": "", "istitle": "", "isalnum": "", "isnumeric": "", "isascii": "",
    "isidentifier": "", "isdecimal": "", "isprintable": "", "join": "['a', 'b']|'xyz'|[1]", "zfill": "5", "ljust": "15|15, '.'", "rjust": "15|15, '*'", "center": "15|16, '-'", "partition": "' '|'zz'",
    "rpartition": "'o'", "removeprefix": "'He'", "removesuffix": "'ld'", "expandtabs": "|4", "format": "1, 'b', x=2|d", "get": "'a'|'z'|'z', 'q'|1", "keys": "", "values": "", "items": "", "copy": "",
    "append": "1", "pop": "|0", "nothing": "", "is_integer": "",
}
SPECS = ["{}", "{:>10}", "{:<6}|", "{:^9}", "{:*^9}", "{:05d}", "{:+d}", "{:,}", "{:.2f}", "{:10.3f}", "{:e}", "{:g}", "{:%}", "{:x}", "{:#x}", "{:b}", "{:_}", "{!r}", "{!s:>12}", "{0}{0}", "{:.3}", "{:.1}",
         "{:c}", "{0[0]}", "{0.real}", "{:{}}", "}}{{", "{", "{x}", "{:s}", "{:G}", "{:=+6}", "{:.0f}", "{:#o}"]
PERCENTS = ["%s", "%d", "%5d|", "%-5d|", "%05d", "%+d", "%.2f", "%8.3f", "%e", "%g", "%x", "%#x", "%o", "%r", "%c", "%%", "%10s|", "%-10s|", "%.2s", "%(a)s %(b)s", "%s %s", "%i", "%", "%q", "%*d", "%X", "%G", "% d"]


# What a filter, test or method is usually applied to: most expressions should give a text, not an error.
KINDS = {
    "text": ["s", "t", "u", "empty"], "number": ["i", "j", "f", "b", "2", "-5", "1.5", "0.1", "12345678901234567890", "2.675", "1e22"],
    "list": ["l", "m", "users", "e", "nested.k", "d.items()", "range(5)", "(1, 'b')", "['x', 'y']", "m|map('upper')", "users|selectattr('tags')"], "dict": ["d", "nested", "nested.x", "{}", "users[0]", "{'z': 1, 'y': [2]}"],
}
TAKES = {}
for kind, names in {
    "text": "capitalize e lower replace safe string title trim upper urlencode wordcount striptags forceescape center truncate indent format wordwrap length reverse first list int float",
    "number": "abs float int round filesizeformat string default",
    "list": "first join last length list max min reverse sort sum unique batch slice map select reject tojson count string",
    "dict": "items dictsort tojson xmlattr length list urlencode string",
    "users": "selectattr rejectattr groupby",
}.items():
    for name in names.split():
        TAKES.setdefault(name, []).append(kind)
METHOD_TAKES = {name: "dict" if name in ("get", "keys", "values", "items") else "list" if name in ("append", "pop", "copy") else "number" if name == "is_integer" else "text" for name in METHODS}


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def of(self, kind):
        """A value of the kind; sometimes of any."""
        r = self.r
        if kind == "users":
            return "users"
        if kind == "any" or r.random() < 0.08:
            return self.atom()
        if kind == "text" and r.random() < 0.4:
            return self.text()
        return r.choice(KINDS[kind])

    def text(self):
        return repr(self.r.choice(TEXTS))

    def atom(self):
        r = self.r
        kind = r.randrange(10)
        if kind < 4:
            return r.choice(NAMES)
        if kind < 6:
            return self.text()
        return r.choice(["0", "1", "2", "3", "-1", "10", "255", "1.5", "0.1", "1e-7", "1e22", "2.675", "true", "false", "none", "True", "9223372036854775807", "12345678901234567890", "[]", "{}", "()", "1_000", "0x1F"])

    def args(self, low, high, depth):
        return ", ".join(self.expr(depth - 1) for _ in range(self.r.randint(low, high)))

    def filter(self, depth):
        r = self.r
        name = r.choice(list(FILTERS) + list(KEYWORDS))
        if name in KEYWORDS and (name not in FILTERS or r.random() < 0.6):
            arg = r.choice(KEYWORDS[name])
            return f"{name}({arg})" if arg else name
        n = FILTERS[name]
        low, high = n if isinstance(n, tuple) else (n, n)
        return f"{name}({self.args(low, high, min(depth, 1))})" if high else name

    def expr(self, depth):
        r = self.r
        if depth <= 0:
            return self.atom()
        kind = r.randrange(16)
        a = lambda: self.expr(depth - 1)  # noqa: E731
        if kind < 2:
            return self.atom()
        if kind < 5:
            if r.random() < 0.15:
                return f"({a()})|{self.filter(depth)}"
            filter = self.filter(depth)
            return f"{self.of(r.choice(TAKES.get(filter.split('(')[0], ['any'])))}|{filter}"
        if kind == 5:
            method = self.method()
            return f"{self.of(METHOD_TAKES[method.split('(')[0]])}.{method}"
        if kind == 6:
            op = r.choice(["+", "-", "*", "/", "//", "%", "**", "~", "+", "~"])
            if op == "**":
                return f"({r.choice(['2', '-3', '1.5', 'i', 'f', '10', 'true'])} ** {r.choice(['0', '3', '-1', '2.0', '20', 'j', '0.5'])})"
            same = r.choice(["text", "list", "number"]) if op == "+" else "any" if op == "~" else "number"
            return f"({self.of(same)} {op} {self.of('number' if r.random() < 0.3 and op == '*' else same)})" if r.random() < 0.8 else f"({a()} {op} {a()})"
        if kind == 7:
            op = r.choice(["==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"])
            if op in ("in", "not in"):
                return f"({self.atom()} {op} {self.of('list')})" if r.random() < 0.7 else f"({self.of('text')} {op} {self.of('text')})"
            same = r.choice(["text", "number"]) if op[0] in "<>" else "any"
            return f"({self.of(same)} {op} {self.of(same)})" if r.random() < 0.8 else f"({a()} {op} {a()})"
        if kind == 8:
            return r.choice([f"(not {a()})", f"(-{self.atom()})", f"({a()} if {a()})", f"({a()} if {a()} else {a()})"])
        if kind == 9:
            return f"({a()} is {r.choice(['', 'not '])}{r.choice(TESTS)})" if r.random() < 0.6 else f"({a()} is {r.choice(ARG_TESTS)}({a()}))"
        if kind == 10:
            part = lambda: r.choice(["", "", "0", "1", "-1", "2", "-2", "5", "none"])  # noqa: E731
            return f"{r.choice(['s', 'u', 'l', 'm', 'nested.k', 's', 'range(7)', 'missing', 'n', 'd', 'i'])}[{part()}:{part()}{r.choice(['', ':' + part(), ':-1', ':2'])}]"
        if kind == 11:
            return f"{self.atom()}{r.choice(['[0]', '[-1]', '[99]', '[' + a() + ']', '.a', '.items', '.x.y', '.name', '[1][1].z', '.k[1]', '.0', '.b'])}"
        if kind == 12:
            return r.choice([f"[{a()}, {a()}]", f"({a()},)", f"{{'k': {a()}, 1: {a()}}}", f"[{a()}]", f"({a()}, {a()})", f"dict(a={a()}, b=1)"])
        if kind == 13:
            return r.choice([f"range({r.randrange(-2, 6)})", f"range(1, {r.randrange(8)})", f"range({r.randrange(5)}, -3, -2)", "range(3)|list", "namespace(a=1).a", "dict(a=1)|items|list"])
        if kind == 14:
            kind = r.choice(["number", "number", "text", "any"])
            if r.random() < 0.5:
                return f"{r.choice(SPECS)!r}.format({', '.join(self.of(kind).replace('12345678901234567890', '99') for _ in range(r.choice([1, 1, 1, 2, 0])))})"
            return f"({r.choice(PERCENTS)!r} % {r.choice([self.of(kind), '(' + self.of(kind) + ', ' + self.of(kind) + ')', 'd'])})"
        return f"({self.of('number')} < {self.of('number')} <= {self.of('number')})"

    def method(self):
        name = self.r.choice(list(METHODS))
        return f"{name}({self.r.choice(METHODS[name].split('|'))})"

    def space(self):
        return self.r.choice(["", "", "-", "+"])

    def tag(self, text):
        return "{%" + self.space() + " " + text + " " + self.r.choice(["", "", "-", "+"]) + "%}"

    def out(self, depth=3):
        return "{{" + self.r.choice(["", "", "-"]) + " " + self.expr(depth) + " " + self.r.choice(["", "", "-"]) + "}}"

    def data(self):
        return self.r.choice(["x", " ", "\n", "  y \n", "\n\n  ", "é", "a b", "{# note #}", "  {#- c -#}  ", "\t", "{ % }", "\r\n", "{% raw %}{{ r }}{% endraw %}"])

    def block(self, depth, in_loop=False):
        return "".join(self.statement(depth, in_loop) for _ in range(self.r.randint(1, 3)))

    def statement(self, depth, in_loop=False):
        r = self.r
        kind = r.randrange(20)
        if depth <= 0 or kind < 5:
            return self.out(r.choice([1, 1, 2])) if r.random() < 0.6 else self.data()
        body = lambda loop=in_loop: self.block(depth - 1, loop)  # noqa: E731
        if kind < 8:
            tail = self.tag("elif " + self.expr(1)) + body() if r.random() < 0.3 else ""
            tail += self.tag("else") + body() if r.random() < 0.4 else ""
            return self.tag("if " + self.expr(1)) + body() + tail + self.tag("endif")
        if kind < 12:
            target = r.choice(["v", "v", "v", "k, v", "i"])
            seq = r.choice(["l", "m", "users", "range(3)", "d.items()", "d", "s", "e", "missing", "nested.k", "users|map(attribute='name')", "l|reverse", self.expr(1)])
            test = f" if {self.expr(1)}" if r.random() < 0.25 else ""
            uses = r.choice(["", "", "{{ loop.index }}", "{{ loop.last }}{{ loop.length }}", "{{ loop.revindex0 }}{{ loop.first }}", "{{ loop.previtem }}>{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}",
                             "{{ loop.changed(v) }}", "{% if loop.index0 == 1 %}{% continue %}{% endif %}", "{% if loop.index > 2 %}{% break %}{% endif %}", "{{ v }}"])
            tail = self.tag("else") + body() if r.random() < 0.25 else ""
            return self.tag(f"for {target} in {seq}{test}") + uses + body(True) + tail + self.tag("endfor")
        if kind < 14:
            return self.tag(f"set {r.choice(['x', 'x', 'x, y', 'q', 'ns.a'])} = {self.expr(2)}") + "{{ x }}"
        if kind == 14:
            return self.tag("set x" + r.choice(["", " | upper", " | trim"])) + body(False) + self.tag("endset") + "[{{ x }}]"
        if kind == 15:
            sig, call = r.choice([("a", "1"), ("a, b=2", "1"), ("a, b=a", "'z', b=3"), ("", ""), ("a", "1, 2"), ("a='q'", "")])
            extra = r.choice(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}"])
            return self.tag(f"macro mac({sig})") + "{{ a }}{{ b }}" + extra + body(False) + self.tag("endmacro") + r.choice(
                [f"{{{{ mac({call}) }}}}", f"{{{{ mac({call}) }}}}{{{{ mac({call}) }}}}", self.tag(f"call mac({call})") + body(False) + self.tag("endcall")])
        if kind == 16:
            return self.tag("filter " + r.choice(["upper", "trim", "replace('a', 'b')", "indent", "upper|lower", "length"])) + body(False) + self.tag("endfilter")
        if kind == 17:
            return self.tag(f"with x = {self.expr(1)}, z = x") + "{{ x }}{{ z }}" + body(False) + self.tag("endwith")
        if kind == 18:
            return self.tag("generation") + body(False) + self.tag("endgeneration")
        if in_loop:
            return r.choice(["{% break %}", "{% continue %}"])
        return r.choice(["{% set ns = namespace(a=1, l=[]) %}", "{% for v in users recursive %}{{ v.name }}{% if v.tags %}{{ loop([v.tags[0]]) }}{% endif %}{% endfor %}", "{% set jn = joiner('|') %}{{ jn() }}{{ jn() }}{{ jn() }}",
                         "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.current }}", "{{ raise_exception('no: ' ~ s) }}", "{% if missing.x %}{% endif %}", "{% block a scoped %}{{ i }}{% endblock %}"])

    def template(self):
        return self.block(self.r.choice([0, 1, 1, 2, 3]))
