"""The models that tools/fetch-models has fetched."""

import os
import pathlib

import pytest

MODELS = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "plumb/models"


def fetched_model(name):
    """The path of the model; without it the test is skipped."""
    path = MODELS / f"{name}.gguf"
    if not path.exists() and (MODELS / name).is_dir():
        return MODELS / name
    if not path.exists():
        pytest.skip(f"model-not-fetched: {name}")
    return path
