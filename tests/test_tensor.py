"""Tensors by themselves: how they are made, the protocols of Python, NumPy and DLPack, and value semantics.

API.md section 1. What no write may reach is explored at random in test_cow.py; bad calls stand in test_errors.py.
"""

import copy
import gc
import math
import operator
import pickle
import weakref

import numpy as np
import pytest
from helpers import DTYPES, FLOATS, LAYOUTS, assert_same, draw, dtype_of, host, rng_for

import tapeflow as tp

MATRIX = [[1.5, -2.0, 3.0], [0.0, 4.0, -5.0]]


def leaf(data=MATRIX, **options):
    return tp.tensor(data, requires_grad=True, **options)


# ---- making ----

MADE = [
    (2.5, "float32"),
    ([1.0, 2], "float32"),
    (True, "bool"),
    ([[True], [False]], "bool"),
    (3, "int64"),
    ([1, True], "int64"),
    ([], "float32"),
    ([[], []], "float32"),
    ((1.0, (2.0,))[:1], "float32"),
    (range(4), "int64"),
    (np.float64(1.0), "float64"),
    (np.float32(1.0), "float32"),
    (np.int32(1), "int32"),
    (np.bool_(True), "bool"),
    ([np.float64(1.0)], "float64"),
    (np.arange(3, dtype="uint8"), "uint8"),
    ([np.ones(2), np.zeros(2)], "float64"),
    (np.ones((2, 0)), "float64"),
    (np.arange(6.0).reshape(2, 3).T, "float64"),
    (np.arange(4.0)[::-2], "float64"),
    (np.arange(3, dtype=">f8"), "float64"),
]


@pytest.mark.cpu
@pytest.mark.parametrize(("data", "dtype"), MADE, ids=lambda x: type(x).__name__ if not isinstance(x, str) else x)
def test_making_keeps_values_and_picks_the_dtype(data, dtype):
    for make in (tp.tensor, tp.asarray):
        t = make(data)
        assert t.dtype == dtype_of(dtype)
        want = np.asarray(data, dtype)
        assert_same(t, want)
        assert (t.shape, t.ndim, t.size) == (want.shape, want.ndim, want.size)
        assert (type(t.shape), t.requires_grad, t.is_leaf, t.grad) == (tuple, False, True, None)
        assert str(t.device).startswith("cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_asked_dtype_wins(dtype):
    for source in ([0, 1, 2], np.array([0.0, 1.0, 2.0]), tp.tensor([0.0, 1.0, 2.0])):
        assert_same(tp.tensor(source, dtype=dtype_of(dtype)), np.array([0, 1, 2], dtype))


def test_tensor_always_copies():
    a = np.arange(3.0)
    made = [tp.tensor(a), tp.asarray(a), tp.asarray(a, copy=True), tp.tensor(tp.asarray(a, copy=False))]
    a[:] = 9
    for t in made:
        assert_same(t, np.arange(3.0))


@pytest.mark.cpu
def test_copy_false_shares_with_the_owner():
    a = np.arange(6.0).reshape(2, 3)
    for source in (a, a.T, a[:, ::-1], a[:1]):
        t = tp.asarray(source, copy=False)
        source[0, 0] += 10
        assert_same(t, source)
        assert np.shares_memory(t.numpy(), source)
        before = source.copy()
        t += 1.0  # a write of ours copies first: the owner's memory is not ours to change
        assert_same(source, before)
        assert_same(t, before + 1)
    x = tp.tensor([1.0])
    assert_same(tp.asarray(x, copy=False), x)


def test_the_owner_of_shared_memory_is_kept_alive():
    a = np.arange(1000.0)
    t, alive = tp.asarray(a[::2], copy=False), weakref.ref(a)
    del a
    gc.collect()
    assert_same(t, np.arange(0.0, 1000.0, 2))
    del t
    gc.collect()
    assert alive() is None


def test_asarray_of_tensors_stacks_and_is_recorded():
    x, y = leaf([1.0, 2.0]), leaf(3.0)
    t = tp.asarray([x * x, [y, 2.0]])
    assert_same(t, np.array([[1, 4], [3, 2]], "float32"))
    (t * tp.tensor([[1.0, 10.0], [100.0, 1000.0]])).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([2.0, 40.0], 100.0)
    assert tp.asarray([tp.tensor(1, dtype=tp.int32), 2]).dtype == tp.int32
    assert tp.tensor([[tp.tensor(1.0), tp.tensor(2.0)]]).shape == (1, 2)


def test_asarray_of_a_recorded_tensor_stays_recorded():
    x = leaf()
    tp.asarray(x).sum().backward()
    assert_same(x.grad, np.ones((2, 3), "float32"))
    assert not tp.tensor(x).requires_grad and tp.tensor(x).is_leaf


CREATED = [
    (tp.zeros, (3,), np.zeros(3)),
    (tp.zeros, (((2, 0)),), np.zeros((2, 0))),
    (tp.ones, ((2, 3),), np.ones((2, 3))),
    (tp.full, ((2,), 2.5), np.full(2, 2.5)),
    (tp.eye, (2, 3), np.eye(2, 3)),
    (tp.linspace, (0.0, 1.0, 5), np.linspace(0, 1, 5)),
    (tp.arange, (5.0,), np.arange(5.0)),
    (tp.arange, (1.0, 2.0, 0.25), np.arange(1.0, 2.0, 0.25)),
]


@pytest.mark.parametrize(("make", "args", "want"), CREATED, ids=lambda x: getattr(x, "__name__", ""))
def test_creation(make, args, want):
    assert_same(make(*args), want.astype("float32"))
    assert_same(make(*args, dtype=tp.float64), want)


def test_creation_of_integers_and_by_likeness():
    assert_same(tp.arange(2, 11, 3), np.arange(2, 11, 3))
    assert_same(tp.arange(3, 0, -1), np.arange(3, 0, -1))
    assert_same(tp.full((2,), 7), np.full(2, 7))
    assert_same(tp.full((2,), True), np.full(2, True))
    x = tp.tensor(np.arange(9).reshape(3, 3))
    assert_same(tp.tril(x), np.tril(x.numpy()))
    assert_same(tp.triu(x, k=1), np.triu(x.numpy(), 1))
    assert_same(tp.zeros_like(x), np.zeros((3, 3), int))
    assert_same(tp.ones_like(x, dtype=tp.float64), np.ones((3, 3)))
    assert_same(tp.full_like(x, 4), np.full((3, 3), 4))
    assert (tp.empty((2, 3)).shape, tp.empty_like(x).dtype) == ((2, 3), tp.int64)
    for got, want in zip(tp.meshgrid(tp.arange(2), tp.arange(3)), np.meshgrid(range(2), range(3)), strict=True):
        assert_same(got, want)


def test_default_dtype():
    assert tp.get_default_dtype() == tp.float32
    tp.set_default_dtype(tp.float64)
    try:
        made = tp.tensor(1.0), tp.zeros(2), tp.tensor([1, 2]) / 2, tp.exp(tp.tensor(1)), tp.tensor([1]) * 2.0
        assert [t.dtype for t in made] == [tp.float64] * 5
        assert (tp.tensor(1.0, dtype=tp.float32) * 2.0).dtype == tp.float32
    finally:
        tp.set_default_dtype(tp.float32)
    assert tp.tensor(1.0).dtype == tp.float32


PROMOTED = [
    ("float32", 2.0, "float32"),
    ("float32", 2, "float32"),
    ("float64", True, "float64"),
    ("int32", 2, "int32"),
    ("uint8", True, "uint8"),
    ("bool", 2, "int64"),
    ("int32", 2.0, "float32"),
    ("bool", True, "bool"),
    ("float32", "float64", "float64"),
    ("int64", "float32", "float32"),
    ("int64", "int32", "int64"),
    ("uint8", "int32", "int32"),
    ("bool", "uint8", "uint8"),
    ("float32", np.float64(2), "float64"),
    ("float64", np.float32(2), "float64"),
]


@pytest.mark.parametrize(("a", "b", "want"), PROMOTED, ids=str)
def test_promotion(a, b, want):
    x = tp.ones((2,), dtype=dtype_of(a))
    other = tp.ones((2,), dtype=dtype_of(b)) if isinstance(b, str) else b
    assert (x + other).dtype == (other + x).dtype == dtype_of(want)
    assert tp.result_type(x, other) == tp.result_type(other, x) == dtype_of(want)


# ---- looks ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalar_protocols(dtype):
    t, v = tp.tensor(1, dtype=dtype_of(dtype)), np.ones((), dtype).item()
    assert (t.item(), t.tolist(), float(t), int(t), bool(t)) == (v, v, 1.0, 1, True)
    assert type(t.item()) is type(v)
    assert tp.tensor([[1]], dtype=dtype_of(dtype)).item() == v
    if dtype not in ("uint8", "int32", "int64"):
        with pytest.raises(TypeError):
            operator.index(t)
    else:
        assert operator.index(t) == 1 and [10, 20][t] == 20


def test_truth_of_one_value():
    values = [0.0, -0.0, 1e-45, math.nan, math.inf]
    assert [bool(tp.tensor(v)) for v in values] == [False, False, True, True, True]


def test_format():
    t = tp.tensor(3.14159, dtype=tp.float64)
    assert f"{t:.3f} {t:8.2e}" == "3.142 3.14e+00"
    assert f"{tp.tensor(42):05d}" == "00042"
    assert f"{tp.tensor([1.5])}" == str(tp.tensor([1.5]))


def test_repr_shows_values_dtype_and_recording_and_stays_short():
    text = repr(tp.tensor([1.5, -2.0], dtype=tp.float64))
    assert "1.5" in text and "-2" in text and "float64" in text and "requires_grad" not in text
    assert "requires_grad=True" in repr(leaf())
    assert repr(leaf() * 2)
    assert len(repr(tp.zeros((1000, 1000)))) < 2000
    assert repr(tp.zeros((2, 0))) and str(tp.tensor(True)) and repr(tp.tensor([math.nan]))


PRINTED = [
    (),
    (1,),
    (3,),
    (0,),
    (0, 3),
    (2, 0, 3),
    (2, 3),
    (1, 1, 1),
    (2, 3, 4),
    (30,),
    (1500,),
    (5, 1200),
    (2, 1, 2, 2),
]


@pytest.mark.cpu
@pytest.mark.parametrize("shape", PRINTED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_repr_is_numpys(dtype, shape):
    rng = rng_for(dtype, shape)
    default = tp.get_default_dtype()
    tp.set_default_dtype("float64")  # NumPy's own
    try:
        for scale in (1.0, 1e-6, 1e9, 0.0) if dtype in FLOATS else (1,):
            x = np.asarray(draw(rng, shape, dtype) * scale).astype(dtype)
            if dtype in FLOATS and x.size > 2:
                x.flat[:2] = np.inf, np.nan
            with np.printoptions(linewidth=74):  # "tensor(" is one longer than "array("
                first, *lines = np.array_repr(x).replace("array(", "tensor(").split("\n")
            assert repr(tp.tensor(x)) == "\n".join([first, *(line and " " + line for line in lines)])
    finally:
        tp.set_default_dtype(default)


def test_len_and_iteration():
    t = tp.tensor(MATRIX)
    assert len(t) == 2 and [row.tolist() for row in t] == MATRIX
    a, (b, *rest) = t
    assert a.tolist() == MATRIX[0] and b.item() == 0.0 and len(rest) == 2
    x = leaf([2.0, 3.0])
    a, b = x
    (a * a + 5 * b).backward()
    assert x.grad.tolist() == [4.0, 5.0]
    assert list(tp.zeros((0, 3))) == []


def test_hash_is_identity_and_equality_is_elementwise():
    a, b = tp.tensor([1.0]), tp.tensor([1.0])
    assert hash(a) == hash(a) and {a: 1, b: 2}[a] == 1 and len({a, b, a}) == 2
    assert (a == b).tolist() == [True] and (a != b).tolist() == [False]
    before = hash(a)
    a += 1.0
    assert hash(a) == before


def test_contains():
    t = tp.tensor(MATRIX)
    assert 1.5 in t and np.float32(4.0) in t and tp.tensor(3.0) in t and 7 not in t
    assert all(x not in t for x in (None, "a", object()))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_looks_in_every_layout(layout, dtype):
    a = (np.arange(6).reshape(2, 3) % 4).astype(dtype)
    t = LAYOUTS[layout](a)
    assert t.tolist() == a.tolist()
    assert_same(t.numpy(), a)
    assert_same(np.asarray(t), a)
    assert_same(t.numpy(copy=True), a)
    assert_same(pickle.loads(pickle.dumps(t)), a)
    assert (t.T.tolist(), t.mT.tolist()) == (a.T.tolist(), a.T.tolist())


@pytest.mark.cpu
def test_numpy_is_read_only_and_does_not_copy():
    t = tp.tensor(MATRIX)
    a = t.numpy()
    assert np.shares_memory(a, t.numpy()) and np.shares_memory(a, t.T.numpy()) and not a.flags.writeable
    with pytest.raises(ValueError):
        a[0, 0] = 1
    with pytest.raises(ValueError):
        a.flags.writeable = True
    mine = t.numpy(copy=True)
    mine[...] = 7
    assert t.tolist() == MATRIX
    t += 1.0
    assert a.tolist() == MATRIX  # an export is an owner
    del t
    gc.collect()
    assert a.tolist() == MATRIX


def test_looks_at_a_recorded_value_are_allowed():
    x = leaf()
    y = x * 2
    for t in (x, y):
        assert t.numpy().shape == (2, 3) and t.tolist() and float(t[0, 0]) and f"{t[0, 0]:.1f}" and str(t)
    y.sum().backward()
    assert_same(x.grad, np.full((2, 3), 2, "float32"))


# ---- NumPy ----

TO_NUMPY = {
    "asarray": np.asarray,
    "array": np.array,
    "sort": np.sort,
    "stack": lambda t: np.stack([t, t]),
    "linalg": np.linalg.norm,
    "setitem": lambda t: np.zeros(t.shape).__setitem__(..., t),
    "iadd": lambda t: operator.iadd(np.zeros(t.shape), t),
}


@pytest.mark.parametrize("name", sorted(TO_NUMPY))
def test_a_recorded_value_never_becomes_a_silent_constant(name):
    x = leaf()
    watched = tp.tensor(MATRIX)
    for t in (x, x * 2, x.T):
        with pytest.raises(tp.TapeError, match=r"\.detach\(\)|\.numpy\(\)"):
            TO_NUMPY[name](t)
    with tp.Tape(watch=[watched]), pytest.raises(tp.TapeError, match=r"\.detach\(\)|\.numpy\(\)"):
        TO_NUMPY[name](watched * 2)
    TO_NUMPY[name](x.detach())
    with tp.no_grad():
        TO_NUMPY[name](x)


@pytest.mark.cpu
def test_array_protocol_arguments():
    t = tp.tensor(MATRIX)
    assert np.asarray(t, dtype="float64").dtype == np.float64
    assert np.array(t, copy=True).flags.writeable
    assert np.shares_memory(np.asarray(t), t.numpy())
    with pytest.raises(ValueError):
        np.array(t, dtype="float64", copy=False)
    assert np.median(t) == np.median(MATRIX)


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt, operator.eq]


@pytest.mark.parametrize("f", BINARY, ids=lambda f: f.__name__)
def test_ndarray_with_tensor_is_a_tensor(f):
    a, t = np.array([[1.0, 2.0], [3.0, 4.0]]), tp.tensor([2.0, 3.0], dtype=tp.float64)
    for got, want in ((f(a, t), f(a, t.numpy())), (f(t, a), f(t.numpy(), a)), (f(np.float64(3), t), f(3, t.numpy()))):
        assert isinstance(got, tp.Tensor)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-15)


def test_ndarray_with_a_recorded_tensor_is_recorded():
    x = leaf([1.0, 2.0])
    a = np.array([3.0, 5.0], "float32")
    (a * x + np.float32(2) * x + a @ x).sum().backward()
    assert x.grad.tolist() == [3 + 2 + 6, 5 + 2 + 10]
    x = leaf([1.0, 2.0])
    try:
        y = np.multiply(a, x)  # a tensor, or refused: never a constant
    except tp.TapeError:
        return
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 5.0]


def test_array_namespace():
    t = tp.ones(2)
    assert t.__array_namespace__() is tp
    for name in ("add", "matmul", "permute_dims", "concat", "float32", "bool", "asarray", "from_dlpack", "result_type"):
        assert hasattr(tp, name)


@pytest.mark.cpu
def test_devices():
    t = tp.ones(2)
    assert t.device == tp.device("cpu") and t.to("cpu").device == t.device
    assert tp.zeros(2, device="cpu").device == t.device
    assert str(tp.devices()[0]).find("cpu") >= 0


# ---- DLPack ----


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_out(dtype):
    for a in (np.arange(6).reshape(2, 3) % 2, np.zeros((0, 2)), np.ones(()), np.arange(6).reshape(2, 3).T % 2):
        a = a.astype(dtype)
        t = tp.tensor(a)
        assert t.__dlpack_device__()[0] == 1
        out = np.from_dlpack(t)
        assert_same(out, a)
        assert not a.size or (np.shares_memory(out, t.numpy()) and not out.flags.writeable)
        if dtype != "bool":
            t += t
        else:
            t.zero_()
        assert_same(out, a)


def test_dlpack_in():
    a = np.arange(12.0).reshape(3, 4)
    for source in (a, a.T, a[::2, 1:]):
        t = tp.from_dlpack(source)
        assert_same(t, source)
        source[0, 0] = -1
        assert t[0, 0].item() == -1
        t *= 2.0
        assert source[0, 0] == -1
    t = tp.tensor(MATRIX)
    u = tp.from_dlpack(t)
    u += 1.0
    assert t.tolist() == MATRIX
    alive = weakref.ref(a)
    t = tp.from_dlpack(a)
    del a, source
    gc.collect()
    assert t[2, 3].item() == 11.0
    del t
    gc.collect()
    assert alive() is None


@pytest.mark.cpu
def test_dlpack_capsule_is_freed_unused_and_refused_twice():
    t = tp.tensor(MATRIX)
    capsule = t.__dlpack__()
    del capsule
    holder = type("Once", (), {"__dlpack__": lambda self, **k: capsule, "__dlpack_device__": lambda self: (1, 0)})()
    capsule = t.__dlpack__()
    assert tp.from_dlpack(holder).tolist() == MATRIX
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        tp.from_dlpack(holder)


def test_dlpack_of_a_recorded_value_is_refused():
    with pytest.raises(tp.TapeError, match=r"\.detach\(\)"):
        np.from_dlpack(leaf())


# ---- copies ----

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "clone": lambda t: t.clone(),
    "detach": lambda t: t.detach(),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "tensor": tp.tensor,
    "slice": lambda t: t[:],
    "reshape": lambda t: t.reshape((3, 2)).reshape((2, 3)),
    "transpose": lambda t: t.T.T,
    "astype": lambda t: t.astype(t.dtype),
    "to": lambda t: t.to("cpu") if t.to("cpu") is not t else t.clone(),
    "asarray": lambda t: tp.asarray(t, copy=True),
    "same_reshape": lambda t: tp.reshape(t, t.shape),
    "same_broadcast": lambda t: tp.broadcast_to(t, t.shape),
    "same_order": lambda t: tp.permute_dims(t, (0, 1)),
    "no_axes_summed": lambda t: tp.sum(t, axis=()),
    "no_axes_squeezed": lambda t: tp.squeeze(t, axis=()),
    "one_concatenated": lambda t: tp.concat([t]),
    "no_bounds": tp.clip,
    "no_index": lambda t: t[()],
    "ellipsis": lambda t: t[...],
    "stop_gradient": tp.stop_gradient,
    "first_power": lambda t: t**1,
    "positive": lambda t: +t,
    "whole_triangle": lambda t: tp.tril(t, k=9),
}


@pytest.mark.parametrize("name", sorted(COPIES))
def test_a_copy_and_its_source_are_independent(name):
    for write_copy in (False, True):
        t = tp.tensor(MATRIX)
        c = COPIES[name](t)
        assert c is not t and c.dtype == t.dtype
        written, kept = (c, t) if write_copy else (t, c)
        written[0] = 9.0
        written += 1.0
        assert kept.tolist() == MATRIX
        assert written.tolist() == [[10, 10, 10], [1, 5, -4]]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    for t in (leaf(), tp.tensor(True), tp.zeros((0, 2)), tp.tensor(np.arange(6.0).reshape(2, 3)).T[::-1]):
        back = pickle.loads(pickle.dumps(t, protocol))
        assert_same(back, t)
        assert (back.requires_grad, back.is_leaf) == (t.requires_grad, True)
    x, y = pickle.loads(pickle.dumps((t := leaf(), t), protocol))
    assert x is y


def test_deepcopy_is_a_leaf_of_its_own():
    x = leaf([1.0])
    (x * 3).sum().backward()
    y = copy.deepcopy(x)
    assert y.requires_grad and y.is_leaf
    (y * 5).sum().backward()
    assert x.grad.tolist() == [3.0] and y.grad.tolist() in ([5.0], [8.0])
    a, b = copy.deepcopy([x, x])
    assert a is b


def test_clone_is_recorded_and_detach_is_not():
    x = leaf([2.0])
    (x.clone() * x.detach()).sum().backward()
    assert x.grad.tolist() == [2.0]
    assert x.clone().requires_grad and not x.clone().is_leaf
    assert not x.detach().requires_grad and x.detach().is_leaf


def test_weakref_and_subclass_free_attributes():
    t = tp.ones(2)
    r = weakref.ref(t)
    assert r() is t
    del t
    assert r() is None
    registry = weakref.WeakKeyDictionary()
    t = tp.ones(1)
    registry[t] = 1
    assert registry[t] == 1


# ---- writes ----

X = np.arange(12.0).reshape(3, 4)
WRITES = {
    "iadd": (lambda t: operator.iadd(t, 1.0), X + 1),
    "isub": (lambda t: operator.isub(t, tp.tensor(np.arange(4.0))), X - np.arange(4.0)),
    "imul": (lambda t: operator.imul(t, t), X * X),
    "itruediv": (lambda t: operator.itruediv(t, 2), X / 2),
    "assign": (lambda t: t.assign(tp.tensor(-X)), -X),
    "assign_number": (lambda t: t.assign(0.1), np.full_like(X, 0.1)),
    "assign_array": (lambda t: t.assign(-X), -X),
    "assign_add": (lambda t: t.assign_add(tp.tensor(X)), 2 * X),
    "assign_sub": (lambda t: t.assign_sub(1.0), X - 1),
    "zero": (lambda t: t.zero_(), 0 * X),
    "overlap": (lambda t: t.__setitem__(slice(1, None), t[:-1]), np.concatenate([X[:1], X[:-1]])),
    "reverse": (lambda t: t.__setitem__(slice(None, None, -1), t), X[::-1]),
    "isub_itself": (lambda t: operator.isub(t, t[::-1]), X - X[::-1]),
    "iadd_part_of_itself": (lambda t: operator.iadd(t, t[:1]), X + X[:1]),
    "assign_itself": (lambda t: t.assign(t), X),
    "assign_reversed": (lambda t: t.assign(t[::-1, ::-1]), X[::-1, ::-1]),
    "rows_of_itself": (lambda t: t.__setitem__(slice(None), t[0]), np.stack([X[0]] * 3)),
    "transposed": (lambda t: t.__setitem__((slice(None), slice(0, 3)), t[:, :3].T), np.hstack([X[:, :3].T, X[:, 3:]])),
    "swapped": (lambda t: t.__setitem__((slice(None, None, 2), 0), t[::-2, 0]), np.hstack([X[::-1, :1], X[:, 1:]])),
    "mask": (lambda t: t.__setitem__(t > 5, -1.0), np.where(X > 5, -1, X)),
    "duplicates": (lambda t: t.__setitem__(([0, 0], [1, 1]), [7.0, 8.0]), np.where(X == 1, 8, X)),
    "rows": (lambda t: t.__setitem__(tp.tensor([2, 0]), X[[0, 2]]), X[[2, 1, 0]]),
    "broadcast": (lambda t: t.__setitem__((slice(None), None, 0), [[5.0]]), np.where(X % 4 == 0, 5, X)),
    "newaxis": (lambda t: t.__setitem__((None, Ellipsis), 2 * X[None]), 2 * X),
    "integer": (lambda t: t.__setitem__((2, -1), 3), np.where(X == 11, 3, X)),
    "tensor_index": (lambda t: t.__setitem__(tp.tensor(2), X[0]), X[[0, 1, 0]]),
}


@pytest.mark.parametrize("name", sorted(WRITES))
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("shared", [False, True])
def test_writes_change_this_object_only(name, layout, shared):
    write, want = WRITES[name]
    t = LAYOUTS[layout](X) if shared else LAYOUTS[layout](X) + 0.0
    others = [(t[0], X[0]), (t.numpy(), X), (t.detach(), X), (tp.broadcast_to(t, (2, 3, 4)), [X, X])] if shared else []
    name = t
    write(t)
    assert t is name
    assert_same(t, want, zero_sign=False)
    for kept, w in others:
        assert_same(kept, w, zero_sign=False)
    assert_same(X, np.arange(12.0).reshape(3, 4))


def test_a_write_keeps_the_dtype():
    t = tp.zeros((2,), dtype=tp.float32)
    t += np.ones(2)
    t[0] = tp.tensor(2.5, dtype=tp.float64)
    t.assign(t * tp.ones(2, dtype=tp.float64))
    assert_same(t, np.array([2.5, 1.0], "float32"))


def test_names_of_one_object_see_a_write():
    a = b = tp.tensor([1.0])
    b += 1.0
    assert a is b and a.item() == 2.0


def test_huge_broadcast_costs_nothing():
    t = tp.broadcast_to(tp.tensor(1.0), (1 << 20, 1 << 20))
    assert t.shape == (1 << 20, 1 << 20) and t[5, 7].item() == 1.0 and t[:: 1 << 10, :2].sum().item() == 2048.0
    assert host(t[:2, :2]).tolist() == [[1, 1], [1, 1]]


def test_set_num_threads():
    before = tp.get_num_threads()
    try:
        tp.set_num_threads(1)
        assert tp.get_num_threads() == 1
        assert_same(tp.ones((300, 300)) @ tp.ones((300, 2)), np.full((300, 2), 300, "float32"))
    finally:
        tp.set_num_threads(before)


def test_slices_beyond_64_bits_clip_as_in_numpy():
    assert tp.tensor([1.0, 2.0])[:: -(2**63)].tolist() == [2.0]
    assert tp.tensor([1.0, 2.0])[-(2**70) : 2**70 : 2**70].tolist() == [1.0]


# ---- memory of other libraries, and the type itself


class Foreign:
    """Another library's array: all that it has is __dlpack__."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_tensors_are_never_empty():
    class Sub(tp.Tensor):
        def __init__(self):
            pass

    for make in (tp.Tensor, Sub, lambda: tp.Tensor.__new__(tp.Tensor), lambda: Sub.__new__(Sub)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        object.__new__(tp.Tensor)
    with pytest.raises(BufferError):
        memoryview(type(tp.ones(2).numpy().base.obj)())


@pytest.mark.parametrize(
    "take",
    [tp.tensor, tp.asarray, lambda d: tp.asarray(d, copy=True), lambda d: tp.tensor(d, dtype="float32"), tp.abs]
    + [lambda d: tp.add(d, 0.0), lambda d: tp.concat([d]), lambda d: tp.zeros(3).assign(d), lambda d: tp.zeros(3) + d],
)
def test_arrays_of_other_libraries_are_copied(take):
    array = np.ones(3, "float32")
    try:
        t = take(Foreign(array))
    except TypeError:
        return  # no operand of an operator
    array[:] = 5.0
    assert_same(t, np.ones(3, "float32"))


@pytest.mark.cpu
def test_arrays_of_other_libraries_are_shared_when_asked():
    for take in (tp.from_dlpack, lambda d: tp.asarray(d, copy=False)):
        array = np.ones(3, "float32")
        t = take(Foreign(array))
        array[:] = 5.0
        assert_same(t, array)
        t += 1.0
        assert_same(array, np.full(3, 5, "float32"))


SEEDED = {
    "seed": lambda x, f: (x + 0.0).backward(f),
    "leaf_seed": lambda x, f: x.backward(f),
    "create_graph": lambda x, f: (x * 1.0).backward(f, create_graph=True),
    "seed_of_a_view": lambda x, f: x[:].backward(f),
    "seed_reshaped": lambda x, f: x.reshape((1, 3)).backward(tp.reshape(f, (1, 3))),
    "leaf_hook": lambda x, f: (x.register_hook(lambda g: f), x.sum().backward()),
}


@pytest.mark.parametrize("name", sorted(SEEDED))
def test_memory_of_others_does_not_show_in_gradients(name):
    array, x = np.ones(3), leaf([0.0, 0.0, 0.0], dtype="float64")
    SEEDED[name](x, tp.from_dlpack(array))
    array[:] = 5.0
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_memory_of_others_does_not_show_in_what_hooks_and_tapes_give():
    array, x = np.ones(3), leaf([0.0, 0.0, 0.0], dtype="float64")
    f = tp.from_dlpack(array)
    with tp.Tape(persistent=True) as tape:
        h = x + 0.0
    h.register_hook(lambda g: f)
    h.retain_grad()
    seeded = tape.gradient(h, [h, x], output_gradients=f)
    hooked = tape.gradient(h, [h, x], output_gradients=tp.zeros(3))
    h.backward(f, retain_graph=True)
    array[:] = 5.0
    for g in (*seeded, *hooked, h.grad, x.grad):
        assert g.tolist() == [1.0, 1.0, 1.0]


def test_copy_of_a_computed_tensor_stays_recorded():
    x = leaf([1.0, 2.0])
    y = copy.copy(x * 3.0)
    assert y.requires_grad and not y.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    z = copy.copy(x)
    assert z.is_leaf and z.requires_grad
    z.sum().backward()
    assert z.grad.tolist() == [1.0, 1.0] and x.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("make", [tp.tensor, tp.asarray, lambda b: tp.tensor([b, b])[0], lambda b: tp.tensor(b.data)])
def test_bools_are_zero_or_one_inside(make):
    b = np.array([2, 0, 255], np.uint8).view(bool)
    t = make(b)
    assert t.numpy().view(np.uint8).tolist() == [1, 0, 1]
    assert t.sum().item() == 2 and t.astype("uint8").tolist() == [1, 0, 1]
    assert tp.equal(t, tp.tensor([True, False, True])).tolist() == [True] * 3
    assert (t + t).numpy().view(np.uint8).tolist() == [1, 0, 1]


@pytest.mark.cpu
def test_finalizers_of_shared_memory_may_write():
    class Array(np.ndarray):
        pass

    writes = [
        lambda t: t.assign(1.0),
        lambda t: t.zero_(),
        lambda t: t.__setitem__(0, 3.0),
        lambda t: t.__iadd__(tp.ones(3)),
    ]
    for write in writes:
        array = np.zeros(3).view(Array)
        t = tp.asarray(array, copy=False)
        weakref.finalize(array, lambda t=t: t.assign(7.0))
        del array
        write(t)
        assert t.tolist() == [7.0] * 3
    array, seen = np.zeros(3).view(Array), []
    t = tp.asarray(array, copy=False)
    ref = weakref.ref(t)
    weakref.finalize(array, lambda: seen.append(ref()))
    del array, t
    assert seen == [None]


def test_a_hooks_finalizer_does_not_meet_its_dying_tensor():
    class Hook:
        def __call__(self, g):
            pass

        def __del__(self):
            seen.append(ref())

    seen, x = [], leaf([1.0])
    ref = weakref.ref(x)
    x.register_hook(Hook())
    del x
    assert seen == [None]


def test_an_array_that_lies_about_its_dtype():
    class Array(np.ndarray):
        dtype = property(lambda self: np.dtype("f8"))

    try:
        t = tp.asarray(np.zeros(3, "u1").view(Array), copy=False)
    except (ValueError, TypeError):
        return
    assert t.nbytes == 3


@pytest.mark.parametrize("take", [lambda b: tp.asarray(b, copy=False), tp.from_dlpack])
def test_bools_of_others_are_zero_or_one(take):
    b = np.array([2, 0, 3], np.uint8).view(bool)
    try:
        f = take(b)
    except ValueError:
        return
    assert f.sum().item() == 2 and (f == tp.tensor([True, False, True])).tolist() == [True] * 3
    for t in (f.clone(), +f, f + f, tp.concat([f]), tp.zeros(3, dtype="bool").assign(f), copy.copy(f)):
        assert t.numpy().view(np.uint8).tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", (None, "float32", "float64", "int32", "int64"))
def test_lists_of_numbers(dtype):
    ints = [[1, 2, 3], (4, 5, 2**31 - 1)]
    assert_same(tp.tensor(ints, dtype=dtype), np.array(ints, dtype=dtype or "int64"))
    if dtype is None or dtype.startswith("f"):
        mixed = [0.1, 2**53 + 1, True, -0.0, math.inf, 1e300]
        with np.errstate(over="ignore"):
            assert_same(tp.tensor(mixed, dtype=dtype), np.array(mixed).astype(dtype or "float32"))
    assert tp.tensor([[True], [False]]).dtype == np.bool_ and tp.tensor([True, 1]).dtype == np.int64
    assert tp.tensor([[], []]).shape == (2, 0) and tp.tensor(()).dtype == np.float32


def test_lists_that_are_no_tensors():
    with pytest.raises(tp.errors.ShapeError, match="ragged"):
        tp.tensor([[1.0, 2.0], [3.0]])
    with pytest.raises(tp.errors.ShapeError, match="ragged"):
        tp.tensor([[1.0, 2.0], 3.0])
    with pytest.raises(tp.errors.NumberRangeError):
        tp.tensor([1, 2**63])
    with pytest.raises(tp.errors.NumberRangeError):
        tp.tensor([10**400], dtype="float64")
    with pytest.raises(tp.errors.NumberRangeError):
        tp.tensor([1, 256], dtype="uint8")


@pytest.mark.parametrize("n", (0, 1, 7, 5000, 70001))
@pytest.mark.parametrize("dtype", ("float32", "float64", "int32", "int64"))
def test_ramps_have_the_bits_of_numpy(n, dtype):
    assert_same(tp.arange(n, dtype=dtype), np.arange(n).astype(dtype))
    assert_same(tp.arange(5, 5 - 3 * n, -3, dtype=dtype), np.arange(5, 5 - 3 * n, -3).astype(dtype))
    assert_same(tp.linspace(-1.0, 2.7, n, dtype=dtype), np.linspace(-1.0, 2.7, n).astype(dtype))
    assert_same(tp.linspace(0.0, 5.0, n, dtype=dtype, endpoint=False), np.linspace(0.0, 5.0, n, False).astype(dtype))
    if n and dtype == "float64":
        assert_same(tp.arange(0.25, 0.25 + 0.1 * n, 0.1, dtype=dtype)[:n], 0.25 + 0.1 * np.arange(n))
        assert_same(tp.linspace(0.0, 1e-322, n, dtype=dtype), np.linspace(0.0, 1e-322, n))


def test_ranges_at_the_limits():
    assert tp.arange(2**63 - 3, 2**63 - 1).tolist() == [2**63 - 3, 2**63 - 2]
    assert tp.arange(-(2**63), 2**63 - 1, 2**62).tolist() == [-(2**63), -(2**62), 0, 2**62]
    for wrong in (2**63, math.inf, math.nan):
        with pytest.raises(tp.errors.NumberRangeError):
            tp.arange(wrong)
    for much in (2**62, 1e300):
        with pytest.raises(tp.errors.DeviceOutOfMemory):
            tp.arange(much)


@pytest.mark.parametrize("k", (-4, -1, 0, 2, 9, 2**62, -(2**62)))
def test_eye_with_a_diagonal_anywhere(k):
    assert_same(tp.eye(3, 5, k, dtype="float64"), np.eye(3, 5, max(-9, min(k, 9))))
