/* Casts between contiguous arrays of two dtypes, NumPy's values.

   Integers wrap. To bool is x != 0, so NaN is true. A float that does not fit its integer, or is NaN,
   becomes the smallest integer; uint8 is cut out of int32. (C leaves these undefined, so the float
   is replaced before it is converted.) y may be x itself where the sizes agree: each element
   is read before it is written. */
#ifndef TPF_CAST_H
#define TPF_CAST_H

#include <string.h>

#define TPF_CAST_SAME(x) (x)
#define TPF_CAST_TRUTH(x) ((x) != 0)
/* Bounds are the floats next to the limits: every integer between them is representable. */
#define TPF_CAST_F32_I32(x) ((int32_t)((x) >= -0x1p31f && (x) < 0x1p31f ? (x) : -0x1p31f))
#define TPF_CAST_F32_I64(x) ((int64_t)((x) >= -0x1p63f && (x) < 0x1p63f ? (x) : -0x1p63f))
#define TPF_CAST_F64_I32(x) ((int32_t)((x) > -0x1.00000002p31 && (x) < 0x1p31 ? (x) : -0x1p31))
#define TPF_CAST_F64_I64(x) ((int64_t)((x) >= -0x1p63 && (x) < 0x1p63 ? (x) : -0x1p63))

#define TPF_CAST(from, to, X, Y, convert)                                         \
    static void tpf_cast_##from##_##to(void *y_, const void *x_, int64_t n) {     \
        Y *y = y_;                                                                \
        const X *x = x_;                                                          \
        TPF_IVDEP for (int64_t i = 0; i < n; i++) y[i] = (Y)convert(x[i]);        \
    }

#define TPF_CAST_COPY(name, size)                                   \
    static void tpf_cast_##name(void *y, const void *x, int64_t n) { \
        if (y != x && n > 0) memcpy(y, x, (size_t)n * size);        \
    }

TPF_CAST_COPY(8, 1)
TPF_CAST_COPY(32, 4)
TPF_CAST_COPY(64, 8)

TPF_CAST(u8, b8, uint8_t, uint8_t, TPF_CAST_TRUTH)
TPF_CAST(i32, b8, int32_t, uint8_t, TPF_CAST_TRUTH)
TPF_CAST(i64, b8, int64_t, uint8_t, TPF_CAST_TRUTH)
TPF_CAST(f32, b8, float, uint8_t, TPF_CAST_TRUTH)
TPF_CAST(f64, b8, double, uint8_t, TPF_CAST_TRUTH)

TPF_CAST(i32, u8, int32_t, uint8_t, TPF_CAST_SAME)
TPF_CAST(i64, u8, int64_t, uint8_t, TPF_CAST_SAME)
TPF_CAST(f32, u8, float, uint8_t, TPF_CAST_F32_I32)
TPF_CAST(f64, u8, double, uint8_t, TPF_CAST_F64_I32)

TPF_CAST(u8, i32, uint8_t, int32_t, TPF_CAST_SAME)
TPF_CAST(i64, i32, int64_t, int32_t, TPF_CAST_SAME)
TPF_CAST(f32, i32, float, int32_t, TPF_CAST_F32_I32)
TPF_CAST(f64, i32, double, int32_t, TPF_CAST_F64_I32)

TPF_CAST(u8, i64, uint8_t, int64_t, TPF_CAST_SAME)
TPF_CAST(i32, i64, int32_t, int64_t, TPF_CAST_SAME)
TPF_CAST(f32, i64, float, int64_t, TPF_CAST_F32_I64)
TPF_CAST(f64, i64, double, int64_t, TPF_CAST_F64_I64)

TPF_CAST(u8, f32, uint8_t, float, TPF_CAST_SAME)
TPF_CAST(i32, f32, int32_t, float, TPF_CAST_SAME)
TPF_CAST(i64, f32, int64_t, float, TPF_CAST_SAME)
TPF_CAST(f64, f32, double, float, TPF_CAST_SAME)

TPF_CAST(u8, f64, uint8_t, double, TPF_CAST_SAME)
TPF_CAST(i32, f64, int32_t, double, TPF_CAST_SAME)
TPF_CAST(i64, f64, int64_t, double, TPF_CAST_SAME)
TPF_CAST(f32, f64, float, double, TPF_CAST_SAME)

/* [from][to]; a bool is a uint8 of 0 and 1 */
#define TPF_CAST_TABLE { \
    {tpf_cast_8, tpf_cast_8, tpf_cast_u8_i32, tpf_cast_u8_i64, tpf_cast_u8_f32, tpf_cast_u8_f64}, \
    {tpf_cast_u8_b8, tpf_cast_8, tpf_cast_u8_i32, tpf_cast_u8_i64, tpf_cast_u8_f32, tpf_cast_u8_f64}, \
    {tpf_cast_i32_b8, tpf_cast_i32_u8, tpf_cast_32, tpf_cast_i32_i64, tpf_cast_i32_f32, tpf_cast_i32_f64}, \
    {tpf_cast_i64_b8, tpf_cast_i64_u8, tpf_cast_i64_i32, tpf_cast_64, tpf_cast_i64_f32, tpf_cast_i64_f64}, \
    {tpf_cast_f32_b8, tpf_cast_f32_u8, tpf_cast_f32_i32, tpf_cast_f32_i64, tpf_cast_32, tpf_cast_f32_f64}, \
    {tpf_cast_f64_b8, tpf_cast_f64_u8, tpf_cast_f64_i32, tpf_cast_f64_i64, tpf_cast_f64_f32, tpf_cast_64}, \
}

#endif
