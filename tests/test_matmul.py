"""matmul of 1-D, 2-D, batched and broadcast operands: values within k*eps of a wider product, every transpose,
integers, zero sizes, IEEE products of infinities, and gradients to the second order."""

import ctypes
import itertools

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INF,
    LAYOUTS,
    NAN,
    WIDE,
    assert_gradients,
    assert_same,
    check_fused,
    check_vjp,
    close,
    draw,
    gradients,
    grads,
    host,
    leaves,
    name_of,
    rng_for,
    stretched,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow import _blas

PAIRS = [  # every special case of rank, batch and broadcast
    ((3,), (3,)), ((1,), (1,)), ((2, 3), (3,)), ((3, 3), (3,)), ((3,), (3, 2)), ((3,), (3, 3)), ((1, 3), (3,)),
    ((3,), (3, 1)), ((2, 3), (3, 4)), ((3, 3), (3, 3)), ((1, 1), (1, 1)), ((1, 3), (3, 1)), ((3, 1), (1, 3)),
    ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)), ((2, 1, 2, 3), (1, 4, 3, 2)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)),
    ((2, 5, 2, 3), (3,)), ((3,), (2, 5, 3, 4)), ((3, 1, 3), (3, 3, 1)),
]  # fmt: skip
EMPTY = [
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((2, 3), (3, 0)),
    ((0,), (0,)),
    ((0, 2, 3), (3, 4)),
    ((5, 2, 0), (5, 0, 3)),
    ((2, 0), (0,)),
    ((0,), (0, 3)),
    ((0, 0), (0, 0)),
    ((2, 3), (0, 3, 4)),
    ((0, 3), (3,)),
    ((1, 2, 3), (0, 3, 1)),
    ((5, 0, 3), (3,)),
]
ids = dict(ids=lambda s: "x".join(map(str, s)) or "0-d")


def naive(a, b):
    """The product in a wide type with loops over nothing but NumPy's own einsum, and the sum of magnitudes."""
    left, right = np.asarray(a, WIDE), np.asarray(b, WIDE)
    return np.matmul(left, right), np.matmul(abs(left), abs(right))


def check_product(got, a, b, label=""):
    want, scale = naive(a, b)
    assert got.shape == want.shape, label
    k = a.shape[-1]
    assert np.all(
        abs(host(got) - want) <= (k + 2) * np.finfo(got.numpy().dtype).eps * scale + np.finfo("float32").tiny
    ), label


def pair(shapes, dtype="float64", *key):
    return [draw(rng_for(shapes, dtype, i, *key), s, dtype) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", PAIRS + EMPTY, ids=str)
def test_values_of_every_rank_and_layout(shapes, dtype):
    a, b = pair(shapes, dtype)
    for (left, make_left), (right, make_right) in itertools.product(LAYOUTS.items(), repeat=2):
        x, y = make_left(a), make_right(b)
        for got in (tp.matmul(x, y), x @ y):
            label = f"{left} {right}"
            assert name_of(got) == dtype
            if dtype in FLOATS:
                check_product(got, a, b, label)
            else:
                assert_same(got, np.matmul(a, b), label=label)
    for got in (tp.tensor(a) @ b, a @ tp.tensor(b)):
        assert isinstance(got, tp.Tensor)
        assert_same(got, tp.tensor(a) @ tp.tensor(b))


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
def test_gradients_of_every_rank(shapes):
    check_vjp(tp.matmul, *pair(shapes), label=str(shapes))


@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_zero_sizes_have_gradients_of_the_operands_shapes(shapes):
    for dtype in FLOATS:
        a, b = pair(shapes, dtype)
        for create_graph in (False, True):
            y, got = grads(tp.matmul, a, b, create_graph=create_graph)
            assert not host(y).any()
            assert [(g.shape, name_of(g)) for g in got] == [(a.shape, dtype), (b.shape, dtype)]
            assert not any(host(g).any() for g in got)


@pytest.mark.parametrize("shapes", [p for p in PAIRS if len(p[0]) > 1 and len(p[1]) > 1], ids=str)
def test_transposes_cost_no_correctness(shapes):
    """x.mT @ y.mT, gradients through them, and write-after-transpose."""
    a, b = pair(shapes)
    for ta, tb in itertools.product((False, True), repeat=2):

        def f(x, y, ta=ta, tb=tb):
            return (x.mT if ta else x) @ (y.mT if tb else y)

        left, right = (np.ascontiguousarray(m.swapaxes(-1, -2)) if t else m for m, t in ((a, ta), (b, tb)))
        check_product(f(tp.tensor(left), tp.tensor(right)), a, b)
        check_vjp(f, left, right, order=1, label=f"{shapes} {ta} {tb}")


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(0, 5),
    n=st.integers(0, 5),
    k=st.integers(0, 5),
    batch=st.sampled_from(
        [((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((1,), (4,)), ((0,), (1,)), ((2, 3), (3,))]
    ),
    vectors=st.tuples(st.booleans(), st.booleans()),
    layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 2),
    dtype=st.sampled_from(FLOATS),
)
def test_drawn_products_and_gradients(seed, m, n, k, batch, vectors, layouts, dtype):
    rng = np.random.default_rng(seed)
    a = draw(rng, (k,) if vectors[0] else (*batch[0], m, k), dtype)
    b = draw(rng, (k,) if vectors[1] else (*batch[1], k, n), dtype)
    x, y = (LAYOUTS[layout](v).requires_grad_() for v, layout in zip((a, b), layouts, strict=True))
    z = x @ y
    check_product(z, a, b)
    w = rng.uniform(-1, 1, z.shape).astype(dtype)
    z.backward(tp.tensor(w))
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    for t, want in ((x, _vjp(a, b, w)), (y, _vjp(b, a, w, True))):
        assert (t.grad.shape, t.grad.dtype) == (t.shape, t.dtype)
        close(t.grad, want, tolerance, tolerance)


def _vjp(x, other, w, right=False):
    """The gradient of sum(w * (x @ other)) (or other @ x) to x, one linear functional per element."""
    g = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        one = np.zeros(x.shape)
        one[at] = 1
        g[at] = np.sum(w * (np.matmul(other.astype(float), one) if right else np.matmul(one, other.astype(float))))
    return g.astype(x.dtype)


@pytest.mark.parametrize("left,right", list(itertools.product(DTYPES, repeat=2)))
def test_mixed_dtypes(left, right):
    a, b = draw(rng_for(left), (2, 3), left, -3, 3), draw(rng_for(right), (3, 2), right, -3, 3)
    dtype = max(left, right, key=DTYPES.index)
    got = tp.tensor(a) @ tp.tensor(b)
    assert name_of(got) == dtype
    close(got, np.matmul(a.astype(dtype), b.astype(dtype)), 1e-5)


def test_gradients_of_mixed_dtypes_have_their_leafs_dtype():
    for dtypes in (("float32", "float64"), ("float64", "float32")):
        for shapes in (((2, 3), (3, 4)), ((3,), (3,)), ((5, 2, 3), (3, 4))):
            arrays = [draw(rng_for(s), s, d) for s, d in zip(shapes, dtypes, strict=True)]
            got = gradients(tp.matmul, *arrays)
            assert [str(g.dtype) for g in got] == list(dtypes)
    x = leaves(np.ones((2, 3), "float32"))[0]
    tp.sum(x @ tp.tensor(np.full((3, 2), 2))).backward()
    assert_same(x.grad, np.full((2, 3), 4, "float32"))


# ---- faults that other engines had ----


def test_tfjs_8721_the_matrix_shared_by_a_batch():
    a = np.array([[[1.0, 2]], [[3, 4]]])
    assert_gradients(tp.matmul, [a, np.ones((2, 3))], 3.0, [[4, 4, 4], [6, 6, 6]])
    got = gradients(lambda s, x: s @ x, np.ones((3, 2)), np.ascontiguousarray(a.swapaxes(1, 2)))
    close(got[0], [[4, 6]] * 3)


def test_cs249r_1781_one_dimensional_operands():
    m, w, u = np.array([[1.0, -2], [0, 3], [2, 1]]), np.array([4.0, 5]), np.array([1.0, 2, 3])
    assert_gradients(tp.matmul, [m, w], [[4, 5], [40, 50], [400, 500]], [201, 128], seed=np.array([1.0, 10, 100]))
    assert_gradients(tp.matmul, [u, m], m @ [1, 10], np.outer(u, [1, 10]), seed=np.array([1.0, 10]))
    assert_gradients(tp.matmul, [u, u + 1], u + 1, u)
    square = np.array([[1.0, 2], [3, 4]])
    assert_gradients(tp.matmul, [square, w], [[4, 5], [40, 50]], [31, 42], seed=np.array([1.0, 10]))
    assert_gradients(tp.matmul, [w, square], [21, 43], [[4, 40], [5, 50]], seed=np.array([1.0, 10]))


EDGES = (1, 2, 7, 15, 16, 17, 31, 33, 63, 65, 127, 129, 191, 193)


@pytest.mark.parametrize("dtype", FLOATS)
def test_clblast_669_sizes_at_tile_edges(dtype):
    rng = rng_for("edges", dtype)
    sizes = [tuple(rng.choice(EDGES, 3)) for _ in range(60)] + [(n, n, n) for n in EDGES] + [(1, n, 129) for n in EDGES]
    sizes += [(n, 1, 65) for n in EDGES] + [(n, 33, 1) for n in EDGES] + [(2000, 7, 33), (3, 2000, 17), (5, 9, 2000)]
    for m, n, k in sizes:
        a, b = rng.uniform(-1, 1, (m, k)).astype(dtype), rng.uniform(-1, 1, (k, n)).astype(dtype)
        exact = a.astype(float) @ b.astype(float)
        bound = (
            (k + 2)
            * np.finfo(dtype).eps
            * (abs(a).astype(float) @ abs(b).astype(float))
            * (2 if dtype == "float64" else 1)
        )
        for ta, tb in itertools.product((False, True), repeat=2):
            x = tp.tensor(np.ascontiguousarray(a.T)).T if ta else tp.tensor(a)
            y = tp.tensor(np.ascontiguousarray(b.T)).T if tb else tp.tensor(b)
            got = host(x @ y)
            assert got.shape == (m, n) and np.all(abs(got - exact) <= bound), (m, n, k, ta, tb)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_large_product_and_its_gradients(dtype):
    a, b = draw(rng_for("a"), (301, 257), dtype), draw(rng_for("b"), (257, 205), dtype)
    w = draw(rng_for("w"), (301, 205), dtype)
    y, (ga, gb) = grads(tp.matmul, a, b, seed=w)
    check_product(y, a, b)
    check_product(ga, w, b.T)
    check_product(gb, a.T, w)
    check_fused(tp.matmul, a, b, seed=w)
    batch = draw(rng_for("batch"), (40, 31, 33), dtype)
    y, (gx, gm) = grads(tp.matmul, batch, b[:33, :17].copy())
    check_product(y, batch, b[:33, :17])
    close(gm, np.broadcast_to(batch.astype(float).sum((0, 1))[:, None], (33, 17)).astype(dtype), 1e-3, 1e-3)
    close(gx, np.broadcast_to(b[:33, :17].astype(float).sum(1), batch.shape).astype(dtype), 1e-3, 1e-3)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 100, 4097, 300_001])
def test_a_dot_product_has_the_bits_of_multiply_and_sum(n, dtype):
    a, b = draw(rng_for("dot", n), n, dtype), draw(rng_for("dot b", n), n, dtype)
    x, y = tp.tensor(a), tp.tensor(b)
    want = tp.sum(x * y)
    for make in LAYOUTS.values():
        assert_same(tp.matmul(make(a), make(b)), want)
        assert_same((make(a[None]) @ make(b[:, None])).reshape(()), want)
    check_fused(tp.matmul, a, b)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m,k", [(40, 64), (1, 3000), (3000, 1), (37, 41), (601, 333), (7, 30_001), (30_001, 7)])
def test_a_matrix_and_a_vector(m, k, dtype):
    """Every layout of both, on either side; the result does not depend on what lay in its memory."""
    a, v = draw(rng_for("a", m, k), (m, k), dtype), draw(rng_for("v", m, k), (k,), dtype)
    for (left, make), (right, line) in itertools.product(LAYOUTS.items(), repeat=2):
        x, y = make(a), line(v)
        tp.full((m,), NAN, dtype)  # leaves its memory to the product
        check_product(x @ y, a, v, f"{left} {right}")
        check_product(y @ x.T, v, a.T, f"{left} {right}")
        check_product(x @ y.reshape((k, 1)), a, v[:, None], f"{left} {right}")
    w = draw(rng_for("w", m), (m,), dtype)
    _, (ga, gv) = grads(tp.matmul, a, v, seed=w)
    check_product(gv, a.T, w)
    close(ga, np.outer(w, v), 1e-6, 1e-6)
    check_fused(tp.matmul, a, v, seed=w)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m,k", [(1000, 300), (300, 1000), (3, 70_000), (70_000, 3)])
def test_a_matrix_and_a_vector_whatever_the_threads(m, k, dtype):
    a, v = draw(rng_for("a", m, k), (m, k), dtype), draw(rng_for("v", m, k), (k,), dtype)
    threads = tp.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            tp.set_num_threads(n)
            results.append((tp.tensor(a) @ tp.tensor(v), tp.tensor(v) @ tp.tensor(a.T.copy())))
    finally:
        tp.set_num_threads(threads)
    for along, across in results:
        assert_same(along, results[0][0])
        assert_same(across, results[0][1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m,k,n", [(130, 40, 128), (128, 128, 32), (97, 31, 300), (20, 400, 600)])
def test_a_batch_computed_in_pieces(m, k, n, dtype):
    """Products that OpenBLAS would share among its threads, one by one; also transposed and of stretched operands."""
    a, b = draw(rng_for("a", m, k), (2, 3, m, k), dtype), draw(rng_for("b", k, n), (2, 3, k, n), dtype)
    x, y = tp.tensor(a), tp.tensor(b)
    check_product(x @ y, a, b)
    check_product(tp.tensor(a.swapaxes(2, 3).copy()).mT @ tp.tensor(b.swapaxes(2, 3).copy()).mT, a, b)
    check_product(x[:, :1] @ y[:1], a[:, :1], b[:1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count,m,k,n", [(1, 300, 150, 70), (1, 70, 150, 300), (1, 33, 1000, 65), (3, 97, 129, 130)])
def test_a_product_cut_for_any_number_of_threads(threads, count, m, k, n, dtype):
    """By rows and by columns, of operands as they lie, transposed, and within a larger matrix."""
    a, b = draw(rng_for("a", m, k), (count, m, k), dtype), draw(rng_for("b", k, n), (count, k, n), dtype)
    wide = tp.tensor(np.concatenate([a, a], 2))
    for n_threads in (1, 2, 3, 7):
        threads(n_threads)
        for x in (tp.tensor(a), tp.tensor(a.swapaxes(1, 2).copy()).mT, wide[:, :, k:]):
            for y in (tp.tensor(b), tp.tensor(b.swapaxes(1, 2).copy()).mT):
                check_product(x @ y, a, b)
                check_product(x[0] @ y[0], a[0], b[0])


def test_blas_has_its_threads_back_after_a_product(threads):
    set_threads, get_threads = (ctypes.CFUNCTYPE(*types)(f) if f else None for types, f in zip(
        [(None, ctypes.c_int), (ctypes.c_int,)], _blas.thread_functions(), strict=True))  # fmt: skip
    if set_threads is None or get_threads is None:
        pytest.skip("SciPy's BLAS does not export its number of threads here")
    threads(2)
    x = tp.ones((200, 200))
    for n in (2, 1):
        set_threads(n)
        x @ x
        assert get_threads() == n
    set_threads(2)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("m,k,n", [(10, 10, 10), (3, 3, 3), (1, 9, 1), (4, 20, 1), (24, 24, 24)])
def test_many_small_products(m, k, n, dtype):
    """Enough for several threads, the leading axes broadcast; each has the bits that it has alone."""
    a, b = draw(rng_for("a", m), (60, 1, m, k), dtype), draw(rng_for("b", n), (50, k, n), dtype)
    got = tp.matmul(tp.tensor(a), tp.tensor(b))
    for i, j in ((0, 0), (59, 49), (31, 7)):
        assert_same(got[i, j], tp.matmul(tp.tensor(a[i, 0]), tp.tensor(b[j])))
    if dtype in FLOATS:
        check_product(got, a, b)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((40, 70), (70, 30)), ((3,), (3,)), ((5, 2, 3), (3, 4))], ids=str)
def test_the_same_call_repeats_its_bits(shapes):
    for dtype in FLOATS:
        a, b = map(tp.tensor, pair(shapes, dtype))
        first = a @ b
        for _ in range(3):
            assert_same(a @ b, first)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 2), (2, 2)),
        ((2,), (2,)),
        ((2, 2), (2,)),
        ((2,), (2, 2)),
        ((1, 2, 2), (2, 2, 2)),
        ((64, 64), (64, 64)),
        ((64, 64), (64,)),
    ],
    ids=str,
)
def test_products_are_those_of_ieee(shapes):
    """A zero does not swallow an infinity or a NaN, forward or backward: contractions have no strong zero."""
    for dtype, bad in itertools.product(FLOATS, (INF, -INF, NAN)):
        a, b = np.zeros(shapes[0], dtype), np.ones(shapes[1], dtype)
        b.reshape(-1)[0] = bad
        with np.errstate(all="ignore"):
            want = np.matmul(a, b)
            assert_same(np.isnan(host(tp.tensor(a) @ tp.tensor(b))), np.isnan(np.einsum(*_einsum(a, b))))
            assert_same(np.isnan(host(tp.tensor(b) @ tp.tensor(a))), np.isnan(np.einsum(*_einsum(b, a))))
        (g, _) = gradients(tp.matmul, a, b, seed=np.zeros(want.shape, dtype))
        assert np.isnan(g).any()


def _einsum(a, b):
    """Arguments for einsum without BLAS: letters by rank."""
    left = "i" if a.ndim == 1 else "xmi"[3 - a.ndim :]
    right = "i" if b.ndim == 1 else "xin"[3 - b.ndim :]
    out = "x" * (3 in (a.ndim, b.ndim)) + "m" * (a.ndim > 1) + "n" * (b.ndim > 1)
    return f"{left},{right}->{out}", *_even(a, b)


def _even(a, b):
    """Batch axes of the same length, as einsum wants them."""
    if a.ndim == b.ndim == 3:
        n = max(len(a), len(b))
        a, b = np.broadcast_to(a, (n, *a.shape[1:])), np.broadcast_to(b, (n, *b.shape[1:]))
    return a, b


def test_overlapping_and_stretched_operands():
    a = draw(rng_for("overlap"), (6, 6), "float64")
    t = tp.tensor(a)
    check_product(t @ t, a, a)
    check_product(t @ t.T, a, a.T)
    check_product(t[::-1] @ t[:, ::2], a[::-1], a[:, ::2])
    check_product(t[1:4, ::-2] @ t[::2, 1:], a[1:4, ::-2], a[::2, 1:])
    check_product(stretched(a[0], 4) @ t, np.tile(a[0], (4, 1)), a)
    check_product(t @ tp.broadcast_to(t[:, :1], (6, 3)), a, np.tile(a[:, :1], (1, 3)))
    check_product(tp.broadcast_to(t, (3, 6, 6)) @ t, np.stack([a] * 3), a)
    assert_gradients(lambda x: x @ x, [a], np.add.outer(a.sum(1), np.zeros(6)).T + np.add.outer(a.sum(0), np.zeros(6)))
    check_vjp(lambda x: x @ x.T, a[:2, :3], label="gram")
    check_vjp(lambda x: x[0] @ x.T @ x, a[:2, :3], label="chain")


@pytest.mark.parametrize("dtype", ("uint8", "int32", "int64"))
def test_integer_products_wrap_and_are_not_recorded(dtype):
    a = np.full((2, 5), np.iinfo(dtype).max, dtype)
    got = tp.tensor(a) @ tp.tensor(a).T
    assert_same(got, a @ a.T)
    assert not got.requires_grad
    big = np.array([[2**40 + 1, 3]])
    assert (tp.tensor(big) @ tp.tensor(big).T).item() == (2**40 + 1) ** 2 % 2**64 + 9


BAD = [
    ((), (3,)),
    ((3,), ()),
    ((2, 3), (4, 5)),
    ((3,), (2,)),
    ((2, 3), (2,)),
    ((2, 2, 3), (3, 3, 4)),
    ((2, 0), (1, 2)),
    ((2, 3), (2, 3)),
]


@pytest.mark.parametrize("shapes", BAD, ids=str)
def test_shapes_that_do_not_fit_are_refused(shapes):
    with pytest.raises(tp.ShapeError) as info:
        tp.matmul(*(tp.ones(s) for s in shapes))
    text = str(info.value)
    assert "matmul" in text and all(str(s) in text for s in shapes), text


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3), (2, 0, 3), (4, 2, 5, 3)])
def test_the_gradient_of_a_transposed_right_factor(shape):
    """x @ w.T: the gradient of w is that of the untransposed product, and lies in order, without a copy for it."""
    rng = rng_for("transposed right", shape)
    x, w = rng.normal(size=shape), rng.normal(size=(4, 3))
    seed = rng.normal(size=(*shape[:-1], 4))
    got = gradients(lambda x, w: x @ w.T, x, w, seed=seed)
    want = gradients(lambda x, v: x @ v, x, np.ascontiguousarray(w.T), seed=seed)
    close(got[0], want[0], rtol=1e-13, atol=1e-13)
    close(got[1], want[1].T, rtol=1e-13, atol=1e-13)
    assert got[1].flags.c_contiguous
    if 0 not in shape:
        check_vjp(lambda x, w: x @ w.T, x, w)
