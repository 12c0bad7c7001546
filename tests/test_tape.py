"""Recording and gradients: backward, grad mode, hooks, Tape, grad and value_and_grad, and what they refuse.

API.md section 2 and the sections "Shapes, layout, accumulation", "In place and values" and "Engine" of CASES.md.
Every stated gradient is checked by backward (fused rules), with create_graph (composed rules), by Tape and by
tp.grad, which must agree.
"""

import math
import threading

import numpy as np
import pytest
from helpers import assert_same, close, host

import tapeflow as tp


def leaf(data, dtype=tp.float64):
    return tp.tensor(data, dtype=dtype, requires_grad=True)


def every_way(f, *data):
    """The gradients of sum(f) by each of the ways to ask for them."""
    arrays = [np.asarray(d, float) for d in data]
    ways = {}
    for create_graph in (False, True):
        xs = [leaf(a) for a in arrays]
        tp.sum(f(*xs)).backward(create_graph=create_graph)
        ways["create_graph" if create_graph else "backward"] = [x.grad for x in xs]
    for watch in (False, True):
        xs = [tp.tensor(a, requires_grad=not watch) for a in arrays]
        with tp.Tape(watch=xs if watch else ()) as tape:
            y = tp.sum(f(*xs))
        ways["watched" if watch else "tape"] = tape.gradient(y, xs)
    ways["grad"] = tp.grad(lambda *xs: tp.sum(f(*xs)), argnums=tuple(range(len(arrays))))(*arrays)
    return ways


def written(t, index, change):
    t = t * 1.0
    t[index] = change(t[index])
    return t


def weighted(t, *weights):
    return tp.sum(t * tp.tensor(np.array(weights, float)))


def reused(x, c):
    u = x * c
    return x * u + u * u


def in_place(x):
    t = x * 1.0
    t[1:3] *= t[1:3]
    return weighted(t, 1, 10, 100, 1000)


def view_written(x):
    t = x * 1.0
    v = t[1:3]
    v *= v
    return weighted(t, 1, 10, 100, 1000)


def looked_at(x):
    t = x * 1.0
    t = t + np.ones((3, 1, 2))
    t.tolist()
    return t * t


def read_then_written(x):
    c = x * 1.0
    c[0] = tp.sin(c[1])
    return weighted(c, 1, 10, 100)


def step_written(x):
    t = x * 2.0
    t[::2] = x[:2] * 5.0
    return weighted(t, 1, 10, 100)


MATRIX = [[1, -2], [0, 3], [2, 1]]
A4, LONG = [1, 2, 3, 4], np.arange(6.0).reshape(2, 3)
CASES = {  # name: f, operands, gradients of sum(f)
    "pytorch_1787_broadcast_row": (lambda a, b: a * b, ([2], [[1, 2, 3], [4, 5, 6]]), ([21], np.full((2, 3), 2))),
    "pytorch_818_broadcast_both": (
        lambda u, v: u * v, ([[1], [2], [3]], [[4, 5]]), ([[9], [9], [9]], [[6, 6]])),
    "tfjs_8721_matrix_shared_by_a_batch": (
        lambda a, b: a @ b, ([[[1, 2]], [[3, 4]]], LONG), (np.full((2, 1, 2), [3, 12]), [[4, 4, 4], [6, 6, 6]])),
    "cs249r_1781_matrix_times_vector": (
        lambda m, w: weighted(m @ w, 1, 10, 100), (MATRIX, [4, 5]), ([[4, 5], [40, 50], [400, 500]], [201, 128])),
    "cs249r_1781_vector_times_matrix": (
        lambda u, m: weighted(u @ m, 1, 10), ([1, 2, 3], MATRIX), ([-19, 30, 12], np.outer([1, 2, 3], [1, 10]))),
    "cs249r_1781_vector_times_vector": (lambda a, b: a @ b, ([1, 2], [3, 4]), ([3, 4], [1, 2])),
    "cs249r_1781_square_matrix": (
        lambda m, w: weighted(m @ w, 1, 10), ([[1, 2], [3, 4]], [5, 6]), ([[5, 6], [50, 60]], [31, 42])),
    "mlx_4444_slice_of_one_element": (
        lambda x: 5 * tp.sum(x[0:2:2]) + 7 * tp.sum(x[1:3:2]), ([1, 2, 3],), ([5, 7, 0],)),
    "mlx_4444_negative_steps": (
        lambda x: 5 * tp.sum(x[3::-5]) + 7 * tp.sum(x[-2:-4:-1]), (A4,), ([0, 7, 7, 5],)),
    "pytorch_15223_zero_size": (
        lambda a, b: a + b, (np.zeros((3, 0)), np.ones((3, 1))), (np.zeros((3, 0)), np.zeros((3, 1)))),
    "pytorch_31515_zero_size_reductions": (
        lambda a: tp.sum(a, axis=1) + tp.prod(a, axis=1), (np.zeros((2, 0)),), (np.zeros((2, 0)),)),
    "pytorch_31782_zero_size_matmul": (
        lambda a, b: a @ b, (np.zeros((2, 0)), np.zeros((0, 3))), (np.zeros((2, 0)), np.zeros((0, 3)))),
    "micrograd_2_reused_intermediate": (reused, (3, 2), (36, 45)),
    "tinygrad_9597_leaves_of_one_value": (lambda a, b: 2 * a + 3 * b, (7, 7), (2, 3)),
    "oneflow_9497_shared_cotangent": (lambda x, y: tp.sum(x + y) + tp.sum(3 * x), ([1, 2], [3, 4]), ([4, 4], [1, 1])),
    "mygrad_318_write_to_a_part": (in_place, (A4,), ([1, 40, 600, 1000],)),
    "mygrad_323_write_to_a_view": (view_written, (A4,), ([1, 10, 100, 1000],)),
    "mlx_610_look_in_mid_graph": (looked_at, ([[1, 2]],), ([[12, 18]],)),
    "pytorch_114505_write_after_read": (read_then_written, ([1, 2, 3],), ([0, 10 + math.cos(2), 100],)),
    "write_with_a_step": (step_written, ([1, 2, 3],), ([5, 520, 0],)),
    "write_reversed": (
        lambda x: weighted(written(x, slice(None, None, -2), lambda t: t * t), 1, 10, 100),
        ([1, 2, 3],), ([2, 10, 600],)),
    "read_of_duplicates": (lambda x: weighted(x[[0, 2, 0, -1]], 1, 10, 100, 1000), ([1, 2, 3],), ([101, 0, 1010],)),
    "mask": (lambda x: x[np.array([True, False, True])] ** 2, ([1, 2, 3],), ([2, 0, 6],)),
    "mask_write": (lambda x: written(x, np.array([True, False, True]), lambda t: t * t), ([1, 2, 3],), ([2, 1, 6],)),
    "write_of_duplicates": (
        lambda x: weighted(written(x, [0, 0], lambda t: tp.asarray([3 * x[1], 5 * x[2]])), 1, 10, 100),
        ([1, 2, 3],), ([0, 10, 105],)),
    "one_operand_twice": (lambda x: x * x + x / x, ([3],), ([6],)),
    "zero_times_infinity": (lambda x: tp.where(x > 0, tp.sqrt(x), x), ([4, -4],), ([0.25, 1],)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_stated_gradient(name):
    f, data, want = CASES[name]
    first = None
    for way, got in every_way(f, *data).items():
        assert len(got) == len(data)
        for g, w, d in zip(got, want, data, strict=True):
            assert (g.shape, g.dtype) == (np.shape(d), tp.float64), way
            close(g, np.broadcast_to(np.asarray(w, float), g.shape), 1e-14, 0, way)
        first = first or got
        for g, w in zip(got, first, strict=True):
            assert_same(g, w, label=way)


# ---- backward and .grad ----


def test_backward_accumulates_into_leaves_only():
    x, y = leaf([1.0, 2.0]), leaf(3.0)
    z = x * y
    z.sum().backward()
    assert (x.grad.tolist(), y.grad.tolist(), z.grad) == ([3.0, 3.0], 3.0, None)
    before = x.grad.numpy()
    (x * x).sum().backward()
    assert (x.grad.tolist(), before.tolist(), y.grad.tolist()) == ([5.0, 7.0], [3.0, 3.0], 3.0)
    assert not x.grad.requires_grad and x.grad.is_leaf


def test_micrograd_53_second_backward_repeats_the_first():
    a, b, d = leaf(4.0), leaf(1.0), leaf(3.0)
    loss = (a + b) * d
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    assert [t.grad.item() for t in (a, b, d)] == [6, 6, 10]
    for t in (a, b, d):
        t.zero_grad()
        assert t.grad is None or t.grad.item() == 0
    loss.backward()
    assert [t.grad.item() for t in (a, b, d)] == [3, 3, 5]


def test_oneflow_9497_gradients_are_nobodys_alias():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    seed = tp.ones((2,), dtype=tp.float64)
    z = x + y
    z.retain_grad()
    z.backward(seed, retain_graph=True)
    x.grad *= 10.0
    x.grad[0] = -1.0
    assert (y.grad.tolist(), seed.tolist(), z.grad.tolist()) == ([1, 1], [1, 1], [1, 1])
    z.backward(seed)
    assert (x.grad.tolist(), y.grad.tolist()) == ([0, 11], [2, 2])
    z, w = leaf([1.0]), leaf([1.0])
    with tp.Tape() as tape:
        target = tp.sum(z + w)
    gz, gw = tape.gradient(target, [z, w])
    gz += 5.0
    assert gw.tolist() == [1.0]


def test_grad_can_be_set_and_cleared():
    x = leaf([1.0, 2.0])
    (x * 2).sum().backward()
    x.grad.zero_()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    x.grad = None
    (x * 4).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]
    x.grad = tp.tensor([1.0, 0.0], dtype=tp.float64)
    (x * 4).sum().backward()
    assert x.grad.tolist() == [5.0, 4.0]
    del x.grad
    assert x.grad is None


def test_a_gradient_has_the_dtype_of_its_leaf():
    """pytorch#94086: x float32, y float64."""
    x, y = leaf([3.0], tp.float32), leaf([0.1])
    for loss in ((x * y).sum(), tp.mse_loss(x, y)):
        x.grad = y.grad = None
        loss.backward()
        assert (loss.dtype, x.grad.dtype, y.grad.dtype) == (tp.float64, tp.float32, tp.float64)
    h = leaf([2.0], tp.float32)
    (h.astype(tp.float64) ** 2).sum().backward()
    assert_same(h.grad, np.array([4], "float32"))


SEEDS = [
    (tp.tensor([1.0, 10.0], dtype=tp.float64), "tensor"),
    (np.array([1.0, 10.0]), "ndarray"),
    ([1.0, 10.0], "list"),
    (tp.broadcast_to(tp.tensor(1.0, dtype=tp.float64), (2,)) * tp.tensor([1.0, 10.0], dtype=tp.float64), "computed"),
]


@pytest.mark.parametrize("seed", [s for s, _ in SEEDS], ids=[name for _, name in SEEDS])
def test_seed(seed):
    x = leaf([1.0, 2.0])
    y = x * x
    y.backward(seed)
    assert x.grad.tolist() == [2.0, 40.0]
    with tp.Tape() as tape:
        y = x * x
    seed = np.array(seed) if isinstance(seed, list) else seed  # a list would be several gradients here
    assert tape.gradient(y, x, output_gradients=seed).tolist() == [2.0, 40.0]


def test_backward_of_a_leaf_is_its_seed():
    x = leaf(2.0)
    x.backward()
    assert x.grad.item() == 1.0
    x.backward(tp.tensor(3.0, dtype=tp.float64))
    assert x.grad.item() == 4.0


def test_size_one_targets_need_no_seed():
    x = leaf([[2.0]])
    (x * 3).backward()
    assert x.grad.tolist() == [[3.0]]


def test_backward_frees_and_names_the_remedy():
    x = leaf(2.0)
    y = x * x
    y.backward()
    with pytest.raises(tp.TapeError, match="retain_graph"):
        y.backward()
    u = x * x
    (u * 2).backward()
    with pytest.raises(tp.TapeError, match="retain_graph"):
        (u * 3).backward()
    assert x.grad.item() == 4 + 8
    v = x + 1.0  # nothing saved, so nothing freed, but refused or right all the same
    (v * 2).backward()
    try:
        (v * 3).backward()
    except tp.TapeError:
        assert x.grad.item() == 14
    else:
        assert x.grad.item() == 17


@pytest.mark.parametrize("create_graph", [False, True])
def test_create_graph_gives_every_order(create_graph):
    x = leaf(2.0)
    y = x**4
    y.backward(create_graph=create_graph)
    g = x.grad
    assert g.item() == 32 and g.requires_grad is create_graph
    if create_graph:
        x.grad = None
        g.backward(create_graph=True)
        second = x.grad
        x.grad = None
        second.backward(create_graph=True)
        assert (second.item(), x.grad.item()) == (48, 48)


def test_a_square_adds_to_a_stretched_cotangent_as_the_composed_rule_does():
    """x * x pushes both partials in one pass only where it adds into memory of its own."""
    start = np.random.default_rng(0).normal(size=(4, 6))
    got = []
    for create_graph in (False, True):
        x = tp.tensor(start, requires_grad=True)
        y = x * 1.0
        ((y * y).mean() + y.sum()).backward(create_graph=create_graph)
        got.append(x.grad.numpy())
    assert np.array_equal(*got)


def test_create_graph_adds_recorded_gradients():
    x = leaf(3.0)
    (x**2).backward(create_graph=True)
    (x**3).backward(create_graph=True)
    total = x.grad
    assert total.item() == 6 + 27
    x.grad = None
    total.backward()
    assert x.grad.item() == 2 + 18


# ---- hooks ----


def test_hooks_see_and_replace_gradients():
    x = leaf([1.0, 2.0])
    seen = []
    y = x * 3
    handle = y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g + 1)
    (y * y).sum().backward(retain_graph=True)
    assert seen == [[6.0, 12.0]] and x.grad.tolist() == [6 * 2 * 3 + 1, 12 * 2 * 3 + 1]
    handle.remove()
    handle.remove()
    y.sum().backward()
    assert len(seen) == 1 and x.grad.tolist() == [37 + 7, 73 + 7]


def test_a_hook_runs_once_on_the_whole_cotangent():
    x = leaf(2.0)
    u = x * x
    seen = []
    u.register_hook(lambda g: seen.append(g.item()))
    (u * 3 + u * 5 + u).backward()
    assert seen == [9.0] and x.grad.item() == 36.0


def test_a_leafs_hook_sees_this_backward_alone():
    x, seen = leaf(2.0), []
    x.register_hook(lambda g: seen.append(g.item()))
    for k in (3.0, 5.0):
        (x * k).backward()
    assert seen == [3.0, 5.0] and x.grad.item() == 8.0


def test_a_failing_hook_leaves_everything_as_it_was():
    x, y = leaf(2.0), leaf(3.0)

    def hook(g):
        raise KeyError("mine")

    u = x * 1.0
    handle = u.register_hook(hook)
    loss = u * y
    with pytest.raises(KeyError, match="mine"):
        loss.backward(retain_graph=True)
    assert x.grad is None and y.grad is None
    handle.remove()
    loss.backward()
    assert (x.grad.item(), y.grad.item()) == (3.0, 2.0)


def test_a_hook_of_the_wrong_shape_is_refused():
    x = leaf([1.0, 2.0])
    u = x * 1.0
    u.register_hook(lambda g: g.sum())
    with pytest.raises(tp.TapeflowError, match=r"\(2,\)|\[2\]"):
        u.sum().backward()
    assert x.grad is None


def test_hooks_with_create_graph_are_differentiated():
    x = leaf(3.0)
    y = x * x
    y.register_hook(lambda g: g * x)
    (y * 1.0).backward(create_graph=True)
    g = x.grad
    x.grad = None
    assert g.item() == 18.0
    g.backward()
    assert x.grad.item() == 12.0  # d/dx 2 x^2


def test_a_hook_may_run_a_backward_of_its_own():
    x, w = leaf(2.0), leaf(5.0)
    u = x * x

    def hook(g):
        with tp.enable_grad():
            (w * w).backward()

    u.register_hook(hook)
    (u * 3).backward()
    assert (x.grad.item(), w.grad.item()) == (12.0, 10.0)


def test_retain_grad():
    x = leaf([1.0, 2.0])
    y = x * 3
    y.retain_grad()
    z = y * y
    z.sum().backward(retain_graph=True)
    assert (y.grad.tolist(), z.grad) == ([6.0, 12.0], None)
    z.sum().backward()
    assert y.grad.tolist() == [12.0, 24.0]
    x.retain_grad()


# ---- grad mode ----


def recorded():
    return (leaf(1.0) * 2).requires_grad


def test_grad_mode_nests():
    assert recorded()
    with tp.no_grad():
        assert not recorded()
        with tp.enable_grad():
            assert recorded()
            with tp.no_grad():
                assert not recorded()
            assert recorded()
        assert not recorded()
    assert recorded()


@pytest.mark.parametrize("mode", [tp.no_grad, tp.enable_grad])
def test_grad_mode_survives_exceptions_and_decorates(mode):
    with pytest.raises(KeyError):
        with mode():
            raise KeyError
    assert recorded()

    @mode()
    def f(fail=False):
        assert recorded() is (mode is tp.enable_grad)
        return 1 / (not fail)

    assert f() == 1 and f.__name__ == "f"
    with pytest.raises(ZeroDivisionError):
        f(fail=True)
    assert recorded()
    guard = mode()
    for _ in range(2):  # one object, used twice and nested in itself
        with guard, guard:
            assert recorded() is (mode is tp.enable_grad)
        assert recorded()


def test_grad_mode_belongs_to_the_thread():
    seen = []
    with tp.no_grad():
        t = threading.Thread(target=lambda: seen.append(recorded()))
        t.start()
        t.join()
    assert seen == [True]


def test_nothing_flows_into_what_is_not_recorded():
    x = leaf(3.0)
    with tp.no_grad():
        c = x * x
    d = tp.stop_gradient(x * x)
    assert not c.requires_grad and not d.requires_grad and c.is_leaf
    (x * c + x * d + x * x.detach()).backward()
    assert x.grad.item() == 9 + 9 + 3
    y = tp.grad(lambda x: x * tp.stop_gradient(x))(3.0)
    assert y.item() == 3.0


def test_requires_grad_():
    x = tp.tensor(2.0)
    assert x.requires_grad_() is x and x.requires_grad
    (x * x).backward()
    assert x.grad.item() == 4.0
    x.requires_grad_(False)
    assert not (x * x).requires_grad
    x.requires_grad = True
    assert (x * x).requires_grad
    with pytest.raises(tp.TapeError, match="leaf"):
        (x * x).requires_grad_(False)


def test_the_training_loop_of_pytorch():
    x = tp.tensor(np.arange(8, dtype="float32")[:, None])
    y, w, b = 3 * x + 1, leaf([[0.0]], tp.float32), leaf([0.0], tp.float32)
    for _ in range(500):
        loss = tp.mean((x @ w + b - y) ** 2)
        loss.backward()
        with tp.no_grad():
            w -= 0.03 * w.grad
            b -= 0.03 * b.grad
            w.grad.zero_()
            b.grad.zero_()
    assert w.requires_grad and w.is_leaf
    close(w, [[3.0]], 1e-2, 1e-2)
    close(b, [1.0], 1e-2, 2e-2)


def test_writes_to_a_leaf_between_forward_and_backward_change_no_gradient():
    w = leaf([1.0, 2.0])
    loss = (w * w * w).sum()
    with tp.no_grad():
        w.assign([10.0, 20.0])
        w *= 2.0
        w[0] = 7.0
    loss.backward()
    assert w.grad.tolist() == [3.0, 12.0] and w.tolist() == [7.0, 40.0]


NOTHING = {
    "mask": lambda w: w.__setitem__(tp.tensor([False, False]), 5.0),
    "empty_list": lambda w: w.__setitem__([], 5.0),
    "empty_slice": lambda w: w.__setitem__(slice(1, 1), 5.0),
    "itself": lambda w: w.assign(w),
    "all_of_itself": lambda w: w.__setitem__(Ellipsis, w),
    "add_zero": lambda w: w.assign_add(tp.zeros(2, dtype=tp.float64)),
}


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_a_write_that_changes_nothing_leaves_a_leaf_a_leaf(name):
    w = leaf([1.0, 2.0])
    loss = (w * w).sum()
    with tp.no_grad():
        NOTHING[name](w)
    assert w.is_leaf and w.requires_grad and w.tolist() == [1.0, 2.0]
    loss.backward()
    (w * 3).sum().backward()
    assert w.grad.tolist() == [5.0, 7.0]
    y = w * 2
    NOTHING[name](y)
    y.sum().backward()
    assert w.grad.tolist() == [7.0, 9.0]


# ---- Tape ----


def test_tape_does_not_accumulate():
    x = leaf(3.0)
    for _ in range(2):
        with tp.Tape() as tape:
            y = x * x
        assert tape.gradient(y, x).item() == 6.0
    assert x.grad is None


def test_tape_is_used_up_unless_persistent():
    x = leaf(3.0)
    with tp.Tape() as once, tp.Tape(persistent=True) as tape:
        y = x * x
        z = y * x
    assert (tape.gradient(y, x).item(), tape.gradient(z, x).item(), tape.gradient(z, y).item()) == (6.0, 27.0, 3.0)
    assert once.gradient(z, x).item() == 27.0
    with pytest.raises(tp.TapeError, match="persistent"):
        once.gradient(y, x)


def test_tape_watches_constants_and_intermediates():
    c, k = tp.tensor([1.0, 2.0]), tp.tensor([5.0, 5.0])
    with tp.Tape(persistent=True) as tape:
        tape.watch(c)
        u = c * c
        y = (u * k).sum()
    assert tape.gradient(y, c).tolist() == [10.0, 20.0]
    assert tape.gradient(y, u).tolist() == [5.0, 5.0]
    assert tape.gradient(y, k) is None
    assert tape.gradient(y, [c, k], unconnected="zero")[1].tolist() == [0.0, 0.0]
    assert not c.requires_grad and c.grad is None
    with tp.Tape(watch=[c, k]) as tape:
        y = (c * k).sum()
    assert [g.tolist() for g in tape.gradient(y, (c, k))] == [[5.0, 5.0], [1.0, 2.0]]
    assert not (c * k).requires_grad


def test_tape_sources_keep_their_structure():
    p = {"w": leaf([1.0, 2.0]), "b": [leaf(3.0), (leaf(4.0),)]}
    with tp.Tape() as tape:
        y = (p["w"] * p["b"][0]).sum() * p["b"][1][0]
    g = tape.gradient(y, p)
    assert (g["w"].tolist(), g["b"][0].item(), g["b"][1][0].item()) == ([12.0, 12.0], 12.0, 9.0)
    assert isinstance(g["b"], list) and isinstance(g["b"][1], tuple)


def test_tape_inside_its_own_with_and_nested_for_second_order():
    x = leaf(2.0)
    with tp.Tape() as outer:
        with tp.Tape() as inner:
            y = x**3
        g = inner.gradient(y, x)
    assert (g.item(), outer.gradient(g, x).item()) == (12.0, 12.0)
    with tp.Tape(persistent=True) as tape:
        y = x**3
        g = tape.gradient(y, x)
        h = tape.gradient(g, x)
    assert (g.item(), h.item(), tape.gradient(h, x).item()) == (12.0, 12.0, 6.0)


def test_tape_stop_recording():
    x = leaf(2.0)
    with tp.Tape() as tape:
        y = x * x
        n = len(tape)
        with tape.stop_recording():
            z = x * y
        assert len(tape) == n
        t = y * z
    assert z.item() == 8.0 and tape.gradient(t, x).item() == 8.0 * 4.0


def test_len_and_print_show_every_op():
    x, i = leaf([1.0, 2.0]), tp.arange(3)
    with tp.Tape() as tape:
        lengths = [len(tape)]
        for op in (lambda: tp.tanh(x), lambda: i + i, lambda: x > 1.0, lambda: tp.ones(2) * 2.0, lambda: x @ x):
            op()
            lengths.append(len(tape))
    assert all(b > a for a, b in zip(lengths, lengths[1:], strict=False)), lengths
    assert len(tape) == lengths[-1]
    lines = str(tape).splitlines()
    for name in ("tanh", "add", "greater", "multiply", "vecdot"):
        assert sum(name in line for line in lines) == 1, lines
    assert "float64[2]" in str(tape)
    assert sum(1 for _ in lines) >= len(tape)


def test_tape_ends_with_its_with_also_by_an_exception():
    x = leaf(2.0)
    with pytest.raises(KeyError), tp.Tape() as tape:
        y = x * x
        raise KeyError
    n = len(tape)
    z = x * y
    assert len(tape) == n
    assert tape.gradient(y, x).item() == 4.0
    z.backward()
    assert x.grad.item() == 12.0


def test_tape_records_under_its_own_thread_only():
    x = leaf(2.0)
    with tp.Tape() as tape:
        n = len(tape)
        t = threading.Thread(target=lambda: x * x * x)
        t.start()
        t.join()
        assert len(tape) == n


def test_no_grad_inside_a_tape_stops_gradients():
    x = leaf(2.0)
    with tp.Tape() as tape:
        with tp.no_grad():
            c = x * x
        y = x * c
    assert tape.gradient(y, x).item() == 4.0


def test_unconnected_targets():
    x, other = leaf([1.0, 2.0]), leaf([1.0])
    with tp.Tape(persistent=True) as tape:
        y = (x * x).sum()
    assert tape.gradient(y, other) is None
    assert tape.gradient(y, other, unconnected="zero").tolist() == [0.0]
    assert tape.gradient(y, [x, other])[1] is None
    with pytest.raises(tp.TapeflowError, match="unconnected"):
        tape.gradient(y, other, unconnected="nothing")


def test_writes_inside_a_tape():
    x = leaf([1.0, 2.0, 3.0])
    with tp.Tape() as tape:
        t = x * x
        t[1] = 5.0 * x[0]
        t += x
        y = t.sum()
    assert tape.gradient(y, x).tolist() == [2 + 5 + 1, 1, 6 + 1]


# ---- grad and value_and_grad ----


def test_grad_of_numbers_arrays_and_tensors():
    f = tp.grad(lambda x: x**3)
    assert f(2.0).item() == 12.0 and f(2.0).dtype == tp.float32
    assert f(np.float64(2)).dtype == tp.float64
    g = tp.grad(lambda x: tp.sum(x**3))
    assert g(np.array([1.0, 2.0])).tolist() == [3.0, 12.0]
    x = leaf([1.0, 2.0])
    assert g(x).tolist() == [3.0, 12.0] and x.grad is None
    assert tp.grad(tp.sin)(0.0).item() == 1.0


def test_grad_argnums_and_keywords():
    def f(x, y, scale=1.0):
        return scale * x * y**2

    assert tp.grad(f)(2.0, 3.0).item() == 9.0
    assert tp.grad(f, argnums=1)(2.0, 3.0).item() == 12.0
    assert tp.grad(f, argnums=-1)(2.0, 3.0).item() == 12.0
    both = tp.grad(f, argnums=(1, 0))(2.0, 3.0, scale=2.0)
    assert isinstance(both, tuple) and [g.item() for g in both] == [24.0, 18.0]


def test_value_and_grad_with_aux_and_containers():
    def f(params, x):
        h = params["w"] * x + params["b"][0]
        return tp.sum(h * h), {"h": h, "note": "kept"}

    params = {"w": np.array([1.0, 2.0]), "b": (3.0,)}
    (value, aux), grads = tp.value_and_grad(f, has_aux=True)(params, np.array([1.0, 1.0]))
    assert value.item() == 16 + 25 and aux["h"].tolist() == [4.0, 5.0] and aux["note"] == "kept"
    assert not value.requires_grad and not aux["h"].requires_grad
    assert grads["w"].tolist() == [8.0, 10.0] and grads["b"][0].item() == 18.0 and isinstance(grads["b"], tuple)
    value, (gx, gy) = tp.value_and_grad(lambda x, y: x * y, argnums=(0, 1))(2.0, 5.0)
    assert (value.item(), gx.item(), gy.item()) == (10.0, 5.0, 2.0)


def test_grad_of_an_unused_argument_is_zero():
    got = tp.grad(lambda x, y: tp.sum(x * x), argnums=(0, 1))(np.ones(2), np.ones(3))
    assert [g.tolist() for g in got] == [[2.0, 2.0], [0.0, 0.0, 0.0]]


NESTED = {
    "perturbation_confusion": (lambda: tp.grad(lambda x: x * tp.grad(lambda y: x + y)(1.0))(1.0), 1),
    "confusion_with_products": (lambda: tp.grad(lambda x: x * tp.grad(lambda y: x * y)(2.0))(3.0), 6),
    "inner_uses_outer_power": (lambda: tp.grad(lambda x: tp.grad(lambda y: x * x * y * y)(3.0))(2.0), 24),
    "same_variable_inside": (lambda: tp.grad(lambda x: x * tp.grad(lambda y: y * y * y)(x))(2.0), 36),
    "second_order": (lambda: tp.grad(tp.grad(lambda x: x**4))(2.0), 48),
    "third_order": (lambda: tp.grad(tp.grad(tp.grad(lambda x: x**4)))(2.0), 48),
    "fourth_of_sin": (lambda: tp.grad(tp.grad(tp.grad(tp.grad(tp.sin))))(np.float64(0.5)), math.sin(0.5)),
    "stop_gradient": (lambda: tp.grad(lambda x: x * tp.grad(lambda y: tp.stop_gradient(x) * y)(2.0))(3.0), 3),
    "under_no_grad": (lambda: no_grad_call(tp.grad(lambda x: x**3)), 12),
}


def no_grad_call(f):
    with tp.no_grad():
        return f(2.0)


@pytest.mark.parametrize("name", sorted(NESTED))
def test_nested_grad(name):
    f, want = NESTED[name]
    assert f().item() == pytest.approx(want, rel=1e-15)


def test_grad_inside_backward_and_inside_tape():
    x = leaf(2.0)
    (x * tp.grad(lambda y: y**3)(x)).backward()  # 3 x^3
    assert x.grad.item() == 36.0
    with tp.Tape() as tape:
        y = tp.grad(lambda z: z**3 * x)(x)  # 3 x^2 * x, the inner x held
    assert tape.gradient(y, x).item() == 36.0


def test_grad_sees_captured_leaves_but_leaves_them_alone():
    w = leaf(3.0)
    assert tp.grad(lambda x: x * x * w)(2.0).item() == 12.0
    assert w.grad is None


def test_backward_inside_a_function_under_grad():
    w = leaf(3.0)

    def f(x):
        (w * x.detach()).backward()
        return x * x

    assert tp.grad(f)(2.0).item() == 4.0 and w.grad.item() == 2.0


# ---- what is refused ----

REFUSED = {
    "not_recorded": (lambda x: tp.ones(()).backward(), "backward.*(record|requires_grad)"),
    "under_no_grad": (lambda x: no_grad_product(x).backward(), "backward.*(record|requires_grad)"),
    "integer": (lambda x: tp.arange(3).sum().backward(), "record|requires_grad|int64"),
    "comparison": (lambda x: (x > 0).backward(), "record|requires_grad|bool"),
    "not_scalar": (lambda x: (x * x).backward(), r"\(2,\).*(gradient|seed|sum)"),
    "seed_shape": (lambda x: (x * x).backward(tp.ones(3)), r"\(3,\).*\(2,\)|\(2,\).*\(3,\)"),
    "seed_0d": (lambda x: (x * x).backward(tp.ones(())), r"\(2,\)"),
    "tape_not_scalar_seed": (
        lambda x: taped(x).gradient(taped.y, x, output_gradients=tp.ones(3)), r"\(3,\).*\(2,\)|\(2,\).*\(3,\)"),
    "tape_unrecorded_target": (lambda x: taped(x).gradient(tp.ones(()), x), "record|depend"),
    "grad_of_a_vector": (lambda x: tp.grad(lambda z: z * z)(x), r"\(2,\).*scalar|scalar.*\(2,\)"),
}  # fmt: skip


def no_grad_product(x):
    with tp.no_grad():
        return (x * x).sum()


def taped(x):
    with tp.Tape() as tape:
        taped.y = x * x
    return tape


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name):
    call, pattern = REFUSED[name]
    x = leaf([1.0, 2.0])
    with pytest.raises(tp.TapeError, match=r"(?s)^\[[\w.]+\] .*") as info:
        call(x)
    assert info.match(f"(?s){pattern}")
    assert isinstance(info.value, RuntimeError) and isinstance(info.value, tp.TapeflowError)
    assert x.grad is None and recorded()
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_mlx_1439_integers_have_no_gradient(dtype):
    t = tp.ones((2,), dtype=getattr(tp, dtype))
    calls = [
        lambda: t.requires_grad_(),
        lambda: tp.tensor(t, requires_grad=True),
        lambda: tp.grad(lambda z: tp.sum(z * 1.5))(t),
        lambda: tp.Tape().watch(t),
        lambda: t.register_hook(print),
    ]
    for call in calls[:3]:
        with pytest.raises(TypeError, match=dtype):
            call()
    for call in calls[3:]:
        with pytest.raises(tp.TapeflowError):
            call()
    assert not (t + t).requires_grad and not t.requires_grad


def test_integer_results_are_not_recorded():
    x = leaf([1.0, 3.0, 2.0])
    for y in (tp.argmax(x), x > 1.0, x.astype(tp.int32), tp.equal(x, x)):
        assert not y.requires_grad and y.is_leaf
    index = tp.argmax(x, axis=0)
    x[index].backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]


def test_an_error_in_mid_program_leaves_recording_right():
    x = leaf([1.0, 2.0])
    y = x * x
    for bad in (lambda: y @ tp.ones(3), lambda: y.reshape((3,)), lambda: y[5], lambda: y + "a", lambda: y.sum(axis=4)):
        with pytest.raises((ValueError, TypeError, IndexError)):
            bad()
    y.sum().backward()
    assert host(x.grad).tolist() == [2.0, 4.0]
