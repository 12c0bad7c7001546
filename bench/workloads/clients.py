"""As clients call: W16, a plan over a batch of starting points; W17, a plan from a sampler; W18, a dense Jacobian.

Contenders here are ways to one result, so that each has a step of its own. The goals are ratios of two of them.
"""

from typing import Any

import numpy as np

from ..harness import Workload
from ..peers import Peer, Step
from .dense import W9, log_posterior
from .scalar import lorenz, lorenz_reference, lorenz_scan, make_lorenz

# ---- W16: W10 from many points: the last x and its gradient, point by point ----
#
# The system is chaotic: among so many points there are some from which a rounding error grows by a factor of 10^7 (what
# NumPy in float64 makes of 2,000 of them is 2e-10 off what it makes in extended precision). Hence the tolerance.

ALL_SIX = tuple(range(6))
OVER_POINTS = (0, 0, 0, None, None, None)


def make_points(rng, points, steps):
    """Around the point of W10; the parameters are the same for all."""
    *start, s, r, b = make_lorenz(rng, steps)
    return [*(v + 0.1 * rng.normal(size=points) for v in start), s, r, b]


def points_reference(*arrays, points, steps):
    return lorenz_reference(*arrays, steps)


def _lorenz_plan(arrays: list, steps: int) -> Any:
    import tapeflow as tp

    single = [tp.tensor(np.ravel(a)[0]) for a in arrays]
    return tp.freeze(tp.value_and_grad(lorenz(None, steps), argnums=ALL_SIX), *single)


def mapped_plan(peer: Peer, arrays: list, size: dict) -> Step:
    """vmap of the plan: record for one, replay for all."""
    import tapeflow as tp

    mapped = tp.vmap(_lorenz_plan(arrays, size["steps"]), in_axes=OVER_POINTS)
    xs = [tp.tensor(a) for a in arrays]

    def step():
        y, gradients = mapped(*xs)
        return [y, *gradients]

    return step


def replays(peer: Peer, arrays: list, size: dict) -> Step:
    """The plan again and again, bound to each point and to where its results go."""
    plan, n = _lorenz_plan(arrays, size["steps"]), size["points"]
    points, parameters = arrays[:3], arrays[3:]
    out = [np.empty(n) for _ in range(7)]

    def bind(i):
        y, *gradients = (a[i, ...] for a in out)
        return plan.bind(*(a[i, ...] for a in points), *parameters, out=(y, tuple(gradients)))

    bound = [bind(i) for i in range(n)]

    def step():
        for replay in bound:
            replay()
        return out

    return step


def mapped_jax(peer: Peer, arrays: list, size: dict) -> Step:
    import jax

    each = jax.value_and_grad(lorenz_scan(peer.ns, size["steps"]), ALL_SIX)
    mapped, xs = jax.jit(jax.vmap(each, in_axes=OVER_POINTS)), [jax.numpy.asarray(a) for a in arrays]

    def step():
        y, gradients = mapped(*xs)
        return jax.block_until_ready([y, *gradients])

    return step


W16 = Workload(
    "W16", "W10 from 10,000 points, value and gradient of each, float64", make_points, points_reference, lorenz, 6,
    size={"points": 10_000, "steps": 500}, small={"points": 5, "steps": 4}, dtype="float64", rtol=1e-7,
    peers=("tapeflow-vmap", "tapeflow-replays", "jax-vmap"),
    own={"tapeflow-vmap": ("tapeflow-frozen", mapped_plan), "tapeflow-replays": ("tapeflow-frozen", replays),
         "jax-vmap": ("jax", mapped_jax)},
    base="tapeflow-vmap", vs_torch=None,
    ratios=(("replays / vmap of the plan", "tapeflow-replays", "tapeflow-vmap", 20, True),
            ("jax.vmap, jit / vmap of the plan", "jax-vmap", "tapeflow-vmap", 1, True)),
)  # fmt: skip


# ---- W17: W9 as a sampler calls it: an array goes in, a float and an array come out ----


def _posterior(peer: Peer, arrays: list, size: dict) -> tuple[Any, Any]:
    import tapeflow as tp

    w, x, y = arrays
    f, x, y = log_posterior(peer.ns, **size), tp.tensor(x), tp.tensor(y)
    return tp.value_and_grad(lambda w: f(w, x, y)), w


def called(peer: Peer, arrays: list, size: dict) -> Step:
    import tapeflow as tp

    f, q = _posterior(peer, arrays, size)
    plan = tp.function(f)

    def step():
        value, gradient = plan(q)
        return [value.item(), gradient.numpy()]

    return step


def replayed(peer: Peer, arrays: list, size: dict) -> Step:
    """The plan alone, bound to the memory that it reads and writes."""
    import tapeflow as tp

    f, q = _posterior(peer, arrays, size)
    out = (np.empty(()), np.empty_like(q))
    replay = tp.freeze(f, q).bind(q, out=out)

    def step():
        replay()
        return out

    return step


def called_jax(peer: Peer, arrays: list, size: dict) -> Step:
    import jax

    q, x, y = arrays[0], *map(jax.numpy.asarray, arrays[1:])
    f = log_posterior(peer.ns, **size)
    compiled = jax.jit(jax.value_and_grad(lambda w: f(w, x, y)))

    def step():
        value, gradient = compiled(q)
        return [float(value), np.asarray(gradient)]

    return step


def called_torch(peer: Peer, arrays: list, size: dict) -> Step:
    import torch

    q, x, y = arrays[0], *map(torch.tensor, arrays[1:])
    f = log_posterior(peer.ns, **size)

    def step():
        w = torch.tensor(q, requires_grad=True)
        value = f(w, x, y)
        value.backward()
        return [value.item(), w.grad.numpy()]

    return step


W17 = Workload(
    "W17", "W9 from a sampler: NumPy in, float and NumPy out, float64", W9.make, W9.reference, log_posterior, 1,
    size=W9.size, small=W9.small, dtype="float64",
    peers=("tapeflow-called", "tapeflow-replayed", "jax-called", "torch-called"),
    own={"tapeflow-called": ("tapeflow-frozen", called), "tapeflow-replayed": ("tapeflow-frozen", replayed),
         "jax-called": ("jax", called_jax), "torch-called": ("torch", called_torch)},
    base="tapeflow-called", vs_torch=None,
    ratios=(("called / the replay itself", "tapeflow-called", "tapeflow-replayed", 1.5, False),),
)  # fmt: skip


# ---- W18: every output of two layers by every input ----


def layers(ns, n):
    tanh = ns.tanh
    return lambda x, a, b: b @ tanh(a @ x)


def make_layers(rng, n):
    return [rng.normal(size=n), *(rng.normal(size=(n, n)) / np.sqrt(n) for _ in range(2))]


def layers_reference(x, a, b, n):
    return [b @ ((1 - np.tanh(a @ x) ** 2)[:, None] * a)]


def _two_layers(peer: Peer, arrays: list, size: dict) -> tuple[Any, Any]:
    import tapeflow as tp

    x, a, b = map(tp.tensor, arrays)
    f = layers(peer.ns, **size)
    return lambda x: f(x, a, b), x


def at_once(peer: Peer, arrays: list, size: dict) -> Step:
    import tapeflow as tp

    f, x = _two_layers(peer, arrays, size)
    jacobian = tp.jacobian(f)
    return lambda: [jacobian(x)]


def at_once_frozen(peer: Peer, arrays: list, size: dict) -> Step:
    import tapeflow as tp

    f, x = _two_layers(peer, arrays, size)
    plan = tp.freeze(tp.jacobian(f), x)
    return lambda: [plan(x)]


def row_by_row(peer: Peer, arrays: list, size: dict) -> Step:
    """One run, and a backward pass for each output."""
    import tapeflow as tp

    f, x = _two_layers(peer, arrays, size)
    seeds = [tp.tensor(e) for e in np.eye(size["n"])]
    rows = np.empty((size["n"], size["n"]))

    def step():
        _, pullback = tp.vjp(f, x)
        for i, seed in enumerate(seeds):
            rows[i] = pullback(seed)[0]
        return [rows]

    return step


def jacrev(peer: Peer, arrays: list, size: dict) -> Step:
    """jax.jit(jax.jacrev), torch.func.jacrev."""
    f = layers(peer.ns, **size)
    if peer.name == "jax":
        import jax

        x, a, b = map(jax.numpy.asarray, arrays)
        jacobian = jax.jit(jax.jacrev(lambda x: f(x, a, b)))
        return lambda: [jax.block_until_ready(jacobian(x))]
    import torch

    x, a, b = map(torch.tensor, arrays)
    reverse = torch.func.jacrev(lambda x: f(x, a, b))
    return lambda: [reverse(x)]


W18 = Workload(
    "W18", "Jacobian of two layers, 100 outputs by 100 inputs, float64", make_layers, layers_reference, layers, 1,
    size={"n": 100}, small={"n": 6}, dtype="float64",
    peers=("tapeflow", "tapeflow-frozen", "tapeflow-rows", "torch", "jax"),
    own={"tapeflow": ("tapeflow", at_once), "tapeflow-frozen": ("tapeflow-frozen", at_once_frozen),
         "tapeflow-rows": ("tapeflow", row_by_row), "torch": ("torch", jacrev), "jax": ("jax", jacrev)},
    ratios=(("100 backward passes / Jacobian", "tapeflow-rows", "tapeflow", 5, True),),
)  # fmt: skip
