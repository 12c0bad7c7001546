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
        f"tapeflow's compiled core could not be loaded ({error}). Build it: `make build` in the checkout, or `pip install .`"
    ) from error

from tapeflow import _advanced, _composed, _creation, ops, transforms

if _core.TABLE_HASH != ops.table_hash():
    raise ImportError(
        f"tapeflow's compiled core was built from another op table ({_core.TABLE_HASH}, now {ops.table_hash()}). "
        "Rebuild it: `make build` in the checkout, or `pip install .`"
    )
_core.bind(_creation, _advanced, transforms, _composed)

from tapeflow import random  # noqa: E402
from tapeflow._core import (  # noqa: E402
    Tape,
    Tensor,
    argmax,
    astype,
    broadcast_to,
    clip,
    concat,
    cross_entropy,
    empty,
    enable_grad,
    expand_dims,
    full,
    get_default_dtype,
    get_num_threads,
    is_grad_enabled,
    log_softmax,
    logsumexp,
    matmul,
    max,
    mean,
    min,
    mse_loss,
    no_grad,
    permute_dims,
    pow,
    prod,
    reshape,
    scatter_add,
    set_default_dtype,
    set_num_threads,
    softmax,
    squeeze,
    stack,
    stop_gradient,
    sum,
    take,
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

for _entry in ops.TABLE.values():
    globals()[_entry.name] = getattr(_core, _entry.name)
del _entry

bool = _numpy.dtype("bool")
uint8 = _numpy.dtype("uint8")
int32 = _numpy.dtype("int32")
int64 = _numpy.dtype("int64")
float32 = _numpy.dtype("float32")
float64 = _numpy.dtype("float64")
e, inf, nan, newaxis, pi = _math.e, _math.inf, _math.nan, None, _math.pi
