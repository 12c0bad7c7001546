"""The passes of fast=True: what each takes out, and that values and gradients stay right.

Truth is the same program in float64; how far a float32 result may be from it is counted in eps of the program of
magnitudes (every sign positive), in which nothing cancels.
"""

import re

import numpy as np
import pytest
from helpers import INF, NAN, assert_same, host, rng_for
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow.plan import fast, fast_products, passes
from tapeflow.plan.ir import CODES, NAMES
from tapeflow.testing import strategies as tps

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)


@pytest.fixture
def always(monkeypatch):
    """Rewrite small programs, too, where it does not pay."""
    monkeypatch.setattr(fast_products, "_PASS_COST", 0)
    monkeypatch.setattr(fast_products, "_CALL_COST", 1 << 40)
    monkeypatch.setattr(fast, "_HOISTED", 1)


def count(plan, name):
    return [i.op for i in plan.instructions].count(CODES[name])


def done(plan):
    """The names of the passes that did something, each as often as it did."""
    return sorted(re.findall(r"fast, (\w+):", plan.explain()))


def tensors(rng, *shapes, dtype="float32"):
    return [tp.tensor(rng.normal(size=shape), dtype=dtype) for shape in shapes]


def flat(results):
    return [y for part in results for y in flat(part)] if isinstance(results, (tuple, list)) else [results]


def assert_close(f, *xs, mass=None, tolerance=64, label="", plan=None):
    """The fast plan of f, near its value in float64: by tolerance eps of mass, the same of magnitudes."""
    plan = plan or tp.freeze(f, *xs, fast=True)
    wide = [tp.tensor(host(x), dtype="float64") for x in xs]
    truths = flat(f(*wide))
    masses = flat((mass or f)(*[tp.abs(x) for x in wide]))
    for got, eager, truth, m in zip(flat(plan(*xs)), flat(f(*xs)), truths, masses, strict=True):
        got, eager, truth, m = map(host, (got, eager, truth, m))
        assert (got.shape, got.dtype) == (eager.shape, eager.dtype)
        finite = np.isfinite(truth)
        right = ~finite & ((eager == truth) | (np.isnan(eager) & np.isnan(truth)))
        assert_same(got[right], eager[right], label=(label, str(plan)))
        allowed = tolerance * (EPS[str(got.dtype)] * m + np.finfo(got.dtype).smallest_subnormal)
        finite &= np.isfinite(eager)  # where float32 overflows nothing is asked
        error = np.abs(got[finite].astype(float) - truth[finite])
        assert np.all(error <= allowed[finite]), (label, got, truth, allowed, str(plan))
    return plan


# ---- single passes


def test_w13_takes_no_large_product():
    rng = rng_for("w13")
    n = 256

    def f(a, b):
        return tp.value_and_grad(lambda a, b: tp.sum(a @ b), argnums=(0, 1))(a, b)

    a, b = (tp.tensor(rng.uniform(size=(n, n)), dtype="float32") for _ in range(2))
    plan = assert_close(f, a, b)
    exact = tp.freeze(f, a, b)
    assert exact.flops > 6 * n**3 and plan.flops < 20 * n**2
    assert done(plan) == ["contract_sums", "uniform_operands", "uniform_operands"]
    assert "the sum of [256, 256] @ [256, 256] is a product of sums" in plan.explain()
    assert done(exact) == [] and "  fast" not in str(exact)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", [tp.sum, tp.mean])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_of_a_product(dtype, reduction, axis, keepdims, always):
    a, b = tensors(rng_for(axis, keepdims), (2, 3, 4), (4, 5), dtype=dtype)
    plan = assert_close(lambda a, b: reduction(a @ b, axis=axis, keepdims=keepdims), a, b)
    assert done(plan) == (["contract_sums"] if axis != 0 else [])


ODD = [0.0, -0.0, 1.0, -1.0, 2.5, INF, -INF, NAN, 3e38, -3e38, 1e-30, 1e-45, -1e20]


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("reduction", [tp.sum, tp.mean])
def test_sums_of_a_product_of_odd_numbers(axis, reduction, always):
    """Each pair of odd numbers in each place of small matrices: NaN, infinities and finite values where they were."""
    rng = rng_for("odd")
    f = lambda a, b: reduction(a @ b, axis=axis)  # noqa: E731
    plan = None
    for k in range(1000):
        a, b = rng.choice(ODD, (2, 3)), rng.choice(ODD[: 5 + k % 9], (3, 2))
        a, b = (np.where(rng.random(x.shape) < 0.5, rng.normal(size=x.shape), x) for x in (a, b))
        a, b = (tp.tensor(x, dtype="float32") for x in (a, b))
        plan = assert_close(f, a, b, label=(a, b), plan=plan)
    assert set(done(plan)) >= {"contract_sums"}


def test_a_sum_that_overflows_where_its_terms_do_not(always):
    a, b = tp.full((4, 3), 3e38), tp.full((3, 4), 1e-38)
    plan = tp.freeze(lambda a, b: tp.sum(a @ b), a, b, fast=True)
    assert done(plan) == ["contract_sums"]
    assert plan(a, b).item() == pytest.approx(3.0 * 48, rel=1e-6)
    assert plan(-a, b).item() == pytest.approx(-3.0 * 48, rel=1e-6)
    assert plan(a, tp.full((3, 4), 1.0)).item() == INF
    wide = [x.astype("float64") for x in (a, b)]
    plan = tp.freeze(lambda a, b: tp.mean(a @ b), *wide, fast=True)
    huge = tp.full((4, 3), 1.5e308, dtype="float64")
    assert plan(huge, tp.full((3, 4), 0.25, dtype="float64")).item() == pytest.approx(1.125e308, rel=1e-12)


def test_a_product_that_is_read_elsewhere_stays():
    a, b = tensors(rng_for("stays"), (200, 200), (200, 200))

    def f(a, b):
        y = a @ b
        return tp.sum(y), y

    assert done(tp.freeze(f, a, b, fast=True)) == []


def test_small_sums_of_products_stay():
    a, b = tensors(rng_for("small"), (8, 8), (8, 8))
    assert done(tp.freeze(lambda a, b: tp.sum(a @ b), a, b, fast=True)) == []


UNIFORM = {
    "ones": lambda a, s: tp.ones((4, 3), dtype=a.dtype) @ a,
    "a number": lambda a, s: a @ tp.full((5, 4), 2.5, dtype=a.dtype),
    "a constant row": lambda a, s: tp.tensor(np.tile([1.0, 2.0, 0.5], (4, 1)), dtype=a.dtype) @ a,
    "a broadcast scalar": lambda a, s: tp.broadcast_to(s, (4, 3)) @ a,
    "a broadcast row": lambda a, s: tp.broadcast_to(a[:, 0], (4, 3)) @ a,
    "a broadcast column": lambda a, s: a @ tp.broadcast_to(a[0][:, None], (5, 4)),
    "a permuted one": lambda a, s: a @ tp.permute_dims(tp.broadcast_to(a[0], (4, 5)), (1, 0)),
    "what is computed of one": lambda a, s: tp.exp(tp.broadcast_to(a[:, 0], (4, 3)) * s) @ a,
    "both sides": lambda a, s: tp.broadcast_to(a[:, 0], (4, 3)) @ (a @ tp.broadcast_to(s, (5, 2))),
    "a batch": lambda a, s: tp.broadcast_to(a[:, 0], (2, 4, 3)) @ a,
}


@pytest.mark.parametrize("name", UNIFORM)
def test_products_with_an_operand_that_is_alike(name):
    f = UNIFORM[name]
    a, s = tensors(rng_for(name), (3, 5), ())
    plan = assert_close(f, a, s)
    assert set(done(plan)) == {"uniform_operands"}
    assert plan.flops < tp.freeze(f, a, s).flops
    for odd in (INF, NAN):  # the same sums of the same products
        x = a.clone()
        x[1, 2] = odd
        assert_close(f, x, s)


def test_what_is_alike_along_the_sum_is_taken_out_of_it(always):
    def left(a, b):
        return tp.broadcast_to(a[:, :1], (4, 3)) @ b

    def right(a, b):
        return a @ tp.broadcast_to(b[:1], (3, 5))

    rng = rng_for("alike")
    for f in (left, right):
        plan = None
        for k in range(300):
            a, b = rng.choice(ODD, (4, 3)), rng.choice(ODD[: 5 + k % 9], (3, 5))
            a, b = (tp.tensor(x, dtype="float32") for x in (a, b))
            plan = assert_close(f, a, b, label=(a, b), plan=plan)
        assert done(plan) == ["contract_sums"]


def lstm(steps, w, u, b, x, h):
    c, n = h, 4
    for t in range(steps):
        z = x[t] @ w + h @ u + b
        i, f, o = (tp.sigmoid(z[:, k * n : (k + 1) * n]) for k in (0, 1, 3))
        c = f * c + i * tp.tanh(z[:, 2 * n : 3 * n])
        h = o * tp.tanh(c)
    return tp.sum(h * h)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_weights_of_a_loop_are_one_product(dtype):
    steps = 6
    xs = tensors(rng_for("lstm"), (2, 16), (4, 16), (16,), (steps, 3, 2), (3, 4), dtype=dtype)
    f = tp.value_and_grad(lambda *xs: lstm(steps, *xs), argnums=(0, 1, 2, 3))
    plan, exact = tp.freeze(f, *xs, fast=True), tp.freeze(f, *xs)
    truth = f(*[tp.tensor(host(x), dtype="float64") for x in xs])
    for got, want in zip(flat(plan(*xs)), flat(truth), strict=True):
        scale = np.abs(host(want)).max()
        np.testing.assert_allclose(host(got), host(want), rtol=0, atol=200 * EPS[dtype] * scale)
    # one each: x[t] @ w of all steps, the gradient of x, those of w and u; what is left goes from step to step
    assert count(exact, "matmul") == 6 * steps - 1 and count(plan, "matmul") == 3 + steps + (steps - 1)
    assert count(exact, "sum") == steps + 1 and count(plan, "sum") == 2
    assert count(plan, "assign") == count(plan, "unslice") == 0
    assert count(plan, "concat") == steps + 4  # each dz; all of them; all h; x beside them; the gradient of x
    assert len(plan.instructions) < len(exact.instructions) - 15 * steps
    for name, times in (("batch_products", 3), ("concat_products", 2), ("concat_sums", 1), ("concat_windows", 7)):
        lines = [line for line in plan.explain().splitlines() if f"fast, {name}: " in line]
        assert sum(int((re.findall(r", (\d+) times", line) or [1])[0]) for line in lines) == times, name
    assert f"{steps} products like [2, 3] @ [3, 16] that are added: one over {3 * steps}" in plan.explain()


def test_windows_in_order_are_not_copied():
    w, x = tensors(rng_for("windows"), (4, 5), (6, 3, 4))

    def rows(w, x):
        return [x[t] @ w for t in range(6)]

    def slices(w, x):
        flat = tp.reshape(x, (18, 4))
        return [flat[3 * t : 3 * t + 3] @ w for t in range(1, 6)]

    def backwards(w, x):
        return [x[5 - t] @ w for t in range(6)]

    def steps(w, x):
        return [tp.reshape(x, (18, 4))[t::2] @ w for t in range(2)]

    for f, copies in ((rows, 0), (slices, 0), (backwards, 1), (steps, 1)):
        plan = assert_close(f, w, x)
        assert count(plan, "matmul") == 1 and count(plan, "concat") == copies, f.__name__


def test_products_of_what_is_computed_between_them_are_not_batched():
    w, x = tensors(rng_for("between"), (4, 4), (3, 4))

    def f(w, x):
        y = x @ w
        z = tp.tanh(y) @ w
        return y @ w, z, tp.exp(z) @ w

    plan = assert_close(f, w, x, tolerance=256)
    assert count(plan, "matmul") == 3 and done(plan) == ["batch_products"]


def test_chains_of_additions():
    a, b, c = tensors(rng_for("chains"), (3, 2), (2, 4), (3, 4))

    def f(a, b, c):
        total = c + a @ b
        for k in range(4):
            total = (a * float(k)) @ (b + 1.0) + total
        return total + c * c

    plan = assert_close(f, a, b, c)
    assert count(plan, "matmul") == 1 and done(plan) == ["concat_products"]

    def shared(a, b, c):  # what is read elsewhere is a term by itself
        y = a @ b
        total = y + (2.0 * a) @ (b * 2.0)
        return total, y, total + (a * 3.0) @ (b * 3.0) + (a * 4.0) @ (b * 4.0) + (a * 5.0) @ (b * 5.0)

    plan = assert_close(shared, a, b, c)
    assert count(plan, "matmul") == 3 and done(plan) == ["concat_products"]

    def broadcast(a, b, c):
        return (a @ b)[0] + (a * 2.0) @ b

    assert done(assert_close(broadcast, a, b, c)) == []


def test_a_long_chain():
    xs = tensors(rng_for("long"), (3, 3), (3, 3))

    def f(a, b):
        total = a @ b
        for k in range(2, 1500):
            total = total + (a * float(k)) @ b
        return total

    plan = tp.freeze(f, *xs, fast=True)
    assert count(plan, "matmul") == 1


def test_long_sums_are_not_copied_together():
    a, b = tensors(rng_for("long sums"), (8, 4000), (4000, 8))
    plan = tp.freeze(lambda a, b: a @ b + (a * 2.0) @ (b - 1.0), a, b, fast=True)
    assert count(plan, "matmul") == 2 and done(plan) == []


# ---- constants, negations


def ops(plan):
    """The ops that compute, in order."""
    return [NAMES[i.op] for i in plan.instructions]


X = np.array([1.5, -0.75, 3.0, 1e3, -1e-3, 0.1])
CHAINS = {
    "factors": (lambda x: (x * 3.0) * 0.7, ["multiply"]),
    "a quotient": (lambda x: (x / 3.0) * 7.0, ["multiply"]),
    "factors from the left": (lambda x: 3.0 * (0.7 * (x * 1.1)), ["multiply"]),
    "what is 1 then": (lambda x: (x * 4.0) / 4.0, []),
    "a negated product": (lambda x: -(x * 3.0), ["multiply"]),
    "a negated factor": (lambda x: (-x) * 3.0, ["multiply"]),
    "summands": (lambda x: (x + 1.5) - 0.25, ["add"]),
    "summands that cancel": (lambda x: (x + 1.5) - 1.5, ["add"]),
    "a negated summand": (lambda x: x * x + (-x), ["multiply", "subtract"]),
    "a first one": (lambda x: (-x) + x * x, ["multiply", "subtract"]),
    "a subtracted one": (lambda x: x * x - (-x), ["multiply", "add"]),
    "two negations": (lambda x: (-x) * (-tp.exp(x / 1e3)), ["multiply", "exp", "multiply"]),
    "a negated difference": (lambda x: -(x - x * x), ["multiply", "subtract"]),
    "a division": (lambda x: x / 3.0, ["multiply"]),
    "a square": (lambda x: tp.pow(x, 2.0), ["square"]),
    "a cube": (lambda x: x**3, ["square", "multiply"]),
    "a fourth power": (lambda x: x**4, ["square", "square"]),
    "a reciprocal": (lambda x: tp.pow(x, -1.0), ["reciprocal"]),
    "its square": (lambda x: x**-2, ["reciprocal", "square"]),
    "a root": (lambda x: x**0.5, ["add", "sqrt", "equal", "where"]),
    "its reciprocal": (lambda x: x**-0.5, ["add", "sqrt", "reciprocal", "equal", "where"]),
    "one and a half": (lambda x: x**1.5, ["add", "sqrt", "multiply", "equal", "where"]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHAINS)
def test_constants_negations_and_powers(name, dtype):
    f, left = CHAINS[name]
    x = tp.tensor(np.abs(X) if "root" in name or "half" in name or "its" in name else X, dtype=dtype)
    plan, want = tp.freeze(f, x, fast=True), host(f(tp.tensor(host(x), dtype="float64")))
    assert ops(plan) == left
    np.testing.assert_allclose(host(plan(x)), want, rtol=5 * EPS[dtype], atol=4 * EPS[dtype] * ("summands" in name))
    info = np.finfo(dtype)
    x = tp.tensor([*ODD, 5e-39, -5e-39, 1e19, -1e-19, float(info.max) / 64, info.smallest_subnormal], dtype=dtype)
    plan = tp.freeze(f, x, fast=True)
    got, eager, wide = host(plan(x)), host(f(x)), host(f(tp.tensor(host(x), dtype="float64")))
    with np.errstate(over="ignore"):
        same = (eager.astype(float) == wide.astype(dtype)) | np.isnan(wide)  # neither over- nor underflow on the way
    absolute = 4 * EPS[dtype] if "summands" in name else 2 * float(info.smallest_subnormal)
    np.testing.assert_allclose(got[same], eager[same], rtol=5 * EPS[dtype], atol=absolute)
    assert np.all(np.isfinite(got) | ~np.isfinite(eager)) and np.array_equal(np.isnan(got), np.isnan(eager))


LEFT = {
    "a factor of 0": (lambda x: (x * 0.0) * 3.0, ["multiply", "multiply"]),
    "an infinite factor": (lambda x: (x * INF) * 0.5, ["multiply", "multiply"]),
    "factors that underflow": (lambda x: (x * 1e-30) * 1e-30, ["multiply", "multiply"]),
    "factors that overflow": (lambda x: (x * 1e30) * 1e30, ["multiply", "multiply"]),
    "a subnormal reciprocal": (lambda x: x / 2e38, ["divide"]),
    "an infinite reciprocal": (lambda x: x / 1e-39, ["divide"]),
    "summands that round": (lambda x: (x - 1e8) + 1.0, ["subtract", "add"]),
    "other powers": (lambda x: x**2.5 + x**5, ["pow", "pow", "add"]),
    "a sum that is read twice": (lambda x: (x + 1.0, (x + 1.0) + 2.0), ["add", "add"]),
    "a column": (lambda x: x[:, None] + (-x), ["negative", "getitem", "add"]),
    "products of exponentials": (lambda x: tp.exp(x) * tp.exp(-x), ["negative", "exp", "exp", "multiply"]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_it_is(name):
    f, left = LEFT[name]
    x = tp.tensor(np.abs(X), dtype="float32")
    plan = tp.freeze(f, x, fast=True)
    assert sorted(ops(plan)) == sorted(left) and done(plan) == []
    for got, want in zip(flat(plan(x)), flat(f(x)), strict=True):
        assert_same(got, want)


HOISTED = {
    "a factor": (lambda x: tp.sum(3.0 * x), ["sum", "multiply"], True),
    "a small one": (lambda x: tp.sum(x * 0.25, axis=0), ["mean", "multiply"], False),
    "a negation": (lambda x: tp.sum(-x, axis=1), ["sum", "negative"], True),
    "a negated mean": (lambda x: tp.mean(-x), ["mean", "negative"], True),
    "a quotient": (lambda x: tp.mean(x / 8.0, axis=1), ["mean", "multiply"], False),
    "sums of sums": (lambda x: tp.sum(tp.sum(x, axis=0)), ["sum"], True),
    "with what is kept": (lambda x: tp.sum(tp.sum(x, axis=1, keepdims=True)), ["sum"], True),
    "means of means": (lambda x: tp.mean(tp.mean(x, axis=1), axis=0), ["mean"], False),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", HOISTED)
def test_sums_of_what_has_a_factor(name, dtype, always):
    f, left, wide = HOISTED[name]
    mass = (lambda x: -f(x)) if "nega" in name else f
    rng = rng_for(name)
    plan = assert_close(f, *tensors(rng, (3, 4), dtype=dtype), mass=mass)
    assert [op for op in ops(plan) if op != "reshape"] == left or (dtype == "float64" and not wide)
    for k in range(300):
        x = tp.tensor(rng.choice(ODD[: 5 + k % 9], (3, 4)), dtype=dtype)
        assert_close(f, x, label=x, plan=plan, mass=mass)


def test_a_factor_does_not_let_a_sum_overflow(always):
    x = tp.full((4, 100), 3e38)
    for f in (lambda x: tp.sum(x * 1e-4), lambda x: tp.mean(x * 0.5), lambda x: tp.mean(tp.mean(x, axis=1))):
        plan = tp.freeze(f, x, fast=True)
        assert done(plan) == ["hoist_scalars"]
        assert plan(x).item() == pytest.approx(f(x).item(), rel=1e-6)
    huge = tp.full((4, 100), 1e308, dtype="float64")
    for f in (lambda x: tp.sum(x * 1e-4), lambda x: tp.mean(x * 0.5), lambda x: tp.mean(x * 1.5)):
        plan = tp.freeze(f, huge, fast=True)
        assert done(plan) == []


# ---- windows


def test_gradients_of_slices_that_meet_are_their_windows():
    x, y = tensors(rng_for("slices"), (5, 8), (8,))

    def f(x, y):
        return tp.sum(tp.sin(x[:, :3])) + tp.sum(x[:, 3:4] * 2.0) + tp.sum(x[:, 4:] ** 2) + tp.sum(y[:4] * y[4:])

    g = tp.grad(f, argnums=(0, 1))
    plan = assert_close(g, x, y, mass=lambda x, y: [tp.abs(z) + 1.0 for z in g(x, y)])
    assert count(plan, "concat") == 2 and count(plan, "assign") == count(plan, "unslice") == 0
    assert count(tp.freeze(g, x, y), "assign") == 3
    assert set(done(plan)) == {"zero_windows", "concat_windows"}
    assert_same(plan(x, y)[1], tp.grad(f, argnums=(0, 1))(x, y)[1])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: tp.sum(x[1:] * x[:-1]),  # they overlap
        lambda x: tp.sum(x[:3] ** 2) + tp.sum(x[4:] ** 3),  # something is left between them
        lambda x: tp.sum(x[::2] ** 2) + tp.sum(x[1::2] ** 3),  # their ranges overlap
        lambda x: tp.sum(x[5::-1] ** 2) + tp.sum(x[6:] ** 3),  # backwards
    ],
)
def test_gradients_of_other_slices(f):
    (x,) = tensors(rng_for("others"), (8,))
    plan = assert_close(tp.grad(f), x, mass=lambda x: tp.grad(f)(x) + 1.0)
    assert "concat_windows" not in done(plan)


def test_windows_written_into_what_is_not_zero_stay():
    (x,) = tensors(rng_for("writes"), (8,))

    def f(x):
        y = x * 1.0
        y[:4] = y[:4] + x[4:]
        y[4:] = x[:4]
        return y + y[::-1]

    plan = assert_close(f, x)
    assert done(plan) == []


def test_a_transposed_product_is_computed_so():
    x, w = tensors(rng_for("transposed"), (6, 4), (4, 3))
    for f in (lambda x, w: (x @ w).T, lambda x, w: tp.sin((x @ w).T), lambda x, w: (x.T.T @ w).mT * 2.0):
        plan = assert_close(f, x, w, mass=lambda x, w, f=f: tp.abs(f(x, w)) + 1.0)
        assert done(plan) == ["transpose_products"]
        assert [op for op in ops(plan) if op in ("permute_dims", "matmul")] == [
            "permute_dims",
            "permute_dims",
            "matmul",
        ]
    plan = assert_close(lambda x, w: (x.T.T @ w.T.T).T, tp.tensor(host(x)), w)
    for f in (lambda x, w: (x @ w).T @ x, lambda x, w: (x @ w[:, :1]).T, lambda x, w: x @ w):
        assert done(assert_close(f, x, w)) == []


# ---- options


def test_every_rewrite_is_in_text_file_and_explanation(tmp_path, always):
    a, b = tensors(rng_for("kept"), (3, 4), (4, 5))
    plan = tp.freeze(lambda a, b: tp.sum(a @ b), a, b, fast=True)
    line = next(line for line in plan.explain().splitlines() if "fast, " in line)
    assert re.search(r"fast, contract_sums: the sum of \[3, 4\] @ \[4, 5\] is .*test_plan_fast.py:\d+\)", line)
    plan.save(tmp_path / "plan")
    loaded, parsed = tp.load_plan(tmp_path / "plan"), tp.parse_plan(str(plan))
    for again in (loaded, parsed):
        assert str(again) == str(plan).replace("<lambda>", again.name) and done(again) == ["contract_sums"]
    assert_same(loaded(a, b), plan(a, b))
    assert_same(parsed(a, b)[0], plan(a, b))
    assert line in loaded.explain()
    kept = tp.freeze(lambda a, b: tp.sum(a @ b), a, b, fast=True, differentiable=True)
    kept.save(tmp_path / "kept")
    again = tp.load_plan(tmp_path / "kept")
    assert again.passes == kept.passes and done(again) == ["contract_sums"]
    assert_same(again(a, b), plan(a, b))


def test_a_fast_plan_that_is_differentiated_is_the_function(always):
    a, b = tensors(rng_for("function"), (3, 4), (4, 5))
    f = lambda a, b: tp.sum(a @ b)  # noqa: E731
    plan = tp.freeze(f, a, b, fast=True)
    for got, want in zip(tp.grad(plan, argnums=(0, 1))(a, b), tp.grad(f, argnums=(0, 1))(a, b), strict=True):
        assert_same(got, want)


def test_a_fast_step_of_descent_trains_like_the_function(always):
    rng = rng_for("descent")
    x, start = rng.normal(size=(5, 4, 3)), rng.normal(size=(3, 3)) / 2
    ends = []
    for make in (lambda f: f, tp.function, lambda f: tp.function(f, fast=True)):
        w, b = tp.tensor(start, requires_grad=True), tp.tensor(np.zeros(3), requires_grad=True)

        def step(x, w=w, b=b):
            h = x[0]
            for t in range(5):
                h = tp.tanh(x[t] @ w + h @ w + b)
            loss = tp.mean((h @ w - 1.0) ** 2) / 3.0
            loss.backward()
            with tp.no_grad():
                w.assign_sub(0.25 * w.grad)
                b.assign_sub(0.25 * b.grad)
            w.grad = None  # that of b goes on
            return loss

        run = make(step)
        losses = [run(tp.tensor(x)).item() for _ in range(8)]
        ends.append([np.array(losses), host(w.detach()), host(b.detach()), host(b.grad)])
    assert losses[-1] < losses[0] and "fast, concat_products" in run.explain()
    for eager, exact, quick in zip(*ends, strict=True):
        assert_same(exact, eager)
        np.testing.assert_allclose(quick, eager, rtol=1e-12, atol=1e-14)


def test_a_fast_plan_over_a_batch(always):
    a, b = tensors(rng_for("batch"), (3, 4), (4, 5), dtype="float64")
    batch = tensors(rng_for("batches"), (6, 3, 4), dtype="float64")[0]
    plan = tp.freeze(lambda a, b: tp.sum(a @ b, axis=0) ** 3, a, b, fast=True)
    got = tp.vmap(plan, in_axes=(0, None))(batch, b)
    np.testing.assert_allclose(host(got), np.sum(host(batch) @ host(b), axis=1) ** 3, rtol=1e-12)


def test_where_fast_is_given():
    a = tp.tensor(rng_for("given").normal(size=(200, 200)), dtype="float32")

    def f(a):
        return tp.sum(a @ a)

    assert done(tp.freeze(f, a, fast=True)) == ["contract_sums"]
    compiled = tp.function(f, fast=True)
    want = compiled(a).item()
    assert done(compiled.plans[0]) == ["contract_sums"] and compiled(a).item() == pytest.approx(want, rel=1e-4)
    decorated = tp.function(fast=True)(f)
    decorated(a)
    assert done(decorated.plans[0]) == ["contract_sums"]
    with tp.Tape() as tape:
        y = f(a)
    assert done(tape.freeze([a], y, fast=True)) == ["contract_sums"]
    named = tp.freeze(f, a, passes=("dce", "contract_sums", "fuse"))
    assert done(named) == ["contract_sums"] and named.passes == ("dce", "contract_sums", "fuse")
    for plan in (tp.freeze(f, a), tp.freeze(f, a, fast=False)):
        assert plan.passes == passes.DEFAULT and done(plan) == []
        assert_same(plan(a), f(a))


def test_what_fast_may_be():
    x = tp.ones(2)
    for call in (lambda **k: tp.freeze(tp.exp, x, **k), lambda **k: tp.function(tp.exp, **k)):
        with pytest.raises(tp.PlanError, match="fast must be True or False, got 1"):
            call(fast=1)
    with pytest.raises(tp.PlanError, match="both passes= and fast=True"):
        tp.freeze(tp.exp, x, passes=("dce",), fast=True)
    with pytest.raises(tp.PlanError, match=r"unknown pass 'quick'\. The passes: .*contract_sums.*fuse"):
        tp.freeze(tp.exp, x, passes=("quick",))


def test_every_pass_says_what_it_keeps():
    for name, f in fast.PASSES.items():
        assert f.__doc__ and name in (fast.__doc__ or "") and name == f.__name__ and name not in passes.PASSES


# ---- random programs


@settings(max_examples=4 * settings.default.max_examples)
@given(tps.programs())
def test_random_programs(program):
    """All the things that tensors do: the same values and gradients, to rounding."""
    assume(".tolist()" not in str(program))  # a look, which no plan takes
    f = tp.value_and_grad(program, argnums=tuple(range(len(program.leaves))))
    leaves = [tp.tensor(a) for a in program.leaves]
    plan, want = tp.freeze(f, *leaves, fast=True), f(*leaves)
    masses = [mass for _, mass in program.gradients()]
    for got, w, mass in zip(flat(plan(*leaves)), flat(want), [np.abs(host(want[0])), *masses], strict=True):
        assert np.all(np.abs(host(got) - host(w)) <= 1e-11 + 1e-11 * mass), (program, str(plan))


# Matrices of two or three rows; each step takes values of the list so far and appends what it makes.
STEPS = {
    "product": lambda a, b, c: a @ b,
    "transposed": lambda a, b, c: a.mT @ b.mT,
    "sum": lambda a, b, c: tp.broadcast_to(tp.sum(a @ b), (2, 2)),
    "rows": lambda a, b, c: tp.broadcast_to(tp.sum(a @ b, axis=0), (2, 2)),
    "columns": lambda a, b, c: tp.broadcast_to(tp.mean(a @ b, axis=1, keepdims=True), (2, 2)),
    "chain": lambda a, b, c: a @ b + b @ c + c @ a,
    "more": lambda a, b, c: a + b @ c,
    "even": lambda a, b, c: tp.full((2, 2), 0.5, dtype=a.dtype) @ a,
    "alike": lambda a, b, c: tp.broadcast_to(a[0], (2, 2)) @ b,
    "sums": lambda a, b, c: tp.broadcast_to(tp.sum(a, axis=0) + tp.sum(b, axis=0) + tp.sum(c, axis=0), (2, 2)),
    "same": lambda a, b, c: tp.concat([a @ c, b @ c])[1:3],
    "times": lambda a, b, c: a * b,
    "scaled": lambda a, b, c: a * 3.0,
    "again": lambda a, b, c: (a * 0.75) * 0.3,
    "divided": lambda a, b, c: tp.sum(a / 3.0) + b,
    "cube": lambda a, b, c: a**3,
    "mean": lambda a, b, c: tp.mean(tp.mean(a, axis=0)) + b * 2.0,
    "factor": lambda a, b, c: tp.sum(0.125 * a, axis=0) + tp.sum(7.0 * b, axis=1, keepdims=True),
}
SIGNED = {
    "negated": (lambda a, b, c: (-a) * b, lambda a, b, c: a * b),
    "minus": (lambda a, b, c: a - (-b) @ c, lambda a, b, c: a + b @ c),
    "reversed": (lambda a, b, c: -(a - b) + c, lambda a, b, c: a + b + c),
    "shifted": (lambda a, b, c: (a - 0.5) + 1.5, lambda a, b, c: a + 2.0),
}

steps = st.lists(st.tuples(st.sampled_from([*STEPS, *SIGNED]), *[st.integers(0, 7)] * 3), min_size=1, max_size=6)


def program_of(steps, positive):
    def f(*xs):
        values = list(xs)
        for name, *picks in steps:
            step = SIGNED[name][positive] if name in SIGNED else STEPS[name]
            values.append(step(*[values[-1 - i % len(values)] for i in picks]))
        return tp.sum(values[-1]), values[-1]

    return tp.value_and_grad(f, argnums=(0, 1), has_aux=True)


@settings(max_examples=4 * settings.default.max_examples)
@given(steps, st.integers(0, 1 << 16), st.sampled_from([0.0, 0.0, 0.3]))
def test_random_products(steps, seed, odd):
    """Programs of the shapes that passes look for, of plain numbers and of odd ones."""
    rng = np.random.default_rng(seed)
    xs = [rng.uniform(-2, 2, (2, 2)) for _ in range(2)]
    xs = [np.where(rng.random(x.shape) < odd, rng.choice([0.0, -0.0, INF, -INF, NAN], x.shape), x) for x in xs]
    xs = [tp.tensor(x, dtype="float32") for x in xs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_products, "_PASS_COST", 0)
        patch.setattr(fast_products, "_CALL_COST", 1 << 40)
        patch.setattr(fast, "_HOISTED", 1)
        f, mass = program_of(steps, False), program_of(steps, True)
        assert_close(f, *xs, mass=mass, tolerance=512, label=steps)


def test_the_names_that_passes_look_for_are_ops():
    assert {"matmul", "concat", "getitem"} <= set(NAMES)
