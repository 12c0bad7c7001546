/* Counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
   numbers: as easy as 1, 2, 3", SC 2011).

   Element e of draw d under key s depends on (s, d, e) alone: the counter is (e // 4, d), or
   (e // 2, d) for 64-bit elements, which take two words each, the low one first. So a shorter draw is
   a prefix of a longer one, and threads, blocks and devices cannot change a bit. uniform takes the top
   24 or 53 bits; normal is the exact midpoint quantile by polynomials (normal_table.h), segments
   chosen by integer bits, with + - * only: no library function, no division, no fma. */
#include "normal_table.h"

#define TPF_RNG_COUNTERS 256                    /* one chunk: 1024 words, in L1 */
#define TPF_RNG_WORDS (4 * TPF_RNG_COUNTERS)
#define TPF_RNG_GRAIN 64                        /* chunks a thread takes: about 100 us */

/* (double)v with one rounding, in operations that vectorise below AVX-512 too: the high half under
   2**84, the low half under 2**52. */
TPF_INLINE double tpf_double_of_u64(uint64_t v) {
    double high = tpf_from_bits_f64((v >> 32) | 0x4530000000000000u);
    double low = tpf_from_bits_f64((v & 0xffffffffu) | 0x4330000000000000u);
    return (high - 0x1.00000001p84) + low;
}

/* One 32-bit word in each 64-bit lane, so that one multiplication gives both halves of the product
   (3 times as fast as what compilers make of 32-bit lanes). Without vector types a lane is a scalar. */
#if defined(__GNUC__) && defined(__AVX512F__)
#define TPF_RNG_LANES 8
#define TPF_RNG_MUL(a, b) ((tpf_rng_lanes)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined(__GNUC__) && defined(__AVX2__)
#define TPF_RNG_LANES 4
#define TPF_RNG_MUL(a, b) ((tpf_rng_lanes)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#elif defined(__GNUC__) && defined(__SSE2__)
#define TPF_RNG_LANES 2
#define TPF_RNG_MUL(a, b) ((tpf_rng_lanes)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#else
#define TPF_RNG_LANES 1
#define TPF_RNG_MUL(a, b) ((uint64_t)(uint32_t)(a) * (uint32_t)(b))
#endif
#if TPF_RNG_LANES > 1
#include <immintrin.h>
typedef uint64_t tpf_rng_lanes __attribute__((vector_size(8 * TPF_RNG_LANES)));
#else
typedef uint64_t tpf_rng_lanes;
#endif

/* Two 64-bit halves (low words first) of each of the counters first .. first + count, in pairs.
   count <= TPF_RNG_COUNTERS, of which first is a multiple: the high half of the index is one for all. */
static void tpf_philox(uint64_t *out, uint64_t first, int64_t count, uint64_t key, uint64_t draw) {
    const tpf_rng_lanes zero = {0}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
    uint64_t step[TPF_RNG_LANES], x[TPF_RNG_COUNTERS], y[TPF_RNG_COUNTERS];
    tpf_rng_lanes index;
    for (int l = 0; l < TPF_RNG_LANES; l++) step[l] = (uint32_t)first + (uint32_t)l;
    memcpy(&index, step, sizeof index);
    for (int64_t i = 0; i < count; i += TPF_RNG_LANES, index += TPF_RNG_LANES) {
        tpf_rng_lanes c0 = index, c1 = zero + (first >> 32), c2 = zero + draw, c3 = zero + (draw >> 32);
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) { /* the high half of a lane may hold anything */
            tpf_rng_lanes p0 = TPF_RNG_MUL(m0, c0), p1 = TPF_RNG_MUL(m1, c2);
            c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
            c1 = p1;
            c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
            c3 = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        c0 = (c0 & 0xffffffffu) | (c1 << 32);
        c2 = (c2 & 0xffffffffu) | (c3 << 32);
        memcpy(x + i, &c0, sizeof c0);
        memcpy(y + i, &c2, sizeof c2);
    }
    TPF_IVDEP for (int64_t i = 0; i < count; i++) {
        out[2 * i] = x[i];
        out[2 * i + 1] = y[i];
    }
}

TPF_INLINE float tpf_normal_one_f32(uint32_t w) {
    uint32_t v = (w ^ (uint32_t)((int32_t)w >> 31)) & 0x7fffffffu, u = 2 * v + 1;
    /* v & ~(v >> 1) keeps the leading bit and cannot round up to the next power of two. */
    uint32_t e = tpf_bits_f32((float)(int32_t)(v & ~(v >> 1))) >> 23;
    uint32_t j = e < 126 ? 0 : e - 126; /* u in [2**j, 2**(j + 1)) */
    uint32_t m = u << (31 - j);
    uint32_t s = 4 * j + ((m >> 29) & 3);
    float x = (float)(int32_t)(0x20000000u - (m & 0x1fffffffu)) * 0x1p-29f;
    float z = tpf_normal_f32_table[5][s];
    z = z * x + tpf_normal_f32_table[4][s];
    z = z * x + tpf_normal_f32_table[3][s];
    z = z * x + tpf_normal_f32_table[2][s];
    z = z * x + tpf_normal_f32_table[1][s];
    z = z * x + tpf_normal_f32_table[0][s];
    return tpf_from_bits_f32(tpf_bits_f32(z) ^ (~w & 0x80000000u));
}

TPF_INLINE double tpf_normal_one_f64(uint64_t w) {
    uint64_t v = (w ^ (0 - (w >> 63))) & 0x7fffffffffffffffu, u = 2 * v + 1;
    uint64_t j = (tpf_bits_f64(tpf_double_of_u64(u & ~(u >> 1))) >> 52) - 1023;
    uint64_t m = (u << (63 - j)) & 0x7fffffffffffffffu;
    double x = tpf_double_of_u64(0x8000000000000000u - m) * 0x1p-63;
    double z = tpf_normal_f64_table[16][j];
    for (int k = 15; k >= 0; k--) z = z * x + tpf_normal_f64_table[k][j];
    return tpf_from_bits_f64(tpf_bits_f64(z) ^ (~w & 0x8000000000000000u));
}

/* One conversion of a chunk per kind: n elements from the pairs w of tpf_philox. */
#define TPF_WORDS_32(name, type, expr)                                              \
    static void tpf_words_##name(void *out, const uint64_t *w, int64_t n) {         \
        type *y = out;                                                              \
        uint32_t v[TPF_RNG_WORDS];                                                  \
        TPF_IVDEP for (int64_t i = 0; i < (n + 1) / 2; i++) {                       \
            v[2 * i] = (uint32_t)w[i];                                              \
            v[2 * i + 1] = (uint32_t)(w[i] >> 32);                                  \
        }                                                                           \
        TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = expr;                      \
    }
#define TPF_WORDS_64(name, type, expr)                                              \
    static void tpf_words_##name(void *out, const uint64_t *w, int64_t n) {         \
        type *y = out;                                                              \
        TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = expr;                      \
    }
TPF_WORDS_32(uniform_f32, float, (float)(int32_t)(v[i] >> 8) * 0x1p-24f)
TPF_WORDS_64(uniform_f64, double, tpf_double_of_u64(w[i] >> 11) * 0x1p-53)
TPF_WORDS_32(normal_f32, float, tpf_normal_one_f32(v[i]))
TPF_WORDS_64(normal_f64, double, tpf_normal_one_f64(w[i]))
TPF_WORDS_32(bits32, uint32_t, v[i])
TPF_WORDS_64(bits64, uint64_t, w[i])
#undef TPF_WORDS_32
#undef TPF_WORDS_64

typedef struct {
    char *y;
    int64_t n, chunk, itemsize; /* chunk: elements made of TPF_RNG_WORDS words */
    uint64_t key, draw;
    void (*convert)(void *, const uint64_t *, int64_t);
} tpf_random_job;

static void tpf_random_range(void *ctx, int64_t begin, int64_t end) {
    const tpf_random_job *job = ctx;
    uint64_t words[TPF_RNG_WORDS / 2];
    const int64_t per_counter = job->chunk / TPF_RNG_COUNTERS;
    for (int64_t c = begin; c < end; c++) {
        int64_t start = c * job->chunk, n = job->n - start;
        if (n > job->chunk) n = job->chunk;
        tpf_philox(words, (uint64_t)c * TPF_RNG_COUNTERS, (n + per_counter - 1) / per_counter,
                   job->key, job->draw);
        job->convert(job->y + start * job->itemsize, words, n);
    }
}

static void tpf_random_fill(void *y, int64_t n, uint64_t key, uint64_t draw, int words_each,
                            int64_t itemsize, void (*convert)(void *, const uint64_t *, int64_t)) {
    int64_t chunk = TPF_RNG_WORDS / words_each;
    tpf_random_job job = {y, n, chunk, itemsize, key, draw, convert};
    tpf_parallel(tpf_random_range, &job, (n + chunk - 1) / chunk, TPF_RNG_GRAIN);
}

#define TPF_RANDOM(name, words_each, itemsize)                                       \
    static void tpf_##name(void *y, int64_t n, uint64_t key, uint64_t draw) {        \
        tpf_random_fill(y, n, key, draw, words_each, itemsize, tpf_words_##name);    \
    }
TPF_RANDOM(uniform_f32, 1, 4)
TPF_RANDOM(uniform_f64, 2, 8)
TPF_RANDOM(normal_f32, 1, 4)
TPF_RANDOM(normal_f64, 2, 8)
TPF_RANDOM(bits32, 1, 4) /* uint32 */
TPF_RANDOM(bits64, 2, 8) /* uint64 */
#undef TPF_RANDOM
