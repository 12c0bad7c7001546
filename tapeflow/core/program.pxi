# What a recording keeps so that it can be frozen: a program over values.
#
# Every op that a thread computes while a Tape is open leaves a note: opcode, params, the numbers of the values it read
# and of the one it made. Values are numbered by identity: a Value in use by a note carries the serial of
# the program and its number there. What a note reads is one of
#   V_NOTE     what an earlier note made
#   V_INPUT    an argument (Program.add_input)
#   V_TENSOR   what a tensor from outside holds: by reference, a replay reads what it holds then
#   V_GRAD     what the .grad of a tensor from outside holds
#   V_CONST    made inside without an op (numbers, zeros, arrays): a constant
# Anything else was computed in a way that left no note; the program is spoilt, and to freeze it is an error rather than
# a stale result. Writes (assign and its kin, .grad) are kept by tensor: the last one is what a replay commits.
#
# A program can be recorded within another one (aside): tensors older than it are tensors from outside, and what it
# marked of theirs is put back when it ends (unmark), so that the outer program knows them as before.
# For those who differentiate the notes again, a note says whether it was taken in grad mode, and where a value goes on
# without its gradient (detach) or with that of another (a write outside of grad mode) an identity is noted.

cdef enum:
    V_NOTE = 0
    V_INPUT = 1
    V_TENSOR = 2
    V_GRAD = 3
    V_CONST = 4
    MADE_INSIDE = -1             # Value.program of what is made without an op
    # params of an identity that is more than that
    DETACHED = 1                 # its gradient stops
    PLACED = 2                   # the value of the first operand, the gradient of the second
    MOVED = 3                    # to another device; then the numbers of both (devices.pxi)

cdef struct Note:
    int opcode
    int line
    bint graded                  # taken in grad mode
    int64_t *params              # as an entry's; NULL: none
    int64_t out
    int64_t nin
    int64_t ins[3]
    int64_t *many                # the inputs where there are more than three

cdef struct Mark:
    int64_t program, number

cdef int64_t program_clock = 0   # serials of programs; tensors remember it from when they were made


cdef inline Value *as_constant(Value *v) noexcept:
    """v, which no op computed: a constant of whatever program reads it first."""
    v.program = MADE_INSIDE
    v.loose = True
    return v


cdef class Program:
    """The notes of a thread from when its first Tape opens until its last one closes."""
    cdef int64_t serial
    cdef int64_t n, room, n_values, room_values
    cdef Note *notes
    cdef Entry *last             # of the last note: its params are set by now, or will be before the next one
    cdef Value **values          # a share of what came from outside or is constant; of results shape and dtype
    cdef Mark *marks             # of each value: what it carried before it was numbered
    cdef uint8_t *kinds
    cdef object __weakref__
    cdef readonly dict objects   # number -> Tensor: inputs, tensors from outside, constants, tensors with a .grad read
    cdef dict kept               # address of a value that is kept -> its number
    cdef dict tensors            # id of a tensor from outside -> its number
    cdef dict grads_read         # id of a tensor from outside -> number of its .grad as it was before
    cdef readonly list before    # (tensor, its value before it was written), (tensor, its .grad and the value of that)
    cdef readonly dict starts    # id of a generator -> (generator, its state before the recording)
    cdef dict states             # id -> tensor from outside that was written
    cdef dict kept_grads         # ids of tensors whose .grad is in `before`
    cdef dict grads              # id -> tensor from outside whose .grad was written
    cdef readonly list generators  # [generator, draws are absolute, seed, first draw, draws]
    cdef dict places             # (id of a generator, seed, number of a draw) -> its stretch and place in it
    cdef readonly list looks     # (note, kind, number, what was seen, line)
    cdef readonly list problems  # why this program cannot be frozen: (text, line)
    cdef readonly list hooks     # (number of a value, [what register_hook was given for it, if it is there still])
    cdef readonly list regions   # calls with rules of their own (tapeflow/custom.py)
    cdef readonly list repeats   # (first, end) of the notes of what was computed again
    cdef readonly list lines     # (file, line, function)
    cdef dict line_numbers
    cdef list pauses             # [first, end) clocks while recording was stopped
    cdef int line_now            # of what a walk does, -1: ask Python
    cdef public bint nested      # recorded within another program: unmark is called when it has ended
    cdef bint through            # a walk outside of grad mode stands for one that could be differentiated

    def __cinit__(self):
        global program_clock
        program_clock += 1
        self.serial = program_clock
        self.kept, self.kept_grads = {}, {}
        self.objects, self.tensors, self.grads_read, self.states, self.grads = {}, {}, {}, {}, {}
        self.looks, self.problems, self.lines, self.line_numbers, self.pauses = [], [], [], {}, []
        self.generators, self.before, self.starts, self.places = [], [], {}, {}
        self.hooks, self.regions, self.repeats = [], [], []
        self.line_now = -1

    def __dealloc__(self):
        cdef int64_t i
        entry_release(self.last)
        for i in range(self.n):
            free(self.notes[i].params)
            free(self.notes[i].many)
        free(self.notes)
        for i in range(self.n_values):
            value_release(self.values[i])
        free(self.values)
        free(self.kinds)
        free(self.marks)

    def __len__(self):
        return self.n

    # ---- numbering values

    cdef int64_t number(self, Value *v, int kind, Value *kept) except -1:
        """The next number, for v; kept (taken over) is what is remembered of it."""
        cdef int64_t room
        cdef void *grown
        if self.n_values == self.room_values:
            room = 2 * self.room_values + 64
            grown = realloc(self.values, room * sizeof(Value *))
            if grown != NULL:
                self.values = <Value **>grown
                grown = realloc(self.marks, room * sizeof(Mark))
            if grown != NULL:
                self.marks = <Mark *>grown
                grown = realloc(self.kinds, room)
            if grown == NULL:
                value_release(kept)
                raise MemoryError()
            self.kinds = <uint8_t *>grown
            self.room_values = room
        self.marks[self.n_values].program, self.marks[self.n_values].number = v.program, v.number
        self.values[self.n_values] = kept
        self.kinds[self.n_values] = kind
        v.program = self.serial
        v.number = self.n_values
        self.n_values += 1
        if kept == v:
            self.kept[<uintptr_t>v] = v.number
        return v.number

    cdef int64_t see(self, Value *v) except -1:
        """The number of a value that is read."""
        cdef Tensor t
        cdef int64_t k
        if v.program == self.serial:
            return v.number
        found = self.kept.get(<uintptr_t>v)
        if found is not None:  # a recording of another thread has given it a number, too
            v.program, v.number = self.serial, found
            return v.number
        if v.tensor != NULL and (<Tensor>v.tensor).born < self.serial:
            t = <Tensor>v.tensor
            if id(t) in self.tensors:
                k = self.tensors[id(t)]
                if self.values[k] == v:  # marked by another program since
                    v.program, v.number = self.serial, k
                    return k
            if id(t) in self.tensors or id(t) in self.states:  # written, or read after it was written, without a note
                self.spoil(f"a tensor {describe(v)} was written while recording was stopped, or by another thread")
            k = self.number(v, V_TENSOR, value_share(v))
            self.objects[k] = t
            self.tensors[id(t)] = k
            if t.token == 0:
                t.token = epoch.new_token()
            return k
        # (what an older program has numbered and no tensor holds any more cannot change)
        if v.program != MADE_INSIDE and not (v.tensor == NULL and 0 < v.program < self.serial):
            self.spoil(f"a value {describe(v)} was computed in a way that cannot be replayed")
        elif v.tensor != NULL:
            for first, end in self.pauses:
                if first <= (<Tensor>v.tensor).born < end:
                    self.spoil(f"a value {describe(v)} was made while recording was stopped")
        k = self.number(v, V_CONST, value_share(v))
        self.objects[k] = wrap(value_share(v), NULL)
        return k

    cdef int lend(self, Value *v, Entry *node) except -1:
        """v, computed before this program, is a constant to it; node: its place, for those who differentiate."""
        if v.program != self.serial:
            self.objects[self.number(v, V_CONST, value_share(v))] = with_node(v, node)
        return 0

    cdef int hooked(self, Value *v, list hook) except -1:
        """A hook on a value that was made in here; on a tensor from outside it stays where it is."""
        cdef int64_t k = self.see(v)
        if self.kinds[k] == V_NOTE or self.kinds[k] == V_INPUT:
            self.hooks.append((k, hook))
        return 0

    cdef int spoil(self, str text) except -1:
        self.problems.append((text, self.here()))
        return 0

    def add_input(self, Tensor t not None):
        """A fresh tensor of t's value that stands for an argument; its number is len(inputs so far)."""
        cdef Value *v = value_alias(t.v)
        cdef Tensor x = wrap(v, NULL)
        self.objects[self.number(v, V_INPUT, value_share(v))] = x
        return x.requires_grad_() if t.requires_grad else x

    # ---- notes

    cdef int finish_last(self) except -1:
        cdef Entry *e = self.last
        if e != NULL:
            if e.params != NULL:
                self.notes[self.n - 1].params = params_copy(e.params)
            self.last = NULL
            entry_release(e)
        return 0

    cdef Note *append(self, int opcode, bint graded) except NULL:
        cdef int64_t room
        cdef void *grown
        cdef Note *note
        cdef int line = self.here()
        self.finish_last()
        if self.n == self.room:
            room = 2 * self.room + 64
            grown = realloc(self.notes, room * sizeof(Note))
            if grown == NULL:
                raise MemoryError()
            self.notes = <Note *>grown
            self.room = room
        note = &self.notes[self.n]
        note.opcode = opcode
        note.graded = graded or self.through
        note.params = NULL
        note.many = NULL
        note.nin = 0
        note.line = line
        return note

    cdef int note(self, Entry *e, int nin, Value **vals, Value *y) except -1:
        """y = op(vals), as entry e says."""
        cdef Note *note = self.append(e.opcode, thread_state().flags & T_GRAD)
        cdef int64_t *ins = note.ins
        cdef Value *meta
        cdef int i
        if nin > 3:
            note.many = ins = <int64_t *>malloc(nin * sizeof(int64_t))
            if ins == NULL:
                raise MemoryError()
        try:
            for i in range(nin):
                ins[i] = self.see(vals[i])
            meta = value_meta(y)
            note.out = self.number(y, V_NOTE, meta)
        except:
            free(note.many)
            raise
        note.nin = nin
        e.refs += 1
        self.last = e
        self.n += 1
        return 0

    cdef int aliased(self, Value *y, Value *x, Value *place) except -1:
        """y, an alias of x, goes on without x's gradient; with that of place where this is not NULL."""
        cdef Note *note
        cdef int64_t *params = params_new(1)
        params[1] = DETACHED if place == NULL else PLACED
        try:
            note = self.append(OP_IDENTITY, True)
            note.ins[0] = self.see(x)
            if place != NULL:
                note.ins[1] = self.see(place)
            note.out = self.number(y, V_NOTE, value_meta(y))
        except:
            free(params)
            raise
        note.params = params
        note.nin = 1 if place == NULL else 2
        self.n += 1
        return 0

    # ---- writes

    cdef int wrote(self, Tensor t, Value *v) except -1:
        """t was given the value v, which a note reads or makes."""
        self.see(v)
        if t.born < self.serial:
            if id(t) not in self.states:
                self.states[id(t)] = t
                self.before.append((t, hold(t)))
        elif t.v.program == self.serial and self.kinds[t.v.number] == V_INPUT:
            self.spoil("an argument is written in place: return the new value, or capture the tensor and use assign")
        return 0

    cdef bint is_outside(self, Tensor t):
        """Is t older than the recording, so that what is written to its .grad is to stay?"""
        return t.born < self.serial

    cdef int wrote_grad(self, Tensor t, object grad) except -1:
        """t.grad was set to None or a tensor."""
        if self.is_outside(t):
            if grad is not None:
                self.see((<Tensor>grad).v)
            self.grads[id(t)] = t
        elif t.v.program == self.serial and self.kinds[t.v.number] == V_INPUT and grad is not None:
            self.spoil("backward adds into the .grad of an argument: take the gradient with tp.grad, or capture the "
                       "tensor")
        return 0

    cdef int keep_grad(self, Tensor t) except -1:
        """Remember the .grad of a tensor from outside, which is about to change for the first time."""
        cdef Tensor g = t._grad
        if self.is_outside(t) and id(t) not in self.kept_grads:
            self.kept_grads[id(t)] = True
            self.before.append((t, g, None if g is None else hold(g)))
        return 0

    def restore(self):
        """Put tensors, .grad slots and generators back as they were before the recording."""
        cdef Tensor t
        for entry in reversed(self.before):
            if len(entry) == 2:
                put_back(entry[0], entry[1])
            else:
                t = entry[0]
                t._grad = entry[1]
                if entry[1] is not None:
                    put_back(entry[1], entry[2])
        for generator, state in self.starts.values():
            for stretch in self.generators:
                if stretch[0] is generator:
                    now = stretch[2], (stretch[3] + stretch[4]) % (1 << 64)
            if generator._read() == now:  # else another thread has gone on from there
                generator._write(state[0], state[1])

    cdef int read_grad(self, Tensor t) except -1:
        """t.grad is looked at by Python: whether it is empty decides what follows."""
        cdef Tensor g = t._grad
        cdef int64_t k
        if not self.is_outside(t) or id(t) in self.grads or id(t) in self.grads_read:
            return 0
        if g is None:
            self.grads_read[id(t)] = -1
            self.looks.append((self.n, "grad", t, False, self.here()))
            return 0
        k = self.number(g.v, V_GRAD, value_share(g.v))
        self.objects[k] = t
        self.grads_read[id(t)] = k
        self.looks.append((self.n, "grad", t, True, self.here()))
        return 0

    cdef Tensor accumulated(self, ThreadState *ts, Tensor t, Tensor g, Tensor total):
        """total = what t.grad held + g, or g where it is empty: as a note that is right in both cases."""
        cdef Value *vals[2]
        cdef Entry *nodes[2]
        cdef Tensor old = t._grad
        cdef Value *before
        cdef Value *y
        cdef Entry *e
        if not self.is_outside(t) or id(t) in self.grads or id(t) in self.grads_read:
            return total
        before = value_meta(g.v)
        try:
            self.objects[self.number(before, V_GRAD, value_share(before))] = t
            y = value_alias(total.v)
            vals[0], vals[1] = before, g.v
            nodes[0] = nodes[1] = NULL
            try:
                e = record(ts, OP_ACCUMULATE, 2, nodes, vals, y, 0)
            except:
                value_release(y)
                raise
        finally:
            value_release(before)
        return wrap(y, e)

    def finish(self):
        """(tensor, number) of each tensor from outside that was written, and (tensor, number or None) of each .grad."""
        cdef Tensor t, g
        cdef list states = []
        cdef list grads = []
        cdef dict owners = {}
        for t in list(self.objects.values()) + list(self.grads.values()):
            if t._grad is not None and (id(t) in self.grads_read or id(t) in self.grads):
                owners[id(t._grad)] = t
        for key, t in self.states.items():
            if key in owners:
                self.grads[id(owners[key])] = owners[key]  # t.grad.zero_(), t.grad *= 0.5
            else:
                states.append((t, self.see(t.v)))
        for t in self.grads.values():
            g = t._grad
            grads.append((t, None if g is None else self.see(g.v)))
        return states, grads

    def unmark(self):
        """Give values that were there before this program the marks back that they had."""
        cdef int64_t i
        cdef Value *v
        for i in range(self.n_values):
            v = self.values[i]
            if self.kinds[i] != V_NOTE and v.program == self.serial and v.number == i:
                v.program, v.number = self.marks[i].program, self.marks[i].number
        self.let_go()

    cdef int close(self) except -1:
        """Nothing is noted any more: let go of what arguments and tensors from outside held, or do so in unmark."""
        self.finish_last()
        self.kept.clear()
        return 0 if self.nested else self.let_go()

    cdef int let_go(self) except -1:
        cdef int64_t i
        cdef Value *v
        for i in range(self.n_values):
            if V_INPUT <= self.kinds[i] <= V_GRAD:
                v = value_meta(self.values[i])
                value_release(self.values[i])
                self.values[i] = v
        return 0

    cdef int pause(self, bint begins) except -1:
        """Recording stops or goes on: what is made meanwhile is known by when."""
        global program_clock
        program_clock += 1
        if begins:
            self.pauses.append([program_clock, LARGEST])
        elif self.pauses:
            self.pauses[len(self.pauses) - 1][1] = program_clock
        return 0

    # ---- draws

    def seeded(self, generator, before, seed, draw):
        """The state of a generator was set: its draws no longer continue those from before the recording."""
        self.starts.setdefault(id(generator), (generator, before))
        self.generators.append([generator, True, seed, draw, 0])

    def drawn(self, generator, seed, draw, n=1, again=False):
        """Count n draws: (index of the generator's stretch of draws, number of the first of them in it). again: the
        draw was made before; None: before the recording."""
        if again:
            return self.places.get((id(generator), seed, draw))
        for i in range(len(self.generators) - 1, -1, -1):
            if self.generators[i][0] is generator:
                break
        else:
            i = len(self.generators)
            self.starts.setdefault(id(generator), (generator, (seed, draw)))
            self.generators.append([generator, False, seed, draw, 0])
        place = self.generators[i][4]  # not the difference of numbers: other threads may draw between
        self.generators[i][4] = place + n
        for k in range(n):
            self.places[id(generator), seed, (draw + k) % (1 << 64)] = i, place + k
        return i, place

    # ---- looks

    cdef int looked(self, Value *v, str kind) except -1:
        """Python saw a value: a number (a guard) or an array."""
        cdef int64_t k
        if v.program == self.serial or (v.tensor != NULL and (<Tensor>v.tensor).born < self.serial):
            k = self.see(v)
            if self.kinds[k] != V_CONST:
                self.looks.append((self.n, kind, k, to_numpy(v).tobytes() if kind == "number" else None,
                                   self.here()))
        return 0

    # ---- the user's line

    cdef int here(self) except -1:
        """The number of the innermost line of Python that is not tapeflow's own."""
        if self.line_now >= 0:
            return self.line_now
        cdef object frame = user_frame()
        cdef tuple key
        if frame is None:
            if not self.lines:
                self.lines.append(("", 0, ""))
            return 0
        key = (frame.f_code, frame.f_lineno)
        found = self.line_numbers.get(key)
        if found is None:
            found = len(self.lines)
            self.line_numbers[key] = found
            self.lines.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        return found

    # ---- reading it

    def notes_list(self, int64_t start, int64_t stop):
        """The notes start .. stop: (opcode, params or (), inputs, result, line)."""
        cdef list out = []
        cdef Note *note
        cdef int64_t i, j
        cdef int64_t *ins
        self.finish_last()
        for i in range(start, stop):
            note = &self.notes[i]
            ins = note.many if note.many != NULL else &note.ins[0]
            # a number that was moved to another device is the same in a plan
            same = note.opcode == OP_IDENTITY and note.params != NULL and note.params[1] == MOVED
            params = () if same else params_tuple(note.params)
            out.append((note.opcode, params, tuple([ins[j] for j in range(note.nin)]), note.out, note.line))
        return out

    def ungraded(self, int64_t start, int64_t stop):
        """The values that the notes start .. stop made outside of grad mode, a set."""
        cdef int64_t i
        return {self.notes[i].out for i in range(start, stop) if not self.notes[i].graded}

    def values_list(self):
        """Of each value (kind, dtype code, shape)."""
        cdef int64_t i
        cdef list out = []
        for i in range(self.n_values):
            out.append((self.kinds[i], self.values[i].dtype, shape_of(self.values[i])))
        return out

    def number_of(self, Tensor t not None):
        """The number of the value that t holds now; it becomes known when it is not."""
        return self.see(t.v)

    def knows(self, Tensor t not None):
        """Whether t holds a value that depends on notes or inputs of this program."""
        return t.v.program == self.serial and self.kinds[t.v.number] != V_CONST


cdef int put_back(Tensor t, Tensor was) except -1:
    """t holds the value and has the place that it had."""
    cdef Value *v = t.v
    cdef Entry *e = t.node
    t.v = value_alias(was.v) if was.v != v else value_share(v)
    t.v.tensor = <PyObject *>t
    t.node = was.node
    if t.node != NULL:
        t.node.refs += 1
    if v.tensor == <PyObject *>t and v != t.v:
        v.tensor = NULL
    entry_release(e)
    value_release(v)
    return 0


cdef tuple params_tuple(const int64_t *params):
    cdef int64_t i
    return () if params == NULL else tuple([params[i] for i in range(1, params[0] + 1)])


cdef dict _own_code = {}         # code object -> whether it is tapeflow's
cdef str _own_files = os.path.dirname(os.path.abspath(errors.__file__)) + os.sep


cdef bint is_own(object code) except -1:
    found = _own_code.get(code)
    if found is None:
        found = code.co_filename.startswith(_own_files)
        if len(_own_code) > 10000:
            _own_code.clear()
        _own_code[code] = found
    return found


cdef object user_frame():
    """The innermost frame of Python that is not tapeflow's own, or None."""
    cdef PyObject *current = <PyObject *>PyEval_GetFrame()
    cdef object frame = <object>current if current != NULL else None
    while frame is not None and is_own(frame.f_code):
        frame = frame.f_back
    return frame


cdef tuple user_place():
    """The file and line of the user's that runs now."""
    cdef object frame = user_frame()
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


cdef int program_open(ThreadState *ts) except -1:
    cdef Program program
    if ts.program == NULL:
        program = Program.__new__(Program)
        Py_INCREF(program)
        ts.program = <PyObject *>program
    return 0


cdef class aside:
    """Inside `with aside():` the thread records as if no tape were open; afterwards those that were go on."""
    cdef PyObject *program
    cdef list tapes

    def __enter__(self):
        cdef ThreadState *ts = thread_state()
        cdef list tapes = <list>ts.tapes
        self.program, ts.program = ts.program, NULL
        self.tapes = list(tapes)
        tapes.clear()
        ts.flags &= ~T_TAPE
        return self

    def __exit__(self, *exc):
        cdef ThreadState *ts = thread_state()
        cdef list tapes = <list>ts.tapes
        program_close(ts)
        ts.program, self.program = self.program, NULL
        tapes[:] = self.tapes
        restore_modes(ts, ts.flags)

    def __dealloc__(self):
        Py_XDECREF(self.program)


cdef int program_close(ThreadState *ts) except -1:
    cdef PyObject *p = ts.program
    ts.program = NULL
    if p != NULL:
        try:
            (<Program>p).close()
        finally:
            Py_XDECREF(p)
    return 0


cdef int note_write(ThreadState *ts, Tensor t, Tensor r) except -1:
    """t is about to hold r's value."""
    if ts.program != NULL:
        (<Program>ts.program).wrote(t, r.v)
    return 0


cdef inline Program program_of(ThreadState *ts):
    """The program that notes are taken for, or None."""
    return <Program>ts.program if ts.flags & T_TAPE and ts.program != NULL else None


def placed(Tensor x not None, Tensor place not None):
    """x's value at the place on the tape that another tensor has: what a write outside of grad mode leaves."""
    cdef Value *v = value_alias(x.v)
    cdef Tensor t
    if place.node != NULL:
        place.node.refs += 1
    t = wrap(v, place.node)
    note_detached(v, x.v, place.v)
    return t


def unlinked(Tensor x not None):
    """x off the tape; to those who differentiate a recording it is x."""
    note_read(x.v)
    return wrap(value_alias(x.v), NULL)


def is_differentiable(Tensor t not None):
    """Whether a backward from t would still get somewhere."""
    return t.node != NULL and t.node.flags & E_GRAD and not t.node.flags & (E_LEAF | E_FREED)


def program_now():
    """The Program that notes are taken for in this thread, or None."""
    return program_of(thread_state())


def is_recording():
    """Whether a Tape, or the recording of a plan, is open in this thread."""
    return (thread_state().flags & T_TAPE) != 0


cdef int note_read(Value *v) except -1:
    """v is about to be known under another tensor: a recording numbers it first."""
    cdef ThreadState *ts = thread_state()
    if ts.flags & T_TAPE and ts.program != NULL:
        (<Program>ts.program).see(v)
    return 0


cdef int note_detached(Value *y, Value *x, Value *place) except -1:
    """y, an alias of x, has lost x's gradient, or goes on with that of place."""
    cdef ThreadState *ts = thread_state()
    if ts.flags & T_TAPE and ts.program != NULL:
        return (<Program>ts.program).aliased(y, x, place)
    return 0


cdef int note_packed(Value *packed, Value *x) except -1:
    """packed holds what x does: to a recording they are one value."""
    if packed != x:
        note_read(x)
        packed.program, packed.number = x.program, x.number
    return 0


cdef int note_look(Value *v, str kind) except -1:
    """Python is about to see v."""
    cdef ThreadState *ts = thread_state()
    if ts.flags & T_TAPE and ts.program != NULL:
        (<Program>ts.program).looked(v, kind)
    return 0
