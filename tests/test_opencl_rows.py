"""The softmax family and layer_norm on OpenCL devices, beside the cpu, in both shapes of kernel."""

import struct

import numpy as np
import pytest

from tapeflow.backend.opencl import reductions
from tapeflow.errors import TensorIndexError
from tapeflow.plan import ir
from tests.opencl_arrays import NUMPY, Shaped, cpu, dtypes_of, kept_memory, run  # noqa: F401
from tests.opencl_devices import IMPLEMENTATIONS, device, opened  # noqa: F401

RNG = np.random.default_rng(3)
SHAPES = [  # with a layout; around 16 lanes of a CPU and 64 of a GPU
    ((6, 1), "packed"),
    ((6, 10), "transposed"),
    ((3, 16), "packed"),
    ((2, 3, 17), "transposed"),
    ((4, 64), "reversed"),
    ((2, 65), "strided"),
    ((2, 300), "packed"),
]
LABEL = "[cross_entropy] label {} at position {} is out of range for the axis of 10 classes."


def bits(number):
    return struct.unpack("q", struct.pack("d", number))[0]


FACTS = {  # shapes of kernels: as the device has them, those of GPUs, those of GPUs that take work-groups of 8
    "own": {},
    "gpu": {"is_cpu": False},
    "few": {"is_cpu": False, "max_workgroup": 8},
    "cpu": {"is_cpu": True, "vector_width": 16},
}
# PoCL takes seconds to compile these, llvmpipe minutes for those of CPUs.
SHAPED = {"intel": ("own", "gpu"), "pocl": ("own",), "rusticl": ("own",), "oclgrind": ("own", "cpu")}
LATER = {"intel": ("few",), "pocl": ("few",)}  # in the long run


@pytest.fixture(
    params=[f"{name} {shape}" for name in IMPLEMENTATIONS for shape in SHAPED[name]]
    + [pytest.param(f"{n} {s}", marks=pytest.mark.slow) for n in IMPLEMENTATIONS for s in LATER.get(n, ())]
)
def shaped(request):
    """A device with kernels of some shape."""
    name, shape = request.param.split()
    return Shaped(opened(name), **FACTS[shape])


def shapes_for(shaped):
    return SHAPES if reductions.has_vectors(shaped.device) else SHAPES[1:2] + SHAPES[5:6]


def close(got, want, ulps, scale=None):
    """Within so many units in the last place of the value, or of a scale; NaN and infinities are the same."""
    eps = np.finfo(want.dtype).eps
    with np.errstate(invalid="ignore"):
        near = np.abs(got.astype(np.float64) - want) <= ulps * eps * np.abs(want if scale is None else scale)
    same = near | (got == want) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (got[~same], want[~same])


def logits(dtype, shape):
    return (RNG.standard_normal(shape) * 4).astype(NUMPY[dtype])


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_softmax(shaped, name):
    for dtype in dtypes_of(shaped, ir.FLOAT32, ir.FLOAT64):
        for shape, layout in shapes_for(shaped):
            x = logits(dtype, shape)
            if shape == (6, 10):
                x[0], x[1, 3], x[2, 9], x[3], x[4, ::2] = -np.inf, np.inf, np.nan, 1e4, -np.inf
            to = shape[:-1] if name == "logsumexp" else shape
            want = cpu(name, (), [x], dtype, to)
            got = run(shaped, name, (), [x], dtype, to, layout)
            close(got, want, 8, np.maximum(np.abs(want), 1) if name != "softmax" else None)


def test_rows_of_nothing(device):  # noqa: F811
    assert run(device, "softmax", (), [np.zeros((3, 0), np.float32)], ir.FLOAT32, (3, 0)).shape == (3, 0)
    assert (run(device, "logsumexp", (), [np.zeros((3, 0), np.float32)], ir.FLOAT32, (3,)) == -np.inf).all()
    labels = np.zeros(0, np.int64)
    assert np.isnan(run(device, "cross_entropy", (), [np.zeros((0, 4), np.float32), labels], ir.FLOAT32, ()))


def test_cross_entropy(shaped):
    for dtype in dtypes_of(shaped, ir.FLOAT32):
        for shape, layout in shapes_for(shaped):
            x, g = logits(dtype, shape), np.asarray(0.7, NUMPY[dtype])
            if shape == (6, 10):
                x[3] = 1e4
            labels = RNG.integers(0, shape[-1], shape[:-1])
            ins, layouts = [x, labels], [layout, "strided"]
            got = run(shaped, "cross_entropy", (), ins, dtype, (), layouts)
            close(got, cpu("cross_entropy", (), ins, dtype, ()), 8)
            got = run(shaped, "cross_entropy_vjp", (), [g, *ins], dtype, shape, ["packed", *layouts])
            close(got, cpu("cross_entropy_vjp", (), [g, *ins], dtype, shape), 8, 1 / labels.size)
        x = logits(dtype, (6, 10))
        x[1, 3], x[2, 9], x[4] = np.inf, np.nan, -np.inf
        labels = np.arange(6)
        for name, ins, to in (("cross_entropy", [x, labels], ()), ("cross_entropy_vjp", [g, x, labels], x.shape)):
            close(run(shaped, name, (), ins, dtype, to), cpu(name, (), ins, dtype, to), 8, 1)
        zero = run(shaped, "cross_entropy_vjp", (), [np.zeros((), NUMPY[dtype]), x * np.nan, labels], dtype, x.shape)
        assert (zero == 0).all()


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_vjp"])
@pytest.mark.parametrize("bad", [10, -1, 2**40])
def test_labels_out_of_range(device, name, bad):  # noqa: F811
    x, labels = logits(ir.FLOAT32, (6, 10)), np.array([1, 2, 3, bad, 11, 5])
    ins, shape = ([x, labels], ()) if name == "cross_entropy" else ([np.float32(1), x, labels], x.shape)
    with pytest.raises(TensorIndexError) as error:
        run(device, name, (), ins, ir.FLOAT32, shape)
    assert str(error.value) == LABEL.format(bad, 3)


@pytest.mark.parametrize("centred", [0, 1])
def test_layer_norm(shaped, centred):
    for dtype in dtypes_of(shaped, ir.FLOAT32):
        for shape, layout in shapes_for(shaped):
            for axes in range(1, len(shape)):
                x, own = logits(dtype, shape), shape[len(shape) - axes :]
                weight, bias = (RNG.standard_normal(own).astype(NUMPY[dtype]) for _ in range(2))
                for more in ([], [weight], [weight, bias]):
                    params = (axes, bits(1e-5), centred)
                    ins, layouts = [x, *more], [layout, *["reversed"] * len(more)]
                    got = run(shaped, "layer_norm", params, ins, dtype, shape, layouts)
                    close(got, cpu("layer_norm", params, ins, dtype, shape), 16, 4)
