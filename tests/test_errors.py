"""Bad calls: the type of error, and a message `[op] what was given, what was expected`. Nothing is lost by any.

After each failed call operands, gradients, the tape and the global state are as they were, and a right call works.
"""

import contextlib
import copy
import operator
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp
from tapeflow import _core

MATRIX = [[1.0, -2.0, 3.0], [0.5, 4.0, -5.0]]
HUGE = (ValueError, MemoryError, OverflowError)
NUMBERS = r"\(2, 3\).*\(4,\)"

# name: call, error, what the message must say. Of operands: x (2, 3) is a leaf, y = 2 x is recorded, v (2, 3), i int64
# (3,), b bool (2, 3) and n () are not.
SHAPES = {
    "add": (lambda s: s.x + tp.ones(4), tp.ShapeError, NUMBERS),
    "add_reversed": (lambda s: np.ones(4) + s.x, tp.ShapeError, r"\(4,\).*\(2, 3\)|\(2, 3\).*\(4,\)"),
    "maximum": (lambda s: tp.maximum(s.x, tp.ones(4)), tp.ShapeError, NUMBERS),
    "where": (lambda s: tp.where(s.b, s.x, tp.ones(4)), tp.ShapeError, r"where.*\(4,\)"),
    "clip": (lambda s: tp.clip(s.x, tp.zeros(4), 1.0), tp.ShapeError, r"clip.*\(4,\)"),
    "matmul": (lambda s: s.x @ s.v, tp.ShapeError, r"matmul.*\(2, 3\).*\(2, 3\)"),
    "matmul_1d": (lambda s: s.x @ tp.ones(2), tp.ShapeError, r"matmul.*\(2, 3\).*\(2,\)"),
    "matmul_batch": (lambda s: tp.ones((2, 2, 3)) @ tp.ones((3, 3, 1)), tp.ShapeError, r"matmul.*\(2, 2, 3\)"),
    "matmul_0d": (lambda s: s.x @ s.n, tp.ShapeError, r"matmul.*\(\)"),
    "matmul_number": (lambda s: s.x @ 2.0, (tp.ShapeError, TypeError), "matmul"),
    "reshape": (lambda s: s.x.reshape((4, 2)), tp.ShapeError, r"reshape(?=.*\(2, 3\)).*\(4, 2\)"),
    "reshape_unknown": (lambda s: s.x.reshape((4, -1)), tp.ShapeError, r"reshape.*\(4, -1\)"),
    "reshape_two_unknown": (lambda s: s.x.reshape((-1, -1)), tp.ShapeError, "reshape.*-1"),
    "reshape_negative": (lambda s: s.x.reshape((-2, -3)), tp.ShapeError, "reshape.*-2"),
    "reshape_zero_unknown": (lambda s: tp.zeros((0, 2)).reshape((0, -1)), tp.ShapeError, "reshape"),
    "reshape_overflow": (lambda s: tp.zeros((0,)).reshape((2**62, 4, 3)), HUGE, "reshape"),
    "broadcast_to": (lambda s: tp.broadcast_to(s.x, (3, 3)), tp.ShapeError, r"broadcast_to.*\(2, 3\).*\(3, 3\)"),
    "broadcast_fewer": (lambda s: tp.broadcast_to(s.x, (3,)), tp.ShapeError, r"broadcast_to.*\(3,\)"),
    "broadcast_overflow": (lambda s: tp.broadcast_to(s.x, (2**62, 2, 3)), HUGE, "broadcast_to"),
    "squeeze": (lambda s: tp.squeeze(s.x, axis=0), tp.ShapeError, r"squeeze.*\(2, 3\)"),
    "concat_shapes": (lambda s: tp.concat([s.x, tp.ones((2, 2))], axis=0), tp.ShapeError, r"concat.*\(2, 2\)"),
    "concat_ranks": (lambda s: tp.concat([s.x, tp.ones(3)], axis=0), tp.ShapeError, r"concat.*\(3,\)"),
    "concat_nothing": (lambda s: tp.concat([], axis=0), ValueError, "concat"),
    "concat_0d": (lambda s: tp.concat([s.n, s.n], axis=0), (ValueError, IndexError), "concat"),
    "stack_shapes": (lambda s: tp.stack([s.x, tp.ones(3)], axis=0), tp.ShapeError, r"stack.*\(3,\)"),
    "stack_nothing": (lambda s: tp.stack([], axis=0), ValueError, "stack"),
    "cross_entropy_rows": (lambda s: tp.cross_entropy(s.x, s.i), tp.ShapeError, r"cross_entropy.*\(3,\)"),
    "cross_entropy_rank": (lambda s: tp.cross_entropy(s.n, tp.tensor(0)), tp.ShapeError, "cross_entropy"),
    "max_of_nothing": (lambda s: tp.max(tp.zeros((0, 2)), axis=0), ValueError, r"max.*\(0, 2\)"),
    "min_of_nothing": (lambda s: tp.min(tp.zeros(0)), ValueError, r"min.*\(0,\)"),
    "argmax_of_nothing": (lambda s: tp.argmax(tp.zeros(0)), ValueError, r"argmax.*\(0,\)"),
    "dims_65": (lambda s: tp.zeros((1,) * 65), ValueError, "64|65"),
    "dims_expand": (lambda s: expanded(70), ValueError, "6[45]"),
    "dims_index": (lambda s: s.x[(None,) * 64], (ValueError, IndexError), "6[456]"),
    "dims_broadcast": (lambda s: tp.broadcast_to(s.n, (1,) * 65), ValueError, "6[45]"),
    "huge_1d": (lambda s: tp.zeros((2**62,)), HUGE, str(2**62)),
    "huge_product": (lambda s: tp.zeros((2**40, 2**40)), HUGE, str(2**40)),
    "huge_wraps_to_0": (lambda s: tp.empty((2**32, 2**32)), HUGE, str(2**32)),
    "huge_bytes_wrap": (lambda s: tp.ones((2**61 + 1,), dtype=tp.float64), HUGE, str(2**61 + 1)),
    "huge_beyond_64_bits": (lambda s: tp.zeros((2**70,)), HUGE, ""),
    "huge_result": (lambda s: tp.broadcast_to(s.n, (2**50,)) + 1.0, HUGE, str(2**50)),
    "huge_full": (lambda s: tp.full((2**60,), 1.0), HUGE, str(2**60)),
    "huge_eye": (lambda s: tp.eye(2**35), HUGE, str(2**35)),
    "huge_arange": (lambda s: tp.arange(2**61), HUGE, "arange"),
    "arange_of_inf": (lambda s: tp.arange(float("inf")), (ValueError, OverflowError), "arange"),
    "arange_step_0": (lambda s: tp.arange(0, 5, 0), (ValueError, ZeroDivisionError), "arange"),
    "arange_steps_beyond_64_bits": (lambda s: tp.arange(0, 1e308, 1e-308), HUGE, "arange"),
    "arange_beyond_64_bits": (lambda s: tp.arange(2**70, 2**70 + 3), tp.TapeflowError, "arange"),
    "arange_stop_beyond_64_bits": (lambda s: tp.arange(2**63 - 2, 2**63 + 1), tp.TapeflowError, "arange"),
    "linspace_negative": (lambda s: tp.linspace(0.0, 1.0, -1), ValueError, "linspace.*-1"),
    "zeros_negative": (lambda s: tp.zeros((2, -3)), ValueError, r"zeros.*-3"),
    "zeros_fraction": (lambda s: tp.zeros((2.5,)), TypeError, "zeros|float|2.5"),
    "ragged": (lambda s: tp.tensor([[1.0, 2.0], [3.0]]), ValueError, r"tensor"),
    "ragged_deep": (lambda s: tp.tensor([[[1], [2]], [[3], 4]]), ValueError, r"tensor"),
    "ragged_tensors": (lambda s: tp.asarray([s.x, [s.n, 2.0]]), ValueError, "asarray|stack"),
    "nested_too_deep": (lambda s: tp.tensor(nested(100)), ValueError, "tensor"),
    "nested_in_itself": (lambda s: tp.tensor(nested_in_itself()), (ValueError, RecursionError), ""),
}
AXES = {
    **{f"{name}_axis": (lambda s, name=name: getattr(tp, name)(s.x, axis=2), (ValueError, IndexError), rf"{name}.*2")
       for name in ("sum", "mean", "max", "min", "prod", "argmax", "logsumexp", "softmax", "log_softmax")},
    "sum_negative": (lambda s: tp.sum(s.x, axis=-3), (ValueError, IndexError), "sum.*-3"),
    "sum_twice": (lambda s: tp.sum(s.x, axis=(0, -2)), ValueError, "sum"),
    "sum_fraction": (lambda s: tp.sum(s.x, axis=0.5), TypeError, ""),
    "sum_huge": (lambda s: tp.sum(s.x, axis=2**70), (ValueError, IndexError, OverflowError), ""),
    "permute_twice": (lambda s: tp.permute_dims(s.x, (0, 0)), ValueError, r"permute_dims.*\(0, 0\)"),
    "permute_few": (lambda s: tp.permute_dims(s.x, (0,)), ValueError, "permute_dims.*(1 ax|few)"),
    "permute_range": (lambda s: tp.permute_dims(s.x, (0, 2)), (ValueError, IndexError), r"permute_dims"),
    "expand_dims": (lambda s: tp.expand_dims(s.x, axis=4), (ValueError, IndexError), "expand_dims.*4"),
    "concat": (lambda s: tp.concat([s.x, s.v], axis=2), (ValueError, IndexError), "concat.*2"),
    "stack": (lambda s: tp.stack([s.x, s.v], axis=3), (ValueError, IndexError), "stack.*3"),
    "take": (lambda s: tp.take(s.x, tp.tensor([0]), axis=2), (ValueError, IndexError), "take.*2"),
    "squeeze_axis": (lambda s: tp.squeeze(s.x, axis=2), (ValueError, IndexError), "squeeze.*2"),
    "transpose_1d": (lambda s: tp.ones(3).mT, ValueError, r"mT.*\(3,\)"),
}  # fmt: skip
INDICES = {
    "past_end": (lambda s: s.x[5], IndexError, r"(?=.*axis 0)(?=.*\b5\b)(?=.*\b2\b)"),
    "past_end_axis_1": (lambda s: s.x[:, 3], IndexError, r"(?=.*axis 1)(?=.*\b3\b)"),
    "before_start": (lambda s: s.x[0, -4], IndexError, r"(?=.*axis 1)(?=.*-4)(?=.*\b3\b)"),
    "huge": (lambda s: s.x[2**70], (IndexError, OverflowError), ""),
    "too_many": (lambda s: s.x[0, 0, 0], IndexError, r"\(2, 3\)"),
    "two_ellipses": (lambda s: s.x[..., ...], IndexError, ""),
    "fraction": (lambda s: s.x[1.5], (IndexError, TypeError), ""),
    "text": (lambda s: s.x["a"], (IndexError, TypeError), ""),
    "step_0": (lambda s: s.x[::0], (ValueError, IndexError), "step"),
    "list_past_end": (lambda s: s.x[[0, 7]], IndexError, r"(?=.*axis 0)(?=.*\b7\b)(?=.*\b2\b)"),
    "list_before_start": (lambda s: s.x[:, [0, -4]], IndexError, r"(?=.*axis 1)(?=.*-4)"),
    "float_list": (lambda s: s.x[[0.5]], (IndexError, TypeError), ""),
    "float_tensor": (lambda s: s.x[s.v], (IndexError, TypeError), "float32"),
    "mask_shape": (lambda s: s.x[tp.tensor([True, False, True])], IndexError, r"(?=.*\b3\b)(?=.*\b2\b)"),
    "lists_do_not_broadcast": (lambda s: s.x[[0, 1], [0, 1, 2]], (IndexError, ValueError), r"\(2,\).*\(3,\)"),
    "take": (lambda s: tp.take(s.x, tp.tensor([0, 9]), axis=1), IndexError, r"(?=.*axis 1)(?=.*\b9\b)(?=.*\b3\b)"),
    "take_negative": (lambda s: tp.take(s.x, tp.tensor([-4]), axis=1), IndexError, r"(?=.*-4)(?=.*\b3\b)"),
    "take_float": (lambda s: tp.take(s.x, s.n, axis=1), (IndexError, TypeError), "float32"),
    "take_of_nothing": (lambda s: tp.take(tp.zeros((0, 2)), tp.tensor([0]), axis=0), IndexError, ""),
    "labels": (lambda s: tp.cross_entropy(s.x, tp.tensor([0, 3])), IndexError, r"(?=.*\b3\b)"),
    "labels_negative": (lambda s: tp.cross_entropy(s.x, tp.tensor([0, -1])), IndexError, "-1"),
    "labels_float": (lambda s: tp.cross_entropy(s.x, tp.tensor([0.0, 1.0])), (TypeError, tp.ShapeError), ""),
    "iterate_0d": (lambda s: list(s.n), TypeError, "0-d"),
    "index_0d": (lambda s: s.n[0], IndexError, ""),
    "write_past_end": (lambda s: operator.setitem(s.v, 5, 1.0), IndexError, r"(?=.*axis 0)(?=.*\b5\b)"),
    "write_recorded_past_end": (lambda s: operator.setitem(s.y, (0, [1, 8]), 1.0), IndexError, r"\b8\b"),
}
WRITES = {
    **{f"leaf_{name}": (call, tp.TapeError, r"no_grad") for name, call in {
        "iadd": lambda s: operator.iadd(s.x, 1.0),
        "imul": lambda s: operator.imul(s.x, s.v),
        "setitem": lambda s: operator.setitem(s.x, 0, 1.0),
        "mask": lambda s: operator.setitem(s.x, s.b, 1.0),
        "assign": lambda s: s.x.assign(s.v),
        "assign_add": lambda s: s.x.assign_add(s.v),
        "zero": lambda s: s.x.zero_(),
    }.items()},
    "grow_iadd": (lambda s: operator.iadd(s.v, tp.ones((3, 2, 3))), tp.ShapeError, r"(?=.*\(2, 3\)).*\(3, 2, 3\)"),
    "grow_0d": (lambda s: operator.imul(s.n, tp.ones(3)), tp.ShapeError, r"(?=.*\(\)).*\(3,\)"),
    "grow_recorded": (lambda s: operator.iadd(s.y, tp.ones((3, 1, 2, 3))), tp.ShapeError, r"\(3, 1, 2, 3\)"),
    "grow_assign": (lambda s: s.v.assign(tp.ones((2, 2, 3))), tp.ShapeError, r"\(2, 2, 3\)"),
    "assign_shape": (lambda s: s.v.assign(tp.ones((3, 2))), tp.ShapeError, r"\(2, 3\).*\(3, 2\)|\(3, 2\).*\(2, 3\)"),
    "assign_add_shape": (lambda s: s.v.assign_add(tp.ones(4)), tp.ShapeError, r"\(4,\)"),
    "setitem_shape": (lambda s: operator.setitem(s.v, 0, tp.ones(4)), tp.ShapeError, r"\(4,\)"),
    "setitem_grow": (lambda s: operator.setitem(s.v, 0, tp.ones((2, 3))), tp.ShapeError, r"\(2, 3\)"),
    "setitem_recorded": (lambda s: operator.setitem(s.y, slice(1), tp.ones((2, 3))), tp.ShapeError, r"\(2, 3\)"),
    "mask_count": (lambda s: operator.setitem(s.v, s.b, tp.ones(5)), (ValueError, IndexError), r"5"),
    "int_plus_float": (lambda s: operator.iadd(s.i, 0.5), TypeError, "int64"),
    "int_divide": (lambda s: operator.itruediv(s.i, 2), TypeError, "int64"),
    "setitem_text": (lambda s: operator.setitem(s.v, 0, "a"), TypeError, ""),
    "delete": (lambda s: operator.delitem(s.v, 0), (TypeError, tp.ShapeError), "delete|deletion"),
    "shape_is_fixed": (lambda s: setattr(s.v, "shape", (3, 2)), AttributeError, ""),
    "assign_float_to_int": (lambda s: s.i.assign(tp.ones(3)), TypeError, "int64"),
    "grad_shape": (lambda s: setattr(s.x, "grad", tp.ones(4)), tp.TapeflowError, r"\(4,\)|\[4\]"),
    "grad_type": (lambda s: setattr(s.x, "grad", "a"), tp.TapeflowError, "str"),
}  # fmt: skip
DTYPES = {
    "text": (lambda s: tp.tensor("abc"), TypeError, "tensor"),
    "texts": (lambda s: tp.tensor(["1", "2"]), TypeError, "tensor"),
    "bytes": (lambda s: tp.tensor(b"ab"), TypeError, "tensor"),
    "object": (lambda s: tp.tensor(object()), TypeError, "tensor"),
    "objects": (lambda s: tp.tensor([object(), 1.0]), TypeError, "tensor"),
    "none": (lambda s: tp.tensor(None), TypeError, "tensor"),
    "none_inside": (lambda s: tp.tensor([1.0, None]), TypeError, "tensor"),
    "dict": (lambda s: tp.tensor({"a": 1}), TypeError, "tensor"),
    "complex": (lambda s: tp.tensor(1j), TypeError, "complex"),
    "complex_array": (lambda s: tp.tensor(np.ones(2, complex)), TypeError, "complex128"),
    "text_array": (lambda s: tp.tensor(np.array(["a"])), TypeError, ""),
    "object_array": (lambda s: tp.asarray(np.array([None], object)), TypeError, "object"),
    "structured_array": (lambda s: tp.tensor(np.zeros(2, [("a", "f4")])), TypeError, ""),
    "datetime_array": (lambda s: tp.tensor(np.zeros(2, "M8[s]")), TypeError, "datetime64"),
    "dtype_name": (lambda s: tp.zeros(2, dtype="nope"), TypeError, "nope"),
    "dtype_complex": (lambda s: tp.zeros(2, dtype=np.complex64), TypeError, "complex64"),
    "astype": (lambda s: s.x.astype("nope"), TypeError, "nope"),
    "default_dtype": (lambda s: tp.set_default_dtype(tp.int64), (TypeError, ValueError), "int64"),
    "int_overflow": (lambda s: tp.tensor(2**70), (OverflowError, TypeError, ValueError), ""),
    "int32_overflow": (lambda s: tp.tensor(2**40, dtype=tp.int32), (OverflowError, TypeError, ValueError), "int32"),
    "uint8_overflow": (lambda s: tp.tensor([300], dtype=tp.uint8), (OverflowError, TypeError, ValueError), "uint8"),
    "plus_text": (lambda s: s.x + "a", TypeError, ""),
    "text_times": (lambda s: "a" * s.x, TypeError, ""),
    "plus_none": (lambda s: s.x + None, TypeError, ""),
    "plus_object": (lambda s: object() - s.x, TypeError, ""),
    "plus_complex": (lambda s: s.x + 1j, TypeError, "complex"),
    "plus_complex_array": (lambda s: np.ones(3, complex) * s.x, TypeError, "complex128"),
    "matmul_text": (lambda s: s.x @ "a", TypeError, ""),
    "function_of_text": (lambda s: tp.exp("a"), TypeError, "exp"),
    "function_of_none": (lambda s: tp.add(s.x, None), TypeError, "add"),
    "concat_of_text": (lambda s: tp.concat([s.x, "a"], axis=0), TypeError, "str"),
    "int_requires_grad": (lambda s: tp.tensor([1, 2], requires_grad=True), tp.DTypeError, "int64"),
    "bool_requires_grad": (lambda s: s.b.requires_grad_(), tp.DTypeError, "bool"),
    "uint8_requires_grad": (lambda s: tp.zeros(2, dtype=tp.uint8).requires_grad_(), tp.DTypeError, "uint8"),
    "grad_of_int": (lambda s: tp.grad(lambda x: tp.sum(x * 2.0))(s.i), TypeError, "int64"),
    "grad_of_bool": (lambda s: tp.grad(lambda x: x * 2.0)(True), TypeError, "bool"),
    "grad_of_int_array": (lambda s: tp.grad(lambda x: tp.sum(x * 2.0))(np.arange(3)), TypeError, "int64"),
    "float_of_many": (lambda s: float(s.x), (TypeError, ValueError), r"\(2, 3\)"),
    "int_of_many": (lambda s: int(s.i), (TypeError, ValueError), r"\(3,\)"),
    "bool_of_many": (lambda s: bool(s.x), ValueError, r"\(2, 3\)"),
    "bool_of_none": (lambda s: bool(tp.zeros(0)), ValueError, r"\(0,\)"),
    "item_of_many": (lambda s: s.x.item(), ValueError, r"\(2, 3\)"),
    "index_of_float": (lambda s: operator.index(s.n), TypeError, "float32"),
    "int_of_nan": (lambda s: int(tp.tensor(float("nan"))), ValueError, ""),
    "len_0d": (lambda s: len(s.n), TypeError, "0-d"),
    "format": (lambda s: f"{s.x:.3f}", (TypeError, ValueError), ""),
    "format_code": (lambda s: f"{s.n:zzz}", ValueError, ""),
    "copy_false_list": (lambda s: tp.asarray([1.0], copy=False), ValueError, "copy"),
    "copy_false_cast": (lambda s: tp.asarray(np.ones(2), dtype=tp.float32, copy=False), ValueError, "copy"),
    "from_dlpack": (lambda s: tp.from_dlpack(object()), TypeError, "from_dlpack"),
    "from_dlpack_complex": (lambda s: tp.from_dlpack(np.ones(2, complex)), TypeError, ""),
    "tensor_is_no_base": (lambda s: type("T", (tp.Tensor,), {})(1, 2, 3, 4, 5, 6, 7), TypeError, ""),
}


def seedless():
    """A tape's gradient of a target that is not a scalar."""
    x = tp.tensor([1.0, 2.0])
    with tp.Tape(watch=x) as tape:
        y = x * x
    return tape.gradient(y, x)


OTHERS = {
    "no_value": (lambda s: repr(tp.Tensor.__new__(tp.Tensor)), tp.DTypeError, "tp.tensor"),
    "tape_target_seed": (lambda s: seedless(), tp.TapeError, "seed"),
    "device": (lambda s: tp.zeros(2, device="nonsense"), tp.DeviceError, "nonsense"),
    "device_to": (lambda s: s.x.to("nonsense:3"), tp.DeviceError, "nonsense"),
    "device_number": (lambda s: tp.device(17), (tp.DeviceError, TypeError), "17"),
    "threads_0": (lambda s: tp.set_num_threads(0), ValueError, "0"),
    "threads_negative": (lambda s: tp.set_num_threads(-2), ValueError, "-2"),
    "threads_text": (lambda s: tp.set_num_threads("a"), TypeError, ""),
    "no_such_attribute": (lambda s: s.x.nonsense, AttributeError, "nonsense"),
    "argnums": (lambda s: tp.grad(lambda x: x, argnums=3)(1.0), tp.TapeflowError, "3"),
    "argnums_text": (lambda s: tp.grad(lambda x: x, argnums="a")(1.0), tp.TapeflowError, "argnums"),
    "argnums_doubled": (lambda s: tp.grad(lambda x: x * x, argnums=(0, 0))(1.0), tp.TapeflowError, "argnums.*0, 0"),
    "grad_of_no_function": (lambda s: tp.grad(3)(1.0), tp.TapeflowError, "function"),
    "grad_of_a_number": (lambda s: tp.grad(lambda x: 3.0)(1.0), (tp.TapeError, TypeError), "grad"),
    "grad_of_text": (lambda s: tp.grad(lambda x: "a")(1.0), (tp.TapeError, TypeError), "grad"),
    "grad_of_text_argument": (lambda s: tp.grad(lambda x: x)("a"), TypeError, ""),
    "value_and_grad_aux": (lambda s: tp.value_and_grad(lambda x: x, has_aux=True)(1.0), tp.TapeflowError, "aux"),
    "backward_vector": (lambda s: s.y.backward(), tp.TapeError, r"\(2, 3\)"),
    "backward_seed": (lambda s: s.y.backward(tp.ones((3, 2))), tp.TapeError, r"\(3, 2\)"),
    "backward_unrecorded": (lambda s: s.v.sum().backward(), tp.TapeError, "backward"),
    "tape_source": (lambda s: s.tape.gradient(s.y, ["a"]), tp.TapeflowError, "str"),
    "tape_target": (lambda s: s.tape.gradient("a", s.x), tp.TapeflowError, "str"),
    "watch": (lambda s: s.tape.watch("a"), tp.TapeflowError, "watch.*str"),
    "tape_watch_number": (lambda s: tp.Tape(watch=3), tp.TapeError, "watch.*int"),
    "tape_watch_numbers": (lambda s: tp.Tape(watch=[3]).__enter__(), tp.TapeError, "int"),
    "watch_int": (lambda s: s.tape.watch(s.i), TypeError, "int64"),
    "enter_twice": (lambda s: s.tape.__enter__(), tp.TapeError, ""),
    "hook": (lambda s: s.y.register_hook("a"), tp.TapeflowError, "callable"),
    "hook_unrecorded": (lambda s: s.v.register_hook(print), tp.TapeError, "require"),
    "retain_grad_unrecorded": (lambda s: s.v.retain_grad(), tp.TapeError, "require"),
}  # fmt: skip
GROUPS = {"shape": SHAPES, "axis": AXES, "index": INDICES, "write": WRITES, "dtype": DTYPES, "other": OTHERS}
CALLS = {f"{group}-{name}": call for group, calls in GROUPS.items() for name, call in calls.items()}
# Python's own errors, or those of a protocol that fixes the message.
PLAIN = {
    "axis-sum_fraction", "dtype-format", "dtype-format_code", "dtype-int_of_nan", "dtype-matmul_text",
    "dtype-plus_complex", "dtype-plus_none", "dtype-plus_object", "dtype-plus_text", "dtype-tensor_is_no_base",
    "dtype-text_times",
    "index-step_0", "other-argnums_text", "other-grad_of_no_function", "other-hook", "other-no_such_attribute",
    "other-threads_text", "shape-nested_in_itself", "write-delete", "write-setitem_text", "write-shape_is_fixed",
}  # fmt: skip


def expanded(times):
    t = tp.ones(())
    for _ in range(times):
        t = tp.expand_dims(t, axis=0)


def nested(depth):
    out = 1.0
    for _ in range(depth):
        out = [out]
    return out


def nested_in_itself():
    out = []
    out.append(out)
    return out


def operands(tape):
    x = tp.tensor(MATRIX, requires_grad=True)
    (x * 3.0).sum().backward()
    return SimpleNamespace(x=x, y=x * 2.0, v=tp.tensor(MATRIX), i=tp.arange(3), b=tp.tensor(MATRIX) > 0,
                           n=tp.tensor(2.0), tape=tape)  # fmt: skip


def snapshot(s):
    tensors = {name: t for name, t in vars(s).items() if isinstance(t, tp.Tensor)}
    values = {name: (t.tolist(), t.shape, str(t.dtype), t.requires_grad, t.is_leaf) for name, t in tensors.items()}
    return values, s.x.grad.tolist(), s.v.grad, str(tp.get_default_dtype()), tp.get_num_threads()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_bad_call(name):
    call, errors, says = CALLS[name]
    with tp.Tape(persistent=True) as tape:
        s = operands(tape)
        before = snapshot(s)
        with pytest.raises(errors) as info:
            call(s)
        assert info.match(f"(?s){says}"), str(info.value)
        if name not in PLAIN:
            assert info.match(r"^['\"]?\[[\w.]+\] \S"), f"no [op]: {info.value}"
        assert snapshot(s) == before
        loss = (s.x * s.v + s.y[0] @ s.v[1]).sum()
    want = np.array(MATRIX) + 6 * 2 * np.array([MATRIX[1], [0, 0, 0]])
    np.testing.assert_allclose(tape.gradient(loss, s.x).numpy(), want, rtol=1e-6)
    loss.backward()
    np.testing.assert_allclose(s.x.grad.numpy(), want + 3, rtol=1e-6)
    assert_same(s.v, np.array(MATRIX, "float32"))


UNRECORDED = {
    "matmul": lambda s: s.x @ s.v,
    "reshape": lambda s: s.x.reshape((4, 2)),
    "index": lambda s: s.y[0, 5],
    "sum": lambda s: s.y.sum(axis=4),
    "add": lambda s: s.x + "a",
    "write": lambda s: operator.setitem(s.y, 5, 1.0),
    "grow": lambda s: operator.iadd(s.n, s.v),
    "leaf": lambda s: operator.iadd(s.x, s.v),
    "backward": lambda s: s.y.backward(),
}


@pytest.mark.parametrize("name", sorted(UNRECORDED))
def test_a_failed_call_records_nothing(name):
    with tp.Tape() as tape:
        s = operands(tape)
        length, lines = len(tape), str(tape)
        with pytest.raises((tp.TapeflowError, IndexError, TypeError)):
            UNRECORDED[name](s)
        assert len(tape) == length and str(tape) == lines


ERRORS = {
    "ShapeError": ValueError,
    "DTypeError": TypeError,
    "DeviceError": RuntimeError,
    "TapeError": RuntimeError,
    "PlanError": RuntimeError,
    "DeviceOutOfMemory": MemoryError,
}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_hierarchy(name):
    error = getattr(tp, name)
    assert issubclass(error, tp.TapeflowError) and issubclass(error, ERRORS[name])
    back = pickle.loads(pickle.dumps(error("[op] text")))
    assert type(back) is error and str(back) == "[op] text"


def test_an_interrupt_in_a_hook_is_passed_on():
    x = tp.tensor(MATRIX, requires_grad=True)
    y = x * 2.0

    def hook(g):
        raise KeyboardInterrupt

    y.register_hook(hook)
    with pytest.raises(KeyboardInterrupt):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("size", [1, 7, 1024, 1025, 10_000])
def test_one_bad_index_among_many_is_found_before_anything_is_written(size):
    t = tp.zeros(size)
    for at in {0, size // 2, size - 1}:
        index = np.arange(size)
        for bad in (size, -size - 1, 2**40, -(2**62)):
            index[at] = bad
            for use in (t.__getitem__, lambda i: t.__setitem__(i, 1.0), lambda i: tp.take(t, tp.tensor(i), axis=0)):
                with pytest.raises(IndexError, match=str(bad)):
                    use(index)
    assert not t.numpy().any()


def test_messages_name_what_to_do():
    with pytest.raises(tp.ShapeError, match=r"^\[matmul\] inner sizes differ: \(2, 3\) @ \(4, 5\).*\.T"):
        tp.ones((2, 3)) @ tp.ones((4, 5))


# ---- what the package keeps for itself, called with anything


@pytest.mark.parametrize("bad", [None, 3, "x"])
def test_the_cores_own_functions_check_their_tensors(bad):
    calls = [
        lambda: tp.Tape().source_node(bad),
        lambda: _core.fresh_source(bad),
        lambda: _core.tensor_node(bad),
        lambda: _core.run_backward([bad], [None], None, False, False),
        lambda: _core.run_backward(bad, bad, None, False, False),
        lambda: tp.Tape.watch(bad, tp.ones(1)),
        lambda: tp.Tensor.sum(bad),
    ]
    for call in calls:
        with pytest.raises((TypeError, tp.TapeflowError)):
            call()
    assert not hasattr(tp.Tape(), "_line") and not hasattr(tp.Tape(), "line")


@pytest.mark.parametrize("name", ["Walk", "Node", "_Export", "_ThreadRecord", "_Hook", "_GradMode", "Tape", "no_grad"])
def test_objects_of_the_core_without_their_init(name):
    kind = getattr(_core, name, None)
    if kind is None:
        return
    for make in (kind, lambda: kind.__new__(kind)):
        try:
            thing = make()
        except TypeError:
            continue
        repr(thing)
        for method in ("remove", "__enter__", "__exit__", "__len__"):
            if hasattr(kind, method):
                with contextlib.suppress(TypeError, AttributeError, IndexError, tp.TapeError):
                    getattr(thing, method)(*((None,) * 3 if method == "__exit__" else ()))
        if name in ("Tape", "no_grad") and hasattr(thing, "__exit__"):
            with contextlib.suppress(IndexError, AttributeError, tp.TapeError):
                thing.__exit__(None, None, None)
    assert tp.is_grad_enabled()


def test_a_mode_without_its_init_changes_nothing():
    class Mode(tp.no_grad):
        def __init__(self):
            pass

    try:
        with Mode():
            assert not tp.is_grad_enabled()
    except (AttributeError, tp.TapeError):
        pass
    assert tp.is_grad_enabled()


STRETCHED = tp.broadcast_to(tp.tensor(1.0), (1 << 20, 1 << 20))
TOO_LARGE = {
    "getitem_pair": lambda b: b[[0], [0]],
    "setitem_pair": lambda b: b.detach().__setitem__(([0], [0]), 1.0),
    "setitem": lambda b: b.detach().__setitem__(0, 1.0),
    "tril": tp.tril,
    "triu": tp.triu,
    "linspace": lambda b: tp.linspace(0.0, 1.0, 1 << 40),
    "linspace_larger": lambda b: tp.linspace(0.0, 1.0, 1 << 50),
    "arange": lambda b: tp.arange(1 << 40),
    "arange_larger": lambda b: tp.arange(1 << 50),
    "eye": lambda b: tp.eye(1 << 20),
    "tensor": tp.tensor,
    "astype": lambda b: b.astype("float64"),
    "reshape": lambda b: b.reshape(-1),
    "add": lambda b: b + 1.0,
    "where": lambda b: tp.where(b > 0, b, b),
    "concat": lambda b: tp.concat([b, b]),
    "take": lambda b: tp.take(b, [0]),
    "full": lambda b: tp.full(b.shape, 1.0),
    "uniform": lambda b: tp.random.uniform(0.0, 1.0, b.shape),
    "permutation": lambda b: tp.random.permutation(1 << 42),
    "deepcopy": copy.deepcopy,
    "numpy": lambda b: b.numpy(copy=True),
    "array": np.array,
    "array_dtype": lambda b: b.__array__(np.float64),
    "pickle": pickle.dumps,
    "dlpack": lambda b: b.__dlpack__(),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", sorted(TOO_LARGE))
def test_what_does_not_fit_into_memory_is_one_kind_of_error(name):
    with pytest.raises(tp.DeviceOutOfMemory, match=r"^\[[\w.]+\] "):
        TOO_LARGE[name](STRETCHED)
    assert (tp.ones(2) + 1.0).tolist() == [2.0, 2.0]


def test_rows_of_a_stretched_table():
    table = tp.broadcast_to(tp.tensor(1.0), (1 << 10, 1 << 8))
    for index in ([0, -1], np.array([0, -1]), tp.tensor([0, -1])):
        assert_same(table[index], np.ones((2, 1 << 8), "float32"))


def test_a_tape_without_its_init():
    class Bare(tp.Tape):
        def __init__(self):
            pass

    for make in (Bare, lambda: tp.Tape.__new__(tp.Tape)):
        tape = make()
        assert len(tape) == 0 and "0 entries" in repr(tape)
        x = tp.tensor(3.0, requires_grad=True)
        with tape:
            y = x * x
        assert len(tape) == 1 and tape.gradient(y, x).item() == 6.0


@pytest.mark.parametrize("index", [[0, -1], np.array([0, -1]), tp.tensor([0, -1])])
def test_rows_of_a_huge_stretched_table_take_the_memory_of_the_rows(index):
    assert STRETCHED[index].sum().item() == 1 << 21


def test_an_empty_node_is_no_source():
    program = (
        "import tapeflow as tp\nfrom tapeflow import _core\ny = tp.tensor(1.0, requires_grad=True) * 2\n"
        "try:\n    _core.run_backward([y], [None], [_core.Node()], False, False)\n"
        "except (TypeError, tp.TapeflowError):\n    pass\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_argnums_doubled_by_a_negative_number():
    with pytest.raises(tp.TapeflowError, match="argnums"):
        tp.grad(lambda a, b: a * b, argnums=(1, -1))(2.0, 3.0)
