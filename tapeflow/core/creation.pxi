# Tensors that no op computes: of sizes and numbers, of plain lists, of NumPy's arrays. What else data can come in as is
# left to _creation.py.

cdef inline int dtype_or_default(object dtype, str op) except -1:
    return default_float if dtype is None else dtype_code(dtype, op)


cdef inline Tensor made(Value *v, bint requires_grad, object device, str op):
    """The tensor of a constant, which is taken over, on the device that was asked for."""
    cdef Tensor t = placed_on(wrap(as_constant(v), NULL), device, op)
    return t.requires_grad_() if requires_grad else t


cdef inline object beside(Tensor x, object device):
    """The device that was asked for, or x's; None for the default one of Python's data."""
    return device if device is not None or not (is_remote(x.v) or devices_asked and not x.v.loose) else x.device


cdef inline int number_dtype(object number) noexcept:
    """The dtype that a Python number becomes."""
    return default_float if PyFloat_CheckExact(number) else TPF_BOOL if PyBool_Check(number) else TPF_INT64


cdef Value *full_value(int ndim, const int64_t *shape, object number, object dtype) except NULL:
    """One number everywhere, of its own dtype for None."""
    cdef int64_t word = 0
    cdef const void *from_here = &word
    cdef int code
    cdef Tensor t
    cdef Value *v
    if is_number(number):
        code = number_dtype(number) if dtype is None else dtype_code(dtype, "full")
        write_number(&word, code, number, b"full")
    else:
        t = one_number(number)
        code = t.v.dtype if dtype is None else dtype_code(dtype, "full")
        t = op_astype(op_move(t.detach(), None), code)
        from_here = t.v.data
    v = value_new(ndim, shape, code)
    tpf_fill(v.data, from_here, tpf_itemsize(code), v.size)
    return v


cdef Tensor one_number(object x):
    cdef Tensor t = as_tensor(x)
    if t.v.size != 1:
        raise errors.ShapeError(f"[full] fill_value must be one number, got shape {shape_of(t.v)}.")
    return t


cdef Tensor full_of(int ndim, const int64_t *shape, object number, object dtype, bint requires_grad, object device,
                    str op):
    """A tensor with one number everywhere; where that is a tensor of a recording, made by ops that a replay repeats."""
    cdef Tensor t
    if device is None and isinstance(number, Tensor) and is_remote((<Tensor>number).v):
        device = number.device
    if not isinstance(number, Tensor) or not thread_state().flags & T_TAPE:
        return made(full_value(ndim, shape, number, dtype), requires_grad, device, op)
    if type(number) is WeakFloat:
        t = weak_tensor(number, default_float if dtype is None else dtype_code(dtype, "full"), b"full").detach()
    else:
        t = one_number(number).detach()
        t = t if dtype is None else op_astype(t, dtype_code(dtype, "full"))
    if device is not None or devices_asked:
        t = op_move(t, _creation.place(device, op))
    t = settled(op_broadcast(op_reshape(t, 0, NULL), ndim, shape))
    return t.requires_grad_() if requires_grad else t


def empty(shape, dtype=None, device=None, bint requires_grad=False):
    """A tensor whose elements are not set."""
    cdef int64_t sizes[64]
    cdef int ndim = read_shape(shape, sizes, b"empty")
    check_sizes(ndim, sizes, b"empty")
    return made(value_new(ndim, sizes, dtype_or_default(dtype, "empty")), requires_grad, device, "empty")


def zeros(shape, dtype=None, device=None, bint requires_grad=False):
    """A tensor of zeros.

    >>> tp.zeros((2, 2)).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    cdef int64_t sizes[64]
    cdef int ndim = read_shape(shape, sizes, b"zeros")
    check_sizes(ndim, sizes, b"zeros")
    return made(zeros_value(ndim, sizes, dtype_or_default(dtype, "zeros")), requires_grad, device, "zeros")


def ones(shape, dtype=None, device=None, bint requires_grad=False):
    """A tensor of ones.

    >>> tp.ones(3).tolist()
    [1.0, 1.0, 1.0]
    """
    cdef int64_t sizes[64]
    cdef int ndim = read_shape(shape, sizes, b"ones")
    check_sizes(ndim, sizes, b"ones")
    cdef Value *v = full_value(ndim, sizes, 1, _numpy_dtypes[default_float] if dtype is None else dtype)
    return made(v, requires_grad, device, "ones")


def full(shape, fill_value, dtype=None, device=None, bint requires_grad=False):
    """A tensor with one number everywhere; the dtype is that of the number unless given."""
    cdef int64_t sizes[64]
    cdef int ndim = read_shape(shape, sizes, b"full")
    check_sizes(ndim, sizes, b"full")
    return full_of(ndim, sizes, fill_value, dtype, requires_grad, device, "full")


def empty_like(x, dtype=None, device=None, bint requires_grad=False):
    """A tensor of x's shape whose elements are not set."""
    cdef Tensor t = as_tensor(x)
    cdef Value *v = value_like(t.v, t.v.dtype if dtype is None else dtype_code(dtype, "empty_like"))
    return made(v, requires_grad, beside(t, device), "empty_like")


def zeros_like(x, dtype=None, device=None, bint requires_grad=False):
    """Zeros of x's shape, and dtype unless given."""
    cdef Tensor t = as_tensor(x)
    return made(zeros_value(t.v.ndim, t.v.shape, t.v.dtype if dtype is None else dtype_code(dtype, "zeros_like")),
                requires_grad, beside(t, device), "zeros_like")


def ones_like(x, dtype=None, device=None, bint requires_grad=False):
    """Ones of x's shape, and dtype unless given."""
    cdef Tensor t = as_tensor(x)
    cdef Value *v = full_value(t.v.ndim, t.v.shape, 1, _numpy_dtypes[t.v.dtype] if dtype is None else dtype)
    return made(v, requires_grad, beside(t, device), "ones_like")


def full_like(x, fill_value, dtype=None, device=None, bint requires_grad=False):
    """A tensor of x's shape with one number everywhere; of x's dtype unless given."""
    cdef Tensor t = as_tensor(x)
    dtype = _numpy_dtypes[t.v.dtype] if dtype is None else dtype
    if isinstance(fill_value, Tensor) and is_remote((<Tensor>fill_value).v) and device is None and not t.v.loose:
        sent_to(fill_value, t.v, b"full_like")
    return full_of(t.v.ndim, t.v.shape, fill_value, dtype, requires_grad, beside(t, device), "full_like")


cdef Tensor filled(int ndim, const int64_t *shape, Tensor t):
    cdef Value *v = value_new(ndim, shape, t.v.dtype)
    tpf_fill(v.data, t.v.data, tpf_itemsize(v.dtype), v.size)
    return wrap(as_constant(v), NULL)


cdef Tensor full_shape(int ndim, const int64_t *shape, int dtype, object number):
    return filled(ndim, shape, number_tensor(number, dtype, b"full"))


cdef Tensor same_full(Value *like, object number):
    """One number everywhere, in like's shape and dtype."""
    return full_shape(like.ndim, like.shape, like.dtype, number)


# ---- evenly spaced numbers

cdef struct Ramp:
    void *out
    double start, step
    int dtype


cdef void ramp_range(void *context, int64_t begin, int64_t end) noexcept nogil:
    """start + step * i in double, each rounded once. i is a short count on top of a long one, for vectors."""
    cdef Ramp *r = <Ramp *>context
    cdef double start = r.start
    cdef double step = r.step
    cdef double base
    cdef float *narrow_out
    cdef double *wide_out
    cdef int n, j
    while begin < end:
        n = <int>(end - begin) if end - begin < 4096 else 4096
        base = <double>begin
        if r.dtype == TPF_FLOAT32:
            narrow_out = <float *>r.out + begin
            for j in range(n):
                narrow_out[j] = <float>(start + step * (base + <double>j))
        else:
            wide_out = <double *>r.out + begin
            for j in range(n):
                wide_out[j] = start + step * (base + <double>j)
        begin += n


cdef Value *ramp_value(int64_t n, double start, double step, int dtype) except NULL:
    """start + step * i for i < n, rounded once to a float dtype; through float64 to any other."""
    cdef Ramp r
    cdef Value *wide
    cdef Value *v = value_new(1, &n, dtype if is_float(dtype) else TPF_FLOAT64)
    r.out, r.start, r.step, r.dtype = v.data, start, step, v.dtype
    if n < 4 * RELEASE_GIL:
        ramp_range(&r, 0, n)
    else:
        tpf_parallel(ramp_range, &r, n, RELEASE_GIL)
    if v.dtype == dtype:
        return v
    wide = v
    try:
        return value_cast(wide, dtype)
    finally:
        value_release(wide)


cdef Value *ramp_of_ints(int64_t n, int64_t start, int64_t step, int dtype) except NULL:
    """start + step * i for i < n, from int64."""
    cdef Value *v = value_new(1, &n, TPF_INT64)
    cdef int64_t *out = <int64_t *>v.data
    cdef int64_t i
    for i in range(n):
        out[i] = <int64_t>(<uint64_t>start + <uint64_t>step * <uint64_t>i)  # the product alone may pass 64 bits
    try:
        return value_cast(v, dtype)
    finally:
        value_release(v)


cdef Tensor arange_int(int64_t n):
    return wrap(as_constant(ramp_of_ints(n, 0, 1, TPF_INT64)), NULL)


cdef int check_range_number(object x) except -1:
    """Is x a finite number that arange can take? Returns whether it is a float."""
    cdef bint real = PyFloat_CheckExact(x)
    if not real and not PyLong_CheckExact(x):
        if PyBool_Check(x) or not isinstance(x, (_int, _float, numpy.integer, numpy.floating)):
            raise errors.DTypeError(f"[arange] start, stop and step must be numbers, got {type(x).__name__}.")
        real = isinstance(x, (_float, numpy.floating))
    cdef int over = 0
    cdef double d
    if not real:
        PyLong_AsLongLongAndOverflow(x, &over)
        if over:
            raise errors.NumberRangeError("[arange] start, stop and step must fit 64 bits.")
        return False
    d = x
    if d - d != 0:
        raise errors.NumberRangeError(f"[arange] start, stop and step must be finite, got {x}.")
    return real


def arange(start, stop=None, step=1, dtype=None, device=None, bint requires_grad=False):
    """Numbers from start up to, not including, stop; of the default dtype when an argument is a float, else int64.

    >>> tp.arange(0, 10, 4).tolist()
    [0, 4, 8]
    """
    cdef bint real
    cdef double first, by
    cdef int64_t count
    cdef int64_t most = <int64_t>1 << 40
    cdef int code
    cdef double exact = 4503599627370496.0  # 2**52: differences of ints up to here are exact in float64
    cdef double steps
    start, stop, step = as_number(start), as_number(stop), as_number(step)
    if stop is None:
        start, stop = 0, start
    real = check_range_number(start) | check_range_number(stop) | check_range_number(step)
    first, by = start, step
    if by == 0:
        raise errors.NumberRangeError("[arange] step must not be 0.")
    steps = stop
    if real or (-exact <= first <= exact and -exact <= steps <= exact and -exact <= by <= exact):
        steps = c_ceil((steps - first) / by)
        count = <int64_t>steps if steps <= most else most + 1
    else:
        ints = -((_int(start) - _int(stop)) // _int(step))
        steps, count = ints, ints if 0 <= ints <= most else most + 1
    if steps <= 0:
        count = 0
    if count > most:
        raise errors.DeviceOutOfMemory(f"[arange] {steps:.0f} elements do not fit into memory.")
    if dtype is None:
        code = default_float if real else TPF_INT64
    else:
        code = dtype_code(dtype, "arange")
    if real or (is_float(code) and -exact <= first <= exact and -exact <= first + by * <double>count <= exact):
        return made(ramp_value(count, first, by, code), requires_grad, device, "arange")
    return made(ramp_of_ints(count, start, step, code), requires_grad, device, "arange")


def linspace(start, stop, num, dtype=None, device=None, bint endpoint=True, bint requires_grad=False):
    """num numbers, evenly spaced from start to stop (included unless endpoint=False).

    >>> tp.linspace(0.0, 1.0, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    cdef int64_t n = -1
    cdef int64_t i
    cdef double first = start
    cdef double last = stop
    cdef double parts, step
    cdef int code
    cdef Value *v
    cdef Tensor t
    if isinstance(num, (_int, numpy.integer)) and not PyBool_Check(num):
        n = num if num <= 1 << 62 else 1 << 62
    if n < 0:
        raise errors.ShapeError(f"[linspace] num must be a non-negative int, got {num!r}.")
    if n > <int64_t>1 << 40:
        raise errors.DeviceOutOfMemory(f"[linspace] {num} elements do not fit into memory.")
    code = dtype_or_default(dtype, "linspace")
    parts = <double>(n - 1 if endpoint else n)
    step = (last - first) / parts if parts > 0 else 0
    v = ramp_value(n, first, step, code if is_float(code) else TPF_FLOAT64)
    if step == 0 and last != first and parts > 0:  # it has underflown: divided first, then multiplied
        for i in range(n):
            if v.dtype == TPF_FLOAT32:
                (<float *>v.data)[i] = <float>(first + <double>i / parts * (last - first))
            else:
                (<double *>v.data)[i] = first + <double>i / parts * (last - first)
    if endpoint and n > 1:
        if v.dtype == TPF_FLOAT32:
            (<float *>v.data)[n - 1] = <float>last
        else:
            (<double *>v.data)[n - 1] = last
    if v.dtype != code:
        t = wrap(v, NULL)
        return made(value_cast(t.v, code), requires_grad, device, "linspace")
    return made(v, requires_grad, device, "linspace")


def eye(n_rows, n_cols=None, k=0, dtype=None, device=None, bint requires_grad=False):
    """Ones on the k-th diagonal of a matrix of zeros.

    >>> tp.eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    cdef int64_t sizes[2]
    cdef int64_t one = 0
    cdef int64_t at, row, column
    cdef int code, itemsize
    cdef Value *v
    sizes[0] = as_index(n_rows, b"eye", "a size")
    sizes[1] = sizes[0] if n_cols is None else as_index(n_cols, b"eye", "a size")
    check_sizes(2, sizes, b"eye")
    at = as_index(k, b"eye", "k")
    code = dtype_or_default(dtype, "eye")
    itemsize = tpf_itemsize(code)
    write_number(&one, code, 1, b"eye")
    v = zeros_value(2, sizes, code)
    if at > -sizes[0] and at < sizes[1]:
        row = -at if at < 0 else 0
        column = at if at > 0 else 0
        while row < sizes[0] and column < sizes[1]:
            memcpy(v.data + (row * sizes[1] + column) * itemsize, &one, itemsize)
            row += 1
            column += 1
    return made(v, requires_grad, device, "eye")


# ---- data


cdef extern from *:
    """
    /* The head of a NumPy array, as NumPy's ABI has it, so that a plain array can be read without calls. Whether this
       NumPy's is the same is looked at when the module is imported. */
    typedef struct {
        PyObject_HEAD
        char *data;
        int nd;
        Py_ssize_t *dimensions, *strides;
        PyObject *base, *descr;
        int flags;
    } tpf_ndarray;
    """
    ctypedef struct tpf_ndarray:
        char *data
        int nd
        Py_ssize_t *dimensions
        Py_ssize_t *strides
        PyObject *descr
        int flags


cdef extern from "Python.h":
    PyObject **PySequence_Fast_ITEMS(object)
    Py_ssize_t PySequence_Fast_GET_SIZE(object)
    bint PyList_CheckExact(object)
    bint PyTuple_CheckExact(object)


cdef enum:
    ARRAY_CONTIGUOUS = 1
    ARRAY_ALIGNED = 256


cdef bint head_is_known():
    a = numpy.zeros((3, 5), numpy.float32)[:, 1:4]
    cdef tpf_ndarray *head = <tpf_ndarray *><PyObject *>a
    return (sizeof(Py_ssize_t) == sizeof(int64_t) and <uintptr_t>head.data == <uintptr_t>a.ctypes.data
            and head.nd == 2 and a.shape == (head.dimensions[0], head.dimensions[1])
            and a.strides == (head.strides[0], head.strides[1]) and head.descr == <PyObject *>a.dtype
            and head.flags == a.flags.num)


cdef bint _head_known = head_is_known()


cdef Value *copy_of_array(object array, str op) except NULL:
    """An array's value in our own memory."""
    cdef tpf_ndarray *a = <tpf_ndarray *><PyObject *>array
    cdef int code = -1
    cdef Value *v
    if _head_known and type(array) is _ndarray and a.flags & ARRAY_ALIGNED:
        code = known_dtype(<object>a.descr)
    if code < 0:
        return value_from_numpy(array, True, op, array)
    v = value_new(a.nd, <const int64_t *>a.dimensions, code)
    if a.flags & ARRAY_CONTIGUOUS and v.size < RELEASE_GIL:
        memcpy(v.data, a.data, v.size * tpf_itemsize(code))
    else:
        tpf_copy(v.data, v.strides, a.data, <const int64_t *>a.strides, tpf_itemsize(code), v.ndim, v.shape)
    if code == TPF_BOOL:  # bytes other than 0 and 1 are true, too
        kernels.cast[TPF_UINT8][TPF_BOOL](v.data, v.data, v.size)
    return v


cdef enum:
    LIST_NDIM = 8
    OF_BOOL = 1
    OF_INT = 2
    OF_FLOAT = 4
    OF_ELSE = 8


cdef inline bint is_list(PyObject *x) noexcept:
    return PyList_CheckExact(<object>x) or PyTuple_CheckExact(<object>x)


cdef int list_shape(object data, int64_t *shape) noexcept:
    """The shape of nested lists by the first of each depth; returns ndim, or -1 for more than LIST_NDIM."""
    cdef int ndim = 0
    cdef PyObject *x = <PyObject *>data
    while is_list(x):
        if ndim == LIST_NDIM:
            return -1
        shape[ndim] = PySequence_Fast_GET_SIZE(<object>x)
        ndim += 1
        if shape[ndim - 1] == 0:
            break
        x = PySequence_Fast_ITEMS(<object>x)[0]
    return ndim


cdef int list_kinds(PyObject *data, int ndim, const int64_t *shape) noexcept:
    """What numbers there are in nested lists, which must have this shape; OF_ELSE, with others, where it is not so."""
    cdef int64_t i
    cdef int kinds = 0
    cdef PyObject *x
    cdef PyObject **items
    if not is_list(data) or PySequence_Fast_GET_SIZE(<object>data) != shape[0]:
        return OF_ELSE
    items = PySequence_Fast_ITEMS(<object>data)
    for i in range(shape[0]):
        x = items[i]
        if ndim > 1:
            kinds |= list_kinds(x, ndim - 1, shape + 1)
        elif PyFloat_CheckExact(<object>x):
            kinds |= OF_FLOAT
        elif PyLong_CheckExact(<object>x):
            kinds |= OF_INT
        else:
            kinds |= OF_BOOL if PyBool_Check(<object>x) else OF_ELSE
    return kinds


cdef char *write_list(char *out, int dtype, PyObject *data, int ndim, int64_t n, const int64_t *shape) noexcept:
    """The numbers of nested lists of this shape, in C order; returns the end, or NULL where one does not fit."""
    cdef PyObject **items = PySequence_Fast_ITEMS(<object>data)
    cdef int itemsize = tpf_itemsize(dtype)
    cdef int over = 0
    cdef int64_t i, number
    cdef double real
    for i in range(n):
        if ndim > 1:
            out = write_list(out, dtype, items[i], ndim - 1, shape[1], shape + 1)
            if out == NULL:
                return NULL
            continue
        if dtype >= TPF_FLOAT32:
            if PyFloat_CheckExact(<object>items[i]):
                real = PyFloat_AS_DOUBLE(<object>items[i])
            else:
                real = PyFloat_AsDouble(<object>items[i])
                if real == -1.0 and PyErr_Occurred():
                    PyErr_Clear()
                    return NULL
            if dtype == TPF_FLOAT32:
                (<float *>out)[0] = <float>real
            else:
                (<double *>out)[0] = real
        else:
            number = PyLong_AsLongLongAndOverflow(<object>items[i], &over)
            if over or (dtype == TPF_INT32 and number != <int32_t>number) or (
                    dtype == TPF_UINT8 and number != <uint8_t>number):
                return NULL
            if dtype == TPF_INT64:
                (<int64_t *>out)[0] = number
            elif dtype == TPF_INT32:
                (<int32_t *>out)[0] = <int32_t>number
            else:
                (<uint8_t *>out)[0] = <uint8_t>number
        out += itemsize
    return out


cdef Tensor tensor_of_list(object data, object dtype, str op):
    """A tensor of nested lists of plain numbers; None where there is more to them, or something wrong."""
    cdef int64_t shape[LIST_NDIM]
    cdef int ndim = list_shape(data, shape)
    cdef int kinds = OF_ELSE if ndim < 0 else list_kinds(<PyObject *>data, ndim, shape)
    cdef int code
    cdef Value *v
    if kinds & OF_ELSE:
        return None
    if dtype is not None:
        code = dtype_code(dtype, op)
    else:
        code = TPF_BOOL if kinds == OF_BOOL else TPF_INT64 if kinds and not kinds & OF_FLOAT else default_float
    if (kinds & OF_FLOAT and code < TPF_FLOAT32) or (code == TPF_BOOL and kinds != OF_BOOL):
        return None
    v = value_new(ndim, shape, code)
    if v.size and write_list(v.data, code, <PyObject *>data, ndim, shape[0], shape) == NULL:
        value_release(v)
        return None
    return wrap(as_constant(v), NULL)


cdef Tensor converted(object obj, str op, object dtype):
    """Anything that data can come in as a new constant tensor; lists with tensors inside are stacked (and recorded)."""
    cdef Tensor t = None
    if type(obj) is _ndarray:
        t = wrap(as_constant(copy_of_array(obj, op)), NULL)
        return t if dtype is None else op_astype(t, dtype_code(dtype, "astype"))
    if is_list(<PyObject *>obj):
        t = tensor_of_list(obj, dtype, op)
    elif is_number(obj):
        t = from_number(obj, dtype, op)
    return t if t is not None else _creation.convert(obj, op, dtype)


def tensor(data, dtype=None, device=None, bint requires_grad=False):
    """A new leaf tensor with a copy of data.

    Parameters
    ----------
    data : number, nested lists of numbers, NumPy array, Tensor
        Python floats become the default dtype, ints int64; NumPy arrays and scalars keep theirs.
    dtype : str or NumPy dtype, optional
        One of bool, uint8, int32, int64, float32, float64.
    device : str, optional
        "cpu", "opencl", "opencl:1" or a part of a device's name; None: the default device, of a tensor its own.
    requires_grad : bool
        Make it a leaf that gradients are added up for; float dtypes only.

    >>> tp.tensor([1.0, 2.0]).dtype
    dtype('float32')
    """
    cdef Tensor t
    cdef Tensor of
    if isinstance(data, Tensor):
        of = data
        device = beside(of, device)
        t = (strong(of) if dtype is None else of).detach()
        t = t.clone() if dtype is None else t.astype(dtype)
        if thread_state().flags & T_TAPE:  # of a recording it is a value like another
            t = t.detach()
        elif not is_remote(t.v):
            t = from_numpy(t.numpy(), True, "tensor")
    else:
        t = converted(data, "tensor", dtype)
        if t.node != NULL:
            t = t.detach()
        device = beside(t, device)
    t = placed_on(t, device, "tensor")
    return t.requires_grad_() if requires_grad else t


def asarray(obj, dtype=None, device=None, copy=None):
    """obj as a tensor: a tensor itself, or the data in a new one (Python Array API).

    Memory is shared only with copy=False, and then the writes of its owner show. Lists with tensors inside are stacked,
    and recorded.
    """
    cdef Tensor t
    cdef int code
    if isinstance(obj, Tensor):
        t = strong(obj) if dtype is None else hold(obj) if type(obj) is WeakFloat else obj
        if device is not None:
            t = op_move(t, _creation.place(device, "asarray"))
        code = t.v.dtype if dtype is None else dtype_code(dtype, "asarray")
        if code == t.v.dtype:
            return op_identity(t) if copy else t
        if copy is False:
            raise ValueError(f"[asarray] a {dtype_name(t.v.dtype)} tensor cannot become {dtype} without a copy. "
                             "Leave copy=False out.")
        return op_astype(t, code)
    if copy is False:
        if device is not None and _creation.place(device, "asarray") is not None:
            raise ValueError(f"[asarray] memory of the cpu cannot be on {device} without a copy. Leave copy=False out.")
        return settled(_creation.shared(obj, dtype))
    t = converted(obj, "asarray", dtype)
    return placed_on(t, beside(t, device), "asarray")


def from_number(number, dtype, str op):
    """A 0-d tensor of a Python number (for the Python parts of the package)."""
    cdef int code = number_dtype(number) if dtype is None else dtype_code(dtype, op)
    if PyFloat_CheckExact(number) and not is_float(code):
        return op_astype(number_tensor(number, TPF_FLOAT64, op.encode()), code)
    return number_tensor(number, code, op.encode())


def from_numpy(array, bint copy, str op, owner=None, bint loose=False):
    """A tensor of a NumPy array, with a copy or over memory that owner (or the array) keeps alive; for the Python parts
    of the package. loose: it goes to the device of what it meets."""
    cdef Value *v = as_constant(value_from_numpy(array, copy, op, array if owner is None else owner))
    v.loose = loose
    return wrap(v, NULL)


def result_type(*args):
    """The dtype of an op over these tensors, dtypes and Python numbers, by tapeflow's promotion.

    >>> tp.result_type("int64", "float32")
    dtype('float32')
    """
    cdef int strong = -1
    cdef int weak = 0
    cdef int code
    if not args:
        raise errors.DTypeError("[result_type] expected at least one tensor, dtype or number.")
    for x in args:
        if is_number(x) or type(x) is WeakFloat:
            code = 3 if isinstance(x, (float, WeakFloat)) else 1 if PyBool_Check(x) else 2
            weak = code if code > weak else weak
            continue
        if isinstance(x, Tensor):
            code = (<Tensor>x).v.dtype
        else:
            code = dtype_or_default(x.dtype if isinstance(x, (_ndarray, _np_generic)) else x, "result_type")
        strong = code if code > strong else strong
    return _numpy_dtypes[compute_dtype(OP_MAXIMUM, strong, weak)]
