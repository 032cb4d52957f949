#!/usr/bin/env python3
"""Writes suite.json: the JSON-Schema-Test-Suite's groups of draft 2020-12, a group a line, and the licence that they are under.

    make_suite.py FOLDER       of an unpacked source package of `jsonschema` (PyPI), whose folder json/ holds the suite

Taken: every file of tests/draft2020-12, the optional ones and the optional formats too. A group keeps its file's name, description and schema;
its tests are pairs of the value and whether it is valid."""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent


def groups(folder):
    root = folder / "json/tests/draft2020-12"
    for path in sorted(root.rglob("*.json")):
        for group in json.loads(path.read_text()):
            yield {"file": str(path.relative_to(root).with_suffix("")), "group": group["description"], "schema": group["schema"],
                   "tests": [[t["data"], t["valid"]] for t in group["tests"]]}


def main():
    folder = pathlib.Path(sys.argv[1])
    lines = [json.dumps(g, ensure_ascii=True, separators=(",", ":")) for g in groups(folder)]
    head = {"source": f"JSON-Schema-Test-Suite, as in {folder.name}", "licence": (folder / "json/LICENSE").read_text()}
    (HERE / "suite.json").write_text(json.dumps(head)[:-1] + ',\n"groups": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{len(lines)} groups")


if __name__ == "__main__":
    main()
