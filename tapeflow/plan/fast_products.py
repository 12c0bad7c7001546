"""Passes of fast.py: matrix products, and sums of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow.plan.ir import CODES, CONST, DTYPES, FLOAT32, GRAD, IR, N_ELEMENTWISE, Instr, Value, name_of
from tapeflow.plan.rewriting import FLOATS, Rewriter, axes_of, extents, has, swapped, word

_MATMUL, _SUM, _MEAN, _ADD = (CODES[name] for name in ("matmul", "sum", "mean", "add"))
_BROADCAST, _PERMUTE, _RESHAPE, _GETITEM, _CONCAT, _IDENTITY = (
    CODES[name] for name in ("broadcast_to", "permute_dims", "reshape", "getitem", "concat", "identity")
)
_VIEWS = (_BROADCAST, _PERMUTE, _RESHAPE, _GETITEM, _IDENTITY)
_PASS_COST = 24  # multiplications of a large product take the time of one element of a reduction
_LEAST = 3  # products that are worth it to be added in one: of two, as x @ w + h @ u, each may be part of a larger one
_CALL_COST = 2000  # elements that are copied in the time that a small product takes beside its arithmetic


def _is_product(values: list[Value], instr: Instr | None) -> bool:
    """Of floats of one dtype, none of them empty."""
    if instr is None or instr.op != _MATMUL or not values[instr.out].size:
        return False
    dtype = values[instr.out].dtype
    return dtype in FLOATS and all(values[k].dtype == dtype and values[k].size for k in instr.ins)


# ---- sums of a product


def contract_sums(ir: IR) -> None:
    """sum(A @ B), over rows, columns or both, is a product of A's sums over its rows and of B's over its columns; so
    is a mean, and what a product makes of an operand whose elements are alike along the axis that is summed.

    Sums of huge numbers could overflow where no product did: then scaled ones are taken. An infinity times the sum of
    numbers of both signs is infinite, where the sum of the products is NaN: the least and the largest of the numbers
    tell which it is. Subnormal numbers may lose digits where others in the same product are so large that plain sums
    overflow.
    """
    if not has(ir, _MATMUL):
        return
    w = Rewriter(ir, "contract_sums")
    w.run(lambda instr: _sum_of_product(w, instr) or _alike_inside(w, instr))


class _Summed:
    """An operand summed along an axis, in the ways that a product of sums needs: the sum; one that cannot overflow,
    and what it has to be multiplied with; the signs and infinities of the least and of the largest element."""

    def __init__(self, w: Rewriter, x: int, axis: int | None) -> None:
        self.total = self.scaled = x
        self.ends = [x]
        self.scale = 1.0
        if axis is None:
            return
        v = w.values[x]
        n = v.shape[axis]
        self.total = w.reduce("sum", x, axis)
        self.ends = [_ends(w, w.reduce(name, x, axis)) for name in ("min", "max")]
        if v.dtype == FLOAT32:  # summed in float64, divided, then rounded
            self.scaled, self.scale = w.reduce("mean", x, axis), float(n)
        else:
            self.scale = 2.0 ** math.ceil(math.log2(n))
            small = w.elementwise("multiply", x, w.constant(1 / self.scale, v.dtype))
            self.scaled = w.reduce("sum", small, axis)


def _ends(w: Rewriter, x: int) -> int:
    """Infinities, and for other numbers their signs, times what no sum of products with others overflows by."""
    signs = w.elementwise("multiply", w.elementwise("sign", x), w.constant(2.0**-40, w.values[x].dtype))
    return w.elementwise("where", w.elementwise("isinf", x), x, signs)


def _product_of_sums(w: Rewriter, a: _Summed, b: _Summed, times: Callable[[int, int], int], factor: float) -> int:
    """factor * times(a, b), with the infinities and NaN of the sum of products."""
    total, scaled = times(a.total, b.total), times(a.scaled, b.scaled)
    dtype = w.values[total].dtype
    if factor != 1:
        total = w.elementwise("multiply", total, w.constant(factor, dtype))
    scaled = w.elementwise("multiply", scaled, w.constant(factor * a.scale * b.scale, dtype))
    total = w.elementwise("where", w.elementwise("isfinite", total), total, scaled)
    doubtful = total  # plus what is infinite with the other sign, or NaN
    for x in a.ends:
        for y in b.ends:
            doubtful = w.elementwise("add", doubtful, times(x, y))
    return w.elementwise("where", w.elementwise("isinf", total), doubtful, total)


def _sum_of_product(w: Rewriter, instr: Instr) -> bool:
    if instr.op not in (_SUM, _MEAN):
        return False
    product = w.alone(instr.ins[0], _MATMUL)
    if product is None or not _is_product(w.values, product):
        return False
    a, b = (w.values[k] for k in product.ins)
    y, result = w.values[product.out], w.values[instr.out]
    ndim, (m, n), k = len(y.shape), y.shape[-2:], a.shape[-1]
    axes = axes_of(instr.params[0], ndim)
    rows, columns = ndim - 2 in axes, ndim - 1 in axes
    if not (rows or columns) or 4 * (a.size + b.size) * _PASS_COST > y.size * k:
        return False
    count = (m if rows else 1) * (n if columns else 1)
    total = _product_of_sums(
        w, _Summed(w, product.ins[0], -2 if rows else None), _Summed(w, product.ins[1], -1 if columns else None),
        w.matmul, 1 / count if instr.op == _MEAN else 1.0,
    )  # fmt: skip
    batch = [d for d in axes if d < ndim - 2]
    if batch:
        shape = tuple([1 if d in batch else extent for d, extent in enumerate(w.values[total].shape)])
        params = (word(sum(1 << d for d in batch)), math.prod([y.shape[d] for d in batch]))
        total = w.emit(instr.op, (total,), shape, result.dtype, params)
    w.names[instr.out] = w.reshape(total, result.shape)
    w.note(f"the {name_of(instr.op)} of {extents(a)} @ {extents(b)} is a product of sums")
    return True


def _alike_inside(w: Rewriter, instr: Instr) -> bool:
    """(m, k) @ (k, n) with a left operand whose columns are alike, or a right one whose rows are: an outer product."""
    if not _is_product(w.values, instr):
        return False
    a, b = instr.ins
    x, y, out = w.values[a], w.values[b], w.values[instr.out]
    k = x.shape[-1]
    for left in (True, False):
        other = y if left else x
        if k == 1 or (8 * out.size + 4 * other.size) * _PASS_COST > out.size * k:
            continue
        column = _one(w, a if left else b, -1 if left else -2)
        if column is None:
            continue
        total = _product_of_sums(
            w, _Summed(w, column, None), _Summed(w, b if left else a, -2 if left else -1),
            lambda x, y: w.elementwise("multiply", x, y), 1.0,
        )  # fmt: skip
        w.names[instr.out] = total
        w.note(f"{extents(x)} @ {extents(y)}, of which the {'left' if left else 'right'} is alike along the sum: a sum")
        return True
    return False


# ---- operands that are alike


def uniform_operands(ir: IR) -> None:
    """Of ones(m, k) @ B, and of any left operand whose rows are alike, one row is computed and broadcast; likewise of a
    right operand whose columns are. Changes the order of a sum of the same terms, and nothing else."""
    if not has(ir, _MATMUL):
        return
    w = Rewriter(ir, "uniform_operands")
    w.run(lambda instr: _alike_rows(w, instr))


def _alike_rows(w: Rewriter, instr: Instr) -> bool:
    if not _is_product(w.values, instr):
        return False
    a, b = instr.ins
    row, column = _one(w, a, -2), _one(w, b, -1)
    if row is None and column is None:
        return False
    w.note(
        f"{extents(w.values[a])} @ {extents(w.values[b])} has "
        + " and ".join(["rows"] * (row is not None) + ["columns"] * (column is not None))
        + " that are alike: one is computed"
    )
    one = w.matmul(a if row is None else row, b if column is None else column)
    w.names[instr.out] = w.broadcast(one, w.values[instr.out].shape)
    return True


def _one(w: Rewriter, k: int, axis: int) -> int | None:
    """Of a value whose elements are alike along an axis (from the end), of more than one, the first of them."""
    v = w.values[k]
    if len(v.shape) < -axis or v.shape[axis] == 1:
        return None
    at = len(v.shape) + axis
    shape = (*v.shape[:at], 1, *v.shape[at + 1 :])
    if v.kind == CONST:
        elements = np.frombuffer(_core.bytes_of(w.ir.objects[k]), DTYPES[v.dtype]).reshape(v.shape)
        first = elements[(slice(None),) * at + (slice(1),)]
        bits = f"u{elements.itemsize}"
        alike = bool((np.ascontiguousarray(elements).view(bits) == np.ascontiguousarray(first).view(bits)).all())
        return w.constant(first, v.dtype) if alike else None
    instr = w.made.get(k)
    if instr is None:
        return None
    if instr.op == _BROADCAST:
        source = w.values[instr.ins[0]].shape
        if len(source) < -axis or source[axis] == 1:
            return w.broadcast(instr.ins[0], shape)
        inner = _one(w, instr.ins[0], axis)
        return None if inner is None else w.broadcast(inner, shape)
    if instr.op == _PERMUTE:
        inner = _one(w, instr.ins[0], instr.params[at] - len(v.shape))
        return None if inner is None else w.emit(_PERMUTE, (inner,), shape, v.dtype, instr.params)
    if 0 <= instr.op < N_ELEMENTWISE:
        ins = []
        for x in instr.ins:
            extents = w.values[x].shape
            one = x if len(extents) < -axis or extents[axis] == 1 else _one(w, x, axis)
            if one is None:
                return None
            ins.append(one)
        return w.emit(instr.op, ins, shape, v.dtype, instr.params)
    return None


# ---- many products


def concat_products(ir: IR) -> None:
    """A chain of additions of products, as the gradient of a weight that is used at each step of a loop, is one product
    of the operands side by side; what is a window of one array in order is not copied.

    Changes the order of a sum of the same terms, and nothing else.
    """
    if not has(ir, _MATMUL):
        return
    w = Rewriter(ir, "concat_products")
    w.run(_Chains(w, _one_product).rewrite)


def concat_sums(ir: IR) -> None:
    """Sums over the same axes that are added, as the gradient of a bias that is used at each step of a loop, are one
    over their operands side by side, where those are so already.

    Changes the order of a sum of the same terms, and nothing else.
    """
    if not has(ir, _SUM):
        return
    w = Rewriter(ir, "concat_sums")
    w.run(_Chains(w, _one_sum).rewrite)


class _Chains:
    """Chains of additions of one shape. merge: writes one value for some of the terms, and says for which."""

    def __init__(self, w: Rewriter, merge: Callable[[_Chains, list[int]], dict[int, list[int]]]) -> None:
        self.w, self.merge = w, merge
        self.inner: set[int] = set()  # sums that only go into another one
        for instr in w.ir.instrs:
            if self.adds(instr):
                self.inner.update(k for k in instr.ins if w.uses[k] == 1 and self.adds(w.made.get(k)))
        self.orders = _orders(w)

    def adds(self, instr: Instr | None) -> bool:
        """Is it an addition of floats without broadcasting?"""
        if instr is None or instr.op != _ADD:
            return False
        types = {self.w.values[k][1:] for k in (*instr.ins, instr.out)}
        return len(types) == 1 and self.w.values[instr.out].dtype in FLOATS

    def rewrite(self, root: Instr) -> bool:
        if not self.adds(root) or root.out in self.inner:
            return False
        w = self.w
        terms: list[int] = []
        stack = [root.out]
        while stack:
            k = stack.pop()
            if k == root.out or k in self.inner:
                stack += reversed(w.made[k].ins)
            else:
                terms.append(k)
        merged = self.merge(self, terms)
        if not merged:
            return False
        gone = {k for group in merged.values() for k in group}
        total, *rest = [*(k for k in terms if k not in gone), *merged]
        for k in rest:
            total = w.elementwise("add", total, k)
        w.names[root.out] = total
        return True


def _one_product(chains: _Chains, terms: list[int]) -> dict[int, list[int]]:
    """One product for those among the terms, unless to copy the operands costs more."""
    w = chains.w
    products = [k for k in terms if w.uses[k] == 1 and _is_plain(w.values, w.made.get(k))]
    if len(products) < _LEAST:
        return {}
    # in the order in which the left operands are there, whatever the chain's: chains share what is side by side, and
    # windows lie so already
    pairs = sorted((w.made[k].ins for k in products), key=lambda ins: (_behind(w, ins[0]), ins))
    lefts, rights = [a for a, _ in pairs], [b for _, b in pairs]
    a, b = (w.values[k] for k in pairs[0])
    rows, columns = len(a.shape) - 2, len(a.shape) - 1
    copied = _copied(w, lefts, columns) + _copied(w, rights, rows)
    if copied > (len(products) - 1) * (3 * w.values[products[0]].size + _CALL_COST):
        return {}
    left, right = _joined(w, lefts, columns), _joined(w, rights, rows)
    w.note(
        f"{len(products)} products like {extents(a)} @ {extents(b)} that are added: one over {w.values[left].shape[-1]}"
    )
    return {w.matmul(left, right): products}


def _behind(w: Rewriter, k: int) -> int:
    """What k is a permutation of."""
    instr = w.made.get(k)
    return k if instr is None or instr.op != _PERMUTE else instr.ins[0]


def _is_plain(values: list[Value], instr: Instr | None) -> bool:
    """A product whose leading axes are those of its operands."""
    if instr is None or not _is_product(values, instr):
        return False
    batch = values[instr.out].shape[:-2]
    return all(values[k].shape[:-2] == batch for k in instr.ins)


def _one_sum(chains: _Chains, terms: list[int]) -> dict[int, list[int]]:
    """For the terms that are sums of values of one shape over the same axes one sum, of each kind."""
    w = chains.w
    kinds: dict[Any, dict[int, int]] = {}  # term -> what is summed
    for k in terms:
        reshaped = w.alone(k, _RESHAPE)
        instr = w.alone(k if reshaped is None else reshaped.ins[0], _SUM)
        if instr is not None and instr.params[0]:
            value = w.values[instr.ins[0]]
            if value.dtype in FLOATS and value.size:
                kinds.setdefault((value, instr.params), {})[k] = instr.ins[0]
    merged: dict[int, list[int]] = {}
    for (value, (mask, count)), group in kinds.items():
        sources = sorted(group.values())
        axes = axes_of(mask, len(value.shape))
        order = chains.orders.get((axes[0], tuple(sources)))
        if len(group) < 2 or (order is None and _copied(w, sources, axes[0])):
            continue
        side = _joined(w, order or sources, axes[0])
        kept = tuple([1 if d in axes else n for d, n in enumerate(value.shape)])
        total = w.emit(_SUM, (side,), kept, value.dtype, (mask, count * len(group)))
        w.note(f"{len(group)} sums of {extents(value)} that are added: one")
        merged[w.reshape(total, w.values[terms[0]].shape)] = list(group)
    return merged


def _orders(w: Rewriter) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    """By axis and values in any order: an order in which the program has them side by side."""
    return {(i.params[0], tuple(sorted(i.ins))): list(i.ins) for i in w.ir.instrs if i.op == _CONCAT}


def _window_of(w: Rewriter, numbers: list[int]) -> tuple[int, int, int] | None:
    """(array, start, count) where values, in this order, are neighbouring windows of an array along its first axis, and
    whole along the others."""
    base = start = stop = -1
    for k in numbers:
        instr = w.made.get(k)
        if instr is None or instr.op != _GETITEM:
            return None
        source = w.values[instr.ins[0]]
        begin, step, count, _ = instr.params[:4]
        whole = all(instr.params[4 * d : 4 * d + 3] == (0, 1, n) for d, n in enumerate(source.shape) if d)
        if (
            not whole
            or count < 1
            or (step != 1 and count != 1)
            or (base >= 0 and (instr.ins[0], begin) != (base, stop))
        ):
            return None
        if w.values[instr.out].shape not in (source.shape[1:], (count, *source.shape[1:])):
            return None
        if base < 0:
            base, start = instr.ins[0], begin
        stop = begin + count
    return base, start, stop - start


def _untransposed(w: Rewriter, numbers: list[int], axis: int) -> tuple[list[int], int] | None:
    """What values are the transposed of, and the axis there."""
    order = swapped(len(w.values[numbers[0]].shape))
    sources = [w.made.get(k) for k in numbers]
    if all(i is not None and i.op == _PERMUTE and i.params == order for i in sources):
        return [i.ins[0] for i in sources if i is not None], order[axis]
    return None


def _copied(w: Rewriter, numbers: list[int], axis: int) -> int:
    """How many elements move when these are put side by side."""
    numbers, axis = _untransposed(w, numbers, axis) or (numbers, axis)
    if axis == 0 and _window_of(w, numbers) is not None:
        return 0
    return sum(w.values[k].size for k in numbers)


def _joined(w: Rewriter, numbers: list[int], axis: int) -> int:
    """Values side by side along an axis: as they lie, or copied. Views are made here once more: of all else it is
    known that it is there."""
    inner = _untransposed(w, numbers, axis)
    if inner is not None:
        return w.transposed(_joined(w, *inner))
    first = w.values[numbers[0]]
    shape = (*first.shape[:axis], sum(w.values[k].shape[axis] for k in numbers), *first.shape[axis + 1 :])
    window = _window_of(w, numbers) if axis == 0 else None
    if window is None:
        return w.emit(_CONCAT, [_again(w, k) for k in numbers], shape, first.dtype, (axis,))
    base, start, count = window
    source = w.values[base].shape
    params = [start, 1, count, source[0]]
    for n in source[1:]:
        params += [0, 1, n, n]
    rows = w.emit(_GETITEM, (_again(w, base),), (count, *source[1:]), first.dtype, tuple(params))
    return w.reshape(rows, shape)


def batch_products(ir: IR) -> None:
    """Products of several matrices with the same right operand, as in x[t] @ w of a loop, are one product of the rows
    of all of them, where these are there before the first of the results is read.

    Changes the order of a sum of the same terms, and nothing else.
    """
    if not has(ir, _MATMUL):
        return
    w = Rewriter(ir, "batch_products")
    groups = _Groups(w)
    orders = _orders(w) if groups.starts else {}
    rows: dict[int, tuple[int, int]] = {}  # a result -> the product of all, its first row there

    def window(instr: Instr) -> None:
        product, row = rows[instr.out]
        (height, n), y = w.values[product].shape, w.values[instr.out]
        w.emit(_GETITEM, (product,), y.shape, y.dtype, (row, 1, y.shape[0], height, 0, 1, n, n), out=instr.out)

    def rewrite(instr: Instr) -> bool:
        for place, group in groups.starts.get(id(instr), ()):
            lefts = [member.ins[0] for member in group]
            place_of = {k: i for i, k in enumerate(orders.get((0, tuple(sorted(lefts))), lefts))}
            rows.update(_product_of_rows(w, sorted(group, key=lambda member: place_of[member.ins[0]])))
            for member in group:
                if groups.at[member.out] < place:
                    window(member)
        w.line = instr.line
        if instr.out in rows:
            window(instr)
        return instr.out in groups.members

    w.run(rewrite)


class _Groups:
    """Products with one right operand whose left operands are there before a result of any is read."""

    def __init__(self, w: Rewriter) -> None:
        self.w = w
        self.at = {instr.out: i for i, instr in enumerate(w.ir.instrs) if instr.op >= 0}
        # an instruction (its id) -> groups to compute before it, each with where that is
        self.starts: dict[int, list[tuple[int, list[Instr]]]] = {}
        self.members: set[int] = set()
        by_right: dict[int, list[Instr]] = {}
        for instr in w.ir.instrs:
            if _is_product(w.values, instr):
                a, b = (w.values[k].shape for k in instr.ins)
                if len(a) == len(b) == 2 and b[1] > 1:
                    by_right.setdefault(instr.ins[1], []).append(instr)
        several = [products for products in by_right.values() if len(products) > 1]
        self.first: dict[int, int] = {}  # a value -> the instruction that reads it first
        for i, instr in enumerate(w.ir.instrs if several else ()):
            for k in instr.ins:
                self.first.setdefault(k, i)
        for products in several:
            self.split(products)

    def ready(self, k: int) -> tuple[int, int]:
        """The instruction after which k is there, or can be, and its value: a view can be made earlier (but none of a
        .grad, whose guard comes first)."""
        instr = self.w.made.get(k)
        while instr is not None and instr.op in _VIEWS:
            k = instr.ins[0]
            instr = self.w.made.get(k)
        if instr is None:
            return (len(self.w.ir.instrs) if self.w.values[k].kind == GRAD else -1), k
        return self.at[k], k

    def split(self, products: list[Instr]) -> None:
        """Into groups as long as they can be, in the order of the program."""
        group: dict[int, Instr] = {}  # by result
        last, first = -1, len(self.w.ir.instrs)  # when all operands are there, and when a result is read
        for instr in products:
            ready, source = self.ready(instr.ins[0])
            ready = max(ready, self.at.get(instr.ins[1], -1))
            read = self.first.get(instr.out, first)
            if max(last, ready) >= min(first, read) or source in group:
                self.close(list(group.values()), last)
                group, last, first = {}, -1, len(self.w.ir.instrs)
            if ready < read:  # unless a view of it came too early
                group[instr.out] = instr
                last, first = max(last, ready), min(first, read)
        self.close(list(group.values()), last)

    def close(self, group: list[Instr], last: int) -> None:
        if len(group) < 2:
            return
        lefts = [instr.ins[0] for instr in group]
        packed = self.w.values[group[0].ins[1]].size // 2  # of the right operand, for each product anew
        if _copied(self.w, lefts, 0) <= len(group) * _CALL_COST + (len(group) - 1) * packed:
            self.members.update(instr.out for instr in group)
            self.starts.setdefault(id(self.w.ir.instrs[last + 1]), []).append((last + 1, group))


def _product_of_rows(w: Rewriter, group: list[Instr]) -> dict[int, tuple[int, int]]:
    """Write the product of all left operands of a group; where in it each result is."""
    lefts = [instr.ins[0] for instr in group]
    right = group[0].ins[1]
    w.line = group[0].line
    product = w.matmul(_joined(w, lefts, 0), right)
    first = w.values[lefts[0]]
    w.note(
        f"{len(group)} products like {extents(first)} @ {extents(w.values[right])} with one right operand: one of "
        f"{w.values[product].shape[0]} rows"
    )
    found: dict[int, tuple[int, int]] = {}
    row = 0
    for instr in group:
        found[instr.out] = product, row
        row += w.values[instr.out].shape[0]
    return found


def _again(w: Rewriter, k: int) -> int:
    """A view, made once more, here."""
    instr = w.made.get(k)
    if instr is None or instr.op not in _VIEWS:
        return k
    v = w.values[k]
    return w.emit(instr.op, (_again(w, instr.ins[0]), *instr.ins[1:]), v.shape, v.dtype, instr.params)


def transpose_products(ir: IR) -> None:
    """The transposed product of A and B is that of the transposed B and A, where it is read by what is no product, or
    is a result: nothing has to be turned round then. Changes the order of a sum of the same terms, and nothing else."""
    if not has(ir, _MATMUL):
        return
    w = Rewriter(ir, "transpose_products")
    turned = {k for instr in ir.instrs if instr.op != _MATMUL for k in instr.ins} | set(ir.results())

    def rewrite(instr: Instr) -> bool:
        if instr.op != _PERMUTE or instr.out not in turned or instr.params != swapped(len(instr.params)):
            return False
        product = w.alone(instr.ins[0], _MATMUL)
        if product is None or not _is_product(w.values, product) or min(w.values[product.out].shape[-2:]) == 1:
            return False
        a, b = product.ins
        w.matmul(w.transposed(b), w.transposed(a), out=instr.out)
        w.note(f"{extents(w.values[a])} @ {extents(w.values[b])}, transposed, is computed so")
        return True

    w.run(rewrite)
