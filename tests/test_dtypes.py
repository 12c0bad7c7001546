"""dtypes: creation functions, promotion, weak Python scalars, NumPy operands, astype, in-place operators, the default
dtype, and the dtype of every gradient."""

import itertools
import math
import operator

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INF,
    INTS,
    LAYOUTS,
    NAN,
    assert_gradients,
    assert_same,
    check_vjp,
    close,
    draw,
    dtype_of,
    gradients,
    host,
    leaves,
    name_of,
    rng_for,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp

ORDER = {name: i for i, name in enumerate(DTYPES)}
KIND = {"bool": 0, "uint8": 1, "int32": 1, "int64": 1, "float32": 2, "float64": 2}


@pytest.fixture
def default_float64():
    tp.set_default_dtype(tp.float64)
    yield
    tp.set_default_dtype(tp.float32)


def promote(*names):
    return max(names, key=ORDER.get)


# ---- creation ----


@pytest.mark.parametrize("data,dtype", [
    (1, "int64"), (1.0, "float32"), (True, "bool"), ([1, 2], "int64"), ([1, 2.0], "float32"), ([True, False], "bool"),
    ([True, 2], "int64"), ([True, 2.5], "float32"), ([], "float32"), ([[]], "float32"), ((1, 2), "int64"),
    ([(1.0,), [2]], "float32"), (np.float64(1), "float64"), (np.float32(1), "float32"), (np.int32(1), "int32"),
    (np.uint8(1), "uint8"), (np.bool_(1), "bool"), (np.array([1.0]), "float64"), (np.array(1, "int32"), "int32"),
    (np.zeros((0, 2), "uint8"), "uint8"), (float("nan"), "float32"), ([np.float64(1), np.float64(2)], "float64"),
    (range(3), "int64"),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("make", ("tensor", "asarray"))
def test_dtype_of_new_tensors(make, data, dtype):
    t = getattr(tp, make)(data)
    assert name_of(t) == dtype
    assert_same(t, np.asarray(data).astype(dtype))
    for other in DTYPES:
        if not np.any(np.isnan(np.asarray(data, float))):
            assert_same(getattr(tp, make)(data, dtype=dtype_of(other)), np.asarray(data).astype(other))


def test_python_floats_are_rounded_once_to_the_default():
    assert tp.tensor(0.1).item() == float(np.float32(0.1))
    assert tp.tensor([0.1, 1e-60, 1e60]).tolist() == [float(np.float32(0.1)), 0, INF]
    assert tp.tensor(2**53 + 1).item() == 2**53 + 1
    assert tp.tensor(-(2**63)).item() == -(2**63)
    for bad in (2**63, -(2**63) - 1, [2**64]):
        with pytest.raises((OverflowError, ValueError)):
            tp.tensor(bad)


@pytest.mark.parametrize(
    "data",
    [
        np.zeros(2, "float16"),
        np.zeros(2, complex),
        np.array(["a"]),
        np.array([object()]),
        "abc",
        None,
        [1, "a"],
        [[1, 2], [3]],
        np.zeros(2, "uint16"),
        np.zeros(2, "datetime64[s]"),
        1j,
        {1: 2},
    ],
    ids=lambda data: str(getattr(data, "dtype", data)),  # the repr of an object holds its address
)
def test_data_without_a_dtype_here_is_refused(data):
    with pytest.raises((TypeError, ValueError)):
        tp.tensor(data)


def test_foreign_byte_order_is_read_right():
    for dtype in (">f4", ">f8", ">i4", ">i8"):
        x = np.arange(3, dtype=dtype)
        assert_same(tp.tensor(x), x.astype(x.dtype.newbyteorder("=")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_creation_functions(dtype):
    d = dtype_of(dtype)
    for shape in ((), (3,), (2, 0), (2, 3)):
        assert_same(tp.zeros(shape, dtype=d), np.zeros(shape, dtype))
        assert_same(tp.ones(shape, dtype=d), np.ones(shape, dtype))
        assert_same(tp.full(shape, 1, dtype=d), np.full(shape, 1, dtype))
        assert (tp.empty(shape, dtype=d).shape, name_of(tp.empty(shape, dtype=d))) == (shape, dtype)
        like = tp.zeros(shape, dtype=d)
        assert_same(tp.zeros_like(like), np.zeros(shape, dtype))
        assert_same(tp.ones_like(like), np.ones(shape, dtype))
        assert_same(tp.full_like(like, 1), np.ones(shape, dtype))
        assert (tp.empty_like(like).shape, name_of(tp.empty_like(like))) == (shape, dtype)
        for other in ("float32", "int32"):
            assert_same(tp.zeros_like(like, dtype=dtype_of(other)), np.zeros(shape, other))
    assert_same(tp.zeros(3, dtype=d), np.zeros(3, dtype))
    for args, kwargs in (
        ((3,), {}),
        ((3, 4), {}),
        ((3, 4), {"k": 1}),
        ((3, 2), {"k": -1}),
        ((0,), {}),
        ((2,), {"k": 5}),
    ):
        assert_same(tp.eye(*args, dtype=d, **kwargs), np.eye(*args, dtype=dtype, **kwargs))


def test_default_dtypes_of_creation():
    for t in (
        tp.zeros((2,)),
        tp.ones((2,)),
        tp.empty((2,)),
        tp.full((2,), 1.0),
        tp.eye(2),
        tp.linspace(0, 1, 3),
        tp.arange(3.0),
    ):
        assert name_of(t) == "float32"
    assert (name_of(tp.full((2,), 1)), name_of(tp.full((2,), True)), name_of(tp.arange(3))) == (
        "int64",
        "bool",
        "int64",
    )


@pytest.mark.parametrize(
    "args",
    [(5,), (0,), (-3,), (2, 7), (7, 2), (7, 2, -1), (0, 10, 3), (10, 0, -3), (0, 1, 5), (5, 5), (-2, 3)],
    ids=str,
)
def test_arange_of_integers(args):
    assert_same(tp.arange(*args), np.arange(*args, dtype="int64"))
    for dtype in ("int32", *FLOATS):
        assert_same(tp.arange(*args, dtype=dtype_of(dtype)), np.arange(*args).astype(dtype))


@pytest.mark.parametrize(
    "args", [(3.0,), (0.0, 1.0, 0.25), (1.0, 0.0, -0.1), (0, 1, 0.1), (0.5, 3), (0.0,), (2.0, 1.0)], ids=str
)
def test_arange_of_floats(args):
    for dtype in FLOATS:
        want = np.arange(*args, dtype="float64")
        close(tp.arange(*args, dtype=dtype_of(dtype)), want.astype(dtype), 1e-6)
    with pytest.raises((ValueError, ZeroDivisionError)):
        tp.arange(0, 1, 0)


@pytest.mark.parametrize(
    "args", [(0, 1, 5), (0.0, 1.0, 1), (3, -3, 7), (0, 1, 0), (2, 2, 3), (-1e-3, 1e3, 100), (0, 1, 2)], ids=str
)
def test_linspace(args):
    for dtype in FLOATS:
        got = tp.linspace(*args, dtype=dtype_of(dtype))
        close(got, np.linspace(*args).astype(dtype), 2e-7, 1e-7)
        if args[2] > 1:
            assert host(got)[0] == np.dtype(dtype).type(args[0]) and host(got)[-1] == np.dtype(dtype).type(args[1])
        close(
            tp.linspace(*args, endpoint=False, dtype=dtype_of(dtype)),
            np.linspace(*args, endpoint=False).astype(dtype),
            2e-7,
            1e-7,
        )


def test_arange_at_the_ends_of_64_bits():
    top, low = 2**63 - 1, -(2**63)
    assert tp.arange(top - 1, top).tolist() == [top - 1]
    assert tp.arange(low, low + 2).tolist() == [low, low + 1]
    assert tp.arange(low, top, 2**62).tolist() == [low, -(2**62), 0, 2**62]


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_shapes_given_as_arrays(dtype):
    shape = np.array([2, 3], dtype)
    assert tp.zeros(shape).shape == tp.ones(6).reshape(shape).shape == (2, 3)
    assert tp.broadcast_to(tp.ones(3), shape).shape == tp.full(shape, 1.0).shape == (2, 3)


def test_dtype_arguments_of_every_spelling():
    for name in DTYPES:
        for spelling in (dtype_of(name), name, np.dtype(name), np.dtype(name).type):
            assert name_of(tp.zeros((1,), dtype=spelling)) == name
    for bad in ("float16", "complex64", "nonsense", 3, np.dtype("uint16")):
        with pytest.raises((TypeError, ValueError)):
            tp.zeros((1,), dtype=bad)


# ---- promotion ----


@pytest.mark.parametrize("left,right", list(itertools.product(DTYPES, repeat=2)))
def test_result_type_and_the_operators_agree(left, right):
    want = promote(left, right)
    a, b = (tp.ones((2,), dtype=dtype_of(d)) for d in (left, right))
    assert name_of(tp.result_type(a, b)) == want
    assert name_of(tp.result_type(dtype_of(left), dtype_of(right))) == want
    assert (
        name_of(a + b)
        == name_of(a * b)
        == name_of(tp.maximum(a, b))
        == name_of(tp.where(tp.tensor([True, False]), a, b))
        == want
    )
    assert name_of(a / b) == (want if want in FLOATS else "float32")
    assert name_of(a == b) == name_of(a < b) == "bool"
    zero_d = tp.ones((), dtype=dtype_of(right))
    assert name_of(a + zero_d) == want, "a 0-d tensor promotes as any other"


SCALARS = [(True, "bool", 0), (3, "int64", 1), (2.5, "float32", 2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scalar,alone,kind", SCALARS, ids=repr)
def test_python_scalars_are_weak(dtype, scalar, alone, kind):
    """A Python scalar never promotes a tensor of its own or a higher kind; of a lower kind it brings its default."""
    want = dtype if kind <= KIND[dtype] else alone
    x = draw(rng_for(dtype), (3,), dtype, 1, 4)
    t, k = tp.tensor(x), np.array(scalar).astype(want)
    assert name_of(tp.result_type(t, scalar)) == want
    for op in (operator.add, operator.mul):
        assert_same(op(t, scalar), op(x.astype(want), k))
        assert_same(op(scalar, t), op(k, x.astype(want)))
    assert_same(tp.maximum(t, scalar), np.maximum(x.astype(want), k))
    assert_same(tp.where(tp.tensor([True, False, True]), t, scalar), np.where([True, False, True], x.astype(want), k))
    assert_same(t < scalar, x.astype(want) < k)
    divided = want if want in FLOATS else "float32"
    assert_same(t / scalar, x.astype(divided) / k.astype(divided))


def test_exact_types_decide_what_is_weak():
    x = tp.ones((2,), dtype=tp.float32)
    for strong in (np.float64(2), np.array(2.0), np.array([2.0])):
        assert name_of(x * strong) == name_of(strong * x) == name_of(x - strong) == name_of(strong / x) == "float64"
    for weak in (2, 2.0, True, math.pi, 1e300, -INF, NAN):
        assert name_of(x * weak) == name_of(weak * x) == "float32"
    assert name_of(tp.ones((2,), dtype=tp.uint8) + np.int32(1)) == "int32"
    assert name_of(np.float32(2) * tp.ones((2,), dtype=tp.int64)) == "float32"
    assert host(x * 1e300).tolist() == [INF, INF]


def test_a_weak_float_is_rounded_to_the_other_operands_dtype():
    x = np.array([1.0, 3.0])
    for dtype in FLOATS:
        v = x.astype(dtype)
        assert_same(tp.tensor(v) * 0.1, v * np.array(0.1, dtype))
        assert_same(0.1 - tp.tensor(v), np.array(0.1, dtype) - v)
        assert_same(tp.tensor(v) == 0.1 * 3, v == np.array(0.1 * 3, dtype))


@pytest.mark.parametrize("dtype", INTS)
def test_python_ints_that_do_not_fit_are_refused(dtype):
    t = tp.ones((2,), dtype=dtype_of(dtype))
    for number in (np.iinfo(dtype).max + 1, np.iinfo(dtype).min - 1):
        for act in (lambda n: t + n, lambda n: n * t, lambda n: tp.full((2,), n, dtype=dtype_of(dtype))):
            with pytest.raises((OverflowError, ValueError)):
                act(number)
    assert_same(t + int(np.iinfo(dtype).max - 1), np.full(2, np.iinfo(dtype).max, dtype))


def test_big_python_ints_meet_floats_as_floats():
    assert_same(tp.ones((1,)) * 2**70, np.array([2.0**70], "float32"))
    assert_same(tp.ones((1,), dtype=tp.float64) + 10**30, np.array([1e30]))


@given(
    left=st.sampled_from(DTYPES),
    right=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(("add", "multiply", "maximum", "less", "divide")),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_mixed_operands_are_cast_before_the_op(left, right, seed, name, layout):
    rng = np.random.default_rng(seed)
    wide = promote(left, right)
    wide = "float32" if name == "divide" and wide not in FLOATS else wide
    a, b = draw(rng, (2, 3), left, 1, 100), draw(rng, (3,), right, 1, 100)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(a.astype(wide), b.astype(wide))
    assert_same(getattr(tp, name)(LAYOUTS[layout](a), LAYOUTS[layout](b)), want)


def test_functions_of_plain_numbers():
    for got, want in (
        (tp.exp(1.0), "float32"),
        (tp.add(1, 2), "int64"),
        (tp.maximum(1, 2.5), "float32"),
        (tp.add(True, True), "bool"),
        (tp.exp(1), "float32"),
        (tp.add(np.float64(1), 2), "float64"),
        (tp.where(True, 1, 2.0), "float32"),
    ):
        assert (name_of(got), got.shape) == (want, ())
    for bounds, want in (((0.5, 2.5), [1.0, 2.5]), ((2, 3), [2, 3])):
        got = tp.clip(tp.tensor([1, 5]), *bounds)
        assert_same(got, np.array(want, "float32" if isinstance(bounds[0], float) else "int64"))


def test_int64_and_float32_meet_in_float32():
    big = tp.tensor([2**24 + 1])
    assert_same(big + tp.tensor(np.float32(0)), np.array([2.0**24], "float32"))
    assert_same(tp.tensor([2**62 + 1]) == tp.tensor([2**62]), np.array([False]))
    assert_same(tp.tensor([2**53 + 1]) * 1, np.array([2**53 + 1]))


# ---- the default dtype ----


def test_default_dtype_reaches_everything(default_float64):
    assert name_of(tp.get_default_dtype()) == "float64"
    ints = tp.arange(1, 4)
    for t in (
        tp.tensor(1.0),
        tp.zeros((1,)),
        tp.exp(ints),
        ints / 2,
        ints * 1.5,
        tp.mean(ints),
        tp.logsumexp(ints),
        tp.softmax(ints),
        tp.linspace(0, 1, 3),
        tp.eye(2),
        tp.sqrt(tp.tensor([True])),
        ints**0.5,
        tp.asarray([1.5]),
        tp.full((1,), 2.0),
    ):
        assert name_of(t) == "float64"
    assert name_of(tp.ones((1,), dtype=tp.float32) * 2.5) == "float32"
    assert tp.exp(ints).tolist() == [math.exp(1), math.exp(2), math.exp(3)] or np.allclose(
        host(tp.exp(ints)), np.exp([1, 2, 3.0]), 1e-15
    )


def test_default_dtype_must_be_a_float():
    for bad in (tp.int32, tp.bool, "nonsense", None):
        with pytest.raises((TypeError, ValueError)):
            tp.set_default_dtype(bad)
    assert name_of(tp.get_default_dtype()) == "float32"


# ---- astype ----


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_astype(dtype, to):
    rng = rng_for(dtype, to)
    x = draw(rng, (3, 7), dtype, 0, 100)
    if dtype in INTS and to in INTS:
        x = np.concatenate([x.ravel(), np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)])
    if dtype == "float64" and to == "float32":
        x = np.concatenate([x.ravel(), [1e300, -1e300, 1e-300, NAN, INF, -INF, -0.0, 1e-40]])
    with np.errstate(all="ignore"):
        want = x.astype(to)
    for make in LAYOUTS.values():
        got = make(x).astype(dtype_of(to))
        assert_same(got, want)
        assert_same(tp.astype(make(x), dtype_of(to)), want)
    n = draw(rng, (5000,), dtype, 0, 100)
    assert_same(tp.tensor(n).astype(dtype_of(to)), n.astype(to))
    t = tp.tensor(x)
    c = t.astype(dtype_of(to))
    c[...] = 0
    assert_same(t, x)


def test_astype_to_bool_and_from_bool():
    for dtype in (*INTS, *FLOATS):
        assert host(tp.tensor(np.array([0, 1, 2], dtype)).astype(tp.bool)).tolist() == [False, True, True]
    assert host(tp.tensor([0.5, NAN, -0.0, 1e-40, INF]).astype(tp.bool)).tolist() == [True, True, False, True, True]
    assert_same(tp.tensor([-1.9, 1.9, -0.5]).astype(tp.int32), np.array([-1, 1, 0], "int32"))


def test_float_to_int_out_of_range_is_a_value_not_a_crash():
    for to, dtype in itertools.product(INTS, FLOATS):
        x = np.array([NAN, INF, -INF, 1e30, -1e30, 300.5, -1.0] * 40, dtype)
        got = host(tp.tensor(x).astype(dtype_of(to)))
        assert got.dtype == to
        one = [host(tp.tensor(v).astype(dtype_of(to))).item() for v in x[:7]]
        assert got[:7].tolist() == got[-7:].tolist() == one, "the same value at every length"


def test_astype_gradients():
    for dtype, to in itertools.product(FLOATS, repeat=2):
        x = draw(rng_for(dtype), (2, 3), dtype)
        for create_graph in (False, True):
            (g,) = gradients(lambda t, to=to: tp.square(t.astype(dtype_of(to))), x, create_graph=create_graph)
            assert g.dtype == dtype
            close(g, 2 * x, 1e-6)
    check_vjp(lambda t: tp.astype(t * t, tp.float64), draw(rng_for("x"), (3,)))
    assert not leaves(np.ones(2))[0].astype(tp.int32).requires_grad
    x = leaves(np.ones(2, "float32"))[0]
    tp.sum(x.astype(tp.float64) * 1e-60).backward()
    assert x.grad.tolist() == [0, 0], "cast down: rounded, not refused"


# ---- gradients have the dtype of their leaf ----


@pytest.mark.parametrize("name", ("add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "smul"))
def test_pytorch_94086_mixed_dtypes_in_backward(name):
    f = getattr(tp, name)
    for dtypes, create_graph in itertools.product((("float32", "float64"), ("float64", "float32")), (False, True)):
        arrays = [np.array([1.5, 2], dtypes[0]), np.array([[0.5], [3]], dtypes[1])]
        got = gradients(f, *arrays, create_graph=create_graph)
        want = gradients(f, *(a.astype(float) for a in arrays))
        assert [str(g.dtype) for g in got] == list(dtypes)
        for g, w, a in zip(got, want, arrays, strict=True):
            assert g.shape == a.shape
            close(g, w.astype(g.dtype), 1e-6)
    for other in ("int32", "int64", "uint8", "bool"):
        (g, none) = gradients(f, np.array([1.5, 2], "float32"), np.array([1, 1], other))
        assert g.dtype == np.float32 and none is None


def test_pytorch_94086_the_stated_case():
    x, y = leaves(np.array(3, "float32"), np.array(0.1))
    loss = x * y
    assert name_of(loss) == "float64"
    loss.backward()
    assert (name_of(x.grad), name_of(y.grad), x.grad.item(), y.grad.item()) == (
        "float32",
        "float64",
        float(np.float32(0.1)),
        3.0,
    )
    assert_gradients(
        lambda a, b: tp.where(tp.tensor([True, False]), a, b), [np.ones(2, "float32"), np.ones(2)], [1, 0], [0, 1]
    )


def test_a_leaf_used_in_two_dtypes_adds_up_in_its_own():
    x = leaves(np.array([1.0, 2], "float32"))[0]
    y = tp.sum(x * tp.tensor(np.array([0.5, 0.25]))) + tp.sum(x * x)
    y.backward()
    assert_same(x.grad, np.array([2.5, 4.25], "float32"))


def test_python_scalars_keep_float32_gradients():
    x = np.array([1.0, 2], "float32")
    for f, want in (
        (lambda t: t * 0.5 + 1, 0.5),
        (lambda t: 1 / t, -1 / x**2),
        (lambda t: 2.0 - t, -1),
        (lambda t: t**2, 2 * x),
        (lambda t: tp.maximum(t, 1.5) * True, [0, 1]),
        (lambda t: np.float32(3) * t, 3),
    ):
        assert_gradients(f, [x], want)
    (g,) = gradients(lambda t: np.float64(3) * t, x)
    assert_same(g, np.array([3, 3], "float32"))


# ---- in-place operators ----

IN_PLACE = {"+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv}


@pytest.mark.parametrize("symbol", IN_PLACE)
@pytest.mark.parametrize("dtype", (*INTS, *FLOATS))
def test_in_place_operators_keep_object_and_dtype(dtype, symbol):
    f, x = IN_PLACE[symbol], draw(rng_for(dtype), (2, 3), dtype, 1, 9)
    for other in (
        2,
        True,
        np.full(3, 2, dtype),
        tp.full((2, 1), 2, dtype=dtype_of(dtype)),
        np.float32(2) if dtype in FLOATS else 2,
    ):
        t = tp.tensor(x)
        alias, holder = t, t[...]
        if symbol == "/=" and dtype in INTS:
            with pytest.raises(TypeError, match=dtype):
                f(t, other)
            assert_same(t, x)
            continue
        t = f(t, other)
        assert t is alias
        assert_same(t, f(x.copy(), np.asarray(host(other)).astype(dtype)))
        assert_same(holder, x)


def test_in_place_operators_never_change_the_dtype():
    t = tp.ones((2,), dtype=tp.float32)
    t += tp.full((2,), 0.1, dtype=tp.float64)
    t *= np.float64(2)
    assert name_of(t) == "float32"
    close(t, np.full(2, 2.2, "float32"), 1e-6)
    i = tp.ones((2,), dtype=tp.int32)
    i += tp.tensor([2, 3])
    assert_same(i, np.array([3, 4], "int32"))
    for act in (lambda: operator.iadd(i, 1.5), lambda: operator.imul(i, tp.ones((2,)))):
        with pytest.raises(TypeError, match="int32"):
            act()
    assert_same(i, np.array([3, 4], "int32"))


NARROW = [  # dtype of the tensor, operands that fit, operands that do not
    ("bool", [True, np.True_, [True]], [1, np.int64(1), tp.tensor([2]), np.array([1], "uint8")]),
    (
        "uint8",
        [3, True, tp.tensor([3], dtype=tp.uint8)],
        [300, -1, np.int64(3), tp.tensor([300]), np.array([3], "int32")],
    ),
]


@pytest.mark.parametrize(("dtype", "fit", "others"), NARROW)
def test_in_place_operators_do_not_narrow_to_bool_or_uint8(dtype, fit, others):
    t = tp.ones((1,), dtype=dtype)
    for act in (operator.iadd, operator.imul, tp.Tensor.assign_add):
        for x in others:
            with pytest.raises(tp.TapeflowError, match=dtype):
                act(t, x)
            assert_same(t, np.ones(1, dtype))
        for x in fit:
            a = np.ones(1, dtype)
            b = tp.tensor(a)
            act(b, tp.tensor(x) if isinstance(x, list) else x)
            assert_same(b, a * np.asarray(host(x), dtype) if act is operator.imul else a + np.asarray(host(x), dtype))


@pytest.mark.parametrize("symbol", IN_PLACE)
def test_in_place_operators_are_recorded(symbol):
    f = IN_PLACE[symbol]

    def in_place(a, b):
        y = a * 1
        y = f(y, b)
        y = f(y, y * 1 + 2)
        return y * y

    def plain(a, b):
        op = {"+=": operator.add, "-=": operator.sub, "*=": operator.mul, "/=": operator.truediv}[symbol]
        y = op(a * 1, b)
        y = op(y, y * 1 + 2)
        return y * y

    a, b = draw(rng_for("a"), (2, 3), low=1, high=2), draw(rng_for("b"), (3,), low=1, high=2)
    for got, want in zip(gradients(in_place, a, b), gradients(plain, a, b), strict=True):
        assert_same(got, want)
    check_vjp(in_place, a, b, label=symbol)
    x = leaves(a)[0]
    y = x * 2
    f(y, y)
    tp.sum(y).backward()
    want = {"+=": 4, "-=": 0, "*=": 8 * a, "/=": 0}[symbol]
    close(x.grad, np.broadcast_to(want, a.shape), 1e-12, 1e-12)


def test_assign_and_zero():
    t = tp.tensor([1.0, 2.0])
    keep = t
    t.assign(tp.tensor([3.0, 4.0]))
    t.assign_add(1.0)
    t.assign_sub(np.array([1.0, 2.0]))
    assert t is keep and t.tolist() == [3, 3] and name_of(t) == "float32"
    t.zero_()
    assert t.tolist() == [0, 0]
    with pytest.raises(ValueError):
        t.assign(tp.ones((3,)))
