"""Sums of products: einsum and what is a case of it, planned here and run by the core (core/contract.pxi).

A plan is made from labels and shapes alone, of products of matrices, products by elements (summed over axes or not),
reshapes and permutations of axes, and is kept: the second call of a kind only runs it.
Axes of size 1 leave an operand before planning, so that a broadcast label is one that the operand does not have; a
label that one operand alone has is summed at once. Then pairs are contracted, cheapest order first, until one is left.
No step makes anything larger than its operands and its result, but for a product over shared axes alone.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tapeflow import _core, _creation
from tapeflow._arguments import NUMBERS, as_axis
from tapeflow._core import Tensor
from tapeflow.errors import AxisError, DTypeError, ShapeError

_Labels = tuple[int, ...]
_Shape = tuple[int, ...]
_Sizes = dict[int, int]
_Pipe = tuple[tuple[str, tuple[int, ...]], ...]  # "permute" and axes, "reshape" and sizes, "sum" and axes, "diagonal"


_EXHAUSTIVE = 8  # operands up to which the best order is looked for; 3**n / 2 splits


class _Step(NamedTuple):
    """One pair: the slots it takes, how each is laid out, what is done (a product by elements summed over some axes,
    or, for None, of matrices), and what is done to the result."""

    i: int
    j: int
    left: _Pipe
    right: _Pipe
    product: tuple[int, ...] | None
    after: _Pipe


class _Plan(NamedTuple):
    """What becomes of some operands at first, the pairs, and what becomes of the last result."""

    first: tuple[tuple[int, _Pipe], ...]
    steps: tuple[_Step, ...]
    last: _Pipe


# ---- operands


def _operands(op: str, xs: Sequence[Any]) -> list[Tensor]:
    """Tensors of one dtype, the promoted one; Python numbers are weak."""
    first: Any = None
    for x in xs:
        if not isinstance(x, Tensor):
            break
        if first is None:
            first = x.dtype
        elif x.dtype is not first:
            break
    else:
        return list(xs)
    found = [x if isinstance(x, Tensor) or type(x) in NUMBERS else _creation.convert(x, op) for x in xs]
    dtype = _core.result_type(*found)
    return [x.astype(dtype, copy=False) if isinstance(x, Tensor) else _core.from_number(x, dtype, op) for x in found]


# ---- planning: one operand


def _diagonals(labels: _Labels, shape: _Shape) -> tuple[list[Any], _Labels, _Shape]:
    """A pipe that leaves one axis of each repeated label: the diagonal of two, side by side, of one axis of n * n."""
    pipe: list[Any] = []
    while len(set(labels)) < len(labels):
        p = next(p for p, c in enumerate(labels) if c in labels[p + 1 :])
        q = labels.index(labels[p], p + 1)
        if q != p + 1:
            order = [d for d in range(len(labels)) if d not in (p, q)]
            pipe.append(("permute", (*order, p, q)))
            labels, shape = (tuple(x[d] for d in (*order, p, q)) for x in (labels, shape))
            p = len(order)
        n, before, after = shape[p], shape[:p], shape[p + 2 :]
        pipe += [("reshape", (*before, n * n, *after)), ("diagonal", (p, n + 1))]
        labels, shape = (*labels[: p + 1], *labels[p + 2 :]), (*before, n, *after)
    return pipe, labels, shape


def _arrange(labels: _Labels, sizes: _Sizes, groups: Sequence[_Labels]) -> _Pipe:
    """A pipe from axes `labels` to one axis for each group, its labels merged; an empty group is an axis of size 1.

    Groups that lie together already are merged before they are moved: then nothing is copied.
    """
    shape = tuple(sizes[c] for c in labels)
    wanted = tuple(math.prod(sizes[c] for c in g) for g in groups)
    full = [k for k, g in enumerate(groups) if g]
    together = all(_together(labels, groups[k]) for k in full)
    order = sorted(full, key=lambda k: labels.index(groups[k][0]))
    pipe: list[Any] = []
    if together and order != full:
        order += [k for k, g in enumerate(groups) if not g]
        merged = tuple(wanted[k] for k in order)
        if merged != shape:
            pipe.append(("reshape", merged))
        pipe.append(("permute", tuple(order.index(k) for k in range(len(groups)))))
        return tuple(pipe)
    if not together:
        moved = tuple(labels.index(c) for g in groups for c in g)
        pipe.append(("permute", moved))
        shape = tuple(shape[d] for d in moved)
    if wanted != shape:
        pipe.append(("reshape", wanted))
    return tuple(pipe)


def _together(labels: _Labels, group: _Labels) -> bool:
    """Does the group stand in labels, in its order, without a gap?"""
    start = labels.index(group[0]) if group else 0
    return labels[start : start + len(group)] == group


# ---- planning: a pair


def _pair(a: _Labels, b: _Labels, keep: set[int], out: _Labels, sizes: _Sizes) -> tuple[Any, ...]:
    """How two operands become one with the labels in keep, in the order of out as far as that costs nothing.

    Returns whether they change sides, then the pipes, the product and the labels as in a _Step.
    """
    rank = {c: k for k, c in enumerate(out)}
    swap = min((rank.get(c, 99) for c in a if c not in b), default=0) > min(
        (rank.get(c, 99) for c in b if c not in a), default=99
    )
    swap = swap or set(a) <= set(b) and not set(b) <= set(a)  # a lone vector is a column: BLAS is faster with that
    if swap:
        a, b = b, a
    shared = tuple(sorted((c for c in a if c in b and c in keep), key=lambda c: rank.get(c, 99)))
    summed = tuple(c for c in a if c in b and c not in keep)
    rows, columns = tuple(c for c in a if c not in b), tuple(c for c in b if c not in a)
    if not summed:  # an outer product: broadcasting
        labels = tuple(sorted((*shared, *rows, *columns), key=lambda c: rank.get(c, 99)))
        left, right = (_arrange(x, sizes, [(c,) if c in x else () for c in labels]) for x in (a, b))
        return swap, left, right, (), (), labels
    if not rows and not columns:  # dot products side by side: no matrix to multiply
        right = _arrange(b, sizes, [(c,) for c in a])
        axes = tuple(d for d, c in enumerate(a) if c not in keep)
        return swap, (), right, axes, (), tuple(c for c in a if c in keep)
    summed = min(
        (summed, tuple(c for c in b if c in summed)), key=lambda s: _copied(s, a, sizes) + _copied(s, b, sizes)
    )
    batch = [(c,) for c in shared]
    left = _arrange(a, sizes, [*batch, rows, summed])
    right = _arrange(b, sizes, [*batch, summed, columns])
    labels = (*shared, *rows, *columns)
    split = () if len(rows) == len(columns) == 1 else (("reshape", tuple(sizes[c] for c in labels)),)
    return swap, left, right, None, split, labels


def _copied(group: _Labels, labels: _Labels, sizes: _Sizes) -> int:
    """The elements that must be moved to merge the group."""
    return 0 if _together(labels, group) else math.prod(sizes[c] for c in labels)


# ---- planning: the order


def _order(labels: Sequence[_Labels], out: _Labels, sizes: _Sizes, by_cost: bool) -> list[tuple[int, int]]:
    """The pairs of slots to contract; each result takes the next slot. The cost of a pair is its multiplications."""
    bit = {c: 1 << k for k, c in enumerate(sizes)}

    def mask(group: Iterable[int]) -> int:
        return sum(bit[c] for c in group)

    @functools.cache
    def size(labels: int) -> int:
        return math.prod(n for n, b in zip(sizes.values(), bit.values(), strict=True) if labels & b)

    masks, kept, n = [mask(set(group)) for group in labels], mask(out), len(labels)
    if n < 3 or not by_cost:
        return [(0, 1), *((n + k, k + 2) for k in range(n - 2))][: n - 1]
    return _best(masks, kept, size) if n <= _EXHAUSTIVE else _greedy(masks, kept, size)


def _best(masks: list[int], out: int, size: Callable[[int], int]) -> list[tuple[int, int]]:
    """The cheapest order, by dynamic programming over the sets of operands."""
    n = len(masks)
    full = (1 << n) - 1
    inside = [0] * (full + 1)
    for s in range(1, full + 1):
        low = s & -s
        inside[s] = inside[s ^ low] | masks[low.bit_length() - 1]
    kept = [inside[s] & (out | inside[full ^ s]) for s in range(full + 1)]
    cost, split = [0] * (full + 1), [0] * (full + 1)
    for s in range(1, full + 1):
        low = s & -s
        if s == low:
            continue
        rest, least = s ^ low, -1
        sub = rest
        while sub:  # the part without the lowest operand
            total = cost[s ^ sub] + cost[sub] + size(kept[s ^ sub] | kept[sub])
            if least < 0 or total < least:
                least, split[s] = total, sub
            sub = (sub - 1) & rest
        cost[s] = least
    pairs: list[tuple[int, int]] = []

    def emit(s: int) -> int:
        if not split[s]:
            return s.bit_length() - 1
        pairs.append((emit(s ^ split[s]), emit(split[s])))
        return n + len(pairs) - 1

    emit(full)
    return pairs


def _greedy(masks: list[int], out: int, size: Callable[[int], int]) -> list[tuple[int, int]]:
    """The cheapest pair each time; among equals the one with the smaller result."""
    live, n = dict(enumerate(masks)), len(masks)
    pairs: list[tuple[int, int]] = []
    while len(live) > 1:
        best: Any = None
        for i, a in live.items():
            for j, b in live.items():
                if i < j:
                    others = functools.reduce(operator.or_, (m for k, m in live.items() if k not in (i, j)), out)
                    key = size(a | b), size((a | b) & others), i, j, (a | b) & others
                    best = key if best is None or key < best else best
        *_, i, j, result = best
        del live[i], live[j]
        live[n + len(pairs)] = result
        pairs.append((i, j))
    return pairs


# ---- planning: the whole


def _plan(op: str, labels: Sequence[_Labels], out: _Labels, shapes: Sequence[_Shape], by_cost: bool = True) -> _Plan:
    """The plan of a contraction; every label of out is in labels, once."""
    sizes: _Sizes = {}
    for group, shape in zip(labels, shapes, strict=True):
        own: _Sizes = {}
        for c, n in zip(group, shape, strict=True):
            if own.setdefault(c, n) != n or 1 not in (n, sizes.get(c, 1)) and sizes[c] != n:
                raise ShapeError(
                    f"[{op}] sizes {own[c] if own[c] != n else sizes[c]} and {n} of one label differ; "
                    f"shapes: {', '.join(map(str, shapes))}. Sizes of a label must be equal, or 1 in one operand."
                )
            if n != 1 or c not in sizes:
                sizes[c] = n
    firsts: list[list[Any]] = []
    live: list[_Labels] = []
    for group, shape in zip(labels, shapes, strict=True):
        pipe, group, shape = _diagonals(group, shape)
        if 1 in shape:
            pipe.append(("reshape", tuple(n for n in shape if n != 1)))
            group = tuple(c for c, n in zip(group, shape, strict=True) if n != 1)
        firsts.append(pipe)
        live.append(group)
    for k, group in enumerate(live):
        needed = set(out).union(*live[:k], *live[k + 1 :])
        axes = tuple(d for d, c in enumerate(group) if c not in needed)
        if axes:
            firsts[k].append(("sum", axes))
            live[k] = tuple(c for c in group if c in needed)
    steps = []
    for i, j in _order(live, out, sizes, by_cost):
        others = set(out).union(*(g for k, g in enumerate(live) if k not in (i, j)))
        keep = others & {*live[i], *live[j]}
        swap, left, right, product, after, result = _pair(live[i], live[j], keep, out, sizes)
        live[i] = live[j] = ()
        live.append(result)
        steps.append(_Step(*((j, i) if swap else (i, j)), left, right, product, after))
    last = _arrange(live[-1], sizes, [(c,) if c in live[-1] else () for c in out])
    if not steps and not firsts[0] and not last:  # a tensor of its own all the same
        last = (("permute", tuple(range(len(out)))),)
    return _Plan(tuple((k, tuple(pipe)) for k, pipe in enumerate(firsts) if pipe), tuple(steps), last)


# ---- einsum


def _parse_term(text: str, ndim: int, k: int, subscripts: str) -> _Labels:
    """The labels of one operand: letters by code, the axes under an ellipsis -1, -2, ... from the right."""
    before, dots, after = text.partition("...")
    letters = before + after
    if not all(c.isascii() and c.isalpha() for c in letters):
        raise ShapeError(
            f"[einsum] {text!r} in {subscripts!r} is not a term: expected letters and at most one ellipsis (...)."
        )
    extra = ndim - len(letters)
    if extra < 0 or (extra and not dots):
        raise ShapeError(
            f"[einsum] operand {k} has {ndim} dimensions, its term {text!r} names {len(letters)}. "
            "Name each axis, or write ... for the rest."
        )
    return (*map(ord, before), *range(-extra, 0), *map(ord, after))


def _parse(subscripts: str, ndims: Sequence[int]) -> tuple[list[_Labels], _Labels]:
    """The labels of the operands and of the result."""
    text = "".join(subscripts.split())
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ndims):
        raise ShapeError(f"[einsum] {subscripts!r} has {len(terms)} terms, {len(ndims)} operands were given.")
    labels = [_parse_term(t, n, k, subscripts) for k, (t, n) in enumerate(zip(terms, ndims, strict=True))]
    every = [c for group in labels for c in group]
    under = min(every, default=0)
    ellipsis = tuple(range(min(under, 0), 0))
    if not arrow:
        return labels, ellipsis + tuple(sorted(c for c in set(every) if c >= 0 and every.count(c) == 1))
    before, dots, after = output.partition("...")
    out = (*map(ord, before), *(ellipsis if dots else ()), *map(ord, after))
    wrong = next((chr(c) for c in out if c >= 0 and c not in every), None)
    if wrong is not None:
        raise ShapeError(f"[einsum] {wrong!r} of the result is in no operand of {subscripts!r}.")
    if len(set(out)) < len(out):
        raise ShapeError(f"[einsum] the result of {subscripts!r} names a label twice.")
    if ellipsis and not dots:
        raise ShapeError(f"[einsum] the ellipsis of the operands is missing from the result of {subscripts!r}. Add ...")
    return labels, out


def _einsum_plan(shapes: tuple[_Shape, ...], subscripts: str, by_cost: bool) -> _Plan:
    if not shapes:
        raise ShapeError("[einsum] expected at least one operand after the subscripts.")
    labels, out = _parse(subscripts, [len(s) for s in shapes])
    return _plan("einsum", labels, out, shapes, by_cost)


_einsum = _core.Plans("einsum", _operands, _einsum_plan)


def einsum(subscripts: str, /, *operands: Any, optimize: bool = True) -> Tensor:
    """Sums of products by Einstein's convention.

    Parameters
    ----------
    subscripts : str
        A term of letters for each operand, one letter an axis, then optionally ``->`` and the term of the result.
        A letter that the result lacks is summed over; one that is twice in a term takes the diagonal; ``...`` stands
        for any further axes, which broadcast. Without ``->`` the result has the ellipsis and, in alphabetical order,
        each letter that occurs once.
    operands : Tensor, array or number
        Axes of one letter have one size, or size 1, which broadcasts.
    optimize : bool
        Contract pairs in the order of least cost: the best one up to 8 operands, beyond that the cheapest pair each
        time. False: from left to right.

    Returns
    -------
    Tensor
        Of the promoted dtype of the operands; integers wrap, bool is "any of all".

    Raises
    ------
    ShapeError
        For subscripts that are not well formed or do not fit the operands.

    >>> a, b = tp.tensor([[1.0, 2.0], [3.0, 4.0]]), tp.tensor([10.0, 1.0])
    >>> tp.einsum("ij,j->i", a, b).tolist(), tp.einsum("ii", a).item()
    ([12.0, 34.0], 5.0)
    """
    if not isinstance(subscripts, str):
        raise DTypeError(f"[einsum] subscripts must be a str, got {type(subscripts).__name__}. Write 'ij,jk->ik'.")
    return _einsum.run(operands, subscripts, optimize if optimize is True else bool(optimize))


# ---- tensordot and the products of two


def _tensordot_plan(shapes: tuple[_Shape, ...], a_axes: _Shape, b_axes: _Shape, op: str = "tensordot") -> _Plan:
    a, b = shapes
    left, right = list(range(len(a))), list(range(len(a), len(a) + len(b)))
    for p, q in zip(a_axes, b_axes, strict=True):
        if a[p] != b[q]:
            raise ShapeError(
                f"[{op}] axis {p} of shape {a} and axis {q} of shape {b} differ in size: {a[p]} and {b[q]}. "
                "Axes that are summed over must match."
            )
        right[q] = left[p]
    out = [c for c in left if c not in right] + [c for c in right if c not in left]
    return _plan(op, [tuple(left), tuple(right)], tuple(out), [a, b])


def _tensordot_axes(axes: Any, a: _Shape, b: _Shape) -> tuple[_Shape, _Shape]:
    """The axes argument as two tuples of axes from 0."""
    if hasattr(axes, "__index__"):
        n = operator.index(axes)
        if not 0 <= n <= min(len(a), len(b)):
            raise AxisError(f"[tensordot] axes={n} is out of range for shapes {a} and {b}.")
        return tuple(range(len(a) - n, len(a))), tuple(range(n))
    try:
        pair = tuple(tuple(x) if isinstance(x, (tuple, list)) else (x,) for x in axes)
    except TypeError:
        raise DTypeError(f"[tensordot] axes must be an int or two sequences, got {type(axes).__name__}.") from None
    if len(pair) != 2 or len(pair[0]) != len(pair[1]):
        raise AxisError(f"[tensordot] expected axes as two sequences of one length, got {axes!r}.")
    left, right = (tuple(as_axis(x, len(s), "tensordot") for x in xs) for xs, s in zip(pair, (a, b), strict=True))
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        raise AxisError(f"[tensordot] an axis is named twice in {axes!r}.")
    return left, right


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Tensor:
    """The sum of products over some axes of each; the other axes of x1, then those of x2, remain.

    Parameters
    ----------
    x1, x2 : Tensor, array or number
    axes : int or (sequence of ints, sequence of ints)
        The axes of x1 and of x2 to sum over, in pairs of equal size; an int n: the last n of x1 and the first n of x2.

    Raises
    ------
    ShapeError
        For sizes that differ (there is no broadcasting here); AxisError for axes that are not there.

    >>> tp.tensordot(tp.ones((2, 3, 4)), tp.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
    (2, 5)
    """
    if not _core.is_plain(axes):
        x1, x2 = _operands("tensordot", (x1, x2))
        axes = _tensordot_axes(axes, x1.shape, x2.shape)
    return _tensordot.run((x1, x2), axes)


_tensordot = _core.Plans(
    "tensordot", _operands, lambda shapes, axes: _tensordot_plan(shapes, *_tensordot_axes(axes, *shapes))
)


# ---- vecdot, dot and inner: the core's functions where nothing needs planning


def _vecdot_plan(shapes: tuple[_Shape, ...], p: int, q: int) -> _Plan:
    a, b = shapes
    if a[p] != b[q]:
        raise ShapeError(f"[vecdot] vectors of length {a[p]} and {b[q]} in shapes {a} and {b}; expected one length.")
    labels = []
    for shape, axis in ((a, p), (b, q)):
        group = list(range(1 - len(shape), 0))
        group.insert(axis, 0)
        labels.append(tuple(group))
    return _plan("vecdot", labels, tuple(range(min(map(min, labels)), 0)), [a, b])


def _dot_plan(shapes: tuple[_Shape, ...]) -> _Plan:
    a, b = shapes
    return _tensordot_plan(shapes, (len(a) - 1,), (max(len(b) - 2, 0),), "dot")


def _inner_plan(shapes: tuple[_Shape, ...]) -> _Plan:
    a, b = shapes
    return _tensordot_plan(shapes, (len(a) - 1,), (len(b) - 1,), "inner")


_core.set_plans(
    _core.Plans("dot", _operands, _dot_plan),
    _core.Plans("inner", _operands, _inner_plan),
    _core.Plans("vecdot", _operands, _vecdot_plan),
)


# ---- cross and kron


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """The cross products of vectors of three elements along an axis; the other axes broadcast.

    Raises
    ------
    ShapeError
        Where the size along axis is not 3.

    >>> tp.cross(tp.tensor([1.0, 0.0, 0.0]), tp.tensor([0.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    a, b = _operands("cross", (x1, x2))
    p, q = as_axis(axis, a.ndim, "cross"), as_axis(axis, b.ndim, "cross")
    if a.shape[p] != 3 or b.shape[q] != 3:
        raise ShapeError(f"[cross] expected 3 elements along axis {axis}, got shapes {a.shape} and {b.shape}.")
    if a.ndim - p != b.ndim - q:  # a non-negative axis and ranks that differ: vectors last, and back
        a, b = _moved_last(a, p), _moved_last(b, q)
        result = cross(a, b)
        order = list(range(result.ndim - 1))
        order.insert(p if a.ndim >= b.ndim else q, result.ndim - 1)
        return _core.permute_dims(result, order)
    a0, a1, a2 = (a[(slice(None),) * p + (k,)] for k in range(3))
    b0, b1, b2 = (b[(slice(None),) * q + (k,)] for k in range(3))
    y = _core.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], 0)
    return _core.permute_dims(y, [*range(1, max(p, q) + 1), 0, *range(max(p, q) + 1, y.ndim)]) if max(p, q) else y


def _moved_last(x: Tensor, axis: int) -> Tensor:
    return _core.permute_dims(x, [*(d for d in range(x.ndim) if d != axis), axis])


def kron(a: Any, b: Any, /) -> Tensor:
    """The Kronecker product: b as a block times each element of a, along every axis.

    The shape is the product of the shapes, aligned from the right with ones in front.

    >>> tp.kron(tp.tensor([1.0, 10.0]), tp.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0, 10.0, 20.0]
    """
    a, b = _operands("kron", (a, b))
    n = max(a.ndim, b.ndim)
    if n > 32:
        raise ShapeError(f"[kron] {n} dimensions are too many: expected 32 at most.")
    left, right = ((1,) * (n - x.ndim) + x.shape for x in (a, b))
    blocks = _core.reshape(a, [m for size in left for m in (size, 1)])
    inside = _core.reshape(b, [m for size in right for m in (1, size)])
    return _core.reshape(_core.multiply(blocks, inside), [p * q for p, q in zip(left, right, strict=True)])


# ---- chains of matrices


def _chain(sizes: _Shape) -> tuple[tuple[int, int], ...]:
    """The pairs of slots of a chain of matrices, matrix k being (sizes[k], sizes[k + 1]); results take new slots."""
    n = len(sizes) - 1
    cost, split = [[0] * n for _ in range(n)], [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i][j], split[i][j] = min(
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
    pairs: list[tuple[int, int]] = []

    def emit(i: int, j: int) -> int:
        if i == j:
            return i
        pairs.append((emit(i, split[i][j]), emit(split[i][j] + 1, j)))
        return n + len(pairs) - 1

    emit(0, n - 1)
    return tuple(pairs)


def _chain_plan(shapes: tuple[_Shape, ...]) -> _Plan:
    """The plan for matrices of these shapes, of which the first may be a row and the last a column."""
    row, column = len(shapes[0]) == 1, len(shapes[-1]) == 1
    ends = [(1, *shapes[0]) if row else shapes[0], *shapes[1:]]
    ends[-1] = (*shapes[-1], 1) if column else ends[-1]
    if any(len(s) != 2 for s in ends) or any(p[1] != q[0] for p, q in zip(ends, ends[1:], strict=False)):
        raise ShapeError(
            f"[multi_dot] shapes {', '.join(map(str, shapes))} are no chain of matrices: expected 2-D (the ends may be "
            "1-D), the columns of each being the rows of the next."
        )
    sizes = (*(s[0] for s in ends), ends[-1][1])
    first = [(k, (("reshape", ends[k]),)) for k, end in ((0, row), (len(ends) - 1, column)) if end]
    steps = [_Step(i, j, (), (), None, ()) for i, j in _chain(sizes)]
    last = (("reshape", (sizes[0], sizes[-1])[row : 2 - column]),) if row or column else ()
    return _Plan(tuple(first), tuple(steps), last)


_multi_dot = _core.Plans("multi_dot", _operands, _chain_plan)


def multi_dot(arrays: Iterable[Any]) -> Tensor:
    """The product of a chain of matrices, in the order that takes the fewest multiplications.

    Parameters
    ----------
    arrays : sequence of two or more Tensors or arrays
        Matrices; the first may be 1-D, a row, and the last 1-D, a column.

    >>> tp.multi_dot([tp.ones((2, 30)), tp.ones((30, 5)), tp.ones(5)]).tolist()
    [150.0, 150.0]
    """
    if isinstance(arrays, Tensor) or not hasattr(arrays, "__iter__"):
        raise DTypeError(f"[multi_dot] expected a sequence of matrices, got {type(arrays).__name__}.")
    xs = tuple(arrays)
    if len(xs) < 2:
        raise ShapeError(f"[multi_dot] expected two or more matrices, got {len(xs)}.")
    return _multi_dot.run(xs)
