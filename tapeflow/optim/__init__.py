"""Optimizers, learning-rate schedules and gradient clipping.

>>> model = tp.nn.Linear(2, 1)
>>> adam = tp.optim.Adam(model.parameters(), lr=tp.optim.cosine(1e-2, steps=100))
>>> loss = tp.mse_loss(model(tp.ones((4, 2))), tp.ones((4, 1)))
>>> loss.backward()
>>> norm = tp.optim.clip_grad_norm(model.parameters(), 1.0)
>>> adam.step()
>>> adam.zero_grad()
"""

from tapeflow.optim.clipping import clip_grad_norm, clip_grad_value
from tapeflow.optim.optimizer import Optimizer, ParamGroup
from tapeflow.optim.optimizers import SGD, Adam, AdamW, RMSprop
from tapeflow.optim.schedules import (
    constant,
    cosine,
    exponential_decay,
    linear,
    linear_warmup,
    one_cycle,
    step_decay,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "ParamGroup",
    "RMSprop",
    "clip_grad_norm",
    "clip_grad_value",
    "constant",
    "cosine",
    "exponential_decay",
    "linear",
    "linear_warmup",
    "one_cycle",
    "step_decay",
]
