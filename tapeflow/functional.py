"""Normalisation, dropout, encodings and losses: composed of other ops, or checks before a structured one.

Losses take operands of one shape (broadcasting here is nearly always a mistake) and reduce as their `reduction` says:
"mean" over all elements, "sum", or "none".
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tapeflow import _core, random
from tapeflow._arguments import as_axes, as_tensor
from tapeflow._core import Tensor
from tapeflow.errors import AxisError, DTypeError, NumberRangeError, ShapeError

# ---- arguments


def _same_shapes(op: str, **tensors: Any) -> list[Tensor]:
    """The operands of a loss as float tensors, which must be of one shape."""
    found = [as_tensor(x, op) for x in tensors.values()]
    if any(x.shape != found[0].shape for x in found):
        given = ", ".join(f"{name} has shape {x.shape}" for name, x in zip(tensors, found, strict=True))
        raise ShapeError(f"[{op}] {given}: they must be equal. Use reshape.")
    return [x if x.dtype.kind == "f" else x.astype(_core.get_default_dtype()) for x in found]


def _reduced(x: Tensor, reduction: str, op: str) -> Tensor:
    if reduction == "mean":
        return _core.mean(x)
    if reduction == "sum":
        return _core.sum(x)
    if reduction == "none":
        return x
    raise DTypeError(f"[{op}] reduction is {reduction!r}, expected 'mean', 'sum' or 'none'.")


# ---- normalisation


def _normal_axes(x: Tensor, normalized_shape: Any, axis: Any, op: str) -> tuple[int, ...]:
    """The axes to normalise over, ascending: those of normalized_shape, the last ones, or those named."""
    if normalized_shape is None:
        found = sorted(as_axes(axis, x.ndim, op))
        if not found:
            raise AxisError(f"[{op}] expected one or more axes, got {axis!r}.")
        return tuple(found)
    sizes = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    if not sizes or len(sizes) > x.ndim or x.shape[x.ndim - len(sizes) :] != sizes:
        raise ShapeError(
            f"[{op}] normalized_shape {sizes} is not the end of the shape {x.shape}. Give the sizes of the last axes."
        )
    return tuple(range(x.ndim - len(sizes), x.ndim))


def _normalized(x: Tensor, axes: tuple[int, ...], weight: Any, bias: Any, eps: float, centred: bool, op: str) -> Tensor:
    """x normalised over axes, ascending; weight and bias have their sizes."""
    sizes = tuple([x.shape[a] for a in axes])

    def fitting(what: str, given: Any) -> Tensor | None:
        t = None if given is None else as_tensor(given, op)
        if t is not None and t.shape != sizes:
            raise ShapeError(f"[{op}] {what} has shape {t.shape}, expected {sizes}, the sizes that are normalised.")
        return t

    w, b = fitting("weight", weight), fitting("bias", bias)
    kept = x.ndim - len(axes)
    if axes[0] == kept:
        return _core.normalize(x, w, b, len(axes), eps, centred)
    order = [*(d for d in range(x.ndim) if d not in axes), *axes]
    y = _core.normalize(_core.permute_dims(x, order), w, b, len(axes), eps, centred)
    return _core.permute_dims(y, [order.index(d) for d in range(x.ndim)])


def layer_norm(
    x: Any, normalized_shape: Any = None, weight: Any = None, bias: Any = None, eps: float = 1e-5, *, axis: Any = -1
) -> Tensor:
    """x less its mean, divided by its standard deviation, over some axes; then times weight, plus bias.

    Parameters
    ----------
    x : Tensor or array
    normalized_shape : int or tuple of ints, optional
        The sizes of the last axes, to normalise over those. Otherwise `axis` says over which.
    weight, bias : Tensor, optional
        Of the shape of the normalised axes.
    eps : float
        Is added to the variance.
    axis : int or tuple of ints
        The last axis by default.

    Returns
    -------
    Tensor
        Of x's shape; (x - mean) * rsqrt(var + eps), var being the mean of (x - mean)**2.

    Raises
    ------
    ShapeError
        For a normalized_shape, weight or bias that does not fit; AxisError for an axis that is not there.

    >>> tp.layer_norm(tp.tensor([[0.0, 2.0], [-3.0, 3.0]]), eps=0.0).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    x = as_tensor(x, "layer_norm")
    axes = _normal_axes(x, normalized_shape, axis, "layer_norm")
    return _normalized(x, axes, weight, bias, eps, True, "layer_norm")


def rms_norm(
    x: Any, normalized_shape: Any = None, weight: Any = None, eps: float | None = None, *, axis: Any = -1
) -> Tensor:
    """x divided by the root of its mean square over some axes; then times weight.

    Parameters
    ----------
    x, normalized_shape, weight, axis
        As in layer_norm.
    eps : float, optional
        Is added to the mean square; by default the distance of 1 to the next number of x's dtype.

    >>> tp.rms_norm(tp.tensor([3.0, -3.0])).tolist()
    [1.0, -1.0]
    """
    x = as_tensor(x, "rms_norm")
    x = x if x.dtype.kind == "f" else x.astype(_core.get_default_dtype())
    axes = _normal_axes(x, normalized_shape, axis, "rms_norm")
    if eps is None:
        eps = float(np.finfo(x.dtype).eps)
    return _normalized(x, axes, weight, None, eps, False, "rms_norm")


# ---- dropout and encodings


def dropout(x: Any, p: float = 0.5, training: bool = True, generator: random.Generator | None = None) -> Tensor:
    """x with each element set to 0 with probability p, the others divided by 1 - p.

    Parameters
    ----------
    x : Tensor or array
        Integers become the default float dtype.
    p : float
        0 <= p <= 1, to within 2**-24; with 1 all is 0. An element that is dropped is 0 also where x is infinite or NaN.
    training : bool
        False: x as it is.
    generator : tp.random.Generator, optional
        Takes one draw, with 0 < p < 1 and training; by default tp.random.default_generator.

    Raises
    ------
    NumberRangeError
        For p outside 0 .. 1.

    >>> tp.dropout(tp.ones(3), 0.0).tolist(), tp.dropout(tp.ones(3), 1.0).tolist()
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    """
    x = as_tensor(x, "dropout")
    x = x if x.dtype.kind == "f" else x.astype(_core.get_default_dtype())
    try:
        p = float(p)
    except (TypeError, ValueError):
        raise DTypeError(f"[dropout] p must be a number, got {type(p).__name__}.") from None
    if not 0.0 <= p <= 1.0:
        raise NumberRangeError(f"[dropout] p is {p}, expected a probability in 0 .. 1.")
    if not training or p == 0.0:
        return _core.permute_dims(x, tuple(range(x.ndim)))  # a tensor of its own
    if p == 1.0:
        return _core.where(False, x, 0.0)
    # 24 random bits an element, a third of the time of bernoulli's 32
    u = (random.default_generator if generator is None else generator).uniform(0.0, 1.0, x.shape, "float32", x.device)
    kept = u < 1.0 - p
    return _core.where(kept, x * (1.0 / (1.0 - p)), 0.0)


def one_hot(indices: Any, num_classes: int = -1, *, axis: int = -1, dtype: Any = None) -> Tensor:
    """1 at each class number along a new axis, 0 elsewhere.

    Parameters
    ----------
    indices : integer Tensor, array or list
        Class numbers, 0 .. num_classes - 1.
    num_classes : int
        The size of the new axis; -1: the largest number plus 1.
    axis : int
        Where the new axis stands in the result.
    dtype : dtype, optional
        int64 by default; give a float dtype to calculate with it.

    Raises
    ------
    IndexError
        For a number out of range.

    >>> tp.one_hot([2, 0], 3).tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    t = as_tensor(np.asarray(indices, np.int64) if isinstance(indices, list) and not indices else indices, "one_hot")
    try:
        classes = operator.index(num_classes)
    except TypeError:
        raise DTypeError(f"[one_hot] num_classes must be an int, got {type(num_classes).__name__}.") from None
    if classes == -1:
        if not t.size:
            raise ShapeError("[one_hot] there is no largest class number among none. Give num_classes.")
        classes = max(int(_core.max(t)), -1) + 1
    if classes < 0 or (classes == 0 and t.size):
        raise NumberRangeError(f"[one_hot] num_classes is {classes}, expected 1 or more.")
    a = operator.index(axis)
    if not -t.ndim - 1 <= a <= t.ndim:
        raise AxisError(f"[one_hot] axis {a} is out of range for a result of {t.ndim + 1} dimensions.")
    a %= t.ndim + 1
    dtype = np.dtype(np.int64 if dtype is None else _core.get_default_dtype() if dtype is float else dtype)
    y = _core.one_hot_rows(t, classes, dtype)
    return y if a == t.ndim else _core.permute_dims(y, [*range(a), t.ndim, *range(a, t.ndim)])


# ---- losses


def binary_cross_entropy_with_logits(
    logits: Any, targets: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """-(t log(p) + (1 - t) log(1 - p)) with p = sigmoid(logits), without overflow or cancellation.

    Parameters
    ----------
    logits : Tensor
    targets : Tensor
        Probabilities, of the shape of logits.
    weight : Tensor, optional
        A factor of each element, broadcasts.
    pos_weight : Tensor, optional
        A factor of the first term, broadcasts.
    reduction : "mean", "sum" or "none"

    Raises
    ------
    ShapeError
        Where the shapes of logits and targets differ.

    >>> logits, targets = tp.tensor([1000.0, -1000.0]), tp.tensor([1.0, 1.0])
    >>> tp.binary_cross_entropy_with_logits(logits, targets, reduction="none").tolist()
    [0.0, 1000.0]
    """
    op = "binary_cross_entropy_with_logits"
    x, t = _same_shapes(op, logits=logits, targets=targets)
    # both terms are positive, so that a small loss is as accurate as a large one; smul: 0 times infinity is 0
    hit = t if pos_weight is None else t * as_tensor(pos_weight, op)
    loss = _core.smul(hit, _core.softplus(-x)) + _core.smul(1 - t, _core.softplus(x))
    if weight is not None:
        loss = loss * as_tensor(weight, op)
    return _reduced(loss, reduction, op)


def l1_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """|prediction - target|, of operands of one shape; the derivative where they are equal is 0.

    >>> tp.l1_loss(tp.tensor([1.0, 3.0]), tp.tensor([0.0, 0.0])).item()
    2.0
    """
    a, b = _same_shapes("l1_loss", prediction=prediction, target=target)
    return _reduced(_core.abs(a - b), reduction, "l1_loss")


def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """The Kullback-Leibler divergence target * (log(target) - input), by elements.

    Parameters
    ----------
    input : Tensor
        Log-probabilities.
    target : Tensor
        Probabilities, or log-probabilities with log_target=True; of the shape of input. A probability of 0 adds 0,
        also where input is -inf.
    reduction : "mean", "batchmean", "sum" or "none"
        "batchmean": the sum divided by the size of the first axis, which is the divergence in the mathematical sense.

    >>> p = tp.tensor([0.5, 0.5, 0.0])
    >>> tp.kl_div(tp.log(p), p, reduction="sum").item()
    0.0
    """
    x, t = _same_shapes("kl_div", input=input, target=target)
    p, log_p = (_core.exp(t), t) if log_target else (t, _core.log(t))
    loss = _core.smul(p, log_p - x)
    if reduction == "batchmean":
        return _core.sum(loss) / (x.shape[0] if x.ndim else 1)
    return _reduced(loss, reduction, "kl_div")


def nll_loss(log_probabilities: Any, labels: Any, reduction: str = "mean") -> Tensor:
    """-log_probabilities[label] of each row: cross_entropy after log_softmax.

    Parameters
    ----------
    log_probabilities : Tensor of shape (..., classes)
    labels : integer Tensor of shape (...,)
    reduction : "mean", "sum" or "none"

    Raises
    ------
    IndexError
        For a label outside 0 .. classes - 1.

    >>> tp.nll_loss(tp.tensor([[-1.0, -2.0], [-3.0, -4.0]]), [1, 0]).item()
    2.5
    """
    x, t = as_tensor(log_probabilities, "nll_loss"), as_tensor(labels, "nll_loss")
    if not x.ndim or t.shape != x.shape[:-1]:
        raise ShapeError(
            f"[nll_loss] labels of shape {t.shape} do not fit log-probabilities of shape {x.shape}: "
            "expected one class number a row."
        )
    return _reduced(-_core.take(x, _core.class_positions(t, x.shape[-1], "nll_loss")), reduction, "nll_loss")
