# Truth, counts, variance and norm over axes: values, entries and the public functions.

cdef int execute_truth(int op, uint64_t mask, Value *x, Value *y) except -1:
    """y = any or all of x over the axes in mask."""
    cdef int64_t outer, n, inner, i
    cdef int64_t *found
    cdef bint every = op == OP_ALL
    cdef Value *counts = NULL
    cdef Value *src = reduction_order(x, mask, &outer, &n, &inner)
    try:
        if src.size == 0:
            memset(y.data, every, y.size)
        elif inner == 1:
            truth_of_rows(y.data, src, outer, n, every)
        else:
            counts = value_new(1, &y.size, TPF_INT64)
            found = <int64_t *>counts.data
            run_reduce(kernels.reduce[OP_COUNT_NONZERO - OP_SUM][src.dtype], counts.data, src, outer, n, inner)
            for i in range(y.size):
                y.data[i] = found[i] == n if every else found[i] != 0
    finally:
        value_release(src)
        value_release(counts)
    return 0


cdef Tensor op_truth(int op, Tensor x, uint64_t mask, bint keepdims):
    """any or all: by counts of what is not 0, of a row piece by piece until the answer is known."""
    x = steady(x)
    cdef int64_t params[3]
    cdef int64_t shape[64]
    cdef int ndim
    cdef double start = step_begins(thread_state())
    cdef Value *y
    params[0], params[1] = 2, <int64_t>mask
    reduced_shape(x.v, mask, keepdims, &ndim, shape, &params[2])
    if is_remote(x.v):
        y = remote_result(op, params_tuple(params), x.v, NULL, NULL, ndim, shape, TPF_BOOL)
        return recorded1(op, x, y, params, start)
    y = value_new(ndim, shape, TPF_BOOL)
    try:
        execute_truth(op, mask, x.v, y)
    except:
        value_release(y)
        raise
    return recorded1(op, x, y, params, start)


cdef void truth_of_rows(char *y, Value *src, int64_t rows, int64_t n, bint every) noexcept:
    cdef tpf_reduce count = kernels.reduce[OP_COUNT_NONZERO - OP_SUM][src.dtype]
    cdef int64_t size = tpf_itemsize(src.dtype)
    cdef int64_t i, start, piece, found
    if src.dtype == TPF_BOOL and src.buf.foreign != BORROWED:  # bytes 0 and 1: the one that decides is looked for
        for i in range(rows):
            y[i] = (memchr(src.data + i * n, 0 if every else 1, n) == NULL) == every
        return
    for i in range(rows):
        start = 0
        y[i] = every
        piece = 1024  # then more, so that threads have their share
        while start < n and y[i] == every:
            piece = piece if piece < n - start else n - start
            count(&found, src.data + (i * n + start) * size, 1, piece, 1)
            y[i] = found == piece if every else found != 0
            start += piece
            piece *= 8


cdef int execute_var(int op, uint64_t mask, double divisor, Value *x, Value *y) except -1:
    """y = var or std of x over the axes in mask."""
    cdef int64_t outer, n, inner
    cdef int k = x.dtype - TPF_FLOAT32
    cdef Value *src = reduction_order(x, mask, &outer, &n, &inner)
    if src.size == 0:
        outer, n, inner = y.size, 0, 1
    if src.size >= RELEASE_GIL:
        with nogil:
            kernels.variance[k](y.data, src.data, outer, n, inner, divisor, op == OP_STD)
    elif y.size:
        kernels.variance[k](y.data, src.data, outer, n, inner, divisor, op == OP_STD)
    value_release(src)
    return 0


cdef Tensor op_var(int op, Tensor x, uint64_t mask, bint keepdims, double correction):
    """var or std over the axes in mask."""
    x = steady(as_float(x))
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef int64_t shape[64]
    cdef int64_t count
    cdef int64_t word = 0
    cdef int ndim
    cdef Value *y
    cdef Entry *e = NULL
    cdef double divisor
    reduced_shape(x.v, mask, keepdims, &ndim, shape, &count)
    divisor = <double>count - correction
    if is_remote(x.v):
        memcpy(&word, &divisor, sizeof(double))
        y = remote_result(op, (<int64_t>mask, count, word), x.v, NULL, NULL, ndim, shape, x.v.dtype)
    else:
        y = value_new(ndim, shape, x.v.dtype)
    try:
        if not is_remote(y):
            execute_var(op, mask, divisor, x.v, y)
        step_ends(ts, start, op, 1, &x.v, y)
        if wants_record(ts, x.node, y.dtype):
            e = record(ts, op, 1, &x.node, &x.v, y, SAVE_A | SAVE_Y if op == OP_STD else SAVE_A)
            e.params = params_new(3)
            e.params[1] = <int64_t>mask
            e.params[2] = count
            memcpy(&e.params[3], &divisor, sizeof(double))
    except:
        value_release(y)
        entry_release(e)
        raise
    return wrap(y, e)


# ---- the public functions


def any(x, axis=None, keepdims=False):
    """Whether any element along the axes is true, that is not 0; NaN is true. False over no elements.

    >>> tp.any(tp.tensor([[0.0, 2.0], [0.0, 0.0]]), axis=1).tolist()
    [True, False]
    """
    cdef Tensor t = as_tensor_for(OP_ANY, x)
    return op_truth(OP_ANY, t, axes_mask(axis, t.v.ndim, b"any"), keepdims)


def all(x, axis=None, keepdims=False):
    """Whether all elements along the axes are true, that is not 0; NaN is true. True over no elements.

    >>> tp.all(tp.tensor([[1.0, 2.0], [0.0, 3.0]]), axis=1).tolist()
    [True, False]
    """
    cdef Tensor t = as_tensor_for(OP_ALL, x)
    return op_truth(OP_ALL, t, axes_mask(axis, t.v.ndim, b"all"), keepdims)


def count_nonzero(x, axis=None, keepdims=False):
    """How many elements along the axes are not 0, as int64; NaN counts.

    >>> tp.count_nonzero(tp.tensor([[0.0, 2.0], [3.0, 4.0]]), axis=1).tolist()
    [1, 2]
    """
    cdef Tensor t = as_tensor_for(OP_COUNT_NONZERO, x)
    return op_reduce(OP_COUNT_NONZERO, t, axes_mask(axis, t.v.ndim, b"count_nonzero"), False, keepdims)


def argmin(x, axis=None, keepdims=False):
    """Position of the first smallest element along an axis, or in the flattened x for None, as int64; NaN comes first.

    Raises ShapeError where the axis holds no elements.

    >>> tp.argmin(tp.tensor([[3.0, 1.0, 1.0], [0.0, 5.0, 6.0]]), axis=1).tolist()
    [1, 0]
    """
    cdef Tensor t = as_tensor_for(OP_ARGMIN, x)
    cdef uint64_t mask
    if axis is None:
        mask = axes_mask(None, t.v.ndim, b"argmin")
    else:
        mask = <uint64_t>1 << normal_axis(axis, t.v.ndim, b"argmin")
    return op_reduce(OP_ARGMIN, t, mask, False, keepdims)


cdef Tensor variance(int op, Tensor x, object axis, bint keepdims, object correction):
    correction = as_number(correction)
    if PyBool_Check(correction) or not isinstance(correction, (_int, _float, numpy.integer, numpy.floating)):
        raise errors.DTypeError(f"[{tpf_op_name[op].decode()}] correction must be a number, "
                                f"got {type(correction).__name__}.")
    return op_var(op, x, axes_mask(axis, x.v.ndim, tpf_op_name[op]), keepdims, correction)


def var(x, axis=None, keepdims=False, *, correction=0):
    """Mean squared distance from the mean along the axes.

    Parameters
    ----------
    x : Tensor
        Integers and bool are taken in the default dtype.
    axis : int, tuple of ints or None
        None: all axes.
    keepdims : bool
        Keep the reduced axes, with size 1.
    correction : number
        What is taken off the number of elements in the divisor (NumPy: ddof); 1 for an unbiased estimate. With no
        degrees of freedom left, value and gradient are NaN.

    Computed in float64. The sum over (x - m)^2 is corrected for the rounding of m (Chan, Golub and LeVeque, 1983,
    equation 1.7).

    >>> tp.var(tp.tensor([1.0, 2.0, 3.0, 6.0])).item()
    3.5
    """
    return variance(OP_VAR, as_tensor_for(OP_VAR, x), axis, keepdims, correction)


def std(x, axis=None, keepdims=False, *, correction=0):
    """Standard deviation along the axes: the square root of var, with the same arguments.

    Where all elements are equal the gradient is 0.

    >>> tp.std(tp.tensor([1.0, 1.0, 3.0, 3.0])).item()
    1.0
    """
    return variance(OP_STD, as_tensor_for(OP_STD, x), axis, keepdims, correction)


def nansum(x, axis=None, keepdims=False):
    """Sum over the axes, NaN taken as 0; the gradient of a NaN is 0.

    >>> tp.nansum(tp.tensor([1.0, float("nan"), 3.0])).item()
    4.0
    """
    cdef Tensor t = as_tensor_for(OP_NANSUM, x)
    return op_reduce(OP_NANSUM if is_float(t.v.dtype) else OP_SUM, t, axes_mask(axis, t.v.ndim, b"nansum"), False,
                     keepdims)


def euclidean_norm(x, axis, keepdims, op):
    """The root of the sum of squares over axes, for the norms of reductions.py; errors are op's."""
    cdef Tensor t = as_float(as_tensor_for(OP_VECTOR_NORM, x))
    return op_reduce(OP_VECTOR_NORM, t, axes_mask(axis, t.v.ndim, op.encode()), False, keepdims)


def differences(x, n, axis):
    """x[1:] - x[:-1] along axis, n times; of bool, whether they differ. For reductions.diff, which checks."""
    cdef Tensor t = x
    cdef int a = axis
    cdef int64_t times = n if n < t.v.shape[a] else t.v.shape[a]
    cdef int64_t size
    cdef int op = OP_NOT_EQUAL if t.v.dtype == TPF_BOOL else OP_SUBTRACT
    if times == 0:
        return op_identity(t)
    while times:
        size = t.v.shape[a] - 1
        t = call2(op, narrow(t, a, 1, size), narrow(t, a, 0, size))
        times -= 1
    return t


def trapezoid_sum(y, axis):
    """The mean of the sums along axis without the first and without the last, for reductions.trapezoid."""
    cdef Tensor t = y
    cdef int a = axis
    cdef int64_t size = t.v.shape[a] - 1 if t.v.shape[a] else 0
    cdef uint64_t mask = <uint64_t>1 << a
    cdef Tensor tail = op_reduce(OP_SUM, narrow(t, a, t.v.shape[a] - size, size), mask, False, False)
    return call2(OP_MULTIPLY, call2(OP_ADD, tail, op_reduce(OP_SUM, narrow(t, a, 0, size), mask, False, False)), 0.5)
