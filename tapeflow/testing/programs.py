"""Programs of tensors as text, made from numbers: with reuse, views and writes, and meaningful by construction.

A step is (name, i, j, k): i and j pick live values, k the parameters. `build` writes each step as a line of Python and
runs the line on the scalar oracle first; a line that means nothing there (shapes that do not fit, a value outside the
domain, a kink within rounding, something huge) is left out. So every list of numbers is a program, and shorter lists
of smaller numbers are shorter, plainer programs. What runs is the text that is printed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

import numpy as np

import tapeflow
from tapeflow.testing import oracle

Step = tuple[str, int, int, int]

MAX_SIZE, MAX_NDIM, MAX_VALUE = 64, 5, 1e3

INDICES = (
    ":", "0", "-1", "1:", ":-1", "::-1", "::2", "...", "None", "..., 0", ":, -1", "..., ::-2", "0, ..., 0:1", "1:1",
    "None, ..., None", "2:0:-1", "..., 1:", "0, 0", "3:0:-2", "[0, 0, -1]", "..., [-1, 0, 0]", "[0, 1], [1, 0]",
    "::-1, [0, 0]", "[[0], [-1]]", "0, [1, 1, 0]", "[1, 0], None, 0",
)  # fmt: skip


def index(text: str) -> Any:
    """The index that stands between brackets: index("::-1, 0") is (slice(None, None, -1), 0)."""
    return eval(f"s[{text}]", {"s": np.s_})


class _Name(str):
    """The name of a live value, which knows the shape."""

    shape: tuple[int, ...]

    def __new__(cls, name: str, shape: tuple[int, ...]) -> _Name:
        self = super().__new__(cls, name)
        self.shape = shape
        return self

    @property
    def ndim(self) -> int:
        return len(self.shape)


def _axis(a: _Name, k: int) -> int | None:
    return k % a.ndim if a.ndim else None


def _fit(shape: tuple[int, ...], b: _Name) -> str:
    """b, or its sum where it does not broadcast into the shape."""
    try:
        fits = np.broadcast_shapes(shape, b.shape) == shape
    except ValueError:
        fits = False
    return b if fits else f"tp.sum({b})"


# ---- steps that make a value: (a, b, k) -> an expression


def _unary(name: str) -> Callable:
    return lambda a, b, k: f"tp.{name}({a})"


def _positive(name: str) -> Callable:
    return lambda a, b, k: f"tp.{name}(tp.square({a}) + 0.5)" if k % 2 else f"tp.{name}({a})"


def _reduce(name: str) -> Callable:
    def step(a: _Name, b: _Name, k: int) -> str:
        axis = None if k % 3 == 2 else _axis(a, k // 6)
        options = [f"axis={axis}"] * (axis is not None) + ["keepdims=True"] * (k // 3 % 2)
        return f"tp.{name}({', '.join([a, *options])})"

    return step


def _pair(name: str) -> Callable:
    def step(a: _Name, b: _Name, k: int) -> str:
        fit = _fit(a.shape, b)
        return f"tp.{name}({a}, {fit})" if k % 2 else f"tp.{name}({fit}, {a})"

    return step


def _operator(sign: str) -> Callable:
    def step(a: _Name, b: _Name, k: int) -> str:
        fit = _fit(a.shape, b)
        return f"{a} {sign} {fit}" if k % 2 else f"{fit} {sign} {a}"

    return step


def _matmul(a: _Name, b: _Name, k: int) -> str:
    if a.ndim == 2 and k % 2:
        turned = f"tp.permute_dims({a}, (1, 0))"
        return f"tp.matmul({a}, {turned})" if k % 4 == 1 else f"tp.matmul({turned}, {a})"
    if 1 <= a.ndim <= 2 and 1 <= b.ndim <= 2 and a.shape[-1] == b.shape[0]:
        return f"{a} @ {b}"
    return f"tp.reshape({a}, (-1,)) @ tp.reshape({a}, (-1,))"


def _concat(a: _Name, b: _Name, k: int) -> str:
    if a.ndim and a.ndim == b.ndim and a.shape[1:] == b.shape[1:]:
        return f"tp.concat([{a}, {b}, {a}], axis=0)"
    return f"tp.concat([tp.reshape({b}, (-1,)), tp.reshape({a}, (-1,))], axis=0)"


def _stack(a: _Name, b: _Name, k: int) -> str:
    return f"tp.stack([tp.broadcast_to({_fit(a.shape, b)}, {a.shape}), {a}], axis={k % (a.ndim + 1)})"


def _take(a: _Name, b: _Name, k: int) -> str:
    source, axis = (a, _axis(a, k)) if a.ndim else (f"tp.reshape({a}, (1,))", 0)
    return f"tp.take({source}, {[[0], [-1, 0], [-1, -1, 0]][k % 3]}, axis={axis})"


def _where(a: _Name, b: _Name, k: int) -> str:
    fit = _fit(a.shape, b)
    return f"tp.where({a} > {fit}, {a} * 2.0, {fit})" if k % 2 else f"tp.where({a} > 0.25, {fit}, {a})"


def _index(a: _Name, b: _Name, k: int) -> str:
    return f"{a}[{INDICES[k % len(INDICES)]}]"


def _mask(a: _Name, k: int) -> str:
    if k % 2:
        return f"{a}[{a} > {k % 3 / 4}]"
    return f"{a}[np.arange({np.prod(a.shape, dtype=int)}).reshape({a.shape}) % 3 == {k % 3}]"


UNARY = "negative exp exp2 expm1 sin cos tanh atan asinh sigmoid silu softplus erf relu abs sign floor square".split()
POSITIVE = "log log2 log1p sqrt rsqrt reciprocal".split()
PAIR = "add subtract multiply divide maximum minimum logaddexp".split()
REDUCE = "sum mean max min prod logsumexp var".split()
AXIS = "softmax log_softmax cumulative_sum squeeze".split()

MAKES: dict[str, Callable[[_Name, _Name, int], str]] = {
    **{name: _unary(name) for name in UNARY},
    **{name: _positive(name) for name in POSITIVE},
    **{name: _reduce(name) for name in REDUCE},
    **{name: _pair(name) for name in PAIR},
    **{name: lambda a, b, k, name=name: f"tp.{name}({a}, axis={k % a.ndim})" for name in AXIS},  # type: ignore[misc]
    "operators": lambda a, b, k: f"({a} + {_fit(a.shape, b)}) * 0.5 - {a} / 4.0 + 1.5",
    "plus": _operator("+"),
    "minus": _operator("-"),
    "times": _operator("*"),
    "over": _operator("/"),
    "pow": lambda a, b, k: f"(tp.square({a}) + 0.5) ** {_fit(a.shape, b)}",
    "whole_power": lambda a, b, k: f"{a} ** {k % 4}",
    "where": _where,
    "clip": lambda a, b, k: f"tp.clip({a}, {k % 5 / 2 - 2}, {k % 7 / 2})",
    "matmul": _matmul,
    "flatten": lambda a, b, k: f"tp.reshape({a}, (-1,))",
    "transpose": lambda a, b, k: f"tp.permute_dims({a}, {tuple(range(a.ndim))[::-1]})",
    "broadcast": lambda a, b, k: f"tp.broadcast_to({a}, {(1 + k % 2, *a.shape)})",
    "expand": lambda a, b, k: f"tp.expand_dims({a}, axis={k % (a.ndim + 1)})",
    "concat": _concat,
    "stack": _stack,
    "take": _take,
    "index": _index,
    "mask": lambda a, b, k: _mask(a, k),
}


# ---- steps that write into a: (a, b, k) -> a statement


def _set_item(a: _Name, b: _Name, k: int) -> str:
    text = INDICES[k % len(INDICES)]
    return f"{a}[{text}] = {_fit(np.empty(a.shape)[index(text)].shape, b)}"


def _change_item(a: _Name, b: _Name, k: int) -> str:
    text = INDICES[k % len(INDICES)]
    return f"{a}[{text}] {'*+-'[k % 3]}= {_fit(np.empty(a.shape)[index(text)].shape, b)}"


def _in_place(sign: str) -> Callable:
    return lambda a, b, k: f"{a} {sign}= {_fit(a.shape, b)}"


WRITES: dict[str, Callable[[_Name, _Name, int], str]] = {
    "set_item": _set_item,
    "change_item": _change_item,
    "set_mask": lambda a, b, k: f"{_mask(a, k)} = tp.sum({b})",
    "add_in_place": _in_place("+"),
    "subtract_in_place": _in_place("-"),
    "multiply_in_place": _in_place("*"),
}

STEPS = tuple(sorted(name for name in (*MAKES, *WRITES) if hasattr(tapeflow, name) or name not in dir(oracle)))


class Program:
    """A program of tapeflow, as text, and the arrays that it starts from.

    `str(program)` is a script that runs by itself. Called with tensors (or whatever `module` computes with), the
    program returns its loss, a number that every live value goes into with a weight of its own.

    Attributes:
        leaves: the arrays x0, x1, ...
        lines: the statements, without the ones that make the leaves and the loss.
        live: the names of the values at the end, leaves first.

    >>> import numpy as np
    >>> from tapeflow.testing.programs import build
    >>> program = build([np.array([1.0, 2.0])], [("exp", 0, 0, 0), ("set_item", 0, 1, 1)])
    >>> print(program)
    import tapeflow as tp
    <BLANKLINE>
    x0 = tp.tensor([1.0, 2.0], dtype="float64", requires_grad=True)
    v0 = tp.exp(x0)
    v0[0] = tp.sum(x0)
    loss = sum(weight * tp.sum(value) for weight, value in enumerate((x0, v0), 1))
    loss.backward()
    print(x0.grad)
    >>> [g] = program.gradients()
    >>> program.run(*map(tp.tensor, program.leaves))["v0"].shape, g.value.round(2).tolist()
    ((2,), [3.0, 17.78])
    """

    def __init__(self, leaves: Sequence[np.ndarray], lines: Sequence[str], live: Sequence[str]):
        self.leaves, self.lines, self.live = tuple(leaves), tuple(lines), tuple(live)
        names = ", ".join(self.live) + "," * (len(self.live) == 1)
        self._loss = f"loss = sum(weight * tp.sum(value) for weight, value in enumerate(({names}), 1))"

    @functools.cached_property
    def _code(self) -> CodeType:
        return compile("\n".join([*self.lines, self._loss]), "<program>", "exec")

    def run(self, *leaves: Any, module: ModuleType = tapeflow) -> dict[str, Any]:
        """All live values at the end, and the loss, by name."""
        scope: dict[str, Any] = {"tp": module, "np": np, **{f"x{i}": x for i, x in enumerate(leaves)}}
        exec(self._code, scope)
        return {name: scope[name] for name in (*self.live, "loss")}

    def __call__(self, *leaves: Any, module: ModuleType = tapeflow) -> Any:
        """The loss. The leaves stay as they are: what is written to is a view of them."""
        return self.run(*leaves, module=module)["loss"]

    def gradients(self) -> list[oracle.Gradient]:
        """The gradient of the loss with respect to each leaf, by the oracle."""
        leaves = [oracle.tensor(x) for x in self.leaves]
        return oracle.gradients(self(*leaves, module=oracle), leaves)

    def __str__(self) -> str:
        names = [f"x{i}" for i in range(len(self.leaves))]
        text = [f"{name} = {_tensor(x)}" for name, x in zip(names, self.leaves, strict=True)]
        text += [*self.lines, self._loss, "loss.backward()", f"print({', '.join(f'{name}.grad' for name in names)})"]
        imports = ["import numpy as np", ""] * any("np." in line for line in text) + ["import tapeflow as tp", ""]
        return "\n".join(imports + text)

    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("\n" + str(self) + "\n")


def _tensor(x: np.ndarray) -> str:
    options = f'dtype="{x.dtype}", requires_grad=True'
    return f"tp.tensor({x.tolist()}, {options})" if x.size else f"tp.zeros({x.shape}, {options})"


def build(leaves: Sequence[np.ndarray], steps: Sequence[Step]) -> Program:
    """The program of the steps that mean something.

    Args:
        leaves: float arrays; few bits (quarters, say) keep ties certain, so that kinks can be tested.
        steps: tuples (name, i, j, k) of a name in STEPS and integers that are not negative. Operands are counted from
            the latest live value backwards, modulo their number; a write to a leaf goes to a view of it.
    """
    scope: dict[str, Any] = {"tp": oracle, "np": np}
    scope |= {f"x{n}": oracle.tensor(leaf) for n, leaf in enumerate(leaves)}
    live, lines = list(scope)[2:], []
    for name, i, j, k in steps:
        a, b = (_Name(live[-1 - pick % len(live)], scope[live[-1 - pick % len(live)]].shape) for pick in (i, j))
        target = f"v{len(live) - len(leaves)}" if name in MAKES or a[0] == "x" else str(a)
        trial = dict(scope)
        try:
            if name in MAKES:
                text = [f"{target} = {MAKES[name](a, b, k)}"]
            else:
                text = [f"{target} = {a}[...]"] * (target != a) + [WRITES[name](_Name(target, a.shape), b, k)]
                trial[target] = scope[a][...]
            exec("\n".join(text), trial)
            values = trial[target].numpy()
        except (oracle.Ambiguous, ValueError, IndexError, TypeError, ArithmeticError):
            continue
        if values.size <= MAX_SIZE and values.ndim <= MAX_NDIM and np.all(np.abs(values) < MAX_VALUE):
            scope = trial
            live += [target] * (target not in live)
            lines += text + [f"{target}.tolist()"] * (k % 5 == 4)  # a look, which must change nothing
    return Program(leaves, lines, live)
