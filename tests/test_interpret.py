"""Plans that are called while something is recorded or differentiated: the values, bits, gradients, state and draws of
the function that they were frozen from."""

import numpy as np
import pytest
from helpers import assert_same, host
from hypothesis import given
from test_plans import assert_all_same

import tapeflow as tp
from tapeflow.testing.strategies import programs


def both(f, *args):
    return f, tp.freeze(f, *args)


# ---- gradients ----


@given(programs())
def test_random_program_as_a_plan_has_the_gradients_of_eager(program):
    if ".tolist()" in str(program):
        return
    plan = tp.freeze(program, *program.leaves)
    argnums = tuple(range(len(program.leaves)))
    want = tp.value_and_grad(program, argnums)(*program.leaves)
    assert_all_same(tp.value_and_grad(plan, argnums)(*program.leaves), want, str(program))


def test_arguments_that_require_grad():
    w = tp.tensor([1.0, 2.0], requires_grad=True)
    f, plan = both(lambda x: tp.sin(x * w).sum(), tp.ones(2))
    x = tp.tensor([0.5, -1.5], requires_grad=True)
    plan(x).backward()
    got = x.grad, w.grad
    x.grad = w.grad = None
    f(x).backward()
    assert_all_same(got, (x.grad, w.grad))
    assert not plan(x.detach()).requires_grad  # a replay
    with tp.no_grad():
        assert not plan(x).requires_grad


def test_inside_a_tape_and_a_gradient_of_any_order():
    f, plan = both(lambda x: (tp.tanh(x) * x).sum(), tp.ones(3))
    x = tp.tensor([0.5, -1.0, 2.0])
    with tp.Tape(watch=[x]) as tape:
        y = plan(x)
    with tp.Tape(watch=[x]) as other:
        z = f(x)
    assert_all_same((y, tape.gradient(y, x)), (z, other.gradient(z, x)))
    second = lambda f: tp.grad(lambda x: (tp.grad(f)(x) * x).sum())(x)  # noqa: E731
    assert_same(second(plan), second(f))


def test_a_plan_of_a_gradient_can_be_differentiated():
    f = tp.value_and_grad(lambda x: tp.sum(tp.exp(x) * x))
    plan = tp.freeze(f, tp.ones(3))
    x = tp.tensor([0.5, -1.0, 2.0])
    total = lambda f: tp.grad(lambda x: (f(x)[1] * f(x)[0]).sum())(x)  # noqa: E731
    assert_same(total(plan), total(f))
    labels = tp.tensor([0, 2])
    f = tp.grad(lambda x: tp.cross_entropy(x, labels))
    plan = tp.freeze(f, tp.ones((2, 3)))
    x = tp.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, 0.0]])
    total = lambda f: tp.grad(lambda x: (f(x) * f(x)).sum())(x)  # noqa: E731
    assert_same(total(plan), total(f))


def test_what_has_no_gradient_has_none_through_the_plan():
    def f(x):
        with tp.no_grad():
            a = tp.exp(x)
        return (x * a + x.detach() * x + tp.stop_gradient(x * x)).sum()

    plan = tp.freeze(f, tp.ones(2))  # recorded with an argument that does not require grad
    x = tp.tensor([0.5, 2.0])
    assert_same(tp.grad(plan)(x), tp.grad(f)(x))
    assert "identity" not in str(plan)  # nothing is left of it where nobody differentiates


def test_a_tensor_written_under_no_grad_keeps_its_place():
    w = tp.tensor([1.0, 2.0], requires_grad=True)

    def f(x):
        with tp.no_grad():
            w.assign_add(x)
        return (w * w * x).sum()

    x = tp.tensor([0.5, 0.25])
    f(x).backward()
    want, w.grad = w.grad, None
    with tp.no_grad():
        w.assign(tp.tensor([1.0, 2.0]))
    plan = tp.freeze(f, x)
    with tp.Tape():
        plan(x).backward()
    assert w.tolist() == [1.5, 2.25]
    assert_same(w.grad, want)


@pytest.mark.cpu
def test_a_saved_plan_that_can_be_differentiated(tmp_path):
    w = tp.tensor([1.0, 3.0])
    f = lambda x, s: (tp.tanh(x.detach() * x) * s * w).sum()  # noqa: E731
    x = tp.tensor([0.5, 2.0])
    tp.freeze(f, x, 3.0, differentiable=True).save(tmp_path / "a")
    tp.freeze(f, x, 3.0).save(tmp_path / "b")
    a, b = tp.load_plan(tmp_path / "a"), tp.load_plan(tmp_path / "b")
    assert_same(tp.grad(a)(x, 2.0), tp.grad(f)(x, 2.0))
    for plan in (a, b):
        assert_same(plan(x, 2.0), f(x, 2.0))
    with tp.Tape():
        assert_same(b(x, 2.0), f(x, 2.0))  # nothing to differentiate: a constant
    w.assign(tp.tensor([2.0, -1.0]))
    (state,) = a.state.values()
    state.assign(w)
    assert_same(tp.grad(a)(x, 2.0), tp.grad(f)(x, 2.0))
    assert_same(a(x, 2.0), f(x, 2.0))
    with pytest.raises(tp.PlanError, match="differentiable=True"):
        tp.grad(b)(x, 2.0)


# ---- state, draws, guards ----


def test_state_gradients_and_draws_are_those_of_the_function():
    def make():
        g = tp.random.Generator(5)
        w = tp.tensor([1.0, 2.0], requires_grad=True)
        count = tp.tensor(0)

        def step(x):
            loss = (w * x * g.uniform(shape=(2,))).sum()
            loss.backward()
            with tp.no_grad():
                w.assign_sub(0.1 * w.grad)
            count.assign_add(1)
            return loss.detach(), g.normal()

        return g, w, count, step

    (g, w, count, step), (g2, w2, count2, step2) = make(), make()
    x = tp.tensor([0.5, 0.25])
    plan = tp.freeze(step2, x)
    for run in range(3):
        want = step(x)
        with tp.Tape() if run else tp.no_grad():
            got = plan(x) if run else tp.enable_grad()(plan)(x)
        assert_all_same((got, w2, w2.grad, count2), (want, w, w.grad, count), f"run {run}")
        assert g.state == g2.state


def test_a_swap_and_an_argument_that_is_returned():
    a, b = tp.tensor(1.0), tp.tensor(2.0)

    def f(x):
        was = a.detach()
        a.assign(b)
        b.assign(was)
        return x, was, a * 1.0

    plan = tp.freeze(f, tp.ones(2))
    x = tp.ones(2)
    with tp.Tape():
        same, was, now = plan(x)
    assert same is not x and (was.item(), now.item(), a.item(), b.item()) == (1.0, 2.0, 2.0, 1.0)


def test_guards_hold_there_too():
    plan = tp.freeze(lambda x: x * 2.0 if x.sum() > 0 else -x, tp.ones(2))
    x = tp.tensor([1.0, 2.0])
    assert tp.grad(lambda x: plan(x).sum())(x).tolist() == [2.0, 2.0]
    with pytest.raises(tp.PlanError, match=r"test_interpret.py:\d+.*is False now"):
        tp.grad(lambda x: plan(x).sum())(-x)
    with pytest.raises(tp.PlanError, match=r"argument 0 is float32\[3\], and the plan was frozen for float32\[2\]"):
        tp.grad(lambda x: plan(x).sum())(tp.ones(3))


def test_the_default_dtype_of_the_recording_counts():
    plan = tp.freeze(lambda i: tp.sin(i) / i, tp.tensor([1, 2]))
    want = plan(tp.tensor([3, 4]))
    before = tp.get_default_dtype()
    tp.set_default_dtype("float64")
    try:
        with tp.Tape():
            assert_same(plan(tp.tensor([3, 4])), want)
    finally:
        tp.set_default_dtype(before)


# ---- recordings within recordings ----


def test_a_plan_within_a_plan():
    w = tp.tensor([1.0, 2.0])
    inner = tp.freeze(lambda x: x * w, tp.ones(2))
    outer = tp.freeze(lambda x: inner(x).sum() * 2.0, tp.ones(2))
    w.assign(tp.tensor([3.0, 5.0]))
    assert outer(tp.ones(2)).item() == 16.0
    made_inside = tp.freeze(lambda x: tp.freeze(lambda y: y * w + x, x)(x * 2.0), tp.ones(2))
    assert made_inside(tp.tensor([1.0, 10.0])).tolist() == [7.0, 110.0]


def test_a_recording_within_one_leaves_it_as_it_is():
    w, g = tp.tensor(1.0), tp.random.Generator(2)

    def inner(x):
        w.assign(w + x)
        return w * x + g.uniform()

    def f(x):
        h = x * 3.0
        c = tp.tensor(2.0)
        y = h * c + w
        tp.freeze(lambda z: inner(z) * h * c, x)
        return y + w * h * c + g.uniform()

    x = tp.tensor(0.5)
    want = f(x)
    assert g.state == (2, 1) and w.item() == 1.0
    g.state = (2, 0)
    plan = tp.freeze(f, x)
    assert g.state == (2, 0)
    assert_same(plan(x), want)
    w.assign(tp.tensor(10.0))
    g.state = (2, 0)
    assert_same(plan(x), host(want) + np.float32(9.0) + np.float32(27.0))
