/* Order of short rows, and binary search. Stable; NaN last in either direction; zeros are equal. */
#include "item.h"
#include "tpf.h"

#include <string.h>

#define SHORT 64      /* the longest row */
#define TOGETHER 16   /* searches that go on side by side, so that their cache misses overlap */
#define PARALLEL 65536

/* A float as an integer in the same order. */
static int64_t key_f64(double x) {
    int64_t bits;
    x += 0.0; /* -0.0 becomes 0.0 */
    memcpy(&bits, &x, 8);
    return bits ^ (int64_t)((uint64_t)(bits >> 63) >> 1);
}

static int64_t key_of(const char *x, int dtype, int descending) {
    int64_t key;
    double real;
    float single;
    int32_t word;
    switch (dtype) {
    case TPF_BOOL:
    case TPF_UINT8: key = *(const uint8_t *)x; break;
    case TPF_INT32: memcpy(&word, x, 4), key = word; break;
    case TPF_INT64: memcpy(&key, x, 8); break;
    default:
        if (dtype == TPF_FLOAT32)
            memcpy(&single, x, 4), real = single;
        else
            memcpy(&real, x, 8);
        if (real != real) return INT64_MAX;
        key = key_f64(real);
    }
    return descending ? ~key : key;
}

/* The stable order of a row by insertion. */
static void order_row(int64_t *order, const char *x, int itemsize, int dtype, int64_t n, int descending) {
    int64_t key[SHORT];
    for (int64_t i = 0; i < n; i++) {
        int64_t k = key_of(x + i * itemsize, dtype, descending), j = i;
        for (; j > 0 && key[j - 1] > k; j--) key[j] = key[j - 1], order[j] = order[j - 1];
        key[j] = k;
        order[j] = i;
    }
}

void tpf_order_rows(int64_t *order, const void *x, int itemsize, int dtype, int64_t rows, int64_t n, int64_t first,
                    int descending) {
    int64_t row[SHORT];
    for (int64_t r = 0; r < rows; r++) {
        order_row(row, (const char *)x + r * n * itemsize, itemsize, dtype, n, descending);
        memcpy(order + r * first, row, (size_t)first * sizeof(int64_t));
    }
}

void tpf_sort_rows(void *y, const void *x, int itemsize, int dtype, int64_t rows, int64_t n, int descending) {
    int64_t order[SHORT];
    for (int64_t r = 0; r < rows; r++) {
        const char *from = (const char *)x + r * n * itemsize;
        char *to = (char *)y + r * n * itemsize;
        order_row(order, from, itemsize, dtype, n, descending);
        for (int64_t i = 0; i < n; i++) memcpy(to + i * itemsize, from + order[i] * itemsize, (size_t)itemsize);
    }
}

int tpf_has_negative_zero(const void *x, int dtype, int64_t n) {
    int found = 0;
    if (dtype == TPF_FLOAT32) {
        const uint32_t *p = x;
        for (int64_t i = 0; i < n; i++) found |= p[i] == 0x80000000u;
    } else if (dtype == TPF_FLOAT64) {
        const uint64_t *p = x;
        for (int64_t i = 0; i < n; i++) found |= p[i] == 0x8000000000000000u;
    }
    return found;
}

typedef struct {
    int64_t *y;
    const void *table, *x;
    int64_t n;
    int right;
} search_job;

/* Whether an element comes before a value: a < b, NaN being the largest. */
#define LESS_I(a, b) ((a) < (b))
#define LESS_F(a, b) (((a) < (b)) | (((b) != (b)) & ((a) == (a))))

#define SEARCH(name, type, LESS)                                                              \
    static void name(void *ctx, int64_t begin, int64_t end) {                                 \
        const search_job *job = ctx;                                                          \
        const type *table = job->table, *x = job->x;                                          \
        for (; begin < end; begin += TOGETHER) {                                              \
            int64_t m = end - begin < TOGETHER ? end - begin : TOGETHER;                      \
            int64_t at[TOGETHER] = {0};                                                       \
            for (int64_t size = job->n; size > 0;) {                                          \
                int64_t half = size > 1 ? size / 2 : 1;                                       \
                for (int64_t k = 0; k < m; k++) {                                             \
                    type e = table[at[k] + half - 1], v = x[begin + k];                       \
                    int before = job->right ? !LESS(v, e) : LESS(e, v);                       \
                    at[k] += before ? half : 0;                                               \
                }                                                                             \
                size -= half;                                                                 \
            }                                                                                 \
            for (int64_t k = 0; k < m; k++) job->y[begin + k] = at[k];                        \
        }                                                                                     \
    }

SEARCH(search_i64, int64_t, LESS_I)
SEARCH(search_f32, float, LESS_F)
SEARCH(search_f64, double, LESS_F)

void tpf_search(int64_t *y, const void *table, int64_t n, const void *x, int64_t m, int dtype, int right) {
    search_job job = {y, table, x, n, right};
    tpf_range search = dtype == TPF_INT64 ? search_i64 : dtype == TPF_FLOAT32 ? search_f32 : search_f64;
    if (m < PARALLEL / 8)
        search(&job, 0, m);
    else
        tpf_parallel(search, &job, m, (m / 16 + TOGETHER - 1) / TOGETHER * TOGETHER);
}
