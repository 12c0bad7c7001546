"""Programs that are read from texts and files: what eager recorded is accepted, and what does not fit is refused."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import PROFILE
from hypothesis import given, settings
from test_plans_calls import POOL, calls, function_of
from worlds import WORLDS, world

import tapeflow as tp
from tapeflow.plan import passes, positions, types
from tapeflow.plan.interpret import Interpreter
from tapeflow.plan.ir import NAMES, name_of
from tapeflow.plan.plans import Plan
from tapeflow.plan.record import record
from tapeflow.testing.strategies import programs
from tapeflow.transforms import flatten


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)


def frozen_and_verified(f, *xs):
    """f's plan; its program passes as it was noted, and after each pass; no position needs another look."""
    noted = record(f, xs, {}, "freeze")[0].ir
    for ir in (noted, Plan(noted.copy())._ir):
        before = [repr(instr) for instr in ir.instrs]
        passes.trust(ir, "test")
        assert [repr(instr) for instr in ir.instrs] == before
    return tp.freeze(f, *xs)


def functions_of_calls():
    """Each function of the bench's table, with its gradient where it has one, and over a batch where it goes."""
    pool = POOL[16, "float32"]
    for text in dict.fromkeys(calls()):
        f, arrays = function_of(text, pool)
        if arrays:
            yield text, f, [tp.tensor(pool[k]) for k in arrays]


def with_gradient(f, xs):
    """The cotangents of the operands that have any, or None."""
    floats = tuple(i for i, x in enumerate(xs) if x.dtype.kind == "f")

    def total(*xs):
        return sum(tp.sum(y) for y in flatten(f(*xs))[0] if isinstance(y, tp.Tensor) and y.dtype.kind == "f")

    g = tp.grad(total, argnums=floats) if floats else None
    try:
        return g if g is not None and g(*xs) is not None else None
    except (tp.TapeflowError, TypeError, AttributeError):
        return None


def test_calls_are_accepted():
    tried = 0
    for text, f, xs in functions_of_calls():
        plans = [frozen_and_verified(f, *xs)]
        g = with_gradient(f, xs)
        if g is not None:
            plans.append(frozen_and_verified(g, *xs))
        for plan in plans:
            tried += 1
            if "..." not in str(plan):
                assert str(tp.parse_plan(str(plan))) == str(plan), text
    assert tried > 300


@given(programs())
@settings(max_examples=settings.default.max_examples // 2)
def test_random_programs_are_accepted(program):
    f = tp.value_and_grad(program, argnums=tuple(range(len(program.leaves))))
    if ".tolist()" not in str(program):
        frozen_and_verified(f, *program.leaves)


def test_every_op_that_is_replayed_has_a_rule():
    assert set(NAMES) - {NAMES[op] for op in types.RULES} == {"custom", "custom_result", "leaf"}


# ---- what is refused ----

X, I = "plan f(%0 float32[2, 3], %9 float32[])\n", "plan f(%0 float32[5], %1 int64[2])\n"  # noqa: E741
WRONG = [
    ("add(%0)  float32[2, 3]", "it has 1 operands, expected 2"),
    ("exp(%0)  float32[2, 4]", r"the result is float32\[2, 4\], expected float32\[2, 3\]"),
    ("exp(%0)  float64[2, 3]", r"the result is float64\[2, 3\], expected float32\[2, 3\]"),
    ("exp[1](%0)  float32[2, 3]", "it has 1 parameters, expected 0"),
    ("bitwise_invert(%0)  float32[2, 3]", "computed in float32, and defined for bool, uint8, int32 or int64"),
    ("reshape(%0)  float32[7]", r"shape \[2, 3\] holds 6 elements, and \[7\] 7"),
    ("permute_dims[1, 1](%0)  float32[3, 3]", r"the axes are \(1, 1\)"),
    ("getitem[0, 1, 2, 2, 1, 1, 3, 3](%0)  float32[2, 3]", "the window of axis 1"),
    ("getitem[0, 1, 2, 2, 2, -1, 3, 3](%0)  float32[6]", r"shape \[6\], and the window \[2, 3\]"),
    ("unslice[0, 1, 2, 2](%0)  float32[2]", r"the operand has shape \[2, 3\], and the window \[2\]"),
    ("sum[4, 1](%0)  float32[2, 3]", "the mask of axes is 4, and the operand has 2 axes"),
    ("sum[2, 4](%0)  float32[2]", "4 elements go together by the parameters, and 3 by shape and axes"),
    ("concat[2](%0, %0)  float32[4, 3]", "the axis is 2"),
    ("concat[1](%0, %9)  float32[2, 4]", r"operand 1 is float32\[\], expected float32\[2, 0\]"),
    ("cumulative_prod[0, 1](%0)  float32[2, 3]", "it does not go from the end"),
    ("argsort[1, 0, 4](%0)  int64[2, 4]", "4 elements come first, of an axis of size 3"),
    ("layer_norm[3, 0, 1](%0)  float32[2, 3]", "3 of the last axes go together"),
    ("matmul(%0, %0)  float32[2, 3]", r"not \(..., m, k\) and \(..., k, n\)"),
    ("take[0](%0, %0)  float32[2, 3, 3]", "positions is float32, expected int64"),
    ("one_hot[3](%0)  float32[2, 3, 3]", "the operand is float32, expected int64"),
    ("nonzero[1](%0)  int64[7]", r"the result has shape \[7\], and the operand 6 elements"),
    ("places[1, 1, 3, 0, 3, 1, 0](%0)  int64[3]", "operand 0 is float32, expected uint8, int32 or int64"),
    ("cross_entropy(%0, %0)  float32[]", r"the labels is float32\[2, 3\], expected int64\[2\]"),
    ("accumulate(%0, %0)  float32[2, 3]", "operand 0 is not what a .grad holds"),
    ("random[0, 0, 0]()  float32[2]", "it draws from stretch 0 of 0"),
    ("custom(%0)  float32[2, 3]", "this op cannot be replayed"),
    ("exp(%2)  float32[2, 3]", "reads %2 before that is made"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), WRONG)
def test_an_instruction_that_does_not_fit_is_named(call, match):
    with pytest.raises(tp.PlanError, match=rf"^\[parse_plan\] %1 = {re.escape(call)}: .*{match}"):
        tp.parse_plan(f"{X}  %1 = {call}\n  return %1")


def test_what_does_not_fit_beside_instructions():
    w = "  %1 = leaf  float32[2, 3]  " + " ".join(["0x1p+0"] * 6) + "\n"
    exp, end = "  %2 = exp(%0)  float32[2, 3]\n  %3 = sum[3, 6](%0)  float32[]\n", "  return %2"
    slot = "  %4 = grad  float32[2, 3]  of %1\n  %5 = exp(%4)  float32[2, 3]\n"
    for lines, match in {
        w + exp + "  %1.assign(%3)\n": r"what is assigned, %3, is float32\[\], expected float32\[2, 3\]",
        w + exp + "  %1.grad = %3\n": r"what becomes a .grad, %3, is float32\[\]",
        w + exp + "  %1.assign(%2)\n  %1.assign(%0)\n": "is written twice",
        w + exp + "  guard(%3)  00\n": "compares float32[] with 1 bytes, expected one element and its 4",
        w + exp + "  guard(%2)  00000000\n": "expected one element and its 4",
        w + exp + slot: "what a .grad holds, is read without a grad_guard before that finds it there",
        w + exp + slot.replace("2, 3", "2, 4"): r"%4 is float32\[2, 4\], expected float32\[2, 3\] as its tensor is",
        "  %0 = const  float32[1]  0x1p+0\n" + exp: "%0 is among the inputs, and is none",
    }.items():
        with pytest.raises(tp.PlanError, match=r"^\[parse_plan\] .*" + match.replace("[]", r"\[\]")):
            tp.parse_plan(X + lines + end)
    tp.parse_plan(X + w + exp + "  grad_guard(%1)  there\n" + slot + "  %1.assign(%5)\n" + end)


# ---- positions ----

TAKEN = I + "  %2 = take[0](%0, %1)  float32[2]\n  return %2"


def test_positions_from_outside_are_checked_as_eager_does():
    plan = tp.parse_plan(TAKEN)
    assert [name_of(i.op) for i in plan.instructions] == ["places", "take"]
    x = tp.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    assert plan(x, tp.tensor([4, -5]))[0].tolist() == [4.0, 0.0]
    for bad in (5, -6, 1 << 62):
        with pytest.raises(IndexError, match=f"index {bad} is out of range for axis 0 of size 5"):
            plan(x, tp.tensor([0, bad]))
    for op, more in (("scatter_add[0]", ""), ("put[0, 0]", "")):
        text = f"{I}  %2 = const  float32[2]  0x1p+0 0x1p+1\n  %3 = {op}(%0, %1, %2{more})  float32[5]\n  return %3"
        with pytest.raises(IndexError, match="index 5 is out of range"):
            tp.parse_plan(text)(x, tp.tensor([0, 5]))


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("permute_dims[1, 0](%1)  int64[3, 2]", "3, 2"),
        ("broadcast_to(%1)  int64[4, 2, 3]", "4, 2, 3"),
        ("getitem[1, -1, 2, 2, 0, 2, 2, 3](%1)  int64[2, 2]", "2, 2"),
        ("astype(%1)  int64[2, 3]", "2, 3"),
    ],
)
def test_positions_that_are_views(line, shape):
    """The kernels read positions without strides: so they are never views with gaps, whatever the passes leave."""
    text = f"""plan f(%0 float32[6])
  %9 = const  int64[]  1
  %8 = argsort[0, 0, 6](%0)  int64[6]
  %1 = reshape(%8)  int64[2, 3]
  %2 = {line}
  %3 = multiply(%2, %9)  int64[{shape}]
  %4 = take[0](%0, %3)  float32[{shape}]
  return %4, %3"""
    x = tp.tensor([5.0, 3.0, 4.0, 0.0, 2.0, 1.0])
    plan = tp.parse_plan(text)
    assert "places" not in [name_of(i.op) for i in plan.instructions]
    for one in (plan, Plan(plan._ir.copy(), None, passes.DEFAULT), tp.parse_plan(text.replace("(%0, %3)", "(%0, %2)"))):
        y, at = one._replay([x])
        want = x.numpy()[at.numpy()]
        assert y.tolist() == want.tolist() and Interpreter(one._ir).run([x])[0].tolist() == want.tolist()


def test_bounds_are_those_of_the_ops():
    """What positions are made of has the bounds that the module works out; random programs of integers."""
    rng = np.random.default_rng(3)
    k = tp.tensor(rng.integers(0, 9, 9))
    x = tp.tensor(rng.normal(size=9))

    def f(x):
        a = tp.argsort(x)
        b = tp.concat([a * 3 - 4, tp.where(x > 0, a, a + 20), tp.minimum(a, 5), tp.maximum(a, k)])
        c = tp.zeros(36, dtype="int64")
        c[3:30] = b[2:29]
        return a, b, c[::2], tp.take(b, a), tp.argmax(x, keepdims=True), a * (1 << 61), tp.cumulative_max(b)

    ir = tp.freeze(f, x)._ir
    known = positions._bounds(ir)
    ys = f(x)
    assert sum(n in known for n in ir.outputs) == len(ys) - 1 and ir.outputs[5] not in known
    for n, y in zip(ir.outputs, ys, strict=True):
        low, high = known.get(n, (types.INT64_MIN, types.INT64_MAX))
        assert low <= tp.min(y).item() and tp.max(y).item() <= high


# ---- mutations ----


def scans(x):
    return tp.sum(tp.cumulative_prod(x) * tp.logcumsumexp(x)) + tp.sum(tp.cumulative_max(x, axis=0))


def bases():
    """Plans in which every op stands, the shortest text for each; and the worlds."""
    g = tp.random.Generator(3)
    x, labels = g.normal(shape=(2, 3)), tp.tensor([0, 2])
    mine = [
        tp.freeze(tp.grad(lambda x: scans(x[0])), x),
        tp.freeze(lambda: [getattr(g, kind)(shape=(2,)) for kind in ("uniform", "normal")] + [g.permutation(4)]),
        tp.freeze(lambda: g.integers(5, shape=(3,))),
        tp.freeze(tp.value_and_grad(lambda x: tp.cross_entropy(x, labels)), x),
        tp.freeze(lambda x: x.at[[0, 1]].set(1.0) if hasattr(x, "at") else tp.put_along_axis(x, [[0], [1]], 1.0), x),
        tp.freeze(lambda x: (tp.masked_select(x, x > 0), tp.argwhere(x > 0), tp.std(x, axis=0), tp.argmin(x)), x),
        tp.freeze(lambda x: tp.vmap(lambda x: tp.cross_entropy(x, labels))(tp.stack([x, x])), x),
        tp.freeze(tp.grad(lambda x: tp.sum(tp.cumulative_max(x[0] * tp.cumulative_max(x[1])))), x),
        tp.freeze(lambda x: (tp.elu(x), tp.gelu(x), tp.gelu(x, "tanh"), tp.leaky_relu(x), tp.silu(x)), x),
    ]
    plans = [*mine, *[world(name, 1)[0] for name in WORLDS]]
    plans += [tp.freeze(f, *xs) for _, f, xs in functions_of_calls()]
    plans += [tp.freeze(h, *xs) for _, f, xs in functions_of_calls() if (h := with_gradient(f, xs)) is not None]
    gone = ("identity(%0)", "positive(%0)", "layer_norm[1, 0, 1](%0)")  # what passes leave out
    texts = sorted({str(plan) for plan in plans if "  ..." not in str(plan)}, key=len)
    texts += [f"{X}  %1 = {call}  float32[2, 3]\n  return %1" for call in gone]
    texts.sort(key=lambda text: bool(re.search(r"\d{3}", text.split("\n")[0])))  # small operands first
    chosen, seen = [], set()
    for text in texts:
        ops = set(re.findall(r"= (\w+)(?:\[[-\d, ]*\])?\(", text)) - seen
        if ops:
            chosen.append((text, sorted(ops)))
            seen |= ops
    return chosen, seen


def test_a_changed_plan_is_refused_or_runs(tmp_path):
    texts, seen = bases()
    assert not {NAMES[op] for op in types.RULES} - seen
    names = []
    for name in ("adam_and_dropout", "scalars"):
        names.append(str(tmp_path / f"{name}.plan"))
        world(name, 1)[0].save(names[-1])
    (tmp_path / "bases.json").write_text(json.dumps({"texts": texts, "files": names}))
    (tmp_path / "case").touch()
    step = 1 if PROFILE == "deep" else 7
    numbers = [str(10 * settings.default.max_examples), str(step)]
    command = [sys.executable, os.path.join(os.path.dirname(__file__), "mutations.py"), str(tmp_path), *numbers]
    where = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(tp.__file__))}
    done = subprocess.run(command, env=where, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr}\n{(tmp_path / 'case').read_text()}"
    count, accepted = map(int, done.stdout.split())
    assert count > 2000 and count / 20 < accepted < count / 3
