/* sum, mean, max, min, argmax, argmin, count of what is not 0, sum without NaN and Euclidean norm of (outer, n, inner)
   over n.

   The result's bits depend on n and the values alone: not on outer, inner, vectors, threads or level.
   - A float sum has one tree (reduce_tree.h): chunks of TPF_R_CHUNK elements, joined by halves at the largest
     power of two of chunks; in a chunk TPF_R_LANES double lanes, element i in lane i % TPF_R_LANES in ascending
     order, joined by halves. A lane starts at 0, so it is never -0, and an unfilled one may be added
     or left out. float32 is rounded once, at the end, after the division of a mean.
   - Everything else is exact, whatever the order: integers wrap, and floats are compared as integer keys
     in their order, -0 below 0. A NaN has the highest key, for min too, so it wins without a branch.
     argmax and argmin take -0 and 0 for equal; the first of equals wins.
   A NaN that comes out is always the same NaN. Memory is aligned for its type.

   This file includes itself once per dtype with TPF_R_DT set. */
#ifndef TPF_R_DT

#include <math.h>
#include <string.h>

#define TPF_R_CHUNK 4096
#define TPF_R_LANES 16
#define TPF_R_SUM_WIDTH 128          /* most columns taken at once: lanes and partial results stay in L1 */
#define TPF_R_EXACT_WIDTH 1024       /* the same where columns have one lane */
#define TPF_R_AHEAD 4                /* rows of a block of columns fetched ahead: each is on another page */
#define TPF_R_SEARCH 256             /* values of which argmax first looks for the best, then for its position */
#define TPF_R_PIECES 64              /* most parts that one reduction is cut into for threads */
#define TPF_R_PARTS 2048             /* most partial results of them: some 32 KiB of the stack */
#define TPF_R_PARALLEL (192 << 10)   /* bytes of input from which threads that are awake pay */
#define TPF_R_WAKES (1 << 20)        /* and from which it pays to wake them */
#define TPF_R_GRAIN (64 << 10)       /* bytes of input that a thread takes at a time */

#if defined(__GNUC__)
typedef int32_t __attribute__((may_alias)) tpf_f32_bits;
typedef int64_t __attribute__((may_alias)) tpf_f64_bits;
#else
typedef int32_t tpf_f32_bits;
typedef int64_t tpf_f64_bits;
#endif

/* Up to 5 times the speed where rows are a multiple of a page apart. */
TPF_INLINE void tpf_r_prefetch(const void *p, int64_t bytes) {
#if defined(__GNUC__)
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)p + i);
#else
    (void)p, (void)bytes;
#endif
}

/* Where the second part of n > TPF_R_CHUNK begins: the largest power of two of chunks below n. */
static int64_t tpf_r_split(int64_t n) {
    int64_t half = TPF_R_CHUNK;
    while (half < n - half) half *= 2;
    return half;
}

/* Bits of a float -> an integer in the same order (down: the reverse); any NaN -> the largest. By masks, not
   branches, which GCC does not vectorise here. */
TPF_INLINE int32_t tpf_r_up_f32(int32_t s) {
    int32_t negative = -(int32_t)(s < 0), nan = -(int32_t)((s & INT32_MAX) > 0x7f800000);
    return ((s ^ (negative & INT32_MAX)) & ~nan) | (nan & INT32_MAX);
}
TPF_INLINE int32_t tpf_r_down_f32(int32_t s) {
    int32_t negative = -(int32_t)(s < 0), nan = -(int32_t)((s & INT32_MAX) > 0x7f800000);
    return (~(s ^ (negative & INT32_MAX)) & ~nan) | (nan & INT32_MAX);
}
TPF_INLINE int64_t tpf_r_up_f64(int64_t s) {
    int64_t negative = -(int64_t)(s < 0), nan = -(int64_t)((s & INT64_MAX) > 0x7ff0000000000000);
    return ((s ^ (negative & INT64_MAX)) & ~nan) | (nan & INT64_MAX);
}
TPF_INLINE int64_t tpf_r_down_f64(int64_t s) {
    int64_t negative = -(int64_t)(s < 0), nan = -(int64_t)((s & INT64_MAX) > 0x7ff0000000000000);
    return (~(s ^ (negative & INT64_MAX)) & ~nan) | (nan & INT64_MAX);
}
/* For argmax and argmin: -0 is 0. */
TPF_INLINE int32_t tpf_r_tie_f32(int32_t s) { return tpf_r_up_f32(s & -(int32_t)(s != INT32_MIN)); }
TPF_INLINE int64_t tpf_r_tie_f64(int64_t s) { return tpf_r_up_f64(s & -(int64_t)(s != INT64_MIN)); }
TPF_INLINE int32_t tpf_r_down_tie_f32(int32_t s) { return tpf_r_down_f32(s & -(int32_t)(s != INT32_MIN)); }
TPF_INLINE int64_t tpf_r_down_tie_f64(int64_t s) { return tpf_r_down_f64(s & -(int64_t)(s != INT64_MIN)); }
/* Back to the bits of a float. */
TPF_INLINE int32_t tpf_r_unup_f32(int32_t k) { return k == INT32_MAX ? 0x7fc00000 : k < 0 ? k ^ INT32_MAX : k; }
TPF_INLINE int64_t tpf_r_unup_f64(int64_t k) {
    return k == INT64_MAX ? 0x7ff8000000000000 : k < 0 ? k ^ INT64_MAX : k;
}
TPF_INLINE int32_t tpf_r_undown_f32(int32_t k) { return tpf_r_unup_f32(k == INT32_MAX ? k : ~k); }
TPF_INLINE int64_t tpf_r_undown_f64(int64_t k) { return tpf_r_unup_f64(k == INT64_MAX ? k : ~k); }

enum { TPF_R_PLAIN, TPF_R_MEAN, TPF_R_ROOT };
TPF_INLINE double tpf_r_finish(double sum, int64_t n, int as) {
    if (as == TPF_R_MEAN) sum /= (double)n;
    if (as == TPF_R_ROOT) sum = sqrt(sum);
    return sum == sum ? sum : (double)NAN;
}

/* The bits of the first n of 16 floats, 0 for the others, from mask + 16 - n on. */
static const uint32_t tpf_r_mask_f32[32] = {
    ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
#define TPF_R_ONES UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX
static const uint64_t tpf_r_mask_f64[32] = {TPF_R_ONES, TPF_R_ONES, TPF_R_ONES, TPF_R_ONES};

#define TPF_R_KIND_SUM 0
#define TPF_R_KIND_MAX 1
#define TPF_R_KIND_MIN 2
#define TPF_R_KIND_ARGMAX 3
#define TPF_R_KIND_ARGMIN 4
#define TPF_R_KIND_COUNT 5
#define TPF_R_KIND_NANSUM 6
#define TPF_R_KIND_NORM 7
#define TPF_R_SAME(x) (x)
#define TPF_R_FLIP(x) (~(x))

/* TYPE: of the values, BITS: as they are compared; ACC: of a lane, SUM: of the whole sum, RESULT: its dtype;
   KEY: of the order, INDEX: of argmax inside a chunk, no narrower than KEY and best of its size;
   UP, DOWN, TIE, DOWN_TIE: value -> key for max, min, argmax, argmin; UNUP, UNDOWN: key -> value. */
#define TPF_R_DT u8
#define TPF_R_TYPE uint8_t
#define TPF_R_BITS uint8_t
#define TPF_R_ACC uint32_t /* one chunk fits */
#define TPF_R_SUM uint64_t
#define TPF_R_RESULT int64_t
#define TPF_R_KEY uint8_t
#define TPF_R_INDEX int32_t
#define TPF_R_LOWEST 0
#define TPF_R_UP TPF_R_SAME
#define TPF_R_DOWN TPF_R_FLIP
#define TPF_R_TIE TPF_R_SAME
#define TPF_R_DOWN_TIE TPF_R_FLIP
#define TPF_R_UNUP TPF_R_SAME
#define TPF_R_UNDOWN TPF_R_FLIP
#include "reduce.h"

#define TPF_R_DT i32
#define TPF_R_TYPE int32_t
#define TPF_R_BITS int32_t
#define TPF_R_ACC uint64_t
#define TPF_R_SUM uint64_t
#define TPF_R_RESULT int64_t
#define TPF_R_KEY int32_t
#define TPF_R_INDEX int32_t
#define TPF_R_LOWEST INT32_MIN
#define TPF_R_UP TPF_R_SAME
#define TPF_R_DOWN TPF_R_FLIP
#define TPF_R_TIE TPF_R_SAME
#define TPF_R_DOWN_TIE TPF_R_FLIP
#define TPF_R_UNUP TPF_R_SAME
#define TPF_R_UNDOWN TPF_R_FLIP
#include "reduce.h"

#define TPF_R_DT i64
#define TPF_R_TYPE int64_t
#define TPF_R_BITS int64_t
#define TPF_R_ACC uint64_t
#define TPF_R_SUM uint64_t
#define TPF_R_RESULT int64_t
#define TPF_R_KEY int64_t
#define TPF_R_INDEX int64_t
#define TPF_R_LOWEST INT64_MIN
#define TPF_R_UP TPF_R_SAME
#define TPF_R_DOWN TPF_R_FLIP
#define TPF_R_TIE TPF_R_SAME
#define TPF_R_DOWN_TIE TPF_R_FLIP
#define TPF_R_UNUP TPF_R_SAME
#define TPF_R_UNDOWN TPF_R_FLIP
#include "reduce.h"

#define TPF_R_DT f32
#define TPF_R_TYPE float
#define TPF_R_BITS tpf_f32_bits
#define TPF_R_ACC double
#define TPF_R_SUM double
#define TPF_R_RESULT float
#define TPF_R_KEY int32_t
#define TPF_R_INDEX int32_t
#define TPF_R_LOWEST INT32_MIN
#define TPF_R_UP tpf_r_up_f32
#define TPF_R_DOWN tpf_r_down_f32
#define TPF_R_TIE tpf_r_tie_f32
#define TPF_R_DOWN_TIE tpf_r_down_tie_f32
#define TPF_R_UNUP tpf_r_unup_f32
#define TPF_R_UNDOWN tpf_r_undown_f32
#define TPF_R_MASK_TYPE uint32_t
#define TPF_R_MASK tpf_r_mask_f32
#define TPF_R_NAN INT32_MAX
#include "reduce.h"

#define TPF_R_DT f64
#define TPF_R_TYPE double
#define TPF_R_BITS tpf_f64_bits
#define TPF_R_ACC double
#define TPF_R_SUM double
#define TPF_R_RESULT double
#define TPF_R_KEY int64_t
#define TPF_R_INDEX int64_t
#define TPF_R_LOWEST INT64_MIN
#define TPF_R_UP tpf_r_up_f64
#define TPF_R_DOWN tpf_r_down_f64
#define TPF_R_TIE tpf_r_tie_f64
#define TPF_R_DOWN_TIE tpf_r_down_tie_f64
#define TPF_R_UNUP tpf_r_unup_f64
#define TPF_R_UNDOWN tpf_r_undown_f64
#define TPF_R_MASK_TYPE uint64_t
#define TPF_R_MASK tpf_r_mask_f64
#define TPF_R_NAN INT64_MAX
#include "reduce.h"

#define TPF_R_ENTRY(op, dt, of, as)                                                                 \
    static void tpf_##op##_##dt(void *y, const void *x, int64_t outer, int64_t n, int64_t inner) { \
        tpf_r_##of##_##dt##_all(y, x, outer, n, inner, as);                                      \
    }
#define TPF_R_ENTRIES(op)                  \
    TPF_R_ENTRY(op, u8, op, TPF_R_PLAIN)   \
    TPF_R_ENTRY(op, i32, op, TPF_R_PLAIN)  \
    TPF_R_ENTRY(op, i64, op, TPF_R_PLAIN)  \
    TPF_R_ENTRY(op, f32, op, TPF_R_PLAIN)  \
    TPF_R_ENTRY(op, f64, op, TPF_R_PLAIN)
TPF_R_ENTRIES(sum)
TPF_R_ENTRIES(max)
TPF_R_ENTRIES(min)
TPF_R_ENTRIES(argmax)
TPF_R_ENTRIES(argmin)
TPF_R_ENTRIES(count)
TPF_R_ENTRY(mean, f32, sum, TPF_R_MEAN)
TPF_R_ENTRY(mean, f64, sum, TPF_R_MEAN)
TPF_R_ENTRY(nansum, f32, nansum, TPF_R_PLAIN)
TPF_R_ENTRY(nansum, f64, nansum, TPF_R_PLAIN)
TPF_R_ENTRY(norm, f32, norm, TPF_R_ROOT)
TPF_R_ENTRY(norm, f64, norm, TPF_R_ROOT)

#define TPF_R_ROW(op) {op##_u8, op##_u8, op##_i32, op##_i64, op##_f32, op##_f64}
#define TPF_REDUCE_TABLE { \
    [TPF_SUM] = TPF_R_ROW(tpf_sum), \
    [TPF_MEAN] = {[TPF_FLOAT32] = tpf_mean_f32, [TPF_FLOAT64] = tpf_mean_f64}, \
    [TPF_MAX] = TPF_R_ROW(tpf_max), \
    [TPF_MIN] = TPF_R_ROW(tpf_min), \
    [TPF_ARGMAX] = TPF_R_ROW(tpf_argmax), \
    [TPF_ARGMIN] = TPF_R_ROW(tpf_argmin), \
    [TPF_COUNT_NONZERO] = TPF_R_ROW(tpf_count), \
    [TPF_NANSUM] = {[TPF_FLOAT32] = tpf_nansum_f32, [TPF_FLOAT64] = tpf_nansum_f64}, \
    [TPF_NORM] = {[TPF_FLOAT32] = tpf_norm_f32, [TPF_FLOAT64] = tpf_norm_f64}, \
}

#else /* ---- one dtype: instances of reduce_tree.h ---- */

#define TPF_R_KIND TPF_R_KIND_SUM
#define TPF_R_OP sum
#include "reduce_tree.h"

#define TPF_R_KIND TPF_R_KIND_MAX
#define TPF_R_OP max
#include "reduce_tree.h"

#define TPF_R_KIND TPF_R_KIND_MIN
#define TPF_R_OP min
#include "reduce_tree.h"

#define TPF_R_KIND TPF_R_KIND_ARGMAX
#define TPF_R_OP argmax
#include "reduce_tree.h"

#define TPF_R_KIND TPF_R_KIND_ARGMIN
#define TPF_R_OP argmin
#include "reduce_tree.h"

#define TPF_R_KIND TPF_R_KIND_COUNT
#define TPF_R_OP count
#include "reduce_tree.h"

#ifdef TPF_R_MASK
#define TPF_R_KIND TPF_R_KIND_NANSUM
#define TPF_R_OP nansum
#include "reduce_tree.h"

#define TPF_R_KIND TPF_R_KIND_NORM
#define TPF_R_OP norm
#include "reduce_tree.h"
#endif

#undef TPF_R_DT
#undef TPF_R_TYPE
#undef TPF_R_BITS
#undef TPF_R_ACC
#undef TPF_R_SUM
#undef TPF_R_RESULT
#undef TPF_R_KEY
#undef TPF_R_INDEX
#undef TPF_R_LOWEST
#undef TPF_R_UP
#undef TPF_R_DOWN
#undef TPF_R_TIE
#undef TPF_R_DOWN_TIE
#undef TPF_R_UNUP
#undef TPF_R_UNDOWN
#undef TPF_R_MASK_TYPE
#undef TPF_R_MASK
#undef TPF_R_NAN

#endif
