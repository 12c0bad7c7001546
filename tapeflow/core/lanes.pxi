# A program of 0-d values over many at once: the code of the plan as it is, run over lanes (scalar.h, plan.c).
#
# A cell of the arena is TPF_LANES wide here, and each piece of the work has an arena of its own. Inputs are loaded into
# cells block by block, or once where they are the same for all; results are stored from cells.

cdef enum:
    LANES_STEPS = 20000000       # instructions over a block, after which Ctrl-C is looked for
    LANES_PARALLEL = 20000       # instructions over a block from which threads pay


@cython.final
cdef class LanesRun:
    """What tpf_run_over_lanes needs for one call."""
    cdef Executable of
    cdef tpf_lanes lanes
    cdef tpf_lane_port *loads
    cdef tpf_lane_port *stores
    cdef const tpf_scalar **code
    cdef tpf_scalar *copies      # instructions of their own: copies of cells
    cdef int n_copies
    cdef char **cells
    cdef list keep, results, arenas
    cdef int64_t n, n_cells, n_steps

    def __cinit__(self, Executable of, args, each, int64_t n):
        cdef int i, k
        cdef Tensor t
        cdef Instr *instr
        cdef Slot_ *s
        cdef int64_t one
        self.of, self.n, self.n_cells = of, n, of.n_cells
        self.keep, self.results, self.arenas = [], [], []
        self.loads = <tpf_lane_port *>calloc(of.n_slots + of.n_loads + of.n_once + of.n_instrs + 1,
                                             sizeof(tpf_lane_port))
        self.stores = <tpf_lane_port *>calloc(of.n_instrs + 1, sizeof(tpf_lane_port))
        self.code = <const tpf_scalar **>calloc(2 * of.n_instrs + 1, sizeof(void *))
        self.copies = <tpf_scalar *>calloc(of.n_instrs + 1, sizeof(tpf_scalar))
        if self.loads == NULL or self.stores == NULL or self.code == NULL or self.copies == NULL:
            raise MemoryError()
        for i in range(of.n_inputs):
            t = args[i]
            s = &of.slots[of.inputs[i]]
            one = t.v.shape[0] if each[i] and t.v.ndim == 1 else 1 if t.v.ndim == 0 else -1
            if t.v.dtype != s.v.dtype or one != (n if each[i] else 1):
                raise errors.PlanError(f"[plan] argument {i} is {describe(t.v)}, and the plan was frozen for "
                                       f"{describe(s.v)}{f', of which {n} were expected' if each[i] else ''}. "
                                       "Freeze it again for the new shape or dtype.")
            s.held = value_contiguous(t.v)
            s.v.data = s.held.data
            s.index = 1 if each[i] else 0
        for i in range(of.n_loads + of.n_once):
            self.load(of.loads[2 * i], of.loads[2 * i + 1])
        for i in range(of.n_instrs):
            instr = &of.instrs[i]
            if instr.kind == DO_SCALARS:
                self.add_code(instr.code, instr.n_code)
            elif instr.kind == DO_COPY and of.slots[instr.out].kind == SLOT_FRESH:
                self.store(instr.ins[0], instr.out)
            elif instr.kind == DO_COPY:
                k = self.cell_of(instr.ins[0])
                self.copies[self.n_copies].op = 2
                self.copies[self.n_copies].y = <uint32_t>(of.slots[instr.out].offset // 8)
                self.copies[self.n_copies].a = k
                self.add_code(&self.copies[self.n_copies], 1)
                self.n_copies += 1
            else:
                raise errors.PlanError("[plan] the program is not one of 0-d values alone.")

    def __dealloc__(self):
        free(self.loads)
        free(self.stores)
        free(self.code)
        free(self.copies)
        free(self.cells)

    cdef void add_code(self, const tpf_scalar *code, int64_t n) noexcept:
        self.code[2 * self.lanes.n_code], self.code[2 * self.lanes.n_code + 1] = code, code + n
        self.lanes.n_code += 1
        self.n_steps += n

    cdef void load(self, int slot, int64_t cell) noexcept:
        cdef Slot_ *s = &self.of.slots[slot]
        cdef tpf_lane_port *p = &self.loads[self.lanes.n_loads]
        p.data, p.cell, p.itemsize = s.v.data, cell, tpf_itemsize(s.v.dtype)
        p.each = s.kind == SLOT_INPUT and s.index
        self.lanes.n_loads += 1

    cdef int cell_of(self, int slot) except -1:
        """The cell that holds what a slot does; of what comes from outside one more."""
        cdef Slot_ *s = &self.of.slots[slot]
        while s.kind == SLOT_VIEW:
            slot = s.index
            s = &self.of.slots[slot]
        if s.kind == SLOT_ARENA:
            return <int>(s.offset // 8)
        self.load(slot, self.n_cells)
        self.n_cells += 1
        return <int>(self.n_cells - 1)

    cdef int store(self, int slot, int out) except -1:
        cdef Value *like = self.of.slots[out].v
        cdef Value *v
        cdef tpf_lane_port *p = &self.stores[self.lanes.n_stores]
        p.cell = self.cell_of(slot)
        v = value_new(1, &self.n, like.dtype)
        self.results.append((out, wrap(v, NULL)))
        p.data, p.itemsize = v.data, tpf_itemsize(v.dtype)
        self.lanes.n_stores += 1
        return 0

    def run(self):
        """The outputs, each of n elements."""
        cdef tpf_lanes *l = &self.lanes
        cdef int64_t blocks = (self.n + TPF_LANES - 1) // TPF_LANES
        cdef int64_t total = blocks
        cdef int64_t pieces, at, most
        cdef Value *arena
        cdef int64_t size = self.n_cells * TPF_LANES
        cdef int i
        cdef dict found = {}
        pieces = tpf_get_num_threads() if blocks * self.n_steps >= LANES_PARALLEL else 1
        if pieces > blocks:
            pieces = blocks
        self.cells = <char **>calloc(pieces + 1, sizeof(char *))
        if self.cells == NULL:
            raise MemoryError()
        for i in range(pieces):
            arena = value_new(1, &size, TPF_FLOAT64)
            self.arenas.append(wrap(arena, NULL))
            self.cells[i] = arena.data
        l.run, l.code, l.loads, l.stores, l.cells = kernels.run_lanes, self.code, self.loads, self.stores, self.cells
        most = (LANES_STEPS // (self.n_steps + 1) + 1) * pieces
        at = 0
        while at < total:
            blocks = total - at if total - at < most else most
            l.n = self.n - at * TPF_LANES if blocks == total - at else blocks * TPF_LANES
            l.blocks, l.grain = blocks, (blocks + pieces - 1) // pieces
            with nogil:
                tpf_run_over_lanes(l)
            PyErr_CheckSignals()
            for i in range(l.n_loads):
                if self.loads[i].each:
                    self.loads[i].data += l.n * self.loads[i].itemsize
            for i in range(l.n_stores):
                self.stores[i].data += l.n * self.stores[i].itemsize
            at += blocks
        self.of.runs += 1
        found = dict(self.results)
        return [found[self.of.outputs[i]] for i in range(self.of.n_outputs)]
