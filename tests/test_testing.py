"""tapeflow.testing: the strategies draw what they promise, at the odds they state, and shrink to the plainest case; the
oracle against closed forms and differences; programs are their text. tests/test_programs.py puts them to use."""

import contextlib
import doctest
import functools
import importlib
import io
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import DTYPES, FLOATS, assert_same, richardson, rng_for
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow.testing import layouts, oracle, programs
from tapeflow.testing import strategies as tps

ROOT = Path(__file__).resolve().parent.parent
FIND = settings(
    derandomize=True,
    database=None,
    max_examples=1000,
    phases=[Phase.generate, Phase.shrink],  # explaining traces every line
    suppress_health_check=list(HealthCheck),
)


@functools.cache
def sample(make, n=80):
    """n draws of make(), the same in every run."""
    drawn = []

    @settings(max_examples=n, phases=[Phase.generate], derandomize=True, suppress_health_check=list(HealthCheck))
    @given(make())
    def collect(x):
        drawn.append(x)

    collect()
    return drawn


def minimal(strategy, condition=lambda x: True):
    return find(strategy, condition, settings=FIND)


# ---- the package


@pytest.mark.parametrize("name", ["oracle", "programs", "layouts", "strategies"])
def test_docstrings(name):
    """Everything public says what it is, and the examples hold."""
    module = importlib.import_module(f"tapeflow.testing.{name}")
    failures = io.StringIO()
    with contextlib.redirect_stdout(failures):
        result = doctest.testmod(module, extraglobs={"tp": tp, "np": np})
    assert result.attempted > 1
    assert not result.failed, failures.getvalue()
    for key, value in vars(module).items():
        if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__ and key not in ("Step",):
            assert value.__doc__ or name == "oracle", key


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hypothesis_is_asked_for_by_the_strategies_alone():
    code = "import sys; sys.modules['hypothesis'] = None; import tapeflow.testing.programs as p; print(len(p.STEPS))"
    tried = "\ntry:\n    import tapeflow.testing.strategies\nexcept ImportError as error:\n    print(error)"
    steps, error = python(code + tried).splitlines()
    assert int(steps) == len(programs.STEPS)
    assert error.startswith("[testing.strategies] needs hypothesis") and "pip install" in error
    assert "hypothesis" not in python("import sys, tapeflow; print(*sys.modules)")


def test_the_example_of_the_package_runs():
    import tapeflow.testing

    lines = tapeflow.testing.__doc__.split("included:\n")[1].splitlines()
    scope = {}
    exec("\n".join(line[4:] for line in lines), scope)
    settings(max_examples=20)(scope["test_f"])()


# ---- shapes and axes


def test_shapes():
    drawn = sample(tps.shapes, 200)
    assert {len(shape) for shape in drawn} == {0, 1, 2, 3}
    assert all(math.prod(shape) <= 64 and all(0 <= n <= 4 for n in shape) for shape in drawn)
    assert 0.03 < np.mean([0 in shape for shape in drawn]) < 0.3
    assert minimal(tps.shapes()) == ()
    assert minimal(tps.shapes(min_ndim=2)) == (1, 1)
    assert minimal(tps.shapes(), lambda shape: 0 in shape) == (0,)


@given(tps.shapes(min_ndim=1, max_ndim=5, min_side=2, max_side=6, max_size=100))
def test_shapes_within_bounds(shape):
    assert 1 <= len(shape) <= 5
    assert all(2 <= n <= 6 for n in shape)
    assert math.prod(shape) <= 100 or 2 in shape


@given(tps.shapes().flatmap(lambda shape: st.tuples(st.just(shape), tps.broadcastable_shapes(3, shape=shape))))
def test_broadcastable_shapes(drawn):
    full, shapes = drawn
    together = np.broadcast_shapes(*shapes)
    assert len(shapes) == 3
    assert np.broadcast_shapes(together, full) == full
    assert (tp.zeros(shapes[0]) + tp.zeros(shapes[1]) + tp.zeros(shapes[2])).shape == together


def test_broadcastable_shapes_differ():
    drawn = sample(lambda: tps.broadcastable_shapes(2))
    assert any(len(a) != len(b) for a, b in drawn)
    assert any(len(a) == len(b) and a != b for a, b in drawn)
    assert any(a == b != () for a, b in drawn)
    assert minimal(tps.broadcastable_shapes(2)) == ((), ())


@given(st.integers(0, 4).flatmap(lambda ndim: st.tuples(st.just(ndim), tps.axes(ndim))))
def test_axes_are_accepted(drawn):
    ndim, axis = drawn
    assert_same(tp.sum(tp.ones((2,) * ndim), axis=axis), np.sum(np.ones((2,) * ndim, np.float32), axis=axis))


def test_axes_of_every_kind():
    drawn = sample(lambda: tps.axes(3), 150)
    assert {type(axis) for axis in drawn} == {type(None), int, tuple}
    assert {axis for axis in drawn if isinstance(axis, int)} == set(range(-3, 3))
    tuples = [axis for axis in drawn if isinstance(axis, tuple)]
    assert {len(axis) for axis in tuples} == {0, 1, 2, 3}
    assert any(sorted(a % 3 for a in axis) != [a % 3 for a in axis] for axis in tuples)
    assert {type(axis) for axis in sample(lambda: tps.axes(2, none=False, tuples=False))} == {int}
    assert minimal(tps.axes(3)) is None


# ---- tensors


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_points_come_at_the_odds(dtype):
    ordinary = sample(lambda: st.lists(tps.elements(dtype, low=0, high=1, special=0), min_size=50, max_size=50), 20)
    assert all(0 <= v <= 1 for row in ordinary for v in row)
    points = layouts.special_points(dtype)
    drawn = sample(lambda: st.lists(tps.elements(dtype, special=1), min_size=50, max_size=50), 40)
    bits = {np.array(v, dtype).tobytes() for row in drawn for v in row}
    assert bits == {p.tobytes() for p in points}


def test_odds_and_points_can_be_set():
    element = tps.elements("float64", 1, 2, special=0.25, points=(0.0,))
    drawn = sample(lambda: st.lists(element, min_size=64, max_size=64), 60)
    share = np.mean([v == 0.0 for row in drawn for v in row])
    assert 0.12 < share < 0.4
    assert minimal(tps.elements("float64", 1, 2, points=(5.0,)), lambda v: v > 2) == 5.0


def test_special_points_are_all_kinds():
    for dtype in FLOATS:
        points, info = layouts.special_points(dtype), np.finfo(dtype)
        assert np.isnan(points).sum() == 1 and np.isinf(points).sum() == 2
        assert {bool(np.signbit(p)) for p in points if p == 0} == {False, True}
        assert {info.max, info.tiny, info.smallest_subnormal} <= set(points.tolist())


@given(tps.tensors(dtype=st.sampled_from(tps.DTYPES)))
def test_tensors_compute(x):
    assert x.numpy().shape == x.shape and x.size <= 64
    assert_same(x.clone(), np.array(x.numpy()))
    assert not x.requires_grad


@pytest.mark.cpu
@pytest.mark.parametrize("layout", tps.EVERY_LAYOUT)
def test_layouts_are_what_they_say(layout):
    x = minimal(tps.tensors(shape=(3, 2), dtype="float64", layout=layout), lambda x: x.numpy()[2, 1] > 1)
    assert x.shape == (3, 2) and x.numpy()[2, 1] == 2.0
    strides = tuple(n // 8 for n in x.numpy().strides)
    if layout == "stretched":
        assert 0 in strides
        kept = tps.tensors(shape=(3, 2), layout=layout)
        assert all(0 in x.numpy().strides for x in sample(lambda: kept, 20))
    else:
        want = {"plain": (2, 1), "transposed": (1, 3), "reversed": (-2, -1), "stepped": (8, 2), "offset": (4, 1)}
        assert strides == want.get(layout, (1, 3))
        assert x.tolist() == [[0.0, 0.0], [0.0, 0.0], [0.0, 2.0]]


def test_foreign_memory_is_of_numpy_and_read_only():
    a = np.ones((2, 3))
    t = layouts.LAYOUTS["foreign"](a)
    assert not np.shares_memory(t.numpy(), a) and not t.numpy().flags.writeable
    with tp.no_grad():
        t += 1.0
    assert t.tolist() == [[2.0] * 3] * 2


@given(tps.tensors(shape=(20, 30), values=st.integers(0, 1000), dtype="float32"))
@settings(max_examples=5)
def test_large_tensors_repeat_what_is_drawn(x):
    assert x.shape == (20, 30)
    assert len(set(x.numpy().ravel().tolist())) <= tps.DRAWN


@given(tps.tensors(dtype="float32", requires_grad=True, values=lambda dtype: tps.elements(dtype, 1, 2, special=0)))
def test_leaves(x):
    assert x.is_leaf and x.requires_grad
    tp.sum(x * x).backward()
    assert_same(x.grad, 2 * x.numpy())


def test_tensors_shrink_and_refuse():
    x = minimal(tps.tensors())
    assert (x.shape, x.item()) == ((), 0.0)
    x = minimal(tps.tensors(shape=(2,), dtype="float32", layout="plain"), lambda x: np.isnan(x.numpy()).any())
    assert np.nan_to_num(x.numpy()).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"\[tensors\] layout is 'c'"):
        minimal(tps.tensors(layout="c"))


def test_a_failing_test_prints_the_layout():
    @settings(FIND, max_examples=1, phases=[Phase.generate])
    @given(tps.tensors(shape=(2,), layout="reversed"))
    def fails(x):
        raise AssertionError

    with pytest.raises(AssertionError) as caught:
        fails()
    assert "has the layout 'reversed'" in "".join(caught.value.__notes__ if hasattr(caught.value, "__notes__") else [])


# ---- indices

SHAPE = st.sampled_from([(5,), (3, 4), (2, 3, 2), (1, 4), (0, 3)])


@given(SHAPE.flatmap(lambda shape: st.tuples(st.just(shape), tps.basic_indices(shape) | tps.advanced_indices(shape))))
def test_indices_mean_the_same_here(drawn):
    shape, index = drawn
    x = np.arange(math.prod(shape), dtype=float).reshape(shape)
    assert_same(tp.tensor(x)[index], x[index])


def parts(index):
    return index if isinstance(index, tuple) else (index,)


def hashable(index):
    return tuple(str(part) if isinstance(part, slice) else part for part in parts(index))


def kinds(drawn):
    return {type(part) for index in drawn for part in parts(index)}


def test_basic_indices_of_every_kind():
    drawn = sample(lambda: tps.basic_indices((3, 4)), 200)
    assert kinds(drawn) == {int, slice, type(None), type(...)}
    slices = [part for index in drawn for part in parts(index) if isinstance(part, slice)]
    assert any((s.step or 1) < 0 for s in slices) and any(len(range(*s.indices(3))) == 0 for s in slices)
    assert any((s.stop or 0) > 4 for s in slices) and any((s.start or 0) < -4 for s in slices)
    assert any(not isinstance(index, tuple) for index in drawn) and () in drawn
    assert any(index[:1] == (...,) and not set(index[1:]) <= {None} for index in map(hashable, drawn))
    assert minimal(tps.basic_indices((3, 4))) == ()
    assert kinds(sample(lambda: tps.basic_indices(()))) == {type(None), type(...)}


def test_advanced_indices_of_every_kind():
    drawn = sample(lambda: tps.advanced_indices((3, 4)), 150)
    assert kinds(drawn) == {int, slice, type(None), type(...), np.ndarray}
    arrays = [[part for part in parts(index) if isinstance(part, np.ndarray)] for index in drawn]
    flat = [a for found in arrays for a in found]
    masks, numbers = ([a for a in flat if (a.dtype == bool) == is_mask] for is_mask in (True, False))
    assert len({a.shape for a in masks} & {(3,), (4,), (3, 4)}) > 1
    assert {a.ndim for a in numbers} == {0, 1, 2}
    duplicates = [a.size > len(np.unique(a)) for a in numbers if a.size > 1]
    assert np.mean(duplicates) > 0.5
    assert any((a < 0).any() for a in numbers) and any(a.size == 0 for a in numbers)
    assert any(len(found) == 2 and found[0].shape != found[1].shape for found in arrays)
    assert all(a.dtype != bool for index in sample(lambda: tps.advanced_indices((3,), masks=False))
               for a in parts(index) if isinstance(a, np.ndarray))  # fmt: skip
    smallest = minimal(tps.advanced_indices((3,), masks=False), lambda index: np.zeros(3)[index].shape == (2,))
    assert np.arange(3)[smallest].tolist() == [0, 0]
    assert np.ones(())[minimal(tps.advanced_indices(()))].shape == (0,)
    with pytest.raises(ValueError, match="no axis to index"):
        minimal(tps.advanced_indices((), masks=False))


# ---- contractions


@given(tps.matmul_shapes())
def test_matmul_shapes(shapes):
    a, b = (np.ones(shape) for shape in shapes)
    assert_same(tp.tensor(a) @ tp.tensor(b), a @ b)


def test_matmul_shapes_of_every_kind():
    drawn = sample(tps.matmul_shapes, 150)
    assert {(min(len(a), 2), min(len(b), 2)) for a, b in drawn} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert any(len(a) > 2 and len(b) > 2 and a[:-2] != b[:-2] for a, b in drawn)
    assert any(a[-1] == 0 for a, _ in drawn)
    assert minimal(tps.matmul_shapes()) == ((1,), (1,))


@given(tps.einsum_specs())
def test_einsum_specs_are_numpys(spec):
    np.einsum(spec.subscripts, *(np.ones(shape) for shape in spec.shapes))


def test_einsum_specs_of_every_kind():
    drawn = sample(tps.einsum_specs, 200)
    inputs = [spec.subscripts.split("->")[0].split(",") for spec in drawn]
    assert {len(terms) for terms in inputs} == {1, 2, 3}
    assert any("..." in term for terms in inputs for term in terms)
    assert any(len(set(letters)) < len(letters) for terms in inputs for letters in (t.replace(".", "") for t in terms))
    outputs = [spec.subscripts.partition("->") for spec in drawn]
    assert any(not arrow for _, arrow, _ in outputs)
    assert any(arrow and not out for _, arrow, out in outputs)
    assert any(list(out) != sorted(out) for _, _, out in outputs if "." not in out)

    def stretches(spec):
        """Whether a label has size 1 in one operand and more in another."""
        sizes = {}
        for term, shape in zip(spec.subscripts.split("->")[0].split(","), spec.shapes):
            if "." not in term:
                for letter, n in zip(term, shape):
                    sizes.setdefault(letter, set()).add(n)
        return any(len(found) > 1 for found in sizes.values())

    assert any(map(stretches, drawn))
    assert any(0 in shape for spec in drawn for shape in spec.shapes)
    assert minimal(tps.einsum_specs()) == ("", ((),))


# ---- programs


@given(tps.programs(max_steps=10))
@settings(max_examples=15)
def test_a_program_is_its_text(program):
    scope = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(str(program), scope)
    assert printed.getvalue()
    leaves = [tp.tensor(x) for x in program.leaves]
    for name, value in program.run(*leaves).items():
        assert_same(scope[name].detach(), value)
    for i, want in enumerate(tp.grad(program, tuple(range(len(leaves))))(*leaves)):
        assert_same(scope[f"x{i}"].grad, want)
    assert repr(program) == str(program)


def test_programs_have_reuse_views_and_writes():
    rng = rng_for("programs")
    leaves = [np.array([[1.0, -0.5], [0.25, 2.0]]), np.array([0.5, 0.5]), np.array(-1.0)]
    picks = [zip(rng.choice(programs.STEPS, 20), *rng.integers(0, [[6], [6], [61]], (3, 20))) for _ in range(100)]
    drawn = [programs.build(leaves, [(str(name), *map(int, ijk)) for name, *ijk in steps]) for steps in picks]
    lines = [line for program in drawn for line in program.lines]
    for piece in "[...] ::-1] _=_v ] *= _+=_v .tolist() _>_ np.arange tp.take _@_ tp.where ]_=_tp.sum".split():
        assert any(piece.replace("_", " ") in line for line in lines), piece
    assert len(lines) > 10 * len(drawn)
    assert any(line.count("v1") > 1 for line in lines)
    names = {name for name in programs.STEPS if any(f"tp.{name}(" in line for line in lines)}
    assert len(names) > 30


def test_programs_are_of_every_size():
    drawn = sample(tps.programs, 60)
    assert np.mean([len(program.lines) > 3 for program in drawn]) > 0.2
    assert {len(program.leaves) for program in drawn} == {1, 2, 3}
    assert any(leaf.size == 0 for program in drawn for leaf in program.leaves)


def test_programs_shrink_to_a_few_lines():
    program = minimal(tps.programs(max_steps=3, max_leaves=1), lambda p: any(" *= " in line for line in p.lines))
    assert program.live == ("x0", "v0") and program.leaves[0].size <= 1
    assert program.lines[-1].endswith(" *= x0") and len(program.lines) == 2
    assert minimal(tps.programs(max_steps=3)).lines == ()


def test_programs_in_float32():
    for program in sample(lambda: tps.programs(max_steps=5, dtype="float32"), 20):
        assert program(*map(tp.tensor, program.leaves)).dtype == np.float32
        for got, want in zip(tp.grad(program, tuple(range(len(program.leaves))))(*program.leaves), program.gradients()):
            assert np.all(np.abs(got.numpy() - want.value) <= 1e-4 * (1 + want.mass))


def test_steps_that_mean_nothing_are_left_out():
    x = np.array([-1.0, 0.25])
    for step in (("log", 0, 0, 0), ("squeeze", 0, 0, 0), ("change_item", 0, 0, 3 * 26 + 14), ("over", 0, 1, 0)):
        kept = programs.build([x, np.zeros(2)], [step]).lines
        assert not kept or step[0] == "change_item"
    far = [("times", 0, 0, 0)] * 30  # too large, so later squares are left out
    assert len(programs.build([np.array(2.0)], far).lines) < 6
    tie = programs.build([np.array(0.1)], [("plus", 0, 0, 0), ("maximum", 0, 1, 1), ("times", 0, 0, 1)])
    assert len(tie.lines) == 3


# ---- the oracle

SMOOTH = (
    "negative square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt sin cos tan asin acos atan sinh "
    "cosh tanh asinh acosh atanh erf erfc sigmoid silu softplus abs relu"
).split()
CLOSED = {
    "rsqrt": lambda x: x**-0.5,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "relu": lambda x: np.maximum(x, 0),
    **{a: getattr(np, "arc" + a[1:]) for a in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
}


@pytest.mark.parametrize("name", SMOOTH)
def test_oracle_against_closed_forms_and_differences(name):
    x = rng_for(name).uniform(0.15, 0.85, 6) + (name == "acosh")
    leaf = oracle.tensor(x)
    y = getattr(oracle, name)(leaf)
    np.testing.assert_allclose(y.numpy(), CLOSED.get(name, getattr(np, name, None))(x), rtol=1e-14)
    slope, _ = richardson(lambda z: getattr(oracle, name)(oracle.tensor(z)).numpy(), x, 2.0**-6, 6)
    [g] = oracle.gradients(y, [leaf])
    np.testing.assert_allclose(g.value, slope, rtol=1e-9)
    assert np.array_equal(g.mass, np.abs(g.value))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum", "hypot", "logaddexp"])
def test_oracle_pairs_broadcast(name):
    a, b = rng_for(name).uniform(0.5, 2, (2, 3)), rng_for(name, 2).uniform(-2, -0.5, (2, 1))
    x, y = oracle.tensor(a), oracle.tensor(b)
    out = getattr(oracle, name)(x, y)
    np.testing.assert_allclose(out.numpy(), getattr(np, name)(a, b), rtol=1e-14)
    ga, gb = oracle.gradients(out, [x, y], seed=a)
    assert (ga.value.shape, gb.value.shape) == ((2, 3), (2, 1))

    def f(u, v):
        return getattr(np, name)(u, v) * a

    da = richardson(lambda t: f(a + t, b), np.zeros((2, 3)))[0]
    db = richardson(lambda t: f(a, b + t), np.zeros((2, 3)))[0].sum(1, keepdims=True)
    np.testing.assert_allclose(ga.value, da, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(gb.value, db, rtol=1e-8, atol=1e-9)


SQUARE = [[1.0, 2.0, 2.0], [-3.0, 0.0, 4.0]]
REDUCTIONS = [  # function, what it gives, gradient of its sum
    (lambda m, x: m.sum(x, axis=0), [-2, 2, 6], np.ones((2, 3))),
    (lambda m, x: m.mean(x, axis=(0, 1), keepdims=True), [[1]], np.full((2, 3), 1 / 6)),
    (lambda m, x: m.prod(x, axis=1), [4, 0], [[4, 2, 2], [0, -12, 0]]),
    (lambda m, x: m.max(x, axis=1), [2, 4], [[0, 0.5, 0.5], [0, 0, 1]]),
    (lambda m, x: m.min(x), -3, [[0, 0, 0], [1, 0, 0]]),
    (lambda m, x: m.var(x, axis=-1), [2 / 9, 74 / 9], [[-4 / 9, 2 / 9, 2 / 9], [-20 / 9, -2 / 9, 22 / 9]]),
    (lambda m, x: m.cumulative_sum(x, axis=1), [[1, 3, 5], [-3, -3, 1]], [[3, 2, 1]] * 2),
    (lambda m, x: m.logsumexp(x * 0.0, axis=1), [math.log(3)] * 2, np.zeros((2, 3))),
    (lambda m, x: m.softmax(x * 0.0), np.full((2, 3), 1 / 3), np.zeros((2, 3))),
    (lambda m, x: m.log_softmax(x * 0.0, 0), np.full((2, 3), -math.log(2)), np.zeros((2, 3))),
    (lambda m, x: x @ [1.0, 10.0, 0.0], [21, -3], [[1, 10, 0]] * 2),
    (lambda m, x: m.matmul(x, m.permute_dims(x, (1, 0))), [[9, 5], [5, 25]], [[-4, 4, 12]] * 2),
    (lambda m, x: m.clip(x, 0.0, 2.0), [[1, 2, 2], [0, 0, 2]], [[1, 1, 1], [0, 1, 0]]),
    (lambda m, x: m.where(x > 0, m.log(m.maximum(x, 1.0)), -x), [[0, *[math.log(2)] * 2], [3, 0, math.log(4)]],
     [[0.5, 0.5, 0.5], [-1, -1, 0.25]]),
    (lambda m, x: m.abs(x), [[1, 2, 2], [3, 0, 4]], [[1, 1, 1], [-1, 0, 1]]),
    (lambda m, x: m.sign(x) * m.floor(x + 0.5), [[1, 2, 2], [3, 0, 4]], np.zeros((2, 3))),
    (lambda m, x: x**3 / 2.0, [[0.5, 4, 4], [-13.5, 0, 32]], [[1.5, 6, 6], [13.5, 0, 24]]),
    (lambda m, x: (1.0 - x) * 2.0 + (-x), [[-1, -4, -4], [11, 2, -10]], np.full((2, 3), -3)),
    (lambda m, x: m.pow(2.0, x), [[2, 4, 4], [0.125, 1, 16]], np.array([[2, 4, 4], [0.125, 1, 16]]) * math.log(2)),
    (lambda m, x: m.take(x, [0, 0, -1], axis=0), [SQUARE[0], SQUARE[0], SQUARE[1]], [[2] * 3, [1] * 3]),
    (lambda m, x: m.concat([x, x[:1] * 3.0], axis=0), [*SQUARE, [3, 6, 6]], [[4] * 3, [1] * 3]),
    (lambda m, x: m.stack([x[0], x[1]], axis=1), np.transpose(SQUARE), np.ones((2, 3))),
    (lambda m, x: m.squeeze(m.expand_dims(x, axis=1), axis=1), SQUARE, np.ones((2, 3))),
    (lambda m, x: m.broadcast_to(m.reshape(x, (1, 6)), (4, 6)), [[*SQUARE[0], *SQUARE[1]]] * 4, np.full((2, 3), 4)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(REDUCTIONS)))
def test_oracle_against_numbers_worked_out_by_hand(case):
    f, value, gradient = REDUCTIONS[case]
    x = oracle.tensor(SQUARE)
    y = f(oracle, x)
    np.testing.assert_allclose(y.numpy(), value, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(oracle.gradients(y, [x])[0].value, gradient, rtol=1e-14, atol=1e-14)
    assert y.shape == np.shape(value) and x.tolist() == SQUARE


def test_oracle_writes_are_copies():
    x = oracle.tensor([1.0, 2.0, 3.0])
    y = x[...]
    z = y
    y[1:] *= y[1:]
    y[[0, 0]] = x[2]
    y -= 1.0
    y /= 2.0
    assert z is y and y.tolist() == [1.0, 1.5, 4.0] and x.tolist() == [1.0, 2.0, 3.0]
    assert oracle.gradients(y, [x])[0].value.tolist() == [0.0, 2.0, 3.5]
    with pytest.raises(ValueError):
        y += np.ones((2, 3))
    zero = oracle.tensor(1.0)
    zero[...] = x[0] * 4.0
    assert zero.tolist() == 4.0 and oracle.tensor(np.zeros((2, 0))).shape == (2, 0)


def test_oracle_says_when_it_cannot_tell():
    third = oracle.tensor(1.0) / 3.0
    with pytest.raises(oracle.Ambiguous):
        oracle.maximum(third * 3.0, 1.0)
    with pytest.raises(oracle.Ambiguous):
        oracle.relu(third * 3.0 - 1.0)
    with pytest.raises(oracle.Ambiguous):
        oracle.round(third * 3.0)
    assert oracle.maximum(oracle.tensor(0.25) * 4.0, 1.0).tolist() == 1.0
    assert oracle.maximum(third, third).tolist() == third.tolist()


def test_oracle_mass_is_what_cancels():
    x = oracle.tensor(3.0)
    [g] = oracle.gradients(x * 5.0 - x * 5.0, [x])
    assert (float(g.value), float(g.mass)) == (0.0, 10.0)


def test_oracle_strong_zero():
    x = oracle.tensor([0.25, 4.0])
    y = oracle.where([True, False], x, oracle.rsqrt(x) * 0.0)
    assert oracle.gradients(y, [x])[0].value.tolist() == [1.0, 0.0]
    assert [g.value.tolist() for g in oracle.gradients(oracle.sum(x[:0]), [x])] == [[0.0, 0.0]]


def test_the_oracle_refuses_what_has_no_value_also_where_nothing_would_be_looked_at():
    nothing = oracle.tensor(np.zeros((0, 0)))
    for refused in (lambda: oracle.take(nothing, [-1, 0], axis=1), lambda: oracle.max(nothing, axis=0)):
        with pytest.raises((IndexError, ValueError)):
            refused()
    assert oracle.take(nothing, [], axis=1).shape == (0, 0) and oracle.sum(nothing, axis=0).shape == (0,)
