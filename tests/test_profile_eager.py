"""tp.profile: every op of a block is a step, with what it moved and computed; the block runs as it would without."""

import inspect
import json
import threading

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp
from tapeflow import _core, _roofline, profiling
from tapeflow.ops import TABLE


def names(p):
    return [step.name for step in p.steps]


def run(f, *args):
    with tp.profile() as p:
        f(*args)
    return p


def only(p, name):
    (step,) = (s for s in p.steps if s.name == name)
    return step


def f32(*shape):
    return tp.ones(shape)


# ---- what is a step

MATRIX = {
    "sum": lambda x: tp.sum(x, axis=0),
    "mean": lambda x: tp.mean(x),
    "max": lambda x: tp.max(x, axis=1),
    "min": lambda x: tp.min(x),
    "argmax": lambda x: tp.argmax(x, axis=1),
    "argmin": lambda x: tp.argmin(x),
    "count_nonzero": lambda x: tp.count_nonzero(x),
    "nansum": lambda x: tp.nansum(x),
    "vector_norm": lambda x: tp.vector_norm(x),
    "any": lambda x: tp.any(x),
    "all": lambda x: tp.all(x, axis=0),
    "var": lambda x: tp.var(x),
    "std": lambda x: tp.std(x, axis=1),
    "logsumexp": lambda x: tp.logsumexp(x, axis=-1),
    "softmax": lambda x: tp.softmax(x),
    "log_softmax": lambda x: tp.log_softmax(x),
    "cross_entropy": lambda x: tp.cross_entropy(x, tp.tensor([0, 1, 2, 0])),
    "cumulative_sum": lambda x: tp.cumulative_sum(x, axis=0),
    "cumulative_prod": lambda x: tp.cumulative_prod(x, axis=1),
    "cumulative_max": lambda x: tp.cumulative_max(x, axis=1),
    "logcumsumexp": lambda x: tp.logcumsumexp(x, axis=1),
    "argsort": lambda x: tp.argsort(x, axis=1),
    "sort": lambda x: tp.sort(x, axis=1),
    "searchsorted": lambda x: tp.searchsorted(tp.arange(5.0), x),
    "nonzero": lambda x: tp.nonzero(x),
    "places": lambda x: tp.take(x, tp.tensor([0, 1]), axis=0),
    "take": lambda x: tp.take(x, tp.tensor([0, 1]), axis=1),
    "take by rows": lambda x: x[tp.tensor([2, 1])],
    "take of a vector": lambda x: tp.arange(9.0)[tp.tensor([2, 1])],
    "take by a mask": lambda x: x[x > 0.0],
    "scatter_add": lambda x: tp.scatter_add(x, tp.tensor([0, 0]), f32(2, 3)),
    "put": lambda x: x.__setitem__(tp.tensor([0, 2]), f32(2, 3)),
    "assign": lambda x: x.__setitem__(slice(0, 2), f32(2, 3)),
    "assign a number": lambda x: x.__setitem__(slice(0, 2), 1.0),
    "assign by a mask": lambda x: x.__setitem__(tp.ones((4, 3)) > 0.0, 1.0),
    "matmul": lambda x: x @ f32(3, 2),
    "vecdot": lambda x: tp.vecdot(x, x),
    "layer_norm": lambda x: tp.layer_norm(x, 3),
    "one_hot": lambda x: tp.one_hot(tp.tensor([0, 1]), 3),
    "reshape": lambda x: tp.reshape(x, (12,)),
    "permute_dims": lambda x: x.T,
    "broadcast_to": lambda x: tp.broadcast_to(x, (2, 4, 3)),
    "getitem": lambda x: x[1:, ::2],
    "concat": lambda x: tp.concat([x, x]),
    "astype": lambda x: x.astype("float64"),
    "identity": lambda x: x.clone(),
    "random": lambda x: tp.random.normal(shape=(3,)),
    "add in place": lambda x: x.__iadd__(f32(4, 3)),
    "multiply with a number": lambda x: 2.0 * x,
}


@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.parametrize("graded", [False, True])
def test_each_op_is_a_step(name, graded):
    x = tp.ones((4, 3), requires_grad=graded)
    if graded and name.split()[0] in ("assign", "put", "add"):
        x = x * 1.0
    p = run(MATRIX[name], x)
    wanted = {"sort": "argsort", "assign by a mask": "where"}.get(name) if graded else None  # written in ops then
    assert (wanted or name.split()[0]) in names(p), names(p)
    assert all(s.seconds >= 0.0 and 0.0 <= s.start <= p.wall and s.inside == 0.0 for s in p.steps)


SUFFIXES = {"float32": "f32", "float64": "f64", "int32": "i32"}


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, e in TABLE.items() for d, suffix in SUFFIXES.items() if suffix in e.dtypes]
)
def test_each_elementwise_op_is_a_step(name, dtype):
    entry = TABLE[name]
    xs = [tp.ones(5, dtype) for _ in range(entry.nin)]
    with tp.profile() as p:
        y = _core.apply_op(_core.op_names().index(name), (), xs, 0, ())
    (step,) = p.steps
    assert (step.name, step.dtype, step.shape) == (name, str(y.dtype), (5,))
    assert step.nbytes == sum(5 * x.dtype.itemsize for x in [*xs, y])
    assert step.flops == 5 * _roofline.element_cost(name, dtype != "float64")


def test_no_op_is_forgotten():
    seen = {name.split()[0] for name in MATRIX} | {"unslice", "recurrence", "cumulative_argmax", "class_positions"}
    # a replay's own, and what stands for a call
    others = {"accumulate", "custom", "custom_result", "leaf", "cross_entropy_vjp"}
    assert set(_core.op_names()[_core.n_elementwise() :]) <= seen | others


def test_what_backward_and_recordings_alone_run():
    x = tp.ones(6, requires_grad=True)
    assert "unslice" in names(run(lambda: x[1:3].sum().backward()))
    assert "recurrence" in names(run(lambda: tp.cumulative_prod(x).sum().backward()))
    assert "cross_entropy_vjp" in names(run(lambda: tp.cross_entropy(tp.reshape(x, (2, 3)), [0, 1]).backward()))
    assert "class_positions" in names(run(lambda: tp.nll_loss(f32(2, 3), tp.tensor([0, 1]))))
    with tp.Tape():
        y = tp.cumulative_max(x).sum()
        assert "cumulative_argmax" in names(run(y.backward))


# ---- bytes and arithmetic


def table(n=1000):
    x, w, e = tp.ones(n), tp.ones((20, 30)), tp.ones((500, 8))
    exp = _roofline.element_cost("exp", True)
    return {
        "add": (lambda: x + x, 12 * n, n),
        "multiply": (lambda: x * 2.0, 8 * n + 4, n),
        "exp": (lambda: tp.exp(x), 8 * n, n * exp),
        "less": (lambda: x < x, 9 * n, n),
        "sum": (lambda: tp.sum(x), 4 * n + 4, n),
        "matmul": (lambda: tp.ones((10, 20)) @ w, 4 * (200 + 600 + 300), 2 * 10 * 20 * 30),
        "vecdot": (lambda: x @ x, 8 * n + 4, 2 * n),
        "softmax": (lambda: tp.softmax(w), 8 * 600, 600 * (4 + exp)),
        "take": (lambda: tp.take(e, tp.tensor([7, 8, 7]), axis=0), 2 * 3 * 8 * 4 + 3 * 8, 0),
        "reshape": (lambda: tp.reshape(x, (10, -1)), 0, 0),
        "permute_dims": (lambda: w.T, 0, 0),
        "getitem": (lambda: x[3:], 0, 0),
        "concat": (lambda: tp.concat([x, x]), 16 * n, 0),
        "astype": (lambda: x.astype("float64"), 12 * n, 0),
        "random": (lambda: tp.random.uniform(shape=(n,)), 4 * n, 0),
        "assign": (lambda: x.__setitem__(slice(0, 10), 1.0), 80, 0),
        "subtract": (lambda: x.__isub__(tp.ones(n)), 12 * n, n),
    }


@pytest.mark.parametrize("name", table())
def test_bytes_and_flops_of_known_ops(name):
    f, nbytes, flops = table()[name]
    step = only(run(f), name)
    assert (step.nbytes, step.flops) == (nbytes, flops)


def test_an_operand_that_is_stretched_is_read_once():
    step = only(run(lambda: tp.broadcast_to(tp.ones((1, 50)), (20, 50)) + tp.ones((20, 50))), "add")
    assert step.nbytes == 4 * (50 + 1000 + 1000) and step.flops == 1000
    step = only(run(lambda: tp.reshape(tp.ones((20, 50)).T, (1000,))), "reshape")
    assert step.nbytes == 8000  # a copy


def test_a_rule_that_loops_compute():
    x, y = tp.ones(100, requires_grad=True), tp.ones(100, requires_grad=True)
    p = run(lambda: tp.sum(x * y).backward())
    step = only(p, "multiply_vjp")
    # two partials: each reads the cotangent and a saved operand, and writes
    assert step.nbytes == 100 * 4 * (2 + 2 + 2)
    assert step.flops == 100 * (
        _roofline.partial_cost("multiply", 0, True) + _roofline.partial_cost("multiply", 1, True)
    )
    assert (step.dtype, step.shape) == ("float32", (100,))
    p = run(lambda: tp.sum(x * tp.ones(100)).backward())
    assert only(p, "multiply_vjp").nbytes == 100 * 4 * (2 + 1)
    p = run(lambda: tp.sum(x + y).backward())
    assert (only(p, "add_vjp").nbytes, only(p, "add_vjp").flops) == (0, 0)


def test_rules_with_kernels_of_their_own():
    x = tp.ones((8, 4), requires_grad=True)
    p = run(lambda: (tp.softmax(x) * tp.ones((8, 4))).sum().backward())
    assert (only(p, "softmax_vjp").nbytes, only(p, "softmax_vjp").flops) == (3 * 128, 4 * 32)
    p = run(lambda: tp.layer_norm(x, 4).sum().backward())
    assert only(p, "layer_norm_vjp").flops == 12 * 32 and only(p, "layer_norm_vjp").nbytes == 4 * 128
    p = run(lambda: tp.cross_entropy(x, tp.tensor([0] * 8)).backward())
    assert only(p, "cross_entropy_vjp").flops == 32 * (3 + _roofline.element_cost("exp", True))


# ---- the walk, forward mode, plans


def test_the_rules_are_inside_backward():
    x, w = tp.ones((50, 40), requires_grad=True), tp.ones((40, 30), requires_grad=True)
    p = run(lambda: tp.tanh(x @ w).sum().backward())
    back = only(p, "backward")
    after = p.steps[p.steps.index(back) + 1 :]
    assert [s.name for s in after if s.flops] == ["tanh_vjp", "matmul", "matmul"]
    assert (back.dtype, back.shape, back.nbytes, back.flops) == ("", (), 0, 0)
    end = back.start + back.seconds + back.inside
    assert all(back.start <= s.start and s.start + s.seconds <= end + 1e-9 for s in after)
    assert back.inside == pytest.approx(sum(s.seconds for s in after))


def test_cotangents_that_are_added_are_steps():
    w = tp.ones((30, 30), requires_grad=True)
    p = run(lambda: ((w @ w) @ w).sum().backward())
    assert names(p).count("add") == 2 and names(p).count("matmul") == 2 + 4


def test_a_walk_that_is_recorded_runs_ops():
    x = tp.ones(3)
    p = run(lambda: tp.grad(lambda x: tp.sum(tp.grad(lambda x: tp.sum(tp.exp(x)))(x)))(x))
    assert names(p).count("backward") == 2 and "smul" in names(p)


def test_forward_mode():
    x = tp.ones(100)
    p = run(lambda: tp.jvp(lambda x: tp.exp(x) * x, (x,), (x,)))
    assert {"exp", "multiply", "exp_jvp", "multiply_jvp"} <= set(names(p))
    assert only(p, "exp_jvp").nbytes == 3 * 400
    assert only(p, "exp_jvp").flops == 100 * _roofline.partial_cost("exp", 0, True)


def test_a_replay_is_one_step():
    plan = tp.freeze(lambda x: tp.sum(tp.exp(x) * 2.0), tp.ones(100))
    whole = plan.profile(tp.ones(100), repeats=1)
    x = tp.ones(100)
    bound = plan.bind(x)
    for call in (lambda: plan(x), bound):
        (step,) = run(call).steps
        assert (step.name, step.dtype, step.shape) == ("plan <lambda>", "float32", ())
        assert step.flops == plan.flops == sum(s.flops for s in whole.steps)
        assert step.nbytes == plan.moved == sum(s.nbytes for s in whole.steps) > 400
        assert step.seconds > 0.0 and step.inside == 0.0 and step.line.startswith(f"{__file__}:")
    p = run(lambda: (plan(x) + 1.0, plan(x)))
    assert names(p) == ["plan <lambda>", "add", "plan <lambda>"]


def test_a_function_that_became_a_plan():
    @tp.function
    def f(x):
        return tp.sum(tp.exp(x))

    x = tp.ones(100)
    recorded = run(f, x)
    assert {"exp", "sum"} <= set(names(recorded))
    assert names(run(f, x)) == ["plan f"]
    with tp.eager():
        assert names(run(f, x)) == ["exp", "sum"]


def test_a_plan_that_is_differentiated_runs_op_by_op():
    plan = tp.freeze(lambda x: tp.sum(tp.exp(x)), tp.ones(100))
    x = tp.ones(100, requires_grad=True)
    p = run(lambda: plan(x).backward())
    assert {"exp", "sum", "backward", "exp_vjp"} <= set(names(p)) and "plan <lambda>" not in names(p)


def test_a_plan_that_fails_is_no_step_and_the_profile_goes_on():
    plan = tp.freeze(lambda x: x if x > 0.0 else -x, tp.tensor(1.0))
    x, y = tp.tensor(-1.0), tp.ones(3)
    with tp.profile() as p:
        with pytest.raises(tp.PlanError):
            plan(x)
        tp.exp(y)
    assert names(p) == ["exp"]


def test_a_mapped_plan_counts_its_runs():
    plan = tp.freeze(lambda x: tp.exp(x) * x, tp.tensor(1.0))
    xs = tp.ones(64)
    mapped = tp.vmap(plan)
    mapped(xs)
    p = run(mapped, xs)
    step = only(p, "plan <lambda>")
    assert step.flops == 64 * plan.flops and step.nbytes == 64 * plan.moved
    assert (step.dtype, step.shape) == ("float32", (64,))


# ---- time


def test_the_times_add_up_to_the_wall_clock():
    a = tp.ones((300, 300))

    def work():
        for _ in range(10):
            tp.sum(tp.exp(a @ a * 1e-3))

    work()
    shares = []
    for _ in range(5):
        p = run(work)
        assert p.seconds <= p.wall
        assert all(s.start + s.seconds + s.inside <= p.wall for s in p.steps)
        assert [s.start for s in p.steps] == sorted(s.start for s in p.steps)
        shares.append(p.seconds / p.wall)
    assert max(shares) > 0.8, shares


def test_what_python_does_is_no_step():
    x = tp.ones(3)
    with tp.profile() as p:
        y = x + x
        for _ in range(200_000):
            pass
        y * y
    first, second = p.steps
    assert second.start - (first.start + first.seconds) > 10 * (first.seconds + second.seconds)
    assert p.wall > second.start + second.seconds
    assert str(p).splitlines()[-1].endswith(f" of {p.wall * 1e6:.1f} us")


def test_the_line_is_the_users():
    x = tp.ones(3)
    with tp.profile() as p:
        tp.layer_norm(x, 3)
        (x + x)
        tp.einsum("i,i->", x, x)
    line = inspect.currentframe().f_lineno
    lines = [s.line for s in p.steps]
    assert lines[0] == f"{__file__}:{line - 3}" and f"{__file__}:{line - 2}" in lines
    assert lines[-1] == f"{__file__}:{line - 1}"


# ---- the block runs as it would without


def program():
    x = tp.tensor(np.linspace(-1.0, 2.0, 24).reshape(4, 6), dtype="float32", requires_grad=True)
    w = tp.tensor(np.linspace(0.1, 1.0, 18).reshape(6, 3), dtype="float32", requires_grad=True)
    h = tp.tanh(x @ w) * tp.sigmoid(x[:, :3])
    loss = tp.cross_entropy(h, tp.tensor([0, 1, 2, 1])) + tp.sum(tp.sort(h, axis=1)[:, 1:] ** 2) + tp.mean(x * x)
    loss.backward()
    t = tp.zeros(10)
    t += tp.ones(10)
    t[2:4] = 3.0
    t[tp.tensor([0, 1])] = tp.ones(2)
    return [loss.detach(), x.grad, w.grad, h.detach(), t, t[t > 1.0], tp.cumulative_sum(t)]


def test_the_bits_are_the_same():
    before = program()
    with tp.profile() as p:
        during = program()
    for a, b in zip(before, during, strict=True):
        assert_same(a, b)
    assert len(p.steps) > 40


def test_nothing_is_recorded_that_would_not_be():
    x = tp.ones(5)
    alive = _core.entries_in_use()
    with tp.profile():
        ys = [tp.exp(x), x + 1.0, tp.sum(x), x[1:], tp.concat([x, x]), x @ x, tp.take(x, tp.tensor([1])), x.clone()]
        assert _core.entries_in_use() == alive
    assert all(y.is_leaf and not y.requires_grad for y in ys)


def test_a_write_stays_in_place():
    t, one, two, at = tp.zeros(1000), tp.ones(1000), tp.ones(2), tp.tensor([0])
    in_use = _core.pool_info()["in_use"]
    with tp.profile() as p:
        t += one
        t[1:3] = 2.0
        t[3:5] = two
        t[at] = 7.0
    assert names(p) == ["add", "assign", "assign", "assign"]
    # what is written, not all of t
    assert [s.nbytes for s in p.steps] == [12000, 16, 16, 8] and _core.pool_info()["in_use"] == in_use
    assert t[:6].tolist() == [7.0, 2.0, 2.0, 1.0, 1.0, 1.0]


def test_modes_and_recordings_go_on_inside():
    x = tp.ones(3, requires_grad=True)
    with tp.profile() as p, tp.Tape(persistent=True) as tape:
        y = tp.sum(x * x)
        with tp.no_grad():
            z = x + 1.0
        assert not z.requires_grad and y.requires_grad
        assert tape.gradient(y, x).tolist() == [2.0] * 3
    assert names(p)[:3] == ["multiply", "sum", "add"] and "backward" in names(p) and len(tape) >= 3
    plan = None
    with tp.profile() as p:
        plan = tp.freeze(tp.value_and_grad(lambda x: tp.sum(x * x)), tp.ones(3))
    assert {"multiply", "sum", "backward"} <= set(names(p))
    assert plan(tp.ones(3))[1].tolist() == [2.0] * 3

    def profiled(x):
        with tp.profile() as inner:
            y = tp.sum(x * x)
        assert names(inner) == ["multiply", "sum"]
        return y

    assert tp.freeze(profiled, tp.ones(3))(tp.ones(3)).item() == 3.0


def test_with_trace_nan():
    x = tp.tensor([1.0, 0.0], requires_grad=True)
    with tp.profile() as p, tp.trace_nan():
        tp.sum(tp.exp(x)).backward()
        with pytest.raises(tp.errors.NonFiniteError):
            tp.log(x)
        plan = tp.freeze(lambda x: tp.exp(x), tp.ones(2))
        plan(tp.ones(2))
    assert {"exp", "sum", "backward", "plan <lambda>"} <= set(names(p)) and "log" not in names(p)


# ---- opening and closing


def leaves_records(records):
    """Whether ops of this thread still append to these."""
    before = len(records)
    tp.exp(tp.ones(2))
    return len(records) > before or bool(profiling._thread.open)


def test_profiles_within_profiles():
    x = tp.ones(3)
    with tp.profile("outer") as outer:
        tp.exp(x)
        with tp.profile("inner") as inner:
            tp.sin(x)
        tp.cos(x)
        again = tp.profile("again")
        with again as first:
            tp.tan(x)
        with again as second:
            tp.log(x)
    tp.sqrt(x)
    assert names(outer) == ["exp", "sin", "cos", "tan", "log"] and names(inner) == ["sin"]
    assert names(first) == ["tan"] and names(second) == ["log"]
    assert inner.steps[0].start < inner.wall < outer.wall and outer.name == "outer"
    assert inner.steps[0].start < outer.steps[1].start


def test_an_error_leaves_a_profile_and_no_trace():
    x = tp.ones(3)
    with pytest.raises(tp.ShapeError), tp.profile() as p:
        records = profiling._thread.records
        assert leaves_records(records)
        tp.add(x, tp.ones(4))
        tp.sin(x)
    assert names(p) == ["exp"] and p.wall > 0.0
    json.loads(p.to_chrome())
    tp.cos(x)
    assert names(p) == ["exp"] and not leaves_records(records)
    with tp.profile() as q:
        tp.sin(x)
    assert names(q) == ["sin"]


def test_an_error_in_backward():
    x = tp.ones(3, requires_grad=True)

    def hook(g):
        raise ZeroDivisionError

    y = tp.exp(x)
    y.register_hook(hook)
    with tp.profile() as p:
        z = tp.sum(y * 2.0)
        with pytest.raises(ZeroDivisionError):
            z.backward()
        tp.sin(x)
    assert {"sum", "multiply_vjp", "backward", "sin"} <= set(names(p))


def test_profiles_left_in_another_order():
    x = tp.ones(3)
    a, b = tp.profile(), tp.profile()
    p = a.__enter__()
    records = profiling._thread.records
    tp.exp(x)
    q = b.__enter__()
    tp.sin(x)
    a.__exit__(None, None, None)
    tp.cos(x)
    b.__exit__(None, None, None)
    tp.tan(x)
    assert names(p) == ["exp", "sin"] and names(q) == ["sin", "cos"] and not leaves_records(records)


def test_leaving_what_was_not_entered():
    with pytest.raises(tp.TapeError, match="without being entered"):
        tp.profile().__exit__(None, None, None)
    opened = tp.profile()
    with opened as p:
        failures = []

        def leave():
            try:
                opened.__exit__(None, None, None)
            except tp.TapeError as error:
                failures.append(error)

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        tp.exp(tp.ones(2))
    assert len(failures) == 1 and "exp" in names(p)


def test_threads_have_their_own():
    x = tp.ones(1000)
    found = {}
    both = threading.Barrier(3)

    def work(name, f, profiled):
        both.wait()
        if profiled:
            with tp.profile(name) as p:
                for _ in range(50):
                    f(x)
            found[name] = p
        else:
            for _ in range(50):
                f(x)

    jobs = [("sin", tp.sin, True), ("cos", tp.cos, True), ("tan", tp.tan, False)]
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    with tp.profile() as mine:
        for t in threads:
            t.start()
        tp.exp(x)
        for t in threads:
            t.join()
    assert names(mine) == ["exp"]
    assert names(found["sin"]) == ["sin"] * 50 and names(found["cos"]) == ["cos"] * 50


def test_a_thread_that_ends_with_a_profile_open():
    def work():
        tp.profile().__enter__()
        tp.exp(tp.ones(3))
        found.append(profiling._thread.records)

    found = []
    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [len(records) for records in found] == [1, 1, 1] and not any(map(leaves_records, found))


def test_a_step_nests_in_a_trace():
    x = tp.ones(1000, requires_grad=True)
    p = run(lambda: tp.sum(tp.exp(x)).backward())
    events = [e for e in json.loads(p.to_chrome())["traceEvents"] if e["ph"] == "X"]
    (back,) = (e for e in events if e["name"] == "backward")
    inside = [e for e in events if e["ts"] > back["ts"]]
    assert {e["name"] for e in inside} >= {"exp_vjp"}
    assert all(e["ts"] + e["dur"] <= back["ts"] + back["dur"] + 1e-3 for e in inside)
    assert back["args"]["own us"] < back["dur"]
