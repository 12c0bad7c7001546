"""The documents are true: snippets run and print what is shown, examples in docstrings hold, and what is named (links,
tests, files, figures, errors) is there.

A ```python block is a doctest when it has prompts. Otherwise it is run, in one namespace for the file, and the ```text
block right behind it, if there is one, is what it must print.
"""

import builtins
import contextlib
import doctest
import importlib.util
import io
import os
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tapeflow as tp
from tapeflow import ops

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def run_doctest(text, name, names):
    """Run the prompts in a text; its failures are the error."""
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    report = io.StringIO()
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=report.write, clear_globs=False)
    assert not report.getvalue(), report.getvalue()
    names.update(test.globs)


def blocks(text):
    """(language, content, what must be printed or None) of each fenced block."""
    found = list(BLOCK.finditer(text))
    for block, following in zip(found, [*found[1:], None]):
        adjacent = following and not text[block.end() : following.start()].strip()
        yield block[1], block[2], following[2] if adjacent and following[1] == "text" else None


# ---- snippets


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_snippets(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for language, code, printed in blocks(path.read_text(encoding="utf-8")):
        assert language in ("python", "text", "sh"), f"a block of {language or 'no language'} is not checked"
        if language != "python":
            continue
        if ">>>" in code:
            run_doctest(code, path.name, names)
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, path.name, "exec"), names)
        assert said.getvalue() == (printed or ""), code


def test_the_entry_in_the_architecture_is_one(monkeypatch):
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (line,) = (code for _, code, _ in blocks(text) if code.startswith("elementwise("))
    monkeypatch.setattr(ops, "TABLE", {})
    monkeypatch.setattr(ops, "STRUCTURED", {})
    exec(line, dict(vars(ops)))
    (entry,) = ops.TABLE.values()
    assert entry.name not in dir(tp), "choose an op that is not there yet"
    assert ops.composed_vjp(entry.name, 0) is not None and entry.example


# ---- docstrings


def documented():
    """Name -> object, for everything public with a docstring."""
    owners = {"tp": tp, "tp.random": tp.random, "tp.Tensor": tp.Tensor, "tp.Tape": tp.Tape}
    owners["tp.random.Generator"] = tp.random.Generator
    owners |= {"tp.nn": tp.nn, "tp.nn.init": tp.nn.init, "tp.optim": tp.optim}
    owners |= {"tp.nn.Module": tp.nn.Module, "tp.optim.Optimizer": tp.optim.Optimizer, "tp.Plan": tp.Plan}
    owners["tp.profiling.Profile"] = tp.profiling.Profile
    found = dict(owners)
    for prefix, owner in owners.items():
        for name, value in vars(owner).items():
            if not name.startswith("_") and not isinstance(value, types.ModuleType):
                found.setdefault(f"{prefix}.{name}", value)
    return {n: x for n, x in found.items() if callable(x) or isinstance(x, types.ModuleType | property)}


EXAMPLES = {n: x.__doc__ for n, x in documented().items() if ">>>" in (x.__doc__ or "")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_examples(name):
    run_doctest(EXAMPLES[name], name, {"tp": tp})


def test_the_public_functions_have_docstrings():
    assert len(EXAMPLES) > 60
    for name, x in documented().items():
        if getattr(x, "__module__", "") not in ("builtins", "typing") and not isinstance(x, types.ModuleType):
            assert (x.__doc__ or "").strip(), name


# ---- what is named is there


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_names_in_documents(path):
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", BLOCK.sub("", text)):
        if "://" not in link:
            assert (path.parent / link.split("#")[0]).exists(), link
    for file, test in re.findall(r"`(?:tests/)?(test_\w+\.py)::(\w+)`", text):
        assert re.search(rf"^(def|class) {test}\b", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.M), test
    for file in re.findall(r"`([\w/.]+\.(?:py|pyx|pxi|c|h|md))`", text):
        places = (ROOT, ROOT / "tapeflow", ROOT / "tapeflow/core", ROOT / "tapeflow/csrc", ROOT / "tests")
        assert "_generated" in file or any((place / file).exists() for place in places), file


def rows(name):
    """The cells of the tables of a document."""
    lines = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_errors_are_what_the_table_says():
    for name, bases, _ in (row for row in rows("errors.md") if row[0].startswith("`tp.")):
        for base in (getattr(tp.errors, b, None) or getattr(builtins, b) for b in bases.split(", ")):
            kind = getattr(tp.errors, name.strip("`").rsplit(".", 1)[1])
            assert issubclass(kind, base) and issubclass(kind, tp.TapeflowError), name


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_list_of_ops_is_current():
    tool = load_tool("make_ops_doc")
    made = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert made == tool.text(), "run python tools/make_ops_doc.py"
    assert all(entry.public or hasattr(tp, name) for name, entry in ops.TABLE.items())


def test_pictures_are_of_the_tape():
    tool = load_tool("draw_tape")
    assert {path.stem for path in tool.FOLDER.iterdir()} == set(tool.PICTURES)
    for name in tool.PICTURES:
        made = (tool.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert made == tool.text(name), "run python tools/draw_tape.py"
        rows = [entry for entry, *_ in tool.entries(*tool.PICTURES[name][:2])]
        assert all(f">{row}</text>" in made for row in rows) and ElementTree.fromstring(made) is not None
    values = [(float(value), float(gradient)) for *_, value, gradient in tool.entries(*tool.PICTURES["formula"][:2])]
    assert values == [(5, 3), (3, 6), (2, 9), (6, 3), (11, 3), (33, 1)]


ABSENT = {"tp.f", "tp.cube"}  # examples of names


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_public_names_in_documents_exist(path):
    text = path.read_text(encoding="utf-8")
    owners = {"tp": "tapeflow", "t": "tapeflow.Tensor"}
    for code in re.findall(r"`([^`\n]+)`", text):
        for short, name in re.findall(r"(?<![\w.])(tp|t)\.([a-zA-Z_][\w.]*)", code):
            if f"{short}.{name}" not in ABSENT:
                pkgutil.resolve_name(f"{owners[short]}.{name.rstrip('.')}")


def test_the_reference_has_everything_once():
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    listed = re.findall(r"^::: tapeflow\.([\w.]+)$", "\n".join(p.read_text(encoding="utf-8") for p in pages), re.M)
    assert len(listed) == len(set(listed))
    wanted = {f"nn.{name}": getattr(tp.nn, name) for name in tp.nn.__all__}
    wanted |= {f"optim.{name}": getattr(tp.optim, name) for name in tp.optim.__all__}
    wanted |= {name: getattr(tp, name) for name in tp.__all__}
    wanted = {name: x for name, x in wanted.items() if callable(x)}
    shown = [pkgutil.resolve_name(f"tapeflow.{name}") for name in listed]
    text = (ROOT / "docs" / "api" / "functions.md").read_text(encoding="utf-8")
    for name, x in wanted.items():
        assert any(x is y for y in shown), f"{name} is on no page of docs/api"
        assert name in listed or f"`tp.{name}`" in text or issubclass(x, tp.TapeflowError), name
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(
        f": {path.relative_to(ROOT / 'docs').as_posix()}\n" in navigation for path in DOCS if "docs" in path.parts
    )


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocstrings_handlers.python")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    functions = (tmp_path / "site" / "api" / "functions.html").read_text(encoding="utf-8")
    assert 'id="tapeflow.exp"' in functions and "Exponential." in functions


def test_accuracy_is_what_the_source_measured():
    source = (ROOT / "tapeflow/csrc/tpf_math.h").read_text(encoding="utf-8")
    lines = re.findall(r"^ +([a-z][a-z0-9, ]*?)((?:  +[0-9.]+)+(?: \*/)?)$", source[: source.index("#ifndef")], re.M)
    measured = {name: re.findall(r"[0-9.]+", figures) for name, figures in lines}
    assert len(measured) == 9
    documented = {row[0]: row[1:] for row in rows("accuracy.md") if len(row) == 11}
    for name, figures in measured.items():
        assert documented[name if name != "near" else "small angles"] == figures
