"""Elementwise ops, fused groups and draws on OpenCL devices, against the core on the same operands.

Ops are tested many to a kernel, as steps of one group, because each kernel costs up to a second to build; the special
functions are left to the processors' own compilers, except in the long run, for rusticl takes up to six seconds each.
"""

import re

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import _core, ops
from tapeflow.backend.opencl import fused as groups
from tapeflow.backend.opencl import random as draws
from tapeflow.backend.opencl.fused import Body, Step
from tapeflow.backend.opencl.host import Array, Device
from tapeflow.backend.opencl.library import library
from tapeflow.backend.opencl.table import load
from tapeflow.backend.opencl.text import KernelText, bound, program
from tapeflow.plan.ir import BOOL, CODES, DTYPES, FLOAT32, FLOAT64, INT32, INT64, ITEMSIZE, UINT8
from tests import opencl_devices
from tests.helpers import rng_for

device = opencl_devices.device
SUFFIXES = tuple(ops.DTYPES)
SLOW = (
    "lgamma",
    "digamma",
    "polygamma",
    "spherical_ratio",
    "gelu",
    "erfc",
    "gelu_tanh",
    "erf",
    "erfinv",
    "tan",
    "cos",
    "logaddexp",
    "softplus",
    "log1p",
    "log2",
    "log10",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "asin",
    "acos",
    "atan",
    "atan2",
    "xlogy",
    "xlog1py",
    "exp2",
    "elu",
    "cbrt",
    "silu",
    "sinc",
)  # to build, on rusticl
CHUNK = 20


def upload(device, x):
    y = device.empty_array(DTYPES.index(x.dtype.name), x.shape)
    device.upload(y, x)
    return y


def strided(device, x, axes):
    """x with its axes in this order in memory, backwards, with gaps and an offset."""
    packed = np.array(np.transpose(x, axes), order="C")
    big = np.zeros([2 * n + 3 for n in packed.shape], x.dtype)
    view = big[(*(slice(2, 2 + 2 * n, 2) for n in packed.shape), ...)][(*(slice(None, None, -1),) * x.ndim, ...)]
    view[...] = packed
    view = np.transpose(view, [axes.index(d) for d in range(x.ndim)])
    first = view.__array_interface__["data"][0] - big.__array_interface__["data"][0] if x.size else 0
    return Array(upload(device, big).memory, first, DTYPES.index(x.dtype.name), view.shape, view.strides)


def same(got, want, label=""):
    """Equal bits but those of NaN."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), label
    fine = (got.view(f"u{got.itemsize}") == want.view(f"u{want.itemsize}")) | ((got != got) & (want != want))
    assert fine.all(), f"{label}: {got[~fine][:3]} for {want[~fine][:3]}"


def core(op, dtype, *operands):
    """The core's result of an op of NumPy arrays."""
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    return _core.compute_op(op, (), [tp.asarray(x) for x in operands], dtype, shape).numpy()


def flushes(device):
    """Does the device take subnormal numbers for 0?"""
    return not device.info.handle.single_fp_config & device.cl.device_fp_config.DENORM


def float_points(device, dtype, count, seed):
    """Numbers of every exponent, of usual sizes, about 1, whole ones, and the special ones."""
    rng = rng_for("opencl", dtype, seed)
    bits = rng.integers(0, 2 ** (32 if dtype == "float32" else 64), count, np.uint64, endpoint=False)
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        0.5,
        88.5,
        -104.0,
        710.0,
        -745.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-40,
        3e38,
    ]
    with np.errstate(all="ignore"):
        parts = [
            bits.astype("uint32" if dtype == "float32" else "uint64").view(dtype),
            rng.uniform(-3, 3, count), rng.uniform(-20, 20, count), rng.uniform(-100, 100, count),
            rng.uniform(-1, 1, count) * 2.0 ** rng.integers(-60, 40, count),
            1 + rng.uniform(-1, 1, count) * 2.0 ** -rng.integers(0, 52, count),
            rng.integers(-50, 50, count), special,
        ]  # fmt: skip
        x = np.concatenate([np.asarray(part, dtype) for part in parts])
    if flushes(device):
        x[(np.abs(x) < np.finfo(dtype).tiny) & (x != 0)] = 0
    return rng.permutation(x)


def units(name, dtype, want, operands):
    """What an error is counted in: ULP of the result, or of what the op's entry names where the result is near 0."""
    info = np.finfo(dtype)
    wide = [x.astype("float64") for x in operands]
    unit = np.spacing(np.minimum(np.abs(want).astype(dtype), info.max)).astype("float64")
    x = np.abs(wide[-1])
    if name in ("lgamma", "digamma", "polygamma"):
        times = wide[0] + 1 if name == "polygamma" else 1
        largest = np.maximum(1, np.maximum(x, np.abs(x * np.log(x))))
        unit = np.where(wide[-1] < 0, np.fmax(unit, times * largest * info.eps), unit)
    if name == "logaddexp":
        unit = np.fmax(unit, np.spacing(np.abs(np.maximum(*operands))).astype("float64"))
    if name == "spherical_ratio":
        unit = np.where(np.pi * x > wide[0], np.fmax(unit, info.eps * (np.pi * x) ** -(wide[0] + 1)), unit)
    return unit


def check_floats(device, op, dtype, got, operands, flushed):
    """Against the core: special values as they are, all others within the bound of the device."""
    entry = list(ops.TABLE.values())[op]
    name, code = entry.name, DTYPES.index(dtype)
    with np.errstate(all="ignore"):
        want = core(op, code, *operands)
        wide = operands if dtype == "float64" else [x.astype("float64") for x in operands]
        truth = core(op, FLOAT64, *wide) if entry.ulp else want
        unit = units(name, dtype, truth, operands)
        known = np.isfinite(want) & (want != 0)
        if name in ("polygamma", "spherical_ratio"):  # sums of what overflows; products of what underflows
            known &= (np.abs(want) < np.finfo(dtype).max / 64) & (np.abs(want) > np.finfo(dtype).tiny)
            other = np.isnan(want)
        else:
            other = ~known
        if flushed:
            known &= np.abs(want) > np.finfo(dtype).tiny * 2.0**24
            other &= want != 0
        error = np.where(known, np.abs(got.astype("float64") - truth) / unit, 0.0)
    limit = (2 if dtype == "float64" else 1) * bound(name, code, True)  # the core's float64 is no truth
    worst = int(np.argmax(np.nan_to_num(error, nan=np.inf)))
    at = [x[worst] for x in operands]
    assert error[worst] <= limit, f"{name}{at}: {error[worst]:.3g} units, {got[worst]!r} for {truth[worst]!r}"
    if flushed:
        got, want = (np.where(x == 0, np.zeros((), dtype), x) for x in (got, want))
    same(got[other], want[other], f"{name} {dtype}")


def float_groups():
    """The ops that floats have, some to a kernel: of one number of operands, and slow ones apart."""
    entries = [e for e in ops.TABLE.values() if "f32" in e.dtypes and e.kind not in ("compare", "select")]
    for nin in (1, 2, 3):
        for slow in (False, True):
            names = [e.name for e in entries if e.nin == nin and (e.name in SLOW) == slow]
            yield from (names[k : k + CHUNK] for k in range(0, len(names), CHUNK))


FLOAT_GROUPS = list(float_groups())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", range(len(FLOAT_GROUPS)))
def test_float_ops(device, dtype, number):
    if dtype == "float64" and not device.fp64:
        pytest.skip(f"{device.name} has no float64")
    names = FLOAT_GROUPS[number]
    if flushes(device) and names[0] in SLOW:
        pytest.skip(f"{', '.join(names)} take {device.name} minutes to build: one by one in the long run")
    _float_ops(device, dtype, names, 300 if flushes(device) else 3000, number)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_special_functions_where_they_take_long_to_build(name):
    _float_ops(opencl_devices.opened("rusticl"), "float32", [name], 300, 0)


def _float_ops(device, dtype, names, count, number):
    code = DTYPES.index(dtype)
    entries = [ops.TABLE[name] for name in names]
    nin = entries[0].nin
    operands = [float_points(device, dtype, count, seed) for seed in range(nin)]
    if nin == 2:  # whole orders below what overflows; quotients and powers of usual size
        half = operands[0].size // 2
        operands[0][:half] = rng_for("orders").integers(0, 20, half)
        operands[1][: half // 2] = rng_for("seconds").uniform(-4, 8, half // 2)
    steps = tuple(Step(entry.opcode, code, tuple(range(nin))) for entry in entries)
    body = Body((code,) * nin, (), steps, tuple(range(nin, nin + len(steps))))
    if number % 2:  # the same kernel over operands that lie somehow
        rows = operands[0].size // 4
        operands = [x[: 4 * rows].reshape(4, rows) for x in operands]
        ins = [strided(device, x, (1, 0)) for x in operands]
    else:
        ins = [upload(device, x) for x in operands]
    outs = [device.empty_array(code, operands[0].shape) for _ in steps]
    groups.run(device, body, ins, (), outs)
    for entry, out in zip(entries, outs, strict=True):
        got = device.download(out).ravel()
        check_floats(device, entry.opcode, dtype, got, [x.ravel() for x in operands], flushes(device))


def integer_points(dtype, count, seed):
    if dtype == "bool":
        return rng_for("bool", seed).integers(0, 2, count).astype(bool)
    info = np.iinfo(dtype)
    rng = rng_for("integers", dtype, seed)
    special = [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, info.max, info.max - 1, info.min, info.min + 1]
    special += [-1, -2, -7, -33] if info.min else [255]
    whole = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    small = rng.integers(max(info.min, -9), 9, count)
    return rng.permutation(np.concatenate([np.array(special, dtype), whole, small.astype(dtype)]))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
def test_integer_ops(device, dtype):
    """And comparisons; every result has the core's bits, wraparound, quotients by 0 and shifts included."""
    code = DTYPES.index(dtype)
    entries = [e for e in ops.TABLE.values() if SUFFIXES[code] in e.dtypes and e.kind not in ("select", "float")]
    operands = [integer_points(dtype, 400, seed) for seed in range(3)]
    shape = operands[0].shape
    for nin in (1, 2, 3):
        some = [e for e in entries if e.nin == nin]
        if not some:
            continue
        xs = list(operands[:nin])
        results = [BOOL if e.kind == "compare" else code for e in some]
        powers = [e for e in some if e.name == "pow"]
        body = Body(
            (code,) * nin, (), tuple(Step(e.opcode, code, tuple(range(nin))) for e in some),
            tuple(range(nin, nin + len(some))),
        )  # fmt: skip
        outs = [device.empty_array(result, shape) for result in results]
        groups.run(device, body, [upload(device, x) for x in xs], (), outs)
        for entry, result, out in zip(some, results, outs, strict=True):
            got, want = device.download(out), core(entry.opcode, result, *xs)
            if entry in powers:  # the core refuses exponents below 0
                got, want = got[xs[1] >= 0], want[xs[1] >= 0]
            same(got, want, f"{entry.name} {dtype}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_comparisons_and_where(device, dtype):
    code = DTYPES.index(dtype)
    if dtype == "float64" and not device.fp64:
        pytest.skip(f"{device.name} has no float64")
    a, b = (float_points(device, dtype, 200, seed) for seed in (5, 6))
    b[::3] = a[::3]
    mask = rng_for("mask").integers(0, 2, a.size).astype(bool)
    steps, checks = [], []
    for entry in ops.TABLE.values():
        if entry.kind == "compare":
            steps.append(Step(entry.opcode, code, (0, 1)[: entry.nin]))
            checks.append((entry.opcode, BOOL, (a, b)[: entry.nin]))
    steps.append(Step(CODES["where"], code, (2, 0, 1)))
    checks.append((CODES["where"], code, (mask, a, b)))
    steps.append(Step(CODES["where"], code, (0, 0, 1)))  # any condition is taken as bool
    checks.append((CODES["where"], code, (a != 0, a, b)))
    body = Body((code, code, BOOL), (), tuple(steps), tuple(range(3, 3 + len(steps))))
    outs = [device.empty_array(dtype, a.shape) for _, dtype, _ in checks]
    groups.run(device, body, [upload(device, x) for x in (a, b, mask)], (), outs)
    for (op, result, operands), out in zip(checks, outs, strict=True):
        same(device.download(out), core(op, result, *operands), list(ops.TABLE)[op])


@pytest.mark.parametrize("dtype", DTYPES)
def test_casts(device, dtype):
    have = DTYPES.index(dtype)
    targets = [k for k in range(6) if device.fp64 or k != FLOAT64]
    if have not in targets:
        pytest.skip(f"{device.name} has no float64")
    if have < FLOAT32:
        x = integer_points(dtype, 300, 9)
    else:
        limits = [2.0**k + d for k in (7, 8, 31, 32, 62, 63, 64) for d in (-1, 0, 1)]
        x = np.concatenate([float_points(device, dtype, 100, 9), np.array([*limits, *(-v for v in limits)], dtype)])
    astype = CODES["astype"]
    body = Body((have,), (), tuple(Step(astype, k, (0,)) for k in targets), tuple(range(1, 1 + len(targets))))
    outs = [device.empty_array(k, x.shape) for k in targets]
    groups.run(device, body, [upload(device, x)], (), outs)
    for k, out in zip(targets, outs, strict=True):
        got, want = device.download(out), core(astype, k, x)
        if k == FLOAT32 and have == FLOAT64 and flushes(device):
            got, want = got[abs(want) > 1e-37], want[abs(want) > 1e-37]
        same(got, want, f"{dtype} to {DTYPES[k]}")
        device.execute(astype, (), [upload(device, x[:0])], device.empty_array(k, (0,)))


# ---- layouts


SHAPES = [(), (1,), (7,), (255,), (256,), (257,), (3, 5), (4, 300), (2, 3, 4), (2, 1, 5), (0,), (3, 0, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layouts(device, shape):
    rng = rng_for("layouts", shape)
    add, less, where = CODES["add"], CODES["less"], CODES["where"]
    a, b = (np.array(rng.integers(-9, 9, shape), "int32") for _ in range(2))
    out = device.empty_array(INT32, shape)
    forward = tuple(range(len(shape)))
    backwards, transposed = strided(device, a, forward), strided(device, a, forward[::-1])
    packed, crossed = upload(device, b), strided(device, b, forward[::-1])
    for x, y in ((upload(device, a), packed), (backwards, packed), (backwards, crossed), (transposed, crossed)):
        device.execute(add, (), [x, y], out)
        same(device.download(out), np.asarray(a + b))
    truth = device.empty_array(BOOL, shape)
    device.execute(less, (), [backwards, packed], truth)
    same(device.download(truth), np.asarray(a < b))
    device.execute(where, (), [truth, upload(device, a), upload(device, b)], out)
    same(device.download(out), np.where(a < b, a, b))


@pytest.mark.parametrize(
    "shapes",
    [((3, 5), (5,)), ((3, 5), (3, 1)), ((4, 1, 6), (5, 1)), ((2, 300), (300,)), ((2, 300), (2, 1)), ((3, 5), ()),
     ((), ()), ((1, 1), (4, 4)), ((0, 3), (3,)), ((2, 3, 1, 140), (3, 2, 1)), ((5, 1), (1, 4))],
    ids=str,
)  # fmt: skip
def test_broadcasting(device, shapes):
    rng = rng_for("broadcasting", shapes)
    a, b = (np.array(rng.integers(-9, 9, shape), "float32") for shape in shapes)
    want = np.asarray(a - b)
    out = device.empty_array(FLOAT32, want.shape)
    for x in (upload(device, a), strided(device, a, tuple(range(a.ndim))[::-1])):
        device.execute(CODES["subtract"], (), [x, upload(device, b)], out)
        same(device.download(out), want)


def test_merging_keeps_the_order_of_elements():
    """Random shapes and strides: what merge makes of them walks the same places."""
    rng = rng_for("merge")
    for _ in range(300):
        shape = [int(n) for n in rng.integers(1, 4, rng.integers(0, 6))]
        strides = [[int(n) for n in rng.integers(-3, 4, len(shape))] for _ in range(2)]
        packed, step = [], 1
        for n in reversed(shape):
            packed.insert(0, step)
            step *= n
        strides.append(packed)
        extents, merged = groups.merge(shape, strides)
        assert len(extents) <= len(shape)
        for before, after in zip(strides, merged, strict=True):
            places = [np.zeros(sizes, int) for sizes in (shape, extents)]
            for where, sizes, steps in ((places[0], shape, before), (places[1], extents, after)):
                for d, stride in enumerate(steps):
                    where += stride * np.arange(sizes[d]).reshape([-1 if k == d else 1 for k in range(len(sizes))])
            assert places[0].ravel().tolist() == places[1].ravel().tolist()
    assert groups.merge((4, 5, 6), [[30, 6, 1], [0, 0, 1]])[0] == [20, 6]


def test_a_multiplication_divides():
    """By every kind of extent, up to the last number that the spread scheme takes."""
    rng = rng_for("divisor")
    last = groups.NARROW - 1
    for d in [*range(1, 200), 255, 256, 257, 2**16, 2**30, 2**30 + 1, last, *map(int, rng.integers(1, last, 500))]:
        m, s = groups.divisor(d)
        assert 0 < m < 2**32
        for x in [
            0,
            1,
            d - 1,
            d,
            d + 1,
            last - last % d - 1,
            last - last % d,
            last,
            *map(int, rng.integers(0, last, 9)),
        ]:
            assert x > last or x * m >> s == x // d


@pytest.mark.parametrize(
    ("scheme", "extents", "strides", "start"),
    [
        ("wide", (3, 2**31 + 5, 7), (5, -3, 2**33), 2**33 + 12345),
        ("wide", (2**20, 2**19, 100), (1, 2**20, 0), 2**45),
        ("spread", (2**9, 2**15, 127), (7, -(2**40), 3), 2**9 * 2**15 * 127 - 256),
        ("rows", (2**12, 2**20, 2**11), (-5, 2**30, 3), 2**32 - 256),  # rows, of which the 2^10th element is looked at
    ],
)
def test_places_past_2_to_the_31(device, scheme, extents, strides, start):
    """The arithmetic of kernels over more elements than there is memory for."""
    place = groups.layout(extents, [strides])
    assert place.scheme == scheme
    assert place.inner * place.rows == np.prod(extents, dtype=object)
    number = "row = start + get_global_id(0), i = 1024" if scheme == "rows" else "e = start + get_global_id(0)"
    lines = [
        f"const long {number};",
        *groups._places(place.scheme, place.hows, place.rank),
        "y[get_global_id(0)] = at0;",
    ]
    parameters = "const long n, const long start, __constant long *g, __global long *y"
    text = f"__kernel void places({parameters}) {{\n" + "\n".join(lines) + "\n}\n"
    argtypes = (np.int64, np.int64, None, None)
    kernel = device.kernel(program([KernelText("places", text, (), argtypes)]), "places", (), argtypes)
    out = device.empty_array(INT64, (256,))
    geometry = upload(device, np.array(place.geometry, np.int64)).memory
    device.launch(kernel, 256, 1, place.inner, start, geometry, out.memory)
    got = device.download(out)
    for k in (0, 1, 100, 255):
        e, want = ((start + k) * extents[-1] + 1024 if scheme == "rows" else start + k), 0
        for n, stride in zip(reversed(extents), reversed(strides), strict=True):
            want += e % n * stride
            e //= n
        assert got[k] == want


def test_a_new_shape_builds_nothing(device):
    def rows(n, m):
        x = upload(device, np.ones((n, m), "float32"))
        y = upload(device, np.ones(m, "float32"))
        out = device.empty_array(FLOAT32, (n, m))
        device.execute(CODES["subtract"], (), [x, x], out)
        device.execute(CODES["subtract"], (), [x, y], out)
        device.execute(CODES["subtract"], (), [strided(device, np.ones((n, m), "float32"), (1, 0)), x], out)

    rows(3, 5)
    rows(2, 300)
    before = device.builds
    for n, m in ((4, 7), (9, 2), (11, 513), (5, 128)):
        rows(n, m)
    assert device.builds == before


# ---- groups


def test_a_group_has_the_bits_of_its_steps(device):
    """Constants, several dtypes, casts in between, values that are written and read on, an operand read twice."""
    rng = rng_for("group")
    x, row = rng.uniform(-3, 3, (6, 40)).astype("float32"), rng.uniform(-3, 3, 40).astype("float32")
    whole = rng.integers(-5, 5, (6, 1)).astype("int32")
    f = FLOAT32
    c = CODES
    steps = (
        Step(c["multiply"], f, (0, 3)),  # 5: x * constant
        Step(c["add"], f, (5, 1)),  # 6: + row
        Step(c["greater"], f, (6, 4)),  # 7: > an int constant, compared as float
        Step(c["add"], INT32, (2, 7)),  # 8: whole + bool
        Step(c["multiply"], f, (6, 8)),  # 9
        Step(c["where"], f, (7, 9, 0)),  # 10
        Step(c["astype"], UINT8, (8,)),  # 11
        Step(c["square"], f, (10,)),  # 12
    )
    body = Body((f, f, INT32), (f, INT32), steps, (6, 7, 11, 12))
    scaled = x * np.float32(0.7) + row
    mask = scaled > np.float32(1)
    shifted = whole + mask.astype("int32")
    chosen = np.where(mask, scaled * shifted.astype("float32"), x)
    want = [scaled, mask, np.broadcast_to(shifted, x.shape).astype("uint8"), chosen * chosen]
    outs = [device.empty_array(dtype, x.shape) for dtype in (f, BOOL, UINT8, f)]
    ins = [upload(device, x), upload(device, row), upload(device, whole)]
    for _ in range(2):
        groups.run(device, body, ins, (float(np.float32(0.7)), 1), outs)
        for out, expected in zip(outs, want, strict=True):
            same(device.download(out), expected)
    before = device.builds
    groups.run(device, body, ins, (2.5, 0), outs)  # constants are arguments
    same(device.download(outs[0]), x * np.float32(2.5) + row)
    assert device.builds == before


def test_a_large_group_runs_in_parts(device):
    """More steps, inputs and outputs than a kernel has arguments for."""
    n = 80
    rng = rng_for("parts")
    xs = [rng.integers(0, 9, 33).astype("int32") for _ in range(n)]
    add = CODES["add"]
    steps = tuple(Step(add, INT32, (0, 1) if k == 0 else (n + k - 1, k + 1)) for k in range(n - 1))
    wanted = tuple(range(n, 2 * n - 1, 2))
    body = Body((INT32,) * n, (), steps, wanted)
    parts = groups.parts(body)
    assert len(parts) > 1
    assert all(2 + 2 * len(p.reads) + len(p.constants) + 2 * len(p.writes) <= groups.ARGUMENTS for p in parts)
    assert [step for p in parts for step in p.body.steps] != []
    outs = [device.empty_array(INT32, (33,)) for _ in wanted]
    groups.run(device, body, [upload(device, x) for x in xs], (), outs)
    sums = np.cumsum(xs, axis=0)
    for k, out in zip(wanted, outs, strict=True):
        same(device.download(out), sums[k - n + 1].astype("int32"))


def test_bound_launches(device):
    x, y = upload(device, np.arange(300, dtype="float32")), device.empty_array(FLOAT32, (300,))
    body = Body((FLOAT32,), (FLOAT32,), (Step(CODES["multiply"], FLOAT32, (0, 1)),), (2,))
    group = groups.fused(device, body, (300,), ((1,),))
    with device.noting() as notes:
        group([x], (2.0,), [y])
        group([y], (0.25,), [y])
    device.fill(y, 0.0)
    device.again(notes.commands)
    same(device.download(y), np.arange(300, dtype="float32") / 2)


@pytest.mark.parametrize("limit", [1, 8, 64])
def test_work_group_limits(device, limit, monkeypatch):
    monkeypatch.setenv("TAPEFLOW_MAX_WORKGROUP", str(limit))
    small = Device(device.info)
    assert small.max_workgroup == limit
    a, b = rng_for("limits").uniform(-9, 9, (2, 3, 131)).astype("float32")
    out = small.empty_array(FLOAT32, (3, 131))
    for x in (upload(small, a), strided(small, a, (1, 0))):
        small.execute(CODES["add"], (), [x, upload(small, b[:1])], out)
        same(small.download(out), a + b[:1])


# ---- draws

KINDS = ("uniform", "normal", "bits32", "bits64", "integers", "permutation")
RANGES = [(7, -3), (0, 0), (1 << 40, 5), (1 << 16, -9), ((1 << 16) + 1, 2)]


def drawn(kind, shape, dtype, seed, number, count=0, lowest=0):
    generator = tp.random.Generator(seed)
    generator.state = (seed, number)
    return _core.random_fill(generator, kind, shape, DTYPES[dtype], count, lowest).numpy()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("uniform", FLOAT32), ("uniform", FLOAT64), ("normal", FLOAT32), ("normal", FLOAT64), ("bits32", INT64),
     ("bits64", INT64), ("integers", UINT8), ("integers", INT32), ("integers", INT64), ("permutation", INT64)],
)  # fmt: skip
def test_draws_have_the_bits_of_the_core(device, kind, dtype):
    """Of every kind, normal ones too: their tables and products are the same."""
    if dtype == FLOAT64 and not device.fp64:
        pytest.skip(f"{device.name} has no float64")
    if kind == "permutation" and CODES["argsort"] not in load():
        pytest.skip("a permutation needs argsort, which devices do not have yet")
    random = CODES["random"]
    for count, lowest in RANGES if kind == "integers" else [(0, 0)]:
        for shape in ((1,), (2,), (3,), (5,), (1025,), (4, 50), (0,)):
            for seed, number in ((2**63 + 12345, 2**33 + 7), (0, 0)):
                out = device.empty_array(dtype, shape)
                more = (count, lowest) if kind == "integers" else ()
                device.execute(random, (KINDS.index(kind), seed, number, *more), [], out)
                same(device.download(out), drawn(kind, shape, dtype, seed, number, count, lowest), kind)


def test_a_draw_into_the_middle_of_memory(device):
    whole = device.empty_array(FLOAT32, (40,))
    device.fill(whole, 2.0)
    out = Array(whole.memory, 4 * 3, FLOAT32, (30,), (4,))
    draws.fill(device, draws.UNIFORM, out, 5, 1)
    got = device.download(whole)
    same(got[3:33], drawn("uniform", (30,), FLOAT32, 5, 1))
    assert set(got[:3]) | set(got[33:]) == {2.0}


# ---- texts


def test_no_kernel_over_float32_has_float64():
    """Neither a word `double` nor a literal that is one; and the library has every op of the table."""
    floats = [e for e in ops.TABLE.values() if "f32" in e.dtypes]
    missing = [e.name for e in floats if e.primitive and f"tpf_{e.name}_f32" not in library().items]
    assert missing == []
    for entry in floats:
        steps = (Step(entry.opcode, FLOAT32, tuple(range(entry.nin))),)
        body = Body((FLOAT32,) * entry.nin, (), steps, (entry.nin,))
        text = program([groups.kernel_text(body, "flat", ("flat",) * entry.nin, 0)])
        assert "double" not in text, entry.name
        assert "cl_khr_fp64" not in text
        assert text.startswith("#pragma OPENCL FP_CONTRACT OFF\n")
        for word in re.findall(r"(?<![\w.])(?:0x[\da-f.]+(?:p[+-]?\d+)?|\d[\d.]*(?:e[+-]?\d+)?)\w*", text):
            whole = word.startswith("0x") and "p" not in word or not re.search(r"[.e]", word)
            assert whole or word.endswith("f"), (entry.name, word)


def test_bounds_are_those_of_the_table_or_named():
    assert bound("exp", FLOAT32, True) == ops.TABLE["exp"].ulp
    assert bound("divide", FLOAT32, False) > bound("divide", FLOAT32, True)
    assert bound("add", FLOAT32, False) == 0.5
    assert bound("divide", FLOAT64, False) == 0.5  # OpenCL rounds those
    assert ITEMSIZE[FLOAT64] == 8
