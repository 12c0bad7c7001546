"""Plans that were read from a text or a file, called where something is recorded: known as what the passes left."""

import pytest
from helpers import assert_same

import tapeflow as tp

X = tp.tensor([1.0, -2.0, 3.0])


def f(a, b):
    return (tp.sin(a) * b + 0.0).sum() * 1.0, tp.take(a * 1.0, [-1, 0])


def read():
    return tp.parse_plan(str(tp.freeze(f, X, X)))


def test_it_is_part_of_plans():
    plan = read()
    for make in (lambda g: tp.freeze(g, X), tp.function):
        run = make(lambda a: plan(a, a)[0] * 2.0 + plan(a, X)[1].sum())
        for x in (X, 2.0 * X, X):
            assert_same(run(x), f(x, x)[0] * 2.0 + f(x, X)[1].sum())


def test_it_is_part_of_what_is_mapped_and_of_a_tape():
    plan = read()
    batch = tp.stack([X, 2.0 * X])
    for g in (lambda a: plan(a, X)[0], tp.function(lambda a: plan(a, X)[0])):
        assert_same(tp.vmap(g)(batch), tp.stack([f(x, X)[0] for x in batch]))
    nested = tp.vmap(lambda a: tp.vmap(lambda b: plan(a, b)[0])(batch))(batch)
    assert_same(nested, tp.stack([tp.stack([f(a, b)[0] for b in batch]) for a in batch]))
    with tp.Tape() as tape:
        y = plan(X, X)[0] * 2.0
    assert len(tape) > 1
    assert_same(tape.freeze([X], [y])(2.0 * X)[0], f(2.0 * X, 2.0 * X)[0] * 2.0)


def test_state_of_it_advances_within_another():
    w = tp.zeros(3)

    def step(a):
        w.assign_add(a * 2.0)
        return w * 1.0

    plan = tp.parse_plan(str(tp.freeze(step, X)))
    run = tp.function(lambda a: plan(a)[0] + 1.0)
    assert [run(X).tolist() for _ in range(3)] == [(2.0 * k * X + 1.0).tolist() for k in (1, 2, 3)]
    assert [t.tolist() for t in plan.state.values()] == [(6.0 * X).tolist()]


@pytest.mark.parametrize(
    "derivative",
    [
        lambda g: tp.grad(g)(X),
        lambda g: tp.jvp(g, (X,), (X,)),
        lambda g: tp.grad(lambda a: tp.vmap(g)(tp.stack([a, a])).sum())(X),
        lambda g: tp.grad(tp.checkpoint(g))(X),
    ],
)
def test_it_has_no_gradient_within_another(derivative):
    plan = read()
    for g in (lambda a: plan(a, a)[0], tp.freeze(lambda a: plan(a, a)[0] * 2.0, X)):
        with pytest.raises(tp.PlanError, match="cannot be differentiated"):
            derivative(g)
