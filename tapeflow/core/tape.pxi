# The Wengert list: entries in chunks, the thread's record, and what an op leaves behind.
#
# - An entry's number is larger than its inputs' numbers, on whatever thread they were made: numbers are a
#   topological order, so backward sorts nothing.
# - Entries are owned by references: by the tensor that is their result, by the entries that read it, by open tapes and
#   by a walk that has a cotangent for them. The last one to let go frees what was saved, at once, without recursion.
# - A leaf (a tensor that requires grad and was not computed) is an entry too, but lives outside of the chunks.

cdef enum:
    CHUNK = 64                   # entries of a chunk: one word of pending bits
    CHUNKS_KEPT = 64
    # flags of a thread
    T_GRAD = 1                   # grad mode
    T_TAPE = 2                   # a `with Tape()` is open: everything is recorded
    T_NAN = 4                    # a `with trace_nan()` is open: results are looked at
    T_STEPS = 8                  # a `with profile()` is open: ops leave when they ran
    # flags of an entry; E_GRAD and T_GRAD are the same bit, so that one `and` asks for both
    E_GRAD = 1                   # something behind it requires grad
    E_FREED = 2                  # a backward without retain_graph went through it
    E_WATCHED = 4                # hooks, retain_grad or a source of a running walk: look before going on
    E_LEAF = 8
    # which values an entry saves
    SAVE_A = 1
    SAVE_B = 2
    SAVE_C = 4
    SAVE_Y = 8
    RECORD = 16                  # a bit beside them: an input requires grad

cdef struct Entry:
    int64_t number
    int64_t refs
    int opcode
    int nin
    int flags
    short slot
    short visits                 # walks that are at this entry now
    Chunk *chunk                 # NULL for a leaf
    Entry *src[3]                # the entries of the inputs; NULL: a constant
    Value *val[4]                # a b c y as far as they are saved; meta where only the shape is needed
    int64_t *params              # integers that the op needs: params[0] of them follow
    Many *many                   # the inputs where there are more than three
    PyObject *tensor             # borrowed: the leaf's tensor, or the one that retains its grad
    PyObject *hooks              # owned list of callables, or NULL; of OP_CUSTOM: its call
    void *link                   # a leaf's cells; when dead: the next to be freed

cdef struct Many:
    int n
    Entry **src
    Value **val

cdef struct Chunk:
    int live
    int fill
    bint current                 # some thread still appends to it
    Chunk *next                  # in the free list
    Cell *cells                  # pending cotangents of the walks that are under way
    Entry entries[64]

cdef struct ThreadState:
    int flags
    int64_t next                 # the next entry number
    int64_t lowest               # the smallest number of a differentiable entry read since the innermost tp.grad began
    Chunk *chunk
    int depth                    # of tp.grad
    PyObject *tapes              # borrowed: list of the open Tape windows of this thread
    PyObject *program            # owned while one is open: the notes of what they record
    int passed                   # of the tapes so many hold no entries now: those of a run that is dropped
    PyObject *places             # owned dict while trace_nan is on: entry number -> (opcode, file, line)
    PyObject *steps              # owned list while a profile is open: records (core/steps.pxi)
    ThreadState *others          # all threads' records are linked

cdef Chunk *chunk_free = NULL
cdef int chunks_kept = 0
cdef Entry *leaf_free = NULL
cdef int64_t leaves_kept = 0
cdef int64_t entries_alive = 0
cdef ThreadState *all_threads = NULL
cdef int64_t ended_next = 1      # the largest number of the threads that have ended


@cython.no_gc_clear
cdef class _ThreadRecord:
    """Owns a thread's ThreadState; dies with the thread."""
    cdef ThreadState *ts
    cdef list tapes              # never cleared before ts is gone, which borrows it

    def __dealloc__(self):
        global ended_next
        cdef ThreadState **p = &all_threads
        if self.ts != NULL:
            while p[0] != self.ts:
                p = &p[0].others
            p[0] = self.ts.others
            if self.ts.next > ended_next:
                ended_next = self.ts.next
            if tpf_get_thread() == self.ts:
                tpf_set_thread(NULL)
            Py_XDECREF(self.ts.program)
            Py_XDECREF(self.ts.places)
            steps_go_to(self.ts, NULL)
            if self.ts.chunk != NULL:
                chunk_leave(self.ts.chunk)
            free(self.ts)


cdef object _records = threading.local()


cdef ThreadState *thread_new() except NULL:
    global all_threads
    cdef _ThreadRecord record = _ThreadRecord.__new__(_ThreadRecord)
    cdef ThreadState *ts = <ThreadState *>calloc(1, sizeof(ThreadState))
    if ts == NULL:
        raise MemoryError()
    ts.flags = T_GRAD
    ts.next = 1
    ts.others = all_threads
    all_threads = ts
    record.ts = ts
    record.tapes = []
    ts.tapes = <PyObject *>record.tapes
    _records.record = record
    tpf_set_thread(ts)
    return ts


cdef inline ThreadState *thread_state() except NULL:
    cdef ThreadState *ts = <ThreadState *>tpf_get_thread()
    if ts == NULL:
        return thread_new()
    return ts


# ---- chunks and entries


cdef void chunk_drop(Chunk *c) noexcept:
    global chunk_free, chunks_kept
    if chunks_kept < CHUNKS_KEPT and POOLED:
        c.next = chunk_free
        chunk_free = c
        chunks_kept += 1
    else:
        free(c)


cdef void chunk_leave(Chunk *c) noexcept:
    """No thread appends to c any more."""
    c.current = False
    if c.live == 0:
        chunk_drop(c)


cdef Chunk *chunk_new() except NULL:
    global chunk_free, chunks_kept
    cdef Chunk *c = chunk_free
    if c != NULL:
        chunk_free = c.next
        chunks_kept -= 1
    else:
        c = <Chunk *>malloc(sizeof(Chunk))
        if c == NULL:
            raise MemoryError()
    c.live = 0
    c.fill = 0
    c.current = True
    c.cells = NULL
    return c


cdef inline void entry_clear(Entry *e) noexcept:
    e.refs = 1
    e.flags = 0
    e.visits = 0
    e.src[0] = e.src[1] = e.src[2] = NULL
    e.val[0] = e.val[1] = e.val[2] = e.val[3] = NULL
    e.params = NULL
    e.many = NULL
    e.tensor = NULL
    e.hooks = NULL
    e.link = NULL


cdef inline Entry *entry_new(ThreadState *ts, int opcode, int nin) except NULL:
    """The next entry of the thread's list, with one owner; its number is set by entry_link."""
    global entries_alive
    cdef Chunk *c = ts.chunk
    cdef Entry *e
    if c == NULL or c.fill == CHUNK:
        if c != NULL:
            ts.chunk = NULL
            chunk_leave(c)
        c = ts.chunk = chunk_new()
    e = &c.entries[c.fill]
    tpf_unpoison(e, sizeof(Entry))
    e.slot = c.fill
    e.chunk = c
    c.fill += 1
    c.live += 1
    entries_alive += 1
    e.opcode = opcode
    e.nin = nin
    e.number = ts.next
    ts.next += 1
    entry_clear(e)
    return e


cdef inline void entry_link(ThreadState *ts, Entry *e, Entry *src) noexcept:
    """Count src as an input of e: ownership, number, requires grad."""
    src.refs += 1
    if src.number >= e.number:
        e.number = src.number + 1
        ts.next = e.number + 1
    if ASSERTING:
        ensure(src.number < e.number, b"an entry's number is larger than its inputs'")
    if src.flags & E_GRAD:
        e.flags |= E_GRAD
        if src.number < ts.lowest:
            ts.lowest = src.number


cdef Entry *leaf_new(ThreadState *ts, PyObject *tensor) except NULL:
    global leaf_free, leaves_kept, entries_alive
    cdef Entry *e = leaf_free
    if e != NULL:
        leaf_free = <Entry *>e.link
        leaves_kept -= 1
    else:
        e = <Entry *>malloc(sizeof(Entry))
        if e == NULL:
            raise MemoryError()
    entries_alive += 1
    e.opcode = OP_LEAF
    e.nin = 0
    e.slot = 0
    e.chunk = NULL
    entry_clear(e)
    e.flags = E_GRAD | E_LEAF
    e.tensor = tensor
    e.number = ts.next
    ts.next += 1
    return e


cdef void entry_drop_values(Entry *e) noexcept:
    cdef int i
    for i in range(4):
        if e.val[i] != NULL:
            value_release(e.val[i])
            e.val[i] = NULL


cdef void entry_drop_many(Entry *e) noexcept:
    """Let go of a side table whose entries were taken care of."""
    cdef Many *m = e.many
    cdef int i
    e.many = NULL
    for i in range(m.n):
        value_release(m.val[i])
    free(m.src)
    free(m.val)
    free(m)


cdef void entry_retire(Entry *e) noexcept:
    """Give the slot of a dead entry back."""
    global leaf_free, leaves_kept, entries_alive
    cdef Chunk *c = e.chunk
    entries_alive -= 1
    if c == NULL:
        if leaves_kept < 1024 and POOLED:
            e.link = leaf_free
            leaf_free = e
            leaves_kept += 1
        else:
            free(e)
        return
    tpf_poison(e, sizeof(Entry))
    c.live -= 1
    if c.live == 0:
        if c.current:
            c.fill = 0           # nothing in it is alive: fill it again, it is warm
        else:
            chunk_drop(c)


cdef void entry_free(Entry *e) noexcept:
    """Free e and, without recursion, whatever only it kept alive."""
    cdef Entry *todo = e
    cdef Entry *src
    cdef PyObject *hooks
    cdef int i
    e.link = NULL
    while todo != NULL:
        e = todo
        todo = <Entry *>e.link
        entry_drop_values(e)
        for i in range(3):
            src = e.src[i]
            if src != NULL:
                src.refs -= 1
                if src.refs == 0:
                    src.link = todo
                    todo = src
        if e.many != NULL:
            for i in range(e.many.n):
                src = e.many.src[i]
                if src != NULL:
                    src.refs -= 1
                    if src.refs == 0:
                        src.link = todo
                        todo = src
            entry_drop_many(e)
        if e.params != NULL:
            free(e.params)
        hooks = e.hooks
        entry_retire(e)
        Py_XDECREF(hooks)


cdef void entry_drop_hooks(Entry *e) noexcept:
    cdef PyObject *hooks = e.hooks
    e.hooks = NULL
    Py_XDECREF(hooks)


cdef inline void entry_release(Entry *e) noexcept:
    if e != NULL:
        e.refs -= 1
        if e.refs == 0:
            entry_free(e)


cdef int64_t *params_new(int64_t n) except NULL:
    cdef int64_t *p = <int64_t *>malloc((n + 1) * sizeof(int64_t))
    if p == NULL:
        raise MemoryError()
    p[0] = n
    return p


cdef inline bint wants_record(ThreadState *ts, Entry *node, int dtype) noexcept:
    """Would an op with this one recorded (or NULL) input and a result of dtype be recorded?"""
    return (ts.flags & (T_TAPE | T_NAN)) or (node != NULL and (node.flags & E_GRAD) and (ts.flags & T_GRAD)
                                             and is_float(dtype))


cdef Entry *record(ThreadState *ts, int opcode, int nin, Entry **nodes, Value **vals, Value *y,
                   int saves) except NULL:
    """Append an entry for y = op(vals). An input that is not saved but whose shape or dtype differs from y's leaves
    its shape and dtype, so that backward can sum and cast its cotangent back."""
    cdef Entry *e = entry_new(ts, opcode, nin)
    cdef int i
    cdef Value *v
    for i in range(nin):
        if nodes[i] != NULL:
            e.src[i] = nodes[i]
            entry_link(ts, e, nodes[i])
    if not (ts.flags & T_GRAD and is_float(y.dtype)):
        e.flags &= ~E_GRAD
    if e.flags & E_GRAD:
        for i in range(nin):
            v = vals[i]
            if saves >> i & 1:
                e.val[i] = value_share(v)
            elif nodes[i] != NULL and not (v.dtype == y.dtype and same_shape(v, y)):
                try:
                    e.val[i] = value_meta(v)
                except:
                    entry_release(e)
                    raise
        if saves & SAVE_Y:
            e.val[3] = value_share(y)
    if ts.flags & (T_TAPE | T_NAN):
        try:
            if ts.flags & T_NAN:
                check_finite(ts, e, nin, vals, y)
            if ts.flags & T_TAPE:
                tape_note(ts, e, y)
                if ts.program != NULL:
                    (<Program>ts.program).note(e, nin, vals, y)
        except:
            entry_release(e)
            raise
    return e


cdef void restore_modes(ThreadState *ts, int flags) noexcept:
    """Grad mode and trace_nan as they were; recording by whether a tape is open, which may have changed meanwhile, as
    may profiles."""
    ts.flags = (flags & (T_GRAD | T_NAN)) | (ts.flags & T_STEPS) | (T_TAPE if len(<list>ts.tapes) else 0)


cdef int tape_note(ThreadState *ts, Entry *e, Value *y) except -1:
    cdef list tapes = <list>ts.tapes
    cdef int i
    for i in range(ts.passed, len(tapes)):
        (<Tape>tapes[i]).note(e, y)
    return 0


# ---- the window


cdef int check_watch(object tensor) except -1:
    if not isinstance(tensor, Tensor):
        raise errors.TapeError(f"[Tape.watch] expected a Tensor, got {type(tensor).__name__}. "
                               "Use tp.tensor(...) first.")
    if not is_float((<Tensor>tensor).v.dtype):
        raise errors.DTypeError("[Tape.watch] cannot differentiate with respect to a tensor of dtype "
                                f"{dtype_name((<Tensor>tensor).v.dtype)}. Use a float32 or float64 tensor.")
    return 0


# The first two lines are what inspect.signature reads: Cython embeds none for a class.
cdef class Tape:
    """Tape(persistent=False, watch=())
--

    Record everything in a `with` block; gradients of what was recorded do not accumulate.

    Parameters
    ----------
    persistent : bool
        Allow more than one call of `gradient`.
    watch : tensors, optional
        Tensors that do not require grad but shall be differentiated. Leaves that require grad are watched by
        themselves.

    >>> import tapeflow as tp
    >>> x = tp.tensor(3.0)
    >>> with tp.Tape(watch=[x]) as tape:
    ...     y = x * x
    >>> float(tape.gradient(y, x))
    6.0
    """
    cdef bint persistent
    cdef bint used
    cdef bint open
    cdef public bint _only_notes  # of a recording, for a plan: no outer tape to what is differentiated inside
    cdef _ThreadRecord thread
    cdef readonly Program program  # which holds notes start .. stop of this window
    cdef readonly int64_t start, stop
    cdef readonly object finished  # what was written in the window, once it is closed
    cdef int paused
    cdef int64_t n, room
    cdef Entry **items
    cdef Value **metas
    cdef list to_watch           # what the constructor was given, until the tape is opened
    cdef dict watched            # id -> [tensor, its Node, whether the exit of this tape takes the Node away]

    def __cinit__(self):
        self.watched = {}
        self.to_watch = []

    def __init__(self, persistent=False, watch=()):
        self.persistent = persistent
        if not isinstance(watch, Tensor) and not hasattr(watch, "__iter__"):
            raise errors.TapeError(f"[Tape] watch must be tensors, got {type(watch).__name__}.")
        self.to_watch = [watch] if isinstance(watch, Tensor) else list(watch)
        for x in self.to_watch:
            check_watch(x)

    def __dealloc__(self):
        self.forget()

    cdef void forget(self) noexcept:
        cdef int64_t i
        cdef int64_t n = self.n
        cdef Entry **items = self.items
        cdef Value **metas = self.metas
        # empty before anything is released: that may run code that records
        self.n = self.room = 0
        self.items = NULL
        self.metas = NULL
        for i in range(n):
            entry_release(items[i])
            value_release(metas[i])
        free(items)
        free(metas)

    cdef int note(self, Entry *e, Value *y) except -1:
        cdef int64_t room
        cdef void *items
        cdef void *metas
        if self.paused:
            return 0
        if self.n == self.room:
            room = 64 if self.room == 0 else 2 * self.room
            items = realloc(self.items, room * sizeof(Entry *))
            if items == NULL:
                raise MemoryError()
            self.items = <Entry **>items
            metas = realloc(self.metas, room * sizeof(Value *))
            if metas == NULL:
                raise MemoryError()
            self.metas = <Value **>metas
            self.room = room
        self.metas[self.n] = value_meta(y)
        e.refs += 1
        self.items[self.n] = e
        self.n += 1
        return 0

    def __enter__(self):
        cdef ThreadState *ts = thread_state()
        if self.open or self.n or self.used:
            raise errors.TapeError("[Tape] this tape was already opened: a tape records one `with` block. "
                                   "Make a new Tape.")
        self.open = True
        self.thread = _records.record
        for x in self.to_watch:
            self.watch(x)
        self.to_watch = []
        program_open(ts)
        self.program = <Program>ts.program
        self.start = self.stop = self.program.n
        (<list>ts.tapes).append(self)
        ts.flags |= T_TAPE
        return self

    def __exit__(self, *exc):
        if self.thread is None:
            raise errors.TapeError("[Tape] this tape was not opened. Use it in a `with` block.")
        cdef ThreadState *ts = self.thread.ts  # of the thread that opened it, whoever closes it
        cdef list tapes = <list>ts.tapes
        self.open = False
        if self in tapes:
            tapes.remove(self)
            self.stop = self.program.n
            self.finished = self.program.finish()
        if not tapes:
            ts.flags &= ~T_TAPE
            program_close(ts)
        for key, (tensor, node, mine) in list(self.watched.items()):
            if not mine:
                continue
            for tape in tapes:  # another open tape may watch it, too, and is responsible from now on
                if key in (<Tape>tape).watched:
                    (<Tape>tape).watched[key][2] = True
                    break
            else:
                unwatch(tensor, node)
        return None

    def watch(self, tensor):
        """Differentiate with respect to this tensor, too, from here on. Integer and bool tensors: DTypeError."""
        cdef Tensor t
        cdef ThreadState *ts = thread_state()
        check_watch(tensor)
        t = tensor
        if not self.open:
            if self.used or self.n or self.thread is not None:
                raise errors.TapeError("[Tape.watch] the tape is closed: nothing more will be recorded. "
                                       "Watch inside the `with` block.")
            self.to_watch.append(t)
            return
        if t.node != NULL and t.node.flags & E_GRAD:
            self.watched.setdefault(id(t), [t, node_of(t), False])
            return
        leave(t)
        t.node = leaf_new(ts, <PyObject *>t)
        self.watched[id(t)] = [t, node_of(t), True]

    @contextlib.contextmanager
    def stop_recording(self):
        """A context in which this tape takes no notes and nothing is recorded for gradients."""
        cdef ThreadState *ts = thread_state()
        cdef int flags = ts.flags
        cdef Program program = self.program
        self.paused += 1
        ts.flags &= ~(T_GRAD | T_TAPE)
        if program is not None:
            program.pause(True)
        try:
            yield
        finally:
            self.paused -= 1
            if program is not None:
                program.pause(False)
            restore_modes(thread_state(), flags)

    def gradient(self, target, sources, output_gradients=None, unconnected="none"):
        """The gradients of target with respect to sources, in the structure of sources; nothing is accumulated.

        Parameters
        ----------
        target : Tensor, or nested containers of them
            Float tensors; the gradients of several are added.
        sources : Tensor, or nested tuples, lists and dicts of them
        output_gradients : same structure as target, optional
            The cotangents to begin with; only scalars can do without.
        unconnected : "none" or "zero"
            What stands for a source that target does not depend on.
        """
        cdef bint outer = self.begin_use("gradient", unconnected)
        result = _transforms.tape_gradient(target, sources, output_gradients, unconnected, outer, self.source_node)
        self.end_use()
        return result

    def jacobian(self, target, sources, unconnected="none"):
        """The derivative of every element of target by every element of sources, in the structure of sources.

        Parameters
        ----------
        target : Tensor
            A float tensor.
        sources : Tensor, or nested tuples, lists and dicts of them
        unconnected : "none" or "zero"
            What stands for a source that target does not depend on.

        Returns
        -------
        tensors of shape target.shape + source.shape, in the structure of sources

        >>> x = tp.tensor([1.0, 2.0])
        >>> with tp.Tape(watch=[x]) as tape:
        ...     y = x * x
        >>> tape.jacobian(y, x).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        """
        cdef bint outer = self.begin_use("jacobian", unconnected)
        result = _derivatives.tape_jacobian(target, sources, unconnected, outer, self.source_node)
        self.end_use()
        return result

    cdef bint begin_use(self, str name, object unconnected) except -1:
        """Check that derivatives may be taken. Is there an outer tape or tp.grad that they must be recorded for?"""
        if self.used and not self.persistent:
            raise errors.TapeError(f"[Tape.{name}] this tape was used already and is not persistent. "
                                   f"Make it with Tape(persistent=True) to take more than one {name}.")
        if unconnected not in ("none", "zero"):
            raise errors.TapeError(f"[Tape.{name}] unconnected must be 'none' or 'zero', got {unconnected!r}.")
        cdef ThreadState *ts = thread_state()
        return ts.depth > 0 or True in [
            not tape._only_notes and (tape is not self or self.persistent) for tape in <list>ts.tapes]

    cdef int end_use(self) except -1:
        """Derivatives were taken: only a persistent tape is of further use."""
        self.used = True
        if not self.persistent:
            self.forget()
            if not self.open:
                self.program = None
        return 0

    def freeze(self, inputs, outputs, **options):
        """What was recorded in the `with` block as a plan; gradients that were taken inside it are part of it.

        Parameters
        ----------
        inputs : list of Tensors
            What a replay is given: tensors that the block read.
        outputs : Tensor, or nested tuples, lists and dicts of them
            What a replay returns, in this structure.
        options
            As those of tp.freeze.

        >>> x = tp.tensor(3.0)
        >>> with tp.Tape() as tape:
        ...     y = x * x
        >>> float(tape.freeze([x], y)(tp.tensor(5.0)))
        25.0
        """
        return _freeze_tape(self, inputs, outputs, **options)

    def source_node(self, Tensor t not None):
        """The Node of a source: its own, or the one that it was watched at."""
        watched = self.watched.get(id(t))
        return watched[1] if watched is not None and (t.node == NULL or t.node.flags & E_LEAF) else node_of(t)

    def __len__(self):
        return self.n

    def __repr__(self):
        return "\n".join([f"Tape of {self.n} entries"] + [self.line(i) for i in range(self.n)])

    cdef str line(self, int64_t i):
        cdef Entry *e = self.items[i]
        cdef int k
        cdef int nin = e.nin if e.many == NULL else e.many.n
        cdef Entry *src
        cdef list args = []
        for k in range(nin):
            src = e.src[k] if e.many == NULL else e.many.src[k]
            args.append("const" if src == NULL else f"%{src.number}")
        freed = "  (freed)" if e.flags & E_FREED else ""
        return (f"%{e.number} = {tpf_op_name[e.opcode].decode()}({', '.join(args)})  "
                f"{dtype_name(self.metas[i].dtype)}{list(shape_of(self.metas[i]))}{freed}")


cdef class Node:
    """A tensor's place on the tape, held from Python."""
    cdef Entry *e

    @property
    def requires_grad(self):
        return self.e != NULL and (self.e.flags & E_GRAD) != 0

    def __dealloc__(self):
        entry_release(self.e)


cdef inline Node node_of(Tensor t):
    """The Node of t, or None when t is not recorded."""
    return None if t.node == NULL else node_at(t.node)


cdef Node node_at(Entry *e):
    cdef Node node = Node.__new__(Node)
    e.refs += 1
    node.e = e
    return node


cdef int unwatch(Tensor t, Node node) except -1:
    """Take the leaf that Tape.watch made away from t; the tape finds it through its own Node."""
    if t.node == node.e:
        leave(t)
    return 0


cdef void leave(Tensor t) noexcept:
    """Take t off the tape. It has left before anything is freed: that may run code that looks at t."""
    cdef Entry *e = t.node
    t.node = NULL
    if e != NULL and e.tensor == <PyObject *>t:
        e.tensor = NULL
    entry_release(e)


def entries_in_use():
    """The number of tape entries that are alive in the process (for tests)."""
    return entries_alive
