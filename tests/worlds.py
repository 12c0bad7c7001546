"""Programs with a world around them: captured tensors, their .grad, generators; and looks at all of it.

Each makes a function and its arguments anew, with state of its own.
"""

import numpy as np

import tapeflow as tp
from tapeflow.transforms import flatten

X = tp.random.Generator(7).normal(shape=(8, 4))
LABELS = tp.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def adam_and_dropout():
    rng = tp.random.Generator(3)
    first, last = (tp.nn.Linear(*sizes, generator=tp.random.Generator(k)) for k, sizes in enumerate([(4, 5), (5, 3)]))
    model = tp.nn.Sequential(first, tp.nn.Tanh(), tp.nn.Dropout(0.5, generator=rng), last)
    optimizer = tp.optim.Adam(model.parameters(), lr=0.01)

    def step(x, labels):
        loss = tp.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, (X, LABELS)


def accumulated_grads():
    w, b = tp.tensor([1.0, -2.0, 3.0, 0.5], requires_grad=True), tp.tensor(0.5, requires_grad=True)

    def f(x):
        tp.sum(tp.tanh(x @ w + b)).backward()
        return tp.sum(x)

    return f, (X,)


def halved_grads():
    w = tp.ones(4, requires_grad=True)

    def f(x):
        (x @ w).sum().backward()
        w.grad *= 0.5
        return x * w.grad

    return f, (X,)


def asks_for_a_grad():
    w = tp.ones(4, requires_grad=True)

    def f(x):
        if w.grad is None:
            return x * 3.0
        total = w.grad * 2.0
        w.grad = None
        return x * total

    return f, (X,)


def draws_of_two_generators():
    rng = tp.random.Generator(11)
    total = tp.zeros(4)

    def f(x):
        noise = rng.normal(shape=(4,)) + tp.random.uniform(shape=(4,))
        total.assign_add(noise)
        return x * noise + rng.bernoulli(0.5, (4,)), rng.integers(9, shape=(3,)), tp.random.permutation(x)

    return f, (X,)


def a_seed_inside():
    rng = tp.random.Generator(12)

    def f(x):
        before = rng.normal(shape=(4,))
        rng.state = (2**64 - 1, 5)
        tp.random.manual_seed(9)
        return x + rng.normal(shape=(4,)) * before + tp.random.normal(shape=(4,))

    return f, (X,)


def scalars():
    w, rate = tp.tensor(2.0, requires_grad=True), tp.tensor(0.1)

    def f(x, y):
        g = tp.grad(lambda w: (tp.sin(w * x) - y) ** 2)(w)
        with tp.no_grad():
            w.assign_sub(rate * g)
            rate.assign(rate * 0.9)
        return g, w * 2.0 > g

    return f, (tp.tensor(0.3), tp.tensor(0.7))


def guarded():
    count = tp.tensor(0)
    w = tp.tensor([1.0, 2.0])

    def f(x):
        count.assign_add(1)
        w.assign(w * 0.5 + x)
        return w[0] * 2 if w[1] > 0 else w[1]

    return f, (tp.tensor([0.25, 0.5]),)


WORLDS = {
    f.__name__: f
    for f in (
        adam_and_dropout,
        accumulated_grads,
        halved_grads,
        asks_for_a_grad,
        draws_of_two_generators,
        a_seed_inside,
        scalars,
        guarded,
    )
}


# ---- looking ----

# As text: another process runs it, too.
OBSERVED = """
import numpy as np
import tapeflow as tp
from tapeflow.transforms import flatten

def outside(plan):
    yield from (("state", name, t.numpy()) for name, t in plan.state.items())
    yield from (("grad", name, t.grad.numpy()) for name, t in plan.state.items() if t.grad is not None)
    yield from (("generator", name, np.array(g.state, np.uint64)) for name, g in plan.generators.items())

def observed(plan, args, runs=3):
    tp.random.manual_seed(21)
    found = []
    for _ in range(runs):
        found += [("result", "", t.numpy()) for t in flatten(plan(*args))[0]]
        found += list(outside(plan))
    return {f"{n} {kind} {name} {x.dtype}{x.shape}": x.copy() for n, (kind, name, x) in enumerate(found)}
"""
SCOPE = {}
exec(OBSERVED, SCOPE)
observed, outside = SCOPE["observed"], SCOPE["outside"]


def world(name, runs=0):
    """A plan of a program, after some runs, and its arguments."""
    f, args = WORLDS[name]()
    for _ in range(runs):
        f(*args)
    return tp.freeze(f, *args), args


def snapshot(plan, *more):
    """The bits of what is outside of a plan, and of more tensors and arrays."""
    tp_random = ("generator", "default", np.array(tp.random.default_generator.state, np.uint64))
    found = [*outside(plan), tp_random, *(("out", n, np.asarray(x)) for n, x in enumerate(more))]
    return [(kind, name, x.tobytes()) for kind, name, x in found]


def run_and_look(seed, run, plan):
    tp.random.manual_seed(seed)
    results = [np.asarray(t.numpy() if isinstance(t, tp.Tensor) else t).tobytes() for t in flatten(run())[0]]
    return results, snapshot(plan)
