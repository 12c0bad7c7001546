/* The block executor: runs one elementwise loop or partial over operands of any strides and dtype. */
#ifndef TPF_EXEC_H
#define TPF_EXEC_H

#include "tpf.h"

typedef struct {
    const char *data;       /* NULL: the loop does not read this operand */
    const int64_t *strides; /* bytes, broadcast to the call's shape */
    int dtype;              /* as it is stored */
    int want;               /* as the loop reads it */
} tpf_operand;

typedef struct {
    const tpf_kernels *kernels;
    tpf_loop loop; /* exactly one of loop and vjp; operands are a b c, or g a b c y */
    tpf_vjp vjp;
    tpf_vjp also; /* NULL, or a second partial, added to the first */
    int acc;
    int nops, ndim;
    const int64_t *shape;
    int64_t size;
    char *out; /* C-contiguous */
    int64_t first; /* the element at out */
    int out_itemsize;
    tpf_operand ops[5];
} tpf_call;

/* Bytes of an operand from which a call is worth a thread that is awake, and one that has to be woken; a thread's share
   in elements. */
#define TPF_PARALLEL_BYTES (1 << 18)
#define TPF_WAKES_BYTES (1 << 21)
#define TPF_GRAIN (1 << 14)

void tpf_execute(const tpf_call *call);

/* y <- the sums of n neighbours each of what the call, a vjp of doubles without acc, would write, with the tree and
   the bits of sum (reduce.h). parts: room for TPF_SUM_PARTS(n) of each sum. What is summed is nowhere as a whole. */
#define TPF_SUM_CHUNK 4096 /* TPF_R_CHUNK */
#define TPF_SUM_PARTS(n) (((n) - 1) / TPF_SUM_CHUNK + 1)
/* Joins the parts of n chunks by halves, the tree above the chunks: the sum, with the same NaN as sum has. */
double tpf_join_parts(double *parts, int64_t n);
void tpf_execute_sums(const tpf_call *call, double *y, int64_t n, double *parts);

/* Size in bytes of a dtype. */
TPF_INLINE int tpf_itemsize(int dtype) {
    static const signed char sizes[TPF_NDTYPES] = {1, 1, 4, 8, 4, 8};
    return sizes[dtype];
}

#endif
