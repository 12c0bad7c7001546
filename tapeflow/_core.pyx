"""The engine: storage, tensors, the tape, eager ops and the backward walk.

One module, in sections (core/*.pxi), lower ones first: storage knows no tape, the tape knows no op, elementwise and
shape ops record through the tape, rules are written in ops, the walk applies rules. Public functions come last.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport (PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDED_RO, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release,
                             PyObject_GetBuffer)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_Clear, PyErr_Occurred
from cpython.object cimport Py_EQ, Py_GT, Py_LE, Py_LT, Py_NE, PyObject
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.math cimport ceil as c_ceil
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

import contextlib
import copy
import math
import operator
import os
import threading
from time import perf_counter

import numpy

from tapeflow import _blas, errors
from tapeflow import _draws as draws
from tapeflow import _epoch as epoch

include "optable.pxi"

cdef extern from "Python.h":
    void *PyEval_GetFrame()
    Py_ssize_t Py_REFCNT(object)
    enum:
        PyBUF_WRITE
    object PyMemoryView_FromMemory(char *, Py_ssize_t, int)
    bint PyFloat_CheckExact(object)
    bint PyLong_CheckExact(object)
    bint PyBool_Check(object)
    bint PySlice_Check(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    double PyFloat_AS_DOUBLE(object)
    double PyFloat_AsDouble(object)  # -1.0 with an error set is looked at by the caller
    int PySlice_Unpack(object, Py_ssize_t *, Py_ssize_t *, Py_ssize_t *) except -1
    Py_ssize_t PySlice_AdjustIndices(Py_ssize_t, Py_ssize_t *, Py_ssize_t *, Py_ssize_t)
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef PyObject *(*newfunc)(PyTypeObject *, PyObject *, PyObject *)
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
        inquiry tp_clear
        newfunc tp_new

cdef extern from "platform.h" nogil:
    enum:
        TPF_BOOL
        TPF_UINT8
        TPF_INT32
        TPF_INT64
        TPF_FLOAT32
        TPF_FLOAT64
        TPF_MAX_NDIM
    const bint POOLED "TPF_POOLED"
    const bint ASSERTING "TPF_ASSERTING"
    void ensure "tpf_ensure"(bint, const char *)
    ctypedef void (*tpf_loop)(void *, const void *, const void *, const void *, int64_t) noexcept nogil
    ctypedef void (*tpf_vjp)(void *, const void *, const void *, const void *, const void *, const void *, int64_t,
                            int) noexcept nogil
    ctypedef void (*tpf_cast)(void *, const void *, int64_t) noexcept nogil
    ctypedef void (*tpf_reduce)(void *, const void *, int64_t, int64_t, int64_t) noexcept nogil
    ctypedef void (*tpf_sum_add)(double *, const void *, int64_t, int) noexcept nogil
    ctypedef struct tpf_scan_call:
        void *y
        int64_t *where
        const void *x
        const void *a
        int64_t outer, n, inner
        int reverse
    ctypedef void (*tpf_scan)(const tpf_scan_call *) noexcept nogil
    ctypedef void (*tpf_rows)(void *, const void *, int64_t, int64_t) noexcept nogil
    ctypedef void (*tpf_rows_vjp)(void *, const void *, const void *, int64_t, int64_t) noexcept nogil
    ctypedef void (*tpf_scatter_add)(void *, const int64_t *, const void *, int64_t, int64_t, int64_t,
                                    int64_t) noexcept nogil
    ctypedef void (*tpf_matmul)(void *, const void *, const void *, int64_t, int64_t, int64_t, int64_t, int64_t,
                               int64_t, int64_t) noexcept nogil
    ctypedef void (*tpf_range)(void *, int64_t, int64_t) noexcept nogil
    void tpf_parallel(tpf_range, void *, int64_t, int64_t)
    void tpf_parallel_light(tpf_range, void *, int64_t, int64_t)
    ctypedef void (*tpf_matvec)(void *, const void *, const void *, int64_t, int64_t, int64_t, int64_t,
                                int) noexcept nogil
    ctypedef void (*tpf_dot)(void *, const void *, const void *, int64_t, int64_t, int64_t, int64_t,
                            int64_t) noexcept nogil
    ctypedef void (*tpf_random)(void *, int64_t, uint64_t, uint64_t) noexcept nogil
    ctypedef struct tpf_scalar:
        uint32_t op, y, a, b
    ctypedef struct tpf_scalar_more:
        uint32_t c
        void (*function)() noexcept
    ctypedef void (*tpf_machine)(void *, const tpf_scalar *, const tpf_scalar *) noexcept nogil
    enum:
        TPF_LANES
    ctypedef struct tpf_kernels:
        const char *level
        tpf_loop loop[32][6]
        tpf_vjp vjp[32][3][2]
        tpf_cast cast[6][6]
        tpf_reduce reduce[9][6]
        tpf_sum_add sum_add[2]
        void (*variance[2])(void *, const void *, int64_t, int64_t, int64_t, double, int) noexcept nogil
        tpf_scan scan[5][6]
        tpf_rows softmax[2]
        tpf_rows log_softmax[2]
        tpf_rows logsumexp[2]
        tpf_rows_vjp softmax_vjp[2]
        tpf_rows_vjp log_softmax_vjp[2]
        int64_t (*cross_entropy[2])(void *, void *, const void *, const int64_t *, int64_t, int64_t) noexcept nogil
        void (*cross_entropy_vjp[2])(void *, const void *, const void *, const void *, const int64_t *, int64_t,
                                     int64_t) noexcept nogil
        tpf_scatter_add scatter_add[6]
        tpf_matmul matmul[6]
        tpf_matvec matvec[2]
        tpf_dot dot[2]
        void (*layer_norm[2])(void *, void *, const void *, const void *, const void *, int64_t, int64_t, double,
                              bint) noexcept nogil
        void (*layer_norm_vjp[2])(void *, void *, const void *, const void *, const void *, const void *, int64_t,
                                  int64_t, bint) noexcept nogil
        tpf_random uniform[2]
        tpf_random normal[2]
        tpf_random bits32
        tpf_random bits64
        tpf_machine run_scalars
        tpf_machine run_lanes
    ctypedef struct tpf_operand:
        const char *data
        const int64_t *strides
        int dtype
        int want
    ctypedef struct tpf_call:
        const tpf_kernels *kernels
        tpf_loop loop
        tpf_vjp vjp
        tpf_vjp also
        int acc, nops, ndim
        const int64_t *shape
        int64_t size
        char *out
        int64_t first
        int out_itemsize
        tpf_operand ops[5]
    void tpf_execute(const tpf_call *)
    void tpf_execute_sums(const tpf_call *, double *, int64_t, double *)
    int64_t TPF_SUM_PARTS(int64_t)
    int tpf_itemsize(int)
    void tpf_copy(char *, const int64_t *, const char *, const int64_t *, int, int, const int64_t *)
    void tpf_fill(void *, const void *, int, int64_t)
    void tpf_take(void *, const void *, const int64_t *, int64_t, int64_t, int64_t, int64_t)
    ctypedef struct tpf_index:
        const char *data
        int64_t strides[64]
        int64_t extent, times
        int dtype
    ctypedef struct tpf_places:
        int ndim, nidx
        int64_t shape[64]
        int64_t coef[64]
        tpf_index index[64]
    void tpf_places_simplify(tpf_places *)
    bint tpf_place_all(const tpf_places *, int64_t *, int64_t)
    bint tpf_gather(void *, const void *, const tpf_places *, int64_t, int64_t)
    void tpf_put(void *, const int64_t *, const void *, int64_t, int64_t, int64_t, int64_t, int64_t)
    bint tpf_take_at(void *, const void *, int64_t, const int64_t *, int64_t, int)
    bint tpf_fill_at(void *, int64_t, const int64_t *, int64_t, const void *, int)
    void tpf_fill_where(void *, const uint8_t *, int64_t, const void *, int)
    int64_t tpf_count_true(const uint8_t *, int64_t)
    void tpf_true_positions(int64_t *, const uint8_t *, int64_t, int64_t)
    void tpf_compress(void *, const void *, const uint8_t *, int64_t, int64_t, int)
    void tpf_order_rows(int64_t *, const void *, int, int, int64_t, int64_t, int64_t, int)
    void tpf_sort_rows(void *, const void *, int, int, int64_t, int64_t, int)
    bint tpf_has_negative_zero(const void *, int, int64_t)
    void tpf_repeat(void *, const void *, const int64_t *, int64_t, int64_t, int64_t)
    void tpf_search(int64_t *, const void *, int64_t, const void *, int64_t, int, int)
    void tpf_unravel(int64_t *, const int64_t *, int64_t, int, const int64_t *)
    void tpf_set_num_threads(int)
    int tpf_get_num_threads()
    double tpf_clock()
    void *tpf_aligned_alloc(size_t, size_t)
    void tpf_aligned_free(void *)
    void tpf_advise_huge(void *, size_t)
    void tpf_poison(void *, size_t)
    void tpf_unpoison(void *, size_t)
    int clz64(uint64_t)
    const tpf_kernels *tpf_choose_kernels(int)
    void *tpf_get_thread()
    void tpf_set_thread(void *)

cdef extern from "plan.h" nogil:
    enum:
        TPF_GROUP_BYTES
        TPF_GROUP_OPERANDS
        TPF_GROUP_SUMS
        TPF_SUM_CHUNK
    ctypedef struct tpf_group_operand:
        int kind, block, itemsize
        char *data
        const int64_t *strides
    ctypedef struct tpf_group_step:
        tpf_loop loop
        tpf_cast cast
        tpf_reduce reduce
        tpf_sum_add sum
        int y, a, b, c, is_mean, dtype, per_row, itemsize
        double *parts
    ctypedef struct tpf_group:
        int n_operands, n_steps, n_blocks, ndim, block, block_bytes, n_sums
        int64_t row, chunks
        const int64_t *shape
        int64_t size, grain, work
        tpf_group_operand *operands
        tpf_group_step *steps
    void tpf_run_group(const tpf_group *)
    ctypedef struct tpf_lane_port:
        char *data
        int64_t cell
        int itemsize
        int each
    ctypedef struct tpf_lanes:
        tpf_machine run
        const tpf_scalar **code
        const tpf_lane_port *loads
        const tpf_lane_port *stores
        int n_code, n_loads, n_stores
        int64_t n, blocks, grain
        char **cells
    void tpf_run_over_lanes(const tpf_lanes *)

cdef enum:
    RELEASE_GIL = 16384          # elements from which a loop takes the 5 us that make releasing the GIL worth it
    LEAST_SUMMED = 1024          # neighbours from which a partial and the sum over them are one pass
    TINY_MATMUL = 8192           # m n k up to which our own loop beats the call of BLAS
    TINY_MATVEC = 512            # the same for a matrix and a vector
    MATVEC_ROW = 32              # elements from which a row is summed in lanes
    BATCH_PARALLEL = 1 << 19     # multiplications from which threads that are awake pay
    BATCH_AWAKE = 1 << 23        # and from which it pays to wake them
    BLAS_ALONE = 1 << 18         # m n k up to which OpenBLAS uses one thread of its own
    PIECE_WORK = 1 << 18         # multiplications of a piece of a product, at least
    PIECE_LEAST = 32             # rows or columns of one, at least
    PIECE_STEP = 16              # and a multiple of
cdef int64_t LARGEST = 0x7fffffffffffffff

# The instruction-set level: the best that the CPU has, unless TAPEFLOW_ISA asks for a lower one (v2, v3, v4).
cdef const tpf_kernels *kernels = tpf_choose_kernels(int(os.environ.get("TAPEFLOW_ISA", "v4").lstrip("v") or 4))

TABLE_HASH = TPF_TABLE_HASH.decode()
ISA_LEVEL = kernels.level.decode()

cdef object _ndarray = numpy.ndarray
cdef object _np_generic = numpy.generic
cdef object _np_bool = numpy.bool_

# The Python parts that the core calls; set once by tapeflow/__init__.py (they import this module).
cdef object _creation = None
cdef object _transforms = None
cdef object _derivatives = None
cdef object _composed = None
cdef object _ordering = None


def _freeze_tape(*args, **options):
    from tapeflow.plan import freeze_tape  # plans are imported when one is made
    return freeze_tape(*args, **options)


def bind(creation, transforms, derivatives, composed, ordering):
    """Give the core the Python modules that it calls."""
    global _creation, _transforms, _derivatives, _composed, _ordering
    _creation, _transforms, _derivatives = creation, transforms, derivatives
    _composed, _ordering = composed, ordering


cdef struct Chunk
cdef struct Cell
cdef struct Many

cdef class Tensor
cdef class Tape
cdef class Node
cdef class Program

include "core/storage.pxi"
include "core/tape.pxi"
include "core/program.pxi"
include "core/tensor.pxi"
include "core/writes.pxi"
include "core/weak.pxi"
include "core/devices.pxi"
include "core/elementwise.pxi"
include "core/shape_ops.pxi"
include "core/gather.pxi"
include "core/reduce_ops.pxi"
include "core/statistics.pxi"
include "core/scan_ops.pxi"
include "core/products.pxi"
include "core/indexing.pxi"
include "core/backward.pxi"
include "core/forward.pxi"
include "core/rules.pxi"
include "core/custom.pxi"
include "core/finite.pxi"
include "core/steps.pxi"
include "core/norm.pxi"
include "core/contract.pxi"
include "core/classes.pxi"
include "core/creation.pxi"
include "core/public.pxi"
include "core/random.pxi"
include "core/execute.pxi"
include "core/executor.pxi"
include "core/lanes.pxi"
include "core/moves.pxi"
include "core/order.pxi"
include "functions.pxi"
