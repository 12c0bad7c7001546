/* The scalar functions of the wider vocabulary: whole numbers, exp2 log2 log10, tan and the inverse trigonometric
   and hyperbolic functions, cbrt, hypot, logaddexp, remainder, floor_divide, nextafter, copysign. tpf_math_special.h,
   included at the end, has erf erfc erfinv lgamma digamma.

   All that tpf_math.h says of its functions holds here too: selects instead of branches, the same bits wherever an
   element stands, vectorised or not, the special values of C99 Annex F, fits made the same way. The exceptions:
   - remainder and floor_divide have a fast part and a slow one (fmod) and do not vectorise; their _near_ forms do,
     for blocks that tpf_divide_not_near_ finds nothing in. All agree with NumPy bit for bit.
   - tan, exp2, log2, log10, cbrt and atan2 have _near_ forms, to be chosen as for sin and cos; their times are given.
   - some float32 functions work in float64, where that is simplest; their results are off by little over 0.5 ULP.
   - logaddexp cancels where max(a, b) < 0: its error is in ULP of the larger of the result and that maximum.

   Measured: the largest error in ULP without and with fma, and ns an element in L1 on one AVX-512, AVX2 and SSE4 core.
   float32: 43 million bit patterns spread over all of them, and every one that matters for log2, erf and erfinv;
   float64: 4 million points; references: libm's double and long double, and mpmath.

                   float32 error    ns               float64 error    ns
     exp2            1.10  0.87   0.14 0.20 0.59      1.22  0.95   0.43 0.65  2.3
     log2            1.94  1.18   0.24 0.34  1.1      1.11  1.02   0.73 0.89  3.2
     log10           2.03  1.10   0.27 0.41  1.3      1.90  0.98   0.75 0.92  2.6
     sinh            2.30  2.30   0.43 0.72  1.6      2.25  2.25    1.1  1.8  4.9
     cosh            1.32  1.34   0.33 0.52  1.3      1.34  1.34   0.90  1.3  3.8
     asinh           1.79  1.79   0.87  1.4  2.8      2.90  2.85    1.7  2.5  5.1
     acosh           2.02  2.02   0.63  1.2  2.6      1.99  1.99    1.8  2.9  6.2
     atanh           2.34  2.16   0.43 0.84  1.6      2.21  1.76    1.1  2.0  4.3
     tan             1.74  1.74    1.6  3.4  6.2      2.18  2.18    4.9  8.0   18
       near          1.74  1.74   0.53 0.82  2.3      2.18  2.18    1.5  2.4  5.6
     asin            1.61  1.61   0.33 0.47  1.2      1.68  1.65    1.0  1.5  4.0
     acos            1.13  1.13   0.32 0.60  1.2      1.19  1.18    1.0  1.5  3.7
     atan            2.00  2.00   0.45 0.73  1.2      1.92  1.92    1.4  1.8  3.9
     atan2           2.20  2.20   0.47 0.80  1.5      1.97  1.97    1.4  2.1  4.7
     cbrt            1.46  1.08   0.22 0.34  1.1      1.12  1.12   0.57 0.81  4.9
     hypot           1.19  1.17   0.28 0.62 0.86      1.17  1.16    1.0  1.2  1.7
     logaddexp       0.51  0.51    1.9  3.9  7.2      3.23  3.23    3.1  6.6   15
     nextafter      exact         0.14 0.35 0.48     exact         0.30 0.70 0.95
     remainder      as NumPy       4.3  4.3  4.3     as NumPy       4.5  4.5  5.8
       near         as NumPy      0.69 0.99  1.9     as NumPy      0.71  1.0  2.8
     floor_divide   as NumPy       4.1  4.0  4.2     as NumPy       3.5  3.5  5.4
       near         as NumPy      0.70 0.97  1.8     as NumPy      0.70  1.1  2.8 */
#ifndef TPF_MATH_MORE_H
#define TPF_MATH_MORE_H

#include <math.h> /* fmod, for quotients of 2^21 (float32), 2^50 (float64) and more */

#include "tpf_math.h"

#if defined(__GNUC__)
#define TPF_FLOOR(x) __builtin_floor(x)
#define TPF_FLOORF(x) __builtin_floorf(x)
#define TPF_CEIL(x) __builtin_ceil(x)
#define TPF_CEILF(x) __builtin_ceilf(x)
#define TPF_TRUNC(x) __builtin_trunc(x)
#define TPF_TRUNCF(x) __builtin_truncf(x)
#else
#define TPF_FLOOR(x) floor(x)
#define TPF_FLOORF(x) floorf(x)
#define TPF_CEIL(x) ceil(x)
#define TPF_CEILF(x) ceilf(x)
#define TPF_TRUNC(x) trunc(x)
#define TPF_TRUNCF(x) truncf(x)
#endif

/* Constants and what their rounding left over. */
#define TPF_PI_F32 0x1.921fb6p+1f
#define TPF_PI_LOW_F32 -0x1.777a5cp-24f
#define TPF_PI_F64 0x1.921fb54442d18p+1
#define TPF_PI_LOW_F64 0x1.1a62633145c07p-53
#define TPF_LOG2_E_F32 0x1.715476p+0f
#define TPF_LOG2_E_LOW_F32 0x1.4ae0cp-26f
#define TPF_LOG2_E_F64 0x1.71547652b82fep+0
#define TPF_LOG2_E_LOW_F64 0x1.777d0ffda0d24p-56
#define TPF_LOG10_E_F32 0x1.bcb7b2p-2f
#define TPF_LOG10_E_LOW_F32 -0x1.5b235ep-27f
#define TPF_LOG10_E_F64 0x1.bcb7b1526e50ep-2
#define TPF_LOG10_E_LOW_F64 0x1.95355baaafad3p-57
/* log10(2): a product of the first part with an exponent is exact. */
#define TPF_LOG10_2_HI_F32 0x1.3442p-2f
#define TPF_LOG10_2_LO_F32 -0x1.95ec1p-19f
#define TPF_LOG10_2_HI_F64 0x1.34413509f78p-2
#define TPF_LOG10_2_LO_F64 0x1.fef311f12b358p-46

/* ---- whole numbers, signs, neighbours ---- */

TPF_INLINE float tpf_floor_f32(float x) { return TPF_FLOORF(x); }
TPF_INLINE double tpf_floor_f64(double x) { return TPF_FLOOR(x); }
TPF_INLINE float tpf_ceil_f32(float x) { return TPF_CEILF(x); }
TPF_INLINE double tpf_ceil_f64(double x) { return TPF_CEIL(x); }
TPF_INLINE float tpf_trunc_f32(float x) { return TPF_TRUNCF(x); }
TPF_INLINE double tpf_trunc_f64(double x) { return TPF_TRUNC(x); }
/* Halves go to the even neighbour. */
TPF_INLINE float tpf_round_f32(float x) { return TPF_RINTF(x); }
TPF_INLINE double tpf_round_f64(double x) { return TPF_RINT(x); }

TPF_INLINE float tpf_copysign_f32(float x, float s) { return tpf_with_sign_f32(x, s); }
TPF_INLINE double tpf_copysign_f64(double x, double s) { return tpf_with_sign_f64(x, s); }

/* One step on the bits: away from 0 where the way to y leads there. */
TPF_INLINE float tpf_nextafter_f32(float x, float y) {
    uint32_t u = tpf_bits_f32(x), outwards = (x < y) == (x > 0.0f);
    float z = tpf_from_bits_f32(outwards ? u + 1u : u - 1u);
    z = x == 0.0f ? tpf_with_sign_f32(tpf_from_bits_f32(1u), y) : z;
    z = x == y ? y : z;
    return (x != x) | (y != y) ? x + y : z;
}

TPF_INLINE double tpf_nextafter_f64(double x, double y) {
    uint64_t u = tpf_bits_f64(x), outwards = (x < y) == (x > 0.0);
    double z = tpf_from_bits_f64(outwards ? u + 1u : u - 1u);
    z = x == 0.0 ? tpf_with_sign_f64(tpf_from_bits_f64(1u), y) : z;
    z = x == y ? y : z;
    return (x != x) | (y != y) ? x + y : z;
}

/* ---- exp2, sinh, cosh ---- */

TPF_INLINE float tpf_exp2_f32(float x) {
    float t = tpf_clamp_f32(x, -160.0f, 129.0f), shifted = t + TPF_SHIFT_F32;
    return tpf_scale_f32(tpf_exp2_poly_f32(t - (shifted - TPF_SHIFT_F32)), shifted);
}

TPF_INLINE double tpf_exp2_f64(double x) {
    double t = tpf_clamp_f64(x, -1080.0, 1025.0), shifted = t + TPF_SHIFT_F64;
    return tpf_scale_f64(tpf_exp2_poly_long(t - (shifted - TPF_SHIFT_F64)), shifted);
}

/* As for exp. */
TPF_INLINE uint32_t tpf_range2_not_near_f32(float x) {
    return tpf_bits_f32(125.0f) - (tpf_bits_f32(x) & ~TPF_SIGN_F32);
}
TPF_INLINE uint64_t tpf_range2_not_near_f64(double x) {
    return tpf_bits_f64(1021.0) - (tpf_bits_f64(x) & ~TPF_SIGN_F64);
}

TPF_INLINE float tpf_exp2_near_f32(float x) {
    float shifted = x + TPF_SHIFT_F32;
    return tpf_exp2_poly_f32(x - (shifted - TPF_SHIFT_F32)) * tpf_power_of_two_f32(shifted);
}

TPF_INLINE double tpf_exp2_near_f64(double x) {
    double shifted = x + TPF_SHIFT_F64;
    return tpf_exp2_poly_long(x - (shifted - TPF_SHIFT_F64)) * tpf_power_of_two_f64(shifted);
}

/* exp(x) to 2^-33, for float32 functions that work in float64; |x| < 700. */
TPF_INLINE double tpf_exp_short(double x) {
    double t = x * TPF_LOG2_E_F64, shifted = t + TPF_SHIFT_F64;
    return tpf_exp2_poly_short(t - (shifted - TPF_SHIFT_F64)) * tpf_power_of_two_f64(shifted);
}

/* With q = (exp(a) - 1) / 4: 2 (q + q / (4 q + 1)); a quarter, since exp(a) may overflow where sinh does not. */
TPF_INLINE float tpf_sinh_f32(float x) {
    float a = TPF_ABSF(x), s, q;
    tpf_reduced_f32 z = tpf_reduce_exp_f32(a > 89.5f ? 89.5f : a);
    s = tpf_power_of_two_f32(z.shifted - 2.0f);
    q = TPF_FMAF(s, tpf_expm1_poly_f32(z.r, z.low), s - 0.25f);
    q = (q + q / (4.0f * q + 1.0f)) * 2.0f;
    return a < 0x1p-13f ? x : tpf_with_sign_f32(q, x);
}

TPF_INLINE double tpf_sinh_f64(double x) {
    double a = TPF_ABS(x), s, q;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(a > 710.5 ? 710.5 : a);
    s = tpf_power_of_two_f64(z.shifted - 2.0);
    q = TPF_FMA(s, tpf_expm1_poly_f64(z.r, z.low), s - 0.25);
    q = (q + q / (4.0 * q + 1.0)) * 2.0;
    return a < 0x1p-27 ? x : tpf_with_sign_f64(q, x);
}

/* With h = exp(|x|) / 4: 2 (h + 1 / (16 h)). */
TPF_INLINE float tpf_cosh_f32(float x) {
    float a = TPF_ABSF(x), h;
    tpf_reduced_f32 z = tpf_reduce_exp_f32(a > 89.5f ? 89.5f : a);
    h = tpf_power_of_two_f32(z.shifted - 2.0f) * (1.0f + tpf_expm1_poly_f32(z.r, z.low));
    return (h + 0.0625f / h) * 2.0f;
}

TPF_INLINE double tpf_cosh_f64(double x) {
    double a = TPF_ABS(x), h;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(a > 710.5 ? 710.5 : a);
    h = tpf_power_of_two_f64(z.shifted - 2.0) * (1.0 + tpf_expm1_poly_f64(z.r, z.low));
    return (h + 0.0625 / h) * 2.0;
}

/* ---- log2, log10, the inverse hyperbolic functions, logaddexp ---- */

/* q in log2(1 + f) = f / ln 2 + f^2 q(f), 1 + f in [sqrt(1/2), sqrt(2)); fit 2^-27.7. */
TPF_INLINE float tpf_log2_tail_f32(float f) {
    float q = -1.1052529e-01f;
    q = TPF_FMAF(q, f, 1.8715118e-01f);
    q = TPF_FMAF(q, f, -1.913356e-01f);
    q = TPF_FMAF(q, f, 2.0447893e-01f);
    q = TPF_FMAF(q, f, -2.39571e-01f);
    q = TPF_FMAF(q, f, 2.8857157e-01f);
    q = TPF_FMAF(q, f, -3.606986e-01f);
    q = TPF_FMAF(q, f, 4.808982e-01f);
    q = TPF_FMAF(q, f, -7.2134733e-01f);
    return q;
}

/* f - log(1 + f), as in tpf_log_core_f64. */
TPF_INLINE double tpf_log_tail_f64(double f) {
    double s = f / (2.0 + f), z = s * s;
    return s * (f - tpf_atanh_tail_f64(z) * z);
}

/* log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)], for float32 functions that work in float64:
   f - f^2 / 2 + f^3 p(f); fit 2^-35.6. */
TPF_INLINE double tpf_log_short(double f) {
    double p = 0.05386955693915485;
    p = TPF_FMA(p, f, -0.09863232838211473);
    p = TPF_FMA(p, f, 0.09988467804732745);
    p = TPF_FMA(p, f, -0.09924495918959012);
    p = TPF_FMA(p, f, 0.1101478556741858);
    p = TPF_FMA(p, f, -0.12498291149330948);
    p = TPF_FMA(p, f, 0.14290175185883688);
    p = TPF_FMA(p, f, -0.16666854922335836);
    p = TPF_FMA(p, f, 0.19999911224102043);
    p = TPF_FMA(p, f, -0.24999997078159567);
    p = TPF_FMA(p, f, 0.3333333389277008);
    p = TPF_FMA(p, f, -0.5);
    return TPF_FMA(f * f, p, f);
}

TPF_INLINE float tpf_log2_of_f32(tpf_mantissa_f32 z) {
    float f = z.m - 1.0f, y = TPF_FMAF(f, TPF_LOG2_E_LOW_F32, f * f * tpf_log2_tail_f32(f));
    return z.n + TPF_FMAF(f, TPF_LOG2_E_F32, y);
}

TPF_INLINE double tpf_log2_of_f64(tpf_mantissa_f64 z) {
    double f = z.m - 1.0, p = f * TPF_LOG2_E_F64;
    double y = TPF_FMA(f, TPF_LOG2_E_LOW_F64, tpf_product_error(f, TPF_LOG2_E_F64, p));
    return z.n + (p + TPF_FMA(tpf_log_tail_f64(f), -TPF_LOG2_E_F64, y));
}

/* Exact at the powers of ten, for what is added to n log10(2) is small beside it. */
TPF_INLINE float tpf_log10_of_f32(tpf_mantissa_f32 z) {
    float f = z.m - 1.0f;
    float y = TPF_FMAF(f, TPF_LOG10_E_LOW_F32, f * f * (tpf_log2_tail_f32(f) * 0x1.344136p-2f));
    y = TPF_FMAF(f, TPF_LOG10_E_F32, TPF_FMAF(z.n, TPF_LOG10_2_LO_F32, y));
    return TPF_FMAF(z.n, TPF_LOG10_2_HI_F32, y);
}

TPF_INLINE double tpf_log10_of_f64(tpf_mantissa_f64 z) {
    double f = z.m - 1.0;
    double y = TPF_FMA(f, TPF_LOG10_E_LOW_F64, -(tpf_log_tail_f64(f) * TPF_LOG10_E_F64));
    y = TPF_FMA(f, TPF_LOG10_E_F64, TPF_FMA(z.n, TPF_LOG10_2_LO_F64, y));
    return TPF_FMA(z.n, TPF_LOG10_2_HI_F64, y);
}

TPF_LOGARITHM(log2)
TPF_LOGARITHM(log10)

/* log(1 + x) + k ln 2 for x >= 0, NaN for other x. */
TPF_INLINE float tpf_log1p_plus_f32(float x, float k) {
    float u = 1.0f + x, lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x), y;
    tpf_parts_f32 z = tpf_split_f32(u);
    uint32_t e = z.biased > 253u ? 253u : z.biased;
    float f = TPF_FMAF(lost, tpf_from_bits_f32((254u - e) << 23), z.m - 1.0f);
    y = tpf_log_core_f32(f, (float)(int32_t)(z.biased - 127u) + k);
    y = x >= 0.0f ? y : (float)TPF_NAN;
    return x < (float)TPF_INF ? y : x;
}

TPF_INLINE double tpf_log1p_plus_f64(double x, double k) {
    double u = 1.0 + x, lost = x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x), y;
    tpf_parts_f64 z = tpf_split_f64(u);
    uint64_t e = z.biased > 2045u ? 2045u : z.biased;
    double f = TPF_FMA(lost, tpf_from_bits_f64((2046u - e) << 52), z.m - 1.0);
    y = tpf_log_core_f64(f, tpf_exponent_f64(z.biased, 1023.0) + k);
    y = x >= 0.0 ? y : TPF_NAN;
    return x < TPF_INF ? y : x;
}

/* log1p(a + a^2 / (1 + sqrt(a^2 + 1))); log(a) + ln 2 where that is the same. */
TPF_INLINE float tpf_asinh_f32(float x) {
    float a = TPF_ABSF(x), w = a * a, b = a + w / (1.0f + TPF_SQRTF(w + 1.0f));
    int big = a > 0x1p13f;
    return tpf_with_sign_f32(tpf_log1p_plus_f32(big ? a - 1.0f : b, big ? 1.0f : 0.0f), x);
}

/* The k with u / v / 2^k between 2/3 and 3/2, for positive u >= v, and 2^k: the difference of the bits of u and v is
   about 2^52 log2(u / v). */
typedef struct { float k, power; } tpf_octave_f32;
typedef struct { double k, power; } tpf_octave_f64;

TPF_INLINE tpf_octave_f32 tpf_octave_between_f32(float u, float v) {
    uint32_t k = (tpf_bits_f32(u) - tpf_bits_f32(v) + UINT32_C(0x400000)) >> 23;
    tpf_octave_f32 z = {(float)(int32_t)k, tpf_from_bits_f32((k + 127u) << 23)};
    return z;
}

TPF_INLINE tpf_octave_f64 tpf_octave_between_f64(double u, double v) {
    uint64_t k = (tpf_bits_f64(u) - tpf_bits_f64(v) + UINT64_C(0x8000000000000)) >> 52;
    tpf_octave_f64 z = {tpf_exponent_f64(k, 0.0), tpf_from_bits_f64((k + 1023u) << 52)};
    return z;
}

/* As tpf_atanh_tail_f64, up to s = 1/5; fit 2^-55.8 relative to atanh. */
TPF_INLINE double tpf_atanh_tail_wide(double z) {
    double p = 0.1539038483184625;
    p = TPF_FMA(p, z, 0.15247323630881207);
    p = TPF_FMA(p, z, 0.1818649983751611);
    p = TPF_FMA(p, z, 0.22222134976640395);
    p = TPF_FMA(p, z, 0.28571429438632995);
    p = TPF_FMA(p, z, 0.39999999995919017);
    return TPF_FMA(p, z, 0.6666666666667316);
}

/* e = a + sqrt(a^2 + 1) is 2^k (1 + s) / (1 - s): k ln 2 + 2 atanh(s). Where k is 0, s = a / (1 + sqrt(a^2 + 1));
   elsewhere what the rounding of e lost counts, too. One division instead of the two of float32. */
TPF_INLINE double tpf_asinh_f64(double x) {
    double a = TPF_ABS(x), root, e, lost, s, z, k;
    int big = a > 0x1p28;
    tpf_octave_f64 o;
    root = TPF_SQRT(TPF_FMA(a, a, 1.0));
    e = big ? 0.5 * a : a + root;
    lost = big ? 0.0 : a - (e - root);
    o = tpf_octave_between_f64(e, 1.0);
    s = (o.k == 0.0 ? a : (e - o.power) + lost) / (o.k == 0.0 ? 1.0 + root : e + o.power);
    z = s * s;
    k = big ? o.k + 2.0 : o.k;
    s = TPF_FMA(k, TPF_LN2_HI_F64, 2.0 * s + TPF_FMA(k, TPF_LN2_LO_F64, s * (tpf_atanh_tail_wide(z) * z)));
    return tpf_with_sign_f64((a > 0x1p-27) & (a < TPF_INF) ? s : a, x); /* a / 2 may be 0 */
}

/* With t = x - 1: log1p(t + sqrt(2 t + t^2)). */
TPF_INLINE float tpf_acosh_f32(float x) {
    float t = x - 1.0f, b = t + TPF_SQRTF(TPF_FMAF(t, t, 2.0f * t));
    int big = x > 0x1p13f;
    float y = tpf_log1p_plus_f32(big ? t : b, big ? 1.0f : 0.0f);
    return x >= 1.0f ? y : (float)TPF_NAN;
}

TPF_INLINE double tpf_acosh_f64(double x) {
    double t = x - 1.0, b = t + TPF_SQRT(TPF_FMA(t, t, 2.0 * t));
    int big = x > 0x1p28;
    double y = tpf_log1p_plus_f64(big ? t : b, big ? 1.0 : 0.0);
    return x >= 1.0 ? y : TPF_NAN;
}

/* With (1 + a) / (1 - a) = 2^k (1 + s) / (1 - s): k ln(2) / 2 + atanh(s). s = a where k is 0; where it is 1 the
   two may cancel, and 3 a - 1 is more accurate than the difference of 1 + a and 2 (1 - a). */
TPF_INLINE float tpf_atanh_f32(float x) {
    float a = TPF_ABSF(x), u = 1.0f + a, v = 1.0f - a, s, z, p = 1.52377456e-01f;
    tpf_octave_f32 o = tpf_octave_between_f32(u, v);
    v *= o.power;
    s = (o.k == 0.0f ? a : (o.k == 1.0f ? TPF_FMAF(3.0f, a, -1.0f) : u - v)) / (o.k == 0.0f ? 1.0f : u + v);
    z = s * s;
    p = TPF_FMAF(p, z, 1.99761808e-01f); /* fit 2^-28 */
    p = TPF_FMAF(p, z, 3.33335012e-01f);
    s = TPF_FMAF(o.k, 0.5f * TPF_LN2_HI_F32, s + TPF_FMAF(o.k, 0.5f * TPF_LN2_LO_F32, s * (z * p)));
    s = a < 1.0f ? s : (a == 1.0f ? (float)TPF_INF : (float)TPF_NAN);
    return tpf_with_sign_f32(s, x);
}

TPF_INLINE double tpf_atanh_f64(double x) {
    double a = TPF_ABS(x), u = 1.0 + a, v = 1.0 - a, s, z, p;
    tpf_octave_f64 o = tpf_octave_between_f64(u, v);
    v *= o.power;
    s = (o.k == 0.0 ? a : (o.k == 1.0 ? TPF_FMA(3.0, a, -1.0) : u - v)) / (o.k == 0.0 ? 1.0 : u + v);
    z = s * s;
    p = 0.5 * tpf_atanh_tail_wide(z);
    s = TPF_FMA(o.k, 0.5 * TPF_LN2_HI_F64, s + TPF_FMA(o.k, 0.5 * TPF_LN2_LO_F64, s * (z * p)));
    s = a < 1.0 ? s : (a == 1.0 ? TPF_INF : TPF_NAN);
    return tpf_with_sign_f64(s, x);
}

/* max + log(1 + e), e = exp(-|a - b|); for float32, 1 + e is (1 + f) 2^k without rounding it. */
TPF_INLINE float tpf_logaddexp_f32(float a, float b) {
    double m = a > b ? a : b, d = a == b ? 0.0 : -TPF_ABS((double)a - (double)b);
    double e = tpf_exp_short(d < -200.0 ? -200.0 : d);
    int above = e > 0.4142135623730951;
    double y = tpf_log_short(above ? TPF_FMA(0.5, e, -0.5) : e) + (above ? 0x1.62e42fefa39efp-1 : 0.0);
    return (a != a) | (b != b) ? a + b : (float)(m + y);
}

/* What rounding a - b lost counts where max is near 0. */
TPF_INLINE double tpf_logaddexp_f64(double a, double b) {
    double m = a > b ? a : b, least = a > b ? b : a, d = a == b ? 0.0 : least - m;
    double lost = d > -746.0 ? tpf_sum_error(least, -m, d) : 0.0;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(d < -746.0 ? -746.0 : d);
    double e = tpf_scale_f64(1.0 + tpf_expm1_poly_f64(z.r, z.low), z.shifted);
    double y = m + tpf_log1p_plus_f64(TPF_FMA(e, a == b ? 0.0 : lost, e), 0.0);
    return (a != a) | (b != b) ? a + b : y;
}

/* ---- tan, asin, acos, atan, atan2 ---- */

/* tan(r) for |r| <= pi/4, -1 / tan(r) where odd: r h(r^2); fit 2^-25.9. */
TPF_INLINE float tpf_quarter_tan(tpf_half_turn t) {
    double z = t.r * t.r, h = 0.00949906518102882;
    float y;
    h = TPF_FMA(h, z, 0.002894441278024488);
    h = TPF_FMA(h, z, 0.024601710850451392);
    h = TPF_FMA(h, z, 0.053348879709300016);
    h = TPF_FMA(h, z, 0.13339894383139858);
    h = TPF_FMA(h, z, 0.3333307579904718);
    h = TPF_FMA(h, z, 1.000000016361907);
    y = (float)(t.r * h);
    return (t.odd & 1u) != 0 ? -1.0f / y : y;
}

/* x = n pi/2 + r, |r| <= pi/4; the lowest bit of odd is n's. */
TPF_INLINE tpf_half_turn tpf_tan_turn_near(double x) {
    double shifted = TPF_FMA(x, 0x1.45f306dc9c883p-1, TPF_SHIFT_F64), n = shifted - TPF_SHIFT_F64;
    tpf_half_turn z;
    z.r = TPF_FMA(n, -0x1.921fb544p+0, x); /* exact */
    z.r = TPF_FMA(n, -0x1.0b4611a626331p-34, z.r);
    z.odd = tpf_bits_f64(shifted);
    return z;
}

TPF_INLINE tpf_half_turn tpf_tan_turn_any(float x) {
    tpf_half_turn t = tpf_tan_turn_near(x), u = tpf_half_turn_far(x, 0.0), v = tpf_half_turn_far(x, 0.5), z;
    int is_near = tpf_trig_is_near_f32(x), outer = TPF_ABS(u.r) > 0x1.921fb54442d18p-1;
    z.r = outer ? v.r : u.r;
    z.r = is_near ? t.r : z.r;
    z.odd = is_near ? t.odd : (uint64_t)outer;
    return z;
}

TPF_INLINE float tpf_tan_near_f32(float x) { return tpf_quarter_tan(tpf_tan_turn_near(x)); }
TPF_INLINE float tpf_tan_f32(float x) { return tpf_quarter_tan(tpf_tan_turn_any(x)); }

TPF_INLINE double tpf_quarter_turn_tan(tpf_quarter_turn t) {
    return tpf_quarter_turn_sin(t) / tpf_quarter_turn_cos(t);
}

TPF_INLINE double tpf_tan_near_f64(double x) {
    return tpf_keep_zero(tpf_quarter_turn_tan(tpf_quarter_turn_near(x)), x);
}
TPF_INLINE double tpf_tan_f64(double x) {
    return tpf_keep_zero(tpf_quarter_turn_tan(tpf_quarter_turn_any(x)), x);
}

/* asin(s) - s for 0 <= s <= 1/2, z = s^2: s z p(z); fit 2^-27.6. */
TPF_INLINE float tpf_asin_tail_f32(float s, float z) {
    float p = 4.2157963e-02f;
    p = TPF_FMAF(p, z, 2.4184858e-02f);
    p = TPF_FMAF(p, z, 4.546915e-02f);
    p = TPF_FMAF(p, z, 7.4953094e-02f);
    p = TPF_FMAF(p, z, 1.6666752e-01f);
    return s * z * p;
}

/* Fit 2^-55.6. */
TPF_INLINE double tpf_asin_tail_f64(double s, double z) {
    double p = 0.03190975964422718;
    p = TPF_FMA(p, z, -0.016220310909742366);
    p = TPF_FMA(p, z, 0.01952556090118222);
    p = TPF_FMA(p, z, 0.006529038499981377);
    p = TPF_FMA(p, z, 0.012168947497916608);
    p = TPF_FMA(p, z, 0.013885278590209712);
    p = TPF_FMA(p, z, 0.017359700099358073);
    p = TPF_FMA(p, z, 0.0223717583792684);
    p = TPF_FMA(p, z, 0.030381959122475457);
    p = TPF_FMA(p, z, 0.04464285682869674);
    p = TPF_FMA(p, z, 0.07500000000336551);
    p = TPF_FMA(p, z, 0.1666666666666541);
    return s * z * p;
}

/* Above 1/2, asin(a) = pi/2 - 2 asin(s) with s^2 = z = (1 - a) / 2, and acos(a) = 2 asin(s). */
TPF_INLINE float tpf_asin_f32(float x) {
    float a = TPF_ABSF(x), z = a > 0.5f ? TPF_FMAF(-0.5f, a, 0.5f) : a * a, s = a > 0.5f ? TPF_SQRTF(z) : a;
    float t = tpf_asin_tail_f32(s, z), y = 0.5f * TPF_PI_F32 - 2.0f * (s + (t - 0.25f * TPF_PI_LOW_F32));
    return tpf_with_sign_f32(a > 0.5f ? y : s + t, x);
}

TPF_INLINE double tpf_asin_f64(double x) {
    double a = TPF_ABS(x), z = a > 0.5 ? TPF_FMA(-0.5, a, 0.5) : a * a, s = a > 0.5 ? TPF_SQRT(z) : a;
    double t = tpf_asin_tail_f64(s, z), y = 0.5 * TPF_PI_F64 - 2.0 * (s + (t - 0.25 * TPF_PI_LOW_F64));
    return tpf_with_sign_f64(a > 0.5 ? y : s + t, x);
}

/* pi/2 - asin(x), 2 asin(s) or pi - 2 asin(s), as k pi + f asin(s): with conditions on x gcc 12 makes three polynomials
   of one. */
TPF_INLINE float tpf_acos_f32(float x) {
    float a = TPF_ABSF(x), z = a > 0.5f ? TPF_FMAF(-0.5f, a, 0.5f) : a * a, s = a > 0.5f ? TPF_SQRTF(z) : a;
    float below = tpf_bits_f32(x) >= TPF_SIGN_F32 ? 1.0f : 0.0f, k = a > 0.5f ? below : 0.5f;
    float f = a > 0.5f ? 2.0f : -1.0f, y = tpf_with_sign_f32(s + tpf_asin_tail_f32(s, z), x);
    return TPF_FMAF(k, TPF_PI_F32, TPF_FMAF(f, y, k * TPF_PI_LOW_F32));
}

TPF_INLINE double tpf_acos_f64(double x) {
    double a = TPF_ABS(x), z = a > 0.5 ? TPF_FMA(-0.5, a, 0.5) : a * a, s = a > 0.5 ? TPF_SQRT(z) : a;
    double below = tpf_bits_f64(x) >= TPF_SIGN_F64 ? 1.0 : 0.0, k = a > 0.5 ? below : 0.5;
    double f = a > 0.5 ? 2.0 : -1.0, y = tpf_with_sign_f64(s + tpf_asin_tail_f64(s, z), x);
    return TPF_FMA(k, TPF_PI_F64, TPF_FMA(f, y, k * TPF_PI_LOW_F64));
}

#define TPF_TAN_PI_8 0.41421356237309503
#define TPF_TAN_3PI_8 2.414213562373095

/* atan(t) - t for |t| <= tan(pi/8): t^3 p(t^2); fit 2^-25.5. */
TPF_INLINE float tpf_atan_tail_f32(float t) {
    float z = t * t, p = 8.05477e-02f;
    p = TPF_FMAF(p, z, -1.3878013e-01f);
    p = TPF_FMAF(p, z, 1.9977741e-01f);
    p = TPF_FMAF(p, z, -3.333295e-01f);
    return t * z * p;
}

/* Fit 2^-54.5. */
TPF_INLINE double tpf_atan_tail_f64(double t) {
    double z = t * t, p = 0.02126004845799713;
    p = TPF_FMA(p, z, -0.043591122993616525);
    p = TPF_FMA(p, z, 0.05692545012103229);
    p = TPF_FMA(p, z, -0.06641122361459716);
    p = TPF_FMA(p, z, 0.07690068436835643);
    p = TPF_FMA(p, z, -0.0909078242220696);
    p = TPF_FMA(p, z, 0.11111106654008354);
    p = TPF_FMA(p, z, -0.14285714195271812);
    p = TPF_FMA(p, z, 0.19999999999089094);
    p = TPF_FMA(p, z, -0.3333333333333015);
    return t * z * p;
}

/* Beyond tan(pi/8), pi/4 + atan((a - 1) / (a + 1)); beyond tan(3 pi/8), pi/2 + atan(-1 / a). */
TPF_INLINE float tpf_atan_f32(float x) {
    float a = TPF_ABSF(x);
    int mid = a > (float)TPF_TAN_PI_8, far = a > (float)TPF_TAN_3PI_8;
    float t = (far ? -1.0f : (mid ? a - 1.0f : a)) / (far ? a : (mid ? a + 1.0f : 1.0f));
    float k = far ? 0.5f : (mid ? 0.25f : 0.0f);
    return tpf_with_sign_f32(k * TPF_PI_F32 + (t + TPF_FMAF(k, TPF_PI_LOW_F32, tpf_atan_tail_f32(t))), x);
}

TPF_INLINE double tpf_atan_f64(double x) {
    double a = TPF_ABS(x);
    int mid = a > TPF_TAN_PI_8, far = a > TPF_TAN_3PI_8;
    double t = (far ? -1.0 : (mid ? a - 1.0 : a)) / (far ? a : (mid ? a + 1.0 : 1.0));
    double k = far ? 0.5 : (mid ? 0.25 : 0.0);
    return tpf_with_sign_f64(k * TPF_PI_F64 + (t + TPF_FMA(k, TPF_PI_LOW_F64, tpf_atan_tail_f64(t))), x);
}

/* The angle of (larger, smaller), from 0 to pi/4, then mirrored at pi/4, pi/2 and 0. any: scaled where lo + hi could
   overflow or hi tan(pi/8) be subnormal; operands may be 0, infinite or NaN. */
TPF_INLINE float tpf_atan2_of_f32(float y, float x, int any) {
    float ay = TPF_ABSF(y), ax = TPF_ABSF(x), t, k, r;
    int swap = ay > ax, mid;
    float hi = swap ? ay : ax, lo = swap ? ax : ay, scale;
    if (any) {
        scale = hi > 0x1p126f ? 0.25f : (hi < 0x1p-60f ? 0x1p60f : 1.0f);
        hi = (hi == 0.0f) | (lo == (float)TPF_INF) ? 1.0f : hi * scale;
        lo = lo == (float)TPF_INF ? 1.0f : lo * scale;
    }
    mid = lo > hi * (float)TPF_TAN_PI_8;
    t = (mid ? lo - hi : lo) / (mid ? lo + hi : hi);
    k = mid ? 0.25f : 0.0f;
    r = k * TPF_PI_F32 + (t + TPF_FMAF(k, TPF_PI_LOW_F32, tpf_atan_tail_f32(t)));
    r = swap ? 0.5f * TPF_PI_F32 - (r - 0.5f * TPF_PI_LOW_F32) : r;
    r = tpf_bits_f32(x) >= TPF_SIGN_F32 ? TPF_PI_F32 - (r - TPF_PI_LOW_F32) : r;
    r = tpf_with_sign_f32(r, y);
    return any & ((x != x) | (y != y)) ? x + y : r;
}

TPF_INLINE double tpf_atan2_of_f64(double y, double x, int any) {
    double ay = TPF_ABS(y), ax = TPF_ABS(x), t, k, r;
    int swap = ay > ax, mid;
    double hi = swap ? ay : ax, lo = swap ? ax : ay, scale;
    if (any) {
        scale = hi > 0x1p1022 ? 0.25 : (hi < 0x1p-500 ? 0x1p500 : 1.0);
        hi = (hi == 0.0) | (lo == TPF_INF) ? 1.0 : hi * scale;
        lo = lo == TPF_INF ? 1.0 : lo * scale;
    }
    mid = lo > hi * TPF_TAN_PI_8;
    t = (mid ? lo - hi : lo) / (mid ? lo + hi : hi);
    k = mid ? 0.25 : 0.0;
    r = k * TPF_PI_F64 + (t + TPF_FMA(k, TPF_PI_LOW_F64, tpf_atan_tail_f64(t)));
    r = swap ? 0.5 * TPF_PI_F64 - (r - 0.5 * TPF_PI_LOW_F64) : r;
    r = tpf_bits_f64(x) >= TPF_SIGN_F64 ? TPF_PI_F64 - (r - TPF_PI_LOW_F64) : r;
    r = tpf_with_sign_f64(r, y);
    return any & ((x != x) | (y != y)) ? x + y : r;
}

/* The highest bit is clear where both magnitudes are between 2^-60 and 2^60 (2^-500 and 2^500). */
TPF_INLINE uint32_t tpf_plane_not_near_f32(float a, float b) {
    uint32_t u = tpf_bits_f32(TPF_ABSF(a)), v = tpf_bits_f32(TPF_ABSF(b)), low = tpf_bits_f32(0x1p-60f);
    uint32_t high = tpf_bits_f32(0x1p60f);
    return (u - low) | (high - u) | (v - low) | (high - v);
}

TPF_INLINE uint64_t tpf_plane_not_near_f64(double a, double b) {
    uint64_t u = tpf_bits_f64(TPF_ABS(a)), v = tpf_bits_f64(TPF_ABS(b)), low = tpf_bits_f64(0x1p-500);
    uint64_t high = tpf_bits_f64(0x1p500);
    return (u - low) | (high - u) | (v - low) | (high - v);
}

TPF_INLINE float tpf_atan2_near_f32(float y, float x) { return tpf_atan2_of_f32(y, x, 0); }
TPF_INLINE double tpf_atan2_near_f64(double y, double x) { return tpf_atan2_of_f64(y, x, 0); }
TPF_INLINE float tpf_atan2_f32(float y, float x) { return tpf_atan2_of_f32(y, x, 1); }
TPF_INLINE double tpf_atan2_f64(double y, double x) { return tpf_atan2_of_f64(y, x, 1); }

/* ---- cbrt, hypot ---- */

/* For a positive normal x. A third of the bits, taken from a constant, are those of y = x^(-1/3) to 3.4%: W. Kahan's
   idea. With c = x y^2 and d = 1 - c y the root is c (1 - d)^(-2/3): c + c d p(d), fit 2^-29.5. */
TPF_INLINE float tpf_cbrt_of_f32(float x) {
    float bits = (float)(int32_t)tpf_bits_f32(x);
    float y = tpf_from_bits_f32((uint32_t)(int32_t)TPF_FMAF(bits, -0x1.555556p-2f, 1419900676.0f));
    float c = x * (y * y), d = TPF_FMAF(-c, y, 1.0f), p = 4.0693334e-01f;
    p = TPF_FMAF(p, d, 4.3080795e-01f);
    p = TPF_FMAF(p, d, 4.5262477e-01f);
    p = TPF_FMAF(p, d, 4.9377567e-01f);
    p = TPF_FMAF(p, d, 5.5555564e-01f);
    p = TPF_FMAF(p, d, 6.6666675e-01f);
    return TPF_FMAF(c * d, p, c);
}

/* The same of the upper 44 bits, after a step that makes y right to 2^-23. */
TPF_INLINE double tpf_cbrt_of_f64(double x) {
    double bits = tpf_from_bits_f64(tpf_bits_f64(x) >> 20 | UINT64_C(0x4330000000000000));
    double y = tpf_from_bits_f64(tpf_bits_f64(TPF_FMA(bits, -0x1.5555555555555p-2, 0x1.d5aa943ee08p+52)) << 20);
    double c, d = TPF_FMA(-(x * y), y * y, 1.0), p = 0.14587301743952366;
    p = TPF_FMA(p, d, 0.17460229085376464);
    p = TPF_FMA(p, d, 0.22221527556570236);
    p = TPF_FMA(p, d, 0.3333284136207321);
    y = TPF_FMA(y * d, p, y);
    c = x * (y * y);
    d = tpf_cancelling_sum(-c, y, 1.0);
    return TPF_FMA(c * d, TPF_FMA(d, 0x1.1c71c71c71c72p-1, 0x1.5555555555555p-1), c);
}

TPF_INLINE float tpf_cbrt_f32(float x) {
    float a = TPF_ABSF(x);
    int small = a < 0x1p-126f;
    float y = tpf_with_sign_f32(tpf_cbrt_of_f32(small ? a * 0x1p24f : a) * (small ? 0x1p-8f : 1.0f), x);
    return (a > 0.0f) & (a < (float)TPF_INF) ? y : x;
}

TPF_INLINE double tpf_cbrt_f64(double x) {
    double a = TPF_ABS(x);
    int small = a < 0x1p-1022;
    double y = tpf_with_sign_f64(tpf_cbrt_of_f64(small ? a * 0x1p54 : a) * (small ? 0x1p-18 : 1.0), x);
    return (a > 0.0) & (a < TPF_INF) ? y : x;
}

TPF_INLINE uint32_t tpf_magnitude_not_near_f32(float x) { return tpf_normal_not_near_f32(TPF_ABSF(x)); }
TPF_INLINE uint64_t tpf_magnitude_not_near_f64(double x) { return tpf_normal_not_near_f64(TPF_ABS(x)); }
TPF_INLINE float tpf_cbrt_near_f32(float x) { return tpf_with_sign_f32(tpf_cbrt_of_f32(TPF_ABSF(x)), x); }
TPF_INLINE double tpf_cbrt_near_f64(double x) { return tpf_with_sign_f64(tpf_cbrt_of_f64(TPF_ABS(x)), x); }

/* sqrt(a^2 + b^2), scaled where a square could overflow or lose bits. */
TPF_INLINE float tpf_hypot_f32(float a, float b) {
    float x = TPF_ABSF(a), y = TPF_ABSF(b), m = x > y ? x : y;
    float s = m > 0x1p60f ? 0x1p-70f : (m < 0x1p-50f ? 0x1p100f : 1.0f);
    float back = m > 0x1p60f ? 0x1p70f : (m < 0x1p-50f ? 0x1p-100f : 1.0f);
    float r = TPF_SQRTF(TPF_FMAF(x * s, x * s, (y * s) * (y * s))) * back;
    return (x == (float)TPF_INF) | (y == (float)TPF_INF) ? (float)TPF_INF : r;
}

TPF_INLINE double tpf_hypot_f64(double a, double b) {
    double x = TPF_ABS(a), y = TPF_ABS(b), m = x > y ? x : y;
    double s = m > 0x1p500 ? 0x1p-600 : (m < 0x1p-400 ? 0x1p600 : 1.0);
    double back = m > 0x1p500 ? 0x1p600 : (m < 0x1p-400 ? 0x1p-600 : 1.0);
    double r = TPF_SQRT(TPF_FMA(x * s, x * s, (y * s) * (y * s))) * back;
    return (x == TPF_INF) | (y == TPF_INF) ? TPF_INF : r;
}

/* ---- remainder, floor_divide ---- */

/* remainder(a, b) has the sign of b, floor_divide(a, b) is the whole number below (a - remainder) / b: the rules of
   Python and NumPy. The _near_ forms vectorise and give the same bits; they need a block in which
   tpf_divide_not_near_ finds nothing. */

/* The highest bit is clear where b is normal and the quotient below 2^21 (beyond, NumPy's float32 result is no longer
   the exact one); for float64, below 2^50, and no product can overflow or underflow. */
TPF_INLINE uint32_t tpf_divide_not_near_f32(float a, float b) {
    uint32_t ea = (tpf_bits_f32(a) >> 23) & 0xffu, eb = (tpf_bits_f32(b) >> 23) & 0xffu;
    return (eb - 1u) | (254u - eb) | (254u - ea) | (eb + 20u - ea);
}

TPF_INLINE uint64_t tpf_divide_not_near_f64(double a, double b) {
    uint64_t ea = (tpf_bits_f64(a) >> 52) & 0x7ffu, eb = (tpf_bits_f64(b) >> 52) & 0x7ffu;
    return (eb - 124u) | (1922u - eb) | (1922u - ea) | (eb + 49u - ea);
}

TPF_INLINE int tpf_divide_is_near_f32(float a, float b) { return tpf_divide_not_near_f32(a, b) < TPF_SIGN_F32; }
TPF_INLINE int tpf_divide_is_near_f64(double a, double b) { return tpf_divide_not_near_f64(a, b) < TPF_SIGN_F64; }

/* a = n b + r, r with the sign of b, |r| < |b|; found for |a| and |b|, then mirrored where the signs differ. n may be
   off by what mirroring r rounds away. */
typedef struct { double n, r; } tpf_division;

TPF_INLINE tpf_division tpf_divide_mirror(double n, double r, double a, double b) {
    double sign = tpf_with_sign_f64(1.0, tpf_from_bits_f64(tpf_bits_f64(a) ^ tpf_bits_f64(b)));
    int mirror = (sign < 0.0) & (r > 0.0);
    tpf_division z;
    z.n = tpf_with_sign_f64(mirror ? n + 1.0 : n, sign);
    z.r = tpf_with_sign_f64(mirror ? TPF_ABS(b) - r : r, b);
    return z;
}

/* The product is exact, and the quotient does not round up to a whole number. */
TPF_INLINE tpf_division tpf_divide_near_f32(float a, float b) {
    double x = TPF_ABS((double)a), y = TPF_ABS((double)b), n = TPF_TRUNC(x / y);
    return tpf_divide_mirror(n, x - n * y, a, b);
}

/* Where the quotient has rounded up to the next whole number, r comes out negative. */
TPF_INLINE tpf_division tpf_divide_near_f64(double a, double b) {
    double x = TPF_ABS(a), y = TPF_ABS(b), n = TPF_TRUNC(x / y), p = n * y;
    double r = (x - p) - tpf_product_error(n, y, p);
    n = r < 0.0 ? n - 1.0 : n;
    return tpf_divide_mirror(n, r < 0.0 ? r + y : r, a, b);
}

TPF_INLINE float tpf_remainder_near_f32(float a, float b) { return (float)tpf_divide_near_f32(a, b).r; }
TPF_INLINE double tpf_remainder_near_f64(double a, double b) { return tpf_divide_near_f64(a, b).r; }
TPF_INLINE float tpf_floor_divide_near_f32(float a, float b) { return (float)tpf_divide_near_f32(a, b).n; }
TPF_INLINE double tpf_floor_divide_near_f64(double a, double b) { return tpf_divide_near_f64(a, b).n; }

TPF_INLINE float tpf_remainder_f32(float a, float b) {
    float r;
    if (tpf_divide_is_near_f32(a, b)) return tpf_remainder_near_f32(a, b);
    r = fmodf(a, b);
    if (r == 0.0f) return tpf_with_sign_f32(0.0f, b);
    return (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

TPF_INLINE double tpf_remainder_f64(double a, double b) {
    double r;
    if (tpf_divide_is_near_f64(a, b)) return tpf_remainder_near_f64(a, b);
    r = fmod(a, b);
    if (r == 0.0) return tpf_with_sign_f64(0.0, b);
    return (r < 0.0) != (b < 0.0) ? r + b : r;
}

TPF_INLINE float tpf_floor_divide_f32(float a, float b) {
    float r, q, n;
    if (tpf_divide_is_near_f32(a, b)) return tpf_floor_divide_near_f32(a, b);
    if (b == 0.0f) return a / b;
    r = fmodf(a, b);
    q = (a - r) / b;
    q = (r != 0.0f) & ((r < 0.0f) != (b < 0.0f)) ? q - 1.0f : q;
    if (q == 0.0f) return tpf_with_sign_f32(0.0f, a / b);
    n = TPF_FLOORF(q);
    return q - n > 0.5f ? n + 1.0f : n;
}

TPF_INLINE double tpf_floor_divide_f64(double a, double b) {
    double r, q, n;
    if (tpf_divide_is_near_f64(a, b)) return tpf_floor_divide_near_f64(a, b);
    if (b == 0.0) return a / b;
    r = fmod(a, b);
    q = (a - r) / b;
    q = (r != 0.0) & ((r < 0.0) != (b < 0.0)) ? q - 1.0 : q;
    if (q == 0.0) return tpf_with_sign_f64(0.0, a / b);
    n = TPF_FLOOR(q);
    return q - n > 0.5 ? n + 1.0 : n;
}

#include "tpf_math_special.h"

#endif
