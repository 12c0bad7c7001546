"""reshape, permute_dims, broadcast_to, expand_dims, squeeze, concat, stack, T and mT: values, gradients, odd layouts;
broadcasting of every binary operator and the way its gradients are summed back; accumulation in shared values."""

import itertools
import math

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    LAYOUTS,
    assert_gradients,
    assert_same,
    check_fused,
    check_vjp,
    close,
    draw,
    dtype_of,
    gradients,
    host,
    leaves,
    name_of,
    rng_for,
    stretched,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tapeflow as tp

MOVES = [  # label, tapeflow, NumPy, shapes of the operands
    ("reshape", lambda x: tp.reshape(x, (3, 4)), lambda x: x.reshape(3, 4), [(2, 6)]),
    ("reshape to 1-D", lambda x: tp.reshape(x, (-1,)), lambda x: x.reshape(-1), [(2, 3, 2)]),
    ("reshape infers", lambda x: tp.reshape(x, (2, -1, 2)), lambda x: x.reshape(2, -1, 2), [(4, 3)]),
    ("reshape 0-d", lambda x: tp.reshape(x, (1, 1)), lambda x: x.reshape(1, 1), [()]),
    ("reshape to 0-d", lambda x: tp.reshape(x, ()), lambda x: x.reshape(()), [(1, 1)]),
    ("reshape empty", lambda x: tp.reshape(x, (0, 5)), lambda x: x.reshape(0, 5), [(3, 0)]),
    ("method", lambda x: x.reshape(6, 2), lambda x: x.reshape(6, 2), [(3, 4)]),
    ("method tuple", lambda x: x.reshape((6, 2)), lambda x: x.reshape(6, 2), [(3, 4)]),
    ("permute", lambda x: tp.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), [(2, 3, 4)]),
    ("permute negative", lambda x: tp.permute_dims(x, (-1, 0, -2)), lambda x: x.transpose(2, 0, 1), [(2, 3, 4)]),
    ("permute 0-d", lambda x: tp.permute_dims(x, ()), lambda x: x, [()]),
    ("permute empty", lambda x: tp.permute_dims(x, (1, 0)), lambda x: x.T, [(0, 4)]),
    ("T", lambda x: x.T, lambda x: x.T, [(2, 3)]),
    ("mT", lambda x: x.mT, lambda x: x.swapaxes(-1, -2), [(2, 3, 4)]),
    ("mT matrix", lambda x: x.mT, lambda x: x.T, [(3, 4)]),
    ("broadcast", lambda x: tp.broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), [(3, 1)]),
    ("broadcast 0-d", lambda x: tp.broadcast_to(x, (2, 3)), lambda x: np.broadcast_to(x, (2, 3)), [()]),
    ("broadcast same", lambda x: tp.broadcast_to(x, (2, 3)), lambda x: x, [(2, 3)]),
    ("broadcast to none", lambda x: tp.broadcast_to(x, (0, 3)), lambda x: np.broadcast_to(x, (0, 3)), [(1, 3)]),
    ("expand", lambda x: tp.expand_dims(x, axis=1), lambda x: x[:, None], [(2, 3)]),
    ("expand first", lambda x: tp.expand_dims(x, axis=0), lambda x: x[None], [(2,)]),
    ("expand last", lambda x: tp.expand_dims(x, axis=-1), lambda x: x[..., None], [(2, 3)]),
    ("expand 0-d", lambda x: tp.expand_dims(x, axis=0), lambda x: x[None], [()]),
    ("squeeze", lambda x: tp.squeeze(x, axis=1), lambda x: x.squeeze(1), [(2, 1, 3)]),
    ("squeeze several", lambda x: tp.squeeze(x, axis=(0, -1)), lambda x: x.squeeze((0, -1)), [(1, 3, 1)]),
    ("squeeze to 0-d", lambda x: tp.squeeze(x, axis=(0, 1)), lambda x: x.squeeze(), [(1, 1)]),
    ("concat", lambda *x: tp.concat(x), lambda *x: np.concatenate(x), [(2, 3), (1, 3), (4, 3)]),
    ("concat last", lambda *x: tp.concat(x, axis=-1), lambda *x: np.concatenate(x, -1), [(2, 1), (2, 3)]),
    ("concat empty", lambda *x: tp.concat(x, axis=1), lambda *x: np.concatenate(x, 1), [(2, 0), (2, 3), (2, 0)]),
    ("concat one", lambda x: tp.concat([x]), lambda x: x, [(3,)]),
    ("concat middle", lambda *x: tp.concat(x, axis=1), lambda *x: np.concatenate(x, 1), [(2, 1, 3), (2, 2, 3)]),
    ("concat many", lambda *x: tp.concat(list(x)), lambda *x: np.concatenate(x), [(2,), (1,), (3,), (1,), (2,)]),
    ("stack", lambda *x: tp.stack(x), lambda *x: np.stack(x), [(2, 3), (2, 3)]),
    ("stack last", lambda *x: tp.stack(x, axis=-1), lambda *x: np.stack(x, -1), [(2, 3)] * 3),
    ("stack middle", lambda *x: tp.stack(x, axis=1), lambda *x: np.stack(x, 1), [(2, 3)] * 4),
    ("stack 0-d", lambda *x: tp.stack(x), lambda *x: np.stack(x), [()] * 5),
    ("stack empty", lambda *x: tp.stack(x, axis=2), lambda *x: np.stack(x, 2), [(2, 0)] * 2),
    ("chain", lambda x: tp.reshape(x.T[::-1], (4, 3)).T, lambda x: x.T[::-1].reshape(4, 3).T, [(3, 4)]),
]
moves = pytest.mark.parametrize("label,f,reference,shapes", MOVES, ids=[m[0] for m in MOVES])


@pytest.mark.parametrize("dtype", DTYPES)
@moves
def test_values(label, f, reference, shapes, dtype):
    arrays = [draw(rng_for(label, i), s, dtype, -9, 9) for i, s in enumerate(shapes)]
    want = reference(*arrays)
    for layout, make in LAYOUTS.items():
        assert_same(f(*map(make, arrays)), want, label=layout)


@moves
def test_gradients(label, f, reference, shapes):
    arrays = [draw(rng_for(label, i), s) for i, s in enumerate(shapes)]
    check_vjp(f, *arrays, label=label)
    w = draw(rng_for("seed", label), reference(*arrays).shape)
    for make in LAYOUTS.values():
        held = [make(a).requires_grad_() for a in arrays]
        f(*held).backward(tp.tensor(w))
        for t, g in zip(held, gradients(f, *arrays, seed=w), strict=True):
            assert_same(t.grad, g)


@moves
def test_the_same_tensor_in_every_place(label, f, reference, shapes):
    if len(set(shapes)) == 1 and len(shapes) > 1:
        x = draw(rng_for(label), shapes[0])
        check_vjp(lambda t: f(*[t] * len(shapes)), x, label=label)


SAME_VALUES = {  # every way to ask for what is there already, and every movement
    "astype": lambda t: t.astype(t.dtype), "reshape": lambda t: t.reshape(t.shape), "+": lambda t: +t,
    "[...]": lambda t: t[...], "[:]": lambda t: t[:], "broadcast_to": lambda t: tp.broadcast_to(t, t.shape),
    "clip": lambda t: tp.clip(t), "permute": lambda t: tp.permute_dims(t, (0, 1)),
    "squeeze": lambda t: tp.squeeze(t, axis=()), "sum": lambda t: tp.sum(t, axis=()),
    "mean": lambda t: tp.mean(t, axis=()), "max": lambda t: tp.max(t, axis=()), "prod": lambda t: tp.prod(t, axis=()),
    "concat": lambda t: tp.concat([t]), "detach": lambda t: t.detach(), "clone": lambda t: t.clone(),
    "to": lambda t: t.to("cpu"), "stop": tp.stop_gradient, "tensor": lambda t: tp.tensor(t), "T": lambda t: t.T,
    "reshape 1-D": lambda t: t.reshape(-1), "rows": lambda t: t[1:],
    "expand": lambda t: tp.squeeze(tp.expand_dims(t, axis=0), axis=0), "stack": lambda t: tp.stack([t])[0],
    "wider": lambda t: tp.broadcast_to(t, (2, 2, 3)), "take": lambda t: tp.take(t, tp.arange(2), axis=0),
    "T.T": lambda t: t.T.T,
}  # fmt: skip


@pytest.mark.parametrize("make", SAME_VALUES.values(), ids=SAME_VALUES)
def test_no_movement_makes_a_view(make):
    for recorded in (False, True):
        t = tp.tensor([[1.0, 2, 3], [4, 5, 6]], requires_grad=recorded) * 1
        view = make(t)
        before, kept = host(view).copy(), host(t).copy()
        view[...] = 0.0
        assert view is not t
        assert_same(t, kept)
        view = make(t)
        t[...] = -1.0
        assert_same(view, before)
        view = make(t)
        t += 1.0
        assert_same(view, np.full_like(before, -1))


@pytest.mark.parametrize("name", [n for n in SAME_VALUES if n not in ("detach", "stop", "tensor", "to")])
def test_a_value_made_of_a_leaf_is_not_a_leaf(name):
    """It can be written, keeps its gradient when asked to, and passes it on."""

    def write(t):
        y = SAME_VALUES[name](t)
        assert y.requires_grad
        assert not y.is_leaf
        y.retain_grad()
        kept.append(y)
        y = y * 1
        y *= 3.0
        return y

    def write_itself(t):
        y = SAME_VALUES[name](t)
        y *= 3.0
        return y

    kept, x = [], np.arange(6.0).reshape(2, 3)
    want = gradients(lambda t: SAME_VALUES[name](t) * 3.0, x)[0]
    assert_same(gradients(write, x)[0], want)
    assert_same(kept[0].grad, np.full(kept[0].shape, 3.0))
    assert_same(gradients(write_itself, x)[0], want)


def test_writing_to_a_stretched_tensor_writes_one_element():
    t = tp.broadcast_to(tp.tensor([1.0, 2.0]), (3, 2))
    t[0, 0] = 9.0
    assert t.tolist() == [[9, 2], [1, 2], [1, 2]]
    t += 1
    assert t.tolist() == [[10, 3], [2, 3], [2, 3]]


@pytest.mark.parametrize(
    "mixed", [("int32", "float32"), ("float32", "float64"), ("bool", "uint8"), ("int64", "float32")]
)
def test_concat_and_stack_promote(mixed):
    a, b = (np.ones((2,), d) for d in mixed)
    for join in (tp.concat, tp.stack):
        y = join([tp.tensor(a), tp.tensor(b)])
        assert name_of(y) == mixed[1] and host(y).ravel().tolist() == [1] * 4


def test_concat_gradient_has_each_operands_dtype():
    a, b = leaves(np.ones(2, "float32"), np.ones(2, "float64"))
    tp.sum(tp.concat([a, b]) * tp.tensor([1.0, 2, 3, 4])).backward()
    assert (name_of(a.grad), name_of(b.grad)) == ("float32", "float64")
    assert a.grad.tolist() == [1, 2] and b.grad.tolist() == [3, 4]


# ---- broadcasting ----

BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "smul", "pow")
SHAPES = [
    (),
    (1,),
    (3,),
    (1, 3),
    (2, 1),
    (2, 3),
    (4, 1, 3),
    (4, 2, 1),
    (1, 1, 1),
    (4, 2, 3),
    (0,),
    (2, 0),
    (1, 0),
    (0, 3),
]


def compatible(*shapes):
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


PAIRS = [p for p in itertools.product(SHAPES, repeat=2) if compatible(*p) is not None]


def naive_unbroadcast(g, shape):
    """Summed back over the axes that were stretched, in a wide type."""
    g = np.asarray(g, np.longdouble).sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1), keepdims=True).reshape(shape)


@pytest.mark.parametrize("name", BINARY)
def test_gradients_of_every_pair_of_shapes(name):
    f = getattr(tp, name)
    for left, right in PAIRS:
        a, b = (draw(rng_for(name, s, i), s, low=0.5, high=2) for i, s in enumerate((left, right)))
        shape = compatible(left, right)
        w = draw(rng_for("w", shape), shape)
        full = gradients(f, np.broadcast_to(a, shape), np.broadcast_to(b, shape), seed=w)
        got = gradients(f, a, b, seed=w)
        for g, whole, x in zip(got, full, (a, b), strict=True):
            assert (g.shape, g.dtype) == (x.shape, x.dtype), (name, left, right)
            close(g, naive_unbroadcast(whole, x.shape).astype(float), 1e-12, 1e-12, (name, left, right))
        check_fused(f, a, b, seed=w, label=f"{name} {left} {right}")


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("left,right", [((3,), (2, 3)), ((2, 1), (1, 3)), ((), (2, 2)), ((2, 1, 2), (2, 1))])
def test_second_order_of_broadcast_operands(name, left, right):
    rng = rng_for(name, left, right)
    a, b = rng.uniform(0.5, 1, left), rng.uniform(1.2, 2, right)
    check_vjp(getattr(tp, name), a, b, label=f"{name} {left} {right}")


@given(
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_side=4, max_dims=4),
    seed=st.integers(0, 2**32 - 1),
    layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 3),
)
def test_three_operands_of_drawn_shapes(shapes, seed, layouts):
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(0.5, 1, s) for s in shapes.input_shapes]
    held = [LAYOUTS[layout](a).requires_grad_() for a, layout in zip(arrays, layouts, strict=True)]
    a, b, c = held
    y = a * b + c * a
    assert_same(y, arrays[0] * arrays[1] + arrays[2] * arrays[0])
    w = rng.uniform(-1, 1, shapes.result_shape)
    y.backward(tp.tensor(w))
    A, B, C = arrays
    for t, whole in zip(held, (w * (B + C), w * A, w * A), strict=True):
        whole = np.broadcast_to(whole, shapes.result_shape)
        close(t.grad, naive_unbroadcast(whole, t.shape).astype(float), 1e-12, 1e-12)


def test_deep_broadcast_and_many_axes():
    x = np.arange(2.0).reshape((1,) * 7 + (2,))
    y = np.arange(3.0).reshape((3,) + (1,) * 7)
    assert_same(tp.tensor(x) * tp.tensor(y), x * y)
    assert_gradients(tp.multiply, [x, y], 3.0, 1.0)
    deep = (2,) + (1,) * 30 + (3,)
    assert (tp.ones(deep) + tp.ones((3,))).shape == deep


def test_unbroadcast_of_a_long_axis_is_exact():
    a, b = leaves(np.ones((), "float32"), np.ones((4_000_000, 2), "float32"))
    tp.sum(a * b).backward()
    assert a.grad.item() == 8_000_000
    row = tp.tensor(np.ones((2,), "float32"), requires_grad=True)
    tp.sum(row * b.detach()).backward()
    assert row.grad.tolist() == [4_000_000, 4_000_000]


def test_stride_zero_operands_and_gradients():
    row = draw(rng_for("row"), (5,), "float32")
    x = draw(rng_for("x"), (300, 5), "float32")
    assert_same(stretched(row, 300) * tp.tensor(x), np.tile(row, (300, 1)) * x)
    (t,) = leaves(row)
    tp.sum(tp.broadcast_to(t, (300, 5)) * tp.tensor(x)).backward()
    close(t.grad, x.astype(float).sum(0).astype("float32"), 1e-5, 1e-5)


# ---- faults that other engines had ----


def test_pytorch_1787_broadcast_operand_gets_its_own_shape_back():
    assert_gradients(tp.multiply, [np.array([2.0]), np.array([[1.0, 2, 3], [4, 5, 6]])], [21], 2.0)
    assert_gradients(tp.multiply, [np.array([[1.0], [2], [3]]), np.array([[4.0, 5]])], [[9], [9], [9]], [[6, 6]])


@pytest.mark.parametrize("name", BINARY)
def test_pytorch_15223_zero_size_operands_have_gradients(name):
    f = getattr(tp, name)
    for dtype in FLOATS:
        a, b = np.ones((3, 0), dtype), np.ones((3, 1), dtype)
        assert_gradients(f, [a, b], np.zeros((3, 0)), np.zeros((3, 1)))
        assert_gradients(f, [b, a], np.zeros((3, 1)), np.zeros((3, 0)))
        assert_gradients(lambda x, y: tp.sum(f(x, y), axis=1), [a, b], np.zeros((3, 0)), np.zeros((3, 1)))
    assert f(tp.zeros((2, 0)), tp.zeros((2, 0))).shape == (2, 0)


def test_micrograd_2_reused_intermediate_waits_for_all_consumers():
    def f(x, c):
        u = x * c
        return x * u + u * u

    assert_gradients(f, [np.array(3.0), np.array(2.0)], 36, 45)
    assert f(tp.tensor(3.0), tp.tensor(2.0)).item() == 54


def test_tinygrad_9597_leaves_of_equal_value_stay_apart():
    assert_gradients(lambda a, b: 2 * a + 3 * b, [np.array(7.0), np.array(7.0)], 2, 3)
    assert_gradients(lambda a, b: tp.sum(a * a) + tp.sum(b), [np.ones(3), np.ones(3)], 2, 1)


def test_micrograd_53_second_backward_adds_to_the_leaves_only():
    a, b, d = (tp.tensor(v, requires_grad=True) for v in (4.0, 1.0, 3.0))
    loss = (a + b) * d
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    assert [t.grad.item() for t in (a, b, d)] == [6, 6, 10]
    for t in (a, b, d):
        t.zero_grad()
    loss.backward()
    assert [t.grad.item() for t in (a, b, d)] == [3, 3, 5]


def test_oneflow_9497_gradients_share_no_buffer():
    x, y = leaves(np.ones(3), np.ones(3))
    z = x + y
    (tp.sum(z) + tp.sum(3 * x)).backward()
    assert x.grad.tolist() == [4, 4, 4] and y.grad.tolist() == [1, 1, 1]
    x.grad[0] = 100.0
    assert y.grad.tolist() == [1, 1, 1]
    seed = tp.ones((3,), dtype=tp.float64)
    (p, q, r) = leaves(np.ones(3), np.ones(3), np.ones(3))
    for t in (p + q, q - r, tp.reshape(r, (3,)) + p[:]):
        t.backward(seed)
    p.grad += 10.0
    q.grad *= 0.0
    assert seed.tolist() == [1, 1, 1]
    assert [t.grad.tolist()[0] for t in (p, q, r)] == [12, 0, 0]


def test_retained_gradients_share_no_buffer():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    parts = [x + 1.0, x.reshape(1, 2), x[:], tp.broadcast_to(x, (2,))]
    for t in parts:
        t.retain_grad()
    total = parts[0] + parts[1].reshape(2) + parts[2] + parts[3]
    tp.sum(total).backward()
    assert all(host(t.grad).ravel().tolist() == [1, 1] for t in parts) and x.grad.tolist() == [4, 4]
    parts[0].grad[0] = 50.0
    assert all(host(t.grad).ravel().tolist() == [1, 1] for t in parts[1:]) and x.grad.tolist() == [4, 4]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_zero_size_moves_through_everything(shape):
    x = tp.zeros(shape, requires_grad=True)
    y = tp.concat([tp.exp(x)[::-1], x * 2], axis=0)
    y = tp.stack([y, y], axis=0).reshape(-1)
    assert y.size == 0
    tp.sum(y).backward()
    assert x.grad.shape == shape


def test_reshape_of_every_factorisation_of_a_transposed_tensor():
    x = np.arange(24.0).reshape(2, 3, 4)
    for axes in itertools.permutations(range(3)):
        moved = tp.permute_dims(tp.tensor(x), axes)
        for a, b in itertools.product((1, 2, 3, 4, 6, 8, 12), repeat=2):
            if 24 % (a * b) == 0:
                shape = (a, b, 24 // (a * b))
                assert_same(tp.reshape(moved, shape), x.transpose(axes).reshape(shape))
    assert math.prod(moved.shape) == 24


@pytest.mark.parametrize("dtype", DTYPES)
def test_iteration_and_rows_are_tensors(dtype):
    x = draw(rng_for(dtype), (3, 2), dtype)
    rows = list(tp.tensor(x).T)
    assert [r.shape for r in rows] == [(3,), (3,)]
    assert_same(rows[1], x[:, 1])
    assert rows[0].dtype == dtype_of(dtype)


def test_axes_that_tell_their_number_differently():
    class Axes(tuple):
        def __iter__(self):
            return iter(())

    class Longer(list):
        def __len__(self):
            return 60

    t = tp.ones((2, 2))
    assert tp.expand_dims(t, Axes((0,) * 60)).shape in ((2, 2), (1,) * 60 + (2, 2))
    assert tp.expand_dims(t, Longer([0])).shape == (1, 2, 2)
