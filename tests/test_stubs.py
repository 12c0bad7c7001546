"""What a type checker and a user see of the package: the public names, the stub of the core, typed programs.

A compiled function does not tell its signature, so the stub is compared with the sources: the .pxi files and the text
that is generated from the op table.
"""

import ast
import inspect
import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tapeflow as tp
from tapeflow import _core, codegen, ops

ROOT = Path(__file__).resolve().parents[1]
MODULES = {"errors", "nn", "optim", "random"}  # the public ones; others are there because the package imports them
STUB = ast.parse((ROOT / "tapeflow" / "_core.pyi").read_text(encoding="utf-8"))
DECORATED = {"setter", "overload"}


def stub_functions(body, inside=""):
    """Qualified name -> parameters, as text, of each function in the stub; the getter of a property."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= stub_functions(node.body, node.name + ".")
        elif isinstance(node, ast.FunctionDef):
            if any(isinstance(d, ast.Attribute) and d.attr in DECORATED for d in node.decorator_list):
                continue
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            found[inside + node.name] = ast.unparse(node.args).replace("=", " = ")
    return found


def parameter(text):
    """A parameter of a Cython function without its C type: "bint copy=True" -> "copy = True"."""
    name, _, default = text.partition("=")
    name = name.removesuffix(" not None").split()[-1]
    return f"{name} = {ast.unparse(ast.parse(default.strip(), mode='eval'))}" if default else name


def source_functions():
    """The same of each `def` in the sources, special methods left out."""
    found, pattern = {}, re.compile(r"^(?:cdef class (\w+)|( *)def (?!__)(\w+)\(([^#]*?)\):)", re.M)
    attributes = re.compile(r"^cdef class (\w+)|^    cdef readonly \w+ ([\w, ]+?)(?: *#.*)?$", re.M)
    core = ROOT / "tapeflow"
    texts = [path.read_text(encoding="utf-8") for path in (core / "_core.pyx", *sorted(core.glob("core/*.pxi")))]
    for text in [*texts, codegen.functions_pxi()]:
        inside = ""
        for name, names in attributes.findall(text):
            inside = name + "." if name else inside
            found |= {inside + attribute.strip(): "self" for attribute in names.split(",") if attribute.strip()}
        inside = ""
        for name, indent, function, parameters in pattern.findall(text):
            if name:
                inside = name + "."
                continue
            parts = [part for part in re.split(r",\s*(?![^(]*\))", parameters) if part.strip()]
            qualified = (inside if indent else "") + function
            found.setdefault(qualified, ", ".join(parameter(part) for part in parts))
    return found


FUNCTIONS = stub_functions(STUB.body)
SOURCES = source_functions()
CLASSES = {node.name for node in STUB.body if isinstance(node, ast.ClassDef)}
VARIABLES = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign) and node.value is None}


def test_all_is_what_is_public():
    assert len(tp.__all__) == len(set(tp.__all__))
    names = {name for name in dir(tp) if not name.startswith("_") and not isinstance(getattr(tp, name), ModuleType)}
    assert set(tp.__all__) == names | MODULES


def test_all_has_every_op():
    assert set(ops.TABLE) <= set(tp.__all__)
    assert all(getattr(tp, name) is getattr(_core, name) for name in ops.TABLE)


def test_star_import():
    scope = {}
    exec("from tapeflow import *", scope)
    assert set(scope) - {"__builtins__"} == set(tp.__all__)


def test_every_public_name_of_the_core_is_in_the_stub():
    known = {*FUNCTIONS, *CLASSES, *VARIABLES}
    public = [name for name in tp.__all__ if hasattr(_core, name) and getattr(tp, name) is getattr(_core, name)]
    missing = [name for name in public if name not in MODULES and name not in known]
    assert len(public) > 60
    assert not missing


@pytest.mark.parametrize("name", ["Tensor", "Tape", "no_grad", "enable_grad"])
def test_every_member_is_in_the_stub(name):
    kind = getattr(tp, name)
    known = {function.rpartition(".")[2] for function in FUNCTIONS if function.startswith((name + ".", "_GradMode."))}
    assert not [m for m in dir(kind) if not m.startswith("_") and m not in known]
    specials = {m for m in vars(kind) if m.startswith("__") and m.endswith("__") and not hasattr(object, m)}
    assert not specials - {"__pyx_vtable__", "__setstate__", "__delitem__"} - known  # elements cannot be deleted


def test_the_stub_has_nothing_that_is_not_there():
    for name in [*FUNCTIONS, *CLASSES, *VARIABLES]:
        kind, _, member = name.rpartition(".")
        assert hasattr(getattr(_core, kind) if kind else _core, member), name


@pytest.mark.parametrize("name", sorted(name for name in FUNCTIONS if "." not in name))
def test_parameters_of_functions(name):
    assert FUNCTIONS[name] == SOURCES[name]


def test_parameters_of_methods():
    methods = [name for name in FUNCTIONS if "." in name and ".__" not in name]
    assert len(methods) > 40
    assert {name: FUNCTIONS[name] for name in methods} == {name: SOURCES.get(name) for name in methods}


@pytest.mark.parametrize("name", [name for name, entry in ops.TABLE.items() if entry.public])
def test_parameters_of_ops(name):
    assert FUNCTIONS[name] == ", ".join([*codegen.parameters(ops.TABLE[name]), "/"])


# ---- typed programs


GOOD = """
import numpy as np
from typing_extensions import assert_type

import tapeflow as tp
from tapeflow import Tape, Tensor, no_grad


def loss(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w - 1) ** 2 / 2.0 + tp.relu(-x).sum()).mean()


x = tp.tensor(np.ones((3, 2)), dtype=tp.float32)
w = tp.tensor([[1.0], [2.0]], requires_grad=True)
value = loss(w, x)
value.backward()
assert_type(value, Tensor)
assert_type(w.grad, Tensor | None)
with tp.no_grad():
    if w.grad is not None:
        w -= 0.1 * w.grad
        w.assign_sub(w.grad * np.float32(0.1)).zero_()
        w.grad = None

with Tape(persistent=True, watch=[x]) as tape:
    y = (tp.exp(x) + tp.where(x > 0, x, 0.0) - tp.maximum(x, 1)).sum()
gx: Tensor = tape.gradient(y, x, unconnected="zero")
gw, gb = tape.gradient(y, [x, w])
assert_type(len(tape), int)

first = tp.grad(loss)
d: Tensor = first(w, x)
v, (dw, dx) = tp.value_and_grad(loss, argnums=(0, 1))(w, x)


@no_grad()
def predict(x: Tensor) -> list[float]:
    scores = tp.softmax(x.reshape(-1, 2), axis=1)[..., 0]
    assert_type(scores[1:], Tensor)
    assert_type(scores == 1.0, Tensor)
    return [float(s) for s in scores]


assert_type(predict(x), list[float])
assert_type(x.shape, tuple[int, ...])
assert_type(value.item(), float)
assert_type(tp.stack([x, x]), Tensor)
assert_type(tp.random.Generator(0).normal(shape=(2, 2)), Tensor)
assert_type(tp.zeros((2, 2), dtype="float64").sum(axis=(0, 1)), Tensor)
assert_type(tp.pi, float)
try:
    tp.ones(2) + tp.ones(3)
except tp.ShapeError as error:
    print(error)
x[x > 0] = 2
hook = y.register_hook(lambda g: 2 * g)
hook.remove()


class Dense(tp.nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        self.weight = tp.nn.Parameter(tp.nn.init.kaiming_normal((n_in, n_out)))

    def forward(self, x: Tensor) -> Tensor:
        return tp.relu(x @ self.weight)


model = tp.nn.Sequential(Dense(2, 3), tp.nn.Tanh())
adam = tp.optim.Adam(model.parameters(), lr=tp.optim.cosine(1e-3, 10))
tp.mse_loss(model(x), tp.zeros((3, 3))).backward()
adam.step()
adam.lr = 0.1
for parameters in adam.param_groups:
    parameters["lr"] *= 0.5
assert_type(adam.lr, Tensor)
assert_type(tp.nn.Linear(2, 3).weight, Tensor)
assert_type(model.eval(), tp.nn.Sequential)
state: dict[str, Tensor] = model.state_dict()
"""

WRONG = """
import tapeflow as tp

x = tp.tensor(1.0)
tp.exp()
tp.exp(a=x)
x.backwards()
x + "1"
tp.no_such_op(x)
tp.sum(x, axis="a")
x.grad.tolist()
n: int = x.shape
with tp.Tape() as tape:
    tape.gradient(x, x, unconnected="no")
"""


def strict(folder, *paths):
    """What mypy --strict says about programs of a user."""
    command = ["mypy", "--strict", "--follow-imports=silent", "--config-file=", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--cache-dir", str(folder.parent / "cache"), *map(str, paths)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "MYPYPATH"},
        capture_output=True,
        text=True,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def check(folder, program):
    """The lines of a program that mypy --strict complains about, and its output."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    output = strict(folder, path)
    return sorted({int(line) for line in re.findall(r"program\.py:(\d+): error", output)}), output


def test_typed_programs(tmp_path):
    pytest.importorskip("mypy")
    lines, output = check(tmp_path, GOOD)
    assert not lines and not output, output
    lines, output = check(tmp_path, WRONG)
    assert lines == [5, 6, 7, 8, 9, 10, 11, 12, 14], output


def test_typed_examples(tmp_path):
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"  # scikit-learn and tqdm have no types
    config.write_text("[mypy]\nignore_missing_imports = true\n")
    output = strict(tmp_path, f"--config-file={config}", *sorted((ROOT / "examples").glob("*.py")))
    assert not output, output


def test_compiled_functions_tell_their_signatures():
    found = [name for name in FUNCTIONS if "." not in name or ".__" not in name]
    for name in found:
        owner, _, function = name.rpartition(".")
        value = getattr(getattr(_core, owner) if owner else _core, function)
        if callable(value):
            told = str(inspect.signature(value))[1:-1].replace("self, /, ", "self, ").removesuffix("self, /")
            want = re.sub(r" = ", "=", FUNCTIONS[name])
            assert told.replace("self, ", "") == want.replace("self, ", "").removesuffix("self"), name
    assert len(found) > 150
    assert "exp(a, /)" in pydoc.plain(pydoc.render_doc(tp.exp)) and "Returns" in tp.exp.__doc__


def test_the_good_program_runs(capsys):
    program = GOOD.replace("from typing_extensions import assert_type", "assert_type = lambda x, kind: x")
    exec(compile(program, "program", "exec"), {})
    assert "add" in capsys.readouterr().out


def test_stubs_are_shipped(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    command = [sys.executable, "setup.py", "-q", "build_py", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tapeflow" / "py.typed").exists()
    assert (tmp_path / "tapeflow" / "_core.pyi").exists()
