/* The block executor. Loops read and write contiguous memory of one dtype only; here operands that are
   strided, broadcast or of another dtype are packed, a block at a time, into buffers that stay in L1.
   One element that stands for many in a row (a scalar, a column beside a matrix) fills its buffer once.
   Operands that are contiguous already are read where they are. The result is always contiguous, and
   may be the memory of an operand that is contiguous and of the result's dtype. */
#include "exec.h"

#include <math.h>
#include <string.h>

#define LEAST_RUN 128 /* elements of one value from which blocks end where it changes */

enum { DIRECT, REPEATED, PACKED };

typedef union {
    int64_t align;
    char bytes[TPF_BLOCK * 8];
} block;

/* The elements at the end of every axis for which the operand has one value. */
static int64_t run_of(const tpf_call *call, const tpf_operand *op) {
    int64_t run = 1;
    for (int d = call->ndim - 1; d >= 0 && (call->shape[d] == 1 || op->strides[d] == 0); d--) run *= call->shape[d];
    return run;
}

static int is_contiguous(const tpf_call *call, const tpf_operand *op) {
    int64_t expected = tpf_itemsize(op->dtype);
    for (int d = call->ndim - 1; d >= 0; d--) {
        if (call->shape[d] > 1 && op->strides[d] != expected) return 0;
        expected *= call->shape[d];
    }
    return 1;
}

static int classify(const tpf_call *call, const tpf_operand *op, int64_t run) {
    if (call->size > 1 && (run >= LEAST_RUN || run == call->size)) return REPEATED;
    if (op->dtype != op->want || !is_contiguous(call, op)) return PACKED;
    return DIRECT;
}

/* Elements start .. start+count of an operand, in the dtype that the loop wants, into dst. */
static void load(const tpf_call *call, const tpf_operand *op, int64_t start, int64_t count, block *dst) {
    int size = tpf_itemsize(op->dtype);
    if (op->dtype == op->want) {
        tpf_pack(dst->bytes, op->data, size, call->ndim, call->shape, op->strides, start, count);
        return;
    }
    block raw;
    const char *src = raw.bytes;
    if (is_contiguous(call, op) && (uintptr_t)op->data % size == 0)
        src = op->data + start * size;
    else
        tpf_pack(raw.bytes, op->data, size, call->ndim, call->shape, op->strides, start, count);
    call->kernels->cast[op->dtype][op->want](dst->bytes, src, count);
}

static void apply(const tpf_call *call, int64_t start, int64_t count, const void *const *p) {
    char *out = call->out + (start - call->first) * call->out_itemsize;
    if (call->loop)
        call->loop(out, p[0], p[1], p[2], count);
    else
        call->vjp(out, p[0], p[1], p[2], p[3], p[4], count, call->acc);
    if (call->also) call->also(out, p[0], p[1], p[2], p[3], p[4], count, 1);
}

static void run_range(void *ctx, int64_t begin, int64_t end) {
    const tpf_call *call = ctx;
    block blocks[5];
    int kind[5];
    int64_t run[5], left[5]; /* of a REPEATED operand: its run, and what is left of it */
    const void *p[5] = {0};
    int64_t step = end - begin;
    if (call->also && step > TPF_BLOCK) step = TPF_BLOCK; /* what the first leaves is still in L1 */
    for (int i = 0; i < call->nops; i++) {
        const tpf_operand *op = &call->ops[i];
        if (!op->data) continue;
        run[i] = run_of(call, op);
        left[i] = 0;
        kind[i] = classify(call, op, run[i]);
        if (kind[i] == DIRECT) continue;
        p[i] = blocks[i].bytes;
        if (step > TPF_BLOCK) step = TPF_BLOCK;
    }
    for (int64_t start = begin, count; start < end; start += count) {
        count = end - start < step ? end - start : step;
        for (int i = 0; i < call->nops; i++) {
            const tpf_operand *op = &call->ops[i];
            if (!op->data || kind[i] != REPEATED) continue;
            if (left[i] == 0) {
                block one;
                left[i] = run[i] - start % run[i];
                load(call, op, start, 1, &one);
                tpf_fill(blocks[i].bytes, one.bytes, tpf_itemsize(op->want), left[i] < step ? left[i] : step);
            }
            if (count > left[i]) count = left[i];
        }
        for (int i = 0; i < call->nops; i++) {
            const tpf_operand *op = &call->ops[i];
            if (!op->data) continue;
            if (kind[i] == REPEATED)
                left[i] -= count;
            else if (kind[i] == DIRECT)
                p[i] = op->data + start * tpf_itemsize(op->dtype);
            else
                load(call, op, start, count, &blocks[i]);
        }
        apply(call, start, count, p);
    }
}

/* Bytes of the widest operand. */
static int64_t bytes_of(const tpf_call *call) {
    int widest = call->out_itemsize;
    for (int i = 0; i < call->nops; i++)
        if (call->ops[i].data && tpf_itemsize(call->ops[i].want) > widest) widest = tpf_itemsize(call->ops[i].want);
    return call->size * widest;
}

void tpf_execute(const tpf_call *call) {
    if (call->size == 0) return;
    int64_t bytes = bytes_of(call);
    if (bytes >= TPF_PARALLEL_BYTES)
        TPF_SHARE(bytes, TPF_WAKES_BYTES)(run_range, (void *)call, call->size, TPF_GRAIN);
    else
        run_range((void *)call, 0, call->size);
}

typedef struct {
    const tpf_call *call;
    double *parts;
    int64_t n, chunks;
} sums_job;

/* Chunks begin .. end of all sums. */
static void sum_chunks(void *ctx, int64_t begin, int64_t end) {
    const sums_job *job = ctx;
    const tpf_kernels *kernels = job->call->kernels;
    tpf_call piece = *job->call;
    double values[TPF_SUM_CHUNK];
    piece.out = (char *)values;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t row = unit / job->chunks, at = (unit - row * job->chunks) * TPF_SUM_CHUNK;
        int64_t count = job->n - at < TPF_SUM_CHUNK ? job->n - at : TPF_SUM_CHUNK;
        piece.first = row * job->n + at;
        run_range(&piece, piece.first, piece.first + count);
        kernels->reduce[TPF_SUM][TPF_FLOAT64](job->parts + unit, values, 1, count, 1);
    }
}

double tpf_join_parts(double *parts, int64_t n) {
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t p = 0; p + step < n; p += 2 * step) parts[p] += parts[p + step];
    return parts[0] == parts[0] ? parts[0] : (double)NAN;
}

void tpf_execute_sums(const tpf_call *call, double *y, int64_t n, double *parts) {
    int64_t rows = call->size / n;
    sums_job job = {call, parts, n, TPF_SUM_PARTS(n)};
    int64_t bytes = bytes_of(call);
    if (bytes >= TPF_PARALLEL_BYTES)
        TPF_SHARE(bytes, TPF_WAKES_BYTES)(sum_chunks, &job, rows * job.chunks, TPF_GRAIN / TPF_SUM_CHUNK);
    else
        sum_chunks(&job, 0, rows * job.chunks);
    for (int64_t row = 0; row < rows; row++, parts += job.chunks) y[row] = tpf_join_parts(parts, job.chunks);
}
