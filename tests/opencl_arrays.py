"""Arrays on an OpenCL device in every layout, and ops on them beside the cpu's."""

import os

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import _core
from tapeflow.backend.opencl.host import Array
from tapeflow.backend.opencl.memory import Pool
from tapeflow.backend.opencl.table import implementation
from tapeflow.plan import ir
from tests.opencl_devices import IMPLEMENTATIONS

LAYOUTS = ("packed", "offset", "transposed", "reversed", "strided")
NUMPY = [np.dtype(name) for name in ir.DTYPES]
GUARD = 0x5A  # bytes around a result, which must stay
MARGIN = 64

KEPT = []


@pytest.fixture(autouse=True)
def kept_memory(monkeypatch):
    """Oclgrind takes what kernels write in memory that was freed and given out again for uninitialized: keep it."""
    if IMPLEMENTATIONS == ("oclgrind",):
        alloc = Pool.alloc
        monkeypatch.setattr(Pool, "alloc", lambda *args: KEPT.append(alloc(*args)) or KEPT[-1])


class Shaped:
    """A device that is taken for a CPU, or for none, or for one without fp64."""

    def __init__(self, device, **facts):
        self.device = device
        self.__dict__.update(facts)

    def __getattr__(self, name):
        return getattr(self.device, name)


def in_the_long_run():
    """Is this make test-deep?"""
    return os.environ.get("HYPOTHESIS_PROFILE") == "deep"


def is_slow_to_compile(device):
    """PoCL compiles a kernel anew for each size of groups: those of GPUs, with many, are for the deep profile."""
    return device.info.platform == "Portable Computing Language" and not in_the_long_run()


def both_shapes(device):
    """The device with the kernels of either kind."""
    if is_slow_to_compile(device):
        return [Shaped(device, is_cpu=True)]
    return [Shaped(device, is_cpu=True), Shaped(device, is_cpu=False)]


def as_gpu(device, **facts):
    """The device with the kernels of GPUs."""
    if is_slow_to_compile(device):
        pytest.skip("kernels of GPUs on PoCL only with HYPOTHESIS_PROFILE=deep")
    return Shaped(device, is_cpu=False, **facts)


def dtypes_of(device, *codes):
    """Those of the dtypes (all by default) that the device computes."""
    return [c for c in codes or range(len(ir.DTYPES)) if c != ir.FLOAT64 or device.fp64]


def laid_out(x, layout):
    """A view with x's values of a larger array of another value."""
    if layout == "packed":
        return np.array(x, order="C")
    if layout == "transposed":
        return np.array(x.T, order="C").T
    step = {"offset": 1, "reversed": -1, "strided": 2}[layout]
    big = np.full([2 + max(n * abs(step), 1) for n in x.shape] or [3], 77).astype(x.dtype)
    if x.ndim == 0:
        view = big[1:2].reshape(())
    elif step < 0:
        view = big[tuple([slice(n, 0, -1) for n in x.shape])]
    else:
        view = big[tuple([slice(1, 1 + step * n, step) for n in x.shape])]
    view[...] = x
    return view


def place(device, x, layout="packed"):
    """x on the device."""
    x = np.asarray(x)
    view = laid_out(x, layout) if layout else x  # None: as it is, a broadcast one
    low = view.__array_interface__["data"][0]
    base = view
    while base.base is not None and isinstance(base.base, np.ndarray):
        base = base.base
    offset = low - base.__array_interface__["data"][0]
    memory = device.alloc(base.nbytes)
    dtype = NUMPY.index(x.dtype)
    if base.nbytes:
        flat = np.frombuffer(base.tobytes(order="A"), np.uint8)
        device.upload(Array(memory, 0, ir.UINT8, flat.shape, (1,)), flat)
    return Array(memory, offset, dtype, view.shape, view.strides)


def guarded(device, dtype, shape):
    """Room for a result between bytes that must stay."""
    room = device.empty_array(dtype, tuple(shape))
    nbytes = room.memory.nbytes
    memory = device.alloc(nbytes + 2 * MARGIN)
    if MARGIN:  # a checker of kernels wants results that are not initialized, in buffers of their size
        whole = Array(memory, 0, ir.UINT8, (memory.nbytes,), (1,))
        device.upload(whole, np.full(memory.nbytes, GUARD, np.uint8))
    return room._replace(memory=memory, offset=MARGIN)


def run(device, name, params, ins, dtype, shape, layouts="packed"):
    """What the device makes of NumPy arrays."""
    if isinstance(layouts, str) or layouts is None:
        layouts = [layouts] * len(ins)
    arrays = [place(device, x, layout) for x, layout in zip(ins, layouts)]
    before = [device.download(a).tobytes() for a in arrays]
    out = guarded(device, dtype, shape)
    target = getattr(device, "device", device)
    run_op(device, name, params, arrays, out)
    whole = target.download(Array(out.memory, 0, ir.UINT8, (out.memory.nbytes,), (1,)))
    around = np.concatenate([whole[:MARGIN], whole[len(whole) - MARGIN :]])
    assert (around == GUARD).all(), "written outside of the result"
    assert [device.download(a).tobytes() for a in arrays] == before, "an operand was written"
    return target.download(out)


def run_op(device, name, params, arrays, out):
    """An op, with the device as it is taken for."""
    op = ir.CODES[name]
    implementation(op, device.name)(device, op, tuple(params), arrays, out)


def cpu(name, params, ins, dtype, shape):
    """The same on the cpu."""
    tensors = [tp.tensor(np.ascontiguousarray(x)) for x in ins]
    return np.asarray(_core.compute_op(ir.CODES[name], tuple(params), tensors, dtype, tuple(shape)))


def assert_bits(got, want, what=""):
    """Equal bits; of NaN any."""
    assert got.dtype == want.dtype and got.shape == want.shape, (what, got.dtype, want.dtype, got.shape, want.shape)
    if want.dtype.kind == "f":
        word = f"u{want.dtype.itemsize}"
        same = (got.view(word) == want.view(word)) | (np.isnan(got) & np.isnan(want))
    else:
        same = got == want
    assert same.all(), f"{what}: {got[~same][:5]} for {want[~same][:5]}, {np.count_nonzero(~same)} of {same.size}"


def check(device, name, params, ins, dtype, shape, layouts="packed"):
    """The device's bits are the cpu's."""
    got = run(device, name, params, ins, dtype, shape, layouts)
    assert_bits(got, cpu(name, params, ins, dtype, shape), (name, params, [x.shape for x in ins], layouts))


def values(rng, dtype, shape):
    """Any bits, NaN and infinities too; bool is 0 or 1."""
    dtype = NUMPY[dtype]
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "f":
        x = rng.standard_normal(shape).astype(dtype)
        return np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), x).astype(
            dtype
        )
    low, high = (0, 256) if dtype == np.uint8 else (-(2**31), 2**31)
    return rng.integers(low, high, shape).astype(dtype) * dtype.type(1 if dtype != np.int64 else 2**20 + 1)
