"""Every elementwise op of the table: value, dtype, layout, special values, partials, fused against composed rules,
second order, kinks and the strong zero. All of it is parametrised over ops.TABLE: a new entry is tested by being there.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INF,
    INTS,
    LAYOUTS,
    NAN,
    WIDE,
    assert_gradients,
    assert_same,
    assert_ulps,
    check_fused,
    close,
    draw,
    dtype_of,
    gradients,
    grads,
    host,
    leaves,
    name_of,
    richardson,
    rng_for,
    second,
    specials,
    stretched,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import (
    CANCELLING,
    EXACT,
    NAMES,
    REFERENCE,
    SHORT,
    TABLE,
    ZERO_SIGN_FREE,
    compute_dtype,
    defined,
    forgiven,
    integer_operands,
    operands,
    reference,
    special_operands,
)

import tapeflow as tp

DIFFERENTIABLE = tuple(n for n, e in TABLE.items() if any(e.vjp_kind(i) != "NONE" for i in range(e.nin)))
INTEGER = tuple(n for n, e in TABLE.items() if e.kind == "integer")
FLOAT_VALUED = tuple(n for n, e in TABLE.items() if e.kind not in ("compare", "integer"))
UNARY = tuple(n for n in DIFFERENTIABLE if TABLE[n].nin == 1)
BINARY = tuple(n for n in DIFFERENTIABLE if TABLE[n].nin == 2)


def function(name):
    return getattr(tp, name)


def check_value(name, got, *arrays, label=""):
    """Value, shape and dtype against the reference within the entry's ULP."""
    entry = TABLE[name]
    compute = compute_dtype(name, [str(a.dtype) for a in arrays])
    cast = [a if entry.kind == "select" and i == 0 else a.astype(compute) for i, a in enumerate(arrays)]
    want = reference(name, *cast)
    dtype = "bool" if entry.kind == "compare" else compute
    label = f"{name} {label} {[str(a.dtype) for a in arrays]}"
    assert name_of(got) == dtype, label
    if dtype in FLOATS and entry.ulp:
        assert host(got).shape == want.shape
        if name in ("lgamma", "digamma", "polygamma", "spherical_ratio", "logaddexp"):
            got = forgiven(name, host(got), want, *cast)
        assert_ulps(got, want, entry.ulp * 1.001, label, cast)
        if name not in ZERO_SIGN_FREE:
            zero = want == 0
            assert np.array_equal(np.signbit(host(got))[zero], np.signbit(want)[zero]), f"{label}: sign of zero"
    else:
        assert_same(got, np.asarray(want).astype(dtype), name not in ZERO_SIGN_FREE, label)


# ---- values ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_layouts(name, dtype):
    arrays = operands(name, (4, 7), dtype)
    f = function(name)
    if not defined(name, dtype):
        with pytest.raises(TypeError, match=f"{name}.*{dtype}"):
            f(*map(tp.tensor, arrays))
        return
    plain = f(*map(tp.tensor, arrays))
    check_value(name, plain, *arrays)
    for layout, make in LAYOUTS.items():
        assert_same(f(*map(make, arrays)), plain, label=f"{name} {layout}")
    for pick in range(TABLE[name].nin):  # one odd operand among plain ones
        for layout, make in LAYOUTS.items():
            mixed = [make(a) if i == pick else tp.tensor(a) for i, a in enumerate(arrays)]
            assert_same(f(*mixed), plain, label=f"{name} operand {pick} {layout}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_0d_zero_size_stretched_and_repeated_operands(name, dtype):
    if not defined(name, dtype):
        return
    f = function(name)
    row = operands(name, (9,), dtype)
    want = f(*map(tp.tensor, row))
    for i in range(9):
        got = f(*(tp.tensor(a[i]) for a in row))
        assert got.shape == ()
        assert_same(got, host(want)[i], label=f"{name} 0-d")
        assert_same(f(*(tp.tensor(a)[i] for a in row)), host(want)[i], label=f"{name} element")
    for shape in ((0,), (2, 0, 3)):
        got = f(*(tp.tensor(a) for a in operands(name, shape, dtype)))
        assert (got.shape, got.dtype, got.numpy().size) == (shape, want.dtype, 0)
    assert_same(f(*(stretched(a, 3) for a in row)), np.stack([host(want)] * 3))
    for turn in itertools.product((0, 1), repeat=TABLE[name].nin):  # 0-d, (3, 1) and (1, 9) operands against each other
        mixed = [a[:3, None] if k else a[None] for a, k in zip(row, turn, strict=True)]
        check_value(name, f(*map(tp.tensor, mixed)), *mixed, label=turn)
        scalars = [a[4] if k else a for a, k in zip(row, turn, strict=True)]
        check_value(name, f(*map(tp.tensor, scalars)), *map(np.asarray, scalars), label=turn)
    if TABLE[name].nin > 1 and TABLE[name].kind != "select":
        same = [row[0]] * TABLE[name].nin
        t = tp.tensor(row[0])
        if name != "pow" or dtype in FLOATS:
            check_value(name, f(*[t] * TABLE[name].nin), *same, label="the same tensor")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_length_or_position(name, dtype):
    if not defined(name, dtype):
        return
    f = function(name)
    arrays = operands(name, (2100,), dtype)
    for a in arrays:
        if a.dtype.kind == "f":
            a[::7] = rng_for(name).choice(specials(dtype), a[::7].shape)
    whole = host(f(*map(tp.tensor, arrays)))
    for start, n in [(0, n) for n in range(1, 35)] + [(3, 61), (5, 127), (1, 1023), (0, 1024), (7, 1025), (50, 2049)]:
        part = f(*(tp.tensor(a[start : start + n]) for a in arrays))
        assert_same(part, whole[start : start + n], label=f"{name} {start}+{n}")
        assert_same(f(*(tp.tensor(a)[start : start + n] for a in arrays)), whole[start : start + n])


@pytest.mark.parametrize("shape", [(3, 300), (2, 1500), (4, 5, 130), (2, 3, 2, 1100), (700, 3), (61, 10), (7, 64)])
def test_stretched_operands_have_the_bits_of_whole_ones(shape):
    """Runs of one value, shorter and longer than a block, along every set of axes, of another dtype too."""
    rng = rng_for(str(shape))
    for held in itertools.product((False, True), repeat=len(shape)):
        small = tuple(1 if s else n for s, n in zip(held, shape, strict=True))
        for left, right in itertools.product(("int32", *FLOATS), repeat=2):
            a, b = draw(rng, small, left), draw(rng, shape, right)
            whole = tp.tensor(np.ascontiguousarray(np.broadcast_to(a, shape)))
            assert_same(tp.tensor(a) - tp.tensor(b), whole - tp.tensor(b), label=f"{left} {right} {small}")
            assert_same(tp.where(tp.tensor(a > 0), tp.tensor(b), 1), tp.where(whole > 0, tp.tensor(b), 1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name, dtype):
    if not defined(name, dtype):
        return
    arrays = special_operands(name, dtype)
    check_value(name, function(name)(*map(tp.tensor, arrays)), *arrays)


@pytest.mark.parametrize("dtype", ("bool", *INTS))
@pytest.mark.parametrize("name", NAMES)
def test_integer_extremes_wrap_as_numpy(name, dtype):
    if not defined(name, dtype):
        return
    arrays = integer_operands(name, dtype)
    check_value(name, function(name)(*map(tp.tensor, arrays)), *arrays)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOAT_VALUED)
def test_accuracy_over_the_whole_range(name, dtype):
    """Dense in the domain, and every exponent with both signs."""
    n = 6000 if name not in EXACT else 500
    rng = rng_for("sweep", name, dtype)
    info = np.finfo(dtype)
    dense = operands(name, (n,), dtype, "dense")
    check_value(name, function(name)(*map(tp.tensor, dense)), *dense, label="dense")
    exponents = rng.uniform(info.minexp - info.nmant - 1, info.maxexp, (TABLE[name].nin, n))
    if name == "pow":  # most of the plane over- or underflows: keep to where something is left
        exponents[1] = np.log2(np.maximum(rng.uniform(0, info.maxexp, n) / np.maximum(abs(exponents[0]), 1), info.tiny))
    broad = [(rng.choice([-1, 1], n) * 2.0 ** e.astype(WIDE)).astype(dtype) for e in exponents]
    if TABLE[name].kind == "select":
        broad[0] = broad[0] > 0
    if name == "pow":
        broad[0] = np.abs(broad[0])
    check_value(name, function(name)(*map(tp.tensor, broad)), *broad, label="broad")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [n for n in CANCELLING if n in TABLE])
def test_accuracy_where_terms_cancel(name, dtype):
    t = np.concatenate([np.logspace(-12, 0.3, 400), -np.logspace(-12, -0.05, 400), np.linspace(-0.9, 3, 400)])
    x = CANCELLING[name](t).astype(dtype)
    check_value(name, function(name)(tp.tensor(x)), x)


@pytest.mark.parametrize("name", ("sin", "cos", "tan"))
def test_large_angles(name):
    for dtype in FLOATS:
        x = np.concatenate([np.pi / 2 * np.arange(1, 3000, 7), 10.0 ** np.arange(38), 2.0 ** np.arange(1, 127, 0.37)])
        check_value(name, function(name)(tp.tensor(x.astype(dtype))), x.astype(dtype))


def test_subnormals_are_not_flushed():
    for dtype in FLOATS:
        info = np.finfo(dtype)
        x = np.array([info.smallest_subnormal, info.tiny / 2, info.tiny, -info.tiny / 4], dtype)
        t = tp.tensor(x)
        for y, want in ((t * 1, x), (t + 0, x), (t / 2, x / 2), (tp.abs(t), abs(x)), (-t, -x), (tp.maximum(t, -1), x)):
            assert_same(y, want)
        assert host(tp.sum(t[:1])).item() == x[0] and host(tp.max(t[:1])).item() == x[0]


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_the_thread_count(name):
    row = operands(name, (1009,), "int32" if name in INTEGER else "float32", "threads")
    arrays = [np.tile(a, 700) for a in row]
    before = tp.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            tp.set_num_threads(threads)
            y, gs = (
                grads(function(name), *arrays)
                if name in DIFFERENTIABLE
                else (function(name)(*map(tp.tensor, arrays)), [])
            )
            results.append([host(y), *(host(g) for g in gs if g is not None)])
    finally:
        tp.set_num_threads(before)
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert_same(got, want)
    assert_same(results[0][0][:1009], function(name)(*map(tp.tensor, row)))


# ---- operands that are not tensors, and of several dtypes ----


@pytest.mark.parametrize("left,right", list(itertools.product(DTYPES, repeat=2)))
@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].nin == 2])
def test_mixed_dtypes(name, left, right):
    dtypes = [left, right]
    if SHORT[compute_dtype(name, dtypes)] not in TABLE[name].dtypes:
        return
    arrays = [draw(rng_for(name, d, i), (2, 3), d, 0 if name == "pow" else -3, 3) for i, d in enumerate(dtypes)]
    check_value(name, function(name)(*map(tp.tensor, arrays)), *arrays)
    check_value(name, function(name)(tp.tensor(arrays[0]), arrays[1]), *arrays, label="ndarray on the right")
    check_value(name, function(name)(arrays[0], tp.tensor(arrays[1])), *arrays, label="ndarray on the left")


@pytest.mark.parametrize("b,c", list(itertools.product(DTYPES, repeat=2)))
def test_where_mixed_dtypes(b, c):
    arrays = [np.array([True, False]), draw(rng_for(b), (2,), b), draw(rng_for(c), (2,), c)]
    check_value("where", tp.where(*map(tp.tensor, arrays)), *arrays)


OPERATORS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_take_tensors_scalars_and_arrays_on_both_sides(name, dtype):
    a, b = operands(name, (3, 4), dtype, "operators")
    s = dtype_of(dtype)
    apply, f = OPERATORS[name], function(name)
    x, y = tp.tensor(a), tp.tensor(b)
    want = f(x, y)
    for got in (apply(x, y), apply(a, y), apply(x, b), f(a, y), f(x, b)):
        assert isinstance(got, tp.Tensor)
        assert_same(got, want)
    for number in (2, 2.5, True):
        k = tp.full((), number, dtype=s)
        # x**2 is square(x), which a general pow equals to the bit only where there is fma
        right = tp.square(x) if (name, number) == ("pow", 2) else f(x, k)
        assert_same(apply(x, number), right, label=f"{name} {number!r} on the right")
        assert_same(apply(number, y), f(k, y), label=f"{name} {number!r} on the left")
        assert_same(f(x, number), right)
        scalar = a.dtype.type(number)
        for got in (apply(x, scalar), apply(x, np.asarray(scalar)), apply(x, k)):
            assert_same(got, f(x, k), label=f"{name} NumPy scalar on the right")
        for got in (apply(scalar, y), apply(np.asarray(scalar), y)):
            assert isinstance(got, tp.Tensor)
            assert_same(got, f(k, y), label=f"{name} NumPy scalar on the left")


def test_unary_operators():
    x = tp.tensor([-2.0, 0.0, 3.0])
    assert (-x).tolist() == [2, 0, -3] and (+x).tolist() == [-2, 0, 3] and abs(x).tolist() == [2, 0, 3]
    assert_gradients(lambda t: -t + abs(t) * 3 + +t, [np.array([-2.0, 0, 3])], [-3, 0, 3])


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if TABLE[n].nin == 2])
def test_gradients_through_operands_that_are_not_tensors(name):
    a, b = operands(name, (2, 3), "float64", "plain")
    f = function(name)
    both = gradients(f, a, b)
    assert_same(gradients(lambda x: f(x, b), a)[0], both[0])
    if both[1] is not None:
        assert_same(gradients(lambda y: f(a, y), b)[0], both[1])
    if name in OPERATORS:
        assert_same(gradients(lambda y: OPERATORS[name](a, y), b)[0], both[1], label="ndarray on the left")
        left = gradients(lambda y: OPERATORS[name](1.5, y), b)[0]
        close(left, gradients(f, np.full_like(b, 1.5), b)[1], 1e-14, 1e-14)


# ---- derivatives ----


def away_from_kinks(name, arrays, margin=0.13):
    """Each operand, at the points where no kink of the entry is near."""
    keep = np.ones(arrays[0].shape, bool)
    for kink in TABLE[name].kinks:
        keep &= abs(np.broadcast_to(eval(kink, {}, dict(zip("abc", arrays, strict=False))), keep.shape)) > margin
    assert keep.sum() >= 20
    return [a[keep] for a in arrays]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_partials_against_differences(name):
    arrays = away_from_kinks(name, operands(name, (120,), "float64", "partials"))
    f = function(name)
    got = gradients(f, *arrays)
    for i, x in enumerate(arrays):
        if x.dtype.kind != "f":
            continue
        if TABLE[name].vjp_kind(i) == "NONE":
            assert got[i] is None or not got[i].any()
            continue

        def moved(v, i=i):
            return f(*(tp.tensor(v if j == i else a) for j, a in enumerate(arrays))).numpy()

        want, error = richardson(moved, x)
        bad = abs(got[i] - want) > 1e-8 * np.maximum(1, abs(want)) + 10 * error
        assert not bad.any(), (name, i, [a[bad][:3] for a in arrays], got[i][bad][:3], want[bad][:3])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_order_against_differences_of_the_first(name):
    arrays = away_from_kinks(name, operands(name, (60,), "float64", "second"))
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]

    def f(*xs):
        full = list(map(tp.tensor, arrays))
        for i, x in zip(floats, xs, strict=True):
            full[i] = x
        return function(name)(*full)

    points = [arrays[i] for i in floats]
    vectors = [draw(rng_for(name, i), p.shape) for i, p in enumerate(points)]
    got = second(f, *points, vectors=vectors)
    for i, x in enumerate(points):
        want = np.zeros_like(x)
        error = np.zeros_like(x)
        for j, v in enumerate(vectors):

            def first(t, i=i, j=j):
                g = gradients(f, *(t if k == i else p for k, p in enumerate(points)))[j]
                return np.zeros_like(t) if g is None else g

            d, e = richardson(first, x)
            want, error = want + v * d, error + abs(v) * e
        bad = abs(got[i] - want) > 1e-7 * np.maximum(1, abs(want)) + 10 * error
        assert not bad.any(), (name, i, [a[bad][:3] for a in points], got[i][bad][:3], want[bad][:3])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_fused_rule_has_the_bits_of_the_composed_rule(name):
    """Over the domain, over all special values, broadcast, 0-d, accumulated into a gradient that is there."""
    f = function(name)
    for dtype in FLOATS:
        for arrays in (operands(name, (37, 41), dtype, "fused"), special_operands(name, dtype)):
            seed = draw(rng_for(name, "seed"), arrays[0].shape, dtype)
            check_fused(f, *arrays, seed=seed, label=name)
            check_fused(lambda *x: f(*x) + f(*x) * 2, *arrays, seed=seed, label=f"{name} accumulated")
        row = operands(name, (5,), dtype, "row")
        for turn in itertools.product((0, 1, 2), repeat=TABLE[name].nin):
            mixed = [(a, a[:, None], a[2])[k] for a, k in zip(row, turn, strict=True)]
            check_fused(f, *mixed, label=f"{name} {turn}")


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if TABLE[n].nin > 1])
def test_fused_rule_of_one_tensor_in_several_places(name):
    """op(x, x): both partials in one pass, into nothing or into what is there, with a stretched cotangent too."""
    f, nin = function(name), TABLE[name].nin
    for dtype in FLOATS:
        x, z = operands(name, (61, 50), dtype, "twice")[-1], operands(name, (61, 50), dtype, "other")[-1]
        seed = draw(rng_for(name, "seed"), x.shape, dtype)
        check_fused(lambda x, f=f, nin=nin: f(*[x] * nin), x, seed=seed, label=name)
        check_fused(lambda x, f=f, nin=nin: tp.sum(f(*[x] * nin), axis=1), x, seed=seed[:, 0], label=f"{name} summed")
        for turn in itertools.product((0, 1), repeat=nin):
            check_fused(lambda x, z, f=f, t=turn: f(*((x, z)[k] for k in t)) + x * 2, x, z, label=f"{name} {turn}")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if TABLE[n].nin > 1])
def test_fused_rule_summed_over_many_neighbours(name, threads):
    """A partial and the sum over what was stretched in one pass, as the pass and the sum one after the other."""
    f, nin = function(name), TABLE[name].nin
    before = tp.get_num_threads()
    tp.set_num_threads(threads)
    try:
        for shape, small in [((3, 9000), (3, 1)), ((4, 2, 3000), (4, 1, 1)), ((40_000,), ()), ((1, 2, 8193), (2, 1))]:
            arrays = operands(name, shape, "float32", "neighbours")
            seed = draw(rng_for(name, "seed"), shape, "float32")
            for k in range(nin):
                held = [np.resize(a, small) if i == k else a for i, a in enumerate(arrays)]
                check_fused(f, *held, seed=seed, label=f"{name} {shape} {k}")
    finally:
        tp.set_num_threads(before)
    huge = [np.resize(a, () if i == nin - 1 else (300_001,)) for i, a in enumerate(arrays)]
    check_fused(f, *huge, label=f"{name}, in threads")


@pytest.mark.parametrize("dtype", FLOATS)
def test_cotangent_of_a_stretched_subtrahend(dtype):
    """It is summed before it is negated: the bits of the sum of what is negated, zeros and NaN among them."""
    x = draw(rng_for("subtrahend"), (4, 6), dtype)
    seed = np.zeros((4, 6), dtype)
    seed[1:] = draw(rng_for("seed"), (3, 6), dtype)
    seed[2, 3], seed[3, :2] = np.nan, (3, -3)
    for small in [(1, 6), (4, 1), (6,), (1, 1), ()]:
        z = draw(rng_for("z"), small, dtype)
        check_fused(lambda x, z: x - z, x, z, seed=seed, label=str(small))
        t = tp.tensor(z, requires_grad=True)
        (tp.tensor(x) - t).backward(tp.tensor(seed))
        axes = tuple(d for d in range(2) if d < 2 - len(small) or small[d - 2 + len(small)] == 1)
        expected = tp.reshape(tp.sum(tp.tensor(-seed), axis=axes), small)
        assert host(t.grad).tobytes() == host(expected).tobytes(), small


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_fused_rule_is_the_rule_of_each_element(name):
    """The gradient of a whole array, odd layouts included, is that of its elements one by one."""
    f = function(name)
    for dtype in FLOATS:
        arrays = operands(name, (5, 7), dtype, "elements")
        seed = draw(rng_for(name, "seed"), (5, 7), dtype)
        whole = gradients(f, *arrays, seed=seed)
        for layout, make in LAYOUTS.items():
            held = [make(a).requires_grad_() if a.dtype.kind == "f" else make(a) for a in arrays]
            f(*held).backward(make(seed))
            for t, g in zip(held, whole, strict=True):
                if g is not None:
                    assert_same(t.grad, g, label=f"{name} {layout}")
        for at in np.ndindex(5, 7):
            one = gradients(f, *(a[at] for a in arrays), seed=seed[at])
            for g, w in zip(one, whole, strict=True):
                if w is not None:
                    assert_same(g, w[at], label=f"{name} 0-d at {at}")


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if TABLE[n].nin > 1])
def test_gradient_of_the_same_tensor_in_every_place(name):
    f = function(name)
    nin = TABLE[name].nin
    for dtype in FLOATS:
        x = operands(name, (13,), dtype, "twice")[-1]
        x = np.abs(x) if name == "pow" else x
        condition = [np.arange(13) % 2 == 0] if TABLE[name].kind == "select" else []
        apart = gradients(f, *condition, *[x.copy()] * (nin - len(condition)))
        before = list(map(tp.tensor, condition))
        (got,) = gradients(lambda t, before=before: f(*before, *[t] * (nin - len(before))), x)
        close(got, sum(g for g in apart if g is not None), 1e-6 if dtype == "float32" else 1e-14, 0)
    for create_graph in (False, True):
        y, (g,) = grads(lambda t: t * t * t, np.array([2.0]), create_graph=create_graph)
        assert y.item() == 8 and g.item() == 12


@given(
    name=st.sampled_from(DIFFERENTIABLE),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**32 - 1),
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_side=3, max_dims=3),
    layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 3),
)
def test_drawn_shapes_layouts_and_gradients(name, dtype, seed, shapes, layouts):
    nin = TABLE[name].nin
    arrays = [operands(name, s, dtype, seed, i)[i] for i, s in enumerate(shapes.input_shapes[:nin])]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    f = function(name)
    held = [LAYOUTS[layout](a) for a, layout in zip(arrays, layouts, strict=False)]
    check_value(name, f(*held), *arrays, label=layouts)
    w = np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)
    for t in held:
        if name_of(t) in FLOATS:
            t.requires_grad_()
    f(*held).backward(tp.tensor(w))
    whole = gradients(f, *(np.broadcast_to(a, shape) for a in arrays), seed=w)
    for t, a, g in zip(held, arrays, whole, strict=True):
        if name_of(t) in FLOATS and g is not None:
            axes = tuple(range(len(shape) - a.ndim))
            g = g.astype(WIDE).sum(axes)
            g = g.sum(tuple(i for i in range(a.ndim) if a.shape[i] == 1), keepdims=True).reshape(a.shape)
            assert (t.grad.shape, t.grad.dtype) == (t.shape, t.dtype)
            close(t.grad, g.astype(dtype), 1e-5 if dtype == "float32" else 1e-12, 1e-5 if dtype == "float32" else 1e-12)
    check_fused(f, *arrays, seed=w, label=name)


HIGHER = [  # f, order of the derivative at 0, its value: many have cotangents that vanish there
    ("t*t*t", lambda t: t * t * t, 3, 6), ("t**3", lambda t: t**3, 3, 6), ("t**4", lambda t: t**4, 4, 24),
    ("square", lambda t: tp.square(t) * t, 3, 6), ("square**2", lambda t: tp.square(tp.square(t)), 4, 24),
    ("t*sin", lambda t: t * tp.sin(t), 4, -4), ("t*cos", lambda t: t * tp.cos(t), 3, -3),
    ("t*t*exp", lambda t: t * t * tp.exp(t), 4, 12), ("sin**2", lambda t: tp.square(tp.sin(t)), 4, -8),
    ("exp(t*t)", lambda t: tp.exp(t * t), 4, 12), ("tanh", tp.tanh, 5, 16), ("sigmoid", tp.sigmoid, 3, -0.125),
    ("softplus", tp.softplus, 4, -0.125), ("sqrt", lambda t: tp.sqrt(1 + t), 3, 0.375),
    ("rsqrt", lambda t: tp.rsqrt(1 + t), 3, -1.875), ("1/(1+t)", lambda t: 1 / (1 + t), 4, 24),
    ("t/(1+t)", lambda t: t / (1 + t), 3, 6), ("log1p", tp.log1p, 4, -6), ("log", lambda t: tp.log(1 + t), 3, 2),
    ("expm1", lambda t: tp.expm1(t) * t * t, 3, 6), ("pow", lambda t: (1 + t) ** 2.5, 3, 1.875),
    ("2**t", lambda t: 2.0 ** t * t * t, 3, 6 * math.log(2)), ("smul", lambda t: tp.smul(t, t * t), 3, 6),
    ("smul left", lambda t: tp.smul(t, t) * t, 3, 6), ("abs", lambda t: tp.abs(t + 1) * t * t, 3, 6),
    ("where", lambda t: tp.where(t >= 0, t * t * t, 0.0), 3, 6), ("max", lambda t: tp.maximum(t * t, -1.0) * t, 3, 6),
    ("prod", lambda t: tp.prod(tp.stack([t, t, t, t])), 4, 24),
    ("sum", lambda t: tp.sum(tp.stack([t, t]) * t * t), 3, 12),
    ("matmul", lambda t: tp.stack([t, t]) @ tp.stack([t * t, t]), 3, 6),
    ("take", lambda t: tp.sum(tp.take(tp.stack([t * t, t]), [0, 0]) * t), 3, 12),
]  # fmt: skip


@pytest.mark.parametrize("f,order,want", [h[1:] for h in HIGHER], ids=[h[0] for h in HIGHER])
def test_higher_orders_where_cotangents_vanish(f, order, want):
    for dtype in FLOATS:
        g = f
        for _ in range(order):
            g = tp.grad(g)
        close(g(tp.tensor(np.array(0.0, dtype))), np.array(want, dtype), 1e-5, 1e-5)


@pytest.mark.parametrize("name", UNARY)
def test_third_order_through_a_product_that_vanishes(name):
    """d/dx d2/du2 of f(x) u u at u = 0 is 2 f'(x): no cotangent of 0 may hide it."""
    (x,) = away_from_kinks(name, operands(name, (40,), "float64", "third"))
    f, zero = function(name), tp.tensor(np.zeros_like(x))

    def twice(t):
        return tp.sum(tp.grad(lambda u: tp.sum(tp.grad(lambda v: tp.sum(f(t) * v * v))(u)))(zero))

    close(tp.grad(twice)(tp.tensor(x)), 2 * gradients(f, x)[0], 1e-12, 1e-12)


# ---- the strong zero ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_strong_zero_at_every_special_value(name, dtype):
    """A cotangent of 0 gives 0 whatever the derivative is, at order one and two, fused and composed."""
    arrays = special_operands(name, dtype)
    seed = np.zeros(arrays[0].shape, dtype)
    seed[::2] = -0.0
    for create_graph in (False, True):
        xs = leaves(*arrays)
        function(name)(*xs).backward(tp.tensor(seed), create_graph=create_graph)
        floats = [x for x in xs if x.requires_grad]
        first = [x.grad for x in floats]
        for g in first:
            assert g is None or not host(g).any(), (name, create_graph)
        if create_graph:
            total = sum(tp.sum(tp.smul(x, 0.0)) for x in floats) + sum(tp.sum(g) for g in first if g is not None)
            total.backward()
            for x in floats:
                got = host(x.grad)
                # smul(x, 0) has the partial 0 in x, whatever x is.
                assert not got.any(), (name, [a[got != 0][:3] for a in arrays], got[got != 0][:3])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_tinygrad_12409_the_branch_not_taken_never_leaks(name, dtype):
    """where(False, f(x), x) has derivative 1 and second derivative 0 at every special value, on either side."""
    arrays = special_operands(name, dtype)
    f = function(name)
    no = tp.tensor(np.zeros(arrays[0].shape, bool))
    for masked in (lambda *x: tp.where(no, f(*x), x[0]), lambda *x: tp.where(tp.equal(no, False), x[0], f(*x))):
        for create_graph in (False, True):
            got = gradients(masked, *arrays, create_graph=create_graph)
            assert_same(got[0], np.ones_like(arrays[0]), label=f"{name} {create_graph}")
            for g in got[1:]:
                assert g is None or not g.any(), name
        finite = [np.where(np.isfinite(a), a, 0) for a in arrays]  # second() subtracts 2 x
        finite = [np.where(abs(a) > 1e30, 0, a) for a in finite]
        for h, a in zip(second(masked, *finite), finite, strict=True):
            assert np.all(abs(h) <= 1e-5 * np.maximum(1, abs(a))), name


def test_where_leaks_named_cases():
    for dtype in FLOATS:
        x = np.array([4, -4], dtype)
        assert_gradients(lambda t: tp.where(t > 0, tp.sqrt(t), t), [x], [0.25, 1])
        assert_gradients(lambda t: tp.where(t > 2, tp.log(t), 2 * t), [np.array([0, 4], dtype)], [2, 0.25])
        assert_gradients(lambda t: tp.where(t != 0, tp.sin(t) / t, 1.0), [np.array([0.0], dtype)], [0])
        assert_gradients(lambda t: tp.where(t > 0, t**0.5, 0.0), [np.array([0.0, 4], dtype)], [0, 0.25])
        assert_gradients(lambda t: tp.where(t > 0, 1 / t, 5.0) * t, [np.array([0.0, 2], dtype)], [5, 0])
        deep = lambda t: tp.where(t > 0, tp.log(tp.sqrt(tp.exp(1 / t) - 1)), t * t)  # noqa: E731
        close(gradients(deep, np.array([0.0, -1], dtype))[0], np.array([0, -2], dtype))
        (h,) = second(deep, np.array([0.0, -1], dtype))
        close(h, np.array([2, 2], dtype))


@pytest.mark.parametrize("name,x,want", [
    ("abs", [-2, 2, 0], [-1, 1, 0]), ("relu", [-2, 2, 0], [0, 1, 0]), ("negative", [-2, 2, 0], [-1, -1, -1]),
])  # fmt: skip
def test_indicator_partials_select_the_cotangent(name, x, want):
    """Where the partial is 0 a cotangent of inf or NaN does not become NaN; where it is 1 or -1 it passes."""
    for dtype, g, create_graph in itertools.product(FLOATS, (INF, -INF, NAN, 3e38), (False, True)):
        (got,) = gradients(function(name), np.array(x, dtype), seed=np.full(3, g, dtype), create_graph=create_graph)
        assert_same(got, np.array([0 if w == 0 else w * g for w in want], dtype), zero_sign=False)


def test_indicators_of_several_operands_select_too():
    a, b, c = np.array([1.0, 5]), np.array([3.0, 3]), np.array([4.0, 4])
    for g, create_graph in itertools.product((INF, NAN), (False, True)):
        seed = np.full(2, g)
        for f, arrays, want in (
            (tp.maximum, [a, b], [[0, g], [g, 0]]),
            (tp.minimum, [a, b], [[g, 0], [0, g]]),
            (tp.clip, [a, b, c], [[0, 0], [g, 0], [0, g]]),
            (lambda x, y: tp.where(tp.tensor([True, False]), x, y), [a, b], [[g, 0], [0, g]]),
        ):
            for got, w in zip(gradients(f, *arrays, seed=seed, create_graph=create_graph), want, strict=True):
                assert_same(got, np.array(w, float), zero_sign=False)


def test_smul_and_its_rule():
    for dtype in FLOATS:
        g, d = (np.array(v, dtype) for v in ([0, -0.0, 2, 2, 0], [INF, NAN, 3, INF, 5]))
        assert_same(tp.smul(tp.tensor(g), tp.tensor(d)), np.array([0, 0, 6, INF, 0], dtype), zero_sign=False)
        u = np.array([1, 1, 10, 10, 0], dtype)
        # to g smul(u, d), to d 0 where u or g is 0
        for create_graph in (False, True):
            to_g, to_d = gradients(tp.smul, g, d, seed=u, create_graph=create_graph)
            assert_same(to_g, np.array([INF, NAN, 30, INF, 0], dtype), zero_sign=False)
            assert_same(to_d, np.array([0, 0, 20, 20, 0], dtype), zero_sign=False)
        infinite = gradients(
            tp.smul, np.array([0, 0], dtype), np.array([1, 1], dtype), seed=np.array([INF, NAN], dtype)
        )
        assert_same(infinite[1], np.zeros(2, dtype), zero_sign=False)


def test_zero_times_infinity_in_a_long_chain():
    """log(0) below a factor 0: the zero cotangent goes all the way down."""
    f = lambda t: tp.sum(tp.exp(tp.log(tp.sqrt(t)) * 2) * 0.0)  # noqa: E731
    assert_gradients(f, [np.array([0.0, 4.0])], 0.0)
    (h,) = second(f, np.array([0.0, 4.0]))
    close(h, np.zeros(2))


# ---- kinks: one test per row of the table of conventions ----


def test_kink_abs_and_relu_give_0_at_0():
    for dtype, zero in itertools.product(FLOATS, (0.0, -0.0)):
        for f in (tp.abs, tp.relu, lambda t: tp.abs(tp.relu(t))):
            assert_gradients(f, [np.array([zero, 2], dtype)], [0, 1])
    for f in (tp.abs, tp.relu):
        close(second(f, np.array([0.0, 1, -1]))[0], np.zeros(3))


def test_kink_maximum_and_minimum_split_ties():
    for dtype in FLOATS:
        x = np.array([1, 2, -0.0, INF, -INF], dtype)
        y = np.array([1, 3, 0.0, INF, -INF], dtype)
        assert_gradients(tp.maximum, [x, y], [0.5, 0, 0.5, 0.5, 0.5], [0.5, 1, 0.5, 0.5, 0.5])
        assert_gradients(tp.minimum, [x, y], [0.5, 1, 0.5, 0.5, 0.5], [0.5, 0, 0.5, 0.5, 0.5])
        for number in (1, 1.0, np.float32(1), np.asarray(1, dtype)):
            assert_gradients(lambda t, n=number: tp.maximum(t, n), [np.array([1, 2, 0], dtype)], [0.5, 1, 0])
            assert_gradients(lambda t, n=number: tp.minimum(n, t), [np.array([1, 2, 0], dtype)], [0.5, 0, 1])
        for f in (tp.maximum, tp.minimum):
            assert_gradients(lambda t, f=f: f(t, t), [np.array([1, -2], dtype)], 1.0)


CLIP = [  # x, lo, hi, gradient to x, lo, hi
    (1, 1, 4, 1, 0, 0),
    (4, 1, 4, 1, 0, 0),
    (2, 1, 4, 1, 0, 0),
    (0, 1, 4, 0, 1, 0),
    (5, 1, 4, 0, 0, 1),
    (3, 3, 3, 1, 0, 0),
    (0, 4, 1, 0, 0, 1),  # lo > hi gives hi
    (2, 4, 1, 0, 0, 1),
    (5, 4, 1, 0, 0, 1),
    (-0.0, 0.0, 1, 1, 0, 0),
    (INF, 0, 1, 0, 0, 1),
    (INF, 0, INF, 1, 0, 0),
    (-INF, 0, 1, 0, 1, 0),
    (NAN, 0, 1, 1, 0, 0),  # a NaN keeps its cotangent
]


@pytest.mark.parametrize("x,lo,hi,gx,glo,ghi", CLIP)
def test_kink_clip_at_a_bound(x, lo, hi, gx, glo, ghi):
    for dtype in FLOATS:
        arrays = [np.array([v], dtype) for v in (x, lo, hi)]
        close(tp.clip(*map(tp.tensor, arrays)), REFERENCE["clip"](*arrays))
        assert_gradients(tp.clip, arrays, gx, glo, ghi)
        assert_gradients(lambda t: tp.clip(t, lo, hi), arrays[:1], gx)
        assert_gradients(lambda t: tp.relu(t), [np.array([0], dtype)], 0)


def test_pytorch_7002_clip_whose_bound_is_the_value():
    for dtype in FLOATS:
        assert_gradients(lambda t: tp.clip(t, 0.0, t), [np.array(5, dtype)], 1)
        assert_gradients(lambda t: tp.clip(t, t, t), [np.array(5, dtype)], 1)
        assert_gradients(lambda t: tp.clip(t, t, 9.0), [np.array(5, dtype)], 1)
        got = gradients(tp.clip, *(np.array(v, dtype) for v in (1, 1, 4)))
        assert sum(g.item() for g in got) == 1


def test_clip_with_one_bound_or_none():
    x = np.array([-2.0, 0.5, 3])
    for dtype in (*FLOATS, "int32"):
        t = tp.tensor(x.astype(dtype))
        assert_same(tp.clip(t, 0), np.maximum(x.astype(dtype), 0).astype(dtype))
        assert_same(tp.clip(t, None, 1), np.minimum(x.astype(dtype), 1).astype(dtype))
        assert_same(tp.clip(t, min=0, max=1), np.clip(x.astype(dtype), 0, 1))
        assert_same(tp.clip(t), x.astype(dtype))
    assert_gradients(lambda t: tp.clip(t, 0.5), [x], [0, 1, 1])
    assert_gradients(lambda t: tp.clip(t, None, 0.5), [x], [1, 1, 0])


def test_kink_nan_comes_out_of_maximum_minimum_and_clip():
    for dtype in FLOATS:
        nan, one = (np.array(v, dtype) for v in (NAN, 1))
        for f in (tp.maximum, tp.minimum):
            for pair in ((nan, one), (one, nan), (nan, nan)):
                assert np.isnan(f(*map(tp.tensor, pair)).item())
        for triple in ((nan, one, one), (one, nan, one), (one, one, nan)):
            assert np.isnan(tp.clip(*map(tp.tensor, triple)).item())
        assert np.isnan(tp.relu(tp.tensor(nan)).item()) and np.isnan(tp.sign(tp.tensor(nan)).item())


@pytest.mark.parametrize("name", ("maximum", "minimum"))
def test_cotangent_of_nan_operands_is_neither_lost_nor_doubled(name):
    for pair in ((NAN, 1.0), (1.0, NAN), (NAN, NAN)):
        for create_graph in (False, True):
            got = gradients(function(name), *(np.array(v) for v in pair), create_graph=create_graph)
            assert sum(g.item() for g in got) == 1


KINKS = [  # op, operands, value, gradients
    ("cbrt", [0], 0, [INF]), ("sqrt", [0], 0, [INF]), ("reciprocal", [0], INF, [-INF]),
    ("asin", [1], math.pi / 2, [INF]), ("asin", [-1], -math.pi / 2, [INF]), ("acos", [1], 0, [-INF]),
    ("acosh", [1], 0, [INF]), ("atanh", [1], INF, [INF]), ("erfinv", [1], INF, [INF]),
    ("hypot", [0, 0], 0, [0, 0]), ("hypot", [3, 4], 5, [0.6, 0.8]), ("hypot", [INF, 1], INF, [NAN, 0]),
    ("atan2", [0, 0], 0, [0, 0]), ("atan2", [0, -1], math.pi, [-1, 0]), ("atan2", [1, INF], 0, [0, 0]),
    ("logaddexp", [-INF, -INF], -INF, [0, 0]), ("logaddexp", [-INF, 2], 2, [0, 1]),
    ("logaddexp", [INF, 2], INF, [1, 0]), ("logaddexp", [INF, INF], INF, [0.5, 0.5]),
    ("logaddexp", [-INF, INF], INF, [0, 1]), ("logaddexp", [2, 2], 2 + math.log(2), [0.5, 0.5]),
    ("xlogy", [0, 0], 0, [-INF, 0]), ("xlogy", [0, 2], 0, [math.log(2), 0]), ("xlogy", [2, 1], 0, [0, 2]),
    ("xlog1py", [0, -1], 0, [-INF, 0]), ("xlog1py", [0, 1], 0, [math.log(2), 0]),
    ("copysign", [0, -1], 0, [0, 0]), ("copysign", [2, -1], -2, [-1, 0]), ("copysign", [-2, -1], -2, [1, 0]),
    ("elu", [0, 2], 0, [2, 0]), ("leaky_relu", [0, 0.5], 0, [0.5, 0]), ("elu", [-INF, 2], -2, [0, -1]),
    ("remainder", [-7, 2], 1, [1, 4]), ("remainder", [7, -2], -1, [1, 4]), ("lerp", [1, 3, 0.25], 1.5, [0.75, 0.25, 2]),
]  # fmt: skip


@pytest.mark.parametrize("name,at,value,want", KINKS)
def test_kinks_and_singular_points(name, at, value, want):
    for dtype in FLOATS:
        arrays = [np.array([x], dtype) for x in at]
        close(function(name)(*map(tp.tensor, arrays)), np.array([value], dtype))
        assert_gradients(
            lambda *x: function(name)(*x) + sum(0 * x_ if np.isfinite(x_.numpy()).all() else 0 for x_ in x),
            arrays,
            *want,
        )


def test_activations_of_keywords():
    x = tp.tensor([-1.0, 2.0], dtype="float64")
    close(tp.elu(x), np.array([math.expm1(-1), 2]))
    close(tp.elu(x, alpha=2.0), np.array([2 * math.expm1(-1), 2]))
    close(tp.leaky_relu(x), np.array([-0.01, 2]))
    close(tp.leaky_relu(x, negative_slope=0.5), np.array([-0.5, 2]))
    close(tp.gelu(x, approximate="tanh"), tp.gelu_tanh(x))
    assert (tp.elu(tp.ones(2)).dtype, tp.leaky_relu(tp.ones(2)).dtype) == (tp.float32, tp.float32)
    with pytest.raises(ValueError, match=r"gelu.*tanh"):
        tp.gelu(x, approximate="erf")


def test_nan_to_num():
    for dtype in FLOATS:
        x = np.array([1, NAN, INF, -INF, -0.0], dtype)
        assert_same(tp.nan_to_num(tp.tensor(x)), np.nan_to_num(x))
        assert_same(tp.nan_to_num(tp.tensor(x), 7.0, -1, neginf=2.5), np.nan_to_num(x, nan=7.0, posinf=-1, neginf=2.5))
        assert_gradients(lambda t: tp.nan_to_num(t), [x], [1, 0, 0, 0, 1])
        assert_gradients(lambda t, n: tp.nan_to_num(t, n), [x, np.array(3, dtype)], [1, 0, 0, 0, 1], 1)
    assert_same(tp.nan_to_num(tp.tensor([1, 2])), np.array([1, 2]))


def test_nan_to_num_takes_what_is_not_finite_for_nan():
    x = np.array([NAN, INF, -INF, 1])
    for nan in (INF, -INF, NAN):
        assert_same(tp.nan_to_num(tp.tensor(x), nan), np.nan_to_num(x, nan=nan))


@pytest.mark.parametrize("decimals", (-3, -1, 0, 1, 2, 5))
def test_round_to_decimals(decimals):
    rng = rng_for("decimals", decimals)
    for dtype in FLOATS:
        halves = [0.5, 1.5, 25, 0.125, -0.375, NAN, INF, -INF, -0.0]
        x = np.concatenate([rng.uniform(-900, 900, 200), halves]).astype(dtype)
        with np.errstate(invalid="ignore"):
            assert_same(tp.round(tp.tensor(x), decimals), np.round(x, decimals))
        assert_same(tp.round(tp.tensor(x), decimals=np.int64(decimals)), np.round(x, decimals))
        assert_gradients(lambda t: tp.round(t, decimals), [x[:9]], 0)
    for dtype in ("int32", "int64", "uint8"):
        x = rng.integers(0, 249, 100).astype(dtype)
        assert_same(tp.round(tp.tensor(x), decimals), np.round(x, decimals))
    with pytest.raises(TypeError):
        tp.round(tp.ones(2), 1.5)


INTEGER_OPERATORS = {
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bitwise_left_shift": lambda a, b: a << b,
    "bitwise_right_shift": lambda a, b: a >> b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
}


@pytest.mark.parametrize("name", INTEGER_OPERATORS)
def test_integer_operators(name):
    apply = INTEGER_OPERATORS[name]
    for dtype in ("bool", *INTS):
        a, b = operands(name, (3, 4), dtype, "operators")
        if not defined(name, dtype):
            continue
        want = reference(name, a, b)
        for got in (apply(tp.tensor(a), tp.tensor(b)), apply(a, tp.tensor(b)), apply(tp.tensor(a), b)):
            assert_same(got, want)
        number = True if dtype == "bool" else 3
        assert_same(apply(tp.tensor(a), number), reference(name, a, np.array(number, dtype)))
        assert_same(apply(number, tp.tensor(b)), reference(name, np.array(number, dtype), b))
        assert_same(~tp.tensor(a), ~a)
    q, r = divmod(tp.tensor([7, -7]), 2)
    assert (q.tolist(), r.tolist()) == ([3, -4], [1, 1])
    q, r = divmod(7.5, tp.tensor([2.0, -2.0]))
    assert (q.tolist(), r.tolist()) == ([3, -4], [1.5, -0.5])
    with pytest.raises(TypeError, match=r"bitwise_and.*float32"):
        tp.tensor([1, 2]) & 2.5
    with pytest.raises(TypeError, match=r"bitwise_invert.*float64"):
        ~tp.tensor(np.ones(2))


def test_names_of_numpy():
    import tapeflow._core as core

    x = tp.tensor([0.25, 0.5])
    for name in ("arcsin", "arccos", "arctan", "arcsinh", "arctanh", "absolute", "rint"):
        assert_same(getattr(np, name)(x), getattr(tp, name)(x))
    assert tp.arccosh is core.acosh and tp.mod is core.remainder and tp.power is core.pow
    assert isinstance(np.arctan2(x, x), tp.Tensor) and isinstance(np.left_shift(tp.tensor([1]), 2), tp.Tensor)


def test_polygamma_is_the_derivative_of_itself():
    x = np.array([0.3, 2.5, 7.0, 30.0, -0.4, -2.7])
    f = tp.digamma
    for order in range(1, 4):
        f = tp.grad(lambda t, f=f: tp.sum(f(t)))
        close(f(tp.tensor(x)), np.array([float(mpmath.psi(order, v)) for v in x]), 1e-12, 0)


# ---- pow ----


def test_kink_pow_0_0_sends_0_to_the_exponent():
    for dtype in FLOATS:
        zero = np.array([0], dtype)
        assert tp.pow(tp.tensor(zero), tp.tensor(zero)).item() == 1
        assert_gradients(tp.pow, [zero, zero], 0, 0)
        assert_gradients(lambda t: t**t, [np.array([1, 2], dtype)], [1, 4 * (math.log(2) + 1)])


def test_mlx_505_pow_at_0_is_not_differentiated_through_the_quotient():
    for dtype in FLOATS:
        a, b = np.array([0, 2], dtype), np.array([2, 2], dtype)
        assert_gradients(tp.pow, [a, b], [0, 4], [0, 4 * math.log(2)])
        assert_gradients(tp.pow, [a, b], 0.0, 0.0, seed=np.zeros(2, dtype))
        (h,) = second(lambda t, b=b: t ** tp.tensor(b), a)
        close(h, np.array([2, 2], dtype))


POW = [  # base, exponent, gradient to the base
    (0, 1, 1), (0, 2, 0), (0, 3, 0), (0, 0, 0), (0, 0.5, INF), (0, 1.5, 0), (0, -1, -INF), (-2, 3, 12), (-2, 2, -4),
    (-2, 0, 0), (-2, -1, -0.25), (-2, 1, 1), (4, 0.5, 0.25), (INF, 0, 0), (INF, 1, 1), (NAN, 0, 0), (1, NAN, NAN),
    (1, INF, INF),
]  # fmt: skip


@pytest.mark.parametrize("base,exponent,want", POW)
def test_pow_corners_and_their_second_order(base, exponent, want):
    for dtype in FLOATS:
        a, b = np.array([base], dtype), np.array([exponent], dtype)
        check_value("pow", tp.pow(tp.tensor(a), tp.tensor(b)), a, b)
        assert_gradients(lambda x, b=b: tp.pow(x, tp.tensor(b)), [a], want)
        assert_gradients(lambda x: x**exponent, [a], want)
        for e in (
            (exponent, int(exponent))
            if exponent == exponent and abs(exponent) < 9 and exponent % 1 == 0
            else (exponent,)
        ):
            check_value("pow", tp.tensor(a) ** e, a, b)
            assert_gradients(lambda x, e=e: x**e, [a], want)
            if math.isfinite(base) and math.isfinite(want) and (base or e not in (0.5, 1.5)):
                (h,) = second(lambda x, e=e: x**e, a)
                close(
                    h, np.array([e * (e - 1) * float(base) ** (e - 2) if e not in (0, 1) else 0.0], dtype), 1e-5, 1e-5
                )


def test_pow_of_a_constant_base():
    for dtype in FLOATS:
        x = np.array([-1, 0, 2], dtype)
        assert_same(2.0 ** tp.tensor(x), np.array([0.5, 1, 4], dtype))
        assert_gradients(lambda t: 2**t, [x], math.log(2) * 2.0**x)
        assert_gradients(lambda t: 0.0**t, [np.array([0, 1, 2], dtype)], [0, 0, 0])
        assert_gradients(lambda t: 1.0**t, [x], 0)
        (h,) = second(lambda t: 2.0**t, x)
        close(h, (math.log(2) ** 2 * 2.0**x).astype(dtype))


@pytest.mark.parametrize("dtype", INTS)
def test_integer_pow(dtype):
    base = np.array([0, 1, 2, 3, 5], dtype)
    for e in (0, 1, 2, 3, 5, 40):
        assert_same(tp.tensor(base) ** e, base ** np.array(e, dtype))
    assert_same(tp.tensor(base) ** 0.5, np.sqrt(base.astype("float32"))) if dtype == "int32" else None
    if dtype != "uint8":
        with pytest.raises(ValueError, match="negative"):
            tp.tensor(base) ** -1
        with pytest.raises(ValueError, match="negative"):
            tp.pow(tp.tensor(base), tp.tensor(np.array([1, 1, 1, 1, -2], dtype)))
        negative = np.array([-1], dtype)
        for a, b in ((tp.tensor([2]), negative), (np.array([2]), tp.tensor(negative)), (tp.tensor(2), negative[0])):
            for f in (tp.pow, lambda a, b: a**b):
                with pytest.raises(ValueError, match="negative"):
                    f(a, b)


# ---- saturation and overflow of gradients ----

SATURATED = [  # op, x, value, gradient
    *(("softplus", x, max(x, 0), float(x > 0)) for x in (30, 90, 1000, -1000)),
    *(("sigmoid", x, float(x > 0), 0) for x in (1000, -1000)),
    *(("tanh", x, math.copysign(1, x), 0) for x in (50, -50, INF, -INF)),
    ("softplus", INF, INF, 1), ("softplus", -INF, 0, 0), ("sigmoid", INF, 1, 0), ("sigmoid", -INF, 0, 0),
    ("exp", -INF, 0, 0), ("exp", -1000, 0, 0), ("expm1", -INF, -1, 0), ("log", INF, INF, 0), ("log1p", INF, INF, 0),
    ("rsqrt", INF, 0, 0), ("sqrt", INF, INF, 0),
    *((name, x, max(x, 0), float(x > 0)) for name in ("silu", "gelu", "gelu_tanh") for x in (1000, -1000, INF, -INF)),
    *(("erf", x, math.copysign(1, x), 0) for x in (100, -1000, INF, -INF)),
    ("erfc", INF, 0, 0), ("erfc", -INF, 2, 0), ("atan", 1e30, math.pi / 2, 0), ("atan", INF, math.pi / 2, 0),
    ("asinh", INF, INF, 0), ("acosh", INF, INF, 0), ("exp2", -INF, 0, 0), ("exp2", -2000, 0, 0), ("log2", INF, INF, 0),
    ("log10", INF, INF, 0), ("cbrt", INF, INF, 0), ("reciprocal", INF, 0, 0), ("digamma", INF, INF, 0),
]  # fmt: skip


@pytest.mark.parametrize("name,x,value,gradient", SATURATED)
def test_burn_5373_saturation(name, x, value, gradient):
    for dtype in FLOATS:
        f = function(name)
        close(f(tp.tensor(np.array([x, x], dtype))), np.array([value, value], dtype), 1e-6)
        assert_gradients(f, [np.array(x, dtype)], gradient)
        if math.isfinite(x):
            close(second(f, np.array([x], dtype))[0], np.zeros(1), 1e-6, 1e-3)


def test_llvm_212696_sqrt_of_a_subnormal_has_a_finite_gradient():
    for x in np.arange(-95, -104, -0.5):
        value = np.exp(np.float64(x)).astype("float32")
        (g,) = gradients(lambda t: tp.sqrt(tp.exp(t)), np.array([x], "float32"))
        if value > 0:
            assert np.isfinite(g).all()
            close(g, np.array([0.5 * math.sqrt(math.exp(x))], "float32"), 0.5, 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_derivatives_far_out_do_not_overflow_early(dtype):
    big, small = (np.array([v], dtype) for v in ((1e30, 1e-30) if dtype == "float32" else (1e200, 1e-200)))
    one = np.ones(1, dtype)
    assert_gradients(tp.divide, [one, big], 1 / big, 0.0)
    assert_gradients(lambda t: tp.divide(t, tp.tensor(big)), [big], 1 / big)
    assert_gradients(lambda t: tp.log(t), [small], 1 / small)
    assert_gradients(lambda t: tp.sqrt(t), [small], 0.5 / np.sqrt(small))
    got = gradients(tp.divide, small, small)
    close(got[1], -1 / small)


@pytest.mark.parametrize("dtype", ("bool", *INTS))
@pytest.mark.parametrize("name", NAMES)
def test_integer_results_are_not_recorded(name, dtype):
    if defined(name, dtype):
        assert not function(name)(*map(tp.tensor, operands(name, (2,), dtype))).requires_grad
    if name in INTEGER:
        return
    x = tp.ones((2,), requires_grad=True)
    y = function(name)(
        *[tp.tensor([True, False]) if TABLE[name].kind == "select" else x][:1], *[x] * (TABLE[name].nin - 1)
    )
    assert y.requires_grad or name not in DIFFERENTIABLE
    if y.requires_grad and name not in DIFFERENTIABLE:  # a derivative of 0 everywhere
        tp.sum(y).backward()
        assert x.grad is None or not host(x.grad).any()
    assert TABLE[name].kind != "compare" or not y.requires_grad


def test_gradients_with_respect_to_one_operand_alone():
    """The rule of one input does not need the others to require grad."""
    for name in DIFFERENTIABLE:
        arrays = operands(name, (7,), "float64", "alone")
        both = gradients(function(name), *arrays)
        for i, a in enumerate(arrays):
            if both[i] is None:
                continue
            xs = [
                tp.tensor(b, requires_grad=(j == i)) if b.dtype.kind == "f" else tp.tensor(b)
                for j, b in enumerate(arrays)
            ]
            tp.sum(function(name)(*xs)).backward()
            assert_same(xs[i].grad, both[i], label=f"{name} {i}")
            assert all(x.grad is None for j, x in enumerate(xs) if j != i)
            assert xs[i].grad.shape == a.shape


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_large_array_has_the_gradient_of_its_parts(name):
    """Several blocks and several threads."""
    arrays = operands(name, (70_001,), "float32", "large")
    seed = draw(rng_for(name, "large"), (70_001,), "float32")
    whole = gradients(function(name), *arrays, seed=seed)
    for start in (0, 1000, 33_333, 69_990):
        part = slice(start, start + 11)
        for g, w in zip(gradients(function(name), *(a[part] for a in arrays), seed=seed[part]), whole, strict=True):
            if w is not None:
                assert_same(g, w[part], label=name)
