# tp.profile: when each op of the thread began and ended, and what it had before it. Only code behind the flag T_STEPS
# is here; tapeflow/profiling.py makes steps of the records, with their costs.

cdef inline double step_begins(ThreadState *ts) noexcept:
    """Now, where a profile is open; else 0."""
    return tpf_clock() if ts.flags & T_STEPS else 0.0


cdef inline void step_ends(ThreadState *ts, double start, int op, int nin, Value **vals, Value *y) noexcept:
    """y = op(vals) has been computed since start."""
    if ts.flags & T_STEPS:
        step_note(ts, start, tpf_op_name[op], b"", nin, vals, y, moved_bytes(op, nin, vals, y), 0)


cdef void step_note(ThreadState *ts, double start, const char *name, const char *suffix, int nin, Value **vals,
                    Value *y, int64_t nbytes, object more) noexcept:
    """A record: start, stop, name, suffix, the wider dtype of operands and result, dtype and shape of the result,
    shapes of the operands, bytes, more, (file, line). more: of a rule the inputs that it is for, a bit each; of a plan
    (the plan, how many runs). What there is no memory for is left out."""
    cdef double stop = tpf_clock()
    cdef int i
    cdef int dtype = -1 if y == NULL else y.dtype
    if ts.steps == NULL:
        return
    try:
        for i in range(nin):
            if vals[i] != NULL and vals[i].dtype > dtype:
                dtype = vals[i].dtype
        (<list>ts.steps).append((
            start if start else stop, stop, name.decode(), suffix.decode(), dtype_name(dtype) if dtype >= 0 else "",
            dtype_name(y.dtype) if y != NULL else "", shape_of(y) if y != NULL else (),
            [shape_of(vals[i]) for i in range(nin) if vals[i] != NULL], nbytes, more, user_place()))
    except MemoryError:
        pass


cdef int64_t bytes_there(Value *v) noexcept:
    """Of the elements that v has in memory: one that is stretched counts once."""
    cdef int64_t n
    cdef int d
    if v == NULL or v.buf == NULL or v.size == 0:
        return 0
    n = tpf_itemsize(v.dtype)
    for d in range(v.ndim):
        if v.strides[d] != 0:
            n *= v.shape[d]
    return n


cdef int64_t moved_bytes(int op, int nin, Value **vals, Value *y) noexcept:
    """That y = op(vals) reads and writes: of a view none, of a write into place what is written."""
    cdef int64_t n = bytes_there(y)
    cdef int64_t last = bytes_there(vals[nin - 1]) if nin else 0
    cdef int64_t read
    cdef int i
    if op >= TPF_N_ELEMENTWISE and nin and y.buf != NULL and y.buf == vals[0].buf:
        return 2 * last + (bytes_there(vals[1]) if nin > 2 else 0) if op == OP_ASSIGN or op == OP_PUT else 0
    for i in range(nin):
        read = bytes_there(vals[i])
        n += bytes_there(y) if op == OP_TAKE and i == 0 and read > bytes_there(y) else read
    return n


cdef int64_t step_bytes(int mask, Value **vals, Value *like) noexcept:
    """That the fused loops of a rule, for the inputs in mask, move: each reads a derivative like this and writes as
    much, and all read what was saved."""
    cdef int64_t n = 0
    cdef int i
    for i in range(3):
        if mask >> i & 1:
            n += 2 * like.size * tpf_itemsize(like.dtype)
    for i in range(4 if mask else 0):
        n += bytes_there(vals[i])
    return n


cdef void step_of_parts(ThreadState *ts, double start, int op, list parts, Value *y) noexcept:
    """step_ends where there are any number of operands, tensors."""
    cdef int64_t nbytes = bytes_there(y)
    cdef Tensor t
    if ts.flags & T_STEPS:
        for t in parts:
            nbytes += bytes_there(t.v)
        step_note(ts, start, tpf_op_name[op], b"", 0, NULL, y, nbytes, 0)


cdef int step_writes(double start, Tensor t, int64_t n) except -1:
    """n elements of t, or bools that say which, have been read or filled in, and written."""
    cdef ThreadState *ts = thread_state()
    if ts.flags & T_STEPS:
        step_note(ts, start, tpf_op_name[OP_ASSIGN], b"", 0, NULL, t.v, 2 * n * tpf_itemsize(t.v.dtype), 0)
    return 0


cdef list replayed(Runner plan, object inputs, list targets):
    """A replay as one step: what it runs is none."""
    cdef ThreadState *ts = thread_state()
    cdef double start = tpf_clock()
    cdef list outputs
    ts.flags &= ~T_STEPS
    try:
        outputs = plan.replay(inputs, targets)
    finally:
        if ts.steps != NULL:
            ts.flags |= T_STEPS
    step_of_plan(ts, start, plan, outputs, 1)
    return outputs


cdef void step_of_plan(ThreadState *ts, double start, Runner plan, list outputs, int64_t runs) noexcept:
    if ts.flags & T_STEPS:
        step_note(ts, start, b"plan", b"", 0, NULL, (<Tensor>outputs[0]).v if len(outputs) == 1 else NULL, 0,
                  (plan, runs))


cdef int64_t threads_watched = 0  # in which a profile is open


cdef void steps_go_to(ThreadState *ts, PyObject *steps) noexcept:
    """ts.steps is steps, whose reference is taken over, or NULL."""
    global plain_below, threads_watched
    cdef PyObject *before = ts.steps
    threads_watched += (steps != NULL) - (before != NULL)
    plain_below = 0 if threads_watched else RELEASE_GIL
    ts.steps = steps
    ts.flags = (ts.flags & ~T_STEPS) | (T_STEPS if steps != NULL else 0)
    Py_XDECREF(before)


def set_steps(steps):
    """Append a record of each step of this thread to a list from now on, or to none (None)."""
    if steps is None:
        steps_go_to(thread_state(), NULL)
    else:
        Py_INCREF(steps)
        steps_go_to(thread_state(), <PyObject *>steps)


def clock():
    """Seconds on the clock of the records."""
    return tpf_clock()
