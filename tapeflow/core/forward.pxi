# The push forward: tangents from sources to results, over what was recorded between them, in ascending order.
#
# A walk from the results finds the entries, highest number first, and with each the shape and dtype of its value, which
# its consumer knows. Tangents then go over them the other way. There are no rules of their own for that. An elementwise
# partial takes a tangent as it takes a cotangent, so the fused loops and the composed rules of backward serve; a linear
# op is applied to tangents, a product twice; of any other op the rule (a linear function of its cotangent) is
# transposed by a backward through it.

cdef struct Stage:
    Entry *e
    Value *like                  # of its result, at least shape and dtype
    uint64_t last                # bit i: nothing later reads the tangent of input i


cdef class Pushforward(Walk):
    """What leads from sources to results, Nodes both (None for what is not recorded); likes: the results.

    Nothing that the sources come from has a number as large as theirs.
    """
    cdef Stage *stages           # the highest number first
    cdef int64_t n_stages, room_stages
    cdef list starts, ends

    def __init__(self, list sources, list results, list likes):
        cdef Node node
        cdef Tensor like
        cdef Slot *s
        self.floor = LARGEST
        self.starts, self.ends = sources, results
        self.sources = {}
        for node in sources:
            self.sources[<uintptr_t>node.e] = None
            if node.e.number < self.floor:
                self.floor = node.e.number
        for node, like in zip(results, likes):
            if node is not None and self.wants(node.e):
                s = self.find(node.e)
                if s.v == NULL:
                    s.v = value_meta(like.v)
        self.run()

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.n_stages):
            value_release(self.stages[i].like)
            entry_release(self.stages[i].e)
        free(self.stages)

    cdef int visit(self, Entry *e, Slot *s) except -1:
        """A stage for e, unless nothing that is wanted leads to it."""
        cdef Stage stage
        cdef Slot *into
        cdef int i
        cdef int n = n_inputs(e)
        cdef bint led = False
        cdef void *grown
        cdef Entry *src
        cdef Value *v
        if e.opcode == OP_CUSTOM and (<object>e.hooks).again:
            self.through_again(e)
        stage.e, stage.like, stage.last = e, s.v, 0
        for i in range(n - 1, -1, -1):
            src = input_entry(e, i)
            if not self.wants(src):
                continue
            led = True
            into = self.find(src)
            if into.v == NULL:
                v = input_value(e, i)
                into.v = value_share(s.v if v == NULL else v)
                if i < 64:
                    stage.last |= <uint64_t>1 << i
        if e.flags & E_FREED and <uintptr_t>e not in self.sources:  # it has let go of its inputs, or soon will
            check_not_freed(e)
        if led:
            if self.n_stages == self.room_stages:
                grown = realloc(self.stages, (2 * self.room_stages + 16) * sizeof(Stage))
                if grown == NULL:
                    raise MemoryError()
                self.stages = <Stage *>grown
                self.room_stages = 2 * self.room_stages + 16
            e.refs += 1
            value_share(s.v)
            self.stages[self.n_stages] = stage
            self.n_stages += 1
        return 0

    cdef int through_again(self, Entry *call) except -1:
        """Go on through what a call records when it is computed again (core/custom.pxi)."""
        cdef Slot *into
        cdef Tensor t
        cdef list results
        check_not_freed(call)
        results = computed_again(thread_state(), call)
        if self.collected is None:
            self.collected = {}
        self.collected[<uintptr_t>call] = results
        for t in results:
            if self.wants(t.node):
                into = self.find(t.node)
                if into.v == NULL:
                    into.v = value_share(t.v)
        return 0

    cdef Tensor result_tangent(self, Walk w, Entry *e):
        """The tangent of one of the results of a call with a rule of its own, or None."""
        cdef uintptr_t call = <uintptr_t>e.src[0]
        cdef list again = None if self.collected is None else self.collected.get(call)
        cdef Slot *s = NULL
        if again is None:
            return w.collected[call].get(e.params[1]) if w.collected is not None and call in w.collected else None
        if (<Tensor>again[e.params[1]]).node != NULL:
            s = w.slot_of((<Tensor>again[e.params[1]]).node)
        return None if s == NULL or s.v == NULL else share_of(s)

    cdef int custom_tangents(self, Walk w, Entry *e, list ts) except -1:
        """Ask the rule of a call for the tangents of its results."""
        cdef ThreadState *now = thread_state()
        cdef int flags = now.flags
        if w.tracing:
            now.flags |= T_NAN
        try:
            found = (<object>e.hooks).push(kept_tensors(e.many, self.composed), ts,
                                           node_at(e) if self.composed else None)
        finally:
            now.flags = flags
        if w.collected is None:
            w.collected = {}
        w.collected[<uintptr_t>e] = found
        return 0

    def lend(self, bint linked):
        """Let the program that is being recorded, within or after what this was built of, take what the entries saved
        for constants; linked: to be differentiated where they were recorded."""
        cdef Program program = program_of(thread_state())
        cdef int64_t i
        cdef int k
        cdef Entry *e
        cdef Entry *node
        for i in range(self.n_stages):
            e = self.stages[i].e
            for k in range(4):
                if e.val[k] != NULL and e.val[k].buf != NULL:
                    node = e.src[k] if k < 3 else e if e.opcode != OP_LAYER_NORM else NULL  # that saves statistics
                    program.lend(e.val[k], node if linked else NULL)
            for k in range(e.many.n if e.opcode == OP_CUSTOM else 0):
                if e.many.val[k].buf != NULL:
                    program.lend(e.many.val[k], e.many.src[k] if linked else NULL)

    def push_tangents(self, list tangents, bint composed):
        """The tangents of the results for those of the sources; None stands for one that is 0 everywhere.

        composed: what is computed is recorded, so that it can be differentiated. A recording takes notes of it as of
        any ops.
        """
        cdef ThreadState *ts = thread_state()
        cdef Program program = program_of(ts)
        cdef int flags = ts.flags
        cdef int line = -1
        cdef bint through = False
        cdef Walk w = Walk.__new__(Walk)
        cdef Node node
        cdef Slot *s
        cdef Tensor t
        cdef int64_t i
        cdef list found = []
        w.composed = composed or program is not None
        self.composed = composed
        w.tracing = flags & T_NAN
        walk_begins(ts, composed, program, True, &line, &through)
        ts.flags &= ~T_NAN  # what is pushed on is looked at as a whole
        try:
            for node, t in zip(self.starts, tangents):
                if t is not None:
                    w.push_tensor(node.e, t, NULL)
            t = None
            for i in range(self.n_stages - 1, -1, -1):
                self.advance(w, &self.stages[i])
                if i & 1023 == 0:
                    PyErr_CheckSignals()
            for node in self.ends:
                s = NULL if node is None else w.slot_of(node.e)
                found.append(None if s == NULL or s.v == NULL else packed(share_of(s)))
        finally:
            walk_ends(ts, flags, composed, program, line, through)
        return found

    cdef int advance(self, Walk w, Stage *stage) except -1:
        """The tangent of one entry from those of its inputs, where they have any."""
        cdef Entry *e = stage.e
        cdef Value *vals[4]
        cdef int i
        cdef Tensor t
        check_not_freed(e)
        for i in range(4):  # shares of our own, as in backward
            vals[i] = e.val[i]
            if vals[i] != NULL:
                vals[i].owners += 1
        try:
            if w.tracing and not self.arrives_finite(w, e):
                w.at = NULL
            elif w.tracing:
                w.at, w.saved = e, vals
            if e.opcode < TPF_N_ELEMENTWISE and not w.composed and not self.arrives_remote(w, e, vals):
                return self.elementwise_fused_tangent(w, stage, vals)
            if e.opcode < TPF_N_ELEMENTWISE:
                t = self.elementwise_tangent(w, stage, vals)
            else:
                t = self.structured_tangent(w, stage, vals)
            return 0 if t is None else w.push_tensor(e, t, NULL)
        finally:
            w.at = NULL
            for i in range(4):
                value_release(vals[i])

    cdef bint arrives_finite(self, Walk w, Entry *e) except -1:
        """Are the tangents of e's inputs finite?"""
        cdef Slot *s
        cdef Entry *src
        cdef int i
        for i in range(n_inputs(e)):
            src = input_entry(e, i)
            s = NULL if src == NULL else w.slot_of(src)
            if s != NULL and s.v != NULL and first_bad(s.v) >= 0:
                return False
        return True

    cdef bint arrives_remote(self, Walk w, Entry *e, Value **vals) noexcept:
        """Is a tangent of e's inputs, or what e saved, on a device, where the rules are ops?"""
        cdef Slot *s
        cdef int i
        if any_saved_away(vals) != NULL:
            return True
        for i in range(e.nin):
            s = NULL if e.src[i] == NULL else w.slot_of(e.src[i])
            if s != NULL and s.v != NULL and is_remote(s.v):
                return True
        return False

    cdef Tensor input_tangent(self, Walk w, Stage *stage, int i):
        """The tangent of input i, or None; the walk lets go of it where nothing later reads it."""
        cdef Entry *src = input_entry(stage.e, i)
        cdef Slot *s = NULL if src == NULL else w.slot_of(src)
        if s == NULL or s.v == NULL:
            return None
        return w.take_slot(s) if i < 64 and stage.last >> i & 1 else share_of(s)

    cdef int elementwise_fused_tangent(self, Walk w, Stage *stage, Value **vals) except -1:
        """The fused loops of the rules, one after the other into one value."""
        cdef Entry *e = stage.e
        cdef int op = e.opcode
        cdef int i, kind
        cdef int dtype = stage.like.dtype
        cdef Value *t = NULL
        cdef Value *passed = NULL    # a tangent that goes on as it is
        cdef Value *y = NULL         # or the sum so far, which is ours
        cdef ThreadState *ts = thread_state()
        cdef double start = step_begins(ts)
        cdef int mask = 0
        cdef bint first
        try:
            for i in range(e.nin):
                kind = tpf_op_vjp_kind[op][i]
                t = NULL if kind == TPF_VJP_NONE else self.value_of_tangent(w, stage, i)
                if t == NULL:
                    continue
                if kind == TPF_VJP_LOOP:
                    mask |= 1 << i
                if kind == TPF_VJP_PASS and y == NULL and passed == NULL:
                    passed, t = t, NULL
                    continue
                first = y == NULL
                if first and kind == TPF_VJP_LOOP and value_is_mine(t) and same_shape(t, stage.like):
                    y, t = t, NULL
                    execute_vjp(op, i, -1, y, y, vals, 0)
                elif first:
                    y = value_like(stage.like, dtype)
                    if kind == TPF_VJP_LOOP:
                        execute_vjp(op, i, -1, y, t, vals, 0)
                    else:
                        execute_typed(OP_ADD, dtype, y, passed, t, NULL, True)
                elif kind == TPF_VJP_LOOP:
                    execute_vjp(op, i, -1, y, t, vals, 1)
                else:
                    execute_typed(OP_ADD, dtype, y, y, t, NULL, True)
                if passed != NULL:
                    if kind == TPF_VJP_LOOP:  # a sum of two is the same in either order
                        execute_typed(OP_ADD, dtype, y, y, passed, NULL, True)
                    value_release(passed)
                    passed = NULL
                value_release(t)
                t = NULL
            if passed != NULL:
                y = value_broadcast(passed, stage.like.ndim, stage.like.shape)
            if y == NULL:
                return 0
            if ts.flags & T_STEPS:
                step_note(ts, start, tpf_op_name[op], b"_jvp", 0, NULL, y, step_bytes(mask, vals, y), mask)
            value_share(y)  # for push, which takes it over
            w.push(e, y, NULL, NULL)
            return 0
        finally:
            value_release(t)
            value_release(passed)
            value_release(y)

    cdef Value *value_of_tangent(self, Walk w, Stage *stage, int i) except? NULL:
        """A share of the tangent of input i in the dtype of the result, or NULL."""
        cdef Tensor t = self.input_tangent(w, stage, i)
        if t is None:
            return NULL
        if t.v.dtype != stage.like.dtype:
            t = op_astype(t, stage.like.dtype)
        return value_share(t.v)

    cdef Tensor elementwise_tangent(self, Walk w, Stage *stage, Value **vals):
        """The rules of the table as recorded ops, in the dtype that the op computed in."""
        cdef Entry *e = stage.e
        cdef int i
        cdef Tensor t
        cdef Tensor total = None
        cdef list operands = rule_operands(e, vals, stage.like.dtype)
        for i in range(e.nin):
            rule = _composed.rule(e.opcode, i)
            t = None if rule is None else self.input_tangent(w, stage, i)
            if t is None:
                continue
            t = rule(op_astype(t, stage.like.dtype), *operands)
            total = t if total is None else add_tensors(total, t)
        return None if total is None else op_broadcast(total, stage.like.ndim, stage.like.shape)

    cdef Tensor structured_tangent(self, Walk w, Stage *stage, Value **vals):
        cdef Entry *e = stage.e
        cdef int op = e.opcode
        cdef list ts = [self.input_tangent(w, stage, i) for i in range(n_inputs(e))]
        cdef Tensor t
        cdef bint mine
        if op == OP_CUSTOM_RESULT:
            return self.result_tangent(w, e)
        if op == OP_IDENTITY and e.params != NULL and e.params[1] == MOVED and ts[0] is not None:
            return op_move(ts[0], _places[e.params[3]])
        if op == OP_IDENTITY or not [None for t in ts if t is not None]:
            return ts[0]
        if op == OP_CUSTOM:  # when it was computed again, tangents go through what that recorded
            if not (<object>e.hooks).again:
                self.custom_tangents(w, e, ts)
            return None
        if op == OP_MATMUL or op == OP_VECDOT:
            return product_tangent(e, vals, ts, stage.like)
        if is_linear(op):
            for i, t in enumerate(ts):
                if t is None:
                    ts[i] = constant_tangent(e, vals, ts, i, stage.like)
            t = ts[0]
            mine = op == OP_ASSIGN and not w.composed and stage.last & 1 and value_is_mine(t.v)
            return op_assign(t, e.params, ts[1], True) if mine else linear_tangent(e, ts, stage.like)
        return transposed_tangent(e, vals, ts, stage.like, self.composed)


# ---- entries


cdef inline int n_inputs(Entry *e) noexcept:
    return e.nin if e.many == NULL else e.many.n


cdef inline Entry *input_entry(Entry *e, int i) noexcept:
    return e.src[i] if e.many == NULL else e.many.src[i]


cdef inline Value *input_value(Entry *e, int i) noexcept:
    """What e keeps of its input i, or NULL: then that has the shape and dtype of e's value."""
    return e.val[i] if e.many == NULL else e.many.val[i]


cdef Tensor share_of(Slot *s):
    if s.node != NULL:
        s.node.refs += 1
    return wrap(value_share(s.v), s.node)


# ---- structured ops


cdef bint is_linear(int op) noexcept:
    """Is the op linear in its float operands, all together?"""
    return op in (OP_ASTYPE, OP_RESHAPE, OP_PERMUTE_DIMS, OP_BROADCAST_TO, OP_GETITEM, OP_UNSLICE, OP_ASSIGN, OP_CONCAT,
                  OP_SUM, OP_MEAN, OP_CUMULATIVE_SUM, OP_TAKE, OP_PUT, OP_SCATTER_ADD)


cdef Tensor linear_tangent(Entry *e, list xs, Value *like):
    """The op itself on tangents."""
    cdef int64_t none[4]
    cdef const int64_t *params = e.params
    cdef Tensor t
    if e.opcode == OP_GETITEM:
        return window_like(xs[0], params, like)
    if params == NULL:
        memset(none, 0, sizeof(none))
        params = &none[0]
    t = apply_structured(e.opcode, params, xs, like.dtype, shape_of(like))
    return reshape_like(t, like)  # keepdims is in the shape alone


cdef Tensor constant_tangent(Entry *e, Value **vals, list ts, int i, Value *like):
    """For an operand that has no tangent: zeros of its shape, or the operand where it is an index."""
    cdef Tensor zero
    cdef int op = e.opcode
    cdef Tensor idx
    if i == 1 and op in (OP_TAKE, OP_PUT, OP_SCATTER_ADD):
        return with_node(vals[1], NULL)
    if op == OP_CONCAT:
        like = e.many.val[i]
    elif i > 0:
        zero = wrap(zeros_value(0, NULL, like.dtype), NULL)
        if op == OP_ASSIGN:
            return op_broadcast_window(zero, e.params)
        idx = ts[1]
        return taken_shape(zero, like, idx.v, <int>e.params[1])
    return wrap(zeros_value(like.ndim, like.shape, like.dtype), NULL)


cdef Tensor product_tangent(Entry *e, Value **vals, list ts, Value *like):
    """A product of two operands: each one's tangent times the other."""
    cdef Tensor t, other
    cdef Tensor total = None
    cdef int i
    for i in range(2):
        if ts[i] is None:
            continue
        t = op_astype(ts[i], like.dtype)
        other = op_astype(with_node(vals[1 - i], e.src[1 - i]), like.dtype)
        if e.opcode == OP_VECDOT:
            t = op_vecdot(t, other, <uint64_t>e.params[1])
        else:
            t = op_matmul(t, other) if i == 0 else op_matmul(other, t)
        total = t if total is None else add_tensors(total, t)
    return reshape_like(total, like)


cdef Tensor transposed_tangent(Entry *e, Value **vals, list ts, Value *like, bint composed):
    """The rule of one entry, transposed: recorded as a function of a cotangent, then a backward through that record,
    with tangents for seeds."""
    cdef ThreadState *ts_now = thread_state()
    cdef int flags = ts_now.flags
    cdef Walk w = Walk.__new__(Walk)
    cdef Tensor g = wrap(zero_like(like), NULL)
    cdef Tensor t
    cdef Node place
    cdef Value *there = any_saved_away(vals)
    cdef Slot *s
    cdef int i
    cdef list cotangents = []
    cdef list seeds = []
    w.composed = w.retain = True
    for t in ts:
        if there == NULL and t is not None and is_remote(t.v):
            there = t.v
    if there != NULL:
        g = op_move(g, device_of(there))
    ts_now.flags |= T_GRAD
    try:
        g = g.requires_grad_()
        place = node_of(g)
        structured_vjp(w, e, vals, g)
    finally:
        restore_modes(ts_now, flags)
    for i in range(n_inputs(e)):
        s = NULL if ts[i] is None else w.slot_of(input_entry(e, i))
        if s == NULL or s.v == NULL:
            continue  # e.g. the same operand twice: the first time its slot had all of it
        t = w.take_slot(s)
        if t.node != NULL and t.node.flags & E_GRAD:
            cotangents.append(t)
            seeds.append(ts[i])
    return run_backward(cotangents, seeds, [place], composed, False)[0] if cotangents else None
