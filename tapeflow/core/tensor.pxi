# The Tensor: a value, its place on the tape, and Python's protocols.

cdef dict _dtype_codes = {"bool": TPF_BOOL, "uint8": TPF_UINT8, "int32": TPF_INT32, "int64": TPF_INT64,
                          "float32": TPF_FLOAT32, "float64": TPF_FLOAT64}
cdef tuple _dtype_names = ("bool", "uint8", "int32", "int64", "float32", "float64")
cdef dict _numpy_codes = {numpy.dtype(name): code for name, code in _dtype_codes.items()}
cdef tuple _numpy_dtypes = tuple([numpy.dtype(name) for name in _dtype_names])
cdef PyObject *_dtype_objects[6]
for _at, _dtype in enumerate(_numpy_dtypes):
    _dtype_objects[<int>_at] = <PyObject *>_dtype


cdef inline int known_dtype(object dtype) noexcept:
    """The code of one of NumPy's own dtype objects, or -1."""
    cdef int code
    for code in range(6):
        if <PyObject *>dtype == _dtype_objects[code]:
            return code
    return -1


cdef str dtype_name(int dtype):
    return _dtype_names[dtype]


cdef str describe(Value *v):
    return f"{_dtype_names[v.dtype]}{list(shape_of(v))}"


cdef str short(object x):
    cdef str text = repr(x)
    return text if len(text) <= 40 else text[:20] + "..." + text[len(text) - 10:]


cdef int dtype_code(object dtype, str op) except -1:
    """The code of a dtype argument: a name, a NumPy dtype or scalar type, one of tp's dtypes, or Python's own types."""
    cdef int known = known_dtype(dtype)
    if known >= 0:
        return known
    if isinstance(dtype, str):
        code = _dtype_codes.get(dtype)
        if code is not None:
            return code
    if dtype is _float:
        return default_float
    if dtype is _int:
        return TPF_INT64
    if dtype is _bool:
        return TPF_BOOL
    try:
        code = _numpy_codes.get(numpy.dtype(dtype))
    except TypeError:
        code = None
    if code is None or dtype is None:
        raise errors.DTypeError(f"[{op}] dtype {dtype!r} is not supported. Use one of {', '.join(_dtype_names)}.")
    return code


def set_default_dtype(dtype):
    """Set the dtype that Python floats become: "float32" (at the start) or "float64".

    >>> tp.set_default_dtype("float32")
    """
    global default_float
    cdef int code = dtype_code(dtype, "set_default_dtype")
    if not is_float(code):
        raise errors.DTypeError(f"[set_default_dtype] expected float32 or float64, got {dtype_name(code)}.")
    default_float = code


def get_default_dtype():
    """The dtype that Python floats become, as a NumPy dtype."""
    return _numpy_dtypes[default_float]


cdef int default_float = TPF_FLOAT32


cdef class _Export:
    """A value for NumPy to look at, read-only; it owns a share of the memory as long as an array lives."""
    cdef Value *v
    cdef Py_ssize_t dims[128]

    def __dealloc__(self):
        value_release(self.v)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef Value *v = self.v
        cdef int d
        if v == NULL:
            raise BufferError("[numpy] nothing is exported.")
        if flags & PyBUF_WRITABLE:
            raise BufferError("[numpy] a tensor's memory is exported read-only. Copy it first: np.array(t).")
        if not v.contiguous and (flags & PyBUF_STRIDES) != PyBUF_STRIDES:
            raise BufferError("[numpy] this tensor is strided; the reader must accept strides.")
        for d in range(v.ndim):
            self.dims[d] = v.shape[d]
            self.dims[v.ndim + d] = v.strides[d]
        buffer.buf = v.data
        buffer.obj = self
        buffer.len = v.size * tpf_itemsize(v.dtype)
        buffer.itemsize = tpf_itemsize(v.dtype)
        buffer.readonly = 1
        buffer.ndim = v.ndim
        buffer.format = <char *>_formats[v.dtype] if flags & PyBUF_FORMAT else NULL
        buffer.shape = self.dims if flags & PyBUF_ND else NULL
        buffer.strides = &self.dims[v.ndim] if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL

cdef const char *_formats[6]
_formats[0] = b"?"
_formats[1] = b"B"
_formats[2] = b"i"
_formats[3] = b"l" if sizeof(long) == 8 else b"q"
_formats[4] = b"f"
_formats[5] = b"d"


cdef object to_numpy(Value *v):
    """A read-only array over v's memory; of a device a copy."""
    if is_remote(v):
        try:
            array = device_of(v).download(array_at(v))
        except MemoryError as error:
            if isinstance(error, errors.TapeflowError):
                raise
            raise_memory(v.ndim, v.shape, v.dtype)
        array.flags.writeable = False
        return array
    cdef _Export e = _Export.__new__(_Export)
    e.v = value_share(v)
    return numpy.asarray(e)


cdef Value *value_from_numpy(object array, bint copy, str op, object owner) except NULL:
    """An array's value: in our own memory, or over the array's, which owner keeps alive."""
    cdef Py_buffer view
    cdef Value *v
    cdef Value *packed
    cdef int d
    code = _numpy_codes.get(array.dtype if array.dtype.isnative else array.dtype.newbyteorder("="))
    if code is None:
        raise errors.DTypeError(f"[{op}] arrays of dtype {array.dtype} are not supported. "
                                f"Cast to one of {', '.join(_dtype_names)}.")
    if not (array.flags.aligned and array.dtype.isnative):
        if not copy:
            raise errors.DTypeError(f"[{op}] the array is not aligned in native byte order and must be copied. "
                                    "Leave copy=False out.")
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    PyObject_GetBuffer(array, &view, PyBUF_STRIDED_RO)
    try:
        v = value_raw(view.ndim)
        if v == NULL:
            raise MemoryError()
        v.dtype = code
        for d in range(view.ndim):
            v.shape[d] = view.shape[d]
            v.strides[d] = view.strides[d]
        v.data = <char *>view.buf
        view_done(v)
        if copy:
            try:
                packed = value_copy(v)
            finally:
                value_release(v)
            if code == TPF_BOOL:  # bytes other than 0 and 1 are true, too
                kernels.cast[TPF_UINT8][TPF_BOOL](packed.data, packed.data, packed.size)
            return packed
        try:
            if code == TPF_BOOL and (array.view(numpy.uint8) > 1).any():
                raise ValueError(f"[{op}] the bool array holds bytes other than 0 and 1 and must be copied. "
                                 "Leave copy=False out.")
            v.buf = buffer_foreign(v.data, view.len, owner, BORROWED)
        except:
            value_release(v)
            raise
        return v
    finally:
        PyBuffer_Release(&view)


cdef inline Tensor wrap(Value *v, Entry *node):
    """A tensor of v at node; both shares are taken over."""
    cdef Tensor t = Tensor.__new__(Tensor)
    fill_tensor(t, v, node)
    return t


cdef inline void fill_tensor(Tensor t, Value *v, Entry *node) noexcept:
    t.v = v
    t.node = node
    t.born = program_clock
    if v.tensor == NULL:
        v.tensor = <PyObject *>t


cdef Tensor as_tensor(object x):
    """x as a tensor: itself, or a constant with a copy of the data."""
    if isinstance(x, Tensor):
        return strong(x)
    return converted(x, "asarray", None)


cdef Tensor as_tensor_for(int op, object x):
    """An operand of op."""
    if isinstance(x, Tensor):
        return strong(x)
    return converted(x, tpf_op_name[op].decode(), None)


cdef inline Tensor strong(Tensor x):
    """x; for a float argument of a recorded function the tensor that the number would become."""
    return op_astype(hold(x), default_float) if type(x) is WeakFloat else x


cdef Tensor another(Tensor x, Tensor y):
    """y, or a new one of the same value and place where that is x itself: writes to one must not show in the other."""
    return op_identity(y) if x is y else y


cdef inline Tensor hold(Tensor x):
    """x's present value and place, whatever is written to x from now on."""
    if x.node != NULL:
        x.node.refs += 1
    return wrap(value_share(x.v), x.node)


cdef inline Tensor steady(Tensor x):
    """x, or for large work, during which other threads run and may write to x, what it is now."""
    return x if x.v.size < RELEASE_GIL // 4 else hold(x)


cdef Tensor number_tensor(object x, int dtype, const char *op):
    cdef Value *v = value_scalar(dtype)
    try:
        write_number(v.data, dtype, x, op)
    except:
        value_release(v)
        raise
    return wrap(as_constant(v), NULL)


cdef object operator2(int op, object a, object b):
    if is_operand(a) and is_operand(b):
        return call2(op, a, b)
    return NotImplemented


@cython.freelist(512)
cdef class Tensor:
    """An n-dimensional array with value semantics that can be differentiated. Make one with tp.tensor or tp.asarray.

    No tensor is a writable view of another: slices and transposes share memory inside, and a write copies first what
    others see.
    """

    cdef Value *v
    cdef Entry *node             # its place on the tape; NULL: a constant
    cdef object _grad
    cdef int64_t born            # program_clock when it was made
    cdef uint64_t token          # 0, or what stands for its requires_grad among the modes that recordings depend on
    cdef object __weakref__

    def __init__(self, *args, **kwargs):
        raise errors.DTypeError("[Tensor] tensors are made by tp.tensor(data), tp.asarray(obj), "
                                "tp.zeros(shape) and so on.")

    def __dealloc__(self):
        cdef Entry *e = self.node
        cdef Tensor g, after
        if e != NULL:
            if e.tensor == <PyObject *>self:
                e.tensor = NULL
            entry_release(e)
        if self.v != NULL and self.v.tensor == <PyObject *>self:
            self.v.tensor = NULL
        value_release(self.v)
        if self._grad is not None:  # a long chain of .grad goes link by link, not by recursion
            g = self._grad
            self._grad = None
            while g is not None and Py_REFCNT(g) == 1:
                after = g._grad
                g._grad = None
                g = after
                after = None

    # ---- facts

    @property
    def shape(self):
        """The extents, a tuple of ints."""
        return shape_of(self.v)

    @property
    def ndim(self):
        """The number of axes."""
        return self.v.ndim

    @property
    def size(self):
        """The number of elements."""
        return self.v.size

    @property
    def dtype(self):
        """The element type, as a NumPy dtype."""
        return _numpy_dtypes[self.v.dtype]

    @property
    def device(self):
        """Where the memory is: "cpu" or a device's name, as "opencl:0" (see tp.devices)."""
        return _creation.label(device_of(self.v)) if is_remote(self.v) else _creation.CPU

    @property
    def nbytes(self):
        """The bytes of all elements."""
        return self.v.size * tpf_itemsize(self.v.dtype)

    @property
    def itemsize(self):
        """The bytes of one element."""
        return tpf_itemsize(self.v.dtype)

    # ---- gradients

    @property
    def requires_grad(self):
        """Whether ops on this tensor are recorded for gradients."""
        return self.node != NULL and (self.node.flags & E_GRAD) != 0

    @requires_grad.setter
    def requires_grad(self, bint value):
        self.requires_grad_(value)

    @property
    def is_leaf(self):
        """Whether this tensor was not computed by a recorded op."""
        return self.node == NULL or not self.node.flags & E_GRAD or (self.node.flags & E_LEAF) != 0

    @property
    def grad(self):
        """What backward has added up for this leaf: a Tensor of the same shape and dtype, or None."""
        cdef ThreadState *ts = thread_state()
        if ts.flags & T_TAPE and ts.program != NULL:
            (<Program>ts.program).read_grad(self)
        return self._grad

    @grad.setter
    def grad(self, value):
        cdef Tensor g
        if value is not None:
            if not isinstance(value, Tensor):
                raise errors.TapeError(f"[grad] .grad must be None or a Tensor, got {type(value).__name__}.")
            g = value
            if g.v.dtype != self.v.dtype or not same_shape(g.v, self.v):
                raise errors.ShapeError(f"[grad] .grad must be like the tensor, {describe(self.v)}, "
                                        f"got {describe(g.v)}.")
            if device_of(g.v) is not device_of(self.v):
                raise_mixed(b"grad", device_of(self.v), device_of(g.v))
        set_grad(self, value)

    @grad.deleter
    def grad(self):
        set_grad(self, None)

    def requires_grad_(self, bint requires_grad=True):
        """Make this tensor a leaf that requires grad (or not); returns the tensor. Integer and bool: DTypeError."""
        cdef ThreadState *ts = thread_state()
        cdef bint now = self.node != NULL and (self.node.flags & E_GRAD) != 0
        if requires_grad == now:
            return self
        if requires_grad:
            if not is_float(self.v.dtype):
                raise errors.DTypeError(f"[requires_grad_] a tensor of dtype {dtype_name(self.v.dtype)} cannot require "
                                        "grad. Use float32 or float64.")
            leave(self)
            self.node = leaf_new(ts, <PyObject *>self)
        else:
            if not self.node.flags & E_LEAF:
                raise errors.TapeError("[requires_grad_] only a leaf can stop requiring grad; "
                                       "this tensor was computed. Use .detach().")
            leave(self)
        flag_moved(self)
        return self

    def backward(self, gradient=None, bint retain_graph=False, bint create_graph=False):
        """Add the gradients of this tensor into the .grad of the leaves that it depends on.

        Parameters
        ----------
        gradient : Tensor of this shape, optional
            The cotangent to begin with; only a scalar can do without (1 then).
        retain_graph : bool
            Keep what was recorded, so that backward can be called again.
        create_graph : bool
            Record the walk itself, so that the gradients can be differentiated. Implies retain_graph.

        Raises TapeError for a tensor that depends on nothing recorded, a graph that was freed, a seed of another shape;
        then no .grad has changed.

        >>> x = tp.tensor(3.0, requires_grad=True)
        >>> (x * x).backward()
        >>> float(x.grad)
        6.0
        """
        run_backward([self], [gradient], None, create_graph, retain_graph)

    def zero_grad(self):
        """Set .grad to None."""
        set_grad(self, None)

    def retain_grad(self):
        """Let backward add into .grad of this tensor, too, although it is not a leaf."""
        if self.node == NULL or not self.node.flags & E_GRAD:
            raise errors.TapeError("[retain_grad] the tensor does not require grad.")
        if not self.node.flags & E_LEAF:
            if self.node.tensor != NULL and self.node.tensor != <PyObject *>self:
                rebind(self, op_identity(self))  # the place is another tensor's, which retains its own
            self.node.tensor = <PyObject *>self
            self.node.flags |= E_WATCHED

    def register_hook(self, fn):
        """Call fn(gradient) whenever backward has this tensor's gradient; a Tensor that fn returns takes its place.

        Returns a handle whose remove() undoes it.
        """
        cdef list hooks
        cdef Program program
        if self.node == NULL or not self.node.flags & E_GRAD:
            raise errors.TapeError("[register_hook] the tensor does not require grad: no gradient will arrive.")
        if not callable(fn):
            raise errors.TapeError(f"[register_hook] expected a callable, got {type(fn).__name__}.")
        if self.node.hooks == NULL:
            hooks = []
            Py_INCREF(hooks)
            self.node.hooks = <PyObject *>hooks
        hooks = <list>self.node.hooks
        hook = [fn]  # registered twice, a function is two hooks
        hooks.append(hook)
        self.node.flags |= E_WATCHED
        program = program_of(thread_state())
        if program is not None:
            program.hooked(self.v, hook)
        return _Hook(hooks, hook)

    def detach(self):
        """The same value, not recorded."""
        if not is_float(self.v.dtype):
            return unlinked(self)
        cdef Value *v = value_alias(self.v)
        cdef Tensor t = wrap(v, NULL)
        note_detached(v, self.v, NULL)
        return t

    def clone(self):
        """A copy; recorded, so gradients pass through."""
        return op_identity(self)

    # ---- explicit looks

    def numpy(self, copy=False):
        """The value as a NumPy array: read-only and without a copy, or a writable copy.

        Always allowed; nothing is recorded, and later writes to the tensor do not show in the array.
        """
        note_look(self.v, "array")
        cdef object array = to_numpy(self.v)
        return _creation.copied(array, array.dtype, "numpy") if copy else array

    def item(self):
        """The value of a tensor of one element as a Python number."""
        cdef char *p = self.v.data
        if self.v.size != 1:
            raise errors.ShapeError("[item] only a tensor of one element is a Python number, "
                                    f"got shape {shape_of(self.v)}. Use tolist().")
        note_look(self.v, "number")
        if is_remote(self.v):
            return to_numpy(self.v).item()
        if self.v.dtype == TPF_FLOAT32:
            return <double>(<float *>p)[0]
        if self.v.dtype == TPF_FLOAT64:
            return (<double *>p)[0]
        if self.v.dtype == TPF_INT64:
            return (<int64_t *>p)[0]
        if self.v.dtype == TPF_INT32:
            return (<int32_t *>p)[0]
        if self.v.dtype == TPF_UINT8:
            return (<uint8_t *>p)[0]
        return (<uint8_t *>p)[0] != 0

    def tolist(self):
        """The value as nested lists of Python numbers (a number for a 0-d tensor)."""
        note_look(self.v, "array")
        return to_numpy(self.v).tolist()

    def astype(self, dtype, copy=True):
        """The tensor in another dtype; recorded. Floats to integers round towards zero."""
        cdef Tensor t = op_astype(self, dtype_code(dtype, "astype"))
        return another(self, t) if copy else t

    def to(self, device):
        """The tensor on a device: "cpu", "opencl", "opencl:1" or a part of a device's name; recorded.

        Returns a tensor of the same value; gradients come back to the device that it was on. DeviceError for a device
        that is not there, or one that lacks the dtype.
        """
        return another(self, asked_to(self, _creation.place(device, "to")))

    def __repr__(self):
        return _creation.format_tensor(self, self.requires_grad)

    def __format__(self, spec):
        if self.v.ndim == 0:
            return format(self.item(), spec)
        if spec:
            raise errors.ShapeError(f"[format] format spec {spec!r} needs a 0-d tensor, got shape {shape_of(self.v)}.")
        return repr(self)

    # ---- Python's protocols

    def __bool__(self):
        if self.v.size != 1:
            raise errors.ShapeError(f"[bool] the truth of a tensor of shape {shape_of(self.v)} is ambiguous. "
                                    "Reduce it first, for example with .sum() != 0.")
        return self.item() != 0

    def __float__(self):
        return _float(self.item())

    def __int__(self):
        return _int(self.item())

    def __index__(self):
        if self.v.ndim != 0 or is_float(self.v.dtype) or self.v.dtype == TPF_BOOL:
            raise errors.DTypeError(f"[index] only a 0-d integer tensor is an index, got {describe(self.v)}.")
        return self.item()

    def __hash__(self):
        return <Py_hash_t>(<uintptr_t><void *>self >> 4)

    def __len__(self):
        if self.v.ndim == 0:
            raise errors.DTypeError("[len] a 0-d tensor has no length.")
        return self.v.shape[0]

    def __iter__(self):
        if self.v.ndim == 0:
            raise errors.DTypeError("[iter] a 0-d tensor cannot be iterated over.")
        return (self[i] for i in range(self.v.shape[0]))

    def __contains__(self, x):
        found = self == x
        return _bool(found.sum() != 0) if isinstance(found, Tensor) else False

    def __copy__(self):
        return op_identity(self) if not self.is_leaf else wrap(owned(self.v), NULL).requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo):
        cdef Tensor t
        if self.node != NULL and self.node.flags & E_GRAD and not self.node.flags & E_LEAF:
            raise errors.TapeError("[deepcopy] only leaves can be copied deeply; this tensor was computed. "
                                   "Use .detach() or .clone().")
        t = settled(wrap(value_copy(self.v), NULL))
        t.requires_grad_(self.requires_grad)
        memo[id(self)] = t
        if self._grad is not None:
            t._grad = copy.deepcopy(self._grad, memo)
        return t

    def __reduce__(self):
        if self.node != NULL and self.node.flags & E_GRAD and not self.node.flags & E_LEAF:
            raise errors.TapeError("[pickle] only leaves can be pickled; this tensor was computed. Use .detach().")
        return _creation.rebuild, (self.numpy(copy=True), self.requires_grad)

    def __array__(self, dtype=None, copy=None):
        self.refuse_numpy("np.asarray")
        note_look(self.v, "array")
        if copy is False and is_remote(self.v):
            raise ValueError(f"[np.asarray] a tensor on {self.device} cannot become an array without a copy.")
        array = to_numpy(self.v)
        if dtype is not None and numpy.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"[np.asarray] dtype {dtype} needs a copy of a {dtype_name(self.v.dtype)} tensor.")
            return _creation.copied(array, dtype, "array")
        return _creation.copied(array, array.dtype, "array") if copy else array

    cdef int refuse_numpy(self, str what) except -1:
        if self.node != NULL and self.node.flags & E_GRAD and thread_state().flags & T_GRAD:
            raise errors.TapeError(f"[{what}] the tensor {describe(self.v)} is being recorded; NumPy would make a "
                                   "constant of it. Use .detach() or .numpy() to take the value, "
                                   "or the function of the same name in tapeflow.")
        return 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return _creation.numpy_ufunc(ufunc, method, inputs, kwargs)

    def __array_namespace__(self, *, api_version=None):
        return _creation.namespace(api_version)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.refuse_numpy("dlpack")
        if is_remote(self.v):
            raise BufferError(f"[dlpack] the tensor is on {self.device}; only memory of the cpu is exported. "
                              "Use .to('cpu') first.")
        note_look(self.v, "array")
        return _creation.dlpack(to_numpy(self.v), stream, max_version, dl_device, copy)

    def __dlpack_device__(self):
        return (4, 0) if is_remote(self.v) else (1, 0)  # DLPack's kDLOpenCL, kDLCPU

    # ---- operators

    def __add__(a, b):
        return operator2(OP_ADD, a, b)

    def __radd__(a, b):
        return operator2(OP_ADD, b, a)

    def __sub__(a, b):
        return operator2(OP_SUBTRACT, a, b)

    def __rsub__(a, b):
        return operator2(OP_SUBTRACT, b, a)

    def __mul__(a, b):
        return operator2(OP_MULTIPLY, a, b)

    def __rmul__(a, b):
        return operator2(OP_MULTIPLY, b, a)

    def __truediv__(a, b):
        return operator2(OP_DIVIDE, a, b)

    def __rtruediv__(a, b):
        return operator2(OP_DIVIDE, b, a)

    def __floordiv__(a, b):
        return operator2(OP_FLOOR_DIVIDE, a, b)

    def __rfloordiv__(a, b):
        return operator2(OP_FLOOR_DIVIDE, b, a)

    def __mod__(a, b):
        return operator2(OP_REMAINDER, a, b)

    def __rmod__(a, b):
        return operator2(OP_REMAINDER, b, a)

    def __divmod__(a, b):
        return (floor_divide(a, b), remainder(a, b)) if is_operand(b) else NotImplemented

    def __rdivmod__(a, b):
        return (floor_divide(b, a), remainder(b, a)) if is_operand(b) else NotImplemented

    def __and__(a, b):
        return operator2(OP_BITWISE_AND, a, b)

    def __rand__(a, b):
        return operator2(OP_BITWISE_AND, b, a)

    def __or__(a, b):
        return operator2(OP_BITWISE_OR, a, b)

    def __ror__(a, b):
        return operator2(OP_BITWISE_OR, b, a)

    def __xor__(a, b):
        return operator2(OP_BITWISE_XOR, a, b)

    def __rxor__(a, b):
        return operator2(OP_BITWISE_XOR, b, a)

    def __lshift__(a, b):
        return operator2(OP_BITWISE_LEFT_SHIFT, a, b)

    def __rlshift__(a, b):
        return operator2(OP_BITWISE_LEFT_SHIFT, b, a)

    def __rshift__(a, b):
        return operator2(OP_BITWISE_RIGHT_SHIFT, a, b)

    def __rrshift__(a, b):
        return operator2(OP_BITWISE_RIGHT_SHIFT, b, a)

    def __pow__(a, b, mod):
        if mod is not None or not (is_operand(a) and is_operand(b)):
            return NotImplemented
        return pow(a, b)

    def __rpow__(a, b, mod):
        if mod is not None or not (is_operand(a) and is_operand(b)):
            return NotImplemented
        return pow(b, a)

    def __matmul__(a, b):
        return matmul(a, b) if is_operand(b) else NotImplemented

    def __rmatmul__(a, b):
        return matmul(b, a) if is_operand(b) else NotImplemented

    def __neg__(self):
        return call1(OP_NEGATIVE, self)

    def __pos__(self):
        return another(self, self)

    def __abs__(self):
        return call1(OP_ABS, self)

    def __invert__(self):
        return call1(OP_BITWISE_INVERT, self)

    def __richcmp__(self, other, int op):
        cdef int code = (OP_LESS if op == Py_LT else OP_LESS_EQUAL if op == Py_LE else OP_EQUAL if op == Py_EQ
                         else OP_NOT_EQUAL if op == Py_NE else OP_GREATER if op == Py_GT else OP_GREATER_EQUAL)
        return operator2(code, self, other)

    def __iadd__(self, other):
        return in_place(OP_ADD, self, other) if is_operand(other) else NotImplemented

    def __isub__(self, other):
        return in_place(OP_SUBTRACT, self, other) if is_operand(other) else NotImplemented

    def __imul__(self, other):
        return in_place(OP_MULTIPLY, self, other) if is_operand(other) else NotImplemented

    def __itruediv__(self, other):
        return in_place(OP_DIVIDE, self, other) if is_operand(other) else NotImplemented

    # ---- writes

    def assign(self, value):
        """Give this tensor object another value of its shape (value is broadcast and cast); returns the tensor."""
        cdef Tensor v
        if is_weak(value):  # it is rounded once, to this dtype
            v = weak_tensor(value, self.v.dtype, b"assign")
        else:
            v = cast_for_write(as_tensor(value), self.v.dtype, "assign")
        check_write(self, "assign")
        v = written_beside(v, self.v)
        if not same_shape(v.v, self.v):
            v = op_broadcast_for_write(v, self.v, "assign")
        rebind(self, v)
        return self

    def assign_add(self, value):
        """Add to this tensor object; returns the tensor."""
        in_place(OP_ADD, self, value)
        return self

    def assign_sub(self, value):
        """Subtract from this tensor object; returns the tensor."""
        in_place(OP_SUBTRACT, self, value)
        return self

    def zero_(self):
        """Set every element of this tensor object to 0; returns the tensor."""
        check_write(self, "zero_")
        rebind(self, wrap(zeros_value(self.v.ndim, self.v.shape, self.v.dtype), NULL))
        return self

    def __getitem__(self, index):
        return get_item(self, index)

    def __setitem__(self, index, value):
        set_item(self, index, value)

    def __delitem__(self, index):
        raise errors.ShapeError("[delitem] elements of a tensor cannot be deleted. Use concat of what should stay.")

    # ---- the functions that are methods, too

    @property
    def T(self):
        """The transpose of a matrix."""
        if self.v.ndim != 2:
            raise errors.ShapeError(f"[T] the transpose needs two axes, got shape {shape_of(self.v)}. "
                                    "Use .mT for stacks of matrices, or permute_dims.")
        return swap_last(self)

    @property
    def mT(self):
        """The tensor with its last two axes exchanged."""
        if self.v.ndim < 2:
            raise errors.ShapeError(f"[mT] needs at least two axes, got shape {shape_of(self.v)}.")
        return swap_last(self)

    def reshape(self, *shape):
        """The elements, in C order, under another shape."""
        return reshape(self, shape[0] if len(shape) == 1 else shape)

    def sum(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """The sum over axes."""
        no_out(out, dtype)
        return op_reduce(OP_SUM, self, axes_mask(axis, self.v.ndim, b"sum"), False, keepdims)

    def mean(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """The mean over axes."""
        no_out(out, dtype)
        return op_reduce(OP_MEAN, self, axes_mask(axis, self.v.ndim, b"mean"), False, keepdims)

    def max(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """The maximum over axes."""
        no_out(out, dtype)
        return op_reduce(OP_MAX, self, axes_mask(axis, self.v.ndim, b"max"), False, keepdims)

    def min(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """The minimum over axes."""
        no_out(out, dtype)
        return op_reduce(OP_MIN, self, axes_mask(axis, self.v.ndim, b"min"), False, keepdims)

    def prod(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """The product over axes."""
        no_out(out, dtype)
        return op_prod(self, axes_mask(axis, self.v.ndim, b"prod"), keepdims)

    def argmax(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """The index of the first maximum along an axis (of the flattened tensor for None)."""
        no_out(out, dtype)
        return argmax(self, axis, keepdims)

    def argmin(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """The index of the first minimum along an axis (of the flattened tensor for None)."""
        no_out(out, dtype)
        return argmin(self, axis, keepdims)

    def any(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """Whether an element over the axes is not 0."""
        no_out(out, dtype)
        return any(self, axis, keepdims)

    def all(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """Whether no element over the axes is 0."""
        no_out(out, dtype)
        return all(self, axis, keepdims)

    def var(self, axis=None, keepdims=False, *, correction=None, ddof=None, dtype=None, out=None):
        """The variance over axes; correction (NumPy's ddof, 0 if not given) is taken off the divisor."""
        no_out(out, dtype)
        return variance(OP_VAR, self, axis, keepdims, one_correction(correction, ddof))

    def std(self, axis=None, keepdims=False, *, correction=None, ddof=None, dtype=None, out=None):
        """The standard deviation over axes; correction (NumPy's ddof, 0 if not given) is taken off the divisor."""
        no_out(out, dtype)
        return variance(OP_STD, self, axis, keepdims, one_correction(correction, ddof))

    def cumsum(self, axis=None, dtype=None, out=None):
        """The sums of the first 1, 2, ... elements along an axis (of the flattened tensor for None)."""
        no_out(out, None)
        return cumsum(self, axis, dtype)

    def cumprod(self, axis=None, dtype=None, out=None):
        """The products of the first 1, 2, ... elements along an axis (of the flattened tensor for None)."""
        no_out(out, None)
        return cumprod(self, axis, dtype)

    def squeeze(self, axis=None):
        """Without axes of size 1: the named ones, or all."""
        return squeeze(self, axis)


cdef int no_out(object out, object dtype) except -1:
    """NumPy's functions call our methods with these; only their defaults are possible."""
    if out is not None or dtype is not None:
        raise errors.DTypeError("[reduce] out= and dtype= are not supported. Use t.assign(...) and .astype(...).")
    return 0


cdef object one_correction(object correction, object ddof):
    """What is taken off the number of elements, by either name."""
    if correction is not None and ddof is not None:
        raise errors.DTypeError("[var] correction and ddof are two names of one number. Give one of them.")
    return ddof if ddof is not None else 0 if correction is None else correction


cdef class _Hook:
    """Undoes register_hook."""
    cdef list hooks
    cdef list hook

    def __init__(self, hooks, hook):
        self.hooks = hooks
        self.hook = hook

    def remove(self):
        """Do not call the hook any more."""
        for i in range(len(self.hooks)):
            if self.hooks[i] is self.hook:
                del self.hooks[i]
                self.hook.clear()  # for programs that know it
                break


# ---- the type itself: no empty tensors, and hooks that refer to their tensor are garbage like any other cycle

cdef traverseproc _traverse = NULL
cdef inquiry _clear = NULL


cdef PyObject *refuse_new(PyTypeObject *kind, PyObject *args, PyObject *kwargs) except NULL:
    raise errors.DTypeError("[Tensor] tensors are made by tp.tensor(data), tp.asarray(obj), tp.zeros(shape) and so on.")


cdef int traverse_tensor(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef Entry *e = (<Tensor>o).node
    cdef int result = _traverse(o, visit, arg)
    cdef Entry *call
    if result == 0 and e != NULL and e.hooks != NULL and e.refs == 1:
        result = visit(e.hooks, arg)
    if result == 0 and e != NULL:
        call = call_alone(e)
        if call != NULL and call.hooks != NULL:
            result = visit(call.hooks, arg)
    return result


cdef int clear_tensor(PyObject *o) noexcept:
    cdef Entry *e = (<Tensor>o).node
    if e != NULL and e.refs == 1:
        entry_drop_hooks(e)
        if call_alone(e) != NULL:
            entry_drop_hooks(e.src[0])
    return _clear(o)


cdef int complete_type() except -1:
    global _traverse, _clear
    cdef PyTypeObject *t = <PyTypeObject *>Tensor
    _traverse, _clear = t.tp_traverse, t.tp_clear
    t.tp_traverse, t.tp_clear, t.tp_new = <traverseproc>traverse_tensor, clear_tensor, <newfunc>refuse_new
    return 0


complete_type()
