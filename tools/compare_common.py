"""What the tools that run another engine beside plumb share."""

import os
import pathlib


def model_path(name):
    if "/" in name or name.endswith(".gguf"):
        return name
    cache = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return f"{cache}/plumb/models/{name}.gguf"
