"""What an op costs, and the least time that it can take on this machine: the bound of a roofline model (S. Williams,
A. Waterman, D. Patterson, "Roofline", CACM 52, 2009).

Arithmetic is counted, not timed: one for each operation and comparison in an op's text in the table, 2 m n k for a
product. A function of csrc/tpf_math*.h counts the operations in its code there for ordinary arguments, a fused
multiply-add two, selects and what is done to bits none; so GFLOP/s of exp compare with those of a product.
The bandwidths and peaks are measured once a process and number of threads, with our own kernels.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from tapeflow import _core

if TYPE_CHECKING:  # the table is read when a cost is first asked for, not by `import tapeflow`
    from tapeflow.expr import Expr
    from tapeflow.ops import Elementwise

# operations an element in float32 and in float64, rounded; of what is not here: those in the table's text
_PRIMITIVES = {
    "exp": (26, 36), "expm1": (29, 39), "exp2": (18, 28), "log": (28, 38), "log1p": (36, 37), "log2": (30, 40),
    "log10": (30, 40), "sqrt": (1, 1), "cbrt": (19, 24), "pow": (42, 102), "tanh": (34, 62), "sigmoid": (34, 44),
    "sin": (19, 58), "cos": (19, 59), "tan": (22, 99), "asin": (21, 35), "acos": (20, 34), "atan": (17, 29),
    "atan2": (27, 39), "sinh": (33, 43), "cosh": (30, 40), "asinh": (44, 39), "acosh": (43, 44), "atanh": (25, 36),
    "hypot": (9, 9), "logaddexp": (52, 88), "erf": (52, 89), "erfc": (49, 141), "erfinv": (60, 93),
    "lgamma": (166, 124), "digamma": (187, 182), "polygamma": (250, 250), "spherical_ratio": (250, 250),
    "sinc": (24, 63), "silu": (35, 45), "gelu": (53, 145), "gelu_tanh": (42, 70), "remainder": (5, 10),
    "floor_divide": (5, 10), "round": (1, 1),
}  # fmt: skip
# operations an element of the first operand, beside a call of the function named
_ROWS = {
    "sum": (1, ""), "mean": (1, ""), "max": (1, ""), "min": (1, ""), "argmax": (1, ""), "argmin": (1, ""),
    "count_nonzero": (1, ""), "nansum": (2, ""), "vector_norm": (2, ""), "any": (1, ""), "all": (1, ""),
    "var": (4, ""), "std": (4, ""), "logsumexp": (3, "exp"), "softmax": (4, "exp"), "log_softmax": (4, "exp"),
    "cross_entropy": (3, "exp"), "layer_norm": (8, ""), "vecdot": (2, ""), "cumulative_sum": (1, ""),
    "cumulative_prod": (1, ""), "cumulative_max": (1, ""), "cumulative_argmax": (1, ""), "recurrence": (2, ""),
    "logcumsumexp": (4, "logaddexp"), "accumulate": (1, ""),
}  # fmt: skip
# the kernels that compute a rule in one, an element of their result
_RULES = {
    "softmax_vjp": (4, ""), "log_softmax_vjp": (3, "exp"), "cross_entropy_vjp": (3, "exp"), "layer_norm_vjp": (12, ""),
}  # fmt: skip

SIZES = tuple(1 << n for n in (16, 20, 23, 25))  # bytes of memory that the bandwidth is measured in
LENGTH = 384  # of the products that the peaks are measured by


def size_of(shape: Sequence[int]) -> int:
    return math.prod(shape)


# ---- costs


def _table() -> dict[str, Elementwise]:
    from tapeflow import ops

    return ops.TABLE


@functools.cache
def element_cost(name: str, single: bool) -> int:
    """Operations an element of an elementwise op, in float64 or else in float32."""
    if name in _PRIMITIVES:
        return _PRIMITIVES[name][0 if single else 1]
    entry = _table()[name]
    return 1 if entry.primitive else max(1, _operations(entry.value, single))


@functools.cache
def partial_cost(name: str, i: int, single: bool) -> int:
    """Operations an element of the cotangent that an elementwise op sends to its input i."""
    entry = _table()[name]
    return _operations(entry.pushed[i], single) if i < entry.nin else 0


def rule_cost(name: str, mask: int, dtype: str) -> int:
    """Operations an element of the fused loops of an elementwise op's rule, for the inputs whose bits are in mask."""
    return sum(partial_cost(name, i, dtype != "float64") for i in range(3) if mask >> i & 1)


def _operations(node: Expr, single: bool) -> int:
    from tapeflow.expr import Binary, Call, children

    below = sum(_operations(child, single) for child in children(node))
    if isinstance(node, Call):
        return below + element_cost(node.name, single)
    return below + isinstance(node, Binary)


def flops(name: str, ins: Sequence[Sequence[int]], out: Sequence[int], dtype: str) -> int:
    """Arithmetic of one op: of operands and a result of these shapes, the result of this dtype."""
    single = dtype != "float64"
    if name == "matmul":
        return 2 * size_of(out) * ins[0][-1]
    if name == "scatter_add":
        return size_of(ins[2])
    if name in _table():
        return size_of(out) * element_cost(name, single)
    if name in _ROWS or name in _RULES:
        count, function = _ROWS.get(name) or _RULES[name]
        elements = out if name in _RULES else ins[0]
        return size_of(elements) * (count + (element_cost(function, single) if function else 0))
    return 0


# ---- the machine


class Machine(NamedTuple):
    """What this machine does in a second at best, with so many threads."""

    threads: int
    bandwidths: tuple[float, ...]  # bytes, in as much memory as SIZES says
    peaks: dict[str, float]  # operations in float32 and float64

    def bandwidth(self, nbytes: int) -> float:
        """Bytes a second where so many are moved: of the largest memory measured that is not above it."""
        return max(self.bandwidths[max(0, sum(size <= nbytes for size in SIZES) - 1) :])

    def bound(self, nbytes: int, count: int, dtype: str) -> float:
        """Seconds at least for so many bytes and operations."""
        return max(nbytes / self.bandwidth(nbytes), count / self.peaks.get(dtype, self.peaks["float32"]))


_measured: dict[int, Machine] = {}
_lock = threading.Lock()


def machine(threads: int) -> Machine:
    """The machine with so many threads; measured at the first call, which takes about a tenth of a second."""
    with _lock:
        if threads not in _measured:
            # in a thread of its own: no tape, no grad mode and no profile of the caller's sees it
            found: list[Machine] = []
            worker = threading.Thread(target=lambda: found.append(_measured_with(threads)))
            worker.start()
            worker.join()
            (_measured[threads],) = found
        return _measured[threads]


def _measured_with(threads: int) -> Machine:
    """The best of one thread and of so many: where other processes run, more are not always faster."""
    bandwidths, peaks = [0.0] * len(SIZES), {"float32": 0.0, "float64": 0.0}
    before = _core.get_num_threads()
    try:
        for n in sorted({1, threads}):
            _core.set_num_threads(n)
            bandwidths = [max(best, _bandwidth(size)) for best, size in zip(bandwidths, SIZES, strict=True)]
            peaks = {dtype: max(best, _peak(dtype)) for dtype, best in peaks.items()}
    finally:
        _core.set_num_threads(before)
    return Machine(threads, tuple(bandwidths), peaks)


def _least(f: Callable[[], object], seconds: float) -> float:
    """The least time of f, over about so many seconds and twice at least."""
    f()
    best, stop = math.inf, perf_counter() + seconds
    for n in range(1000):
        start = perf_counter()
        f()
        end = perf_counter()
        best = min(best, end - start)
        if n and end > stop:
            break
    return max(best, 1e-9)


def _bandwidth(size: int) -> float:
    """The best of a sum (read), a copy (read, write) and an addition into place (read twice, write) in size bytes."""
    n = size // 8
    a, b = _core.ones(n, "float32"), _core.zeros(n, "float32")

    def copied() -> None:
        b[...] = a

    def added() -> None:
        b.__iadd__(a)

    moved = ((lambda: _core.sum(a), 4 * n), (copied, 8 * n), (added, 12 * n))
    return max(nbytes / _least(f, 1e-3) for f, nbytes in moved)


def _peak(dtype: str) -> float:
    a = _core.ones((LENGTH, LENGTH), dtype)
    return 2 * LENGTH**3 / _least(lambda: _core.matmul(a, a), 4e-3)
