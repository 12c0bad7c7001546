"""custom_vjp: in every order, in plans, with containers and constants; what a rule may not do."""

import gc
import weakref

import numpy as np
import pytest
from helpers import assert_same, close, together

import tapeflow as tp
from tapeflow import _core
from tapeflow.transforms import flatten


def float64(*values):
    return tp.tensor(list(values), dtype="float64")


def tripled():
    """The identity with a gradient three times as large: no other rule could give it."""
    f = tp.custom_vjp(lambda x: x * 1.0)
    f.defvjp(lambda x: (x * 1.0, None), lambda residuals, g: (3.0 * g,))
    return f


def product(residuals):
    """x * sin(y) and x + y, whose rule keeps `residuals` of (arguments, results, something computed)."""

    @tp.custom_vjp
    def f(x, y):
        return x * tp.sin(y), x + y

    def fwd(x, y):
        value = x * tp.sin(y), x + y
        kept = {"arguments": (x, y), "results": (x, value[1]), "computed": (x * 1.0, tp.sin(y), tp.cos(y))}
        return value, kept[residuals]

    def bwd(kept, g):
        if residuals == "computed":
            x, s, c = kept
        else:
            x, y = kept if residuals == "arguments" else (kept[0], kept[1] - kept[0])
            s, c = tp.sin(y), tp.cos(y)
        return g[0] * s + g[1], g[0] * x * c + g[1]

    f.defvjp(fwd, bwd)
    return f


def plain(x, y):
    return x * tp.sin(y), x + y


RESIDUALS = ("arguments", "results", "computed")


def scalar(f):
    def run(x, y):
        a, b = f(x, y)
        return (a * b + tp.exp(b)).sum()

    return run


# ---- values


def test_the_rule_is_used():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    y = tripled()(x)
    assert y.tolist() == [1.0, 2.0] and y.requires_grad and not y.is_leaf
    (y * y).sum().backward()
    assert x.grad.tolist() == [6.0, 12.0]


@pytest.mark.parametrize("residuals", RESIDUALS)
@pytest.mark.parametrize("order", (1, 2, 3))
def test_every_order(residuals, order):
    def derivative(f):
        for _ in range(order):
            g = tp.grad(f)
            f = lambda x, y, g=g: (g(x, y) * x * y).sum()  # noqa: E731
        return g

    x, y = float64(0.3, -1.2), float64(0.7, 0.4)
    got, want = (derivative(scalar(f))(x, y) for f in (product(residuals), plain))
    close(got, want, 1e-12, 1e-12)


@pytest.mark.parametrize("residuals", RESIDUALS)
def test_create_graph(residuals):
    got = []
    for f in (product(residuals), plain):
        x, y = (t.requires_grad_() for t in (float64(0.3, -1.2), float64(0.7, 0.4)))
        scalar(f)(x, y).backward(create_graph=True)
        (x.grad * y.grad).sum().backward()
        got.append((x.grad.detach(), y.grad.detach()))
    for a, b in zip(*got, strict=True):
        close(a, b, 1e-12, 1e-12)


def test_a_result_as_residual_carries_the_rule():
    """y * y where y is a result of the tripled identity: each derivative takes the factor once more."""

    @tp.custom_vjp
    def f(x):
        return x * 1.0

    def fwd(x):
        y = x * 1.0
        return y, y

    f.defvjp(fwd, lambda y, g: (g * y,))  # dy = y dx: the exponential function's, on purpose not the identity's
    second = tp.grad(lambda x: tp.grad(f)(x))
    assert tp.grad(f)(2.0).item() == 2.0
    assert second(2.0).item() == 2.0


def test_a_rule_that_calls_its_function():
    """A fixed point y = cos(x y) by its implicit derivative; fwd calls f itself, bwd solves by another fixed point."""

    @tp.custom_vjp
    def solve(x):
        y = tp.zeros((), "float64")
        for _ in range(200):
            y = tp.cos(x * y)
        return y

    def fwd(x):
        y = solve(x)
        return y, (x, y)

    def bwd(residuals, g):
        x, y = residuals
        slope = -tp.sin(x * y)
        return (g * slope * y / (1.0 - slope * x),)

    solve.defvjp(fwd, bwd)
    x, h = 0.6, 1e-4
    value = lambda x: solve(tp.tensor(x, dtype="float64")).item()  # noqa: E731
    d = tp.grad(solve)
    first = (value(x + h) - value(x - h)) / (2 * h)
    second = (value(x + h) - 2 * value(x) + value(x - h)) / h**2
    at = tp.tensor(x, dtype="float64")
    close(d(at), np.float64(first), 1e-6)
    close(tp.grad(d)(at), np.float64(second), 1e-4)


def test_draws_of_fwd_are_repeated_for_the_second_order():
    @tp.custom_vjp
    def f(x):
        return x * x

    def fwd(x):
        return x * x, x * tp.random.uniform(1.0, 2.0, x.shape, "float64")

    f.defvjp(fwd, lambda r, g: (g * r,))
    x = float64(1.0, 3.0)
    tp.random.manual_seed(4)
    factor = tp.random.uniform(1.0, 2.0, (2,), "float64")
    tp.random.manual_seed(4)
    second = tp.grad(lambda x: tp.grad(lambda x: f(x).sum())(x).sum())(x)
    assert_same(second, factor)
    assert tp.random.default_generator.state == (4, 1)


# ---- what goes in and out


def test_containers_and_constants():
    seen = {}

    @tp.custom_vjp
    def f(parameters, index, name, scale):
        return {"y": parameters["w"][0] * scale, "name": name, "n": tp.argmax(parameters["w"][0])}

    def fwd(parameters, index, name, scale):
        seen["fwd"] = (index.dtype, name, scale)
        return f.fun(parameters, index, name, scale), (parameters, scale)

    def bwd(residuals, g):
        parameters, scale = residuals
        seen["g"] = g
        return {"w": [g["y"] * scale, None], "b": tp.ones_like(parameters["b"])}, None, None, None

    f.defvjp(fwd, bwd)
    p = {"w": [float64(1.0, 2.0).requires_grad_(), float64(5.0).requires_grad_()], "b": float64(7.0).requires_grad_()}
    out = f(p, tp.tensor([0, 1]), "layer", 2.0)
    assert out["name"] == "layer" and out["n"].item() == 1 and not out["n"].requires_grad
    out["y"].sum().backward()
    assert seen["fwd"] == (np.dtype("int64"), "layer", 2.0)
    assert seen["g"]["name"] is None and seen["g"]["n"] is None and seen["g"]["y"].tolist() == [1.0, 1.0]
    assert p["w"][0].grad.tolist() == [2.0, 2.0] and p["w"][1].grad is None and p["b"].grad.tolist() == [1.0]


def test_results_of_two_dtypes_and_cotangents_of_zero():
    f = tp.custom_vjp(lambda x: (x * 1.0, x.astype("float64")))
    cotangents = []

    def bwd(r, g):
        cotangents.append(g)
        return (g[0] + g[1].astype("float32"),)

    f.defvjp(lambda x: (f.fun(x), None), bwd)
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    a, b = f(x)
    assert (a.dtype, b.dtype) == (tp.float32, tp.float64)
    (b * b).sum().backward(retain_graph=True)
    assert x.grad.tolist() == [2.0, 4.0]
    assert_same(cotangents[0][0], np.zeros(2, "float32"))
    assert cotangents[0][1].dtype == tp.float64
    (a.sum() + (b * 2.0).sum() + (b * b).sum()).backward()
    assert len(cotangents) == 2 and cotangents[1][1].tolist() == [4.0, 6.0]
    assert x.grad.tolist() == [7.0, 11.0]


def test_keywords_defaults_and_methods():
    class Model:
        scale = 2.0

        @tp.custom_vjp
        def apply(self, x, times=3):
            return x * self.scale * times

    Model.apply.defvjp(lambda self, x, times: (x * self.scale * times, None), lambda r, g: (None, 100.0 * g, None))
    x = tp.tensor(1.0, requires_grad=True)
    y = Model().apply(x)
    assert y.item() == 6.0
    y.backward()
    assert x.grad.item() == 100.0
    f = tp.custom_vjp(lambda x, times=3: x * times)
    f.defvjp(lambda x, times: (x * times, times), lambda times, g: (g * times, None))
    assert tp.grad(lambda x: f(x, times=4))(1.0).item() == 4.0 and f(x=2.0) == 6.0
    only = tp.custom_vjp(lambda x, *, times: x * times)
    only.defvjp(lambda x: (x, None), lambda r, g: (g,))
    with pytest.raises(tp.TapeError, match="takes times by keyword alone"):
        only(x, times=2)


def test_numbers_and_arrays_as_gradients():
    f = tp.custom_vjp(lambda x, y: x * 1.0 + y.sum())
    f.defvjp(lambda x, y: (f.fun(x, y), None), lambda r, g: (5, np.ones(2, "float32")))
    x, y = tp.tensor(1.0, requires_grad=True), tp.tensor([1.0, 2.0], requires_grad=True)
    f(x, y).backward()
    assert x.grad.item() == 5.0 and y.grad.tolist() == [1.0, 1.0]


def test_an_argument_may_be_a_result_and_a_residual():
    f = tp.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, x), lambda x, g: (g * x,))
    x = tp.tensor(3.0, requires_grad=True)
    y = f(x)
    assert y is not x
    y.backward()
    assert x.grad.item() == 3.0


def test_writes_do_not_reach_what_is_kept():
    f = tp.custom_vjp(lambda x: x * x)

    def bwd(x, g):
        gradient = 2.0 * g * x
        x.zero_()
        return (gradient,)

    f.defvjp(lambda x: (x * x, x), bwd)
    x = tp.tensor([1.0, 2.0])
    a = x.requires_grad_() * 1.0
    y = f(a).sum()
    a += 5.0
    for _ in range(2):
        y.backward(retain_graph=True)
    assert x.grad.tolist() == [4.0, 8.0]


# ---- the engine around it


def test_no_grad_and_constants_run_f_alone():
    ran = []
    f = tp.custom_vjp(lambda x: ran.append("f") or x * 1.0)
    f.defvjp(lambda x: ran.append("fwd") or (x * 1.0, None), lambda r, g: (g,))
    x = tp.tensor(1.0, requires_grad=True)
    with tp.no_grad():
        assert not f(x).requires_grad
    assert not f(tp.tensor(1.0)).requires_grad and ran == ["f", "f"]
    f(x)
    assert ran == ["f", "f", "fwd"]


def test_hooks_and_retain_grad():
    f = tripled()
    x = tp.tensor(1.0, requires_grad=True)
    y = f(x)
    y.retain_grad()
    y.register_hook(lambda g: g * 10.0)
    x.register_hook(lambda g: g + 1.0)
    (y * 2.0).backward()
    assert y.grad.item() == 20.0 and x.grad.item() == 61.0


def test_a_second_backward():
    x = tp.tensor(2.0, requires_grad=True)
    y = tripled()(x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 6.0
    with pytest.raises(tp.TapeError, match="was freed by an earlier backward"):
        y.backward()


def test_an_error_in_bwd_changes_nothing():
    f = tp.custom_vjp(lambda x: x * 1.0)

    def bwd(r, g):
        raise KeyError("mine")

    f.defvjp(lambda x: (x * 1.0, None), bwd)
    w, x = tp.tensor(1.0, requires_grad=True), tp.tensor(1.0, requires_grad=True)
    with pytest.raises(KeyError, match="mine"):
        (w * f(x)).backward()
    assert w.grad is None and x.grad is None and tp.is_grad_enabled()


def test_a_tape_holds_the_call():
    x = tp.tensor(2.0)
    f = tripled()
    with tp.Tape(watch=[x], persistent=True) as tape:
        y = f(x) * x
    assert "custom_result" in repr(tape)
    assert tape.gradient(y, x).item() == 8.0
    assert tape.gradient(y, x).item() == 8.0


@pytest.mark.cpu
def test_what_is_kept_goes_with_the_call():
    class Big:
        pass

    big = Big()
    seen = weakref.ref(big)
    f = tp.custom_vjp(lambda x: x * 1.0)
    f.defvjp(lambda x: (x * 1.0, (x * 2.0, big)), lambda r, g: (g,))
    x = tp.tensor(np.ones(1 << 16), requires_grad=True)
    gc.collect()
    entries, memory = _core.entries_in_use(), _core.pool_info()["in_use"]
    y = f(x)
    assert _core.pool_info()["in_use"] - memory == 2 * x.size * 8  # the value and the residual; x is shared
    y.sum().backward()
    del y
    assert _core.entries_in_use() == entries
    x.zero_grad()
    assert _core.pool_info()["in_use"] == memory
    f.defvjp(lambda x: (x * 1.0, None), lambda r, g: (g,))
    big = None
    assert seen() is None


def test_a_call_that_refers_to_its_result_is_garbage():
    class Model:
        def __call__(self, x):
            f = tp.custom_vjp(lambda x: x * 1.0)
            f.defvjp(lambda x: (x * 1.0, self), lambda r, g: (g,))
            self.last = f(x)

    model = Model()
    model(tp.tensor(1.0, requires_grad=True))
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_threads_share_a_rule():
    f = product("computed")
    x, y = float64(0.3, -1.2), float64(0.7, 0.4)
    want = tp.grad(scalar(f))(x, y)
    trunk = x.requires_grad_()

    def work(k):
        for _ in range(50):
            assert_same(tp.grad(scalar(f))(trunk.detach(), y), want)
            scalar(f)(trunk, y).backward()

    together(work, 4)
    close(trunk.grad, 200 * want.numpy(), 1e-12)


# ---- plans


@pytest.mark.parametrize("residuals", RESIDUALS)
@pytest.mark.parametrize("order", (1, 2))
def test_a_plan_has_the_bits_of_eager(residuals, order):
    first = tp.grad(scalar(product(residuals)), (0, 1))
    g = first if order == 1 else tp.grad(lambda x, y: sum((t * t).sum() for t in first(x, y)), (0, 1))
    plan = tp.freeze(g, float64(0.1, 0.2), float64(0.3, 0.4))
    for seed in range(3):
        x, y = (tp.tensor(a) for a in np.random.default_rng(seed).normal(size=(2, 2)))
        for a, b in zip(plan(x, y), g(x, y), strict=True):
            assert_same(a.detach(), b.detach())


def test_a_function_that_trains():
    f = tripled()
    got = []
    for wrap in (lambda g: g, tp.function):
        w = tp.tensor([1.0, -2.0], requires_grad=True)

        @wrap
        def step(x, w=w):
            loss = (f(w * x) ** 2).sum()
            loss.backward()
            with tp.no_grad():
                w.assign_sub(0.01 * w.grad)
                w.zero_grad()
            return loss

        for k in range(4):
            step(tp.tensor([1.0, float(k)]))
        got.append(w.detach())
    assert_same(*got)
    assert len(step.plans) == 1


def test_regions_name_the_notes_of_a_call():
    f = product("arguments")
    x, y = float64(0.1, 0.2), float64(0.3, 0.4)
    with tp.Tape() as tape:
        z = x * 2.0
        a, b = f(z, y)
        c = a + b
    program = tape.program
    (region,) = program.regions
    assert (region.start, region.stop, region.rule, region.forward) == (1, 4, f, False)
    assert region.arguments[1] == [[program.number_of(z)], [program.number_of(y)]]
    assert region.results[1] == [[program.number_of(a)], [program.number_of(b)]]
    assert len(program) == 5 and c.shape == (2,)
    with tp.Tape(watch=[x]) as tape:
        f(x, y)
    assert tape.program.regions[0].forward


# ---- forward mode's rule, transposed


def test_a_rule_of_forward_mode_serves_both():
    @tp.custom_vjp
    def f(x, y):
        return x * tp.sin(y), x + y

    @f.defjvp
    def rule(primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        zero = tp.zeros_like(x)
        dx, dy = zero if dx is None else dx, zero if dy is None else dy
        return f.fun(x, y), (dx * tp.sin(y) + dy * x * tp.cos(y), dx + dy)

    x, y = float64(0.3, -1.2), float64(0.7, 0.4)
    for argnums in (0, 1, (0, 1)):
        got, want = (tp.grad(scalar(g), argnums)(x, y) for g in (f, plain))
        for a, b in zip(flatten(got)[0], flatten(want)[0], strict=True):
            close(a, b, 1e-12)
    got, want = (tp.grad(lambda x, g=g: (tp.grad(scalar(g))(x, y) * x).sum())(x) for g in (f, plain))
    close(got, want, 1e-12)


# ---- in transforms


@pytest.mark.parametrize("residuals", RESIDUALS)
def test_forward_mode_transposes_bwd(residuals):
    x, y, dx, dy = float64(0.3, -1.2), float64(0.7, 0.4), float64(1.5, -0.5), float64(0.2, 2.0)
    f = product(residuals)
    got, want = (tp.jvp(scalar(g), (x, y), (dx, dy)) for g in (f, plain))
    for a, b in zip(got, want, strict=True):
        close(a, b, 1e-12)
    close(
        tp.jvp(lambda x: scalar(f)(x, y), (x,), (dx,))[1], tp.jvp(lambda x: scalar(plain)(x, y), (x,), (dx,))[1], 1e-12
    )
    for make in (tp.hessian, lambda f: tp.jacobian(tp.grad(f)), lambda f: lambda x, y: tp.hvp(f, (x, y), (dx, dy))):
        for a, b in zip(flatten(make(scalar(f))(x, y))[0], flatten(make(scalar(plain))(x, y))[0], strict=True):
            close(a, b, 1e-11)
    close(tp.jacobian(f)(x, y)[0], tp.jacobian(plain)(x, y)[0], 1e-12)


def test_forward_mode_uses_its_own_rule():
    f = tripled()
    f.defjvp(lambda primals, tangents: (primals[0] * 1.0, 7.0 * tangents[0]))
    assert tp.jvp(f, (2.0,), (1.0,))[1].item() == 7.0
    assert tp.grad(f)(2.0).item() == 3.0
    assert tp.jvp(lambda x: f(x) * x, (2.0,), (1.0,))[1].item() == 16.0
    assert tp.grad(lambda x: tp.jvp(f, (x,), (x,))[1])(2.0).item() == 7.0


def test_a_jacobian_of_many_rows():
    f = tp.custom_vjp(lambda x: tp.tanh(x))
    f.defvjp(lambda x: (tp.tanh(x), x), lambda x, g: (2.0 * g * x,))
    x = tp.tensor(np.linspace(-1.0, 1.0, 20))
    want = np.diag(2.0 * x.numpy())
    close(tp.jacobian(f)(x), want)
    close(tp.jacobian(lambda x: tp.concat([f(x), f(x)]))(x), np.vstack([want, want]))
    close(tp.jacobian(lambda x: f(x)[:15])(x), want[:15])


def test_gradients_of_single_values_over_a_batch():
    f = tripled()
    x = tp.tensor([1.0, 2.0, 3.0])
    assert tp.vmap(tp.grad(lambda x: f(x) * x))(x).tolist() == [4.0, 8.0, 12.0]


def test_the_rule_is_kept_under_vmap_and_through_plans():
    f = tripled()
    x = tp.tensor([1.0, 2.0, 3.0])
    want = [6.0, 12.0, 18.0]
    assert tp.grad(lambda x: (tp.vmap(f)(x) ** 2).sum())(x).tolist() == want
    assert tp.jvp(lambda x: tp.vmap(f)(x) ** 2, (x,), (tp.ones(3),))[1].tolist() == want
    assert tp.vmap(tp.grad(lambda x: f(x) ** 2))(x).tolist() == want
    plan = tp.freeze(lambda x: f(x) ** 2, x)
    assert tp.grad(lambda x: plan(x).sum())(x).tolist() == want
    g = tp.function(lambda x: f(x) ** 2)
    g(x)
    assert tp.grad(lambda x: g(x).sum())(x).tolist() == want
    assert tp.grad(lambda x: tp.vmap(lambda row: tp.vmap(f)(row) ** 2)(x[None]).sum())(x).tolist() == want
    assert tp.freeze(tp.grad(lambda x: (tp.vmap(f)(x) ** 2).sum()), x)(x).tolist() == want


def test_a_reversal_of_gradients():
    """What a function returns as it got it has its rule, too, wherever the function was recorded."""
    f = tp.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda r, g: (-g,))
    x = tp.tensor([1.0, 2.0])
    plan = tp.freeze(lambda x: f(x) * x, x)
    for g in (lambda x: f(x) * x, lambda x: tp.vmap(f)(x) * x, tp.vmap(lambda x: f(x) * x), plan):
        assert tp.grad(lambda x, g=g: g(x).sum())(x).tolist() == [0.0, 0.0]
    assert tp.sparse_jacobian(f)(x).toarray().tolist() == [[-1.0, 0.0], [0.0, -1.0]]


@pytest.mark.parametrize("residuals", RESIDUALS)
def test_vmap_of_every_kind_of_argument(residuals):
    """Batched and shared arguments, several results: against the plain function, to order two."""
    x, y = tp.tensor(np.random.default_rng(0).normal(size=(4, 2))), float64(0.7, 0.4)

    def loss(f):
        return lambda x, y: sum((t * t).sum() for t in tp.vmap(f, in_axes=(0, None))(x, y))

    for order in (1, 2):
        got, want = [], []
        for found, f in ((got, product(residuals)), (want, plain)):
            g = tp.grad(loss(f), (0, 1))
            if order == 2:
                g = tp.grad(lambda x, y, g=g: sum((t * t).sum() for t in g(x, y)), (0, 1))
            found += g(x, y)
        for a, b in zip(got, want, strict=True):
            close(a, b, 1e-11, 1e-12)


def test_vmap_of_constants_integers_and_none():
    @tp.custom_vjp
    def f(tree, index, power):
        return {"y": tree["x"] ** power * tree["c"], "i": index + 1}

    def fwd(tree, index, power):
        return f.fun(tree, index, power), (tree["x"], tree["c"], index, power, "name")

    def bwd(residuals, g):
        _, c, index, _, name = residuals
        assert name == "name" and g["i"] is None
        return {"x": 10.0 * g["y"] * c * index.astype("float32"), "c": None}, None, None

    f.defvjp(fwd, bwd)
    x, index, c = tp.tensor([1.0, 2.0]), tp.tensor([3, 4]), tp.tensor(2.0)
    mapped = tp.vmap(lambda x, i: f({"x": x, "c": c}, i, 2))
    assert mapped(x, index)["i"].tolist() == [4, 5]
    assert tp.grad(lambda x: mapped(x, index)["y"].sum())(x).tolist() == [60.0, 80.0]


BAD_TANGENTS = {
    "no pair": (lambda x: x, "must return \\(value, tangent\\), got a Tensor"),
    "too many": (lambda x: (x, (x, x)), "returned 2 tangents for 1 results"),
    "shape": (lambda x: (x, x.sum()), "returned a tangent of shape \\(\\) for a result of shape \\(2,\\)"),
}


@pytest.mark.parametrize("name", BAD_TANGENTS)
def test_bad_rules_of_forward_mode(name):
    rule, text = BAD_TANGENTS[name]
    f = tp.custom_vjp(lambda x: x * 1.0)
    f.defjvp(lambda primals, tangents: rule(primals[0]))
    with pytest.raises(tp.TapeflowError, match=text):
        tp.jvp(f, (tp.ones(2),), (tp.ones(2),))


# ---- what a rule may not do

W = tp.tensor([1.0, 2.0], requires_grad=True)

BAD = {
    "no rule": (None, None, tp.TapeError, "has no rule yet. Call named.defvjp"),
    "no pair": (lambda x, t: x, None, tp.TapeError, r"must return \(value, residuals\), got a Tensor"),
    "three": (lambda x, t: (x, x, x), None, tp.TapeError, "got a tuple of 3"),
    "captures": (lambda x, t: (x * W, None), None, tp.TapeError, "the value of named depends on a captured tensor"),
    "keeps captured": (lambda x, t: (x * 1.0, W * 2.0), None, tp.TapeError, "the residuals of named depends on a capt"),
    "array": (lambda x, t: (x.numpy(), None), None, tp.TapeError, "returned a ndarray. Return tensors"),
    "no tuple": (None, lambda r, g: g, tp.TapeError, "one gradient for each of the 2 arguments, got a Tensor"),
    "too few": (None, lambda r, g: (g,), tp.TapeError, "returned 1 gradients, and named was called with 2"),
    "shape": (None, lambda r, g: (g.sum(), None), tp.ShapeError, r"shape \(\) for an argument of shape \(2,\)"),
    "dtype": (
        None,
        lambda r, g: (g.astype("float64"), None),
        tp.DTypeError,
        "float64 for an argument of dtype",
    ),
    "text": (None, lambda r, g: ("g", None), tp.TapeError, "returned a str as a gradient"),
    "no tensor": (
        None,
        lambda r, g: (g, [None, 2.0, g]),
        tp.TapeError,
        "for argument 1, a list of 3; expected",
    ),
    "integer": (None, lambda r, g: (g, (tp.zeros(2), None)), tp.DTypeError, "of dtype int64. Return None there"),
    "static": (None, lambda r, g: (g, (None, "x")), tp.DTypeError, "for what is no tensor. Return None there"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rules(name):
    fwd, bwd, kind, text = BAD[name]

    @tp.custom_vjp
    def named(x, t):
        return x * 1.0

    if name != "no rule":
        named.defvjp(fwd or (lambda x, t: (x * 1.0, None)), bwd or (lambda r, g: (g, None)))
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(kind, match=text):
        named(x, (tp.tensor([1, 2]), "static")).sum().backward()
    assert x.grad is None


def test_what_is_no_function():
    with pytest.raises(tp.TapeError, match="expected a function, got int"):
        tp.custom_vjp(3)
    f = tripled()
    with pytest.raises(tp.TapeError, match="the rule of <lambda> must be a function, got NoneType"):
        f.defvjp(None, None)
    with pytest.raises(tp.TapeError, match="must be a function, got str"):
        f.defjvp("rule")
