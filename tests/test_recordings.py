"""What a recording keeps, takes for its own, and leaves alone."""

import gc
import weakref

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp

X = tp.tensor([1.0, 2.0, 3.0])


def test_a_plan_keeps_none_of_the_memory_of_its_examples():
    array = np.ones(1000)
    there = weakref.ref(array)
    plan, f = tp.freeze(lambda a: a * 2.0, array), tp.function(lambda a: a * 3.0)
    f(array), tp.vmap(plan)(np.ones((20, 1000)))
    del array
    gc.collect()
    assert there() is None
    assert tp.grad(lambda a: plan(a).sum())(np.ones(1000))[0].item() == 2.0
    assert f(np.ones(1000))[0].item() == 3.0


@pytest.mark.parametrize("make", [lambda f: tp.freeze(f, X), tp.function, lambda f: f])
def test_a_plan_with_an_array_constant_is_mapped_twice_in_a_recording(make):
    for g in (lambda a: tp.take(a, [-1, -1, 0], axis=0), lambda a: a[np.array([True, False, True])]):
        plan = tp.freeze(g, X)

        def f(z, plan=plan):
            batch = tp.stack([z, 2.0 * z])
            return tp.vmap(plan)(batch) + tp.vmap(plan)(batch) * plan(z)

        single = tp.stack([g(X), g(2.0 * X)])
        run = make(f)
        for _ in range(2):
            assert_same(run(X), single + single * g(X))
        both = tp.vmap(f)(tp.stack([X, X]))
        assert_same(both, tp.stack([f(X), f(X)]))


def test_derivatives_of_a_tape_within_a_recording_are_recorded_for_none_outside():
    w = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def step(x):
        with tp.Tape(persistent=True) as tape:
            y = (w**3 * x).sum()
        g, j = tape.gradient(y, w), tape.jacobian(y, w)
        assert not g.requires_grad and not j.requires_grad
        return y.detach(), g, j

    f, plan = tp.function(step), tp.freeze(step, X)
    for x in (X, 2.0 * X, X):
        for run in (f, plan):
            assert [t.tolist() for t in run(x)] == [t.tolist() for t in step(x)]
    assert len(f.plans) == 1


def test_an_outer_tape_within_a_recording_records_the_derivatives_of_an_inner_one():
    def second(x):
        with tp.Tape(watch=[x]) as outer:
            with tp.Tape(watch=[x]) as inner:
                y = (x**3).sum()
            g = inner.gradient(y, x)
        return outer.gradient(g.sum(), x)

    f = tp.function(second)
    for x in (X, 2.0 * X):
        assert_same(f(x), 6.0 * x)
    assert_same(tp.vmap(second)(tp.stack([X, 2.0 * X])), tp.stack([6.0 * X, 12.0 * X]))
    assert_same(tp.grad(lambda A: tp.vmap(second)(A).sum())(tp.stack([X, X])), tp.full((2, 3), 6.0))


def test_tensor_of_a_tensor_and_of_a_float_argument():
    def f(a, k):
        b = tp.tensor(a * 2.0)
        leaf = tp.tensor(a, requires_grad=True)
        (leaf * leaf * k).sum().backward()
        return b + tp.tensor(k), tp.tensor(k, dtype="float64"), leaf.grad

    g = tp.function(f)
    for x, k in ((X, 0.1), (2.0 * X, 0.3), (X, 0.1)):
        for found, want in zip(g(x, k), f(x, k), strict=True):
            assert_same(found, want)
    assert len(g.plans) == 1
    assert tp.grad(lambda a: (tp.tensor(a) * a).sum())(X).tolist() == X.tolist()
    assert tp.grad(lambda a: tp.vmap(lambda b: tp.tensor(b) * b)(a).sum())(X).tolist() == X.tolist()
    with tp.Tape(watch=[X]) as tape:
        leaf = tp.tensor(X * 2.0, requires_grad=True)
        y = (leaf * leaf).sum()
    assert leaf.is_leaf and tape.gradient(y, leaf).tolist() == (4.0 * X).tolist()


def test_rounded_float_arguments_and_ranges_up_to_one_are_looks():
    f = tp.function(lambda a, k: a * round(k) + round(k, 1) + tp.arange(0.0, k).sum())
    for k in (2.4, 3.6, 2.4):
        assert_same(f(X, k), X * round(k) + round(k, 1) + tp.arange(0.0, k).sum())
    assert len(f.plans) == 2


def test_an_argument_of_another_shape_is_named():
    plan = tp.freeze(lambda a, b: a * b, X, X)
    with pytest.raises(tp.PlanError, match=r"argument 1 is float32\[2\], and the plan was frozen for float32\[3\]"):
        plan(X, tp.ones(2))


def test_a_bound_run_that_a_recording_refuses_changes_nothing():
    w, out = tp.zeros(3), np.zeros(3, np.float32)

    def step(a):
        w.assign_add(a)
        return w * 1.0

    bound = tp.freeze(step, X).bind(X, out=out)
    with tp.Tape(), pytest.raises(tp.PlanError, match="array of another library"):
        bound()
    assert w.tolist() == out.tolist() == [0.0, 0.0, 0.0]
    bound()
    assert w.tolist() == out.tolist() == X.tolist()
