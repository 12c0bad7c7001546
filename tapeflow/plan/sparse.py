"""Sparse Jacobians and Hessians: where they can be other than 0, from the recorded program; then as few directions of
differentiation as a colouring of that pattern needs, as one batch.

A pattern is a CSR matrix of ones: a row for each element of a value, a column for each element of the argument. Each
instruction makes the pattern of its result from those of its operands. Ops that move elements are run on the positions
of the elements; an op that is not known depends on all of its operands, which is never wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tapeflow import _composed, _core, _epoch
from tapeflow._core import Tensor
from tapeflow.derivatives import _Pull, _Push, over
from tapeflow.errors import DTypeError, TapeError
from tapeflow.plan import coloring
from tapeflow.plan.functions import _hashable
from tapeflow.plan.interpret import DETACHED, PLACED
from tapeflow.plan.ir import CODES, CONST, FLOAT32, FLOAT64, GUARD, INPUT, IR, N_ELEMENTWISE, RANDOM, TENSOR, Instr
from tapeflow.plan.record import is_dynamic, record
from tapeflow.transforms import Run, argument_numbers, checked_argnums, checked_function, flatten

_MOVES = {
    CODES[name]
    for name in ("reshape", "permute_dims", "broadcast_to", "getitem", "unslice", "assign", "concat", "take", "put")
}
_REDUCTIONS = {CODES[name] for name in ("sum", "mean", "max", "min", "nansum", "vector_norm", "var", "std")}
_ROWS = {CODES[name] for name in ("softmax", "log_softmax")}
_SCANS = {CODES[name] for name in ("cumulative_sum", "cumulative_prod", "cumulative_max", "logcumsumexp", "recurrence")}
_KNOWN_SIZE = 1 << 22  # elements up to which an index that is constant is computed


def _scipy() -> Any:
    import scipy.sparse  # takes a while, and only sparse results need it

    return scipy.sparse


# ---- patterns


class Patterns:
    """The pattern of every value of a program; None: it depends on nothing. `wanted` is the input that is the argument,
    `known` the values that are the same at each run, for indices."""

    def __init__(self, ir: IR, wanted: int, known: dict[int, Tensor]) -> None:
        self.ir = ir
        self.sparse = _scipy()
        self.n = ir.values[wanted].size
        self.known = dict(known)
        self.of: dict[int, Any] = {wanted: self.sparse.identity(self.n, dtype=np.int8, format="csr")}
        regions = [([x[0] for x in r.arguments[1] if type(x) is list], r.results[1]) for r in ir.regions]
        self.calls = {x[0]: given for given, results in regions for x in results if type(x) is list}
        for instr in ir.instrs:
            if instr.op >= 0:
                self.step(instr)

    def step(self, instr: Instr) -> None:
        self.learn(instr)
        out = self.ir.values[instr.out]
        if out.dtype < FLOAT32:
            return
        given = self.calls.get(instr.out)
        if given is not None:  # a result of a call with a rule of its own, which may do anything
            self.of[instr.out] = self.dense(given, out.size, through=instr.out in given)
        elif any(k in self.of for k in instr.ins):
            found = self.made(instr)
            if found is not None and found.nnz:
                self.of[instr.out] = found

    def learn(self, instr: Instr) -> None:
        """Compute what constants alone decide: indices, and factors with zeros."""
        if instr.op == RANDOM or not instr.ins or len(instr.ins) > 16 or any(k not in self.known for k in instr.ins):
            return
        out = self.ir.values[instr.out]
        if out.size <= _KNOWN_SIZE:
            xs = [self.known[k] for k in instr.ins]
            self.known[instr.out] = _core.compute_op(instr.op, instr.params, xs, out.dtype, out.shape)

    def made(self, instr: Instr) -> Any:
        op = instr.op
        if op < N_ELEMENTWISE:
            return self.elementwise(instr)
        if op == CODES["identity"]:
            if instr.params == DETACHED:
                return None
            return self.of.get(instr.ins[1 if instr.params == PLACED else 0])
        if op == CODES["astype"]:
            return self.of.get(instr.ins[0])
        if op in _MOVES and all(k in self.known for k in self.indices(instr)):
            return self.moved(instr)
        if op in _REDUCTIONS:
            return _ones(self.joined(instr.ins[0], instr.params[0]) @ self.of[instr.ins[0]])
        if op == CODES["logsumexp"]:
            return _ones(self.joined(instr.ins[0], self.last_axis(instr)) @ self.of[instr.ins[0]])
        if op in _ROWS:
            return self.coupled(instr.ins[0], self.last_axis(instr))
        if op in _SCANS and len(instr.ins) == 1:
            return self.coupled(instr.ins[0], 1 << instr.params[0])
        if op == CODES["scatter_add"] and instr.ins[1] in self.known:
            return self.scattered(instr)
        if op == CODES["matmul"]:
            return self.product(instr)
        return self.dense(instr.ins, self.ir.values[instr.out].size)

    # ---- kinds of ops

    def elementwise(self, instr: Instr) -> Any:
        shape = self.ir.values[instr.out].shape
        total = None
        for i, k in enumerate(instr.ins):
            if k in self.of and _composed.rule(instr.op, i) is not None:
                one = self.broadcast(k, shape)
                total = one if total is None else total + one
        return _ones(total)

    def broadcast(self, k: int, shape: tuple[int, ...]) -> Any:
        """The pattern of k stretched to a shape."""
        value = self.ir.values[k]
        if value.shape == shape:
            return self.of[k]
        places = np.arange(value.size).reshape(value.shape)
        return self.of[k][np.broadcast_to(places, shape).ravel()]

    @staticmethod
    def indices(instr: Instr) -> tuple[int, ...]:
        return (instr.ins[1],) if instr.op in (CODES["take"], CODES["put"]) else ()

    def moved(self, instr: Instr) -> Any:
        """Run the op on the positions of its operands' elements, all in a row and from 1: 0 is what comes from none."""
        values = self.ir.values
        xs, rows, start = [], [], 1
        index = self.indices(instr)
        for k in instr.ins:
            if k in index:
                xs.append(self.known[k])
                continue
            size = values[k].size
            places = np.arange(start, start + size, dtype="float64").reshape(values[k].shape)
            xs.append(_core.from_numpy(places, True, "sparse", loose=True))
            rows.append(self.of.get(k, self.sparse.csr_matrix((size, self.n), dtype=np.int8)))
            start += size
        out = values[instr.out]
        if len(xs) > 16:
            with _core.no_grad():
                moved = _core.apply_op(instr.op, instr.params, xs, FLOAT64, out.shape)
        else:
            moved = _core.compute_op(instr.op, instr.params, xs, FLOAT64, out.shape)
        nothing = self.sparse.csr_matrix((1, self.n), dtype=np.int8)
        return self.sparse.vstack([nothing, *rows], format="csr")[_core.array_of(moved).ravel().astype(np.int64)]

    def last_axis(self, instr: Instr) -> int:
        return 1 << (len(self.ir.values[instr.ins[0]].shape) - 1)

    def joined(self, k: int, mask: int) -> Any:
        """Which elements of k meet in each element of its reduction over a mask of axes."""
        shape = self.ir.values[k].shape
        kept = tuple([1 if mask >> d & 1 else n for d, n in enumerate(shape)])
        count = int(np.prod(kept))
        groups = np.broadcast_to(np.arange(count).reshape(kept), shape).ravel()
        return self.sparse.csr_matrix(
            (np.ones(groups.size, np.int32), (groups, np.arange(groups.size))), shape=(count, groups.size)
        )

    def coupled(self, k: int, mask: int) -> Any:
        """Every element depends on all of its fibre along the axes."""
        meet = self.joined(k, mask)
        return _ones(meet.T.tocsr() @ _ones(meet @ self.of[k]))

    def scattered(self, instr: Instr) -> Any:
        """The first operand with the third added at an index along an axis."""
        x, idx, updates = instr.ins
        values = self.ir.values
        total = self.of.get(x)
        if updates in self.of:
            places = np.arange(values[x].size, dtype="float64").reshape(values[x].shape)
            at = _core.compute_op(
                CODES["take"],
                instr.params[:1],
                [_core.from_numpy(places, True, "sparse", loose=True), self.known[idx]],
                FLOAT64,
                values[updates].shape,
            )
            rows = _core.array_of(at).ravel().astype(np.int64)
            move = self.sparse.csr_matrix(
                (np.ones(rows.size, np.int32), (rows, np.arange(rows.size))), shape=(values[x].size, rows.size)
            )
            added = move @ self.of[updates]
            total = added if total is None else total + added
        return _ones(total)

    def product(self, instr: Instr) -> Any:
        """Row i of the first factor and column j of the second meet in (i, j); a constant's zeros meet nobody."""
        values = self.ir.values
        out = values[instr.out].shape
        total = None
        for i, k in enumerate(instr.ins):
            if k not in self.of:
                continue
            axis = len(values[k].shape) - 1 - i
            other = instr.ins[1 - i]
            if other in self.known and len(values[k].shape) == len(values[other].shape) == 2:
                factor = self.sparse.csr_matrix(np.asarray(_core.array_of(self.known[other])) != 0, dtype=np.int32)
                eye = self.sparse.identity(values[k].shape[i], dtype=np.int32)
                # vec(X B) = (I kron B^T) vec(X), vec(A X) = (A kron I) vec(X), rows after rows
                pair = (eye, factor.T) if i == 0 else (factor, eye)
                one = self.sparse.kron(*pair, format="csr") @ self.of[k]
            else:
                summed = _ones(self.joined(k, 1 << axis) @ self.of[k])
                kept = tuple([1 if d == axis else n for d, n in enumerate(values[k].shape)])
                places = np.arange(summed.shape[0]).reshape(kept)
                one = summed[np.broadcast_to(places, out).ravel()]
            total = one if total is None else total + one
        return _ones(total)

    def dense(self, ks: Any, size: int, through: bool = False) -> Any:
        """Every one of size elements depends on all that values ks depend on; through: on all there is."""
        used = np.zeros(self.n, bool)
        for k in ks:
            if k in self.of:
                used[self.of[k].indices] = True
        columns = np.arange(self.n) if through else np.flatnonzero(used)
        starts = np.arange(size + 1) * columns.size
        data = np.ones(size * columns.size, np.int8)
        return self.sparse.csr_matrix((data, np.tile(columns, size), starts), shape=(size, self.n))


def _ones(pattern: Any) -> Any:
    """The pattern of a sum of patterns."""
    if pattern is None:
        return None
    pattern = pattern.tocsr()
    pattern.sum_duplicates()
    return type(pattern)((np.ones(pattern.nnz, np.int8), pattern.indices, pattern.indptr), shape=pattern.shape)


# ---- functions


class _Kind:
    """What a signature has: the pattern, its colours, whether they are of columns, and what to compare at each call."""

    __slots__ = ("captured", "colors", "forward", "guarded", "pattern")

    def __init__(self, pattern: Any, colors: np.ndarray, forward: bool, guarded: bool, captured: Any) -> None:
        self.pattern, self.colors, self.forward, self.guarded, self.captured = (
            pattern, colors, forward, guarded, captured,
        )  # fmt: skip

    def holds(self) -> bool:
        """Are the captured integers what they were?"""
        return all(_core.bytes_of(t) == seen for t, seen in self.captured)


class Compressed:
    """A function that returns a sparse derivative. Made by tp.sparse_jacobian and tp.sparse_hessian."""

    def __init__(self, f: Callable[..., Any], argnums: Any, name: str) -> None:
        checked_function(f, name)
        wanted = checked_argnums(argnums, name)
        if isinstance(argnums, (tuple, list)):
            raise TapeError(f"[{name}] argnums must be an int: the result is one matrix. Call it for each argument.")
        functools.update_wrapper(self, f)
        self._f, self._argnums, self._wanted, self._name = f, argnums, wanted, name
        self._kinds: dict[Any, _Kind] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The matrix, as a scipy.sparse.csr_array."""
        kind = self._kind(args, kwargs)
        run = Run(self._name, args, [self._number(args)]).call(self._f, kwargs, False)
        return self._values(kind, run)

    def pattern(self, *args: Any, **kwargs: Any) -> Any:
        """Where the matrix can be other than 0 for such arguments: a scipy.sparse.csr_array of bool."""
        return _scipy().csr_array(self._kind(args, kwargs).pattern.astype(bool))

    def colors(self, *args: Any, **kwargs: Any) -> int:
        """How many directions of differentiation it takes."""
        colors = self._kind(args, kwargs).colors
        return int(colors.max()) + 1 if colors.size else 0

    def _number(self, args: tuple[Any, ...]) -> int:
        return argument_numbers(self._argnums, self._wanted, len(args), self._name)[0]

    # ---- patterns, kept by signature

    def _kind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Kind:
        key = self._key(args, kwargs)
        kind = self._kinds.get(key)
        if kind is None or kind.guarded or not kind.holds():
            kind = self._found(key, args, kwargs)
        return kind

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = flatten((args, kwargs))
        parts: list[Any] = [_hashable(structure), _epoch.current(), _core.get_default_dtype()]
        for x in leaves:
            if not is_dynamic(x):
                parts.append((type(x), x))
            elif isinstance(x, float):
                parts.append("float")
            else:
                t = x if isinstance(x, Tensor) else np.asarray(x)
                integers = t.dtype.kind in "iub"  # they say where things are: part of the signature
                elements = (_core.bytes_of(t) if isinstance(t, Tensor) else t.tobytes()) if integers else None
                parts.append((t.shape, str(t.dtype), elements))
        return tuple(parts)

    def _program(self) -> Callable[..., Any]:
        """The function whose Jacobian is asked for."""
        return self._f

    def _found(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Kind:
        number = self._number(args)
        x = args[number]
        if not isinstance(x, (Tensor, np.ndarray)):
            raise TapeError(f"[{self._name}] argument {number} must be a tensor, got {type(x).__name__}.")
        r, result = record(self._program(), args, kwargs, self._name)
        if r.result is not None or len(r.leaves) != 1 or type(r.leaves[0]) is not list:
            raise TapeError(f"[{self._name}] the function must return one tensor, got {type(result).__name__}.")
        guards = tuple([(instr.line, instr.extra) for instr in r.ir.instrs if instr.op == GUARD])
        if guards:  # another path of Python's may have another pattern
            found = self._kinds.get((key, guards))
            if found is not None and found.holds():
                return found
        before = len(flatten((args[:number], {}))[0])
        wanted = r.ir.inputs[r.dynamic.index(before)]
        known, captured = self._known(r.ir, flatten((args, kwargs))[0], r.dynamic)
        patterns = Patterns(r.ir, wanted, known)
        out = r.ir.outputs[0]
        sparse = _scipy()
        shape = (r.ir.values[out].size, r.ir.values[wanted].size)
        pattern = patterns.of.get(out, sparse.csr_matrix(shape, dtype=np.int8))
        pattern.sort_indices()
        kind = self._colored(pattern, bool(guards), captured)
        self._kinds[key] = kind
        if guards:
            self._kinds[(key, guards)] = kind
        return kind

    @staticmethod
    def _known(ir: IR, leaves: list[Any], dynamic: list[int]) -> tuple[dict[int, Tensor], list[tuple[Tensor, bytes]]]:
        """What is the same at each run: constants, integer arguments, captured integers (to be compared)."""
        known = {k: x for k, x in ir.objects.items() if ir.values[k].kind == CONST}
        captured = []
        for k, x in ir.objects.items():
            if ir.values[k].kind == TENSOR and x.dtype.kind != "f":
                known[k] = x.detach()
                captured.append((x, _core.bytes_of(x)))
        for k, i in zip(ir.inputs, dynamic, strict=True):
            if ir.values[k].kind == INPUT and ir.values[k].dtype < FLOAT32:
                known[k] = _core.asarray(leaves[i])
        return known, captured

    def _colored(self, pattern: Any, guarded: bool, captured: Any) -> _Kind:
        """Forward mode by colours of the columns, or reverse mode by those of the rows, whichever are fewer."""
        by_column, by_row = coloring.columns(pattern), coloring.columns(pattern.T.tocsr())
        forward = by_column.max(initial=0) <= by_row.max(initial=0)
        return _Kind(pattern, by_column if forward else by_row, forward, guarded, captured)

    # ---- values

    def _output(self, run: Run) -> Tensor:
        outputs = run.outputs()[0]
        if outputs[0].dtype.kind != "f":
            raise DTypeError(f"[{self._name}] the function must return a float tensor, got dtype {outputs[0].dtype}.")
        return outputs[0]

    def _values(self, kind: _Kind, run: Run) -> Any:
        source, y = run.sources[0], self._output(run)
        push = _Push(run, [y])
        if kind.forward:
            product = _products(lambda t, composed: push([t], composed), source, kind.colors, push.forward, run.linked)
        else:
            pull = _Pull(run, [y])
            product = _products(lambda t, composed: pull([t], composed), y, kind.colors, push.forward, run.linked)
        rows, columns = _places(kind.pattern)
        values = product[kind.colors[columns], rows] if kind.forward else product[kind.colors[rows], columns]
        return _csr(kind.pattern, values)


class CompressedHessian(Compressed):
    """As Compressed, for the symmetric matrix of second derivatives."""

    def _program(self) -> Callable[..., Any]:
        def gradient(*args: Any, **kwargs: Any) -> Any:
            run = Run(self._name, args, [self._number(args)]).call(self._f, kwargs, False)
            return run.gradients(run.linked, run.linked)[0]

        return gradient

    def _colored(self, pattern: Any, guarded: bool, captured: Any) -> _Kind:
        pattern = _ones(pattern + pattern.T)
        pattern.sort_indices()
        return _Kind(pattern, coloring.star(pattern), True, guarded, captured)

    def _values(self, kind: _Kind, run: Run) -> Any:
        self._output(run)
        push = _Push(run, run.gradients(True, True))
        source = run.sources[0]
        product = _products(lambda t, composed: push([t], composed), source, kind.colors, push.forward, run.linked)
        # (i, j) is what row i has in the colour of j, unless another neighbour of i has it; then row j in that of i
        rows, columns = _places(kind.pattern)
        colors = kind.colors
        pairs = rows.astype(np.int64) * (int(colors.max(initial=0)) + 1) + colors[columns]
        _, inverse, times = np.unique(pairs, return_inverse=True, return_counts=True)
        alone = times[inverse] == 1
        values = np.where(alone, product[colors[columns], rows], product[colors[rows], columns])
        return _csr(kind.pattern, values)


def _products(
    f: Callable[[Tensor, bool], list[Any]], like: Tensor, colors: np.ndarray, forward: Any, linked: bool
) -> Any:
    """The matrix times, for each colour, the sum of the unit vectors of that colour: an array (colours, size)."""
    count = int(colors.max()) + 1 if colors.size else 0
    seeds = np.zeros((count, colors.size), like.dtype)
    seeds[colors, np.arange(colors.size)] = 1
    if count == 0:
        return np.zeros((0, 0), like.dtype)
    found = over(f, _core.from_numpy(seeds.reshape(count, *like.shape), True, "sparse", loose=True), forward, linked)[0]
    return _core.array_of(found).reshape(count, -1)


def _places(pattern: Any) -> tuple[np.ndarray, np.ndarray]:
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    return rows, pattern.indices


def _csr(pattern: Any, values: np.ndarray) -> Any:
    return _scipy().csr_array((values, pattern.indices.copy(), pattern.indptr.copy()), shape=pattern.shape)


def sparse_jacobian(f: Callable[..., Any], argnums: int = 0) -> Compressed:
    """A function that returns f's Jacobian as a sparse matrix, by a few directions of differentiation.

    Where the matrix can be other than 0 follows from the recorded program, once for each signature; columns (or rows)
    that do not meet share a direction. A banded matrix takes as many as its band is wide, however large it is.

    Parameters
    ----------
    f : callable
        Returns one float tensor.
    argnums : int
        Which positional argument to differentiate: a float tensor or array. Integer arguments are part of the
        signature.

    Returns
    -------
    Compressed
        Of f's arguments: a scipy.sparse.csr_array of shape (size of f's value, size of the argument), both in C order.
        Its `pattern(*args)` is where it can be other than 0, `colors(*args)` the number of directions.

    Raises
    ------
    TapeError, DTypeError
        For another argument or value.
    PlanError
        Where f takes elements into Python (`numpy()`), which would hide what they depend on. A function that
        branches on a value is recorded anew at each call.

    Source: Gebremedhin, Manne and Pothen, "What color is your Jacobian?", SIAM Review 47 (2005).

    >>> f = tp.sparse_jacobian(lambda x: x[1:] * x[:-1])
    >>> f(tp.tensor([1.0, 2.0, 3.0])).toarray().tolist()
    [[2.0, 1.0, 0.0], [0.0, 3.0, 2.0]]
    >>> f.colors(tp.zeros(1000))
    2
    """
    return Compressed(f, argnums, "sparse_jacobian")


def sparse_hessian(f: Callable[..., Any], argnums: int = 0) -> CompressedHessian:
    """A function that returns the Hessian of a scalar f as a sparse matrix, by a few products with vectors.

    As sparse_jacobian, of the gradient; the colours make use of the symmetry (star colouring), so that a matrix in the
    form of an arrow takes two products.

    Parameters
    ----------
    f : callable
        Returns a scalar.
    argnums : int
        As for sparse_jacobian.

    Returns
    -------
    CompressedHessian
        Of f's arguments: a scipy.sparse.csr_array of shape (n, n), n the size of the argument. `pattern` and `colors`
        as for sparse_jacobian.

    Raises
    ------
    TapeError, DTypeError, PlanError
        As sparse_jacobian.

    Source: Coleman and Moré, "Estimation of sparse Hessian matrices and graph coloring problems", Math. Programming 28
    (1984).

    >>> f = tp.sparse_hessian(lambda x: tp.sum(x * x) * 0.5 + x[0] * tp.sum(x[1:]))
    >>> f(tp.tensor([1.0, 2.0, 3.0])).toarray().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    >>> f.colors(tp.zeros(100))
    2
    """
    return CompressedHessian(f, argnums, "sparse_hessian")
