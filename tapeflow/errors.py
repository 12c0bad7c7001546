"""The errors that tapeflow raises. Every message reads `[op] what was given, what was expected. What to do.`"""


class TapeflowError(Exception):
    """The base of all of them."""


class ShapeError(TapeflowError, ValueError):
    """Shapes that do not fit each other or the op."""


class AxisError(ShapeError, IndexError):
    """An axis that the tensor does not have."""


class DTypeError(TapeflowError, TypeError):
    """A dtype, or a Python type, that the op does not take."""


class DeviceError(TapeflowError, RuntimeError):
    """A device that is not there, or operands on different devices."""


class TapeError(TapeflowError, RuntimeError):
    """A gradient that cannot be had, or a write that recording forbids."""


class PlanError(TapeflowError, RuntimeError):
    """A recording that cannot become a plan, or a call that does not fit one."""


class DeviceOutOfMemory(TapeflowError, MemoryError):
    """Memory that the device does not have."""


class TensorIndexError(TapeflowError, IndexError):
    """An index out of range, with axis, index and size."""


class NumberRangeError(TapeflowError, ValueError, OverflowError):
    """A Python number that the dtype or the op cannot take."""


class NonFiniteError(TapeflowError, FloatingPointError):
    """Under trace_nan: an op has made inf or NaN out of finite values.

    Attributes: op, its name; index, of the first such element; place, (file, line) of the user's call.
    """

    def __init__(self, text: str, op: str = "", index: tuple[int, ...] = (), place: tuple[str, int] = ("", 0)) -> None:
        super().__init__(text)
        self.op, self.index, self.place = op, index, place


class StateError(TapeflowError, ValueError):
    """Names, shapes or values that do not fit the state of a model or an optimizer."""
