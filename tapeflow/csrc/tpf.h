/* The types that the core, the generated loops and the hand-written kernels share.

   No kernel allocates from Python, touches a Python object or keeps state; every pointer is to
   C-contiguous memory unless strides are given. Kernels of one instruction-set level are reached
   through one tpf_kernels table; level.c fills it, once per level. */
#ifndef TPF_H
#define TPF_H

#include <stddef.h>
#include <stdint.h>

/* The order is the promotion order: the wider or higher kind has the larger code. */
enum { TPF_BOOL, TPF_UINT8, TPF_INT32, TPF_INT64, TPF_FLOAT32, TPF_FLOAT64, TPF_NDTYPES };

/* Elements that one block of the elementwise executor holds: operands and result stay in L1. */
#define TPF_BLOCK 1024
#define TPF_MAX_NDIM 64

#if defined(_MSC_VER)
#define TPF_THREAD_LOCAL __declspec(thread)
#define TPF_INLINE static __forceinline
#define TPF_NOINLINE static __declspec(noinline)
#define TPF_IVDEP __pragma(loop(ivdep))
#define TPF_LANE_LOOP TPF_IVDEP
#else
#define TPF_THREAD_LOCAL __thread
#define TPF_INLINE static inline __attribute__((always_inline))
#define TPF_NOINLINE static __attribute__((noinline))
#define TPF_IVDEP _Pragma("GCC ivdep")
/* Of few iterations: peeled into single elements before it is looked at, a loop would not become vectors. */
#define TPF_LANE_LOOP _Pragma("GCC unroll 1") TPF_IVDEP
#endif

/* Elementwise. y may be the very same memory as an operand (never a shifted overlap). */
typedef void (*tpf_loop)(void *y, const void *a, const void *b, const void *c, int64_t n);
/* One partial: gx = (acc ? gx : nothing) + the cotangent g pushed through it. gx may be g. */
typedef void (*tpf_vjp)(void *gx, const void *g, const void *a, const void *b, const void *c,
                        const void *y, int64_t n, int acc);
typedef void (*tpf_cast)(void *y, const void *x, int64_t n);
/* x is (outer, n, inner), y is (outer, inner). n may be 0 where the reduction has an identity. */
typedef void (*tpf_reduce)(void *y, const void *x, int64_t outer, int64_t n, int64_t inner);
/* The same: (sum of (x - mean)^2) / divisor, or NaN where that is not above 0; `root`: the square root of it. */
typedef void (*tpf_variance)(void *y, const void *x, int64_t outer, int64_t n, int64_t inner, double divisor, int root);
/* A scan of x, (outer, n, inner), along n into y, from the end if `reverse`. a: the factors of a recurrence; where:
   NULL, or what gets the position of each maximum. None is empty. */
typedef struct {
    void *y;
    int64_t *where;
    const void *x, *a;
    int64_t outer, n, inner;
    int reverse;
} tpf_scan_call;
typedef void (*tpf_scan)(const tpf_scan_call *call);
/* x is (rows, n); y is (rows, n), or (rows,) for logsumexp. */
typedef void (*tpf_rows)(void *y, const void *x, int64_t rows, int64_t n);
/* gx (rows, n) from the cotangent g of y: the rules of softmax and log_softmax. */
typedef void (*tpf_rows_vjp)(void *gx, const void *g, const void *y, int64_t rows, int64_t n);
/* loss: one value, the mean of logsumexp(x[i]) - x[i, labels[i]]; stats: (rows, 2), each row's maximum and
   1 / sum(exp(x - maximum)), so that backward has softmax's bits. Returns -1, or the first row whose label is
   outside 0..n-1 (nothing is then promised of loss and stats). */
typedef int64_t (*tpf_cross_entropy)(void *loss, void *stats, const void *x, const int64_t *labels,
                                     int64_t rows, int64_t n);
/* gx[i, j] = smul(*g / rows, exp(x[i, j] - maximum) * inverse - (j == labels[i])), in this order of operations. */
typedef void (*tpf_cross_entropy_vjp)(void *gx, const void *g, const void *x, const void *stats,
                                      const int64_t *labels, int64_t rows, int64_t n);
/* y[o, idx[k], :] += src[o, k, :] for k ascending; y is (outer, n, inner), src (outer, m, inner). */
typedef void (*tpf_scatter_add)(void *y, const int64_t *idx, const void *src, int64_t outer,
                                int64_t n, int64_t m, int64_t inner);
/* y (m, n) = a (m, k) @ b (k, n); element strides of a and b; k ascending for each element of y. */
typedef void (*tpf_matmul)(void *y, const void *a, const void *b, int64_t m, int64_t n, int64_t k,
                           int64_t a_row, int64_t a_col, int64_t b_row, int64_t b_col);
/* y (n) = a (n, k) times x, a's rows `step` elements apart; across: a (k, n), rows of n. See matvec.h. */
typedef void (*tpf_matvec)(void *y, const void *a, const void *x, int64_t n, int64_t k, int64_t step, int64_t x_step,
                           int across);
/* y (outer, inner) = the sum over n of a (outer, n, inner) * b, slices a_step and b_step elements apart. */
typedef void (*tpf_dot)(void *y, const void *a, const void *b, int64_t outer, int64_t n, int64_t inner, int64_t a_step,
                        int64_t b_step);
/* y (rows, n): x normalised, times weight, plus bias (or NULL); stats (rows, 2): mean and scale. See norm.h. */
typedef void (*tpf_layer_norm)(void *y, void *stats, const void *x, const void *weight, const void *bias, int64_t rows,
                               int64_t n, double eps, int centred);
typedef void (*tpf_layer_norm_vjp)(void *gx, void *product, const void *g, const void *x, const void *stats,
                                   const void *weight, int64_t rows, int64_t n, int centred);
/* Philox 4x32-10 with key and counter (element // 4 or // 2, draw): see random.h. */
typedef void (*tpf_random)(void *y, int64_t n, uint64_t key, uint64_t draw);

enum {
    TPF_SUM, TPF_MEAN, TPF_MAX, TPF_MIN, TPF_ARGMAX, TPF_ARGMIN, TPF_COUNT_NONZERO, TPF_NANSUM, TPF_NORM, TPF_NREDUCE
};
enum { TPF_RUNNING_SUM, TPF_RUNNING_PRODUCT, TPF_RUNNING_MAX, TPF_RUNNING_LOGSUMEXP, TPF_RECURRENCE, TPF_NSCAN };

/* ---- threads.c: one pool for the process; safe to call with or without the GIL ---- */
typedef void (*tpf_range)(void *ctx, int64_t begin, int64_t end);
/* Calls fn over 0..n in chunks of at most grain, on the free threads of the pool and the caller.
   Runs inline when n <= grain, when there is one thread, or when the pool is busy. */
void tpf_parallel(tpf_range fn, void *ctx, int64_t n, int64_t grain);
/* The same for work of some 10 to 100 us, which is not worth waking a thread for: only those that are awake share it. */
void tpf_parallel_light(tpf_range fn, void *ctx, int64_t n, int64_t grain);
#define TPF_SHARE(work, wakes) ((work) < (wakes) ? tpf_parallel_light : tpf_parallel)
void tpf_set_num_threads(int n);
int tpf_get_num_threads(void);

double tpf_clock(void); /* seconds from some start */

/* ---- copy.c: any strides (bytes, may be 0 or negative), any overlap of reads ---- */
/* dst contiguous <- elements start .. start+count (C order) of the strided source. */
void tpf_pack(void *dst, const char *src, int itemsize, int ndim, const int64_t *shape,
              const int64_t *strides, int64_t start, int64_t count);
/* The whole strided destination <- the whole strided source, same shape. No overlap. */
void tpf_copy(char *dst, const int64_t *dst_strides, const char *src, const int64_t *src_strides,
              int itemsize, int ndim, const int64_t *shape);
void tpf_fill(void *dst, const void *value, int itemsize, int64_t n);
/* y (outer, m, inner) <- x (outer, n, inner) at idx (checked, 0..n-1); inner in bytes. */
void tpf_take(void *y, const void *x, const int64_t *idx, int64_t outer, int64_t n, int64_t m,
              int64_t inner_bytes);

/* ---- gather.c: positions = steps along axes + wrapped indices times their strides ---- */
typedef struct {
    const char *data;
    int64_t strides[TPF_MAX_NDIM]; /* bytes, along the axes of the places */
    int64_t extent, times;
    int dtype;
} tpf_index;

typedef struct {
    int ndim, nidx;
    int64_t shape[TPF_MAX_NDIM], coef[TPF_MAX_NDIM];
    tpf_index index[TPF_MAX_NDIM];
} tpf_places;

/* The same places with as few axes as will do. Before any of the following. */
void tpf_places_simplify(tpf_places *p);
/* Positions begin .. end (C order) of the places into out. Returns whether an index was out of range. */
int tpf_place(const tpf_places *p, int64_t *out, int64_t begin, int64_t end);
/* All of them, with threads. */
int tpf_place_all(const tpf_places *p, int64_t *out, int64_t size);
/* y (size, inner) <- x (any, inner) at the places; returns whether an index was out of range. */
int tpf_gather(void *y, const void *x, const tpf_places *p, int64_t size, int64_t inner_bytes);
/* y (outer, n, inner) at positions at <- v, whose rows for each position are step bytes apart (0: the same). */
void tpf_put(void *y, const int64_t *at, const void *v, int64_t outer, int64_t n, int64_t m, int64_t inner_bytes,
             int64_t step);
/* x[idx], y[idx] = value: of vectors of n. Negative indices count from the end; 0, and nothing is written, where one is
   out of range. */
int tpf_take_at(void *y, const void *x, int64_t n, const int64_t *idx, int64_t m, int itemsize);
int tpf_fill_at(void *y, int64_t n, const int64_t *idx, int64_t m, const void *value, int itemsize);
void tpf_fill_where(void *y, const uint8_t *mask, int64_t n, const void *value, int itemsize); /* at most 8 bytes each */
int64_t tpf_count_true(const uint8_t *mask, int64_t n);
/* The positions of the `count` elements that are true. */
void tpf_true_positions(int64_t *out, const uint8_t *mask, int64_t n, int64_t count);
/* y <- the elements of x where mask is true, count of them. */
void tpf_compress(void *y, const void *x, const uint8_t *mask, int64_t n, int64_t count, int itemsize);
/* y (outer, total, inner) <- each element along the middle axis of x (outer, n, inner) counts[i] times. */
void tpf_repeat(void *y, const void *x, const int64_t *counts, int64_t outer, int64_t n, int64_t inner_bytes);
void tpf_unravel(int64_t *out, const int64_t *at, int64_t count, int ndim, const int64_t *shape);

#define TPF_LANES 32 /* programs of 0-d values that run side by side (scalar.h) */

/* One instruction of a program of 0-d values (scalar.h). Some take a second one, which holds what does not fit. */
typedef struct {
    uint32_t op;
    uint32_t y, a, b; /* cells of eight bytes */
} tpf_scalar;
typedef struct {
    uint32_t c; /* the cell of a third operand */
    uint32_t unused;
    void (*function)(void); /* the loop or cast of an instruction without a label of its own */
} tpf_scalar_more;
typedef void (*tpf_machine)(void *cells, const tpf_scalar *code, const tpf_scalar *end);
/* ---- order.c: stable, NaN last; rows of at most 64 elements ---- */
/* order (rows, first) <- the indices of the first elements of each row of x (rows, n). */
void tpf_order_rows(int64_t *order, const void *x, int itemsize, int dtype, int64_t rows, int64_t n, int64_t first,
                    int descending);
void tpf_sort_rows(void *y, const void *x, int itemsize, int dtype, int64_t rows, int64_t n, int descending);
int tpf_has_negative_zero(const void *x, int dtype, int64_t n);
/* y (m) <- how many of the n elements of table, in order, come before each x; those equal to it too, for right. int64,
   float32 or float64. */
void tpf_search(int64_t *y, const void *table, int64_t n, const void *x, int64_t m, int dtype, int right);

#include "optable.h" /* generated: opcodes and the per-op facts */

/* lane[i % 16] += x[i], for a chunk that begins at a multiple of 16, or = where it is the first. */
typedef void (*tpf_sum_add)(double *lane, const void *x, int64_t n, int first);

typedef struct {
    const char *level;
    tpf_loop loop[TPF_N_ELEMENTWISE][TPF_NDTYPES]; /* by the compute dtype; NULL: not defined */
    tpf_vjp vjp[TPF_N_ELEMENTWISE][3][2];          /* float32, float64; NULL unless TPF_VJP_LOOP */
    tpf_cast cast[TPF_NDTYPES][TPF_NDTYPES];       /* [from][to] */
    tpf_reduce reduce[TPF_NREDUCE][TPF_NDTYPES];   /* by the dtype of x */
    tpf_sum_add sum_add[2];                        /* float32, float64 */
    tpf_variance variance[2];
    tpf_scan scan[TPF_NSCAN][TPF_NDTYPES];         /* by the dtype of x; NULL: not defined */
    tpf_rows softmax[2], log_softmax[2], logsumexp[2];
    tpf_rows_vjp softmax_vjp[2], log_softmax_vjp[2];
    tpf_cross_entropy cross_entropy[2];
    tpf_cross_entropy_vjp cross_entropy_vjp[2];
    tpf_scatter_add scatter_add[TPF_NDTYPES];
    tpf_matmul matmul[TPF_NDTYPES];
    tpf_matvec matvec[2];
    tpf_dot dot[2];
    tpf_layer_norm layer_norm[2];
    tpf_layer_norm_vjp layer_norm_vjp[2];
    tpf_random uniform[2], normal[2]; /* [0, 1); standard normal */
    tpf_random bits32, bits64;
    tpf_machine run_scalars; /* cells of 8 bytes */
    tpf_machine run_lanes;   /* of 8 * TPF_LANES bytes */
} tpf_kernels;

#endif
