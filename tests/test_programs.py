"""Random programs with reuse, views and writes, on tapeflow and on the scalar oracle (tapeflow.testing).

Counterexamples stay below as @example: leaves in quarters, and steps as in tapeflow/testing/programs.py.
"""

import numpy as np
import pytest
from helpers import assert_same, host
from hypothesis import example, given, settings

import tapeflow as tp
from tapeflow.testing import oracle
from tapeflow.testing.programs import STEPS, build
from tapeflow.testing.strategies import programs


def compare(got, want, mass, label):
    error = np.abs(host(got) - want)
    assert np.all(error <= 1e-11 + 1e-11 * mass), (label, host(got), want)


def check(program, all_ways=True):
    """Values and gradients against the oracle; every way to the gradient has the same bits."""
    xs = [tp.tensor(a, requires_grad=True) for a in program.leaves]
    got = program.run(*xs)
    wanted = program.run(*map(oracle.tensor, program.leaves), module=oracle)
    for name in program.live:
        assert got[name].shape == wanted[name].shape
        compare(got[name], wanted[name].numpy(), np.abs(wanted[name].numpy()), (name, program))
    got["loss"].backward(retain_graph=True)
    fused = [x.grad.clone() for x in xs]
    for x, g, want, a in zip(xs, fused, program.gradients(), program.leaves, strict=True):
        compare(g, want.value, want.mass, program)
        assert_same(x, a)
    if not all_ways:
        return

    leaves = [tp.tensor(a, requires_grad=True) for a in program.leaves]
    program(*leaves).backward(create_graph=True)
    with tp.Tape(watch=(fresh := [tp.tensor(a) for a in program.leaves])) as tape:
        target = program(*fresh)
    with tp.no_grad():
        assert_same(program(*xs), target)
    others = (
        [x.grad for x in leaves],
        tape.gradient(target, fresh, unconnected="zero"),
        tp.grad(program, argnums=tuple(range(len(leaves))))(*program.leaves),
    )
    for way in others:
        for g, w in zip(way, fused, strict=True):
            assert_same(g, w, label=str(program))


def quarters(*rows):
    return [np.array(row, float) / 4 for row in rows]


A, B, C, D = (
    (quarters([4, 8, 12, 16]), [("multiply", 0, 0, 1), ("change_item", 0, 0, 3), ("index", 0, 0, 5)]),
    (quarters(12, 8), [("multiply", 0, 1, 1), ("multiply", 0, 2, 1), ("add", 0, 1, 1), ("multiply", 1, 1, 1)]),
    (quarters([4, 4, 0]), [("max", 0, 0, 0), ("maximum", 1, 1, 0), ("min", 2, 0, 1), ("relu", 3, 0, 0)]),
    (quarters([[1, 2], [3, 0]]), [("prod", 0, 0, 0), ("set_mask", 1, 0, 1), ("add_in_place", 0, 0, 0)]),
)


@settings(max_examples=10 * settings.default.max_examples)
@given(programs())
@example(build(*A))
@example(build(*B))
@example(build(*C))
@example(build(*D))
def test_random_program_is_the_oracles(program):
    check(program)


STANDARD = quarters([[1, -2, 3], [4, 5, -6]], [2, 0, -3], [[3], [5]], 6, [[[1, 2], [3, 4]]])


@pytest.mark.parametrize("name", STEPS)
def test_every_step_by_itself(name):
    """Each step runs on a standard set of values with every parameter, so that none is dead in the random programs."""
    kept = 0
    for k in range(0, 60, 1 if name in ("index", "set_item", "change_item") else 7):
        for i in range(5):
            program = build(STANDARD, [(name, i, (i + k) % 5, k)])
            if program.lines:
                check(program, all_ways=k < 7)
                kept += 1
    assert kept >= 7


@settings(max_examples=4 * settings.default.max_examples)
@given(programs(max_leaves=2, max_steps=8))
def test_second_derivatives_are_symmetric(program):
    """u.(H v) = v.(H u), where H v is the gradient of g.v: by backward twice and by nested grad, the same bits."""
    arrays = program.leaves
    masses = [mass for _, mass in program.gradients()]
    where = tuple(range(len(arrays)))

    def f(*xs):
        return program(*xs) + sum(tp.sum(x * x) for x in xs)  # the squares keep every leaf connected

    def dot(gradients, vectors):
        parts = [tp.sum(g * tp.tensor(v)) for g, v in zip(gradients, vectors, strict=True)]
        return sum(parts[1:], parts[0])

    def times(vectors):
        xs = [tp.tensor(a, requires_grad=True) for a in arrays]
        f(*xs).backward(create_graph=True)
        first = [x.grad for x in xs]
        for x in xs:
            x.grad = None
        dot(first, vectors).backward()

        def along(*zs):
            return dot(tp.grad(f, where)(*zs), vectors)

        for x, g in zip(xs, tp.grad(along, where)(*arrays), strict=True):
            assert_same(x.grad, g, label=str(program))
        return [host(x.grad) for x in xs]

    u, v = ([np.resize(np.array(w, float), a.shape) for a in arrays] for w in ([1, -2, 3], [2, 1, 0, -1]))
    hu, hv = times(u), times(v)
    uhv, vhu = (sum(np.sum(a * b) for a, b in zip(w, h, strict=True)) for w, h in ((u, hv), (v, hu)))
    scale = 1 + max(np.max(np.abs(h), initial=0) for h in [*hu, *hv, *masses])
    assert abs(uhv - vhu) <= 1e-9 * scale * scale, (program, uhv, vhu)
