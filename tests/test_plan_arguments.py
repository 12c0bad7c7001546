"""What plans are given: examples that they do not keep, arrays in odd layouts, results to write to."""

from helpers import assert_same

import tapeflow as tp


def test_a_plan_frozen_within_a_recording_keeps_none_of_its_tensors():
    """An example computed in an outer recording is nothing that outlives it."""
    kept = []

    def f(a):
        b = a * 1.0 if kept else a.detach()
        if not kept:
            kept.append(tp.freeze(lambda z: z * z, b))
        return kept[0](b)

    x = tp.tensor([1.0, 2.0, 3.0])
    assert_same(tp.freeze(f, x)(x), x * x)


def test_a_plan_lists_no_example_among_its_tensors():
    x = tp.tensor([1.0, 2.0])
    plan = tp.freeze(lambda a: a * 2.0, x)
    inputs = set(plan._ir.inputs)
    assert not inputs & plan._ir.objects.keys()
    assert not inputs & plan.noted().objects.keys()
