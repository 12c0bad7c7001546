/* The scalar functions on integers behind the loops of ops.py: quotients, remainders, bits, shifts, rounding.

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

#endif
