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
    int acc;
    int nops, ndim;
    const int64_t *shape;
    int64_t size;
    char *out; /* C-contiguous */
    int out_itemsize;
    tpf_operand ops[5];
} tpf_call;

/* Elements from which a call is worth a second thread (some 100 us), and a thread's share. */
#define TPF_PARALLEL_ELEMENTS (1 << 18)
#define TPF_GRAIN (1 << 16)

void tpf_execute(const tpf_call *call);

/* Size in bytes of a dtype. */
TPF_INLINE int tpf_itemsize(int dtype) {
    static const signed char sizes[TPF_NDTYPES] = {1, 1, 4, 8, 4, 8};
    return sizes[dtype];
}

#endif
