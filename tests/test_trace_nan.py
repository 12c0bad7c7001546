"""trace_nan: the op that makes inf or NaN out of finite values is named, forward, backward and in plans; others not."""

import inspect
import threading

import numpy as np
import pytest
from helpers import INF, NAN, assert_same

import tapeflow as tp
from tapeflow import _core
from tapeflow.errors import NonFiniteError
from tapeflow.ops import TABLE


def here(offset=0):
    """This file and the caller's line."""
    return __file__, inspect.currentframe().f_back.f_lineno + offset


def vector(*values, dtype="float32"):
    return tp.tensor(list(values), dtype=dtype)


# ---- forward

FORWARD = {
    "log": (lambda: tp.log(vector(1.0, 0.0, 0.0)), "log", (1,)),
    "divide": (lambda: vector(1.0, 0.0) / vector(1.0, 0.0), "divide", (1,)),
    "a number": (lambda: 1.0 / tp.tensor(0.0), "divide", ()),
    "broadcast": (lambda: tp.ones((2, 3)) / vector(1.0, 1.0, 0.0), "divide", (0, 2)),
    "strided": (lambda: tp.log(tp.tensor([[1.0, 2.0], [0.0, 3.0]]).T), "log", (0, 1)),
    "exp": (lambda: tp.exp(tp.tensor(1000.0)), "exp", ()),
    "sqrt": (lambda: tp.sqrt(vector(-1.0)), "sqrt", (0,)),
    "in place": (lambda: vector(1.0, 1.0).__itruediv__(vector(1.0, 0.0)), "divide", (1,)),
    "sum": (lambda: vector(3e38, 3e38).sum(), "sum", ()),
    "mean of nothing": (lambda: tp.zeros((0,)).mean(), "mean", ()),
    "matmul": (lambda: tp.full((2, 2), 1e200, "float64") @ tp.full((2, 2), 1e200, "float64"), "matmul", (0, 0)),
    "dot": (lambda: vector(1e30) @ vector(1e30), "vecdot", ()),
    "var": (lambda: tp.var(vector(1.0), correction=1), "var", ()),
    "cumulative_sum": (lambda: tp.cumulative_sum(vector(3e38, 3e38, 1.0)), "cumulative_sum", (1,)),
    "cast": (lambda: vector(1e300, dtype="float64").astype("float32"), "astype", (0,)),
    "large": (lambda: tp.log(tp.arange(100000, 0, -1, dtype="float64") - 30000.0), "log", (70000,)),
    "recorded": (lambda: tp.log(vector(1.0, 0.0).requires_grad_()), "log", (1,)),
    "under no_grad": (lambda: tp.no_grad()(tp.log)(vector(0.0)), "log", (0,)),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name):
    f, op, index = FORWARD[name]
    f()
    with tp.trace_nan(), pytest.raises(NonFiniteError) as caught:
        f()
    assert (caught.value.op, caught.value.index) == (op, index)
    assert caught.value.place[0] == __file__
    f()


def test_the_message():
    with tp.trace_nan(), pytest.raises(FloatingPointError) as caught:
        vector(1.0, 2.0) / vector(1.0, 0.0)
    place = here(-1)
    assert str(caught.value) == (
        "[divide] inf at index (1,) of the result float32[2], of finite operands float32[2] (2.0 there) and float32[2] "
        f"(0.0 there), in {place[0]}:{place[1]}. Keep the operands within the domain and range of the op there."
    )
    assert caught.value.place == place and isinstance(caught.value, tp.TapeflowError)


PASSES = {
    "inf in": lambda: tp.exp(vector(1.0, INF)),
    "nan in": lambda: vector(NAN, 1.0) * 2.0,
    "a mask of -inf": lambda: tp.softmax(tp.where(tp.tensor([True, False]), vector(1.0, 2.0), -INF)),
    "a reduction over inf": lambda: tp.sum(vector(INF, -INF)),
    "made, not computed": lambda: tp.full((2,), INF),
    "matmul of inf": lambda: vector(INF, 0.0) @ vector(0.0, 1.0),
    "joined": lambda: tp.concat([vector(1.0), vector(INF)]),
    "written": lambda: vector(1.0, 2.0).__setitem__(0, INF),
    "integers": lambda: tp.tensor([1, 2]) // tp.tensor([1, 1]),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_was_not_finite_may_stay_so(name):
    with tp.trace_nan():
        PASSES[name]()


def test_element_by_element():
    """An inf at another element of the operand excuses nothing."""
    x = vector(INF, 0.0, 1.0)
    with tp.trace_nan():
        with pytest.raises(NonFiniteError) as caught:
            tp.log(x)
        assert caught.value.index == (1,)
        assert tp.log(vector(INF, 1.0)).tolist() == [INF, 0.0]


@pytest.mark.parametrize("name", [n for n, op in TABLE.items() if hasattr(op, "domain") and op.kind == "float"])
def test_every_elementwise_op_is_looked_at(name):
    """Of operands at 0 and far out: raises where the value shows inf or NaN, and only there."""
    f = getattr(tp, name, None)
    if f is None:
        f = lambda *xs: _core.apply_op(  # noqa: E731
            _core.op_names().index(name), (), list(xs), 5, (xs[0].shape)
        )
    nin = len(TABLE[name].domain)
    points = np.array([0.0, 1.0, -1.0, 1e300, -1e300, 2.0])
    grids = np.meshgrid(*[points] * nin, indexing="ij")
    xs = [tp.tensor(g.ravel()) for g in grids]
    value = np.asarray(f(*xs).detach().astype("float64"))
    bad = np.flatnonzero(~np.isfinite(value))
    with tp.trace_nan():
        if bad.size:
            with pytest.raises(NonFiniteError) as caught:
                f(*xs)
            assert caught.value.op == name and caught.value.index == (bad[0],)
        else:
            f(*xs)


# ---- backward


def gradient(f, *x):
    return tp.grad(lambda x: f(x).sum())(vector(*x))


def test_backward_names_op_and_both_lines():
    with tp.trace_nan():
        x = vector(1.0, 0.0, 4.0).requires_grad_()
        y = tp.sqrt(x)
        forward = here(-1)
        with pytest.raises(NonFiniteError) as caught:
            y.sum().backward()
        back = here(-1)
    error = caught.value
    assert (error.op, error.index, error.place) == ("sqrt", (1,), forward)
    assert x.grad is None
    for text in ("[sqrt] the backward made inf at index (1,)", f"called in {back[0]}:{back[1]}",
                 f"op ran in {forward[0]}:{forward[1]}", "cotangent float32[3] (1.0 there)"):  # fmt: skip
        assert text in str(error)


BACKWARD = {
    "log": (lambda: gradient(lambda x: tp.log(x + 1e-45), 0.0), "log"),
    "norm of products": (lambda: gradient(lambda x: tp.pow(x, 0.5), 0.0), "pow"),
    "matmul": (lambda: gradient(lambda x: ((x * 1e-30) @ vector(3e38)) * 1e10, 1.0), "vecdot"),
    "sum of cotangents": (lambda: gradient(lambda x: 3e38 * x + 3e38 * x, 0.0), "sum of cotangents"),
    "broadcast": (lambda: tp.grad(lambda x: (x * tp.full((3,), 2e38)).sum())(0.0), "multiply"),
    "create_graph": (lambda: tp.grad(lambda x: tp.grad(lambda x: tp.pow(x, 1.5).sum())(x).sum())(vector(0.0)), None),
    "into .grad": (lambda: twice(3e38), "add"),
    "a hook": (lambda: hooked(lambda g: g / 0.0), "divide"),
    "a rule": (lambda: gradient(ruled(lambda r, g: (g / 0.0,)), 1.0), "divide"),
    "a rule's array": (lambda: gradient(ruled(lambda r, g: (np.full(1, INF, "float32"),)), 1.0), "named"),
    "computed again": (lambda: gradient(tp.checkpoint(lambda x: tp.sqrt(x)), 0.0), "sqrt"),
}


def twice(factor):
    x = tp.tensor(0.0, requires_grad=True)
    for _ in range(2):
        (x * factor).backward()


def hooked(hook):
    x = tp.tensor(1.0, requires_grad=True)
    y = x * 1.0
    y.register_hook(hook)
    y.backward()


def ruled(bwd):
    def named(x):
        return x * 1.0

    f = tp.custom_vjp(named)
    f.defvjp(lambda x: (x * 1.0, None), bwd)
    return f


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name):
    f, op = BACKWARD[name]
    f()
    with tp.trace_nan(), pytest.raises(NonFiniteError) as caught:
        f()
    if op is not None:
        assert caught.value.op == op
    f()


def test_forward_mode():
    x, one = vector(1.0, 0.0), vector(1.0, 1.0)
    with tp.trace_nan():
        with pytest.raises(NonFiniteError, match="the forward mode made inf") as caught:
            tp.jvp(lambda x: tp.sqrt(x), (x,), (one,))
        assert (caught.value.op, caught.value.index) == ("sqrt", (1,))
        assert tp.jvp(lambda x: tp.sqrt(x), (x,), (vector(1.0, 0.0),))[1].tolist() == [0.5, 0.0]
        assert tp.jvp(lambda x: x * 2.0, (x,), (vector(INF, 0.0),))[1].tolist() == [INF, 0.0]
        with pytest.raises(NonFiniteError):
            tp.hvp(lambda x: tp.pow(x, 1.5).sum(), (x,), (one,))


def test_partials_that_are_multiplied_by_0_are_nobodys_fault():
    """The strong zero: the gradient is finite, so nothing is wrong."""
    with tp.trace_nan():
        assert gradient(lambda x: tp.where(x > 0, tp.sqrt(x), 0.0), 1.0, 0.0).tolist() == [0.5, 0.0]
        assert gradient(lambda x: tp.vector_norm(x), 0.0, 0.0).tolist() == [0.0, 0.0]


def test_cotangents_that_were_not_finite_may_stay_so():
    with tp.trace_nan():
        x = vector(1.0, 2.0).requires_grad_()
        (x * x).backward(vector(INF, 1.0))
        assert x.grad.tolist() == [INF, 4.0]
        x.zero_grad()
        y = ruled(lambda r, g: (g * 2.0,))(x)
        y.backward(vector(NAN, 1.0))
        assert x.grad.tolist()[1] == 2.0


def test_gradients_have_the_bits_of_a_run_without():
    w = tp.tensor(np.random.default_rng(0).normal(size=(4, 4)), requires_grad=True)
    x = tp.tensor(np.random.default_rng(1).normal(size=(5, 4)))

    def loss():
        h = tp.tanh(x @ w) * x
        return tp.mse_loss(h + h * h, x) + tp.logsumexp(h)

    got = []
    for mode in (tp.trace_nan, tp.enable_grad):
        w.zero_grad()
        with mode():
            loss().backward()
        got.append(w.grad)
    assert_same(*got)


# ---- the mode


def test_nesting_threads_and_the_decorator():
    def bad():
        return tp.log(tp.tensor(0.0))

    with tp.trace_nan():
        with tp.trace_nan():
            pass
        with pytest.raises(NonFiniteError):
            bad()
        got = []
        other = threading.Thread(target=lambda: got.append(bad()))
        other.start()
        other.join()
        assert got[0].item() == -INF
        with tp.no_grad(), tp.enable_grad(), pytest.raises(NonFiniteError):
            bad()
        with tp.Tape() as tape:
            with tape.stop_recording(), pytest.raises(NonFiniteError):
                bad()
            with pytest.raises(NonFiniteError):
                bad()
        with pytest.raises(NonFiniteError):
            bad()
    assert not _core.is_tracing() and bad().item() == -INF
    with pytest.raises(NonFiniteError):
        tp.trace_nan()(bad)()
    assert not _core.is_tracing()
    with pytest.raises(tp.TapeError, match="left without being entered"):
        tp.trace_nan().__exit__(None, None, None)


def test_nothing_is_kept():
    before = _core.entries_in_use(), _core.pool_info()["in_use"]
    with tp.trace_nan():
        x = vector(*range(1, 100)).requires_grad_()
        y = tp.log(x) @ x
        y.backward()
        del x, y
    assert (_core.entries_in_use(), _core.pool_info()["in_use"]) == before


# ---- plans


def test_a_plan_names_op_line_and_index_and_changes_nothing():
    w = vector(1.0, 2.0).requires_grad_()
    generator = tp.random.Generator(1)

    @tp.function
    def step(x):
        noise = generator.uniform(shape=(2,))
        loss = (tp.log(x) * w * noise).sum()
        loss.backward()
        with tp.no_grad():
            w.assign_sub(0.1 * w.grad)
        return loss

    line = here(-6)
    with tp.trace_nan():
        step(vector(1.0, 2.0))
        state, value, grad = generator.state, w.detach(), w.grad.detach()
        with pytest.raises(NonFiniteError) as caught:
            step(vector(3.0, 0.0))
        assert (caught.value.op, caught.value.index, caught.value.place) == ("log", (1,), line)
        assert generator.state == state
        assert_same(w.detach(), value)
        assert_same(w.grad, grad)
        assert len(step.plans) == 1
        step(vector(3.0, INF))  # what goes in is not finite: it may come out
    assert len(step.plans) == 1
    step(vector(1.0, 2.0))
    assert len(step.plans) == 2  # trace_nan is part of the signature


def test_the_recording_itself_is_looked_at():
    w = vector(0.0).requires_grad_()
    f = tp.function(lambda x: tp.sqrt(x * w).sum().backward())
    with tp.trace_nan(), pytest.raises(NonFiniteError) as caught:
        f(vector(1.0))
    assert caught.value.op == "sqrt" and w.grad is None and not f.plans


def test_a_backward_in_a_plan():
    with tp.trace_nan():
        bad = tp.freeze(lambda x: tp.grad(lambda x: tp.pow(x, 0.5).sum())(x), vector(1.0, 2.0))
        assert bad(vector(4.0, 4.0)).tolist() == [0.25, 0.25]
        with pytest.raises(NonFiniteError) as caught:
            bad(vector(1.0, 0.0))
    assert caught.value.index == (1,) and caught.value.place[0] == __file__


def test_a_plan_blames_what_the_result_comes_from():
    """1/x is infinite, but only what is not selected; the log is to blame."""

    def f(x):
        safe = tp.where(x > 0, 1.0 / x, 0.0)
        return (safe + tp.log(x + 1.0)).sum()

    plan = tp.freeze(f, vector(1.0, 2.0))
    with tp.trace_nan():
        plan(vector(1.0, 0.0))
        with pytest.raises(NonFiniteError) as caught:
            plan(vector(0.0, -1.0))
    assert (caught.value.op, caught.value.index) == ("log", (1,))


def test_many_operands_and_draws_in_a_plan():
    generator = tp.random.Generator(3)

    def f(x):
        parts = [x * float(k) for k in range(1, 21)]
        u = generator.normal(shape=(1,), dtype="float64")
        return 1.0 / (tp.concat(parts) * u + 0.0)

    with tp.trace_nan():
        plan = tp.freeze(f, vector(1.0, dtype="float64"))
        with pytest.raises(NonFiniteError) as caught:
            plan(vector(0.0, dtype="float64"))
    assert caught.value.op == "divide" and generator.state == (3, 0)
