"""Sequences: W5, an LSTM through time; W6, a transformer block."""

import math

import numpy as np

from ..harness import Workload

# ---- W5: gates i, f, g, o side by side; the squared error of the last hidden state ----


def lstm_cell(ns, w, u, b, x, h, c, hidden):
    """One step: the new hidden state and cell."""
    z = x @ w + h @ u + b
    i, f, o = (ns.sigmoid(z[:, at * hidden : (at + 1) * hidden]) for at in (0, 1, 3))
    c = f * c + i * ns.tanh(z[:, 2 * hidden : 3 * hidden])
    return o * ns.tanh(c), c


def lstm(ns, steps, batch, inputs, hidden):
    def f(w, u, b, x, y, h, c):
        for t in range(steps):
            h, c = lstm_cell(ns, w, u, b, x[t], h, c, hidden)
        return ns.mse(h, y)

    return f


def lstm_scan(ns, steps, batch, inputs, hidden):
    """The loop as JAX wants it."""

    def f(w, u, b, x, y, h, c):
        (h, _), _ = ns.scan(lambda state, x: (lstm_cell(ns, w, u, b, x, *state, hidden), None), (h, c), x)
        return ns.mse(h, y)

    return f


def lstm_fused(ns, steps, batch, inputs, hidden):
    """All steps in the one function that a library has for them; it wants a second bias."""

    def f(w, u, b, x, y, h, c):
        return ns.mse(ns.lstm(x, h, c, w, u, b, 0 * b), y)

    return f


def lstm_reference(w, u, b, x, y, h, c, steps, batch, inputs, hidden):
    """Forward, and backpropagation through time."""

    def sigmoid(z):
        return 0.5 + 0.5 * np.tanh(0.5 * z)

    kept = []
    for t in range(steps):
        z = (x[t] @ w + h @ u + b).reshape(batch, 4, hidden)
        i, f, o, g = sigmoid(z[:, 0]), sigmoid(z[:, 1]), sigmoid(z[:, 3]), np.tanh(z[:, 2])
        kept.append((h, c, i, f, g, o))
        c = f * c + i * g
        h = o * np.tanh(c)
    value = np.mean((h - y) ** 2)
    dw, du, db = np.zeros_like(w), np.zeros_like(u), np.zeros_like(b)
    dh, dc = 2 * (h - y) / y.size, np.zeros_like(c)
    for t in reversed(range(steps)):
        h, c, i, f, g, o = kept[t]
        squashed = np.tanh(f * c + i * g)
        dc = dc + dh * o * (1 - squashed * squashed)
        dz = np.stack([
            dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), dh * squashed * o * (1 - o)
        ], axis=1).reshape(batch, 4 * hidden)  # fmt: skip
        dw += x[t].T @ dz
        du += h.T @ dz
        db += dz.sum(axis=0)
        dh, dc = dz @ u.T, dc * f
    return [value, dw, du, db]


def make_lstm(rng, steps, batch, inputs, hidden):
    w = rng.normal(size=(inputs, 4 * hidden)) / math.sqrt(inputs)
    u = rng.normal(size=(hidden, 4 * hidden)) / math.sqrt(hidden)
    b = rng.normal(size=4 * hidden) / 10
    data = [rng.normal(size=(steps, batch, inputs)), rng.uniform(-1, 1, (batch, hidden))]
    return [w, u, b, *data, np.zeros((batch, hidden)), np.zeros((batch, hidden))]


W5 = Workload(
    "W5", "LSTM, 50 steps, batch 16, 32 -> 64, squared error of the last hidden state", make_lstm, lstm_reference, lstm,
    3, size={"steps": 50, "batch": 16, "inputs": 32, "hidden": 64},
    small={"steps": 4, "batch": 3, "inputs": 5, "hidden": 2}, special={"jax": lstm_scan, "torch-fused": lstm_fused},
    peers=(
        "tapeflow", "tapeflow-frozen", "tapeflow-frozen-fast", "torch", "torch-fused", "mygrad", "autograd",
        "tensorflow", "jax-eager", "jax", "torch-compiled", "tensorflow-xla",
    ), ahead=1.0, aim=2e-3, aim_frozen=0.8e-3,
)  # fmt: skip


# ---- W6: x + attention(norm(x)), and that + mlp(norm(that)), against a target ----


def attention(ns, q, k, v, mask):
    """softmax(q k' / sqrt(width) + mask) v, for each sequence and head."""
    scores = q @ ns.permute(k, (0, 1, 3, 2)) * (1 / math.sqrt(q.shape[-1])) + mask
    return ns.softmax(scores) @ v


def fused_attention(ns, q, k, v, mask):
    """The same in the one function that a library has for it."""
    return ns.causal_attention(q, k, v)


def transformer(attend):
    def formula(ns, batch, steps, width, heads):
        split, joined = (batch, steps, heads, width // heads), (batch, steps, width)

        def f(x, n1, m1, wq, wk, wv, wo, bo, n2, m2, w1, b1, w2, b2, y, mask):
            a = ns.layer_norm(x, n1, m1)
            q, k, v = (ns.permute(ns.reshape(a @ w, split), (0, 2, 1, 3)) for w in (wq, wk, wv))
            x = x + ns.reshape(ns.permute(attend(ns, q, k, v, mask), (0, 2, 1, 3)), joined) @ wo + bo
            a = ns.gelu_tanh(ns.layer_norm(x, n2, m2) @ w1 + b1)
            return ns.mse(x + a @ w2 + b2, y)

        return f

    return formula


EPSILON = 1e-5  # of the normalization, the same for all
CUBIC, OUTER = 0.044715, math.sqrt(2 / math.pi)


def norm_forward(x, weight, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + EPSILON)
    return centred * scale * weight + bias, (centred * scale, scale)


def norm_backward(g, weight, kept):
    """The gradients to x, weight and bias."""
    unit, scale = kept
    gu = g * weight
    gx = scale * (gu - gu.mean(axis=-1, keepdims=True) - unit * np.mean(gu * unit, axis=-1, keepdims=True))
    return gx, (g * unit).sum(axis=(0, 1)), g.sum(axis=(0, 1))


def outer_sum(a, b):
    """The gradient of a @ w to w from b, that of its result."""
    return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])


def transformer_reference(x, n1, m1, wq, wk, wv, wo, bo, n2, m2, w1, b1, w2, b2, y, mask, batch, steps, width, heads):
    """Forward, and backpropagation by hand."""

    def split(a):
        return a.reshape(batch, steps, heads, -1).transpose(0, 2, 1, 3)

    def join(a):
        return a.transpose(0, 2, 1, 3).reshape(batch, steps, width)

    size = 1 / math.sqrt(width // heads)
    a, kept1 = norm_forward(x, n1, m1)
    q, k, v = split(a @ wq), split(a @ wk), split(a @ wv)
    p = q @ k.transpose(0, 1, 3, 2) * size + mask
    p = np.exp(p - p.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    mixed = join(p @ v)
    z = x + mixed @ wo + bo
    c, kept2 = norm_forward(z, n2, m2)
    pre = c @ w1 + b1
    bent = np.tanh(OUTER * (pre + CUBIC * pre**3))
    act = 0.5 * pre * (1 + bent)
    out = z + act @ w2 + b2

    g = 2 * (out - y) / y.size
    slope = 0.5 * (1 + bent) + 0.5 * pre * (1 - bent * bent) * OUTER * (1 + 3 * CUBIC * pre * pre)
    g_pre = (g @ w2.T) * slope
    g_norm, dn2, dm2 = norm_backward(g_pre @ w1.T, n2, kept2)
    gz = g + g_norm
    g_mixed = split(gz @ wo.T)
    gp = g_mixed @ v.transpose(0, 1, 3, 2)
    gs = p * (gp - np.sum(gp * p, axis=-1, keepdims=True)) * size
    gq, gk, gv = join(gs @ k), join(gs.transpose(0, 1, 3, 2) @ q), join(p.transpose(0, 1, 3, 2) @ g_mixed)
    gx, dn1, dm1 = norm_backward(gq @ wq.T + gk @ wk.T + gv @ wv.T, n1, kept1)
    return [
        np.mean((out - y) ** 2), gz + gx, dn1, dm1, outer_sum(a, gq), outer_sum(a, gk), outer_sum(a, gv),
        outer_sum(mixed, gz), gz.sum(axis=(0, 1)), dn2, dm2, outer_sum(c, g_pre), g_pre.sum(axis=(0, 1)),
        outer_sum(act, g), g.sum(axis=(0, 1)),
    ]  # fmt: skip


def make_transformer(rng, batch, steps, width, heads):
    def dense(n, m):
        return rng.normal(size=(n, m)) / math.sqrt(n)

    def vector(n, centre=0.0):
        return centre + rng.normal(size=n) / 10

    x, y = rng.normal(size=(2, batch, steps, width))
    first = [vector(width, 1), vector(width), *(dense(width, width) for _ in range(4)), vector(width)]
    second = [vector(width, 1), vector(width), dense(width, 4 * width), vector(4 * width), dense(4 * width, width)]
    mask = np.triu(np.full((steps, steps), -np.inf), 1)
    return [x, *first, *second, vector(width), y, mask]


W6 = Workload(
    "W6", "transformer block, 8 sequences of 128, width 256, 8 heads, causal", make_transformer, transformer_reference,
    transformer(attention), 14, size={"batch": 8, "steps": 128, "width": 256, "heads": 8},
    small={"batch": 2, "steps": 3, "width": 6, "heads": 2},
    special=dict.fromkeys(("torch", "torch-compiled"), transformer(fused_attention)),
    peers=("tapeflow", "tapeflow-frozen", "torch", "tensorflow", "jax-eager", "jax", "torch-compiled",
           "tensorflow-xla"),
    ratios=[("torch eager / frozen", "torch", "tapeflow-frozen", 1.0, True)], aim=30e-3, aim_frozen=20e-3,
)  # fmt: skip
