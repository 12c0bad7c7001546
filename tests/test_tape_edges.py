"""Hooks that walk, open tapes or write; tapes and leaves at their edges; nesting of tapes and tp.grad.

What test_tape.py states of ordinary programs holds here under code that runs in the middle of a walk, for tapes used in
any order and on any thread, and for leaves that are written, assigned or watched.
"""

import pytest

import tapeflow as tp
from tapeflow import _core


def leaf(data, dtype=tp.float64):
    return tp.tensor(data, dtype=dtype, requires_grad=True)


# ---- hooks that walk, and tapes and leaves at their edges


@pytest.mark.parametrize("name", ["cross_entropy", "matmul", "elementwise", "concat", "softmax"])
@pytest.mark.parametrize("of_target", [True, False])
def test_a_hook_that_frees_the_graph_under_the_walk_raises(name, of_target):
    x = leaf([[1.0, 2.0]])
    h = x * 2.0
    loss = {
        "cross_entropy": lambda: tp.cross_entropy(h, tp.tensor([0])),
        "matmul": lambda: h @ h.T,
        "elementwise": lambda: (h * h)[0, 1],
        "concat": lambda: tp.concat([h, h]).sum(),
        "softmax": lambda: tp.softmax(h)[0, 0],
    }[name]()
    runs = []
    hook = lambda g: runs.append(1) or (loss.backward() if len(runs) == 1 else None)  # noqa: E731
    (loss if of_target else h).register_hook(hook)
    with pytest.raises(tp.TapeError, match="freed"):
        loss.backward()
    assert len(runs) == 1 + of_target


def test_a_hook_that_goes_back_from_an_inner_tensor_loses_no_gradient():
    x = leaf([1.0, 2.0])
    h = x * 2.0
    loss = (h * h).sum()
    runs = []

    def hook(g):
        runs.append(1)
        if len(runs) == 1:
            with tp.enable_grad():
                h.sum().backward()

    h.register_hook(hook)
    try:
        loss.backward()
    except tp.TapeError:
        pass
    else:
        assert x.grad.tolist() == [10.0, 18.0]


UPDATES = {
    "subtract": lambda w: w.__isub__(tp.tensor([0.5])),
    "setitem": lambda w: w.__setitem__(0, 0.5),
    "assign": lambda w: w.assign(w * 0.5),
    "assign_recorded": lambda w: w.assign(leaf([0.25]) * 2.0),
    "zero_": lambda w: w.zero_(),
}


@pytest.mark.parametrize("name", sorted(UPDATES))
@pytest.mark.parametrize("in_tape", [True, False])
def test_a_leaf_written_under_no_grad_stays_a_leaf(name, in_tape):
    w = leaf([1.0])
    with tp.Tape() if in_tape else tp.enable_grad():
        y = w * w
        with tp.no_grad():
            UPDATES[name](w)
        assert w.is_leaf and w.requires_grad
        z = w * w
    z.sum().backward()
    assert w.grad.tolist() == [2 * w.item()]
    y.sum().backward()
    assert w.grad.tolist() == [2 * w.item() + 2.0]


def test_a_tensor_assigned_a_leaf_is_not_that_leaf():
    x, u = leaf([3.0]), tp.tensor([0.0], dtype=tp.float64)
    u.assign(x)
    assert not u.is_leaf and u.requires_grad
    u += 1.0
    with pytest.raises(tp.TapeError):
        u.requires_grad_(False)
    (u * x).sum().backward()
    assert x.grad.tolist() == [7.0]
    with tp.no_grad():
        v = tp.zeros(1).assign(x)
    assert not v.requires_grad


def test_two_tapes_watch_one_tensor():
    x = tp.tensor(3.0)
    with tp.Tape(watch=[x]) as outer, tp.Tape(watch=[x]) as inner:
        y = x * x
    assert inner.gradient(y, x).item() == outer.gradient(y, x).item() == 6.0
    first, second = tp.Tape(watch=[x]), tp.Tape(watch=[x])
    first.__enter__()
    second.__enter__()
    y = x * x
    first.__exit__(None, None, None)
    z = y * x
    second.__exit__(None, None, None)
    assert second.gradient(z, x).item() == 27.0 and first.gradient(y, x).item() == 6.0 and not x.requires_grad


def test_a_tape_finds_what_it_watched_whatever_became_of_it():
    x = tp.tensor(3.0)
    with tp.Tape(watch=[x], persistent=True) as first:
        y = x * x
    with tp.Tape(watch=[x]):
        _ = x * x
        assert first.gradient(y, x).item() == 6.0
    x.requires_grad_()
    assert first.gradient(y, x).item() == 6.0
    (x * x).backward()
    assert x.grad.item() == 6.0


@pytest.mark.parametrize("make", [lambda x: tp.Tape(watch=[x]), lambda x: (tp.Tape(watch=x), None)[1]])
def test_a_tape_that_is_not_opened_watches_nothing(make):
    x = tp.tensor(3.0)
    tape = make(x)
    assert not x.requires_grad and not (x * x).requires_grad
    if tape is not None:
        with pytest.raises(tp.TapeError, match="Tape"):
            tape.__exit__(None, None, None)
        with tape:
            y = x * x
        assert tape.gradient(y, x).item() == 6.0


def test_walks_stay_above_their_sources():
    w = leaf([1.0, 3.0])
    y = w * w
    y.sum().backward()
    assert tp.grad(lambda x: (x * x).sum())(y).tolist() == [2.0, 18.0]
    z = w * w
    assert tp.grad(lambda x: z.sum())(1.0).item() == 0.0
    z.sum().backward()
    assert w.grad.tolist() == [4.0, 12.0]
    seen = []
    trunk = w * w
    trunk.register_hook(lambda g: seen.append(g))
    h = trunk * 1.0
    with tp.Tape() as tape:
        q = (h * h).sum()
    assert tape.gradient(q, h).tolist() == [2.0, 18.0] and not seen


def test_gradients_are_new_tensors_also_of_one_source_twice():
    x = leaf(3.0)
    kept = []
    x.register_hook(lambda g: kept.append(g))
    with tp.Tape(persistent=True) as tape:
        y = x * x
    g, h = tape.gradient(y, [x, x])
    assert g is not h and all(g is not k and h is not k for k in kept)
    g *= 0.0
    kept[0].zero_()
    assert h.item() == 6.0 and tape.gradient(y, x).item() == 6.0


def test_a_hook_may_write_to_what_an_earlier_hook_was_given():
    kept = []
    for ask in ("retain", "tape"):
        kept.clear()
        x = leaf([1.0, 2.0])
        with tp.Tape() as tape:
            h = x * 3.0
            y = h * h
            s = y.sum()
        y.register_hook(lambda g: kept.append(g))
        h.register_hook(lambda g: (kept[0].zero_(), None)[1])
        if ask == "retain":
            y.retain_grad()
            s.backward()
            got = [y.grad, x.grad]
        else:
            got = tape.gradient(s, [y, x])
        assert [g.tolist() for g in got] == [[1.0, 1.0], [18.0, 36.0]]
    a, b = leaf([1.0]), leaf([1.0])
    seen = []

    def hook(g):
        for earlier in seen:
            earlier.zero_()
        seen.append(g)

    a.register_hook(hook)
    b.register_hook(hook)
    (a * 2.0 + b * 3.0).sum().backward()
    assert (a.grad.item(), b.grad.item()) == (2.0, 3.0)


def test_tapes_opened_and_closed_by_hooks():
    x, opened = leaf([1.0, 2.0]), []
    y = x * x
    y.register_hook(lambda g: opened.append(tp.Tape().__enter__()))
    y.sum().backward()
    _ = (x * 3.0).sum()
    opened[0].__exit__(None, None, None)
    assert len(opened[0]) >= 2

    def alive():
        before, c = _core.entries_in_use(), tp.ones(2)
        for _ in range(50):
            c = c * 1.5
        return _core.entries_in_use() - before

    tape = tp.Tape()
    tape.__enter__()
    y = x * x
    y.register_hook(lambda g: tape.__exit__(None, None, None))
    y.sum().backward()
    assert alive() == 0
    tape = tp.Tape()
    tape.__enter__()
    stopped = tape.stop_recording()
    stopped.__enter__()
    tape.__exit__(None, None, None)
    stopped.__exit__(None, None, None)
    assert alive() == 0 and tp.is_grad_enabled()


def test_two_tensors_of_one_value_retain_their_gradients():
    x, u = leaf([1.0]), tp.zeros(1, dtype="float64")
    y = x * 2.0
    y.retain_grad()
    u.assign(y)
    u.retain_grad()
    (u * y).sum().backward()
    assert y.grad is not None and u.grad is not None and x.grad.tolist() == [8.0]


def test_a_leaf_that_is_a_gradient_stays_a_leaf():
    x, g = leaf([2.0]), leaf([1.0])
    x.grad = g
    (x * x).sum().backward(create_graph=True)
    assert g.is_leaf and x.grad.tolist() == [5.0]
    (x.grad * x.grad).sum().backward()
    assert g.grad is not None


def test_a_handle_removes_its_own_hook_once():
    x, seen = leaf([1.0]), []

    def hook(g):
        seen.append(g)

    first, _ = x.register_hook(hook), x.register_hook(hook)
    first.remove()
    first.remove()
    (x * 1.0).sum().backward()
    assert len(seen) == 1


def test_watch_on_a_tape_that_is_not_open():
    closed = tp.Tape()
    with closed:
        pass
    for tape in (tp.Tape(), closed):
        x = tp.tensor([1.0])
        try:
            tape.watch(x)
        except tp.TapeError:
            pass
        assert not x.requires_grad


# ---- nesting of tapes and tp.grad


def returned(w):
    return tp.value_and_grad(lambda x: w)(1.0)[0]


def returned_as_aux(w):
    return tp.value_and_grad(lambda x: (x * x, {"w": [w]}), has_aux=True)(2.0)[0][1]["w"][0]


def taped(x):
    with tp.Tape(watch=[x]) as tape:
        y = x * x * x
    return tape.gradient(y, x)


def taped_twice(x):
    with tp.Tape() as outer:
        g = taped(x)
    return outer.gradient(g, x)


NESTED = {  # f, its derivative at 2
    "returned": (returned, 1.0),
    "returned_after_an_op": (lambda w: returned(w * w), 4.0),
    "returned_as_aux": (returned_as_aux, 1.0),
    "taped": (taped, 12.0),
    "taped_twice": (taped_twice, 6.0),
    "taped_in_grad": (tp.grad(taped), 6.0),
    "taped_grad": (lambda x: taped(x) * tp.grad(taped)(x), 12.0 * 12.0 + 12.0 * 6.0),
}


@pytest.mark.parametrize("name", sorted(NESTED))
def test_nesting_loses_no_gradient(name):
    f, want = NESTED[name]
    assert tp.grad(f)(2.0).item() == want
    x = leaf(2.0)
    with tp.Tape() as tape:
        y = f(x)
    assert y.requires_grad and tape.gradient(y, x).item() == want
    y = tp.tensor(2.0)
    with tp.Tape(watch=[y]) as tape:
        z = f(y) * 1.0
    assert tape.gradient(z, y).item() == want


def test_a_recorded_value_that_a_function_returns_stays_recorded():
    w = leaf(3.0)
    y = w * w
    value, g = tp.value_and_grad(lambda x: y)(1.0)
    assert value.requires_grad and g.item() == 0.0
    value.backward()
    assert w.grad.item() == 6.0


@pytest.mark.parametrize("watch", [True, False])
def test_a_source_whose_own_graph_was_freed(watch):
    w = leaf([1.0, 3.0])
    y = w * w
    seen = []
    y.register_hook(seen.append)
    y.sum().backward()
    with tp.Tape(watch=[y] if watch else ()) as tape:
        z = (y * y).sum()
    assert tape.gradient(z, y).tolist() == [2.0, 18.0] and w.grad.tolist() == [2.0, 6.0]
    with pytest.raises(tp.TapeError, match="freed"):
        (y * y).sum().backward()


def test_a_watched_target_counts_also_after_the_block():
    x = tp.tensor(2.0)
    with tp.Tape(watch=[x], persistent=True) as tape:
        y = x * x
        assert tape.gradient([y, x], x).item() == 5.0
    assert tape.gradient([y, x], x).item() == 5.0 and tape.gradient(x, x).item() == 1.0
