"""Gradients kept within bounds, between backward() and step()."""

from __future__ import annotations

from collections.abc import Iterable

import tapeflow as tp
from tapeflow.errors import NumberRangeError, TapeError


def _gradients(parameters: tp.Tensor | Iterable[tp.Tensor]) -> list[tp.Tensor]:
    tensors = [parameters] if isinstance(parameters, tp.Tensor) else parameters
    return [g for p in tensors if (g := p.grad) is not None]


def clip_grad_norm(
    parameters: tp.Tensor | Iterable[tp.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> tp.Tensor:
    """Scale the gradients of all parameters together, where their common norm is above max_norm, to that norm.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensors
        Those without a gradient do not count.
    max_norm : float
        More than 0.
    norm_type : float
        The order of the norm of all the elements, inf for the largest.
    error_if_nonfinite : bool
        TapeError for an infinite or NaN norm, nothing changed; otherwise it makes the gradients 0 or NaN.

    Returns
    -------
    Tensor
        The norm before, 0-d; 0 without any gradient.

    >>> w = tp.tensor([0.0, 0.0], requires_grad=True)
    >>> (w * tp.tensor([3.0, 4.0])).sum().backward()
    >>> float(tp.optim.clip_grad_norm(w, 2.5)), w.grad.tolist()
    (5.0, [1.5, 2.0])
    """
    if not max_norm > 0.0:
        raise NumberRangeError(f"[clip_grad_norm] max_norm is {max_norm}, expected more than 0.")
    gradients = _gradients(parameters)
    if not gradients:
        return tp.zeros(())
    with tp.no_grad():
        norms = [tp.vector_norm(g, ord=norm_type) for g in gradients]
        wide = any(n.dtype == tp.float64 for n in norms)
        total = tp.vector_norm(tp.stack([n.astype("float64") for n in norms] if wide else norms), ord=norm_type)
        if error_if_nonfinite and not tp.isfinite(total):
            raise TapeError(
                f"[clip_grad_norm] the norm of the gradients is {float(total)}. Look for what is not finite before."
            )
        scale = max_norm / tp.maximum(total, max_norm)  # exactly 1 up to max_norm
        for g in gradients:
            g *= scale
    return total


def clip_grad_value(parameters: tp.Tensor | Iterable[tp.Tensor], clip_value: float) -> None:
    """Clip every element of the gradients to -clip_value .. clip_value.

    >>> w = tp.tensor([0.0, 0.0], requires_grad=True)
    >>> (w * tp.tensor([3.0, -0.5])).sum().backward()
    >>> tp.optim.clip_grad_value(w, 1.0)
    >>> w.grad.tolist()
    [1.0, -0.5]
    """
    if not clip_value > 0.0:
        raise NumberRangeError(f"[clip_grad_value] clip_value is {clip_value}, expected more than 0.")
    with tp.no_grad():
        for g in _gradients(parameters):
            g.assign(tp.clip(g, -clip_value, clip_value))
