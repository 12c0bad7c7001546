"""The layers and activations, each a Module around functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import tapeflow as tp
from tapeflow.errors import NumberRangeError, ShapeError
from tapeflow.nn import init
from tapeflow.nn.module import Module, Parameter


def _size(value: int, what: str, op: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ShapeError(f"[{op}] {what} is {value!r}, expected an int, 0 or more.")
    return value


class Linear(Module):
    """x @ weight.T + bias along the last axis.

    weight has the shape (out_features, in_features), bias (out_features,); both begin uniform in -b .. b, b = 1 /
    sqrt(in_features), as PyTorch's. x: (..., in_features) -> (..., out_features).

    >>> tp.nn.Linear(3, 2)(tp.ones((5, 3))).shape
    (5, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: Any = None,
        generator: tp.random.Generator | None = None,
    ) -> None:
        self.in_features = _size(in_features, "in_features", "Linear")
        self.out_features = _size(out_features, "out_features", "Linear")
        bound = 1.0 / math.sqrt(max(1, in_features))
        options: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.weight = Parameter(init.uniform((out_features, in_features), -bound, bound, **options))
        self.bias = Parameter(init.uniform(out_features, -bound, bound, **options)) if bias else None

    def forward(self, x: Any) -> tp.Tensor:
        """x: (..., in_features)."""
        y = tp.matmul(x, self.weight.T)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """A table of vectors; weight[index] for each index.

    weight has the shape (num_embeddings, embedding_dim) and begins as standard normal numbers. An index counts as
    NumPy's do; IndexError for one out of range.

    >>> tp.nn.Embedding(10, 4)(tp.tensor([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        dtype: Any = None,
        generator: tp.random.Generator | None = None,
    ) -> None:
        self.num_embeddings = _size(num_embeddings, "num_embeddings", "Embedding")
        self.embedding_dim = _size(embedding_dim, "embedding_dim", "Embedding")
        self.weight = Parameter(init.normal((num_embeddings, embedding_dim), generator=generator, dtype=dtype))

    def forward(self, indices: Any) -> tp.Tensor:
        """indices: integers of any shape s -> s + (embedding_dim,)."""
        return tp.take(self.weight, indices, axis=0)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class LayerNorm(Module):
    """tp.layer_norm over the last axes, with a weight that begins as ones and a bias that begins as zeros.

    normalized_shape: the sizes of those axes. elementwise_affine=False: no weight, no bias; bias=False: no bias.

    >>> tp.nn.LayerNorm(2, eps=0.0)(tp.tensor([[0.0, 4.0]])).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        sizes = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        self.normalized_shape = tuple(_size(n, "normalized_shape", "LayerNorm") for n in sizes)
        self.eps = eps
        self.weight = Parameter(init.ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        self.bias = Parameter(init.zeros(self.normalized_shape, dtype=dtype)) if elementwise_affine and bias else None

    def forward(self, x: Any) -> tp.Tensor:
        """x: (..., *normalized_shape), the result too."""
        return tp.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class RMSNorm(Module):
    """tp.rms_norm over the last axes, with a weight that begins as ones. Arguments as in LayerNorm; eps=None: the
    distance of 1 to the next number of x's dtype.

    >>> tp.nn.RMSNorm(2)(tp.tensor([3.0, -3.0])).tolist()
    [1.0, -1.0]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        sizes = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        self.normalized_shape = tuple(_size(n, "normalized_shape", "RMSNorm") for n in sizes)
        self.eps = eps
        self.weight = Parameter(init.ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None

    def forward(self, x: Any) -> tp.Tensor:
        """x: (..., *normalized_shape), the result too."""
        return tp.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class Dropout(Module):
    """tp.dropout in training mode, nothing in evaluation mode.

    p: the probability of an element to be 0. generator: where the draws come from, by default the one that
    tp.random.manual_seed seeds.

    >>> tp.nn.Dropout(0.5).eval()(tp.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, p: float = 0.5, *, generator: tp.random.Generator | None = None) -> None:
        if not 0.0 <= p <= 1.0:
            raise NumberRangeError(f"[Dropout] p is {p}, expected a probability in 0 .. 1.")
        self.p = p
        self.generator = generator

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.dropout(x, self.p, self.training, self.generator)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Identity(Module):
    """x as it is."""

    def forward(self, x: Any) -> Any:
        """x: anything."""
        return x


class Flatten(Module):
    """The axes from start_axis on as one: (n, a, b) -> (n, a * b).

    >>> tp.nn.Flatten()(tp.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_axis: int = 1) -> None:
        self.start_axis = start_axis

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """x: with at least start_axis axes."""
        if x.ndim < self.start_axis:
            raise ShapeError(f"[Flatten] x has shape {x.shape}, expected at least {self.start_axis} axes.")
        kept = x.shape[: self.start_axis]
        return tp.reshape(x, (*kept, math.prod(x.shape[self.start_axis :])))

    def extra_repr(self) -> str:
        return f"start_axis={self.start_axis}"


# ---- activations


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.relu(x)


class LeakyReLU(Module):
    """x where x > 0, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class GELU(Module):
    """x times the normal distribution function of x; approximate="tanh": the usual approximation of that."""

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        self.approximate: Literal["none", "tanh"] = approximate

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.silu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.tanh(x)


class Softplus(Module):
    """log(1 + exp(x))."""

    def forward(self, x: Any) -> tp.Tensor:
        """x: of any shape."""
        return tp.softplus(x)


class Softmax(Module):
    """exp(x), divided by its sum along an axis, the last by default."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> tp.Tensor:
        """x: with that axis."""
        return tp.softmax(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Module):
    """The logarithm of Softmax."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> tp.Tensor:
        """x: with that axis."""
        return tp.log_softmax(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"
