"""SGD, Adam, AdamW, RMSprop.

Each `update` makes few, elementwise operations per parameter; factors that are the same for all (rates, corrections of
the bias) are made once per step and group, in float64, and cast to the dtype of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tapeflow as tp
from tapeflow.errors import DTypeError
from tapeflow.optim.optimizer import Active, Optimizer, ParamGroup, per_dtype
from tapeflow.optim.schedules import Schedule


class SGD(Optimizer):
    """Stochastic gradient descent: with the gradient g, plus weight_decay * p, of a parameter p

        velocity = momentum * velocity + (1 - dampening) * g       (at the first update: g)
        p -= lr * velocity          nesterov: p -= lr * (g + momentum * velocity)

    Parameters
    ----------
    params : iterable of Tensors, of (name, Tensor), or of dicts with "params" and options of their own
        Leaves, such as model.parameters().
    lr : float or schedule
    momentum, dampening, weight_decay : float
        What is 0 costs nothing.
    nesterov : bool
        With momentum and without dampening only. Sutskever, Martens, Dahl and Hinton, "On the importance of
        initialization and momentum in deep learning", ICML 2013.

    Raises
    ------
    NumberRangeError, DTypeError
        For options out of range or that exclude each other.

    >>> w = tp.nn.Parameter(tp.tensor([1.0]))
    >>> sgd = tp.optim.SGD([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> sgd.step()
    >>> w.tolist()
    [0.5]
    """

    slots = ("velocity",)

    def __init__(
        self,
        params: Any,
        lr: float | tp.Tensor | Schedule,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov
        )

    def check(self, options: dict[str, Any]) -> None:
        if options["nesterov"] and (options["momentum"] == 0 or options["dampening"] != 0):
            raise DTypeError(
                f"[SGD] nesterov with momentum {options['momentum']} and dampening {options['dampening']}; "
                "expected momentum above 0 and no dampening."
            )

    def used_slots(self, options: dict[str, Any]) -> Sequence[str]:
        return self.slots if options["momentum"] != 0 else ()

    def update(self, group: ParamGroup, active: Active) -> None:
        dampening = group["dampening"]
        share = 1.0 - dampening * tp.minimum(group.counts - 1.0, 1.0) if dampening != 0 else None

        def factors(dtype: Any) -> tuple[Any, ...]:
            rates = [group.rate(key, dtype) for key in ("lr", "momentum", "weight_decay")]
            return (*rates, share if share is None else share.astype(dtype))

        made = per_dtype(factors, active)
        velocities = group.slots.get("velocity")
        for i, p, g in active:
            lr, momentum, decay, shares = made[p.dtype]
            if decay is not None:
                g = g + p * decay
            if velocities is not None:
                v = velocities[i]
                v.assign(v * momentum + (g if shares is None else g * shares[i]))
                g = g + v * momentum if group["nesterov"] else v
            p.assign_sub(g * lr)


class Adam(Optimizer):
    """Adam: moving averages of the gradient g and of its square, each divided by 1 - beta**t at its t-th update, give

        p -= lr * mean / (sqrt(square) + eps)

    Parameters
    ----------
    params
        As for SGD.
    lr : float or schedule
    betas : (float, float)
        The parts of mean and square that stay at an update.
    eps : float
    weight_decay : float
        Times p is added to g.

    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; with the corrections folded into rate and
    eps, as in its section 2.

    Raises
    ------
    NumberRangeError
        For options out of range.

    >>> w = tp.nn.Parameter(tp.tensor([1.0, -2.0]))
    >>> adam = tp.optim.Adam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> adam.step()
    >>> w.tolist()
    [0.5, -1.5]
    """

    slots = ("mean", "square")
    decoupled = False  # whether weight decay goes past the averages

    def __init__(
        self,
        params: Any,
        lr: float | tp.Tensor | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def check(self, options: dict[str, Any]) -> None:
        beta1, beta2 = options["betas"]
        self._check_range({"betas[0]": beta1, "betas[1]": beta2}, "betas[0]", "betas[1]", below=1.0)
        self._check_range(options, "eps")

    def update(self, group: ParamGroup, active: Active) -> None:
        beta1, beta2 = group["betas"]
        # a parameter that never had a gradient has the count 0, of which nothing is used
        counts = group.counts if len(active) == len(group.names) else tp.maximum(group.counts, 1.0)
        root = tp.sqrt(1.0 - beta2**counts)
        rates = group["lr"] * root / (1.0 - beta1**counts)
        epsilons = group["eps"] * root

        def factors(dtype: Any) -> tuple[Any, ...]:
            decay = group.rate("weight_decay", dtype)
            if decay is not None and self.decoupled:
                decay = (group["weight_decay"] * group["lr"]).astype(dtype)
            return rates.astype(dtype), epsilons.astype(dtype), decay

        made = per_dtype(factors, active)
        means, squares = group.slots["mean"], group.slots["square"]
        for i, p, g in active:
            rate, epsilon, decay = made[p.dtype]
            if decay is not None:
                if self.decoupled:
                    p.assign_sub(p * decay)
                else:
                    g = g + p * decay
            mean, square = means[i], squares[i]
            mean.assign(tp.lerp(mean, g, 1.0 - beta1))
            square.assign(tp.lerp(square, tp.square(g), 1.0 - beta2))
            p.assign_sub(mean / (tp.sqrt(square) + epsilon[i]) * rate[i])


class AdamW(Adam):
    """Adam whose weight decay does not enter the averages: first p -= lr * weight_decay * p, then the step of Adam.

    Parameters as for Adam; weight_decay is 0.01 by default.
    Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.

    >>> w = tp.nn.Parameter(tp.tensor([1.0]))
    >>> adamw = tp.optim.AdamW([w], lr=0.5, weight_decay=0.5)
    >>> (w * w).sum().backward()
    >>> adamw.step()
    >>> round(w.item(), 6)
    0.25
    """

    decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float | tp.Tensor | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class RMSprop(Optimizer):
    """A moving average of the square of the gradient g, plus weight_decay * p, scales the step:

        square = alpha * square + (1 - alpha) * g * g
        p -= lr * g / (sqrt(square) + eps)

    Parameters
    ----------
    params, lr, weight_decay
        As for SGD.
    alpha : float
        The part of the average that stays at an update.
    eps : float
    momentum : float
        Above 0: velocity = momentum * velocity + g / (sqrt(square) + eps), and p -= lr * velocity.
    centered : bool
        Less the square of the moving average of g, within the root: an estimate of the variance.

    Tieleman and Hinton, lecture 6.5 of "Neural networks for machine learning", 2012; centered: Graves, "Generating
    sequences with recurrent neural networks", 2013.

    >>> w = tp.nn.Parameter(tp.tensor([1.0]))
    >>> rmsprop = tp.optim.RMSprop([w], lr=0.125, alpha=0.75)
    >>> (w * w).sum().backward()
    >>> rmsprop.step()
    >>> w.tolist()
    [0.75]
    """

    slots = ("square", "mean", "velocity")

    def __init__(
        self,
        params: Any,
        lr: float | tp.Tensor | Schedule = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )

    def check(self, options: dict[str, Any]) -> None:
        self._check_range(options, "alpha", below=1.0)
        self._check_range(options, "eps")

    def used_slots(self, options: dict[str, Any]) -> Sequence[str]:
        return ("square", *["mean"] * options["centered"], *["velocity"] * (options["momentum"] != 0))

    def update(self, group: ParamGroup, active: Active) -> None:
        stays, eps = 1.0 - group["alpha"], group["eps"]
        made = per_dtype(lambda dtype: [group.rate(key, dtype) for key in ("lr", "momentum", "weight_decay")], active)
        squares, means, velocities = (group.slots.get(slot) for slot in self.slots)
        assert squares is not None
        for i, p, g in active:
            lr, momentum, decay = made[p.dtype]
            if decay is not None:
                g = g + p * decay
            square = squares[i]
            square.assign(tp.lerp(square, tp.square(g), stays))
            if means is not None:
                mean = means[i]
                mean.assign(tp.lerp(mean, g, stays))
                square = tp.maximum(square - tp.square(mean), 0.0)  # rounding may have led below 0
            g = g / (tp.sqrt(square) + eps)
            if velocities is not None:
                g = velocities[i].assign(velocities[i] * momentum + g)
            p.assign_sub(g * lr)
