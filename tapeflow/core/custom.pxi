# Calls with a rule of their own: tp.custom_vjp, whose backward the user wrote, and tp.checkpoint, which computes the
# call again (tapeflow/custom.py, tapeflow/recompute.py).
#
# A call is an entry "custom": its inputs are the arguments and what the rule keeps besides; its `hooks` hold the Python
# object that knows the rest. Each result is an entry "custom_result" of it. A walk collects the cotangents of the
# results, which come first, and then visits the call once, with all of them. The call's own pending cotangent is a
# token: it says only that something has arrived.

def custom_call(call, list kept, list gives, list results, bint always):
    """The float tensors `results` as results of a call, which must be made in grad mode.

    kept: tensors that the rule gets again, with their places; gives: of each, whether its value is kept, or shape and
    dtype only. always: it requires grad whatever it keeps.
    """
    cdef ThreadState *ts = thread_state()
    cdef Entry *e = entry_new(ts, OP_CUSTOM, 0)
    cdef Value *token = NULL
    cdef Tensor t
    cdef list out = []
    try:
        keep_inputs(ts, e, kept, gives)
        for t in results:  # a leaf that only the call itself has read is older, too
            if t.node != NULL and t.node.number >= e.number:
                e.number = t.node.number + 1
                ts.next = e.number + 1
        if always:
            e.flags |= E_GRAD
        Py_INCREF(call)
        e.hooks = <PyObject *>call
        if ts.flags & T_TAPE:
            token = value_scalar(TPF_BOOL)
            tape_note(ts, e, token)
        for i, t in enumerate(results):
            out.append(result_of(ts, e, t, i))
    finally:
        value_release(token)
        entry_release(e)
    return out


cdef int keep_inputs(ThreadState *ts, Entry *e, list kept, list gives) except -1:
    cdef Many *m = <Many *>calloc(1, sizeof(Many))
    cdef Tensor t
    if m == NULL:
        raise MemoryError()
    e.many = m
    m.src = <Entry **>calloc(len(kept) + 1, sizeof(Entry *))
    m.val = <Value **>calloc(len(kept) + 1, sizeof(Value *))
    if m.src == NULL or m.val == NULL:
        raise MemoryError()
    for t, whole in zip(kept, gives):
        note_read(t.v)
        m.val[m.n] = value_share(t.v) if whole else value_meta(t.v)
        m.src[m.n] = t.node
        m.n += 1
        if t.node != NULL:
            entry_link(ts, e, t.node)
    return 0


cdef Tensor result_of(ThreadState *ts, Entry *call, Tensor t, int place):
    """t's value as a result of a call."""
    cdef Entry *e
    cdef Value *v
    note_read(t.v)
    v = value_alias(t.v)
    try:
        e = entry_new(ts, OP_CUSTOM_RESULT, 1)
    except:
        value_release(v)
        raise
    e.src[0] = call
    entry_link(ts, e, call)
    try:
        e.params = params_new(1)
        e.params[1] = place
        if ts.flags & T_TAPE:
            tape_note(ts, e, v)
    except:
        entry_release(e)
        value_release(v)
        raise
    return wrap(v, e)


def result_again(Node call not None, Tensor t not None, int place):
    """t once more as a result of the call at this place of the tape."""
    return result_of(thread_state(), call.e, t, place)


cdef inline Entry *call_alone(Entry *e) noexcept:
    """The call that only this result keeps alive, or NULL."""
    if e.opcode == OP_CUSTOM_RESULT and e.refs == 1 and e.src[0] != NULL and e.src[0].refs == 1:
        return e.src[0]
    return NULL


# ---- in a walk


cdef int custom_result_vjp(Walk w, Entry *e, Tensor g) except -1:
    """Keep the cotangent of a result for the call."""
    cdef Entry *call = e.src[0]
    cdef Slot *s
    if not w.wants(call):
        return 0
    if w.collected is None:
        w.collected = {}
    w.collected.setdefault(<uintptr_t>call, []).append((e.params[1], g))
    s = w.find(call)
    if s.v == NULL:
        s.v = value_scalar(TPF_BOOL)
    return 0


cdef int custom_vjp(Walk w, Entry *e) except -1:
    """Give the rule what has arrived, and its cotangents to the arguments."""
    cdef ThreadState *ts = thread_state()
    cdef int flags = ts.flags
    cdef Many *m = e.many
    cdef dict cotangents = {}
    cdef Tensor t, g
    cdef bint finite = True
    cdef list results, found
    if e.hooks == NULL:
        raise errors.TapeError("[backward] a call with a rule of its own has been taken apart as garbage.")
    cdef object call = <object>e.hooks
    for place, g in w.collected.pop(<uintptr_t>e):
        t = cotangents.get(place)
        cotangents[place] = g if t is None else add_tensors(t, g)
        finite = finite and (not w.tracing or first_bad(g.v) < 0)
    if not finite:
        w.at = NULL  # what comes of it need not be finite
    if w.tracing:
        ts.flags |= T_NAN
    try:
        if call.again:
            results = computed_again(ts, e)
        else:
            results = None
            found = call.pull(kept_tensors(m, w.recorded), cotangents, node_at(e) if w.recorded else None)
    finally:
        ts.flags = flags
    if results is not None:
        for place, g in cotangents.items():
            t = results[<int>place]
            if w.wants(t.node):
                w.push_tensor(t.node, g, NULL)
        return 0
    for i, result in enumerate(found):
        if result is not None and w.wants(m.src[<int>i]):
            w.push_tensor(m.src[<int>i], <Tensor>result, NULL)
    return 0


cdef list kept_tensors(Many *m, bint places):
    """What a call keeps, as tensors, with their places on the tape or without; None where only a shape is kept."""
    cdef list kept = []
    cdef Entry *node
    cdef int i
    for i in range(m.n):
        if m.val[i].buf == NULL:
            kept.append(None)
            continue
        node = m.src[i] if places else NULL
        if node != NULL:
            node.refs += 1
        kept.append(wrap(value_alias(m.val[i]), node))
    return kept


cdef list computed_again(ThreadState *ts, Entry *e):
    """The results of a call that is run again, recorded, so that the walk can go on through what that has recorded.

    The new entries have the highest numbers there are, so they are visited next, in the order of the first run's: what
    a leaf or an argument gets is added up in the order, and so to the bits, of a run that kept everything.
    """
    cdef int passed = ts.passed
    cdef int flags = ts.flags
    if ts.next <= e.number:  # a thread that has recorded less than the one that made the call
        ts.next = e.number + 1
    ts.flags |= T_GRAD
    ts.passed = len(<list>ts.tapes)
    try:
        return (<object>e.hooks).run_again(kept_tensors(e.many, True), node_at(e))
    finally:
        ts.passed = passed
        ts.flags = flags


# ---- runs that will be computed again


def passing_begin():
    """A run begins whose entries are dropped: tapes that are open hold none. Returns a token, whose [1] is the next
    entry number."""
    cdef ThreadState *ts = thread_state()
    cdef int before = ts.passed
    number_after_all(ts)
    ts.passed = len(<list>ts.tapes)
    return before, ts.next


def passing_end(token):
    """That run has ended."""
    thread_state().passed = token[0]


def made_since(t, int64_t since):
    """Whether t is a tensor that was computed, for gradients, by an entry of at least this number."""
    cdef Entry *e = (<Tensor>t).node if isinstance(t, Tensor) else NULL
    return e != NULL and e.flags & E_GRAD and not e.flags & E_LEAF and e.number >= since


def held(Tensor t not None):
    """t's present value and place, whatever is written to t from now on."""
    return hold(t)


def captured_leaves(list results, int64_t since, list known):
    """The leaves that results depend on through entries recorded since a number, but for those of known tensors: as
    tensors of their places and values."""
    cdef Entry **seen = NULL
    cdef int64_t n = 0
    cdef int64_t room = 0
    cdef int64_t at = 0
    cdef dict leaves = {}
    cdef Tensor t
    cdef Entry *e
    cdef int i
    for t in known:
        if t.node != NULL:
            leaves[<uintptr_t>t.node] = None
    try:
        for t in results:
            reach(t.node, since, &seen, &n, &room, leaves)
        while at < n:
            e = seen[at]
            at += 1
            for i in range(3):
                reach(e.src[i], since, &seen, &n, &room, leaves)
            if e.many != NULL:
                for i in range(e.many.n):
                    reach(e.many.src[i], since, &seen, &n, &room, leaves)
    finally:
        for at in range(n):
            seen[at].link = NULL
        free(seen)
    return [t for t in leaves.values() if t is not None]


cdef int reach(Entry *e, int64_t since, Entry ***seen, int64_t *n, int64_t *room, dict leaves) except -1:
    """Note a leaf, or an entry whose inputs are to be looked at, once. (The link of a living entry is its mark.)"""
    cdef void *grown
    if e == NULL or not e.flags & E_GRAD:
        return 0
    if e.flags & E_LEAF:
        if e.tensor != NULL and <uintptr_t>e not in leaves:
            leaves[<uintptr_t>e] = hold(<Tensor>e.tensor)
        return 0
    if e.number < since or e.link != NULL:
        return 0
    if n[0] == room[0]:
        grown = realloc(seen[0], (2 * room[0] + 64) * sizeof(Entry *))
        if grown == NULL:
            raise MemoryError()
        seen[0] = <Entry **>grown
        room[0] = 2 * room[0] + 64
    seen[0][n[0]] = e
    n[0] += 1
    e.link = <void *>e
    return 0


def unchanged(Node call not None, int first):
    """Whether the leaves that a call keeps, from its input `first` on, still hold the values that they had."""
    cdef Many *m = call.e.many
    cdef int i
    for i in range(first, m.n):
        if m.src[i].tensor != NULL and (<Tensor>m.src[i].tensor).v != m.val[i]:
            return False
    return True
