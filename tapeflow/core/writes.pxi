# Writes: a tensor object gets another value, in its own memory where nobody else would see that.

cdef int rebind(Tensor t, Tensor r) except -1:
    """Make t's value r's; in grad mode its place on the tape, too."""
    cdef ThreadState *ts = thread_state()
    cdef Value *v = t.v
    cdef Entry *node = t.node
    if r is t:
        return 0
    if device_of(r.v) is not device_of(t.v):
        if is_remote(r.v) or not may_go(r.v):
            raise_mixed(b"assign", device_of(t.v), device_of(r.v))
        r = op_move(r, device_of(t.v))
    if r.v.buf.foreign == BORROWED or (r.node != NULL and r.node.flags & E_LEAF):
        r = op_identity(r)  # foreign memory must not show in t, and a leaf is one tensor's
    if ts.flags & T_TAPE:
        if not ts.flags & T_GRAD and is_float(r.v.dtype):
            r = placed(r, t) if node != NULL and node.flags & E_GRAD else r.detach()
        note_write(ts, t, r)
    t.v = value_alias(r.v) if r.v != v else value_share(v)
    t.v.loose = False
    t.v.tensor = <PyObject *>t
    # outside of grad mode a tensor keeps its place: a parameter that is updated stays a leaf
    if ts.flags & T_GRAD or node == NULL or not node.flags & E_GRAD:
        t.node = r.node
        if not ts.flags & T_GRAD and t.node != NULL and t.node.flags & E_GRAD:
            t.node = NULL
        if t.node != NULL:
            t.node.refs += 1
        if node != NULL and node.tensor == <PyObject *>t:
            node.tensor = NULL
        entry_release(node)
    if v.tensor == <PyObject *>t and v != t.v:
        v.tensor = NULL
    value_release(v)
    return 0


cdef int check_write(Tensor t, str op) except -1:
    """May t be written now?"""
    if t.node != NULL and t.node.flags & E_LEAF and t.node.flags & E_GRAD and thread_state().flags & T_GRAD:
        raise errors.TapeError(f"[{op}] a leaf that requires grad is written in place while recording: "
                               f"{describe(t.v)}. Do it under `with tp.no_grad():`, or write to a copy (t.clone()).")
    return 0


cdef object in_place(int op, Tensor t, object other):
    """t op= other: this object only."""
    cdef str name = tpf_op_name[op].decode() + "_in_place"
    cdef Tensor r
    cdef Tensor u = None
    cdef PyObject *args[2]
    cdef Value *vals[2]
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    if not is_number(other):
        u = as_tensor(other)
        other = u
        check_fits(t, u, name)
    check_write(t, name)
    # the frequent case of an update: nothing recorded, our own memory, same dtype and shape
    if (u is not None and t.v.dtype == u.v.dtype and same_shape(t.v, u.v) and value_is_mine(t.v) and not is_remote(u.v)
            and u.node == NULL
            and (t.node == NULL or t.node.flags & E_LEAF) and not ts.flags & (T_TAPE | T_NAN)
            and kernels.loop[op][t.v.dtype] != NULL
            and not (tpf_op_kind[op] == TPF_KIND_FLOAT and not is_float(t.v.dtype))):
        execute_typed(op, t.v.dtype, t.v, t.v, u.v, NULL, False)
        vals[0], vals[1] = t.v, u.v
        step_ends(ts, start, op, 2, vals, t.v)
        return t
    args[0] = <PyObject *>t
    args[1] = <PyObject *>other
    if not is_float(t.v.dtype) and (tpf_op_kind[op] == TPF_KIND_FLOAT or PyFloat_CheckExact(other)
                                    or (u is not None and is_float(u.v.dtype))):
        raise errors.DTypeError(f"[{name}] a float result does not fit a tensor of dtype {dtype_name(t.v.dtype)}. "
                                "Use .astype('float32') first, or write t = t op x.")
    if t.v.dtype <= TPF_UINT8 and (u.v.dtype > t.v.dtype if u is not None else
                                   t.v.dtype == TPF_BOOL and not PyBool_Check(other)):
        raise errors.DTypeError(f"[{name}] an integer result does not fit a tensor of dtype {dtype_name(t.v.dtype)}. "
                                "Use .astype('int64') first, or write t = t op x.")
    r = elementwise(op, 2, args)
    rebind(t, op_astype(r, t.v.dtype))
    return t


cdef int check_fits(Tensor t, Tensor u, str name) except -1:
    """Does u broadcast to t's shape, so that t op u has it?"""
    cdef int d
    cdef bint fits = u.v.ndim <= t.v.ndim
    for d in range(1, u.v.ndim + 1):
        fits = fits and (u.v.shape[u.v.ndim - d] == t.v.shape[t.v.ndim - d] or u.v.shape[u.v.ndim - d] == 1)
    if not fits:
        raise errors.ShapeError(f"[{name}] an operand of shape {shape_of(u.v)} does not fit the tensor written to, "
                                f"{shape_of(t.v)}: aligned from the right, its sizes must be equal or 1. "
                                "A write cannot grow a tensor.")
    return 0


cdef Tensor cast_for_write(Tensor v, int dtype, str op):
    """v in the dtype of the tensor that is written; floats do not go into integers unasked."""
    if is_float(v.v.dtype) and not is_float(dtype):
        raise errors.DTypeError(f"[{op}] a {dtype_name(v.v.dtype)} value does not fit a tensor of dtype "
                                f"{dtype_name(dtype)}. Cast one of them with .astype first.")
    return op_astype(v, dtype)


cdef int set_grad(Tensor t, object grad) except -1:
    cdef ThreadState *ts = thread_state()
    if ts.flags & T_TAPE and ts.program != NULL:
        (<Program>ts.program).keep_grad(t)
        (<Program>ts.program).wrote_grad(t, grad)
    t._grad = grad
    return 0


cdef int64_t flags_moved = 0     # how often what a recording had read changed requires_grad, or tensors were moved


cdef int flag_moved(Tensor t) except -1:
    """t's requires_grad has changed: recordings that read t as it was are for another case."""
    global flags_moved
    if t.token:
        flags_moved += 1
        epoch.switch(t.token)
    return 0
