"""Generators that a recorded or checkpointed function makes itself: they begin anew whenever it runs."""

import copy

import pytest
from helpers import assert_same

import tapeflow as tp

X = tp.tensor([1.0, 2.0, 3.0])


def once(a):
    return a * tp.random.Generator(1).normal(shape=3)


def twice(a):
    g = tp.random.Generator(1)
    first = g.normal(shape=3)
    return a * first + g.uniform(shape=3) + tp.random.Generator(2).normal(shape=3)


@pytest.mark.parametrize("f", [once, twice])
def test_a_replay_draws_what_eager_draws(f, tmp_path):
    want = f(X)
    plan, g = tp.freeze(f, X), tp.function(f)
    plan.save(tmp_path / "plan")
    for replay in (plan, g, tp.parse_plan(str(plan)), tp.load_plan(tmp_path / "plan")):
        for _ in range(3):
            found = replay(X)
            assert_same(found[0] if isinstance(found, list) else found, want)
    batch = tp.stack([X, 2.0 * X])
    want = tp.vmap(f)(batch)
    for _ in range(2):
        assert_same(tp.vmap(plan)(batch), want)
        assert_same(tp.vmap(f)(batch), want)


@pytest.mark.parametrize("f", [once, twice])
def test_its_gradient(f):
    want = tp.grad(lambda a: f(a).sum())(X)
    again = tp.checkpoint(f)
    nested = tp.checkpoint(lambda a: tp.checkpoint(f)(a) * 1.0)
    for g in (again, nested, tp.freeze(f, X)):
        for _ in range(2):
            assert_same(tp.grad(lambda a, g=g: g(a).sum())(X), want)
    for h in (tp.freeze(tp.grad(lambda a: again(a).sum()), X), tp.function(tp.grad(lambda a: nested(a).sum()))):
        for _ in range(2):
            assert_same(h(X), want)


outer = tp.random.Generator(5)


def unseeded(a):
    return a * tp.random.Generator().normal(shape=3)


def copied(a):
    return a * copy.copy(outer).normal(shape=3)


def set_from_outside(a):
    g = tp.random.Generator(1)
    g.state = outer.state
    return a * g.normal(shape=3)


@pytest.mark.parametrize("f", [unseeded, copied, set_from_outside])
def test_a_checkpoint_that_draws_otherwise_when_it_runs_again(f):
    x = X.detach().requires_grad_()
    y = tp.checkpoint(f)(x).sum()
    outer.uniform()
    with pytest.raises(tp.TapeError, match="other random draws"):
        y.backward()
    assert x.grad is None
