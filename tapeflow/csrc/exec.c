/* The block executor. Loops read and write contiguous memory of one dtype only; here operands that are
   strided, broadcast or of another dtype are packed, a block at a time, into buffers that stay in L1.
   Operands that are contiguous already are read where they are. The result is always contiguous, and
   may be the memory of an operand that is contiguous and of the result's dtype. */
#include "exec.h"

#include <string.h>

enum { DIRECT, CONSTANT, PACKED };

typedef union {
    int64_t align;
    char bytes[TPF_BLOCK * 8];
} block;

static int is_constant(const tpf_call *call, const tpf_operand *op) {
    for (int d = 0; d < call->ndim; d++)
        if (call->shape[d] > 1 && op->strides[d] != 0) return 0;
    return 1;
}

static int is_contiguous(const tpf_call *call, const tpf_operand *op) {
    int64_t expected = tpf_itemsize(op->dtype);
    for (int d = call->ndim - 1; d >= 0; d--) {
        if (call->shape[d] > 1 && op->strides[d] != expected) return 0;
        expected *= call->shape[d];
    }
    return 1;
}

static int classify(const tpf_call *call, const tpf_operand *op) {
    if (call->size > 1 && is_constant(call, op)) return CONSTANT;
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
    char *out = call->out + start * call->out_itemsize;
    if (call->loop)
        call->loop(out, p[0], p[1], p[2], count);
    else
        call->vjp(out, p[0], p[1], p[2], p[3], p[4], count, call->acc);
}

static void run_range(void *ctx, int64_t begin, int64_t end) {
    const tpf_call *call = ctx;
    block blocks[5];
    int kind[5];
    const void *p[5] = {0};
    int all_direct = 1;
    for (int i = 0; i < call->nops; i++) {
        const tpf_operand *op = &call->ops[i];
        if (!op->data) continue;
        kind[i] = classify(call, op);
        if (kind[i] != DIRECT) all_direct = 0;
        if (kind[i] == CONSTANT) {
            int64_t most = end - begin < TPF_BLOCK ? end - begin : TPF_BLOCK;
            block one;
            const char *value = op->data;
            if (op->dtype != op->want) {
                call->kernels->cast[op->dtype][op->want](one.bytes, op->data, 1);
                value = one.bytes;
            }
            tpf_fill(blocks[i].bytes, value, tpf_itemsize(op->want), most);
            p[i] = blocks[i].bytes;
        }
    }
    int64_t step = all_direct ? end - begin : TPF_BLOCK;
    for (int64_t start = begin; start < end; start += step) {
        int64_t count = end - start < step ? end - start : step;
        for (int i = 0; i < call->nops; i++) {
            const tpf_operand *op = &call->ops[i];
            if (!op->data || kind[i] == CONSTANT) continue;
            if (kind[i] == DIRECT) {
                p[i] = op->data + start * tpf_itemsize(op->dtype);
            } else {
                load(call, op, start, count, &blocks[i]);
                p[i] = blocks[i].bytes;
            }
        }
        apply(call, start, count, p);
    }
}

void tpf_execute(const tpf_call *call) {
    if (call->size == 0) return;
    if (call->size >= TPF_PARALLEL_ELEMENTS)
        tpf_parallel(run_range, (void *)call, call->size, TPF_GRAIN);
    else
        run_range((void *)call, 0, call->size);
}
