"""stop_gradient, hooks, retain_grad, checkpoint and rules in every transform, to depth two, against plain sums."""

import numpy as np
import pytest
from helpers import close

import tapeflow as tp

X = np.array([0.3, -1.2, 0.8])
V = np.array([1.0, 0.5, -2.0])


def hooked(x):
    """x**2 with its cotangent doubled."""
    y = x * x
    if y.requires_grad:
        y.register_hook(lambda g: 2.0 * g)
    return y


def retained(x):
    y = x * x
    if y.requires_grad:
        y.retain_grad()
    return y


tripled = tp.custom_vjp(lambda x: x * x)
tripled.defvjp(lambda x: (x * x, x), lambda x, g: (6.0 * g * x,))

# name: (function, derivative of its sum, second derivative) as arrays
PARTS = {
    "stop_gradient": (lambda x: x * tp.stop_gradient(x), lambda x: x, lambda x: np.zeros_like(x)),
    "partly stopped": (lambda x: x * x * tp.stop_gradient(tp.sin(x)), lambda x: 2 * x * np.sin(x), None),
    "hook": (hooked, lambda x: 4 * x, lambda x: 4 + 0 * x),
    "retain_grad": (retained, lambda x: 2 * x, lambda x: 2 + 0 * x),
    "checkpoint": (tp.checkpoint(lambda x: tp.sin(x) * x), lambda x: np.cos(x) * x + np.sin(x),
                   lambda x: 2 * np.cos(x) - x * np.sin(x)),
    "a hook in a checkpoint": (tp.checkpoint(hooked), lambda x: 4 * x, lambda x: 4 + 0 * x),
    "a stop in a checkpoint": (tp.checkpoint(lambda x: x * tp.stop_gradient(x)), lambda x: x, lambda x: 0 * x),
    "a checkpoint that is stopped": (lambda x: tp.stop_gradient(tp.checkpoint(tp.sin)(x)) * x, np.sin, None),
    "custom_vjp": (tripled, lambda x: 6 * x, lambda x: 6 + 0 * x),
    "a rule in a checkpoint": (tp.checkpoint(lambda x: tripled(x) * x), lambda x: 7 * x**2, None),
    "a checkpoint in a rule": (lambda x: tripled(tp.checkpoint(tp.exp)(x)), lambda x: 6 * np.exp(2 * x), None),
}  # fmt: skip
FORWARD_TOO = [name for name in PARTS if "hook" not in name]  # a hook sees cotangents only
WAYS = {
    "grad": lambda f: tp.grad(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: tp.vjp(f, x)[1](tp.ones_like(x))[0],
    "backward": lambda f: lambda x: by_backward(f, x),
    "tape": lambda f: lambda x: by_tape(f, x),
    "vmap of grad": lambda f: tp.vmap(tp.grad(f)),
    "checkpoint": lambda f: tp.grad(lambda x: tp.checkpoint(f)(x).sum()),
    "freeze": lambda f: lambda x: tp.freeze(tp.grad(lambda x: f(x).sum()), tp.zeros_like(x))(x),
    "function": lambda f: lambda x: tp.function(tp.grad(lambda x: f(x).sum()))(x),
    "twice a function": lambda f: twice(tp.function(tp.grad(lambda x: f(x).sum()))),
    "jacobian": lambda f: lambda x: tp.jacobian(lambda x: f(x).sum())(x),
}


def twice(g):
    return lambda x: (g(tp.zeros_like(x)), g(x))[1]


def by_backward(f, x):
    x = x.detach().requires_grad_()
    f(x).sum().backward()
    return x.grad


def by_tape(f, x):
    with tp.Tape(watch=[x]) as tape:
        y = f(x).sum()
    return tape.gradient(y, x)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PARTS)
def test_first_order(name, way):
    f, first, _ = PARTS[name]
    close(WAYS[way](f)(tp.tensor(X)).detach(), first(X), 1e-12, 1e-14)


@pytest.mark.parametrize("name", FORWARD_TOO)
def test_forward_mode(name):
    f, first, _ = PARTS[name]
    x, v = tp.tensor(X), tp.tensor(V)
    want = first(X) * V
    close(tp.jvp(f, (x,), (v,))[1], want, 1e-12, 1e-14)
    close(tp.freeze(lambda x, v: tp.jvp(f, (x,), (v,))[1], x * 0.0, v)(x, v), want, 1e-12, 1e-14)
    close(tp.vmap(lambda x, v: tp.jvp(f, (x,), (v,))[1])(x, v), want, 1e-12, 1e-14)
    close(tp.jacobian(f)(x), np.diag(first(X)), 1e-12, 1e-14)
    close(tp.sparse_jacobian(f)(x).toarray(), np.diag(first(X)), 1e-12, 1e-14)


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part[2] is not None])
def test_second_order(name):
    f, _, second = PARTS[name]
    x = tp.tensor(X)
    want = second(X)
    total = lambda x: f(x).sum()  # noqa: E731
    close(tp.grad(lambda x: tp.grad(total)(x).sum())(x), want, 1e-12, 1e-14)
    close(tp.freeze(tp.grad(lambda x: tp.grad(total)(x).sum()), x * 0.0)(x), want, 1e-12, 1e-14)
    close(tp.grad(lambda x: tp.vmap(tp.grad(f))(x).sum())(x), want, 1e-12, 1e-14)
    close(tp.jvp(tp.grad(total), (x,), (tp.ones_like(x),))[1], want, 1e-12, 1e-14)
    close(tp.grad(tp.checkpoint(lambda x: tp.grad(total)(x).sum()))(x), want, 1e-12, 1e-14)


@pytest.mark.parametrize("name", [n for n in FORWARD_TOO if n != "retain_grad"])
def test_gradients_of_a_batch(name):
    f, first, _ = PARTS[name]
    close(tp.grad(lambda x: tp.vmap(f)(x).sum())(tp.tensor(X)), first(X), 1e-12, 1e-14)


def test_hooks_and_retain_grad_at_each_level():
    """A hook sees the gradient once, whoever asks; a tensor's .grad is kept by backward alone."""
    seen = []
    x = tp.tensor(X).requires_grad_()
    y = x * x
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.retain_grad()
    z = tp.checkpoint(lambda y: y * 3.0)(y).sum()
    z.backward(create_graph=True)
    assert seen == [[3.0] * 3] and y.grad.tolist() == [3.0] * 3
    handle = x.register_hook(lambda g: g * 0.0)
    assert tp.grad(lambda t: (t * x).sum())(tp.tensor(V)).detach().tolist() == X.tolist()
    handle.remove()
    with tp.Tape() as tape:
        w = (x * x).sum()
    assert tape.gradient(w, x).tolist() == (2 * X).tolist()


def halving(a):
    y = a * a
    if y.requires_grad:
        y.register_hook(lambda g: 0.5 * g)
        y.register_hook(lambda g: None)
        y.register_hook(lambda g: 1 / 0).remove()
    return y


def test_hooks_of_recorded_programs():
    x = tp.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
    want = x.numpy()  # half of 2 x
    plan = tp.freeze(lambda x: tp.sum(halving(x)), tp.ones((2, 3), requires_grad=True))
    for f in (
        lambda x: tp.sum(halving(x)),
        lambda x: tp.sum(tp.vmap(halving)(x)),
        lambda x: tp.sum(tp.vmap(tp.vmap(halving))(x)),
        lambda x: tp.sum(tp.vmap(lambda a: halving(a) + 0 * x[0])(x)),
        lambda x: plan(x),
        tp.checkpoint(lambda x: tp.sum(halving(x))),
    ):
        np.testing.assert_array_equal(tp.grad(f)(x).numpy(), want)
        np.testing.assert_array_equal(tp.function(tp.grad(f))(x).numpy(), want)

    def of_an_argument(a):
        if a.requires_grad:
            a.register_hook(lambda g: 3 * g)
        return a * 2

    for _ in range(2):  # nothing stays on x
        np.testing.assert_array_equal(tp.grad(lambda x: tp.sum(tp.vmap(of_an_argument)(x)))(x).numpy(), 6 + 0 * want)
    with pytest.raises(tp.PlanError, match="a hook"):
        example = tp.ones(2, requires_grad=True)
        tp.freeze(lambda x: tp.sum(halving(x)), example, differentiable=True).save("nowhere")
