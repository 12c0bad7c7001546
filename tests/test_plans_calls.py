"""Every public function in a plan: value, gradient and second order have the bits of eager, for operands that change,
and a replay in steady state asks the system for no memory.

The calls are those that the bench compares with NumPy, and MORE for what has no counterpart there or more forms.
"""

import itertools

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp
from bench import ops as bench_ops
from bench.cases import CASES
from tapeflow import _core
from tapeflow.plan import passes
from tapeflow.transforms import flatten

MORE = {
    "binary_cross_entropy_with_logits": ["m.binary_cross_entropy_with_logits(x, u * u)"],
    "cross_entropy": ["m.cross_entropy(X, rows)", "m.cross_entropy(X[None], rows[None])"],
    "nll_loss": ["m.nll_loss(m.log_softmax(X), rows)"],
    "kl_div": ["m.kl_div(x, p)"],
    "huber_loss": ["m.huber_loss(x, y)"],
    "layer_norm": [
        "m.layer_norm(X)", "m.layer_norm(X, r, v, w)", "m.layer_norm(X, axis=0)", "m.layer_norm(X.T, r, v)",
        "m.layer_norm(X, shape)",
    ],
    "rms_norm": ["m.rms_norm(X, r, v)"],
    "elu": ["m.elu(x)"], "gelu": ["m.gelu(x)", "m.gelu(x, approximate='tanh')"], "gelu_tanh": ["m.gelu_tanh(x)"],
    "leaky_relu": ["m.leaky_relu(x)"], "silu": ["m.silu(x)"], "smul": ["m.smul(x, y)"],
    "spherical_ratio": ["m.spherical_ratio(2, u)"], "lerp": ["m.lerp(x, y, u)"],
    "stop_gradient": ["m.stop_gradient(x) * x"],
    "tensor": ["m.tensor(x)", "m.tensor(x, dtype='float64')"],
    "asarray": ["m.asarray(x, copy=True)", "m.asarray([x[0], 2.0, y[1]])", "m.asarray(i, dtype=f)"],
    "full": ["m.full(shape, x[3])", "m.full_like(X, y[2])"],
    "repeat": ["m.repeat(x, m.ravel(S))", "m.repeat(X, rows, axis=1)"],
    "median": ["m.median(Z, axis=1)", "m.median(X, axis=(0, 1), keepdims=True)", "m.median(x[:3])", "m.median(x > 0)"],
    "quantile": [
        *(f"m.quantile(X, u * u, axis={a}, method={how!r})" for a, how in itertools.product(
            (0, None), ("linear", "lower", "higher", "midpoint", "nearest"))),
        "m.quantile(Z, [[0.0, 0.25], [0.5, 1.0]], axis=1)", "m.quantile(m.log(m.relu(x)), 0.4)", "m.quantile(x, [])",
    ],
    "pow": ["m.pow(j, k)", "m.pow(x, 3.0)", "m.pow(2.0, x)"],
    "max": ["m.max(m.round(X), axis=1)", "m.min(Z, axis=0)"],
    "cumulative_max": ["m.cumulative_max(m.round(X), axis=1)", "m.cumulative_max(Z, axis=0)"],
    "cumulative_sum": ["m.cumulative_sum(X.T, axis=1, include_initial=True)", "m.cumulative_sum(i)"],
    "logsumexp": ["m.logsumexp(X, axis=(0, 1), keepdims=True)", "m.logsumexp(m.where(X > 1, m.inf, X), axis=1)"],
    "logaddexp": ["m.logaddexp(m.where(x > 0, m.inf, x), m.where(y > 0, m.inf, y))"],
    "logcumsumexp": ["m.logcumsumexp(X, axis=1)", "m.logcumsumexp(X, axis=0)"],
    "var": ["m.var(X, axis=(0, 1), correction=1)", "m.std(X.T, axis=0, keepdims=True)"],
    "any": ["m.any(X > 3, axis=0)", "m.all(X[:, ::2], axis=1)"],
    "norm": ["m.norm(X, 1)", "m.norm(X, float('inf'), axis=0)", "m.norm(x, 3)", "m.norm(X, -1, axis=(0, 1))"],
    "argsort": ["m.argsort(X, axis=0, descending=True)", "m.sort(m.round(X), axis=0)", "m.sort(x, descending=True)"],
    "searchsorted": ["m.searchsorted(s, X, side='right')", "m.searchsorted(m.sort(i), x)"],
    "concat": ["m.concat([x[k:] for k in range(5)] * 4)", "m.concat([X, X[:1], 2 * X], axis=0)",
               "m.stack([X, Y], axis=2)"],
    "put_along_axis": ["m.put_along_axis(X, A, Y, 0)"],
    "one_hot": ["m.one_hot(A, r, dtype=f, axis=0)", "m.one_hot(rows)"],
    "pad": ["m.pad(X, 1, mode='edge')", "m.pad(X, ((1, 0), (2, 1)), constant_values=x[0])",
            "m.pad(x, 2, mode='reflect')"],
    "matmul": ["m.matmul(X4, Y4)", "m.matmul(X4, Y4[0])", "m.matmul(X[None].mT, Y)", "m.matmul(v, X)",
               "m.matmul(i, j)"],
    "take": ["m.take(X[:, ::2], rows, axis=0)", "m.take(X, rows[1])", "m.take(X, A, axis=1)"],
    "Tensor": [
        "x[rows[1]]", "X[rows[0]]", "X[:, rows[2]]", "X[rows[0], 1:]", "X[rows[0], A[1]]", "X[A, rows]",
        "X[None, 1::2]",
        "t[rows[1]] = 1.5", "t[rows[1]] = x[3]", "t[idx] = y", "t[b] = y[b]", "t += x", "t *= y", "t[1:3] = x[5:7]",
    ],
}  # fmt: skip
HOST = {"result_type"}  # their results are not tensors
NO_FUNCTION_OF_TENSORS = set(
    """
    Tensor Tape dropout empty empty_like default_device device devices eager enable_grad freeze function load_plan
    parse_plan no_grad
    vjp jvp hvp jacobian hessian sparse_jacobian sparse_hessian vmap custom_vjp checkpoint trace_nan
    get_default_dtype get_num_threads set_default_dtype set_num_threads grad is_grad_enabled value_and_grad from_dlpack
    """.split()
)
KEEP = ("s", "rows", "idx", "A", "S")  # in order, or indices of one matrix


def calls():
    """Those of the bench that are expressions of tensors."""
    for name, rows in CASES.items():
        for call in rows:
            text = bench_ops.spelled(call)[0]
            if bench_ops.is_expression(text) and name not in ("tensor", "asarray", "from_dlpack", *HOST):
                yield text


def all_calls():
    for name, rows in itertools.chain(CASES.items(), MORE.items()):
        if name not in HOST:
            for call in rows:
                yield bench_ops.spelled(call)[0]


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)


def tensors(tree):
    return [t for t in flatten(tree)[0] if isinstance(t, tp.Tensor)]


def assert_all_same(got, want, label=""):
    got, want = tensors(got), tensors(want)
    assert len(got) == len(want) > 0, label
    for g, w in zip(got, want, strict=True):
        assert_same(g.detach(), w.detach(), label=label)


def function_of(text, pool):
    """A call as a function of the arrays among its operands, and their names."""
    names = sorted(bench_ops.names_in(text) & set(pool))
    arrays = [k for k in names if isinstance(pool[k], np.ndarray)]
    constants = {k: pool[k] for k in names if k not in arrays}
    expression = bench_ops.is_expression(text)
    code = compile(text, "call", "eval" if expression else "exec")

    def f(*xs):
        scope = {**constants, **dict(zip(arrays, xs, strict=True)), "m": tp}
        if expression:
            return eval(code, scope)
        scope["t"] = scope["t"].clone()
        exec(code, scope)
        return scope["t"]

    return f, arrays


def weighted(f, *xs):
    """A number in which every element of f's float results counts differently."""
    total = tp.tensor(0.0)
    for t in tensors(f(*xs)):
        if t.dtype.kind == "f" and t.requires_grad:
            weights = tp.asarray(np.linspace(0.5, 1.5, t.size).reshape(t.shape).astype(t.dtype))
            total = total + tp.sum(t * weights)
    return total


def orders(f, xs):
    """f, its gradient and the gradient of that, as far as they are there."""
    floats = tuple(k for k, x in enumerate(xs) if x.dtype.kind == "f")
    yield "value", f
    if not floats or not any(t.dtype.kind == "f" for t in tensors(f(*xs))):
        return
    first = tp.value_and_grad(lambda *a: weighted(f, *a), argnums=floats)

    def slope(*a):
        gradients = tensors(tp.grad(lambda *b: weighted(f, *b), argnums=floats)(*a))
        return sum((tp.sum(g * g) for g in gradients), tp.tensor(0.0))

    yield "gradient", first
    yield "second order", tp.value_and_grad(slope, argnums=floats)


POOL = {(n, dtype): bench_ops.pool(n, dtype) for n in (16, 1024) for dtype in ("float32", "float64")}


@pytest.mark.parametrize("text", list(dict.fromkeys(all_calls())))
def test_call_is_eager(text):
    for (n, dtype), pool in POOL.items():
        f, arrays = function_of(text, pool)
        xs = [tp.tensor(pool[k]) for k in arrays]
        ys = [tp.tensor(pool[k] if k in KEEP else pool[k][::-1].copy()) for k in arrays]
        if not xs:
            return  # a function of nothing is a constant
        if any(word in text for word in ("[b]", "[B]", ", b)", "(b)", "(B)", "m.ravel(S)")):
            ys = [y if x.dtype.kind == "f" else x for x, y in zip(xs, ys, strict=True)]  # how many, is a guard
        for what, g in orders(f, xs) if n == 16 else [("value", f)]:
            plan = tp.freeze(g, *xs)
            for operands in (xs, ys):
                assert_all_same(plan(*operands), g(*operands), f"{what} of {text}, {n} {dtype}\n{plan}")
            plan(*xs)
            before = _core.pool_info()["fresh_blocks"]
            for _ in range(3):
                plan(*xs)
            assert _core.pool_info()["fresh_blocks"] == before, f"{what} of {text}, {n} {dtype} asked for memory"


def test_every_function_is_called():
    texts = " ".join(all_calls())
    called = {getattr(tp, name) for name in tp.__all__ if f"m.{name}(" in texts}  # under one of its names
    for name in set(tp.__all__) - NO_FUNCTION_OF_TENSORS - HOST:
        f = getattr(tp, name)
        assert not callable(f) or isinstance(f, type) or f in called, name


# ---- what a plan follows, and what is a guard ----

X = tp.tensor([1.0, -2.0, 3.0, 0.5])
COUNTS = tp.tensor([1, 0, 3, 2])


def test_counts_of_repeat_are_followed_and_their_sum_is_a_guard():
    plan = tp.freeze(tp.repeat, X, COUNTS)
    for counts in (COUNTS, tp.tensor([2, 2, 1, 1])):
        assert_same(plan(X, counts), tp.repeat(X, counts))
    with pytest.raises(tp.PlanError, match="it was 6 when the plan was recorded and is 7"):
        plan(X, COUNTS + tp.tensor([1, 0, 0, 0]))
    with pytest.raises(tp.PlanError, match=r"it was False .* and is True"):
        plan(X, tp.tensor([-1, 3, 3, 1]))
    one = tp.freeze(tp.repeat, X, tp.tensor([2]))
    with pytest.raises(tp.PlanError, match="it was 2 when the plan was recorded and is 3"):
        one(X, tp.tensor([3]))


def test_quantile_follows_its_points():
    plan = tp.freeze(tp.quantile, X, tp.tensor([0.1, 0.9]))
    assert_same(plan(X, tp.tensor([0.5, 0.75])), tp.quantile(X, tp.tensor([0.5, 0.75])))
    with pytest.raises(tp.PlanError, match=r"it was True .* and is False"):
        plan(X, tp.tensor([0.5, 1.5]))
    rate = tp.freeze(tp.quantile, X, 0.3)
    assert_same(rate(X, 0.85), tp.quantile(X, 0.85))


def test_a_number_in_a_tensor_as_an_index_is_followed():
    plan = tp.freeze(lambda x, i: (x[i], x[None, i], x[i:] if i is None else x[i] * 2), X, tp.tensor(1))
    for k in (0, 3, -1):
        assert_all_same(plan(X, tp.tensor(k)), (X[k], X[None, k], X[k] * 2))
    with pytest.raises(IndexError, match="index 4 is out of range for axis 0 of size 4"):
        plan(X, tp.tensor(4))


def test_an_index_out_of_range_names_its_axis():
    plan = tp.freeze(lambda x, i: x[:, i], tp.zeros((2, 3)), tp.tensor([0, 2]))
    with pytest.raises(IndexError, match="index 3 is out of range for axis 1 of size 3"):
        plan(tp.zeros((2, 3)), tp.tensor([0, 3]))


def test_powers_of_integers_guard_the_sign_alone():
    plan = tp.freeze(lambda a, b: a**b, tp.tensor([2, 3]), tp.tensor([0, 2]))
    assert plan(tp.tensor([2, 3]), tp.tensor([5, 1])).tolist() == [32, 3]
    with pytest.raises(tp.PlanError, match=r"it was False .* and is True"):
        plan(tp.tensor([2, 3]), tp.tensor([-1, 1]))


def test_sizes_in_tensors_are_guards():
    for f, given in (
        (tp.pad, [1, 2]), (tp.tile, [2]), (tp.reshape, [2, 2]), (lambda x, k: tp.split(x, k), [1, 3]),
        (lambda x, k: x + tp.zeros(k), [4]),
    ):  # fmt: skip
        plan = tp.freeze(f, X, tp.tensor(given))
        assert_all_same(plan(X, tp.tensor(given)), f(X, given))
        with pytest.raises(tp.PlanError, match="Python looked at a value"):
            plan(X, tp.tensor(given) + 1)


def draws(f, *runs):
    """f as eager and as a plan frozen for the first run, on the same random numbers."""
    tp.random.manual_seed(4)
    want = [f(*args) for args in runs]
    plan = tp.freeze(f, *runs[0])
    tp.random.manual_seed(4)
    for args, w in zip(runs, want, strict=True):
        assert_all_same(plan(*args), w, str(f))


def test_random_numbers():
    draws(lambda x: tp.random.integers(-3, 10, x.shape), (X,), (X,))
    draws(lambda x: tp.random.integers(0, 10**12, x.shape), (X,), (X,))
    draws(lambda x: tp.random.integers(-(2**63), 2**63 - 1, x.shape), (X,), (X,))
    draws(lambda x: tp.random.integers(0, 200, x.shape, "uint8"), (X,), (X,))
    draws(lambda x: x[tp.random.permutation(4)], (X,), (X * 2,))
    draws(lambda x: tp.random.permutation(x), (X,), (X * 2,))
    draws(tp.value_and_grad(lambda x: tp.sum(tp.random.permutation(x) * X)), (X,), (X * 2,))
    draws(lambda m, s: tp.random.normal(m, s, (5,)), (0.5, 2.0), (0.25, 0.1))
    draws(lambda m, s: tp.random.normal(m, s), (X, tp.abs(X)), (X * 2, tp.abs(X)))
    draws(lambda p: tp.random.bernoulli(p, (64,)), (0.25,), (0.8,))
    draws(lambda x: tp.random.bernoulli(tp.sigmoid(x)), (X,), (X * 2,))
    draws(lambda a, b: tp.random.uniform(a, b, (5,)), (-0.5, 2.0), (0.25, 0.5), (1.0, 1.0))
    draws(lambda a, b: tp.random.uniform(a, b), (X - 1, X), (X - 2, X))
    draws(lambda x: tp.dropout(x, 0.5), (X,), (X * 2,))


# ---- floats as arguments: weak, but tensors of the default dtype to functions, as numbers are ----

WHOLE = tp.tensor([3, 1, 2])
FLOATS = {
    "functions": lambda r: (
        tp.sin(r),
        tp.exp(r) * X,
        tp.add(r, 1.0),
        tp.multiply(r, 2),
        tp.sum(r),
        tp.reshape(r, (1,)),
    ),
    "operators": lambda r: (X * (2 * r + 1.0 - r / 3), X * -r, X * abs(r), X * (r**2), X + r // 0.25, X + r % 0.25),
    "stacked": lambda r: (tp.stack([r, r]), tp.stack([X[0], r]), tp.concat([X, tp.reshape(r, 1)]), tp.asarray(r)),
    "with integers": lambda r: (WHOLE * r, tp.maximum(WHOLE, r), tp.where(WHOLE > 1, WHOLE, r), r < WHOLE),
    "full": lambda r: (tp.full(2, r), tp.full_like(X, r), tp.full((2,), r, "float64")),
    "fills": lambda r: (tp.masked_fill(X, X > 0, r), tp.pad(X, 1, constant_values=r), tp.nan_to_num(X / 0, r)),
    "clip": lambda r: (tp.clip(X, -r, r), tp.clip(X, r, None), tp.leaky_relu(X, r), tp.elu(X, r), tp.lerp(X, 2 * X, r)),
    "searchsorted": lambda r: tp.searchsorted(tp.tensor([0.1, 0.3, 0.7]), r, side="right"),
    "writes": lambda r: put(X, r),
    "trapezoid": lambda r: tp.trapezoid(X, dx=r),
    "where": lambda r: X * 2 if r > 0.0 else X,
}
GUARDED = {
    "linspace": lambda r: tp.linspace(0.0, r, 5),
    "arange": lambda r: tp.arange(0.0, r, 0.25),
    "layer_norm": lambda r: tp.layer_norm(X, eps=r),
    "norm": lambda r: (tp.norm(X, r), tp.vector_norm(X, ord=r)),
    "var": lambda r: tp.var(X, correction=r),
    "huber_loss": lambda r: tp.huber_loss(X, 2 * X, delta=r),
    "float": lambda r: X * float(r),
}


def put(x, value):
    t = x.clone()
    t[1] = value
    t[WHOLE] = value
    return t


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_what_numbers_are(name):
    f = FLOATS[name]
    plan = tp.freeze(f, 0.3)
    for r in (0.3, 0.7, 0.1):
        assert_all_same(plan(r), f(r), f"{name} {r}")


@pytest.mark.parametrize("name", GUARDED)
def test_floats_that_have_to_be_numbers_are_guards(name):
    f = GUARDED[name]
    plan = tp.freeze(f, 1.5)
    assert_all_same(plan(1.5), f(1.5), name)
    with pytest.raises(tp.PlanError, match=r"it was 1\.5 when the plan was recorded and is 2\.5"):
        plan(2.5)
