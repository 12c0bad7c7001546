# A frozen plan, linked: slots that hold values, instructions over them, one arena. Python runs once, when it is linked.
#
# A run has two phases. compute writes the arena and fresh memory only: of results, and of what state is to become.
# commit gives the fresh values to the tensors, .grad slots and generators, and cannot fail; so whatever goes wrong
# before it (a guard, an index, an interrupt) leaves all state as it was.

cdef enum:
    SLOT_ARENA = 0
    SLOT_VIEW = 1
    SLOT_INPUT = 2
    SLOT_TENSOR = 3
    SLOT_GRAD = 4
    SLOT_CONST = 5
    SLOT_FRESH = 6
    DO_OP = 0
    DO_GROUP = 1
    DO_SCALARS = 2
    DO_RANDOM = 3
    DO_ACCUMULATE = 4
    DO_GUARD = 5
    DO_COPY = 6
    STRETCH = -1                 # a step of a group
    ARENA_ALIGN = 64
    COPIED = 4096                # bytes up to which state and results are copied where they go, rather than given away

# Held by recordings and by runs that change something outside: each sees what is outside as the one before left it.
cdef object state_lock = threading.RLock()

cdef bint disturbed = False      # by tests: see disturb_runs
cdef int64_t fails_at = -1
cdef bint poisons = False


def get_state_lock():
    """The lock that a recording holds."""
    return state_lock


def _fresh_state_lock():
    """In a child process: another thread of the parent may have held the lock at the fork."""
    global state_lock
    state_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_state_lock)


def disturb_runs(int64_t fail_at=-1, bint poison=False):
    """For tests: from now on runs of plans fail before the instruction of this number, and memory that they write is
    filled with 0xFF first."""
    global disturbed, fails_at, poisons
    fails_at, poisons = fail_at, poison
    disturbed = fail_at >= 0 or poison


cdef struct Slot_:
    int kind
    int index                    # of an input; of a view: its base
    int64_t offset
    Value *v                     # in a run what the slot holds; its memory may be NULL between runs
    Value *held                  # in a run the share of what is read from outside; of a fresh slot its shape

cdef struct Instr:
    int kind
    int op
    int nin
    int out
    int *ins
    int64_t *params
    tpf_group *group
    int *operand_slots           # of a group: the slot of each operand, -1: a block
    tpf_scalar *code
    int64_t n_code
    PyObject *extra              # borrowed from Executable.keep
    Value *stats                 # of a cross entropy, shared with its rule
    Value **many                 # of an op: room for its operands where there are more than a few


cdef struct Stretch:
    PyObject *generator          # borrowed from Executable.keep
    bint absolute                # its draws do not go on from those before: the plan sets seed and first draw
    uint64_t seed, first         # in a run where it begins
    uint64_t draws


cdef class Executable:
    """Slots, instructions and an arena of one plan. Not for two runs at once: `busy` says that one is under way."""
    cdef Slot_ *slots
    cdef int n_slots
    cdef Instr *instrs
    cdef int n_instrs
    cdef Buffer *arena
    cdef int *moving             # views whose base moves, in order
    cdef int n_moving
    cdef int *loads              # pairs: slot, cell
    cdef int n_loads
    cdef int n_once              # pairs of constants, from the end of `loads`: their cells are filled when it is linked
    cdef int64_t n_cells
    cdef list keep               # what slots and instructions refer to
    cdef int *inputs             # their slots
    cdef int n_inputs
    cdef int *fresh              # slots of results and of state to be
    cdef int n_fresh
    cdef list tensors            # of each slot of a tensor from outside or its .grad: the tensor
    cdef int *outside            # their slots
    cdef int n_outside
    cdef int *outputs            # slots
    cdef int n_outputs
    cdef list states             # tensors that a run writes
    cdef list grads              # tensors whose .grad a run writes
    cdef list made               # in commit: what each of these is to be
    cdef int *written            # slots of what they become; -1: an empty .grad
    cdef Value **ready           # of states, .grad slots and what a caller wants written: what is given away
    cdef Stretch *stretches
    cdef int n_stretches
    cdef readonly bint busy
    cdef readonly int64_t runs

    def __cinit__(self):
        self.keep, self.tensors, self.states, self.grads = [], [], [], []

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_slots):
            value_release(self.slots[i].v)
            value_release(self.slots[i].held)
        free(self.slots)
        for i in range(self.n_instrs):
            instr_free(&self.instrs[i])
        free(self.instrs)
        free(self.moving)
        free(self.loads)
        free(self.outside)
        free(self.inputs)
        free(self.fresh)
        free(self.outputs)
        free(self.written)
        free(self.ready)
        free(self.stretches)
        if self.arena != NULL:
            buffer_release(self.arena)

    # ---- linking

    def __init__(self, int64_t arena_bytes, slots, instrs, loads, outputs, states, grads, generators):
        cdef int i
        self.arena = buffer_new(arena_bytes + ARENA_ALIGN)
        if self.arena == NULL:
            raise MemoryError()
        self.slots = <Slot_ *>calloc(len(slots) + 1, sizeof(Slot_))
        self.instrs = <Instr *>calloc(len(instrs) + 1, sizeof(Instr))
        self.moving = <int *>malloc((len(slots) + 1) * sizeof(int))
        self.outside = <int *>malloc((len(slots) + 1) * sizeof(int))
        self.inputs = <int *>malloc((len(slots) + 1) * sizeof(int))
        self.fresh = <int *>malloc((len(slots) + 1) * sizeof(int))
        self.outputs = <int *>malloc((len(outputs) + 1) * sizeof(int))
        self.loads = <int *>malloc((2 * len(loads) + 1) * sizeof(int))
        self.written = <int *>malloc((len(states) + len(grads) + 1) * sizeof(int))
        self.stretches = <Stretch *>malloc((len(generators) + 1) * sizeof(Stretch))
        self.ready = <Value **>calloc(len(states) + len(grads) + len(outputs) + 1, sizeof(Value *))
        for made in (self.slots != NULL, self.instrs != NULL, self.moving != NULL, self.outside != NULL,
                     self.inputs != NULL, self.fresh != NULL, self.outputs != NULL, self.loads != NULL,
                     self.written != NULL, self.ready != NULL, self.stretches != NULL):
            if not made:
                raise MemoryError()
        for spec in slots:
            self.link_slot(spec)
        for spec in instrs:
            self.n_instrs += 1
            self.link_instr(&self.instrs[self.n_instrs - 1], spec)
        self.n_cells = arena_bytes // 8
        for slot, cell, once in loads:
            if once:  # of a constant: its cell is never another value's
                self.n_once += 1
                i = len(loads) - self.n_once
            else:
                i = self.n_loads
                self.n_loads += 1
            self.loads[2 * i], self.loads[2 * i + 1] = slot, cell
        self.load_cells(self.n_loads, len(loads))
        for slot in outputs:
            self.outputs[self.n_outputs] = slot
            self.n_outputs += 1
        for n, (t, slot) in enumerate([*states, *grads]):
            self.written[n] = slot
        self.states, self.grads = [t for t, _ in states], [t for t, _ in grads]
        self.made = [None] * len(grads)
        for generator, absolute, seed, first, draws in generators:
            self.keep.append(generator)
            self.stretches[self.n_stretches] = Stretch(<PyObject *>generator, absolute, seed, first, draws)
            self.n_stretches += 1

    cdef int link_slot(self, spec) except -1:
        cdef Slot_ *s = &self.slots[self.n_slots]
        cdef Value *v
        cdef int d
        cdef bint moves
        kind, dtype, shape, strides, base, offset = spec
        s.kind = kind
        s.offset = offset
        v = value_raw(len(shape))
        if v == NULL:
            raise MemoryError()
        s.v = v
        v.dtype = dtype
        for d in range(v.ndim):
            v.shape[d] = shape[d]
        if strides is None:
            v.size = checked_size(v.ndim, v.shape, 1)
            set_contiguous_strides(v)
        else:
            for d in range(v.ndim):
                v.strides[d] = strides[d]
            view_done(v)
        v.program = SLOT_OF_PLAN
        v.buf = self.arena  # wherever the memory is: it is ours, and has more owners than one
        self.arena.owners += 1
        if s.kind == SLOT_ARENA:
            v.data = self.arena.data + s.offset
        elif s.kind == SLOT_VIEW:
            s.index = base
            v.data = self.slots[s.index].v.data
            if v.data != NULL:
                v.data += s.offset
            if self.slots[s.index].kind != SLOT_ARENA and self.slots[s.index].kind != SLOT_CONST:
                self.moving[self.n_moving] = self.n_slots
                self.n_moving += 1
        elif s.kind == SLOT_CONST:
            self.keep.append(base)
            if is_remote((<Tensor>base).v):
                raise errors.DeviceError(f"[plan] a constant is on {base.device}, and this runs on cpu. Freeze the "
                                         "function where its tensors are.")
            v.data = (<Tensor>base).v.data
        elif s.kind == SLOT_FRESH:
            s.held = value_share(v)
            self.fresh[self.n_fresh] = self.n_slots
            self.n_fresh += 1
        elif s.kind == SLOT_INPUT:
            self.inputs[self.n_inputs] = self.n_slots
            self.n_inputs += 1
        elif s.kind == SLOT_TENSOR or s.kind == SLOT_GRAD:
            self.outside[self.n_outside] = self.n_slots
            self.n_outside += 1
            self.tensors.append(base)
        self.n_slots += 1
        return 0

    cdef int link_instr(self, Instr *i, spec) except -1:
        cdef int k
        kind, op, params, ins, out, extra = spec
        i.kind = kind
        i.op = op
        i.out = out
        i.nin = len(ins)
        i.ins = <int *>malloc((i.nin + 1) * sizeof(int))
        if i.ins == NULL:
            raise MemoryError()
        if i.nin > 16:
            i.many = <Value **>malloc(i.nin * sizeof(Value *))
            if i.many == NULL:
                raise MemoryError()
        for k in range(i.nin):
            i.ins[k] = ins[k]
        if params is not None:
            i.params = params_new(len(params))
            for k in range(len(params)):
                i.params[k + 1] = params[k]
        if i.kind == DO_GROUP:
            link_group(i, extra)
        elif i.kind == DO_SCALARS:
            link_scalars(i, extra)
        elif extra is not None:
            self.keep.append(extra)
            i.extra = <PyObject *>extra
        if i.op == OP_CROSS_ENTROPY_VJP and i.kind == DO_OP:
            self.share_stats(i)
        return 0

    cdef int share_stats(self, Instr *rule) except -1:
        """The rule of a cross entropy reads the statistics that the loss has left in the same run."""
        cdef Instr *i = self.instrs
        while i < rule:
            if (i.kind == DO_OP and i.op == OP_CROSS_ENTROPY and i.ins[0] == rule.ins[1] and i.ins[1] == rule.ins[2]):
                if i.stats == NULL:
                    i.stats = cross_entropy_stats(self.slots[i.ins[0]].v, self.slots[i.ins[1]].v)
                rule.stats = value_share(i.stats)
                return 0
            i += 1
        return 0

    # ---- running

    cdef int bind_value(self, int k, Value *v, int argument) except -1:
        """Slot k reads v, of an argument or a captured tensor (-1), packed where it is strided; a share is held:
        without the GIL its tensor may be written."""
        cdef Slot_ *s = &self.slots[k]
        if v.dtype != s.v.dtype or not same_shape(v, s.v):
            what = "a captured tensor" if argument < 0 else f"argument {argument}"
            raise errors.PlanError(f"[plan] {what} is {describe(v)}, and the plan was frozen for {describe(s.v)}. "
                                   "Freeze it again for the new shape or dtype.")
        if is_remote(v):
            what = "a captured tensor" if argument < 0 else f"argument {argument}"
            raise errors.DeviceError(f"[plan] {what} is on {_creation.label(device_of(v))}, and the plan runs on cpu. "
                                     "Move it with .to('cpu'), or the plan with plan.to(device).")
        s.held = value_contiguous(v)
        s.v.data = s.held.data
        return 0

    cdef list run(self, args, list targets, bint look):
        """Compute and commit; the list of the outputs as fresh tensors, or what targets hold from then on. look: raise
        Tripped rather than commit what is not finite."""
        cdef list results = None
        cdef object lock = state_lock if len(self.states) or len(self.grads) else None
        if self.busy:
            raise errors.PlanError("[plan] this executable is running already.")
        if lock is not None:
            lock.acquire()
        self.busy = True
        try:
            while results is None:
                self.compute(args)
                if look:
                    self.look()
                self.let_go()
                results = self.commit(targets)
            self.runs += 1
            return results
        finally:
            self.let_go()
            self.forget_fresh()
            self.busy = False
            if lock is not None:
                lock.release()

    def time(self, args, int repeats):
        """Seconds that each instruction takes, the least of several runs, which commit nothing."""
        cdef int i
        least = [float("inf")] * self.n_instrs
        for _ in range(repeats):
            try:
                self.enter(args)
                for i in range(self.n_instrs):
                    start = perf_counter()
                    self.step(&self.instrs[i])
                    took = perf_counter() - start
                    if took < least[i]:
                        least[i] = took
            finally:
                self.let_go()
                self.forget_fresh()
        return least

    cdef int check_alias(self, Tensor t) except -1:
        """An argument is read as it was before the run, which must not write it."""
        cdef int k
        cdef bint same = False
        for k in range(len(self.states)):
            same = same or self.states[k] is t
        for k in range(len(self.grads)):
            same = same or (<Tensor>self.grads[k])._grad is t
        if same:
            raise errors.PlanError(f"[plan] an argument {describe(t.v)} is a tensor that the plan also writes. Pass a "
                                   "copy (x.clone()).")
        return 0

    cdef int compute(self, args) except -1:
        cdef int i
        self.enter(args)
        for i in range(self.n_instrs):
            if disturbed:
                self.disturb(i)
            self.step(&self.instrs[i])
        return 0

    cdef int enter(self, args) except -1:
        """Look at arguments and captured tensors, and take memory for results."""
        cdef Tensor t
        cdef bint writes = len(self.states) + len(self.grads) > 0
        cdef int i
        cdef Slot_ *s
        cdef Value *v
        for i in range(self.n_inputs):
            t = args[i]
            self.bind_value(self.inputs[i], t.v, i)
            if writes:
                self.check_alias(t)
        self.bind_outside()
        for i in range(self.n_stretches):
            if not self.stretches[i].absolute:
                self.stretches[i].seed = (<GeneratorState>self.stretches[i].generator).seed
                self.stretches[i].first = (<GeneratorState>self.stretches[i].generator).draw
        for i in range(self.n_fresh):
            s = &self.slots[self.fresh[i]]
            if s.v == s.held:
                v = value_new(s.held.ndim, s.held.shape, s.held.dtype)
                value_release(s.v)
                s.v = v
        if disturbed:
            self.poison()
        for i in range(self.n_moving):
            s = &self.slots[self.moving[i]]
            if self.slots[s.index].v.data != NULL:
                s.v.data = self.slots[s.index].v.data + s.offset
        self.load_cells(0, self.n_loads)
        return 0

    cdef inline void load_cells(self, int start, int stop) noexcept:
        """Put 0-d values from elsewhere into their cells."""
        cdef Value *v
        cdef int i
        for i in range(start, stop):
            v = self.slots[self.loads[2 * i]].v
            if v.data != NULL:
                memcpy(self.arena.data + 8 * <int64_t>self.loads[2 * i + 1], v.data, tpf_itemsize(v.dtype))

    cdef int disturb(self, int64_t i) except -1:
        """For tests: fail where it was asked for, before instruction i or, after the last one, in the commit."""
        if i == fails_at:
            raise MemoryError(f"[plan] a failure at step {i}, as asked for")
        return 0

    cdef void poison(self) noexcept:
        """For tests: nothing that a run is to write holds a number before (0xFF: NaN, -1, no bool)."""
        cdef Value *v
        cdef int i
        if not poisons:
            return
        memset(self.arena.data, 0xFF, self.arena.nbytes)
        self.load_cells(self.n_loads, self.n_loads + self.n_once)
        for i in range(self.n_fresh):
            v = self.slots[self.fresh[i]].v
            memset(v.data, 0xFF, v.size * tpf_itemsize(v.dtype))
        for i in range(self.n_instrs):
            v = self.instrs[i].stats
            if v != NULL:
                memset(v.data, 0xFF, v.size * tpf_itemsize(v.dtype))

    cdef int may_commit(self) noexcept:
        """Another thread may have drawn from a generator meanwhile: then this run's draws were its."""
        cdef int i
        cdef Stretch *s
        cdef GeneratorState g
        for i in range(self.n_stretches):
            s = &self.stretches[i]
            g = <GeneratorState>s.generator
            if not s.absolute and (g.seed != s.seed or g.draw != s.first):
                return False
        return True

    cdef int bind_outside(self) except -1:
        cdef Tensor t
        cdef int i, k
        for i in range(self.n_outside):
            k = self.outside[i]
            t = self.tensors[i]
            if self.slots[k].kind == SLOT_GRAD:
                t = t._grad
                if t is None:
                    self.slots[k].v.data = NULL
                    continue
            self.bind_value(k, t.v, -1)
        return 0

    def run_over(self, args, each, int64_t n):
        """The outputs of n runs, side by side in lanes (lanes.pxi): args are of n elements where `each` says so. Of a
        program of 0-d values alone, which changes nothing outside."""
        cdef LanesRun lanes
        if self.busy:
            raise errors.PlanError("[plan] this executable is running already.")
        self.busy = True
        try:
            self.bind_outside()
            lanes = LanesRun(self, args, each, n)
            return lanes.run()
        finally:
            self.let_go()
            self.busy = False

    cdef void let_go(self) noexcept:
        """Of what was read from outside."""
        cdef Slot_ *s
        cdef int i
        for i in range(self.n_inputs):
            s = &self.slots[self.inputs[i]]
            value_release(s.held)
            s.held = NULL
        for i in range(self.n_outside):
            s = &self.slots[self.outside[i]]
            value_release(s.held)
            s.held = NULL

    cdef void forget_fresh(self) noexcept:
        """Results that went, or will not be; small memory that stayed here serves the next run."""
        cdef Slot_ *s
        cdef int i
        for i in range(self.n_fresh):
            s = &self.slots[self.fresh[i]]
            if s.v != s.held and not (value_is_mine(s.v) and s.v.buf.nbytes <= COPIED):
                value_release(s.v)
                s.v = value_share(s.held)

    cdef int step(self, Instr *i) except -1:
        cdef Value *ins[16]
        cdef Value **p = ins
        cdef Value *y = self.slots[i.out].v if i.out >= 0 else NULL
        cdef int k
        if i.kind == DO_GROUP:
            return self.run_group(i)
        if i.kind == DO_SCALARS:
            kernels.run_scalars(self.arena.data, i.code, i.code + i.n_code)
            return 0
        if i.kind == DO_RANDOM:
            return self.draw(i, y)
        if i.kind == DO_GUARD:
            return self.guard(i)
        if i.kind == DO_COPY:
            return copy_value(y, self.slots[i.ins[0]].v)
        if i.kind == DO_ACCUMULATE:
            if self.slots[i.ins[0]].v.data == NULL:
                return copy_value(y, self.slots[i.ins[1]].v)
            return execute_typed(OP_ADD, y.dtype, y, self.slots[i.ins[0]].v, self.slots[i.ins[1]].v, NULL, True)
        if i.many != NULL:
            p = i.many
        for k in range(i.nin):
            p[k] = self.slots[i.ins[k]].v
        if i.stats != NULL:
            if i.op == OP_CROSS_ENTROPY:
                return execute_cross_entropy(p[0], p[1], y, i.stats)
            return execute_cross_entropy_vjp(p[0], p[1], p[2], y, i.stats)
        return execute_op(i.op, i.params, i.nin, p, y)

    cdef int run_group(self, Instr *i) except -1:
        cdef tpf_group *g = i.group
        cdef int k
        for k in range(g.n_operands):
            if i.operand_slots[k] >= 0:
                g.operands[k].data = self.slots[i.operand_slots[k]].v.data
        if g.size * g.n_steps >= RELEASE_GIL:
            with nogil:
                tpf_run_group(g)
            if PyErr_CheckSignals():
                return -1
        else:
            tpf_run_group(g)
        return 0

    cdef int draw(self, Instr *i, Value *y) except -1:
        """params: kind, stretch, place, and of integers their range."""
        cdef Stretch *s = &self.stretches[i.params[2]]
        cdef bint ranged = i.params[0] > 3
        return fill_random(<int>i.params[1], y, s.seed, s.first + <uint64_t>i.params[3],
                           <uint64_t>i.params[4] if ranged else 0, i.params[5] if ranged else 0)

    cdef int guard(self, Instr *i) except -1:
        """extra: the bytes that were seen, or for a .grad (tensor, whether it was there); and the line."""
        cdef Value *v
        cdef tuple extra = <tuple>i.extra
        if i.out == -2:
            if ((<Tensor>extra[0])._grad is not None) != extra[1]:
                raise GuardFailed(f"[plan] the .grad of a captured tensor was {'there' if extra[1] else 'empty'} when "
                                  f"the plan was recorded and is not now ({extra[2]}). Freeze it for this case, or use "
                                  "tp.function, which keeps both.")
            return 0
        v = self.slots[i.ins[0]].v
        seen = PyBytes_FromStringAndSize(v.data, tpf_itemsize(v.dtype))
        if seen != extra[0]:
            was, now = (numpy.frombuffer(b, _numpy_dtypes[v.dtype])[0] for b in (extra[0], seen))
            raise GuardFailed(f"[plan] Python looked at a value in {extra[1]}: it was {was} when the plan was recorded "
                              f"and is {now} now. Freeze it for this case, or use tp.function, which keeps both.")
        return 0

    cdef int look(self) except -1:
        """Is everything finite that would be handed over?"""
        cdef int i
        for i in range(self.n_outputs):
            self.look_at(self.outputs[i])
        for i in range(len(self.states) + len(self.grads)):
            if self.written[i] >= 0:
                self.look_at(self.written[i])
        return 0

    cdef int look_at(self, int k) except -1:
        if first_bad(self.slots[k].v) >= 0:
            raise Tripped()
        return 0

    cdef list commit(self, list targets):
        """Nothing here can fail but for want of memory, which is asked for first. None: compute it again."""
        cdef list results = targets
        cdef list made = self.made
        cdef Tensor t, g
        cdef GeneratorState generator
        cdef int i
        cdef int n_states = len(self.states)
        cdef int n = n_states + len(self.grads)
        cdef Value **ready = self.ready
        try:
            if targets is None:
                results = []
                for i in range(self.n_outputs):
                    results.append(wrap(value_alias(self.slots[self.outputs[i]].v), NULL))
            else:
                for i in range(self.n_outputs):
                    t = targets[i]
                    ready[n + i] = handed_over(t, self.slots[self.outputs[i]].v)
            for i in range(n_states):
                t = self.states[i]
                ready[i] = handed_over(t, self.slots[self.written[i]].v)
            for i in range(n_states, n):
                g = (<Tensor>self.grads[i - n_states])._grad
                if self.written[i] < 0:
                    made[i - n_states] = None
                elif g is None or (g.node != NULL and g.node.flags & E_LEAF):
                    made[i - n_states] = wrap(value_alias(self.slots[self.written[i]].v), NULL)
                else:
                    made[i - n_states] = g
                    ready[i] = handed_over(g, self.slots[self.written[i]].v)
            if thread_state().program != NULL:
                self.tell_draws(<Program>thread_state().program)
            if disturbed:
                self.disturb(self.n_instrs)
        except:
            self.drop_ready()
            raise
        if not self.may_commit():
            self.drop_ready()
            return None
        for i in range(n_states):
            give(self.states[i], self.slots[self.written[i]].v, &ready[i])
        for i in range(n_states, n):
            t = self.grads[i - n_states]
            g = made[i - n_states]
            if g is not None and g is t._grad:
                give(g, self.slots[self.written[i]].v, &ready[i])
            t._grad = g
            made[i - n_states] = None
        for i in range(self.n_stretches):
            generator = <GeneratorState>self.stretches[i].generator
            generator.seed = self.stretches[i].seed
            generator.draw = self.stretches[i].first + self.stretches[i].draws
        if targets is not None:
            for i in range(self.n_outputs):
                give(targets[i], self.slots[self.outputs[i]].v, &ready[n + i])
        return results

    cdef void drop_ready(self) noexcept:
        cdef int i
        cdef int n = len(self.states) + len(self.grads) + self.n_outputs
        for i in range(n):
            value_release(self.ready[i])
            self.ready[i] = NULL
        for i in range(len(self.grads)):
            self.made[i] = None

    cdef int tell_draws(self, Program program) except -1:
        """A recording is open around this run: generators have moved on without a note."""
        cdef int i
        cdef Stretch *s
        cdef GeneratorState g
        for i in range(self.n_stretches):
            s = &self.stretches[i]
            g = <GeneratorState>s.generator
            if s.absolute:
                program.seeded(g, g._read(), s.seed, s.first)
            if s.draws:
                program.drawn(g, s.seed, s.first, s.draws)
        return 0


cdef inline Value *handed_over(Tensor t, Value *v) except? NULL:
    """What t is to hold in place of v's copy in its own memory; NULL: copy v there."""
    if is_remote(t.v):
        raise errors.DeviceError(f"[plan] a tensor that is written is on {_creation.label(device_of(t.v))}, and the "
                                 "plan runs on cpu. Move it with .to('cpu'), or the plan with plan.to(device).")
    if t.v.buf.foreign or (value_is_mine(t.v) and t.v.buf.nbytes <= COPIED):
        return NULL
    return value_alias(v)


cdef void give(Tensor t, Value *v, Value **ready) noexcept:
    """t holds what v does; its place on the tape stays when it is a leaf and goes otherwise."""
    cdef Value *old = t.v
    if t.node != NULL and not t.node.flags & E_LEAF:
        leave(t)
    if ready[0] == NULL:
        copy_into(old, v)
        return
    t.v = ready[0]
    t.v.tensor = <PyObject *>t
    ready[0] = NULL
    if old.tensor == <PyObject *>t:
        old.tensor = NULL
    value_release(old)


cdef void copy_into(Value *to, Value *v) noexcept:
    """The elements of v, packed, into memory of the same shape and dtype, strided where it is another library's."""
    cdef int itemsize = tpf_itemsize(v.dtype)
    if to.contiguous:
        memcpy(to.data, v.data, v.size * itemsize)
    else:
        tpf_copy(to.data, to.strides, v.data, v.strides, itemsize, v.ndim, v.shape)


class Tripped(Exception):
    """A run would have handed over what is not finite."""


class GuardFailed(errors.PlanError):
    """A value that Python looked at while a plan was recorded is another one now."""


cdef void instr_free(Instr *i) noexcept:
    value_release(i.stats)
    free(i.ins)
    free(i.many)
    free(i.params)
    free(i.operand_slots)
    free(i.code)
    if i.group != NULL:
        for k in range(i.group.n_operands):
            free(<void *>i.group.operands[k].strides)
        free(<void *>i.group.shape)
        free(i.group.operands)
        for k in range(i.group.n_steps):
            free(i.group.steps[k].parts)
        free(i.group.steps)
        free(i.group)


cdef int link_group(Instr *i, spec) except -1:
    cdef tpf_group *g = <tpf_group *>calloc(1, sizeof(tpf_group))
    cdef int64_t *numbers
    cdef int k, d
    cdef tpf_group_operand *o
    shape, row, block, block_bytes, n_blocks, operands, steps, work, grain = spec
    if g == NULL:
        raise MemoryError()
    i.group = g
    numbers = <int64_t *>malloc((len(shape) + 1) * sizeof(int64_t))
    g.shape = numbers
    g.operands = <tpf_group_operand *>calloc(len(operands) + 1, sizeof(tpf_group_operand))
    g.steps = <tpf_group_step *>calloc(len(steps) + 1, sizeof(tpf_group_step))
    i.operand_slots = <int *>malloc((len(operands) + 1) * sizeof(int))
    if g.shape == NULL or g.operands == NULL or g.steps == NULL or i.operand_slots == NULL:
        raise MemoryError()
    g.ndim = len(shape)
    g.size = 1
    for d in range(g.ndim):
        numbers[d] = shape[d]
        g.size *= numbers[d]
    g.block, g.block_bytes, g.n_blocks, g.work, g.grain = block, block_bytes, n_blocks, work, grain
    g.row = row
    if row > block:
        g.chunks = (row - 1) // TPF_SUM_CHUNK + 1
    if g.n_blocks * g.block_bytes > TPF_GROUP_BYTES or len(operands) > TPF_GROUP_OPERANDS:
        raise errors.PlanError("[plan] a group is larger than its blocks.")
    for kind, number, itemsize, slot, strides in operands:
        o = &g.operands[g.n_operands]
        o.kind, o.block, o.itemsize = kind, number, itemsize
        i.operand_slots[g.n_operands] = slot
        g.n_operands += 1
        if strides is not None:
            numbers = <int64_t *>malloc((len(strides) + 1) * sizeof(int64_t))
            if numbers == NULL:
                raise MemoryError()
            for d in range(len(strides)):
                numbers[d] = strides[d]
            o.strides = numbers
    for spec in steps:
        g.n_steps += 1
        link_step(g, &g.steps[g.n_steps - 1], spec)
    return 0


cdef int link_step(tpf_group *g, tpf_group_step *s, spec) except -1:
    cdef int op, dtype, to
    op, dtype, to, s.y, s.a, s.b, s.c, s.per_row = spec
    if op == STRETCH:
        s.itemsize = dtype
    elif op == OP_ASTYPE:
        s.cast = kernels.cast[dtype][to]
    elif op < TPF_N_ELEMENTWISE:
        s.loop = kernels.loop[op][dtype]
        if s.loop == NULL:
            raise errors.PlanError(f"[plan] {tpf_op_name[op].decode()} has no loop for {dtype_name(dtype)}.")
    elif g.chunks == 0:
        s.reduce = kernels.reduce[op - OP_SUM][dtype]
    else:
        g.n_sums += 1
        if g.n_sums > TPF_GROUP_SUMS:
            raise errors.PlanError("[plan] a group has more sums than it may.")
        s.sum = kernels.sum_add[dtype - TPF_FLOAT32]
        s.is_mean, s.dtype = op == OP_MEAN, dtype
        s.parts = <double *>malloc(g.size // g.row * g.chunks * sizeof(double))
        if s.parts == NULL:
            raise MemoryError()
    return 0


cdef int link_scalars(Instr *i, spec) except -1:
    """spec: (instruction, y, a, b, c or -1, op, dtype, to) of each."""
    cdef tpf_scalar *s
    cdef tpf_scalar_more *more
    i.code = <tpf_scalar *>calloc(2 * len(spec) + 1, sizeof(tpf_scalar))
    if i.code == NULL:
        raise MemoryError()
    s = i.code
    for code, y, a, b, c, op, dtype, to in spec:
        s.op, s.y, s.a, s.b = code, y, a, b
        s += 1
        if code < 2 or c >= 0:
            more = <tpf_scalar_more *>s
            more.c = c if c >= 0 else 0
            if code == 0:
                more.function = <void (*)() noexcept>kernels.loop[<int>op][<int>dtype]
            elif code == 1:
                more.function = <void (*)() noexcept>kernels.cast[<int>dtype][<int>to]
            s += 1
    i.n_code = s - i.code
    return 0


cdef bint is_followed(object inputs) except -1:
    """Is a recording under way, or does an input require grad, so that a run has to be recorded op by op?"""
    cdef ThreadState *ts = thread_state()
    cdef Tensor t
    if ts.flags & T_TAPE:
        return True
    if ts.flags & T_GRAD:
        for t in inputs:
            if t.node != NULL and t.node.flags & E_GRAD:
                return True
    return False


cdef list written_to(list targets, list outputs):
    """The outputs of a run elsewhere, in the tensors or arrays that were given for them."""
    cdef Tensor t, y
    cdef list there = []
    if targets is None:
        return outputs
    for t, y in zip(targets, outputs):
        there.append(op_move(y, device_of(t.v)))
    for t, y in zip(targets, there):
        if t.v.buf.foreign == BORROWED:
            copy_into(t.v, y.v)
        else:
            t.assign(y)
    return targets


cdef class Runner:
    """What calls a plan: the way from its arguments to a run that is nothing but C where they are plain tensors."""
    cdef list idle               # Executables that no run uses now
    cdef int n_inputs
    cdef int64_t flags_seen      # flags_moved when captured tensors were last looked at
    cdef bint away               # a tensor that it captured is on a device
    cdef int plain               # 1: tensors in order, one tensor as result; 2: tensors in order; 0: neither

    cdef list replay(self, object inputs, list targets):
        """The outputs of a run, which has an arena of its own; written into targets where there are some."""
        self.check_flags()
        if is_followed(inputs):
            return self._followed(inputs)
        if self.away or any_tensor_away(inputs):
            return written_to(targets, self._elsewhere(inputs))
        cdef int flags = thread_state().flags
        if flags & T_STEPS:
            return replayed(self, inputs, targets)
        if not flags & T_NAN:
            return self.run_once(inputs, targets, False)
        try:
            return self.run_once(inputs, targets, True)
        except Tripped:
            self._trace(inputs)  # raises, unless what went in was not finite either
        return self.run_once(inputs, targets, False)

    cdef inline list run_once(self, object inputs, list targets, bint look):
        cdef Executable executable = self.taken()
        try:
            return executable.run(inputs, targets, look)
        finally:
            self.idle.append(executable)

    cdef inline Executable taken(self):
        """An executable that no other run uses, to be given back to `idle`."""
        self.check_flags()
        return self.idle.pop() if len(self.idle) else self._link()

    cdef inline int check_flags(self) except -1:
        if self.flags_seen != flags_moved:
            self._check_flags()
            self.away = self._is_away()
            self.flags_seen = flags_moved
        return 0

    def __call__(self, *args, **kwargs):
        """The result for these arguments, in fresh tensors."""
        if self.plain and len(args) == self.n_inputs and not kwargs:
            for x in args:
                if type(x) is not Tensor:
                    break
            else:
                return self.arranged(self.replay(args, None))
        return self._result(self.replay(self._bound(args, kwargs), None))

    def _prepare(self, executable, int n_inputs, int plain):
        """The first executable (None where captured tensors are on a device), and which arguments need no other
        look."""
        self.away = executable is None
        self.idle = [] if self.away else [executable]
        self.n_inputs, self.plain, self.flags_seen = n_inputs, plain, flags_moved

    def _over(self, inputs, each, n):
        """The outputs of n runs; see Executable.run_over."""
        cdef ThreadState *ts = thread_state()
        cdef double start = step_begins(ts)
        cdef Executable executable = self.taken()
        try:
            outputs = executable.run_over(inputs, each, n)
        finally:
            self.idle.append(executable)
        step_of_plan(ts, start, self, outputs, n)
        return outputs

    def _replay(self, inputs):
        """The outputs of a run, a list."""
        return self.replay(inputs, None)

    cdef object arranged(self, list outputs):
        return outputs[0] if self.plain == 1 else self._result(outputs)


cdef class Bound:
    """A plan with its arguments and the places of its results, looked at once: what `Plan.bind` makes."""
    cdef Runner plan
    cdef list inputs
    cdef list targets            # tensors; of an array a tensor over its memory
    cdef object out

    def __init__(self, Runner plan not None, list inputs not None, list targets, out):
        self.plan, self.inputs, self.targets, self.out = plan, inputs, targets, out

    def __call__(self):
        """Replay; the results in fresh tensors, or what `out` was."""
        cdef Tensor t
        if self.targets is None:
            return self.plan.arranged(self.plan.replay(self.inputs, None))
        for t in self.targets:
            check_write(t, "plan")
        if is_followed(self.inputs):
            for t in self.targets:
                if t.v.buf.foreign:
                    raise errors.PlanError("[plan] what happens is recorded, and a recording cannot write to an array "
                                           "of another library. Give tensors as out, or inputs that require no grad.")
            for t, y in zip(self.targets, self.plan.replay(self.inputs, None)):
                t.assign(y)
        else:
            self.plan.replay(self.inputs, self.targets)
        return self.out
