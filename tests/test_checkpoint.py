"""checkpoint: the bits, the draws and the gradients of a run that keeps everything, for less memory."""

import threading

import numpy as np
import pytest
from helpers import assert_same, close, together

import tapeflow as tp
from tapeflow import _core
from tapeflow.random import Generator


def normal(*shape, seed=0):
    return tp.tensor(np.random.default_rng(seed).normal(size=shape))


W = normal(6, 6, seed=1).requires_grad_()
OWN = Generator(5)


def twice_used(x):
    h = tp.tanh(x @ W)
    return h * x + tp.sin(h @ W)


def dropped(x):
    h = x * (tp.random.bernoulli(0.5, x.shape).astype("float64") * 2.0)
    return tp.tanh(h @ W) + OWN.normal(shape=x.shape, dtype="float64") * h


def branched(x):
    """Several results, one of which is used for another, and one that needs no gradient."""
    h = tp.exp(-x * x)
    y = h * x
    return {"y": y, "more": [y * h, tp.argmax(x), 3]}


def flat(x):
    out = branched(x)
    return out["y"] + out["more"][0] * out["more"][2]


def through(f):
    def run(x):
        out = f(x)
        return out["y"] + out["more"][0] * out["more"][2]

    return run


BLOCKS = {
    "twice_used": (lambda check: check(twice_used), twice_used),
    "dropped": (lambda check: check(dropped), dropped),
    "branched": (lambda check: through(check(branched)), flat),
    "nested": (
        lambda check: check(lambda x: check(twice_used)(x) + check(dropped)(x)),
        lambda x: twice_used(x) + dropped(x),
    ),
    "inside a rule": (lambda check: check(with_rule), lambda x: with_rule(x)),
    "a gradient inside": (lambda check: check(force), lambda x: force(x)),
}


def force(x):
    return tp.grad(lambda x: (tp.tanh(x @ W) ** 2).sum())(x)


@tp.custom_vjp
def with_rule(x):
    return tp.tanh(x)


with_rule.defvjp(lambda x: (tp.tanh(x), x), lambda x, g: (3.0 * g * tp.cos(x),))


def residual_net(block, depth=3):
    """Residual connections: what x gets comes from many places, and their order decides the bits."""

    def net(x):
        for _ in range(depth):
            x = x + block(x)
        return (x * x).mean() + x.sum()

    return net


def outcome(f, x):
    """Value, gradients and where the generators are afterwards."""
    tp.random.manual_seed(3)
    OWN.state = (5, 0)
    W.zero_grad()
    x = x.detach().requires_grad_()
    value = f(x)
    value.backward()
    return value.detach(), x.grad, W.grad, OWN.state, tp.random.default_generator.state


def assert_outcomes(got, want):
    for a, b in zip(got, want, strict=True):
        if isinstance(a, tp.Tensor):
            assert_same(a.detach(), b.detach())
        else:
            assert a == b


@pytest.mark.parametrize("name", BLOCKS)
def test_bits(name):
    made, plain = BLOCKS[name]
    x = normal(4, 6)
    assert_outcomes(outcome(residual_net(made(tp.checkpoint)), x), outcome(residual_net(plain), x))


@pytest.mark.parametrize("name", BLOCKS)
def test_bits_of_the_second_order(name):
    made, plain = BLOCKS[name]

    def second(block):
        g = tp.grad(residual_net(block, 2))
        return lambda x: (g(x) * g(x)).sum()

    x = normal(3, 6)
    got, want = (outcome(second(block), x) for block in (made(tp.checkpoint), plain))
    for a, b in zip(got, want, strict=True):
        if isinstance(a, tp.Tensor):
            close(a.detach(), b.detach(), 1e-10, 1e-12)
        else:
            assert a == b


@pytest.mark.parametrize("name", BLOCKS)
def test_plans_have_the_bits(name):
    """A step that trains, as a function, against the same without checkpoint, eager."""
    made, plain = BLOCKS[name]
    x = normal(4, 6)
    got = []
    for block, wrap in ((plain, lambda f: f), (made(tp.checkpoint), lambda f: f), (made(tp.checkpoint), tp.function)):
        net = residual_net(block)
        start = W.detach()
        tp.random.manual_seed(3)
        OWN.state = (5, 0)
        W.zero_grad()

        @wrap
        def step(x, net=net):
            loss = net(x @ W)
            loss.backward()
            with tp.no_grad():
                W.assign_sub(0.1 * W.grad)
                W.zero_grad()
            return loss

        losses = [step(x) for _ in range(4)]
        got.append([*losses, W.detach(), OWN.state, tp.random.default_generator.state])
        with tp.no_grad():
            W.assign(start)
    assert len(step.plans) == 1
    assert_outcomes(got[1], got[0])
    assert_outcomes(got[2], got[0])


@pytest.mark.parametrize("name", BLOCKS)
def test_forward_mode_and_jacobians(name):
    made, plain = BLOCKS[name]
    x, v = normal(2, 6), normal(2, 6, seed=7)
    got = []
    for block in (made(tp.checkpoint), plain):
        tp.random.manual_seed(3)
        OWN.state = (5, 0)
        net = residual_net(block, 2)
        got.append(
            [
                tp.jvp(net, (x,), (v,))[1],
                tp.hvp(net, (x,), (v,))[0],
                tp.jacobian(block if name != "branched" else flat)(x),
                tp.jacobian(tp.grad(net))(x),
                tp.grad(lambda x, net=net: tp.jvp(net, (x,), (v,))[1])(x),
            ]
        )
    for a, b in zip(*got, strict=True):
        close(a.detach(), b.detach(), 1e-9, 1e-11)


def test_a_captured_value_of_the_graph_in_forward_mode():
    def net(check):
        def f(x):
            h = x * x
            return check(lambda y: tp.sin(h * y))(tp.tensor(0.5))

        return f

    got, want = (tp.jvp(net(check), (tp.tensor(2.0),), (1.0,))[1] for check in (tp.checkpoint, lambda f: f))
    assert_same(got, want)


def test_pytorch_190758_a_recomputed_block_draws_the_same():
    x = tp.ones((1000,)).requires_grad_()
    block = tp.checkpoint(lambda x: x * tp.random.bernoulli(0.5, x.shape))
    tp.random.manual_seed(0)
    y = block(x)
    between = tp.random.uniform(shape=(3,))
    y.sum().backward()
    after = tp.random.uniform(shape=(3,))
    assert_same(x.grad, y.detach())
    tp.random.manual_seed(0)
    tp.random.bernoulli(0.5, (1000,))
    assert_same(between, tp.random.uniform(shape=(3,)))
    assert_same(after, tp.random.uniform(shape=(3,)))


def test_a_seed_inside_is_set_once():
    def f(x):
        OWN.state = (9, 2)
        return x * OWN.uniform(shape=x.shape, dtype="float64")

    x = normal(5).requires_grad_()
    y = tp.checkpoint(f)(x)
    OWN.uniform(shape=(1,))
    y.sum().backward()
    assert OWN.state == (9, 4)
    OWN.state = (9, 2)
    assert_same(x.grad, OWN.uniform(shape=(5,), dtype="float64"))


# ---- memory


DEPTH = 24


def deep(check, look=lambda h: h):
    """DEPTH blocks of four values each; look is called as they go by, and in backward."""
    ws = [normal(64, seed=k) for k in range(DEPTH)]

    def block(h, w):
        for _ in range(4):
            h = tp.tanh(h * w)
        return look(h)

    def net(x):
        for w in ws:
            x = check(block)(x, w)
            if x.requires_grad:
                x.register_hook(look)
        return x.sum()

    return net


def same(f):
    return f


def peak(check, x):
    """The most memory in use while a backward runs, above what was in use before."""
    start, seen = _core.pool_info()["in_use"], [0]

    def look(h):
        seen.append(_core.pool_info()["in_use"] - start)
        return h

    deep(check, look)(x).backward()
    gradient = x.grad
    x.zero_grad()
    return max(seen), gradient


@pytest.mark.cpu
def test_eager_memory_is_less():
    """Without: every value. With: one of each block, and all of one block's."""
    x = normal(256, 64).requires_grad_()
    one = x.size * 8
    (kept, a), (less, b) = peak(same, x), peak(tp.checkpoint, x)
    assert kept >= 4 * DEPTH * one
    assert less <= (DEPTH + 12) * one
    assert_same(a, b)


def test_a_plan_needs_less():
    x = normal(256, 64)
    one = x.size * 8
    plans = [tp.freeze(tp.value_and_grad(deep(check)), x) for check in (same, tp.checkpoint)]
    kept, less = (plan.nbytes for plan in plans)
    assert kept >= 4 * DEPTH * one
    assert less <= (DEPTH + 12) * one
    for a, b in zip(plans[0](x), plans[1](x), strict=True):
        assert_same(a, b)
    counts = [sum("tanh" in repr(i) for i in plan.instructions) for plan in plans]
    assert counts == [4 * DEPTH, 8 * DEPTH]


def test_a_tape_holds_nothing_of_a_call():
    x = normal(1000).requires_grad_()
    memory = _core.pool_info()["in_use"]
    with tp.Tape() as tape:
        y = tp.checkpoint(lambda x: tp.sin(tp.sin(tp.sin(tp.sin(x)))).sum())(x)
    assert _core.pool_info()["in_use"] - memory < 3 * 8000
    assert_same(tape.gradient(y, x), tp.grad(lambda x: tp.sin(tp.sin(tp.sin(tp.sin(x)))).sum())(x.detach()))


# ---- arguments, results


def test_keywords_containers_and_constants():
    seen = []

    @tp.checkpoint
    def f(tree, scale, *, name):
        seen.append((scale, name, type(tree["a"])))
        return tree["a"][0] * tree["a"][1] * scale, name

    a, b = tp.tensor(2.0, requires_grad=True), tp.tensor(3.0)
    y, name = f({"a": (a, b)}, 4.0, name="n")
    assert name == "n" and len(seen) == 1
    y.backward()
    assert seen == [(4.0, "n", tuple)] * 2 and a.grad.item() == 12.0
    assert f.__name__ == "f"


def test_a_captured_leaf_alone():
    w = tp.tensor(2.0, requires_grad=True)
    y = tp.checkpoint(lambda: w * w)()
    (y * w).backward()
    assert w.grad.item() == 12.0


def test_a_captured_value_of_the_graph():
    w = tp.tensor(2.0, requires_grad=True)
    h = w * w
    got = []
    for check in (tp.checkpoint, lambda f: f):
        w.zero_grad()
        check(lambda x: tp.sin(h * x) * h)(tp.tensor(0.5)).backward(retain_graph=True)
        got.append(w.grad)
    assert_same(*got)


def test_what_is_no_result_of_the_call():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    h = x * 2.0
    same, constant = tp.checkpoint(lambda x: (x, tp.zeros(2)))(h)
    assert same is h and not constant.requires_grad
    with tp.no_grad():
        assert not tp.checkpoint(lambda x: x * x)(x).requires_grad


def test_writes_in_between():
    x = normal(3).requires_grad_()
    h = x * 1.0
    y = tp.checkpoint(lambda h: h * h)(h)
    h += 5.0
    y.sum().backward()
    assert_same(x.grad, 2.0 * x.detach())


def test_an_argument_written_by_the_call():
    def f(h):
        h *= 2.0
        return h * h

    got = []
    for check in (tp.checkpoint, lambda f: f):
        x = normal(3).requires_grad_()
        check(f)(x * 1.0).sum().backward()
        got.append(x.grad)
    assert_same(*got)


def test_a_leaf_argument_may_be_updated_before_backward():
    w = tp.tensor(3.0, requires_grad=True)
    y = tp.checkpoint(lambda w: w * w)(w)
    with tp.no_grad():
        w.assign(100.0)
    y.backward()
    assert w.grad.item() == 6.0


# ---- the engine around it


def test_hooks():
    calls = []
    w = tp.tensor(2.0, requires_grad=True)
    w.register_hook(lambda g: calls.append(g.item()))
    x = tp.tensor(3.0, requires_grad=True)

    def f(x):
        h = x * w
        h.register_hook(lambda g: g * 10.0)
        return h * h

    y = tp.checkpoint(f)(x)
    y.retain_grad()
    y.backward()
    assert x.grad.item() == 10.0 * 2 * 6 * 2 and calls == [10.0 * 2 * 6 * 3] and y.grad.item() == 1.0


def test_backward_twice_and_in_another_thread():
    x = normal(4, 6).requires_grad_()
    y = residual_net(tp.checkpoint(twice_used))(x)
    want = tp.grad(residual_net(twice_used))(x.detach())
    y.backward(retain_graph=True)
    assert_same(x.grad, want)
    x.zero_grad()
    worker = threading.Thread(target=y.backward)
    worker.start()
    worker.join()
    assert_same(x.grad, want)
    with pytest.raises(tp.TapeError, match="freed by an earlier backward"):
        y.backward()


@pytest.mark.cpu
def test_threads():
    x = normal(4, 6)
    f = residual_net(tp.checkpoint(lambda x: x * OWN.uniform(shape=x.shape, dtype="float64") + twice_used(x)))

    def work(k):
        for _ in range(10):
            a = x.detach().requires_grad_()
            y = f(a)
            y.backward(retain_graph=True)
            first = a.grad
            a.zero_grad()
            y.backward()
            assert_same(a.grad, first)

    together(work, 4)


def test_entries_are_given_back():
    x = normal(4, 6).requires_grad_()
    before = _core.entries_in_use()
    residual_net(tp.checkpoint(twice_used))(x).backward()
    residual_net(tp.checkpoint(twice_used))(x)
    assert _core.entries_in_use() == before


# ---- what is refused


def test_a_captured_leaf_that_was_written():
    w = tp.tensor(2.0, requires_grad=True)
    x = tp.tensor(3.0, requires_grad=True)

    @tp.checkpoint
    def layer(x):
        return w * x

    y = layer(x)
    with tp.no_grad():
        w.assign_add(1.0)
    with pytest.raises(tp.TapeError, match="a tensor that layer captures was written between forward and backward"):
        y.backward()
    assert x.grad is None and w.grad is None


CHANGES = {
    "shape": (lambda x, k: x[:1] * 2.0 if k else x * 2.0, r"returned float32\[1\] where it was float32\[2\]"),
    "dtype": (lambda x, k: x.astype("float64") if k else x * 2.0, r"returned float64\[2\] where it was float32\[2\]"),
    "no grad": (lambda x, k: x.detach() if k else x * 2.0, "that requires no grad where it was"),
    "no tensor": (lambda x, k: None if k else x * 2.0, "returned NoneType where"),
    "more draws": (lambda x, k: x * tp.random.uniform(shape=(2,)) if k else x * 2.0, "other random draws than before"),
    "no draw": (lambda x, k: x * 2.0 if k else x * tp.random.uniform(shape=(2,)), "made 0 random draws, and 1 before"),
    "another draw": (
        lambda x, k: x * (OWN if k else tp.random).uniform(shape=(2,), dtype="float32"),
        "other random draws than before",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_function_that_does_something_else(name):
    f, text = CHANGES[name]
    calls = []

    @tp.checkpoint
    def block(x):
        calls.append(1)
        return f(x, len(calls) > 1)

    x = tp.tensor([1.0, 2.0], requires_grad=True)
    y = block(x)
    with pytest.raises(tp.TapeError, match=text):
        y.sum().backward()
    assert x.grad is None
    tp.random.uniform(shape=(1,))  # generators work as before


def test_no_function():
    with pytest.raises(tp.TapeError, match="expected a function, got Tensor"):
        tp.checkpoint(tp.zeros(1))
