"""Parts of learning: W3 and W3s, a step of gradient descent; W14, a softmax cross-entropy; W15, an embedding."""

import numpy as np

from ..harness import ALL, Workload

# ---- W3, W3s: the network, loss and update of the weights; data x, y last ----


def classifier(ns, widths, batch):
    relu, cross_entropy = ns.relu, ns.cross_entropy

    def f(w1, b1, w2, b2, w3, b3, x, labels):
        x = relu(x @ w1 + b1)
        x = relu(x @ w2 + b2)
        return cross_entropy(x @ w3 + b3, labels)

    return f


def regressor(ns, widths, batch):
    tanh, mse = ns.tanh, ns.mse

    def f(w1, b1, w2, b2, w3, b3, x, y):
        x = tanh(x @ w1 + b1)
        x = tanh(x @ w2 + b2)
        return mse(x @ w3 + b3, y)

    return f


def regressor_columns(ns, widths, batch):
    """CasADi has no broadcasting: a bias is a column, repeated by an outer product with ones."""
    ones = np.ones((1, batch))

    def f(w1, b1, w2, b2, w3, b3, x, y):
        h = ns.tanh(w1.T @ x.T + b1 @ ones)
        h = ns.tanh(w2.T @ h + b2 @ ones)
        return ns.sum((w3.T @ h + b3 @ ones - y.T) ** 2) / y.size

    return f


def softmax_loss(z, labels):
    """Mean cross-entropy and its gradient to z."""
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.mean(np.log(p[rows, labels]))
    p[rows, labels] -= 1
    return loss, p / len(labels)


def squared_loss(z, y):
    return np.mean((z - y) ** 2), 2 * (z - y) / y.size


def network_reference(act, derivative, loss):
    """Backpropagation by hand; derivative is a function of the activation's result."""

    def reference(*arrays, widths, batch):
        *params, x, y = arrays
        weights, biases = params[::2], params[1::2]
        inputs = [x]
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(act(inputs[-1] @ w + b))
        value, g = loss(inputs[-1] @ weights[-1] + biases[-1], y)
        grads = []
        for w, h in zip(weights[::-1], inputs[::-1], strict=True):
            grads += [g.sum(axis=0), h.T @ g]
            g = (g @ w.T) * derivative(h)
        return [value, *grads[::-1]]

    return reference


def make_network(labels):
    def make(rng, widths, batch):
        params = []
        for n, m in zip(widths[:-1], widths[1:], strict=True):
            params += [rng.normal(size=(n, m)) / np.sqrt(n), rng.normal(size=m) / 10]
        x = rng.uniform(-1, 1, size=(batch, widths[0]))
        return [*params, x, rng.integers(0, widths[-1], batch) if labels else rng.normal(size=(batch, widths[-1]))]

    return make


W3 = Workload(
    "W3", "MLP step, batch 64, 784-256-128-10, relu, cross-entropy, SGD", make_network(True),
    network_reference(lambda x: np.maximum(x, 0), lambda h: h > 0, softmax_loss), classifier, 6,
    size={"widths": (784, 256, 128, 10), "batch": 64}, small={"widths": (20, 8, 7, 4), "batch": 5},
    lr=0.05, peers=ALL, ahead=1.0, aim=0.40e-3, aim_frozen=0.25e-3,
)  # fmt: skip
W3S = Workload(
    "W3s", "tiny MLP step, batch 8, 4-16-16-1, tanh, mse, SGD", make_network(False),
    network_reference(np.tanh, lambda h: 1 - h * h, squared_loss), regressor, 6,
    size={"widths": (4, 16, 16, 1), "batch": 8}, small={"widths": (4, 5, 3, 1), "batch": 8},
    lr=0.05, peers=(*ALL[:-2], "casadi", *ALL[-2:]), special={"casadi": regressor_columns}, vs_torch=4,
    frozen=2, ahead=1.0, aim=15e-6, aim_frozen=4e-6,
)  # fmt: skip


# ---- W14: softmax cross-entropy ----


def cross_entropy(ns, rows, classes):
    return ns.cross_entropy


def cross_entropy_reference(z, labels, rows, classes):
    return list(softmax_loss(z, labels))


def make_logits(rng, rows, classes):
    return [rng.normal(size=(rows, classes)), rng.integers(0, classes, rows)]


W14 = Workload(
    "W14", "softmax cross-entropy over 4096 x 1024 logits", make_logits, cross_entropy_reference, cross_entropy, 1,
    size={"rows": 4096, "classes": 1024}, small={"rows": 20, "classes": 9}, peers=ALL, ahead=1.0, aim=2.2e-3,
    aim_frozen=1.5e-3,
)  # fmt: skip


# ---- W15: rows of a table, with repeats; the gradient is dense ----


def embedding(ns, rows, width, ids, below):
    look_up, total = ns.rows, ns.sum

    def f(table, ids):
        e = look_up(table, ids)
        return total(e * e)

    return f


def embedding_reference(table, index, rows, width, ids, below):
    counts = np.bincount(index, minlength=rows)[:, None]
    return [np.sum(table[index] ** 2), 2 * counts * table]


def make_embedding(rng, rows, width, ids, below):
    return [rng.normal(size=(rows, width)), rng.integers(0, below, ids)]


W15 = Workload(
    "W15", "embedding 10000 x 64, 4096 ids below 2000, sum of squares", make_embedding, embedding_reference, embedding,
    1, size={"rows": 10_000, "width": 64, "ids": 4096, "below": 2000},
    small={"rows": 50, "width": 4, "ids": 64, "below": 20}, peers=ALL, ahead=1.0, aim=0.2e-3, aim_frozen=0.1e-3,
)  # fmt: skip
