"""The kernels of a plan as one program: what is taken out of the files of kernels, what is built, what the disk has."""

import numpy as np
import pytest
from helpers import draw, rng_for

import tapeflow as tp
from tapeflow.backend.opencl import programs
from tapeflow.backend.opencl.expansion import Wanted, _Preprocessor, merge
from tapeflow.backend.opencl.host import Device
from tapeflow.backend.opencl.table import source
from tapeflow.errors import DeviceError, DeviceOutOfMemory
from tapeflow.plan.arenas import ALIGN, ALWAYS, Life, pack
from tapeflow.plan.placed import DevicePlan
from tests.opencl_devices import device, opened  # noqa: F401


def preprocessed(text, *options):
    return " ".join(_Preprocessor(options).run(text).split())


EXPANSIONS = {
    "an option": ("T x = N;", "float x = 3;", "-DT=float", "-DN=3"),
    "an option without a value": ("#ifdef A\nyes A\n#else\nno\n#endif", "yes 1", "-DA"),
    "a function": ("#define TWICE(x) ((x) + (x))\nTWICE(a(b, c))", "((a(b, c)) + (a(b, c)))"),
    "a name without brackets": ("#define F(x) x\nint F; F (2)", "int F; 2"),
    "a comment is a space": ("int/* , */a; // b\nint c;", "int a; int c;"),
    "joined": ("#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\n#define V 16\nCAT(vload, V) CAT_(x, V)",
               "vload16 xV"),
    "joined with spaces": ("#define F(n) read_ ## n ## _row(n)\nF(4)", "read_4_row(4)"),
    "nothing joined": ("#define F(a, b) a##b\nF(, x) F(y, )", "x y"),
    "itself": ("#define f(x) f(x + 1)\nf(f(2))", "f(f(2 + 1) + 1)"),
    "each other": ("#define a b\n#define b a\na b", "a b"),
    "the name is the result of another": ("#define F(x) [x]\n#define G F\nG(1)(2)", "[1](2)"),
    "over lines": ("#define ADD(a, b) \\\n  a + \\\n  b\nADD(1,\n  2)", "1 + 2"),
    "numbers are whole": ("#define f 3\n#define e5 4\n1.0f 0x1f 1e5 2e+5f .5f", "1.0f 0x1f 1e5 2e+5f .5f"),
    "conditions": ("#if defined(A) && N / 2 > 1 || !N\n1\n#elif N == 3\n2\n#else\n3\n#endif", "2", "-DN=3"),
    "arithmetic in conditions": ("#define ITEMS (LANES / W)\n#if ITEMS > 1\nmany\n#else\none\n#endif", "one",
                                 "-DLANES=16", "-DW=16"),
    "within what is left out": ("#if 0\n#if 1\na\n#else\nb\n#endif\n#elif 1\nc\n#else\nd\n#endif", "c"),
    "undefined again": ("#define A 1\n#undef A\nA\n#define A 2\nA", "A 2"),
    "no parameters": ("#define F() 7\nF() + F( )", "7 + 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPANSIONS)
def test_what_the_preprocessor_leaves(name):
    text, expected, *options = EXPANSIONS[name]
    assert preprocessed(text, *options) == expected


def test_pragmas_and_directives_that_are_not_known():
    preprocessor = _Preprocessor(())
    left = preprocessor.run("#pragma OPENCL FP_CONTRACT OFF\nvoid f() {\n#pragma unroll\nfor (;;) ;\n}\n")
    assert "\n#pragma unroll\n" in left and list(preprocessor.pragmas) == ["#pragma OPENCL FP_CONTRACT OFF\n"]
    with pytest.raises(ValueError, match="#include"):
        preprocessor.run('#include "x.h"\n')


def test_what_differs_under_one_name_gets_another_one():
    """Helpers, types and kernels; what is the same is there once, and what no kernel needs is not there."""
    text = """
    typedef struct { T value; } box;
    __constant int table[2] = {1, 2};
    int same(int x) { return x + table[1]; }
    T differs(T x) { box b = {x}; return b.value + same(0); }
    void unused(void) { }
    __kernel __attribute__((reqd_work_group_size(1, 1, 1))) void k(__global T *y) { y[0] = differs(y[0]); }
    """
    wanted = [Wanted(text, "k", (f"-DT={t}",)) for t in ("int", "float", "int", "long")]
    merged, names = merge(wanted)
    assert names == ["k", "k_1", "k", "k_2"]
    assert merged.count("int same(") == merged.count("table[2] =") == 1
    assert [merged.count(f"{t} differs") for t in ("int", "float", "long")] == [1, 1, 1]
    assert "unused" not in merged and "box_2 b = {x}; return b.value" in merged


def test_every_definition_of_the_files_is_found():
    """What is left of a whole file are definitions, among them each kernel that its text names."""
    for name, options, kernels in (
        ("index.cl", ("-DITEM=uint", "-DCOPIES=4"), ["copy_4", "copy_runs_2", "transpose", "fill"]),
        ("index.cl", ("-DITEM=ulong", "-DGATHER"), ["take_inner", "take_lanes"]),
        ("sort.cl", ("-DSEARCH",), ["search"]),
    ):
        merged, entries = merge([Wanted(source(name), kernel, options) for kernel in kernels])
        assert entries == kernels and merged.startswith("#pragma OPENCL FP_CONTRACT OFF")
        assert all(f"void {kernel}(" in " ".join(merged.split()) for kernel in kernels)


# ---- plans


def tensor(name, *shape):
    return tp.tensor(draw(rng_for(name), shape, "float32"))


def step(x, w, labels):
    """Products, groups, sums, gather, moves: kernels of many files."""

    def loss(w):
        h = tp.tanh(x @ w)
        return tp.cross_entropy(tp.layer_norm(h, (5,)), labels) + tp.sum(tp.max(h.T[::-1], axis=0))

    value, grad = tp.value_and_grad(loss)(w)
    return value, grad, tp.cumulative_sum(grad, axis=0)


def small(x, w, labels):
    """The same for less to compile."""
    return tp.exp(x) * 2.0, tp.cumulative_sum(w, axis=0), tp.concat([w.T, w.T], axis=0)


@pytest.fixture
def arguments():
    return tensor("x", 6, 7), tensor("w", 7, 5), tp.tensor(np.arange(6) % 5)


def same(got, expected):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


def fresh(device, tmp_path, monkeypatch):  # noqa: F811
    """The device opened anew, with nothing else on disk, and one kernel built, as by the trial of a new device."""
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    own = Device(device.info)
    own.kernel("__kernel void one(__global int *y) { y[0] = 1; }", "one")
    own.programs.made = own.programs.compiled = 0
    return own


def test_a_plan_is_one_program(device, arguments, tmp_path, monkeypatch):  # noqa: F811
    """Built before the first run; a later process reads that one binary, and runs build nothing."""
    plan = tp.freeze(step, *arguments)
    own = fresh(device, tmp_path, monkeypatch)
    there = DevicePlan(plan, own, "opencl")
    assert (own.builds, own.programs.compiled) == (1, 1)
    same(there(*arguments), plan(*arguments))
    assert own.builds == 1
    later = fresh(device, tmp_path, monkeypatch)
    there = DevicePlan(plan, later, "opencl")
    assert (later.builds, later.programs.compiled) == (1, 1 if later.programs.kept_by_driver else 0)
    same(there(*arguments), plan(*arguments))
    assert later.builds == 1
    DevicePlan(plan, later, "opencl")
    assert later.builds == 1


def test_what_another_plan_has_built_is_not_built_again(arguments, tmp_path, monkeypatch):
    own = fresh(opened("intel"), tmp_path, monkeypatch)
    DevicePlan(tp.freeze(small, *arguments), own, "opencl")
    compiled = []
    monkeypatch.setattr(programs, "merge", lambda kernels: compiled.append([k.name for k in kernels]) or merge(kernels))
    more = tp.freeze(lambda x, w, labels: (*small(x, w, labels), tp.argmax(x, axis=1), tp.exp(w) / 3.0), *arguments)
    later = fresh(own, tmp_path, monkeypatch)
    there = DevicePlan(more, later, "opencl")
    kernels = ["reduce_position_rows", "reduce_position_parts", "reduce_position_columns", "fused"]
    assert compiled == [kernels] and later.programs.compiled == 1
    same(there(*arguments), more(*arguments))


def test_a_program_that_does_not_build_is_built_kernel_by_kernel(arguments, tmp_path, monkeypatch):
    own = fresh(opened("intel"), tmp_path, monkeypatch)
    monkeypatch.setattr(programs, "merge", lambda kernels: ("no program", ["k"] * len(kernels)))
    plan = tp.freeze(small, *arguments)
    there = DevicePlan(plan, own, "opencl")
    assert own.builds == 0
    same(there(*arguments), plan(*arguments))
    assert own.builds > 2


def test_a_program_that_is_gone_from_the_disk_is_built_again(arguments, tmp_path, monkeypatch):
    plan = tp.freeze(small, *arguments)
    DevicePlan(plan, fresh(opened("intel"), tmp_path, monkeypatch), "opencl")
    for path in (tmp_path / programs.KIND).iterdir():
        path.write_bytes(b"damaged")
    later = fresh(opened("intel"), tmp_path, monkeypatch)
    there = DevicePlan(plan, later, "opencl")
    assert (later.builds, later.programs.compiled) == (1, 1)
    same(there(*arguments), plan(*arguments))


# ---- arenas


@pytest.mark.parametrize("limit", [64, 1000, 4096, 1 << 40])
@pytest.mark.parametrize("seed", range(5))
def test_values_that_live_together_are_apart(limit, seed):
    rng = np.random.default_rng(seed)
    values = []
    for k in range(80):
        first = int(rng.integers(0, 40))
        life = ALWAYS if rng.random() < 0.1 else (first, first + int(rng.integers(0, 6)))
        values.append(Life(k, int(rng.integers(0, 900)), *life))
    places = pack(values, limit)
    assert all(size <= max(limit, -(-899 // ALIGN) * ALIGN) for size in places.pieces)
    for a in values:
        (n, at), end = places.of[a.number], places.of[a.number][1] + a.nbytes
        assert at % ALIGN == 0 and end <= places.pieces[n]
        for b in values:
            m, start = places.of[b.number]
            together = a.first <= b.last and b.first <= a.last
            if a.number < b.number and n == m and together and a.nbytes and b.nbytes:
                assert end <= start or start + b.nbytes <= at
    total = sum(-(-v.nbytes // ALIGN) * ALIGN for v in values)
    assert sum(places.pieces) < total or limit == 64
    assert limit < 1 << 40 or len(places.pieces) == 1


def chain(x):
    """Values of 4000 bytes each, several of them alive at once."""
    parts = [tp.cumulative_sum(x * float(k)) for k in range(1, 7)]
    total = parts[0]
    for part in parts[1:]:
        total = tp.cumulative_sum(total + part)
    return total


def test_an_arena_is_split_where_the_device_allocates_no_more_at_once(tmp_path, monkeypatch):
    x = tensor("x", 1000)
    plan = tp.freeze(chain, x)
    whole = DevicePlan(plan, opened("intel"), "opencl")
    own = Device(opened("intel").info)
    own.max_allocation = own.pool.largest = 9000
    live = own.pool.live
    split = DevicePlan(plan, own, "opencl")
    pieces = {id(a.memory) for a in split._arrays.values()}
    assert len({id(a.memory) for a in whole._arrays.values()}) == 1
    assert 3 <= len(pieces) <= 1 + -(-whole.nbytes // 8192) < len(split._arrays)
    assert all(a.memory.nbytes <= 9000 for a in split._arrays.values())
    for _ in range(2):
        np.testing.assert_allclose(split(x).numpy(), plan(x).numpy(), rtol=1e-5)
    del split
    assert own.pool.live == live


def test_no_memory_is_told_before_anything_is_changed():
    total = tp.zeros(1000)

    def f(x):
        total.assign_add(chain(x))
        return total * 2.0

    x = tensor("x", 1000)
    plan = tp.freeze(f, x)
    own = Device(opened("intel").info)
    own.memory_limit = 20_000
    with pytest.raises(DeviceOutOfMemory, match=r"\[plan\] wants"):
        DevicePlan(plan, own, "opencl")
    own.memory_limit, own.pool.largest, own.max_allocation = 1 << 30, 2000, 2000
    with pytest.raises(DeviceOutOfMemory, match="in one piece"):
        DevicePlan(plan, own, "opencl")
    assert total.tolist() == [0.0] * 1000 and own.pool.live == 0


def test_a_lost_device_is_told(arguments):
    own = Device(opened("intel").info)
    plan = tp.freeze(small, *arguments)
    there = DevicePlan(plan, own, "opencl")
    own.lost = "[device] it is lost"
    with pytest.raises(DeviceError, match="it is lost"):
        there(*arguments)
    with pytest.raises(DeviceError, match="it is lost"):
        DevicePlan(plan, own, "opencl")


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (tp.tanh(x) * x[:1], tp.exp(x) + x[:, :1]),
        lambda x: (tp.sort(x, axis=1), tp.argsort(x, axis=0)),
        lambda x: (tp.cumulative_sum(x, axis=0), tp.cumulative_sum(x, axis=1), tp.logcumsumexp(x, axis=1)),
        lambda x: (tp.var(x, axis=1), tp.sum(x, axis=0), tp.argmax(x, axis=1), tp.softmax(x, axis=1)),
        lambda x: (x @ x.mT, x.mT @ x, x @ x[0]),
        lambda x: (tp.concat([x.mT, x.mT]), tp.flip(x, 0), tp.concat([x, x], axis=1), tp.roll(x, 1, 0), tp.pad(x, 1)),
    ],
    ids=["elementwise", "order", "scans", "reductions", "products", "moves"],
)
def test_a_new_shape_builds_nothing(f, tmp_path, monkeypatch):
    """Whichever kernels its size takes: few rows or many, short or long."""
    own = fresh(opened("intel"), tmp_path, monkeypatch)
    for n, shape in enumerate(((5, 7), (20, 150), (3, 1500), (700, 3), (33, 33))):
        x = tensor("x", *shape)
        plan = tp.freeze(f, x)
        there = DevicePlan(plan, own, "opencl")
        built = own.builds if n == 0 else built  # noqa: F821
        same(there(x), plan(x))
        assert own.builds == built
