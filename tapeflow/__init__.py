"""tapeflow: a Cython-accelerated tape autodiff engine.

>>> import tapeflow as tp
>>> w = tp.tensor([1.0, 2.0], requires_grad=True)
>>> (w * w).sum().backward()
>>> w.grad.tolist()
[2.0, 4.0]
"""

import math as _math

import numpy as _numpy

__version__ = "0.1.0"

try:
    from tapeflow import _core
except ImportError as error:
    raise ImportError(
        f"tapeflow's compiled core could not be loaded ({error}). "
        "Build it: `make build` in the checkout, or `pip install .`"
    ) from error

from tapeflow import _advanced, _composed, _creation, ops, transforms

if ops.table_hash() != _core.TABLE_HASH:
    raise ImportError(
        f"tapeflow's compiled core was built from another op table ({_core.TABLE_HASH}, now {ops.table_hash()}). "
        "Rebuild it: `make build` in the checkout, or `pip install .`"
    )
_core.bind(_creation, _advanced, transforms, _composed)

from tapeflow import errors, random  # noqa: E402
from tapeflow._core import (  # noqa: E402
    Tape,
    Tensor,
    abs,
    add,
    argmax,
    astype,
    broadcast_to,
    clip,
    concat,
    cos,
    cross_entropy,
    divide,
    empty,
    enable_grad,
    equal,
    exp,
    expand_dims,
    expm1,
    full,
    get_default_dtype,
    get_num_threads,
    greater,
    greater_equal,
    is_grad_enabled,
    less,
    less_equal,
    log,
    log1p,
    log_softmax,
    logsumexp,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    mse_loss,
    multiply,
    negative,
    no_grad,
    not_equal,
    permute_dims,
    pow,
    prod,
    relu,
    reshape,
    rsqrt,
    scatter_add,
    set_default_dtype,
    set_num_threads,
    sigmoid,
    sign,
    sin,
    smul,
    softmax,
    softplus,
    sqrt,
    square,
    squeeze,
    stack,
    stop_gradient,
    subtract,
    sum,
    take,
    tanh,
    where,
    zeros,
)
from tapeflow._creation import (  # noqa: E402
    arange,
    asarray,
    device,
    devices,
    empty_like,
    eye,
    from_dlpack,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    result_type,
    tensor,
    tril,
    triu,
    zeros_like,
)
from tapeflow.errors import (  # noqa: E402
    DeviceError,
    DeviceOutOfMemory,
    DTypeError,
    PlanError,
    ShapeError,
    TapeError,
    TapeflowError,
)
from tapeflow.transforms import grad, value_and_grad  # noqa: E402

bool = _numpy.dtype("bool")
uint8 = _numpy.dtype("uint8")
int32 = _numpy.dtype("int32")
int64 = _numpy.dtype("int64")
float32 = _numpy.dtype("float32")
float64 = _numpy.dtype("float64")
e, inf, nan, newaxis, pi = _math.e, _math.inf, _math.nan, None, _math.pi

__all__ = [
    "DTypeError",
    "DeviceError",
    "DeviceOutOfMemory",
    "PlanError",
    "ShapeError",
    "Tape",
    "TapeError",
    "TapeflowError",
    "Tensor",
    "abs",
    "add",
    "arange",
    "argmax",
    "asarray",
    "astype",
    "bool",
    "broadcast_to",
    "clip",
    "concat",
    "cos",
    "cross_entropy",
    "device",
    "devices",
    "divide",
    "e",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "errors",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "float32",
    "float64",
    "from_dlpack",
    "full",
    "full_like",
    "get_default_dtype",
    "get_num_threads",
    "grad",
    "greater",
    "greater_equal",
    "inf",
    "int32",
    "int64",
    "is_grad_enabled",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "mse_loss",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "no_grad",
    "not_equal",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "pow",
    "prod",
    "random",
    "relu",
    "reshape",
    "result_type",
    "rsqrt",
    "scatter_add",
    "set_default_dtype",
    "set_num_threads",
    "sigmoid",
    "sign",
    "sin",
    "smul",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "subtract",
    "sum",
    "take",
    "tanh",
    "tensor",
    "tril",
    "triu",
    "uint8",
    "value_and_grad",
    "where",
    "zeros",
    "zeros_like",
]
