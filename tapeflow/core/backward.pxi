# The walk: cotangents from targets to leaves and sources, in the reverse order of entry numbers.
#
# A walk keeps what is pending in cells, one a chunk, and the cells in a heap by the highest pending number; chunks
# with nothing pending are never looked at. Cells belong to one walk, so walks may nest (hooks) and interleave
# (threads). Leaves collect their cotangents in the walk; `.grad` slots change only after everything has gone well.
# Elementwise entries run the fused loops, or, when the walk itself is recorded, the composed rules; structured entries
# have one rule, written in ops, for both.

cdef struct Slot:
    Value *v
    Entry *node                  # of the cotangent itself, in a walk that is recorded

cdef struct Cell:
    void *walk
    Chunk *chunk
    Cell *next                   # the chunk's other cells; in the free list: the next
    int64_t key                  # the highest pending number
    int heap_index
    uint64_t pending
    Slot slots[64]

cdef struct LeafCell:
    void *walk
    LeafCell *next               # the leaf's other cells
    Entry *leaf
    Slot slot

cdef Cell *cell_free = NULL
cdef int cells_kept = 0


cdef inline void slot_clear(Slot *s) noexcept:
    value_release(s.v)
    entry_release(s.node)
    s.v = NULL
    s.node = NULL


cdef Cell *cell_new(void *walk, Chunk *chunk) except NULL:
    global cell_free, cells_kept
    cdef Cell *c = cell_free
    if c != NULL:
        cell_free = c.next
        cells_kept -= 1
    else:
        c = <Cell *>malloc(sizeof(Cell))
        if c == NULL:
            raise MemoryError()
    c.walk = walk
    c.chunk = chunk
    c.pending = 0
    c.next = chunk.cells
    chunk.cells = c
    return c


cdef void cell_drop(Cell *c) noexcept:
    """Unlink a cell from its chunk and keep it."""
    global cell_free, cells_kept
    cdef Cell **p = &c.chunk.cells
    while p[0] != c:
        p = &p[0].next
    p[0] = c.next
    if cells_kept < 64 and POOLED:
        c.next = cell_free
        cell_free = c
        cells_kept += 1
    else:
        free(c)


cdef inline void ensure_like(Value *x, Value *g) noexcept:
    if ASSERTING:
        ensure(same_shape(x, g) and x.dtype == g.dtype, b"a cotangent has the shape and dtype of its value")


cdef class Walk:
    cdef Cell **heap
    cdef int n, room
    cdef LeafCell **leaves
    cdef int n_leaves, room_leaves
    cdef bint composed           # the walk runs the rules as ops: it is recorded, or its results are looked at
    cdef bint retain
    cdef int64_t floor           # nothing with a smaller number leads to a source
    cdef dict sources            # address of an Entry -> its cotangent (a Tensor) or None; None: the leaves' .grad
    cdef list retained           # (tensor, cotangent) of retain_grad
    cdef dict collected          # address of an OP_CUSTOM -> the cotangents of its results
    cdef bint recorded           # it can be differentiated itself
    cdef bint tracing            # trace_nan is on
    cdef int watching            # T_NAN where it is, T_STEPS where a profile is open
    cdef double began            # in a profile: when the visit did, and the shape of the cotangent there
    cdef Value *like
    cdef Entry *at               # when tracing: what is visited, the cotangent there, and what it saved
    cdef Value *arrived
    cdef Value **saved

    def __dealloc__(self):
        cdef int i, bit
        cdef Cell *c
        cdef Chunk *chunk
        cdef uint64_t pending
        for i in range(self.n):  # only after an exception
            c = self.heap[i]
            chunk = c.chunk
            pending = c.pending
            for bit in range(CHUNK):
                if pending >> bit & 1:
                    slot_clear(&c.slots[bit])
            cell_drop(c)
            for bit in range(CHUNK):
                if pending >> bit & 1:
                    entry_release(&chunk.entries[bit])
        free(self.heap)
        for i in range(self.n_leaves):
            self.drop_leaf(self.leaves[i])
        free(self.leaves)

    cdef void drop_leaf(self, LeafCell *c) noexcept:
        cdef LeafCell **p = <LeafCell **>&c.leaf.link
        while p[0] != c:
            p = &p[0].next
        p[0] = c.next
        slot_clear(&c.slot)
        entry_release(c.leaf)
        free(c)

    # ---- the heap of cells

    cdef void sift_up(self, int i) noexcept:
        cdef Cell *c = self.heap[i]
        cdef int up
        while i > 0:
            up = (i - 1) >> 1
            if self.heap[up].key >= c.key:
                break
            self.heap[i] = self.heap[up]
            self.heap[i].heap_index = i
            i = up
        self.heap[i] = c
        c.heap_index = i

    cdef void sift_down(self, int i) noexcept:
        cdef Cell *c = self.heap[i]
        cdef int down
        while True:
            down = 2 * i + 1
            if down >= self.n:
                break
            if down + 1 < self.n and self.heap[down + 1].key > self.heap[down].key:
                down += 1
            if self.heap[down].key <= c.key:
                break
            self.heap[i] = self.heap[down]
            self.heap[i].heap_index = i
            i = down
        self.heap[i] = c
        c.heap_index = i

    cdef Slot *find(self, Entry *e) except? NULL:
        """The slot in which e's cotangent collects; its v is NULL the first time."""
        cdef Cell *c
        cdef void *grown
        cdef uint64_t bit
        if e.chunk == NULL:
            return self.find_leaf(e)
        c = e.chunk.cells
        while c != NULL and c.walk != <void *>self:
            c = c.next
        if c == NULL:
            if self.n == self.room:
                grown = realloc(self.heap, (2 * self.room + 8) * sizeof(Cell *))
                if grown == NULL:
                    raise MemoryError()
                self.heap = <Cell **>grown
                self.room = 2 * self.room + 8
            c = cell_new(<void *>self, e.chunk)
            c.key = e.number
            self.heap[self.n] = c
            self.n += 1
            self.sift_up(self.n - 1)
        bit = <uint64_t>1 << e.slot
        if not c.pending & bit:
            c.pending |= bit
            c.slots[e.slot].v = NULL
            c.slots[e.slot].node = NULL
            e.refs += 1
            if e.number > c.key:
                c.key = e.number
                self.sift_up(c.heap_index)
        return &c.slots[e.slot]

    cdef Slot *find_leaf(self, Entry *e) except? NULL:
        cdef LeafCell *c = <LeafCell *>e.link
        cdef void *grown
        while c != NULL and c.walk != <void *>self:
            c = c.next
        if c == NULL:
            if self.n_leaves == self.room_leaves:
                grown = realloc(self.leaves, (2 * self.room_leaves + 8) * sizeof(LeafCell *))
                if grown == NULL:
                    raise MemoryError()
                self.leaves = <LeafCell **>grown
                self.room_leaves = 2 * self.room_leaves + 8
            c = <LeafCell *>calloc(1, sizeof(LeafCell))
            if c == NULL:
                raise MemoryError()
            c.walk = <void *>self
            c.leaf = e
            c.next = <LeafCell *>e.link
            e.link = c
            e.refs += 1
            self.leaves[self.n_leaves] = c
            self.n_leaves += 1
        return &c.slot

    cdef Slot *slot_of(self, Entry *e) noexcept:
        """The slot of an entry that find was asked for, or NULL."""
        cdef Cell *c
        cdef LeafCell *leaf
        if e.chunk == NULL:
            leaf = <LeafCell *>e.link
            while leaf != NULL and leaf.walk != <void *>self:
                leaf = leaf.next
            return NULL if leaf == NULL else &leaf.slot
        c = e.chunk.cells
        while c != NULL and c.walk != <void *>self:
            c = c.next
        return &c.slots[e.slot] if c != NULL and c.pending >> e.slot & 1 else NULL

    # ---- pushing

    cdef inline bint wants(self, Entry *e) noexcept:
        return e != NULL and e.flags & E_GRAD and e.number >= self.floor

    cdef int push(self, Entry *e, Value *v, Entry *node, Value *like) except -1:
        """Add a cotangent (v and node are taken over) to e's, summed and cast to the shape and dtype of like."""
        cdef Slot *s
        cdef Tensor t
        if like != NULL and not (like.dtype == v.dtype and same_shape(like, v)):
            t = sum_to(wrap(v, node), like)
            v = value_share(t.v)
            node = t.node
            if node != NULL:
                node.refs += 1
            t = None
        try:
            if self.tracing and self.at != NULL:
                check_pushed(self, v)
            s = self.find(e)
        except:
            value_release(v)
            entry_release(node)
            raise
        if ASSERTING:
            if e.flags & E_LEAF and e.tensor != NULL:
                ensure_like((<Tensor>e.tensor).v, v)
            elif e.val[3] != NULL and e.opcode != OP_LAYER_NORM:  # which keeps statistics there, not its value
                ensure_like(e.val[3], v)
        if s.v == NULL:
            s.v = v
            s.node = node
        else:
            self.accumulate(s, v, node)
        return 0

    cdef int push_tensor(self, Entry *e, Tensor t, Value *like) except -1:
        if t.node != NULL:
            t.node.refs += 1
        return self.push(e, value_share(t.v), t.node, like)

    cdef int accumulate(self, Slot *s, Value *v, Entry *node) except -1:
        cdef Tensor total
        ensure_like(s.v, v)
        cdef double start
        cdef Value *vals[2]
        if devices_used and device_of(v) is not device_of(s.v):  # of what went along to a device, by one way of two
            total = op_move(wrap(v, node), device_of(s.v))
            v, node = value_share(total.v), total.node
            if node != NULL:
                node.refs += 1
        if not self.composed and value_is_mine(s.v):
            start = tpf_clock() if self.watching else 0.0
            try:
                execute_typed(OP_ADD, s.v.dtype, s.v, s.v, v, NULL, True)
                if self.watching:
                    vals[0], vals[1] = s.v, v
                    step_ends(thread_state(), start, OP_ADD, 2, vals, s.v)
            finally:
                value_release(v)
                entry_release(node)
            return 0
        total = wrap(v, node)
        # s keeps its own until the sum is there
        if s.node != NULL:
            s.node.refs += 1
        total = add_tensors(wrap(value_share(s.v), s.node), total)
        if self.tracing:
            check_total(s.v, v, total.v)
        # the slot may not have moved: nothing was pushed by an addition
        slot_clear(s)
        s.v = value_share(total.v)
        s.node = total.node
        if s.node != NULL:
            s.node.refs += 1
        return 0

    cdef Tensor take_slot(self, Slot *s):
        """What a slot has collected, which leaves it empty."""
        cdef Tensor t = wrap(s.v, s.node)
        s.v = NULL
        s.node = NULL
        return t

    # ---- walking

    cdef int run(self) except -1:
        cdef Cell *c
        cdef Entry *e
        cdef Slot s
        cdef int bit
        cdef int steps = 0
        while self.n > 0:
            c = self.heap[0]
            bit = 63 - clz64(c.pending)
            e = &c.chunk.entries[bit]
            s = c.slots[bit]
            c.pending &= ~(<uint64_t>1 << bit)
            if c.pending:
                c.key = c.chunk.entries[63 - clz64(c.pending)].number
            else:
                self.n -= 1
                if self.n:
                    self.heap[0] = self.heap[self.n]
                cell_drop(c)
            if self.n:
                self.sift_down(0)
            try:
                self.visit(e, &s)
            finally:
                slot_clear(&s)
                entry_release(e)
            steps += 1
            if steps & 1023 == 0:
                PyErr_CheckSignals()
        return 0

    cdef int visit(self, Entry *e, Slot *s) except -1:
        """Push the cotangent s of e to e's inputs."""
        cdef Value *vals[4]
        cdef int i
        if e.flags & E_WATCHED:
            self.look(e, s)  # a hook may walk here, too
        if self.sources is not None and e.number == self.floor:
            return 0  # the lowest source: nothing behind it is wanted, freed or not
        check_not_freed(e)
        for i in range(4):
            vals[i] = e.val[i]
            if self.retain:
                if vals[i] != NULL:
                    vals[i].owners += 1
            else:
                e.val[i] = NULL
        if not self.retain:
            e.flags |= E_FREED
        e.visits += 1
        if self.watching:
            self.watch(e, s, vals)
        try:
            if any_saved_away(vals) != NULL and not is_remote(s.v):
                self.send(s, any_saved_away(vals))
            if e.opcode >= TPF_N_ELEMENTWISE:
                structured_vjp(self, e, vals, self.take_slot(s))
            elif self.composed or is_remote(s.v):
                if s.node != NULL:
                    s.node.refs += 1
                self.elementwise_composed(e, vals, wrap(value_share(s.v), s.node))
            else:
                self.elementwise_fused(e, vals, s)
        finally:
            e.visits -= 1
            if self.watching:
                self.watched(e, vals)
            for i in range(4):
                value_release(vals[i])
        if e.flags & E_FREED and e.visits == 0:  # the last walk out lets go of the inputs
            self.drop_edges(e)
            entry_drop_hooks(e)  # they cannot run again
        return 0

    cdef int send(self, Slot *s, Value *like) except -1:
        """A cotangent of the cpu, of a number or made of Python's data, goes to the device of what was saved."""
        cdef Tensor t = sent_to(self.take_slot(s), like, b"backward")
        s.v, s.node = value_share(t.v), t.node
        if s.node != NULL:
            s.node.refs += 1
        return 0

    cdef void watch(self, Entry *e, Slot *s, Value **vals) noexcept:
        """What is known where the visit of e begins: for errors of trace_nan, and for a profile."""
        if self.tracing:
            self.at, self.arrived, self.saved = e, value_share(s.v), vals
        if self.watching & T_STEPS and e.opcode < TPF_N_ELEMENTWISE and not self.composed:
            try:
                self.like = value_meta(s.v)
            except MemoryError:
                self.like = NULL
            self.began = tpf_clock()

    cdef void watched(self, Entry *e, Value **vals) noexcept:
        """The visit has ended. Of fused rules it is a step; others are written in ops, which are steps."""
        if self.tracing:
            self.at = NULL
            value_release(self.arrived)
            self.arrived = NULL
        if self.like != NULL:
            self.step_of_rule(e, vals)
            value_release(self.like)
            self.like = NULL

    cdef void step_of_rule(self, Entry *e, Value **vals) noexcept:
        """The partials that loops have computed."""
        cdef int mask = 0
        cdef int i
        for i in range(e.nin):
            if self.wants(e.src[i]) and tpf_op_vjp_kind[e.opcode][i] == TPF_VJP_LOOP:
                mask |= 1 << i
        step_note(thread_state(), self.began, tpf_op_name[e.opcode], b"_vjp", 0, NULL, self.like,
                  step_bytes(mask, vals, self.like), mask)

    cdef void drop_edges(self, Entry *e) noexcept:
        cdef int i
        cdef Entry *src
        for i in range(3):
            src = e.src[i]
            e.src[i] = NULL
            entry_release(src)
        if e.many != NULL:
            for i in range(e.many.n):
                entry_release(e.many.src[i])
            entry_drop_many(e)

    cdef int look(self, Entry *e, Slot *s) except -1:
        """Hooks, retain_grad and sources of this walk."""
        cdef Tensor g
        if s.node != NULL:
            s.node.refs += 1
        g = wrap(value_share(s.v), s.node)
        if e.hooks != NULL:
            g = self.hooked(<list>e.hooks, g)
            slot_clear(s)
            s.v = value_share(g.v)
            s.node = g.node
            if s.node != NULL:
                s.node.refs += 1
        if self.sources is not None:
            key = <uintptr_t>e
            if key in self.sources:
                self.sources[key] = packed(g)  # not the object that a hook may keep and write to
        elif e.tensor != NULL:
            self.retained.append((<Tensor>e.tensor, packed(g)))
        return 0

    cdef Tensor hooked(self, list hooks, Tensor g):
        """g after its hooks, which trace_nan looks at as at any of the user's code."""
        cdef ThreadState *ts = thread_state()
        cdef int before = ts.flags & T_NAN
        if self.tracing:
            ts.flags |= T_NAN
        try:
            return run_hooks(hooks, g)
        finally:
            ts.flags = (ts.flags & ~T_NAN) | before

    cdef int elementwise_fused(self, Entry *e, Value **vals, Slot *s) except -1:
        cdef int op = e.opcode
        cdef int nin = e.nin
        cdef int i, kind, also
        cdef int done = -1           # the last partial that was added together with the one before it
        cdef int last = -1
        cdef Entry *src
        cdef Value *g = s.v
        cdef Value *out
        cdef Slot *into
        cdef bint like
        cdef int64_t run
        for i in range(nin):
            if self.wants(e.src[i]) and tpf_op_vjp_kind[op][i] == TPF_VJP_LOOP:
                last = i
        for i in range(nin):
            src = e.src[i]
            if not self.wants(src) or i == done:
                continue
            kind = tpf_op_vjp_kind[op][i]
            if kind == TPF_VJP_PASS:
                self.push(src, value_share(g), NULL, vals[i])
                continue
            if kind == TPF_VJP_NONE:
                self.push(src, zero_like(g), NULL, vals[i])
                continue
            like = not_like(vals[i], g)
            also = -1
            if not like:
                if (i + 1 < nin and e.src[i + 1] == src and tpf_op_vjp_kind[op][i + 1] == TPF_VJP_LOOP
                        and not not_like(vals[i + 1], g)):
                    also = i + 1  # x * x: both in one pass
                into = self.find(src)
                if into.v != NULL and not (value_is_mine(into.v) and same_shape(into.v, g)):
                    also = -1  # what is there is added to one after the other, as always
                done = also
                if into.v != NULL and value_is_mine(into.v) and same_shape(into.v, g):
                    execute_vjp(op, i, also, into.v, g, vals, 1)
                    continue
            elif op == OP_SUBTRACT and vals[i].dtype == g.dtype:
                self.push(src, negative_sum(g, vals[i]), NULL, NULL)
                continue
            elif g.dtype == TPF_FLOAT64 and vals[i].dtype == g.dtype and g.size >= RELEASE_GIL:
                run = summed_run(g, vals[i])
                if run >= LEAST_SUMMED:
                    self.push(src, execute_vjp_sums(op, i, g, vals, run), NULL, NULL)
                    continue
            if i == last and value_is_mine(g) and not self.used_later(e, i):
                execute_vjp(op, i, -1, g, g, vals, 0)
                out = g
                s.v = NULL  # its share goes on
            else:
                out = value_like(g, g.dtype)
                try:
                    execute_vjp(op, i, also, out, g, vals, 0)
                except:
                    value_release(out)
                    raise
            self.push(src, out, NULL, vals[i])
        return 0

    cdef bint used_later(self, Entry *e, int i) noexcept:
        """Is g needed for an input after i?"""
        cdef int k
        for k in range(i + 1, e.nin):
            if self.wants(e.src[k]):
                return True
        return False

    cdef int elementwise_composed(self, Entry *e, Value **vals, Tensor g) except -1:
        """The rules of the table as recorded ops, in the dtype that the op computed in."""
        cdef int i
        cdef list operands = rule_operands(e, vals, g.v.dtype)
        for i in range(e.nin):
            if not self.wants(e.src[i]):
                continue
            rule = _composed.rule(e.opcode, i)
            if rule is None:
                self.push(e.src[i], zero_like(g.v), NULL, vals[i])
            else:
                self.push_tensor(e.src[i], rule(g, *operands), vals[i])
        return 0

    # ---- the end of the walk

    cdef int commit(self) except -1:
        """Give the leaves' cotangents to the sources, or add them to the .grad slots: all, or none after an error."""
        cdef int i
        cdef Entry *e
        cdef Tensor g, t
        cdef list updates = []
        for i in range(self.n_leaves):
            e = self.leaves[i].leaf
            if self.leaves[i].slot.v == NULL:
                continue
            if self.leaves[i].slot.node != NULL:
                self.leaves[i].slot.node.refs += 1
            g = wrap(value_share(self.leaves[i].slot.v), self.leaves[i].slot.node)
            if e.hooks != NULL:
                g = self.hooked(<list>e.hooks, g)
            if e.tensor != NULL:
                t = <Tensor>e.tensor
                if t.v.ndim == 0:  # what is taken as a number gets one back
                    g = op_move(g, device_of(t.v))
                elif not t.v.loose:  # of an argument that was an array it is where the rest is
                    g = sent_to(g, t.v, b"backward")
            if self.sources is not None:
                key = <uintptr_t>e
                if key in self.sources:
                    self.sources[key] = packed(g)
            elif e.tensor != NULL:
                updates.append((<Tensor>e.tensor, packed(g)))
        for i in range(self.n_leaves):
            slot_clear(&self.leaves[i].slot)
        updates.extend(self.retained)
        add_into_grads(updates)
        return 0


cdef int add_into_grads(list updates) except -1:
    """Add each (tensor, cotangent) into the tensor's .grad: all of them, or none after an error. A large addition lets
    other threads run: sums whose .grad has changed meanwhile are made again."""
    cdef Tensor t, g, old, total
    cdef list sums = None
    cdef bint changed = True
    cdef ThreadState *ts = thread_state()
    cdef Program program = program_of(ts)
    while changed:
        sums = []
        for t, g in updates:
            old = t._grad
            total = g if old is None else add_tensors(old, g)
            sums.append((old, None if old is None else hold(old), total if program is None else
                         program.accumulated(ts, t, g, total)))
        changed = False
        for (t, g), (grad, seen, total) in zip(updates, sums):
            old = grad
            changed = changed or t._grad is not grad or (old is not None and old.v != (<Tensor>seen).v)
    for (t, g), (grad, seen, total) in zip(updates, sums):
        give_grad(t, total)
    return 0


def accumulated(Tensor t not None, Tensor g not None):
    """What t.grad holds with g added; g where it is empty."""
    cdef ThreadState *ts = thread_state()
    cdef Program program = program_of(ts)
    cdef Tensor total = g if t._grad is None else add_tensors(t._grad, g)
    return total if program is None else program.accumulated(ts, t, g, total)


def give_grad(Tensor t not None, Tensor value):
    """t.grad holds value from now on, or is empty; the tensor that is there is written."""
    cdef Tensor old = t._grad
    cdef Program program = program_of(thread_state())
    if program is not None:
        program.keep_grad(t)
    # a leaf is not written while recording
    if value is None or old is None or (old.node != NULL and old.node.flags & E_LEAF):
        t._grad = value
    else:
        rebind(old, value)
    if program is not None:
        program.wrote_grad(t, t._grad)


cdef int check_not_freed(Entry *e) except -1:
    if e.flags & E_FREED:
        raise errors.TapeError(f"[backward] the graph behind {tpf_op_name[e.opcode].decode()} was freed by an "
                               "earlier backward. Call that one with retain_graph=True to go through it twice.")
    return 0


cdef list rule_operands(Entry *e, Value **vals, int dtype):
    """a b c y for the composed rules of an elementwise op, in the dtype that it computed in; None: not saved."""
    cdef list operands = []
    cdef Tensor t
    cdef int i
    for i in range(4):
        if vals[i] == NULL or vals[i].buf == NULL:
            operands.append(None)
            continue
        t = with_node(vals[i], e if i == 3 else e.src[i])
        if t.v.dtype != dtype and not (i == 0 and tpf_op_kind[e.opcode] == TPF_KIND_SELECT):
            t = op_astype(t, dtype)
        operands.append(t)
    return operands


cdef inline bint not_like(Value *like, Value *g) noexcept:
    """Must g be summed or cast to be a cotangent of like? (NULL: it need not.)"""
    return like != NULL and not (like.dtype == g.dtype and same_shape(like, g))


cdef Value *negative_sum(Value *g, Value *like) except NULL:
    """The sum of -g to like's shape: the sum first, which is smaller; 0 minus it, since a sum is never -0."""
    cdef Tensor t = call2(OP_SUBTRACT, 0.0, sum_to(wrap(value_share(g), NULL), like))
    return value_share(t.v)


cdef Value *zero_like(Value *g) except NULL:
    """Zeros of g's shape, where g is, one element stretched."""
    return zeros_stretched(g, g.ndim, g.shape)


cdef Value *zeros_stretched(Value *beside, int ndim, const int64_t *shape) except NULL:
    """Zeros of this shape and of beside's dtype, where that is, one element stretched."""
    cdef Value *zero = value_scalar(beside.dtype)
    cdef Value *v
    memset(zero.data, 0, 8)
    if is_remote(beside):
        zero = number_there(zero, device_of(beside))
    try:
        v = value_broadcast(zero, ndim, shape)
    finally:
        value_release(zero)
    return as_constant(v)


cdef Tensor run_hooks(list hooks, Tensor g):
    cdef Tensor r
    for hook in list(hooks):
        result = hook[0](g)
        if result is None:
            continue
        if not isinstance(result, Tensor):
            raise errors.TapeError(f"[register_hook] a hook must return None or a Tensor, got {type(result).__name__}.")
        r = result
        if r.v.dtype != g.v.dtype or not same_shape(r.v, g.v):
            raise errors.TapeError(f"[register_hook] a hook changed the gradient from {describe(g.v)} to "
                                   f"{describe(r.v)}; shape and dtype must stay.")
        g = sent_to(r, g.v, b"register_hook")
    return g


cdef Tensor packed(Tensor g):
    """g, or a tensor of the same value that is contiguous and shares no tensor object with anyone."""
    cdef Value *v = owned(g.v) if g.v.contiguous or is_remote(g.v) and is_contiguous(g.v) else value_copy(g.v)
    v.loose = False              # a user's tensor
    if thread_state().flags & T_TAPE:
        try:
            note_packed(v, g.v)
        except:
            value_release(v)
            raise
    if g.node != NULL:
        g.node.refs += 1
    return wrap(v, g.node)


cdef int check_target(Tensor t, Node node) except -1:
    if node is None or node.e == NULL or not node.e.flags & E_GRAD:
        raise errors.TapeError(f"[backward] the target {describe(t.v)} depends on nothing that was recorded. Compute "
                               "it, outside of no_grad, from a tensor that requires grad or is watched by a Tape.")
    return 0


cdef Tensor checked_seed(Tensor t, seed):
    """The cotangent to begin with: ones for a scalar, otherwise the caller's."""
    cdef Tensor s
    if seed is None:
        if t.v.size != 1:
            raise errors.TapeError(f"[backward] the target has shape {shape_of(t.v)}; only a scalar can do without a "
                                   "seed. Pass gradient= (output_gradients= for a tape) of that shape, "
                                   "or sum the target first.")
        return op_move(same_full(t.v, 1.0), device_of(t.v))
    s = as_tensor(seed)
    if not same_shape(s.v, t.v):
        raise errors.TapeError(f"[backward] the seed has shape {shape_of(s.v)}, the target {shape_of(t.v)}: "
                               "they must be the same.")
    s = op_astype(s, t.v.dtype)
    s = sent_to(s, t.v, b"backward")
    return packed(s) if s.v.buf.foreign == BORROWED else s


cdef int walk_begins(ThreadState *ts, bint composed, Program program, bint sources, int *line,
                     bint *through) except -1:
    """What the ops of a walk leave behind: entries (composed), notes, or nothing. For walk_ends: line, through."""
    cdef int here
    if composed:
        ts.flags |= T_GRAD
    elif program is not None:
        here = program.here()
        line[0], through[0] = program.line_now, program.through
        program.line_now = here
        program.through = program.through or (sources and ts.flags & T_GRAD)
        ts.flags &= ~T_GRAD
    else:
        ts.flags &= ~(T_GRAD | T_TAPE)
    return 0


cdef void walk_ends(ThreadState *ts, int flags, bint composed, Program program, int line, bint through) noexcept:
    restore_modes(ts, flags)
    if program is not None and not composed:
        program.line_now, program.through = line, through


def run_backward(list targets, list seeds, sources, bint composed, bint retain, places=None):
    """Walk from targets (at places, a list of Nodes, or where they are now) with seeds.

    sources: None to add into the leaves' .grad, or a list of Nodes (or None) whose cotangents are returned as a list of
    Tensors (None where nothing arrived).
    """
    cdef Walk walk = Walk.__new__(Walk)
    cdef ThreadState *ts = thread_state()
    cdef int flags = ts.flags
    cdef double start = step_begins(ts)
    cdef Tensor t
    cdef Node node
    cdef list starts = []
    for i, (target, seed) in enumerate(zip(targets, seeds)):
        if not isinstance(target, Tensor):
            raise errors.TapeError(f"[backward] expected a Tensor, got {type(target).__name__}.")
        t = target
        # the Node keeps the place, whatever the conversion of a seed does to the tensor
        node = node_of(t) if places is None else places[i]
        check_target(t, node)
        starts.append((node, checked_seed(t, seed)))
    cdef Program program = program_of(ts)
    cdef int line = -1
    cdef bint through = False
    walk.recorded = composed
    walk.tracing = flags & T_NAN
    walk.watching = flags & (T_NAN | T_STEPS)
    # a recording takes notes of the walk as of any ops
    walk.composed = composed or program is not None or walk.tracing
    walk.retain = retain or composed
    walk.retained = []
    if sources is not None:
        walk.sources = {}
        walk.floor = LARGEST
        for node in sources:
            if node is not None and node.e != NULL:
                walk.sources[<uintptr_t>node.e] = None
                node.e.flags |= E_WATCHED
                if node.e.number < walk.floor:
                    walk.floor = node.e.number
    walk_begins(ts, composed, program, sources is not None, &line, &through)
    ts.flags &= ~T_NAN  # a partial may be inf where it is multiplied by 0: what a rule makes as a whole is looked at
    try:
        for node, t in starts:
            if walk.wants(node.e):
                walk.push_tensor(node.e, t, NULL)
        t = target = seed = node = None
        starts = None
        walk.run()
        ts.flags |= flags & T_NAN
        walk.commit()
    finally:
        walk_ends(ts, flags, composed, program, line, through)
        if flags & T_STEPS:
            step_note(ts, start, b"backward", b"", 0, NULL, NULL, 0, 0)
    if sources is None:
        return None
    found = [None if node is None else walk.sources.get(<uintptr_t>(<Node>node).e) for node in sources]
    return [None if g is None else packed(g) for g in found]
