"""Layers and models: `Module`, `Parameter`, the layers and activations, and initial values in `tp.nn.init`.

>>> model = tp.nn.Sequential(tp.nn.Linear(2, 8), tp.nn.Tanh(), tp.nn.Linear(8, 1))
>>> sum(p.size for p in model.parameters())
33
"""

from tapeflow.nn import init
from tapeflow.nn.containers import ModuleDict, ModuleList, Sequential
from tapeflow.nn.layers import (
    ELU,
    GELU,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogSoftmax,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from tapeflow.nn.module import Module, Parameter

__all__ = [
    "ELU",
    "GELU",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "init",
]
