# Values on devices. A Buffer of kind REMOTE is owned by a backend's Memory; the `data` of a value over it is an offset
# from its begin, which nothing here follows. Such a value is never `contiguous` and never ours to write, so whatever
# runs a loop over memory passes it by; each op asks `is_remote` (or `away`, of several) and gives what is left to
# `remote_result`, which hands arrays to the device's implementation of the op (tapeflow/backend).
#
# What an op makes of Python's data (numbers, lists, arrays, masks) is `loose`: it goes to the device of what it meets,
# and so does a 0-d tensor of the cpu, which is taken as a number. Anything else on two devices is an error.

cdef enum:
    KEPT_NUMBERS = 4096          # of a device: numbers that are in its memory already

cdef bint devices_used = False   # a value was on a device: until then nothing has to ask
cdef object _Array = None        # the class of a view of a device's memory, once there is one
cdef object _make_array = None
cdef dict _numbers = {}          # (device, dtype, word) -> the number in the device's memory
cdef int devices_asked = 0       # default_device contexts that are open, in any thread


cdef int know_arrays() except -1:
    global _Array, _make_array, devices_used
    from tapeflow.backend.opencl.memory import Array
    _Array = Array
    _make_array = tuple.__new__
    devices_used = True
    return 0


cdef inline object device_of(Value *v):
    """The open device that v's memory is of; None for the cpu's."""
    return (<object>v.buf.base).device if is_remote(v) else None


cdef object array_at(Value *v):
    """v, which is on a device, as the backend has it."""
    cdef int d
    cdef tuple strides = PyTuple_New(v.ndim)
    cdef object n
    for d in range(v.ndim):
        n = v.strides[d]
        Py_INCREF(n)
        PyTuple_SET_ITEM(strides, d, n)
    return _make_array(_Array, (<object>v.buf.base, <int64_t>v.data, v.dtype, shape_of(v), strides))


cdef Value *remote_over(object memory, int ndim, const int64_t *shape, int dtype) except NULL:
    """A packed value over the begin of a device's memory."""
    cdef Value *v = value_raw(ndim)
    if v == NULL:
        raise MemoryError()
    v.dtype = dtype
    memcpy(v.shape, shape, ndim * sizeof(int64_t))
    try:
        v.buf = buffer_foreign(NULL, memory.nbytes, memory, REMOTE)
    except:
        value_release(v)
        raise
    v.size = checked_size(ndim, shape, 1)
    set_contiguous_strides(v)
    return v


cdef Value *remote_new(object device, int ndim, const int64_t *shape, int dtype, const char *op) except NULL:
    """A packed value in fresh memory of a device, contents undefined."""
    cdef int itemsize = tpf_itemsize(dtype)
    cdef int64_t size = checked_size(ndim, shape, itemsize)
    if size < 0:
        raise_memory(ndim, shape, dtype)
    if dtype == TPF_FLOAT64 and not device.fp64:
        device.check_dtype(dtype, op.decode())
    if _Array is None:
        know_arrays()
    return remote_over(device.alloc(size * itemsize, op.decode()), ndim, shape, dtype)


cdef inline bint may_go(Value *v) noexcept:
    """Does v, of the cpu, go to whichever device it meets: made of Python's data, or a number?"""
    return v.loose or v.ndim == 0


cdef inline Value *away(Value *a, Value *b, Value *c) noexcept:
    """The first of some operands (NULL: none) that is on a device, or NULL."""
    if is_remote(a):
        return a
    if b != NULL and is_remote(b):
        return b
    return c if c != NULL and is_remote(c) else NULL


cdef inline Value *any_away(int nin, Value **v) noexcept:
    """The first of some operands that is on a device, or NULL."""
    cdef int i
    for i in range(nin if devices_used else 0):
        if is_remote(v[i]):
            return v[i]
    return NULL


cdef inline Value *any_saved_away(Value **vals) noexcept:
    """The first of an entry's four values that is on a device, or NULL."""
    cdef int i
    for i in range(4 if devices_used else 0):
        if vals[i] != NULL and is_remote(vals[i]):
            return vals[i]
    return NULL


cdef bint any_tensor_away(object tensors) except -1:
    for t in tensors:
        if is_remote((<Tensor>t).v):
            return True
    return False


cdef bint all_loose(list tensors) noexcept:
    for t in tensors:
        if not (<Tensor>t).v.loose:
            return False
    return True


cdef int raise_mixed(const char *op, object device, object other) except -1:
    here, there = (str(_creation.label(d)) for d in (device, other))
    raise errors.DeviceError(f"[{op.decode()}] operands are on {here} and on {there}. Bring them together with "
                             f".to({here!r}) or .to({there!r}).")


cdef object operand_array(object device, Value *v, const char *op):
    """An operand as an array of the device, which it is sent to where it may be."""
    cdef uint64_t word = 0
    cdef object there
    cdef Value *own
    if is_remote(v):
        there = (<object>v.buf.base).device
        if there is not device:
            raise_mixed(op, device, there)
        return array_at(v)
    if v.ndim == 0:
        memcpy(&word, v.data, tpf_itemsize(v.dtype))
        key = device, v.dtype, word
        there = _numbers.get(key)
        if there is None:
            if len(_numbers) >= KEPT_NUMBERS:
                _numbers.clear()
            own = sent(v, device, op)
            there = _numbers[key] = array_at(own)
            value_release(own)
        return there
    if not v.loose:
        raise_mixed(op, device, None)
    own = sent(v, device, op)
    there = array_at(own)
    value_release(own)
    return there


cdef Value *sent(Value *v, object device, const char *op) except NULL:
    """A packed copy on a device of a value of the cpu."""
    cdef Value *y = remote_new(device, v.ndim, v.shape, v.dtype, op)
    try:
        if v.size:
            device.upload(array_at(y), to_numpy(v))
    except:
        value_release(y)
        raise
    return y


cdef Value *brought(Value *v) except NULL:
    """A copy of v, from wherever it is, in memory of the cpu."""
    if v.size == 0:
        return value_new(v.ndim, v.shape, v.dtype)
    return value_from_numpy(to_numpy(v), True, "to", None)


cdef Value *remote_many(int op, tuple params, int nin, Value **ins, int ndim, const int64_t *shape,
                        int dtype) except NULL:
    """The value of an op on the device of the first operand that is on one."""
    cdef const char *name = tpf_op_name[op]
    cdef object device = device_of(any_away(nin, ins))
    cdef int i
    cdef list arrays = [operand_array(device, ins[i], name) for i in range(nin)]
    cdef Value *y = remote_new(device, ndim, shape, dtype, name)
    try:
        device.execute(op, params, arrays, array_at(y))
    except:
        value_release(y)
        raise
    return y


cdef Value *remote_result(int op, tuple params, Value *a, Value *b, Value *c, int ndim, const int64_t *shape,
                          int dtype) except NULL:
    cdef Value *ins[3]
    ins[0], ins[1], ins[2] = a, b, c
    return remote_many(op, params, 1 if b == NULL else 2 if c == NULL else 3, ins, ndim, shape, dtype)


# ---- moving tensors


cdef list _places = [None]       # the devices of moves, for their rules; the cpu first


cdef int64_t numbered(object device) except -1:
    if device not in _places:
        _places.append(device)
    return _places.index(device)


cdef Tensor op_move(Tensor x, object device):
    """x on a device (None: the cpu), itself where it is there; recorded: the rule brings the cotangent back."""
    cdef object here = device_of(x.v)
    cdef int64_t params[4]
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Value *y
    if here is device:
        return x
    if device is None:
        y = brought(x.v)
    elif here is None:
        y = sent(x.v, device, b"to")
    else:
        y = remote_new(device, x.v.ndim, x.v.shape, x.v.dtype, b"to")
        try:
            device.copy(array_at(x.v), array_at(y))
        except:
            value_release(y)
            raise
    params[0], params[1], params[2], params[3] = 3, MOVED, numbered(here), numbered(device)
    if x.v.program == MADE_INSIDE and x.node == NULL:
        return wrap(as_constant(y), NULL)
    # the cotangent of what is loose may stay: all that it meets goes along, too
    return recorded1(OP_IDENTITY, x, y, NULL if x.v.loose and x.v.ndim else params, start)


cdef Tensor asked_to(Tensor x, object device):
    """op_move, as a user asks for it: a plan is of one device, so what moves cannot be frozen."""
    cdef ThreadState *ts = thread_state()
    if device_of(x.v) is not device and ts.program != NULL and ts.flags & T_TAPE and not may_go(x.v):
        (<Program>ts.program).spoil(f"a tensor {describe(x.v)} was moved from one device to another")
    return op_move(x, device)


cdef inline Tensor sent_beside(Tensor x, Value *like):
    """x, on like's device where it may go there."""
    return op_move(x, device_of(like)) if is_remote(like) and not is_remote(x.v) and may_go(x.v) else x


cdef Tensor sent_to(Tensor x, Value *like, const char *op):
    """x where like is: an error if it may not go there."""
    if not (is_remote(x.v) or is_remote(like)):
        return x
    x = sent_beside(x, like)
    if device_of(x.v) is not device_of(like):
        raise_mixed(op, device_of(like), device_of(x.v))
    return x


cdef inline bint keeps(Tensor x):
    """Is x a constant of a recording that each op of it sends anew? So a plan can run on any device."""
    return x.v.loose and x.node == NULL and thread_state().flags & T_TAPE != 0


cdef inline Tensor written_beside(Tensor x, Value *like):
    """x, which is to be stretched and written into like, on like's device where it may go there."""
    return x if not is_remote(like) or keeps(x) else sent_beside(x, like)


cdef list sent_together(list tensors, const char *op):
    """The tensors, all of them where the first that is on a device is."""
    cdef Tensor t
    cdef Value *there = NULL
    for t in tensors:
        if is_remote(t.v):
            there = t.v
            break
    return tensors if there == NULL else [t if keeps(t) else sent_to(t, there, op) for t in tensors]


cdef Value *number_there(Value *number, object device) except NULL:
    """A number of the cpu, which is taken over, in a device's memory."""
    try:
        return remote_over(operand_array(device, number, b"to").memory, 0, number.shape, number.dtype)
    finally:
        value_release(number)


cdef list brought_together(int nin, Value **v, Entry **nodes):
    """What may be sent from the cpu and is recorded is moved, as an op of its own, so that gradients find their way
    back; the tensors that hold it."""
    cdef Value *there = any_away(nin, v)
    cdef Tensor t
    cdef list held = []
    cdef int i
    for i in range(nin):
        if not is_remote(v[i]) and nodes[i] != NULL and may_go(v[i]):
            t = op_move(with_node(v[i], nodes[i]), device_of(there))
            held.append(t)
            v[i], nodes[i] = t.v, t.node
    return held


cdef inline Tensor settled(Tensor t):
    """t, a tensor that a user asked for: no longer loose."""
    t.v.loose = False
    return t


def loosened(Tensor t not None):
    """t, which was made of Python's data and goes to the device of what it meets (for the Python parts of the
    package)."""
    t.v.loose = True
    return t


cdef Tensor placed_on(Tensor t, object device, str op):
    """A tensor that was just made, on the device that was asked for, or on the default one for None."""
    if device is None and not devices_asked:
        return settled(t)
    cdef object there = _creation.place(device, op)
    return settled(op_move(t, there))


def move(Tensor x not None, device):
    """x on an open device, or on the cpu for None; x itself where it is there (for the Python parts of the package)."""
    return op_move(x, device)


def count_asked(int change):
    """One default_device context more, or less."""
    global devices_asked
    devices_asked += change


def default_place():
    """The open device of default_device; None for the cpu."""
    return _creation.place(None, "device") if devices_asked else None


def place_of(Tensor x not None):
    """The open device that x is on; None for the cpu."""
    return device_of(x.v)


def is_borrowed(Tensor x not None):
    """Whether x's memory is another library's, which may write it at any time."""
    return x.v.buf.foreign == BORROWED


def device_array(Tensor x not None):
    """What x holds on its device, as the backend has it; None on the cpu. Not to be written while x holds it."""
    return array_at(x.v) if is_remote(x.v) else None


def from_array(array):
    """A tensor over an array of a device, packed from the begin of its memory, which nobody writes from now on."""
    cdef int64_t sizes[64]
    cdef int d
    cdef tuple shape = array.shape
    if _Array is None:
        know_arrays()
    if array.offset or not array.is_contiguous:
        raise errors.ShapeError("[from_array] the array must be packed, from the begin of its memory.")
    for d in range(len(shape)):
        sizes[d] = shape[d]
    return wrap(as_constant(remote_over(array.memory, len(shape), sizes, array.dtype)), NULL)


cdef object place_token(Tensor t, object device):
    """What stands for t's being there among the modes that recordings depend on."""
    return 0 if device is None else hash((t.token, id(device))) & 0xFFFFFFFFFFFFFFFF


def move_all(list tensors not None, device):
    """The tensors themselves, and their .grad, on an open device, or the cpu for None: all of them, or none after an
    error. Recordings that read them where they were are for another case."""
    global flags_moved
    cdef Tensor t, there
    cdef Value *old
    cdef list pairs = []
    for t in tensors:
        while t is not None:
            pairs.append((t, op_move(t.detach(), device)))
            t = t._grad
    for t, there in pairs:
        old = t.v
        if device_of(old) is device:
            continue
        t.v = value_alias(there.v)
        t.v.loose = False
        t.v.tensor = <PyObject *>t
        if t.token:
            epoch.switch(place_token(t, device_of(old)) ^ place_token(t, device))
        if old.tensor == <PyObject *>t:
            old.tensor = NULL
        value_release(old)
    flags_moved += 1


def goes_along(Tensor x not None):
    """Does x go to whichever device it meets?"""
    return may_go(x.v)


def operand(x):
    """x as a tensor: itself, or what goes to the device of what it meets."""
    return as_tensor(x)


def counted(int64_t n):
    """0, 1, ... n-1, which goes to the device of what it meets."""
    return arange_int(n)


def put_beside(Tensor x not None, Tensor like not None, str op):
    """x where like is: itself there, or a number or Python's data that is sent; else a DeviceError."""
    return sent_to(x, like.v, op.encode())


def put_together(list tensors not None, str op):
    """The tensors, all of them where the first that is on a device is, as put_beside."""
    return sent_together(tensors, op.encode())


def returned_to(Tensor y not None, Tensor like not None):
    """y, which was computed of like in memory of the cpu, where like is."""
    y = op_move(y, device_of(like.v))
    y.v.loose = like.v.loose
    return y
