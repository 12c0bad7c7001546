/* The functions on integers behind the loops of ops.py: quotients, remainders, powers, bits, shifts, rounding.

   NumPy's rules, without undefined behaviour: divided by 0 anything is 0, the lowest number by -1 wraps, a shift by a
   negative number or by all the bits of the dtype leaves nothing but copies of the sign. Arithmetic that may wrap
   goes through unsigned types. Right shifts of negative numbers are assumed to copy the sign, as all compilers do. */
#ifndef TPF_INTEGER_H
#define TPF_INTEGER_H

#include <stdint.h>

#include "tpf.h"

#define TPF_BITWISE(dt, T, MASK) \
    TPF_INLINE T tpf_bitwise_and_##dt(T a, T b) { return (T)(a & b); } \
    TPF_INLINE T tpf_bitwise_or_##dt(T a, T b) { return (T)(a | b); } \
    TPF_INLINE T tpf_bitwise_xor_##dt(T a, T b) { return (T)(a ^ b); } \
    TPF_INLINE T tpf_bitwise_invert_##dt(T a) { return (T)(a ^ (T)(MASK)); }

/* U: the unsigned type in which arithmetic wraps; S: the unsigned type that tests a shift. */
#define TPF_WHOLE(dt, T, U, S, BITS) \
    TPF_INLINE T tpf_bitwise_left_shift_##dt(T a, T b) { \
        T shifted = (T)((U)a << ((S)b & (BITS - 1))); \
        return (S)b < BITS ? shifted : (T)0; \
    } \
    TPF_INLINE T tpf_bitwise_right_shift_##dt(T a, T b) { \
        T shifted = (T)(a >> ((S)b & (BITS - 1))); \
        return (S)b < BITS ? shifted : (T)(a < 0 ? -1 : 0); \
    } \
    TPF_INLINE T tpf_floor_##dt(T a) { return a; } \
    TPF_INLINE T tpf_ceil_##dt(T a) { return a; } \
    TPF_INLINE T tpf_trunc_##dt(T a) { return a; } \
    TPF_INLINE T tpf_round_##dt(T a) { return a; } \
    TPF_INLINE T tpf_remainder_##dt(T a, T b) { \
        T r = (T)((U)a - (U)tpf_floor_divide_##dt(a, b) * (U)b); \
        return b == 0 ? (T)0 : r; \
    }

TPF_BITWISE(b8, uint8_t, 1)
TPF_BITWISE(u8, uint8_t, 255)
TPF_BITWISE(i32, int32_t, -1)
TPF_BITWISE(i64, int64_t, -1)

/* Through floats, which vectorise: a quotient of numbers of at most 32 bits that is not whole does not round to a whole
   one. */
TPF_INLINE uint8_t tpf_floor_divide_u8(uint8_t a, uint8_t b) {
    float q = (float)a / (float)(b == 0 ? 1 : b);
    return b == 0 ? (uint8_t)0 : (uint8_t)(int32_t)q;
}

TPF_INLINE int32_t tpf_floor_divide_i32(int32_t a, int32_t b) {
    int plain = (b != 0) & (b != -1);
    double x = (double)a / (double)(plain ? b : 1);
    int32_t q = (int32_t)x, negated = (int32_t)(0u - (uint32_t)a);
    q -= (double)q > x;
    return plain ? q : (b == 0 ? 0 : negated);
}

TPF_INLINE int64_t tpf_floor_divide_i64(int64_t a, int64_t b) {
    int64_t d = (b == 0) | (b == -1) ? 1 : b, q = a / d, negated = (int64_t)(0u - (uint64_t)a);
    q -= (a % d != 0) & ((a < 0) != (d < 0));
    return b == -1 ? negated : (b == 0 ? 0 : q);
}

TPF_WHOLE(u8, uint8_t, uint32_t, uint8_t, 8u)
TPF_WHOLE(i32, int32_t, uint32_t, uint32_t, 32u)
TPF_WHOLE(i64, int64_t, uint64_t, uint64_t, 64u)

/* ---- loops over one divisor, one shift; powers ---- */

/* Whether all of b is one number; two that differ are mostly found at the ends. */
#define TPF_UNIFORM(dt, T) \
    static int tpf_uniform_##dt(const T *b, int64_t n) { \
        T differs = 0; \
        if (n < 8 || b[0] != b[n - 1] || b[0] != b[1]) return 0; \
        for (int64_t i = 0; i < n; i++) differs |= (T)(b[i] ^ b[0]); \
        return differs == 0; \
    }

TPF_UNIFORM(u8, uint8_t)
TPF_UNIFORM(i32, int32_t)
TPF_UNIFORM(i64, int64_t)

/* x / d for 0 <= x < 2^N is (x m) >> (N + l), where 2^l >= d and m = ceil(2^(N + l) / d): T. Granlund and
   P. L. Montgomery, Division by invariant integers using multiplication (PLDI 1994). For a < 0 floor(a / d) is
   ~(~a / d). N is 31 for int32 and 63 for int64, so that m fits; the high half of the product is shifted by l - 1. */
typedef struct { uint64_t multiplier; int shift; } tpf_divisor;

static tpf_divisor tpf_invert_divisor(uint64_t d, int bits) { /* d >= 2 */
    tpf_divisor z = {0, 0};
    uint64_t rest;
    while (z.shift < bits - 1 && (UINT64_C(1) << z.shift) < d) z.shift++;
    /* long division of 2^(bits - 1 + l) by d: the bits of the quotient after that of 2^l */
    rest = (UINT64_C(1) << z.shift) % d;
    z.multiplier = (UINT64_C(1) << z.shift) / d;
    for (int k = 0; k < bits - 1; k++) {
        rest <<= 1; /* below 2^64: d < 2^63 */
        z.multiplier = z.multiplier << 1 | (rest >= d);
        rest -= rest >= d ? d : 0;
    }
    z.multiplier += rest != 0;
    z.shift--;
    return z;
}

TPF_INLINE int32_t tpf_divided_i32(int32_t a, int32_t d, tpf_divisor z) {
    uint32_t sign = (uint32_t)(a >> 31), x = (uint32_t)a ^ sign;
    (void)d;
    return (int32_t)(((uint32_t)(((uint64_t)x * (uint32_t)z.multiplier) >> 32) >> z.shift) ^ sign);
}

#if defined(__SIZEOF_INT128__)
__extension__ typedef unsigned __int128 tpf_u128;
#define TPF_HIGH_PRODUCT(x, y) ((uint64_t)(((tpf_u128)(x) * (y)) >> 64))
#elif defined(_MSC_VER) && defined(_M_X64)
#include <intrin.h>
#define TPF_HIGH_PRODUCT(x, y) __umulh(x, y)
#endif

TPF_INLINE int64_t tpf_divided_i64(int64_t a, int64_t d, tpf_divisor z) {
#ifdef TPF_HIGH_PRODUCT
    uint64_t sign = (uint64_t)(a >> 63), x = (uint64_t)a ^ sign;
    (void)d;
    return (int64_t)((TPF_HIGH_PRODUCT(x, z.multiplier) >> z.shift) ^ sign);
#else
    (void)z;
    return tpf_floor_divide_i64(a, d);
#endif
}

/* N = 8, and the shift of 16 beside it: m = ceil(2^16 / d). */
TPF_INLINE uint8_t tpf_divided_u8(uint8_t a, uint8_t d, tpf_divisor z) {
    (void)d;
    return (uint8_t)(uint16_t)(((uint32_t)a * (uint16_t)z.multiplier) >> 16);
}

#define TPF_DIVIDE_LOOPS(dt, T, U, INVERT) \
    static void tpf_each_floor_divide_##dt(T *y, const T *a, const T *b, int64_t n) { \
        T d = b[0]; \
        if (d >= 2 && tpf_uniform_##dt(b, n)) { \
            tpf_divisor z = INVERT; \
            TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = tpf_divided_##dt(a[i], d, z); \
            return; \
        } \
        TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = tpf_floor_divide_##dt(a[i], b[i]); \
    } \
    static void tpf_each_remainder_##dt(T *y, const T *a, const T *b, int64_t n) { \
        T d = b[0]; \
        if (d >= 2 && tpf_uniform_##dt(b, n)) { \
            tpf_divisor z = INVERT; \
            TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = (T)((U)a[i] - (U)tpf_divided_##dt(a[i], d, z) * (U)d); \
            return; \
        } \
        TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = tpf_remainder_##dt(a[i], b[i]); \
    }

static tpf_divisor tpf_invert_u8(uint32_t d) {
    tpf_divisor z = {(65535 + d) / d, 0};
    return z;
}

TPF_DIVIDE_LOOPS(u8, uint8_t, uint32_t, tpf_invert_u8(d))
TPF_DIVIDE_LOOPS(i32, int32_t, uint32_t, tpf_invert_divisor((uint64_t)d, 32))
TPF_DIVIDE_LOOPS(i64, int64_t, uint64_t, tpf_invert_divisor((uint64_t)d, 64))

/* Bytes have no vector shift by a number of their own each. */
static void tpf_each_bitwise_right_shift_u8(uint8_t *y, const uint8_t *a, const uint8_t *b, int64_t n) {
    int shift = b[0];
    if (shift < 8 && tpf_uniform_u8(b, n)) {
        TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = (uint8_t)(a[i] >> shift);
        return;
    }
    TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = tpf_bitwise_right_shift_u8(a[i], b[i]);
}

/* Powers by repeated squaring, modulo 2^bits, U being the unsigned type to compute in. The core refuses negative
   exponents; here they give 1. The loop takes one bit of all exponents of a strip at a time. */
#define TPF_POWERS(dt, T, U) \
    TPF_INLINE T tpf_pow_##dt(T a, T b) { \
        U result = 1, base = (U)a; \
        for (; b > 0; b = (T)(b >> 1)) { \
            if (b & 1) result = (U)(result * base); \
            base = (U)(base * base); \
        } \
        return (T)result; \
    } \
    static void tpf_each_pow_##dt(T *y, const T *a, const T *b, int64_t n) { \
        enum { STRIP = 64 }; \
        U base[STRIP], exponent[STRIP], result[STRIP]; \
        for (int64_t start = 0; start < n; start += STRIP) { \
            int count = n - start < STRIP ? (int)(n - start) : STRIP; \
            U bits = 0; \
            for (int i = 0; i < count; i++) { \
                base[i] = (U)a[start + i]; \
                exponent[i] = b[start + i] > 0 ? (U)b[start + i] : 0; \
                result[i] = 1; \
                bits |= exponent[i]; \
            } \
            for (; bits != 0; bits >>= 1) { \
                for (int i = 0; i < count; i++) { \
                    result[i] = (U)(result[i] * ((exponent[i] & 1) != 0 ? base[i] : (U)1)); \
                    base[i] = (U)(base[i] * base[i]); \
                    exponent[i] >>= 1; \
                } \
            } \
            for (int i = 0; i < count; i++) y[start + i] = (T)result[i]; \
        } \
    }

TPF_POWERS(u8, uint8_t, uint8_t)
TPF_POWERS(i32, int32_t, uint32_t)
TPF_POWERS(i64, int64_t, uint64_t)

#endif
