"""Sparse Jacobians and Hessians against dense ones: patterns of every kind of op, colours, signatures, paths."""

import numpy as np
import pytest
import scipy.sparse
from helpers import close
from hypothesis import given, settings
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow.plan import coloring

A = np.random.default_rng(0).normal(size=(6, 6))
BAND = np.triu(np.tril(A, 1), -1)


def normal(*shape, seed=0):
    return tp.tensor(np.random.default_rng(seed).uniform(0.5, 1.5, size=shape))


def check_jacobian(f, x, *rest):
    """Values of the dense one; nothing outside of the pattern; no entry twice."""
    sparse = tp.sparse_jacobian(f)
    got = sparse(x, *rest)
    want = tp.jacobian(f)(x, *rest)
    assert isinstance(got, scipy.sparse.csr_array) and got.dtype == x.dtype
    close(got.toarray(), want.numpy().reshape(got.shape), 1e-6 if x.dtype == tp.float32 else 1e-11, 1e-12)
    pattern = sparse.pattern(x, *rest)
    assert pattern.nnz == got.nnz and pattern.has_canonical_format
    return sparse, pattern


def exact(f, x, *rest):
    """The pattern has an element where the derivative is one that is not 0, and no other."""
    sparse, pattern = check_jacobian(f, x, *rest)
    assert np.array_equal(pattern.toarray(), tp.jacobian(f)(x, *rest).numpy().reshape(pattern.shape) != 0)
    return sparse


# ---- shapes of matrices

INDEX = np.array([[3, 0], [2, 2]])

EXACT = {
    "elementwise": (lambda x: tp.sin(x) * x + 1.0, (3, 4)),
    "broadcast": (lambda x: x[:, None] * x, (5,)),
    "where": (lambda x: tp.where(x > 0.9, x[::-1], 2.0 * x[::-1]), (6,)),
    "differences": (lambda x: x[1:] * x[1:] - x[:-1], (7,)),
    "a stencil": (lambda x: x[2:] - 2.0 * x[1:-1] * x[1:-1] + x[:-2], (9,)),
    "a stencil in the plane": (lambda x: x[1:-1, 1:-1] * (x[2:, 1:-1] + x[:-2, 1:-1]) + x[1:-1, 2:], (5, 6)),
    "sums": (lambda x: (x * x).sum(axis=1), (3, 4)),
    "sums of the middle": (lambda x: tp.mean(tp.exp(x), axis=(0, 2)), (2, 3, 2)),
    "norms": (lambda x: tp.vector_norm(x, axis=0), (3, 4)),
    "variances": (lambda x: tp.var(x, axis=1), (2, 3)),
    "logsumexp": (lambda x: tp.logsumexp(x, axis=1), (3, 4)),
    "softmax": (lambda x: tp.softmax(x, axis=1), (3, 4)),
    "softmax of the first axis": (lambda x: tp.log_softmax(x, axis=0), (3, 4)),
    "moves": (lambda x: tp.moveaxis(x.reshape(4, 3).T, 0, 1)[::2] * 2.0, (3, 4)),
    "joined": (lambda x: tp.concat([x * x, x[:2], tp.zeros(3, "float64")]), (4,)),
    "many parts": (lambda x: tp.concat([x[k : k + 1] * x[k : k + 1] for k in range(20)]), (20,)),
    "stacked": (lambda x: tp.stack([x[0] * x[1], x[2]]), (3,)),
    "rolled and padded": (lambda x: tp.pad(tp.roll(x * x, 2), (1, 2)), (5,)),
    "taken": (lambda x: tp.take(x * x, tp.tensor(INDEX[0]), axis=1), (2, 4)),
    "indexed": (lambda x: (x * x)[INDEX], (4,)),
    "written": (lambda x: written(x, slice(1, 3)), (4,)),
    "written at places": (lambda x: written(x, np.array([2, 0])), (4,)),
    "a constant factor": (lambda x: BAND @ (x * x), (6,)),
    "a constant factor of a matrix": (lambda x: BAND @ (x * x), (6, 2)),
    "a constant factor on the right": (lambda x: (x * x) @ BAND, (2, 6)),
    "products of rows and columns": (lambda x: x @ tp.ones((3, 2), "float64"), (4, 3)),
    "a batch of products": (lambda x: x @ tp.ones((2, 3, 2), "float64"), (2, 4, 3)),
    "blocks": (lambda x: tp.tanh((x.reshape(3, 2, 1) * x.reshape(3, 1, 2)).sum(axis=2)), (6,)),
    "an arrow": (lambda x: tp.concat([(x * x).sum()[None], x[0] * x[1:]]), (6,)),
    "dense": (lambda x: A @ tp.sin(x), (6,)),
    "nothing": (lambda x: tp.sign(x) + tp.floor(x) + tp.stop_gradient(x * x), (3,)),
    "no elements": (lambda x: x[:0] * 2.0, (3,)),
    "a scalar": (lambda x: (x * x).sum(), (4,)),
    "of a scalar": (lambda x: x * tp.tensor([1.0, 0.5], dtype="float64"), ()),
    "steps": (lambda x: steps(x), (8,)),
}


def written(x, index):
    y = x * x
    y[index] = x[:2] * 3.0
    return y


def steps(x):
    """Three steps of an explicit scheme: a band of width 7."""
    for _ in range(3):
        x = tp.concat([x[:1], x[1:-1] + 0.1 * (x[2:] * x[2:] - 2.0 * x[1:-1] + x[:-2]), x[-1:]])
    return x


@pytest.mark.parametrize("name", EXACT)
def test_exact_patterns(name):
    f, shape = EXACT[name]
    exact(f, normal(*shape))


WIDER = {
    "cumulative_sum": (lambda x: tp.cumulative_sum(x * x, axis=1), (2, 3)),
    "cumulative_prod": (lambda x: tp.cumulative_prod(x), (4,)),
    "sort": (lambda x: tp.sort(x), (5,)),
    "max": (lambda x: tp.max(x, axis=1), (3, 4)),
    "layer_norm": (lambda x: tp.layer_norm(x, (3,)), (2, 3)),
    "a gather that depends on x": (lambda x: x[tp.argsort(x)] * x, (4,)),
    "cross_entropy": (lambda x: tp.cross_entropy(x, tp.tensor([1, 0])), (2, 3)),
    "dot": (lambda x: tp.vecdot(x, x), (2, 3)),
    "einsum": (lambda x: tp.einsum("ij,kj->ik", x, x), (2, 3)),
    "prod": (lambda x: tp.prod(x, axis=0), (3, 2)),
    "scan backwards": (lambda x: tp.grad(lambda x: (tp.cumulative_prod(x) ** 2).sum())(x), (4,)),
    "a gradient": (lambda x: tp.grad(lambda x: (x[1:] * x[:-1] * tp.sin(x[1:])).sum())(x), (6,)),
    "a gradient of a gather": (lambda x: tp.grad(lambda x: (x[INDEX] ** 3).sum())(x), (4,)),
    "clip": (lambda x: tp.clip(x, 0.7, 1.2), (5,)),
    "a pivot": (lambda x: x / x[0], (4,)),
}


@pytest.mark.parametrize("name", WIDER)
def test_patterns_that_are_wide_enough(name):
    f, shape = WIDER[name]
    check_jacobian(f, normal(*shape))


# ---- colours


def test_counts_of_colours():
    band = tp.sparse_jacobian(lambda x: x[2:] - 2.0 * x[1:-1] + x[:-2] * x[:-2])
    assert band.colors(normal(500)) == 3
    assert tp.sparse_jacobian(lambda x: tp.sin(x) * x).colors(normal(500)) == 1
    assert tp.sparse_jacobian(lambda x: (x * x).sum()).colors(normal(500)) == 1  # reverse mode
    assert tp.sparse_jacobian(lambda x: x[0] * tp.ones(500, "float64")).colors(normal(3)) == 1
    assert tp.sparse_jacobian(lambda x: x.reshape(-1, 4).sum(axis=1)).colors(normal(400)) == 1
    assert tp.sparse_jacobian(lambda x: A @ x).colors(normal(6)) == 6
    assert tp.sparse_hessian(lambda x: (x[1:] * x[:-1]).sum()).colors(normal(100)) <= 3
    assert tp.sparse_hessian(lambda x: x[0] * x.sum()).colors(normal(100)) == 2
    assert tp.sparse_hessian(lambda x: (x**3).sum()).colors(normal(100)) == 1
    assert tp.sparse_hessian(lambda x: x.sum() * 2.0).colors(normal(100)) == 1
    assert tp.sparse_hessian(lambda x: x.sum() ** 2).colors(normal(8)) == 8


def test_so_many_walks():
    """f runs once for the pattern, and then once a call, whatever the size."""
    calls = []

    def f(x):
        calls.append(x.shape)
        return x[1:] * x[:-1]

    sparse = tp.sparse_jacobian(f)
    for _ in range(3):
        sparse(normal(2000))
    assert len(calls) == 4
    sparse(normal(10))
    assert len(calls) == 6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.05, 0.9), st.integers(0, 2**32 - 1))
def test_columns_of_a_colour_do_not_meet(m, n, density, seed):
    dense = np.random.default_rng(seed).random((m, n)) < density
    colors = coloring.columns(scipy.sparse.csr_matrix(dense.astype(np.int8)))
    for row in dense:
        mine = colors[row]
        assert len(set(mine.tolist())) == len(mine)
    assert colors.min() >= 0 and colors.max() < n


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.floats(0.05, 0.9), st.integers(0, 2**32 - 1))
def test_star_colourings(n, density, seed):
    """Neighbours differ, and every path of four has three colours; and so every element can be read off."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n, n)) < density
    dense |= dense.T
    for work in (10**6, 0):
        colors = coloring.star(scipy.sparse.csr_matrix(dense.astype(np.int8)), work)
        near = [set(np.flatnonzero(dense[v]).tolist()) - {v} for v in range(n)]
        for v in range(n):
            for w in near[v]:
                assert colors[v] != colors[w]
                for x in near[w] - {v}:
                    for y in near[x] - {v, w}:
                        assert len({colors[v], colors[w], colors[x], colors[y]}) > 2


# ---- Hessians


def rosenbrock(x):
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def membrane(x):
    """The energy of a grid of springs: each point meets its neighbours."""
    return (tp.diff(x, axis=0) ** 4).sum() + tp.exp(tp.diff(x, axis=1)).sum() + (x**2).sum()


HESSIANS = {
    "rosenbrock": (rosenbrock, (12,)),
    "membrane": (membrane, (4, 5)),
    "arrow": (lambda x: (x[0] * x[1:] ** 2).sum() + tp.sin(x[0]), (8,)),
    "blocks": (lambda x: tp.logsumexp(x, axis=1).sum(), (3, 3)),
    "dense": (lambda x: tp.logsumexp(x), (5,)),
    "indexed": (lambda x: (x[INDEX] ** 3).sum() + x[0] * x[3], (5,)),
    "linear": (lambda x: (A[0] * x).sum(), (6,)),
    "sums of products": (lambda x: tp.tanh(BAND @ x).sum(), (6,)),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessians(name):
    f, shape = HESSIANS[name]
    x = normal(*shape)
    sparse = tp.sparse_hessian(f)
    got = sparse(x)
    n = x.size
    assert got.shape == (n, n) and isinstance(got, scipy.sparse.csr_array)
    close(got.toarray(), tp.hessian(f)(x).numpy().reshape(n, n), 1e-9, 1e-11)
    pattern = sparse.pattern(x)
    assert (pattern != pattern.T).nnz == 0


def test_a_large_hessian():
    n = 3000
    x = normal(n)
    h = tp.sparse_hessian(rosenbrock)
    got = h(x)
    assert h.colors(x) <= 4 and got.nnz == 3 * n - 2
    v = x.numpy()
    main = np.zeros(n)
    main[:-1] = 1200.0 * v[:-1] ** 2 - 400.0 * v[1:] + 2.0
    main[1:] += 200.0
    close(got.diagonal(), main, 1e-10)
    close(got.diagonal(1), -400.0 * v[:-1], 1e-10)


# ---- arguments and signatures


def test_other_arguments():
    f = lambda a, x, edges, scale, flag: (x[edges[:, 0]] - x[edges[:, 1]]) * a * scale * (2 if flag else 1)  # noqa: E731
    x, a = normal(5), normal(1)
    sparse = tp.sparse_jacobian(f, argnums=1)
    for edges in (np.array([[0, 1], [2, 3]]), tp.tensor([[0, 4], [2, 1], [1, 0]])):
        for scale, flag in ((2.0, True), (3.0, False)):
            got = sparse(a, x, edges, scale, flag)
            assert sparse.colors(a, x, edges, scale, flag) <= 3
            close(got.toarray(), tp.jacobian(f, 1)(a, x, edges, scale, flag), 1e-12)
    assert len(sparse._kinds) == 4
    close(
        tp.sparse_jacobian(f, argnums=-4)(a, x, edges, 1.0, False).toarray(), sparse(a, x, edges, 1.0, False).toarray()
    )


def test_captured_indices_that_change():
    index = tp.tensor([0, 1])
    sparse = tp.sparse_jacobian(lambda x: x[index] ** 2)
    x = normal(4)
    assert np.argwhere(sparse(x).toarray()).tolist() == [[0, 0], [1, 1]]
    index.assign(tp.tensor([3, 3]))
    assert np.argwhere(sparse(x).toarray()).tolist() == [[0, 3], [1, 3]]
    assert sparse.pattern(x).nnz == 2


def test_a_function_that_branches_is_recorded_at_each_call():
    def f(x):
        return x * x if x[0] > 1.0 else x[::-1] * x[0]

    sparse = tp.sparse_jacobian(f)
    for first in (0.5, 2.0, 0.6, 3.0):
        x = tp.tensor([first, 1.0, 2.0], dtype="float64")
        close(sparse(x).toarray(), tp.jacobian(f)(x), 1e-12)
    assert sparse.pattern(tp.tensor([2.0, 1.0, 2.0], dtype="float64")).nnz == 3


def test_float32_draws_and_state():
    tp.random.manual_seed(1)
    f = lambda x: x * tp.random.uniform(1.0, 2.0, x.shape)  # noqa: E731
    x = tp.ones(20)
    sparse = tp.sparse_jacobian(f)
    a, b = sparse(x), sparse(x)
    assert a.dtype == np.float32 and a.nnz == 20 and (a != b).nnz == 20
    assert tp.random.default_generator.state == (1, 2)


def test_rules_and_recomputation():
    @tp.custom_vjp
    def f(x):
        return x * x

    f.defvjp(lambda x: (x * x, x), lambda x, g: (g[::-1] * x,))  # couples what f does not
    x = normal(4)
    sparse = tp.sparse_jacobian(lambda x: f(x[1:]))
    close(sparse(x).toarray(), tp.jacobian(lambda x: f(x[1:]))(x), 1e-12)
    check = tp.checkpoint(lambda x: tp.sin(x[1:] * x[:-1]))
    exact(check, x)
    h = tp.sparse_hessian(lambda x: check(x).sum())
    close(h(x).toarray(), tp.hessian(lambda x: check(x).sum())(x), 1e-10)


# ---- what is refused

BAD = {
    "no function": (lambda: tp.sparse_jacobian(3), tp.TapeError, "expected a function"),
    "several arguments": (lambda: tp.sparse_hessian(rosenbrock, (0, 1)), tp.TapeError, "argnums must be an int: the"),
    "argnums": (lambda: tp.sparse_jacobian(tp.sin, 1)(normal(2)), tp.TapeError, "names argument 1"),
    "a list": (lambda: tp.sparse_jacobian(lambda x: x[0])([normal(2)]), tp.TapeError, "must be a tensor, got list"),
    "integers": (lambda: tp.sparse_jacobian(lambda x: x * 1.0)(tp.tensor([1, 2])), tp.DTypeError, "dtype int64"),
    "two results": (lambda: tp.sparse_jacobian(lambda x: (x, x))(normal(2)), tp.TapeError, "must return one tensor"),
    "an integer": (lambda: tp.sparse_jacobian(tp.argsort)(normal(2)), tp.DTypeError, "must return a float tensor"),
    "no scalar": (lambda: tp.sparse_hessian(tp.sin)(normal(2)), tp.TapeError, "must return a scalar"),
    "elements": (
        lambda: tp.sparse_jacobian(lambda x: x * x.numpy().sum())(normal(2)),
        tp.PlanError,
        r"taken into Python \(.*test_sparse.py:\d+\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    f, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        f()
