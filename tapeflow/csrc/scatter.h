/* tpf_scatter_add: y[o, idx[k], :] += src[o, k, :] for k ascending, in the dtype of y.

   Deterministic for every number of threads: work is split over parts of y that one thread owns (outer,
   columns of inner, or rows), and each goes through k in order, so every element of y sees the same
   additions in the same order. Integers wrap. This file includes itself once per dtype. */
#ifndef TPF_SC_T

#define TPF_SC_PARALLEL 65536 /* elements of src from which threads that are awake pay */
#define TPF_SC_WAKES 1048576  /* and from which it pays to wake them */
#define TPF_SC_COLUMNS 128    /* columns a thread takes at a time; narrower pieces cost what a thread gains */
#define TPF_SC_ROW 16         /* elements of a row from which a thread looks through all places for its own rows */

typedef struct {
    void *y;
    const int64_t *idx;
    const void *src;
    int64_t outer, n, m, inner, parts;
} tpf_scatter_job;

#define TPF_SC_T uint8_t
#define TPF_SC(name) name##_u8
#include "scatter.h"
#undef TPF_SC_T
#undef TPF_SC
#define TPF_SC_T uint32_t
#define TPF_SC(name) name##_i32
#include "scatter.h"
#undef TPF_SC_T
#undef TPF_SC
#define TPF_SC_T uint64_t
#define TPF_SC(name) name##_i64
#include "scatter.h"
#undef TPF_SC_T
#undef TPF_SC
#define TPF_SC_T float
#define TPF_SC(name) name##_f32
#include "scatter.h"
#undef TPF_SC_T
#undef TPF_SC
#define TPF_SC_T double
#define TPF_SC(name) name##_f64
#include "scatter.h"
#undef TPF_SC_T
#undef TPF_SC

#else /* ---- the body, once per dtype ---- */

/* Columns from .. to of every row. */
TPF_INLINE void TPF_SC(tpf_sc_rows)(TPF_SC_T *y, const int64_t *idx, const TPF_SC_T *src, int64_t m,
                                    int64_t inner, int64_t from, int64_t to) {
    const int64_t count = to - from;
    for (int64_t k = 0; k < m; k++) {
        TPF_SC_T *to_row = y + idx[k] * inner + from;
        const TPF_SC_T *from_row = src + k * inner + from;
        TPF_IVDEP for (int64_t j = 0; j < count; j++) to_row[j] = (TPF_SC_T)(to_row[j] + from_row[j]);
    }
}

static void TPF_SC(tpf_sc_outer)(void *ctx, int64_t begin, int64_t end) {
    const tpf_scatter_job *job = ctx;
    const int64_t *idx = job->idx;
    for (int64_t o = begin; o < end; o++) {
        TPF_SC_T *y = (TPF_SC_T *)job->y + o * job->n * job->inner;
        const TPF_SC_T *src = (const TPF_SC_T *)job->src + o * job->m * job->inner;
        if (job->inner == 1)
            for (int64_t k = 0; k < job->m; k++) y[idx[k]] = (TPF_SC_T)(y[idx[k]] + src[k]);
        else
            TPF_SC(tpf_sc_rows)(y, idx, src, job->m, job->inner, 0, job->inner);
    }
}

static void TPF_SC(tpf_sc_columns)(void *ctx, int64_t begin, int64_t end) {
    const tpf_scatter_job *job = ctx;
    for (int64_t o = 0; o < job->outer; o++)
        TPF_SC(tpf_sc_rows)((TPF_SC_T *)job->y + o * job->n * job->inner, job->idx,
                            (const TPF_SC_T *)job->src + o * job->m * job->inner, job->m, job->inner,
                            begin, end);
}

/* Every so manieth row of y, from row `begin` on. */
static void TPF_SC(tpf_sc_share)(void *ctx, int64_t begin, int64_t end) {
    const tpf_scatter_job *job = ctx;
    const int64_t inner = job->inner;
    for (int64_t o = 0; o < job->outer; o++) {
        TPF_SC_T *y = (TPF_SC_T *)job->y + o * job->n * inner;
        const TPF_SC_T *src = (const TPF_SC_T *)job->src + o * job->m * inner;
        for (int64_t k = 0; k < job->m; k++) {
            const int64_t part = job->idx[k] % job->parts;
            if (part < begin || part >= end) continue;
            TPF_SC(tpf_sc_rows)(y, job->idx + k, src + k * inner, 1, inner, 0, inner);
        }
    }
}

static void TPF_SC(tpf_scatter_add)(void *y, const int64_t *idx, const void *src, int64_t outer,
                                    int64_t n, int64_t m, int64_t inner) {
    tpf_scatter_job job = {y, idx, src, outer, n, m, inner, tpf_get_num_threads()};
    const int64_t work = outer * m * inner;
    if (work < TPF_SC_PARALLEL || (outer < 8 && inner < TPF_SC_ROW))
        TPF_SC(tpf_sc_outer)(&job, 0, outer);
    else if (outer >= 8)
        TPF_SHARE(work, TPF_SC_WAKES)(TPF_SC(tpf_sc_outer), &job, outer, (outer + 15) / 16);
    else if (inner < 2 * TPF_SC_COLUMNS)
        TPF_SHARE(work, TPF_SC_WAKES)(TPF_SC(tpf_sc_share), &job, job.parts, 1);
    else
        TPF_SHARE(work, TPF_SC_WAKES)(TPF_SC(tpf_sc_columns), &job, inner,
                                      inner < 4 * TPF_SC_COLUMNS ? TPF_SC_COLUMNS : (inner / 4 + 31) / 32 * 32);
}

#endif
