"""`tp.trace_nan`: the op that makes inf or NaN out of finite values raises, forward and backward.

The core looks at results while the mode is on (core/finite.pxi) and comes here with what it has found: `check_op` and
`check_rule` raise where the operands were finite. With the mode off nothing of this runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tapeflow import _core, transforms
from tapeflow.errors import NonFiniteError, TapeError


class trace_nan:
    """Inside `with tp.trace_nan():` an op that makes a non-finite value out of finite ones raises NonFiniteError.

    The error, a FloatingPointError as NumPy's, names the op, shapes, the first bad index and your line; in a backward
    the rule's op, and the line of the op forward where that ran in the mode, too. log(0) does raise; inf and NaN that
    go in may come out, element by element of an elementwise op. A partial that is not finite but multiplied by a
    cotangent of 0 does not raise: the gradient is 0. Plans look at results, state and .grad before they hand them
    over, and run once more, op by op, to name the op: so state stays as it was. Also a decorator. Of this thread only;
    results are read once more, and backward runs as for a gradient of a gradient.

    Raises
    ------
    NonFiniteError
        At once.

    >>> with tp.trace_nan():
    ...     y = tp.log(tp.tensor([1.0, 0.0]))
    Traceback (most recent call last):
    ...
    tapeflow.errors.NonFiniteError: [log] -inf at index (1,) of the result float32[2], of finite operands float32[2] \
(0.0 there), in <doctest...>:2. ...
    """

    def __init__(self) -> None:
        self._before: dict[int, list[Any]] = {}

    def __enter__(self) -> trace_nan:
        self._before.setdefault(threading.get_ident(), []).append(_core.set_tracing({}))
        return self

    def __exit__(self, *exc: object) -> None:
        modes = self._before.get(threading.get_ident())
        if not modes:
            raise TapeError("[trace_nan] the context was left without being entered in this thread.")
        _core.set_tracing(modes.pop())

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return transforms.under(trace_nan, f)


def describe(x: np.ndarray) -> str:
    return f"{x.dtype}{list(x.shape)}"


def made(elementwise: bool, y: np.ndarray, operands: list[np.ndarray]) -> tuple[int, ...] | None:
    """The index of the first element that is not finite and was made of finite ones; None: there is none."""
    bad = ~np.isfinite(y)
    floats = [x for x in operands if x.dtype.kind == "f"]
    for x in floats:
        finite = np.isfinite(x)
        if finite.all():
            continue
        if not elementwise:
            return None
        bad &= np.broadcast_to(finite, y.shape)
    if not bad.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), y.shape))


def _there(x: np.ndarray, shape: tuple[int, ...], index: tuple[int, ...], elementwise: bool) -> str:
    """An operand in words, with its element at the index where it has one."""
    if x.size == 1:
        return f"{describe(x)} ({x.ravel()[0]} there)"
    return f"{describe(x)} ({np.broadcast_to(x, shape)[index]} there)" if elementwise else describe(x)


def check_op(op: str, elementwise: bool, y: np.ndarray, operands: list[np.ndarray | None], place: Any) -> None:
    """Raise where the result y of an op is not finite and the operands were."""
    given = [x for x in operands if x is not None]
    index = made(elementwise, y, given)
    if index is None:
        return
    of = " and ".join(_there(x, y.shape, index, elementwise) for x in given) or "nothing"
    raise NonFiniteError(
        f"[{op}] {y[index]} at index {index} of the result {describe(y)}, of finite operands {of}, in "
        f"{place[0]}:{place[1]}. Keep the operands within the domain and range of the op there.",
        op,
        index,
        tuple(place),
    )


def check_rule(
    op: str,
    elementwise: bool,
    v: np.ndarray,
    g: np.ndarray | None,
    saved: list[np.ndarray | None],
    place: Any,
    forward: Any,
) -> None:
    """Raise where the cotangent v that an op's rule made of g is not finite, and what it was made of was. g None: v is
    a tangent, of finite ones."""
    given = [x for x in (g, *saved) if x is not None]
    same = elementwise and all(x.size == 1 or x.shape == v.shape for x in given)
    index = made(same, v, given)
    if index is None:
        return
    text = f", whose op ran in {forward[0]}:{forward[1]}" if forward is not None else ""
    words = [_there(x, v.shape, index, same) for x in given]
    if g is None:
        what, of = "the forward mode made", "tangents"
    else:
        what, of = "the backward made", f"the cotangent {words.pop(0)}"
    raise NonFiniteError(
        f"[{op}] {what} {v[index]} at index {index} of the derivative {describe(v)} out of finite values: {of}, saved "
        f"{', '.join(words) or 'nothing'}; called in {place[0]}:{place[1]}{text}. Keep the operands away from where "
        "the derivative is infinite.",
        op,
        index,
        tuple(forward or place),
    )
