# Python floats while a function is recorded: tensors that are weak as numbers are.

cdef class WeakFloat(Tensor):
    """A Python float while a function is recorded: 0-d, float64, and weak as a number is: it never promotes.

    Its operators beside numbers are those of floats. Functions take it as they take a number.
    """

    def __add__(self, other):
        return weakly("__add__", self, other)

    def __radd__(self, other):
        return weakly("__radd__", self, other)

    def __sub__(self, other):
        return weakly("__sub__", self, other)

    def __rsub__(self, other):
        return weakly("__rsub__", self, other)

    def __mul__(self, other):
        return weakly("__mul__", self, other)

    def __rmul__(self, other):
        return weakly("__rmul__", self, other)

    def __truediv__(self, other):
        return weakly("__truediv__", self, other)

    def __rtruediv__(self, other):
        return weakly("__rtruediv__", self, other)

    def __floordiv__(self, other):
        return weakly("__floordiv__", self, other)

    def __rfloordiv__(self, other):
        return weakly("__rfloordiv__", self, other)

    def __mod__(self, other):
        return weakly("__mod__", self, other)

    def __rmod__(self, other):
        return weakly("__rmod__", self, other)

    def __pow__(self, other, mod):
        return NotImplemented if mod is not None else weakly("__pow__", self, other)

    def __rpow__(self, other, mod):
        return NotImplemented if mod is not None else weakly("__rpow__", self, other)

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __round__(self, ndigits=None):
        return float(self).__round__(ndigits)  # of a float without digits an int, so a look

    def __neg__(self):
        return weak_of(call1(OP_NEGATIVE, hold(self)))

    def __pos__(self):
        return self

    def __abs__(self):
        return weak_of(call1(OP_ABS, hold(self)))

    def __richcmp__(self, other, int op):
        cdef str name = ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__")[op]
        return weakly(name, self, other)

    def __hash__(self):
        return Tensor.__hash__(self)

    def __iadd__(self, other):
        return self + other

    def __isub__(self, other):
        return self - other

    def __imul__(self, other):
        return self * other

    def __itruediv__(self, other):
        return self / other


cdef Tensor with_weak_tensors(int op, int nin, PyObject **args, int dtype):
    """op with floats that a recording has made tensors of: as numbers they take the dtype of what is beside them."""
    cdef Tensor t
    cdef list kept = []
    cdef int i
    for i in range(nin):
        if type(<object>args[i]) is WeakFloat:
            t = op_astype(hold(<Tensor>args[i]), dtype)
            kept.append(t)
            args[i] = <PyObject *>t
    return elementwise(op, nin, args)


cdef inline bint is_weak(object x) noexcept:
    """A number, also one that a recording has made a tensor of."""
    return is_number(x) or type(x) is WeakFloat


cdef Tensor weak_tensor(object x, int dtype, const char *op):
    """Such a number as a tensor of this dtype."""
    if type(x) is not WeakFloat:
        return number_tensor(x, dtype, op)
    if not is_float(dtype):
        raise errors.DTypeError(f"[{op.decode()}] a float does not fit the dtype {dtype_name(dtype)}. "
                                "Cast the tensor with .astype('float32') first.")
    return op_astype(hold(<Tensor>x), dtype)


def as_number(x):
    """x, or the value of a float that a recording has made a tensor of: a guard."""
    return x.item() if isinstance(x, WeakFloat) else x


cdef Tensor weak_of(Tensor t):
    """A result of Python's arithmetic on floats, weak again."""
    cdef Tensor y
    if t.v.dtype != TPF_FLOAT64:
        return t
    y = WeakFloat.__new__(WeakFloat)
    fill_tensor(y, value_alias(t.v), t.node)
    if y.node != NULL:
        y.node.refs += 1
    return y


cdef object weakly(str name, Tensor a, object b):
    """An operator of a float that a recording has made a tensor of: beside a number it is Python's, in float64."""
    if type(b) is WeakFloat:
        b = hold(b)
    elif not is_number(b):
        return getattr(Tensor, name)(a, b)
    return weak_of(getattr(Tensor, name)(hold(a), b))


def weak_input(Program program not None, number):
    """A fresh 0-d tensor for an argument that is a Python float."""
    cdef Tensor t = WeakFloat.__new__(WeakFloat)
    cdef Value *v = value_scalar(TPF_FLOAT64)
    write_number(v.data, TPF_FLOAT64, number, b"freeze")
    fill_tensor(t, v, NULL)
    program.objects[program.number(v, V_INPUT, value_share(v))] = t
    return t
