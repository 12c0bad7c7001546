"""Tape.freeze with tensors that are not what the tape began with or made."""

import pytest
from helpers import assert_same

import tapeflow as tp


def recorded():
    x, w = tp.tensor([1.0, 2.0, 3.0]), tp.ones(3)
    with tp.Tape() as tape:
        y = x * 2.0 + w
    return tape, x, w, y


def test_an_output_that_was_computed_after_the_tape_is_no_constant():
    tape, x, w, y = recorded()
    with pytest.raises(tp.PlanError, match=r"output 0 float32\[3\] was computed, or written, outside of the tape"):
        tape.freeze([x], [y * 2.0])
    with pytest.raises(tp.PlanError, match=r"input 1 float32\[3\] was computed, or written, outside of the tape"):
        tape.freeze([x, x * 1.0], [y])
    assert_same(tape.freeze([x], {"y": y, "w": w})(2.0 * x)["y"], x * 4.0 + w)  # the tape is as good as before


@pytest.mark.parametrize("inputs", [lambda x: x, lambda x: {"x": x}, lambda x: None, lambda x: 3])
def test_inputs_are_a_list(inputs):
    tape, x, _, y = recorded()
    with pytest.raises(tp.PlanError, match="inputs must be a list of tensors"):
        tape.freeze(inputs(x), [y])


def test_an_input_twice():
    tape, x, w, y = recorded()
    with pytest.raises(tp.PlanError, match="an input twice"):
        tape.freeze([x, w, x], [y])
    assert_same(tape.freeze((x, w), y)(x, x), x * 3.0)
