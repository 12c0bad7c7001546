"""Does a device compute what the processor does? One small program per kind of op, op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow.backend.opencl.host import DTYPES, Device
from tapeflow.backend.opencl.table import load
from tapeflow.plan import ir, origin
from tapeflow.plan.record import record

TOLERANCE = 2e-5  # of float32, relative to the larger of the value and 1


def elementwise(x: tp.Tensor, y: tp.Tensor) -> Any:
    z = tp.exp(-x * x) + tp.tanh(y) / (1.5 + tp.sin(x)) - tp.sqrt(tp.abs(y)) * tp.log1p(x * x)
    return tp.where(z > 0.25, z, tp.erf(x)), tp.astype(tp.floor(4.0 * x), "int32") % 3, tp.maximum(x, y)


def moves(x: tp.Tensor, y: tp.Tensor) -> Any:
    part = x.T[1:, ::-2]
    return tp.concat([part, part + 1.0]), tp.reshape(x.T, (-1,)), tp.broadcast_to(y[:1], (3, 7)), tp.flip(y, axis=1)


def reductions(x: tp.Tensor, y: tp.Tensor) -> Any:
    return tp.sum(x), tp.mean(x, axis=0), tp.max(y, axis=1), tp.argmin(y, axis=0), tp.var(x, axis=1), tp.any(x > 1.0)


def scans(x: tp.Tensor, y: tp.Tensor) -> Any:
    return tp.cumsum(x, axis=1), tp.cumprod(y, axis=0), tp.cumulative_max(x, axis=0)


def products(x: tp.Tensor, y: tp.Tensor) -> Any:
    return tp.matmul(x, y.T), tp.matmul(y.T, x), tp.vecdot(x, y)


def rows(x: tp.Tensor, y: tp.Tensor) -> Any:
    loss = tp.cross_entropy(x, tp.argmax(y, axis=1))
    return tp.softmax(x, axis=1), tp.log_softmax(y, axis=0), tp.logsumexp(x, axis=1), loss, tp.nn.LayerNorm(7)(x)


def indexing(x: tp.Tensor, y: tp.Tensor) -> Any:
    at = tp.argmax(x, axis=0)
    return tp.take(y, at, axis=0), tp.take(x, at[:3], axis=1), tp.one_hot(at, 5), x[x > 0.5]


def ordering(x: tp.Tensor, y: tp.Tensor) -> Any:
    ordered = tp.sort(x, axis=1)
    return ordered, tp.argsort(y, axis=0), tp.searchsorted(ordered[0], y[1])


def random(x: tp.Tensor, y: tp.Tensor) -> Any:
    draw = tp.random.Generator(7)
    return draw.uniform(shape=(9,)), draw.normal(shape=(4, 3)), draw.integers(0, 50, shape=(11,)), draw.permutation(13)


def gradients(x: tp.Tensor, y: tp.Tensor) -> Any:
    def loss(x: tp.Tensor, y: tp.Tensor) -> tp.Tensor:
        z = tp.tanh(tp.matmul(x, y.T)) * tp.softmax(x, axis=1)[:, :5]
        return tp.sum(z[1:]) + tp.mean(tp.take(y, tp.argmax(x, axis=1) % 5, axis=0) ** 2)

    return tp.grad(loss, argnums=(0, 1))(x, y)


PROGRAMS: dict[str, Callable[[tp.Tensor, tp.Tensor], Any]] = {
    f.__name__: f
    for f in (elementwise, moves, reductions, scans, products, rows, indexing, ordering, random, gradients)
}


def verdict(device: Device, name: str) -> str:
    """Nothing when the program's ops agree with the processor's, otherwise what is wrong or missing."""
    rng = np.random.default_rng(1)
    x, y = (tp.tensor(rng.normal(size=(5, 7)), dtype="float32") for _ in range(2))
    recorded, _ = record(PROGRAMS[name], (x, y), {}, "info")
    program = recorded.ir
    values = origin._run(program, [x, y])
    ops = [instr for instr in program.instrs if instr.op >= 0]
    missing = sorted({ir.name_of(instr.op) for instr in ops if instr.op not in load()})
    if missing:
        return f"not available: {', '.join(missing)}"
    for instr in ops:
        wrong = check_op(device, program, instr, values)
        if wrong:
            return f"{ir.name_of(instr.op)}: {wrong}"
    return ""


def check_op(device: Device, program: ir.IR, instr: ir.Instr, values: dict[int, tp.Tensor | None]) -> str:
    """What is wrong with one op on the device, by the processor's value; its operands are the processor's."""
    ins = [_uploaded(device, values[k]) for k in instr.ins]
    value = program.values[instr.out]
    out = device.empty_array(value.dtype, value.shape, "self-test")
    device.execute(instr.op, _params(program, instr), ins, out)
    wanted = values[instr.out]
    assert wanted is not None
    got, want = device.download(out), wanted.numpy()
    if got.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{np.count_nonzero(got != want)} of {got.size} values differ"
    with np.errstate(invalid="ignore"):
        off = np.abs(got - want) / np.maximum(np.abs(want), 1)
    worst = float(np.max(off, initial=0.0))
    return "" if worst <= TOLERANCE else f"a value is off by {worst:.1g}"


def _uploaded(device: Device, x: tp.Tensor | None) -> Any:
    if x is None:
        return None
    data = x.detach().numpy()
    array = device.empty_array(DTYPES.index(data.dtype), data.shape, "self-test")
    device.upload(array, data)
    return array


def _params(program: ir.IR, instr: ir.Instr) -> tuple[int, ...]:
    """The parameters of an op; of a draw with seed and number in place of its generator's place in the program."""
    if instr.op != ir.RANDOM:
        return instr.params
    kind, stretch, place, *limits = instr.params
    generator, absolute, seed, first = program.generators[stretch][:4]
    if not absolute:
        seed, first = generator.state
    return (kind, seed, first + place, *limits)
