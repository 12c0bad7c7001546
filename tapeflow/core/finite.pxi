# trace_nan: results that are not finite though what they were made of is. Only code behind the flag T_NAN is here; the
# errors are written in tapeflow/nonfinite.py.

cdef int64_t first_bad(Value *v) except -2:
    """The place, in C order, of the first element that is inf or NaN; -1: there is none."""
    cdef Value *x
    cdef int64_t found
    if v.buf == NULL or not is_float(v.dtype) or v.size == 0:
        return -1
    x = brought(v) if is_remote(v) else value_contiguous(v)
    if x.size >= RELEASE_GIL:
        with nogil:
            found = scan_finite(x.data, x.dtype == TPF_FLOAT32, x.size)
    else:
        found = scan_finite(x.data, x.dtype == TPF_FLOAT32, x.size)
    value_release(x)
    return found


cdef int64_t scan_finite(const void *data, bint single, int64_t n) noexcept nogil:
    """In blocks, each without a branch: the exponent of inf and NaN is all ones."""
    cdef const uint32_t *f = <const uint32_t *>data
    cdef const uint64_t *d = <const uint64_t *>data
    cdef uint32_t all32 = 0x7f800000
    cdef uint64_t all64 = <uint64_t>0x7ff << 52
    cdef int64_t start = 0
    cdef int64_t stop, i
    cdef uint64_t bad
    while start < n:
        stop = start + 1024 if n - start > 1024 else n
        bad = 0
        if single:
            for i in range(start, stop):
                bad |= (f[i] & all32) == all32
        else:
            for i in range(start, stop):
                bad |= (d[i] & all64) == all64
        if bad:
            for i in range(start, stop):
                if (f[i] & all32) == all32 if single else (d[i] & all64) == all64:
                    return i
        start = stop
    return -1


def _nonfinite():
    from tapeflow import nonfinite  # imported when something is found
    return nonfinite


cdef list arrays_of(int n, Value **vals):
    """What an error looks at: arrays, None where no value was kept."""
    cdef int i
    return [None if vals[i] == NULL or vals[i].buf == NULL else to_numpy(vals[i]) for i in range(n)]


cdef int check_finite(ThreadState *ts, Entry *e, int nin, Value **vals, Value *y) except -1:
    """The result y of an op, with trace_nan on."""
    cdef tuple place = user_place()
    if e.flags & E_GRAD and ts.places != NULL:
        (<dict>ts.places)[e.number] = (e.opcode, place)
    if e.opcode != OP_ACCUMULATE and first_bad(y) >= 0:
        _nonfinite().check_op(tpf_op_name[e.opcode].decode(), e.opcode < TPF_N_ELEMENTWISE, to_numpy(y),
                              arrays_of(nin, vals), place)
    return 0


cdef int check_pushed(Walk w, Value *v) except -1:
    """A cotangent that the rule of the entry under way has made."""
    cdef Entry *e = w.at
    cdef ThreadState *ts = thread_state()
    if first_bad(v) < 0:
        return 0
    place = None if ts.places == NULL else (<dict>ts.places).get(e.number)
    name = tpf_op_name[e.opcode].decode() if e.opcode != OP_CUSTOM or e.hooks == NULL else (<object>e.hooks).name
    _nonfinite().check_rule(name, e.opcode < TPF_N_ELEMENTWISE, to_numpy(v),
                            None if w.arrived == NULL else to_numpy(w.arrived),
                            arrays_of(4, w.saved), user_place(),
                            place[1] if place is not None and place[0] == e.opcode else None)
    return 0


cdef int check_total(Value *a, Value *b, Value *total) except -1:
    """The sum of two cotangents of one value."""
    if first_bad(total) >= 0:
        _nonfinite().check_op("sum of cotangents", True, to_numpy(total), [to_numpy(a), to_numpy(b)], user_place())
    return 0


def set_tracing(places):
    """Look at results from now on (a dict, in which places of entries are noted) or not (None); what was set before."""
    cdef ThreadState *ts = thread_state()
    cdef PyObject *before = ts.places
    result = None if before == NULL else <object>before
    if places is None:
        ts.places = NULL
        ts.flags &= ~T_NAN
    else:
        Py_INCREF(places)
        ts.places = <PyObject *>places
        ts.flags |= T_NAN
    Py_XDECREF(before)
    return result


def is_tracing():
    """Whether trace_nan is on in this thread."""
    return (thread_state().flags & T_NAN) != 0


def array_of(Tensor t not None):
    """t's elements, without a recording's notice."""
    return to_numpy(t.v)
