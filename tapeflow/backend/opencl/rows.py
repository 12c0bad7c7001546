"""softmax, log_softmax, logsumexp, cross_entropy and its rule, layer_norm: kernels/softmax.cl."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tapeflow.backend.opencl.gather import Flag
from tapeflow.backend.opencl.moves import packed, start
from tapeflow.backend.opencl.reductions import (
    LANES,
    MEAN,
    TYPES,
    Rows,
    Shape,
    fitting_kernel,
    has_vectors,
    join,
    part_size,
    reduce,
    rows_of,
    shape_for,
)
from tapeflow.backend.opencl.table import implements, source
from tapeflow.errors import TensorIndexError
from tapeflow.plan import ir

if TYPE_CHECKING:
    from tapeflow.backend.opencl.host import Array, Device

WIDE = 64  # lanes of a row on a GPU
WORK = 8192  # elements that a work-item of a CPU takes before the next one begins


@cache
def _text() -> str:
    return source("lanes.cl") + source("softmax.cl")


@cache
def _argtypes(name: str, fp64: bool) -> tuple[Any, ...]:
    long = np.int64
    more: tuple[Any, ...] = ()
    if name == "cross_entropy":
        more = (None, long, None, None)
    elif name == "cross_entropy_vjp":
        more = (None, long, None, long, None)
    elif name == "layer_norm":
        more = (None, long, None, long, np.int32, np.float64 if fp64 else np.float32, np.int32)
    return (None, *[long] * 4, None, *[long] * 5, *more)


def _launch(device: Device, name: str, rows: Rows, to: Any, at: int, *more: Any) -> Shape:
    """Run the kernel of that name over rows of one array."""
    scales = "-DSCALES=1" if device.fp64 else "-DSCALES=2"  # as in reduce.cl
    options = (f"-DT={TYPES[rows.arrays[0].dtype]}", f"-D{name.upper()}", scales)
    types = _argtypes(name, device.fp64)
    kernel, shape = fitting_kernel(device, _text(), name, options, types, shape_for(device, WIDE))
    per = 1
    if has_vectors(device):
        per = max(1, min(WORK // (rows.n + LANES), rows.rows // (4 * device.compute_units)))
    device.launch(
        kernel, (-(-rows.rows // (per * shape.units)) * shape.group,), (shape.group,),
        *rows.operands(), to, at, rows.rows, rows.inner, rows.n, per, *more,
    )  # fmt: skip
    return shape


def _last_axes(device: Device, x: Array, axes: int = 1) -> Rows:
    """x as rows of its last axes."""
    ndim = len(x.shape)
    return rows_of(device, [x], ((1 << axes) - 1) << (ndim - axes))


@implements("softmax", "log_softmax", "logsumexp")
def execute_rows(device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array) -> None:
    """Along the last axis."""
    if out.size:
        _launch(device, ir.NAMES[op], _last_axes(device, ins[0]), out.memory, start(out))


@implements("layer_norm")
def execute_norm(device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array) -> None:
    """params: how many of the last axes, the bits of eps, whether the mean is taken off; ins: x, weight, bias."""
    if not out.size:
        return
    axes, bits, centred = params
    (eps,) = struct.unpack("d", struct.pack("q", bits))
    more = [packed(device, x) for x in ins[1:]]
    weight, bias = (*more, ins[0], ins[0])[:2]
    _launch(
        device, "layer_norm", _last_axes(device, ins[0], axes), out.memory, start(out),
        weight.memory, start(weight), bias.memory, start(bias), len(more), eps, centred,
    )  # fmt: skip


@implements("cross_entropy")
def execute_cross_entropy(device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array) -> None:
    """The mean of the losses of rows; ins: logits, labels."""
    x, labels = ins[0], packed(device, ins[1])
    if not labels.size:
        reduce(device, "SUM", MEAN, Rows(1, 1, 0, [x], [(0, 0, 1)]), out.memory, start(out))
        return
    if not x.shape[-1]:
        _name_bad_label(device, labels, 0)
    rows = _last_axes(device, x)
    losses = device.alloc(part_size("SUM", x.dtype, device.fp64) * rows.rows, "cross_entropy")
    bad = Flag(device)
    _launch(device, "cross_entropy", rows, x.memory, 0, labels.memory, start(labels), losses, bad.memory)
    join(device, "SUM", x.dtype, shape_for(device), losses, out.memory, start(out), 1, labels.size, labels.size, MEAN)
    if bad.is_set():
        _name_bad_label(device, labels, rows.n)


@implements("cross_entropy_vjp")
def execute_cross_entropy_vjp(
    device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array
) -> None:
    """The cotangent of the logits; ins: that of the loss, logits, labels."""
    g, x, labels = ins[0], ins[1], packed(device, ins[2])
    if not labels.size:
        return
    if not x.shape[-1]:
        _name_bad_label(device, labels, 0)
    rows, bad = _last_axes(device, x), Flag(device)
    _launch(
        device, "cross_entropy_vjp", rows, out.memory, start(out),
        labels.memory, start(labels), g.memory, start(g), bad.memory,
    )  # fmt: skip
    if bad.is_set():
        _name_bad_label(device, labels, rows.n)


def _name_bad_label(device: Device, labels: Array, classes: int) -> NoReturn:
    """Raise the error of the first label that is out of range."""
    values = device.download(labels).ravel()
    at = int(((values < 0) | (values >= classes)).argmax())
    raise TensorIndexError(
        f"[cross_entropy] label {values[at]} at position {at} is out of range for the axis of {classes} classes."
    )
