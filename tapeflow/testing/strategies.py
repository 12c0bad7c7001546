"""Hypothesis strategies for tensors, shapes, axes, indices, contractions and whole programs.

What is drawn is small by default, mixes in what code forgets (no elements, ties, signed zeros, odd strides, duplicate
indices) at stated odds, and shrinks to the plainest case: shape (), value 0, the plain layout, a short program.

>>> from tapeflow.testing import strategies as tps
>>> from hypothesis import given, settings
>>> @settings(max_examples=10, database=None)
... @given(tps.broadcastable_shapes(2))
... def test(shapes):
...     assert (tp.zeros(shapes[0]) + tp.zeros(shapes[1])).shape == np.broadcast_shapes(*shapes)
>>> test()
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

import tapeflow as tp
from tapeflow.testing import programs as _programs
from tapeflow.testing.layouts import LAYOUTS, special_points

try:
    from hypothesis import currently_in_test_context, note
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        f"[testing.strategies] needs hypothesis, which could not be imported ({error}). "
        'Install it: pip install "hypothesis>=6.100"'
    ) from error

Shape = tuple[int, ...]

FLOATS = ("float32", "float64")
DTYPES = (*FLOATS, "int64", "int32", "uint8", "bool")
EVERY_LAYOUT = (*LAYOUTS, "stretched")
DRAWN = 251  # elements that are drawn for one tensor; a larger one repeats them

_LETTERS = "ijklmnopqr"


def _strategy(x: Any, default: st.SearchStrategy) -> st.SearchStrategy:
    """x if it is a strategy, the default for None, else just x."""
    return default if x is None else x if isinstance(x, st.SearchStrategy) else st.just(x)


@functools.lru_cache
def _odds(share: float) -> st.SearchStrategy[bool]:
    """True at the odds, to 1 in 64; shrinks to False."""
    return st.integers(0, 63).map(lambda n: n >= 64 - round(64 * share))


# ---- shapes


def shapes(
    min_ndim: int = 0, max_ndim: int = 3, min_side: int = 0, max_side: int = 4, max_size: int = 64
) -> st.SearchStrategy[Shape]:
    """Shapes, down to () and with no elements (odds 1 in 16 per axis, where min_side is 0).

    Args:
        min_ndim, max_ndim: bounds of the number of axes.
        min_side, max_side: bounds of each size.
        max_size: bound of the product; axes that would pass it get size min_side or 1.

    >>> from hypothesis import find
    >>> find(shapes(), lambda shape: len(shape) == 2)
    (1, 1)
    """
    least = max(min_side, 1)
    width = max_side - least + 1
    side = st.integers(0, 16 * width - 1).map(lambda n: 0 if n >= 15 * width and not min_side else least + n % width)

    def bounded(sides: list[int]) -> Shape:
        size, out = 1, []
        for n in sides:
            n = n if size * n <= max_size else least
            size *= n
            out.append(n)
        return tuple(out)

    return st.lists(side, min_size=min_ndim, max_size=max_ndim).map(bounded)


@st.composite
def broadcastable_shapes(draw: Any, n: int, shape: Any = None) -> tuple[Shape, ...]:
    """n shapes that broadcast with each other: axes are dropped from the left, or have size 1.

    Args:
        n: how many.
        shape: what they all broadcast to, or a strategy of it; `shapes()` by default.

    >>> from hypothesis import find
    >>> find(broadcastable_shapes(2, shape=(2, 3)), lambda pair: pair[0] == (2, 1))[0]
    (2, 1)
    """
    full = draw(_strategy(shape, shapes()))
    out = []
    for _ in range(n):
        kept = full[draw(st.integers(0, len(full))) :]
        out.append(tuple(1 if draw(_odds(1 / 4)) else size for size in kept))
    return tuple(out)


def axes(ndim: int, none: bool = True, tuples: bool = True) -> st.SearchStrategy[Any]:
    """Whatever may be given as `axis`: None, an int from either end, a tuple of distinct axes, in any order.

    Args:
        ndim: of the operand.
        none: whether None is drawn.
        tuples: whether tuples are drawn, the empty one included.

    >>> from hypothesis import find
    >>> find(axes(3, tuples=False), lambda axis: axis is not None), find(axes(3), lambda axis: isinstance(axis, tuple))
    (0, ())
    """
    kinds: list[st.SearchStrategy[Any]] = [st.none()] * none
    if ndim:
        kinds.append(st.integers(-ndim, ndim - 1))
    if tuples:
        signed = st.tuples(st.permutations(range(ndim)), st.lists(st.booleans(), min_size=ndim, max_size=ndim))
        whole = signed.map(lambda pair: tuple(i - ndim * negative for i, negative in zip(*pair)))
        kinds.append(st.tuples(whole, st.integers(0, ndim)).map(lambda pair: pair[0][: pair[1]]))
    return st.one_of(kinds)


# ---- tensors


def elements(
    dtype: DTypeLike, low: float = -4, high: float = 4, special: float = 1 / 8, points: Sequence[Any] | None = None
) -> st.SearchStrategy[Any]:
    """Single values of a dtype.

    Args:
        dtype: name or dtype.
        low, high: bounds of the ordinary values (of uint8, the part that fits).
        special: the odds of a special point, to 1 in 64.
        points: the special points; by default `special_points(dtype)`: signed zeros, subnormals, extremes, infinities,
            NaN, and values about 1. Name those that your function is defined at, its kinks above all.

    >>> from hypothesis import find
    >>> find(elements("float32", special=0), lambda v: v >= 1), find(elements("uint8"), lambda v: v > 4)
    (1.0, 254)
    """
    dtype = np.dtype(dtype)
    ordinary: st.SearchStrategy[Any]
    if dtype.kind == "b":
        ordinary = st.booleans()
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        ordinary = st.integers(max(math.ceil(low), int(info.min)), min(math.floor(high), int(info.max)))
    else:
        within = np.array([low, high], dtype).astype(float).tolist()
        ordinary = st.floats(*within, width=32 if dtype.itemsize == 4 else 64, allow_subnormal=False)
    chosen = special_points(dtype) if points is None else np.asarray(points, dtype)
    if not len(chosen) or not special:
        return ordinary
    odd = st.sampled_from(chosen.tolist())
    return _odds(special).flatmap(lambda is_special: odd if is_special else ordinary)


@st.composite
def tensors(
    draw: Any,
    shape: Any = None,
    dtype: Any = None,
    layout: Any = None,
    values: st.SearchStrategy[Any] | Callable[[Any], st.SearchStrategy[Any]] | None = None,
    requires_grad: bool = False,
) -> tp.Tensor:
    """Tensors, in every memory layout. A failing test prints the layout, unless it is the plain one.

    Args:
        shape: a shape or a strategy of shapes; `shapes()` by default.
        dtype: a dtype, its name, or a strategy of them; float32 and float64 by default, see DTYPES.
        layout: one of EVERY_LAYOUT or a strategy of them; all by default. "plain" is contiguous; "transposed" has its
            axes, "reversed" its elements in backward order (negative strides); "stepped" leaves gaps, "offset" has
            margins; "foreign" is read-only memory of NumPy's, by columns; "stretched" repeats along some axes with
            stride 0, so its values repeat too.
        values: a strategy of elements, or a function from the dtype to one; `elements` by default. Above 251 elements
            the drawn ones are repeated.
        requires_grad: whether the tensor is a leaf that collects gradients.

    >>> from hypothesis import find
    >>> x = find(tensors(shape=(2,), dtype="float64"), lambda x: x.numpy()[1] >= 1)
    >>> x.tolist()
    [0.0, 1.0]
    """
    size = tuple(draw(_strategy(shape, shapes())))
    kind = np.dtype(draw(_strategy(dtype, st.sampled_from(FLOATS))))
    name = draw(_strategy(layout, st.sampled_from(EVERY_LAYOUT)))
    if name != "stretched" and name not in LAYOUTS:
        raise ValueError(f"[tensors] layout is {name!r}, expected one of {', '.join(EVERY_LAYOUT)}")
    drawn = size
    if name == "stretched":
        kept = draw(st.integers(0, max(len(size) - 1, 0)))
        drawn = tuple(1 if i == kept or draw(st.booleans()) else n for i, n in enumerate(size))
    element = values if isinstance(values, st.SearchStrategy) else (values or elements)(kind)
    count = math.prod(drawn)
    row = draw(st.lists(element, min_size=min(count, DRAWN), max_size=min(count, DRAWN)))
    array = np.resize(np.array(row, kind), drawn)
    x = tp.broadcast_to(tp.tensor(array), size) if name == "stretched" else LAYOUTS[name](array)
    if name != "plain" and currently_in_test_context():
        note(f"a tensor of shape {size} has the layout {name!r}")
    return x.detach().requires_grad_() if requires_grad else x


# ---- indices


@functools.lru_cache
def _slices(size: int) -> st.SearchStrategy[slice]:
    """Slices of any direction, also past the ends and empty; the whole axis to begin with."""
    end = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, end, end, st.sampled_from([None, 1, 2, 3, -1, -2, -3]))


def _indexed_axes(draw: Any, ndim: int, least: int = 0) -> tuple[list[int], int]:
    """The axes that an index has entries for, and how many come before its Ellipsis (-1: it has none)."""
    n = draw(st.integers(least, ndim))
    if not draw(_odds(1 / 4)):
        return list(range(n)), -1
    before = draw(st.integers(0, n))
    return [*range(before), *range(ndim - n + before, ndim)], before


def _index(draw: Any, shape: Shape, indexed: list[int], gap: int, placed: dict[int, Any], number: float) -> Any:
    """Entries for the axes: those placed (None: the axis is covered by the one before), else ints, at the odds
    `number`, and slices; None among them. A single entry stands by itself half of the time."""
    entries: list[Any] = []
    for position, axis in enumerate(indexed):
        if position == gap:
            entries.append(...)
        if axis in placed:
            entries += [placed[axis]] * (placed[axis] is not None)
        elif shape[axis] and draw(_odds(number)):
            entries.append(draw(st.integers(-shape[axis], shape[axis] - 1)))
        else:
            entries.append(draw(_slices(shape[axis])))
    entries += [...] * (gap == len(indexed))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        entries.insert(draw(st.integers(0, len(entries))), None)
    return entries[0] if len(entries) == 1 and draw(st.booleans()) else tuple(entries)


@st.composite
def basic_indices(draw: Any, shape: Shape) -> Any:
    """NumPy's basic indices: ints, slices of any direction and past the ends, None, Ellipsis, short and bare ones.

    >>> from hypothesis import find
    >>> find(basic_indices((3, 4)), lambda index: isinstance(index, int))
    0
    """
    return _index(draw, shape, *_indexed_axes(draw, len(shape)), {}, 1 / 2)


@st.composite
def advanced_indices(draw: Any, shape: Shape, masks: bool = True) -> Any:
    """NumPy's advanced indices: int arrays that broadcast with each other, duplicates among them, or a bool mask over
    some axes, between ints, slices, None and Ellipsis.

    Args:
        shape: of what is indexed, with at least one axis (a shape () has masks alone).
        masks: whether bool masks are drawn; without them the result's shape does not depend on values.

    >>> from hypothesis import find
    >>> find(advanced_indices((3,), masks=False), lambda index: isinstance(index, np.ndarray)).tolist()
    0
    """
    if masks and (not shape or draw(_odds(1 / 4))):
        return _masked(draw, shape)
    if not shape:
        raise ValueError("[advanced_indices] a shape of () has no axis to index. Give one, or masks=True.")
    indexed, gap = _indexed_axes(draw, len(shape), 1)
    chosen = sorted(draw(st.sets(st.sampled_from(indexed), min_size=1)))
    full = draw(shapes(max_ndim=2, max_side=3))
    if not all(shape[axis] for axis in chosen):
        full = (0,)  # from an axis without elements nothing can be picked but nothing
    first, *others = draw(st.permutations(chosen))
    sizes = dict(zip([first, *others], (full, *draw(broadcastable_shapes(len(others), shape=full)))))
    placed = {axis: _positions(draw, shape[axis], sizes[axis] if shape[axis] else full) for axis in chosen}
    return _index(draw, shape, indexed, gap, placed, 1 / 4)


def _masked(draw: Any, shape: Shape) -> Any:
    """An index with a mask over one or more neighbouring axes."""
    indexed, gap = _indexed_axes(draw, len(shape), min(len(shape), 1))
    first = draw(st.integers(0, max(len(indexed) - 1, 0)))
    end = gap if first < gap else len(indexed)
    covered = indexed[first : draw(st.integers(first + 1, end))] if indexed else []
    sides = [shape[axis] for axis in covered]
    flags = draw(st.lists(st.booleans(), min_size=math.prod(sides), max_size=math.prod(sides)))
    mask = np.array(flags, bool).reshape(sides)
    if not shape:
        return mask if draw(st.booleans()) else (mask,)
    return _index(draw, shape, indexed, gap, {**dict.fromkeys(covered), covered[0]: mask}, 1 / 4)


def _positions(draw: Any, size: int, shape: Shape) -> np.ndarray:
    """Indices of an axis, from either end, taken from at most three so that most arrays have duplicates."""
    if not math.prod(shape):
        return np.zeros(shape, np.int64)
    pool = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=3))
    count = math.prod(shape)
    picked = draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
    return np.array(picked, np.int64).reshape(shape)


# ---- contractions


@st.composite
def matmul_shapes(draw: Any, max_side: int = 4) -> tuple[Shape, Shape]:
    """Two shapes that `@` takes: vectors, matrices and batches that broadcast, with sizes of 0 and 1 among them.

    >>> from hypothesis import find
    >>> find(matmul_shapes(), lambda pair: True)
    ((1,), (1,))
    """
    side = shapes(min_ndim=1, max_ndim=1, max_side=max_side).map(lambda shape: shape[0])
    inner = draw(side)
    vectors = draw(st.sampled_from([(True, True), (True, False), (False, True), (False, False), (False, False)]))
    left, right = draw(broadcastable_shapes(2, shape=shapes(max_ndim=2, max_side=3)))
    a = (inner,) if vectors[0] else (*left, draw(side), inner)
    b = (inner,) if vectors[1] else (*right, inner, draw(side))
    return a, b


class EinsumSpec(NamedTuple):
    """Subscripts as `einsum` takes them, and shapes of operands that fit."""

    subscripts: str
    shapes: tuple[Shape, ...]


@st.composite
def einsum_specs(draw: Any, max_operands: int = 3, max_side: int = 3) -> EinsumSpec:
    """Subscripts and shapes for `einsum`: labels repeated inside an operand and across operands, labels of size 1 that
    broadcast, Ellipsis, and outputs in any order, left out, or empty.

    >>> from hypothesis import find
    >>> find(einsum_specs(), lambda spec: "ii" in spec.subscripts).subscripts
    'ii'
    """
    size = {letter: draw(st.integers(1, max_side)) for letter in _LETTERS[: draw(st.integers(1, 4))]}
    if draw(_odds(1 / 16)):
        size[draw(st.sampled_from(sorted(size)))] = 0
    count = draw(st.integers(1, max_operands))
    terms = [draw(st.lists(st.sampled_from(sorted(size)), max_size=3)) for _ in range(count)]
    batch = draw(_odds(1 / 4))
    leading = draw(broadcastable_shapes(count, shape=shapes(max_ndim=2, max_side=2))) if batch else [()] * count
    subscripts, operands = [], []
    for term, front in zip(terms, leading):
        ones = {letter for letter in term if size[letter] and draw(_odds(1 / 8))}
        text, at = "".join(term), draw(st.integers(0, len(term)))
        sides = tuple(1 if letter in ones else size[letter] for letter in term)
        subscripts.append(text[:at] + "..." + text[at:] if batch else text)
        operands.append(sides[:at] + front + sides[at:])
    spec = ",".join(subscripts)
    if draw(st.booleans()):
        used = sorted({letter for term in terms for letter in term})
        out = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        spec += "->" + "..." * batch + "".join(out)
    return EinsumSpec(spec, tuple(operands))


# ---- programs


def leaf_arrays(shape: Any = None, dtype: str = "float64") -> st.SearchStrategy[np.ndarray]:
    """Arrays of quarters between -2.5 and 2.5: few bits, so that ties and kinks are hit, and for certain."""
    side = shapes(max_ndim=3, max_side=3, max_size=8)
    numbers = st.lists(st.integers(-10, 10), min_size=1, max_size=6)
    return st.builds(lambda s, n: np.resize(np.array(n) / 4.0, s).astype(dtype), _strategy(shape, side), numbers)


def program_steps(max_steps: int = 20) -> st.SearchStrategy[list[_programs.Step]]:
    """What `tapeflow.testing.programs.build` makes a program of, besides leaves."""
    pick = st.integers(0, 5)
    step = st.tuples(st.sampled_from(_programs.STEPS), pick, pick, st.integers(0, 60))
    return st.lists(step, max_size=max_steps)


@st.composite
def programs(
    draw: Any, max_steps: int = 20, min_leaves: int = 1, max_leaves: int = 3, dtype: str = "float64"
) -> _programs.Program:
    """Whole programs: values are used again, views taken, parts and wholes written to, kinks hit.

    A program is called with tensors and returns its loss; `gradients()` is the oracle's answer. It shrinks to a few
    lines and prints as a script that runs by itself, with tapeflow and with nothing of hypothesis.

    Args:
        max_steps: bound of the steps; those that mean nothing are left out.
        min_leaves, max_leaves: bounds of the number of arrays that it starts from.
        dtype: of the leaves, "float64" or "float32". The oracle computes in float64 either way.

    A failing test shows, say,

        import tapeflow as tp

        x0 = tp.tensor([0.0, 0.25], dtype="float64", requires_grad=True)
        v0 = x0[...]
        v0[::-1] *= x0
        loss = sum(weight * tp.sum(value) for weight, value in enumerate((x0, v0), 1))
        loss.backward()
        print(x0.grad)

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=3, database=None)
    ... @given(programs(max_steps=4))
    ... def test(program):
    ...     got = tp.grad(program)(*program.leaves)
    ...     assert np.allclose(got.numpy(), program.gradients()[0].value)
    >>> test()
    """
    leaves = draw(st.lists(leaf_arrays(dtype=dtype), min_size=min_leaves, max_size=max_leaves))
    return _programs.build(leaves, draw(program_steps(max_steps)))
