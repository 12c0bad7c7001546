"""What plans are given: examples that they do not keep, arrays in odd layouts, results to write to."""

import numpy as np
import pytest
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


# ---- arguments


def odd_arrays():
    """Arrays that no tensor can be laid over."""
    raw = np.zeros(4 * 3 + 1, np.uint8)
    unaligned = raw[1:].view(np.float32)
    unaligned[:] = [1.0, 2.0, 3.0]
    return {
        "byte order": np.arange(3.0).astype(">f8"),
        "unaligned": unaligned,
        "bools": np.array([0, 2, 1], np.uint8).view(np.bool_),
    }


@pytest.mark.parametrize("kind", odd_arrays())
def test_arrays_that_must_be_copied(kind):
    x = odd_arrays()[kind]
    want = tp.asarray(x) * 2
    assert_same(tp.freeze(lambda a: a * 2, x)(x), want)
    assert_same(tp.freeze(lambda a: a * 2, want * 0 if x.dtype != bool else tp.asarray(x))(x), want)
    f = tp.function(lambda a: a * 2)
    assert_same(f(x), want)
    assert_same(f(x), want)
    assert_same(tp.vmap(lambda a: a * 2)(x), want)
    with pytest.raises(tp.PlanError, match="read in place"):
        tp.freeze(lambda a: a * 2, x).bind(x)


def test_a_bound_array_that_is_read_only_is_read_at_each_call():
    x = np.zeros(3, np.float32)
    for view in (x.view(), np.broadcast_to(x, (2, 3)), x[::-1]):
        view.flags.writeable = False
        bound = tp.freeze(lambda a: a + 1, view).bind(view)
        for k in (4.0, 5.0):
            x[...] = k
            assert np.array_equal(bound().numpy(), view + 1)


def test_arguments_by_name_and_dicts_in_any_order():
    plan = tp.freeze(lambda d, *, a, b: d["x"] * a - d["y"] * b, {"x": 1.0, "y": 2.0}, a=3.0, b=4.0)
    assert plan({"y": 2.0, "x": 1.0}, b=4.0, a=3.0).item() == plan({"x": 1.0, "y": 2.0}, a=3.0, b=4.0).item() == -5.0
    assert plan.bind({"y": 2.0, "x": 1.0}, b=4.0, a=3.0)().item() == -5.0


@pytest.mark.parametrize(
    "args, kwargs, text",
    [
        ((), {}, r"arguments \(args, kwargs\)\[0\] has 0 items, expected 1"),
        ((1.0, 2.0), {"k": 1}, r"arguments \(args, kwargs\)\[0\] has 2 items, expected 1"),
        ((1.0,), {}, r"arguments \(args, kwargs\)\[1\] has the keys \[\], expected \['k'\]"),
        (([1.0],), {"k": 1}, r"arguments \(args, kwargs\)\[0\]\[0\] is a list, expected a tensor"),
    ],
)
def test_arguments_of_another_structure(args, kwargs, text):
    plan = tp.freeze(lambda x, k: x * k, 1.0, k=1)
    with pytest.raises(tp.PlanError, match=text):
        plan(*args, **kwargs)


# ---- results to write to


def test_out_is_matched_by_name():
    plan = tp.freeze(lambda x: {"a": x * 2, "b": [x * 3, 7, x * 4]}, 1.0)
    out = {"b": [np.zeros(()), None, np.zeros(())], "a": np.zeros(())}
    assert plan.run(1.0, out=out) is out
    assert (out["a"], *out["b"]) == (2.0, 3.0, None, 4.0)


@pytest.mark.parametrize("out", [{"a": 1, "c": 2}, ({"a": 1}, 2), {"a": 1}, {"a": [1, 2]}])
def test_out_of_another_structure(out):
    plan = tp.freeze(lambda x: {"a": x * 2, "b": x * 3}, 1.0)
    with pytest.raises(tp.PlanError, match=r"\[plan\] out"):
        plan.run(1.0, out=out)


def test_out_as_a_plain_list():
    plan = tp.freeze(lambda x: {"a": x * 2, "b": (x * 3,)}, 1.0)
    out = [np.zeros(()), tp.zeros((), dtype="float64")]
    plan.run(1.0, out=out)
    assert (float(out[0]), float(out[1])) == (2.0, 3.0)
