/* The scalar functions of the wider vocabulary: whole numbers, exp2 log2 log10, tan and the inverse trigonometric
   and hyperbolic functions, cbrt, hypot, logaddexp, remainder, floor_divide, nextafter, copysign. tpf_math_special.h,
   included at the end, has erf erfc erfinv lgamma digamma.

   All that tpf_math.h says of its functions holds here too: selects instead of branches, the same bits wherever an
   element stands, vectorised or not, the special values of C99 Annex F, fits made the same way. The exceptions:
   - remainder and floor_divide have a fast part and a slow one (fmod) and do not vectorise; their _near_ forms do,
     for blocks that tpf_divide_all_near_ has passed. All agree with NumPy bit for bit.
   - tan has a _near_ form, to be chosen as for sin and cos.
   - some float32 functions work in float64, where that is simplest; their results are off by little over 0.5 ULP.
   - logaddexp cancels where max(a, b) < 0: its error is in ULP of the larger of the result and that maximum.

   Measured: the largest error in ULP without and with fma, and ns an element in L1 on one AVX-512, AVX2 and SSE4 core.
   float32: 43 million bit patterns spread over all of them, and every one that matters for log2, erf and erfinv;
   float64: 4 million points; references: libm's double and long double, and mpmath.

                   float32 error    ns               float64 error    ns
     exp2            1.08  0.82   0.31 0.67  1.0      1.20  0.93   0.71  1.6  3.3
     log2            1.94  1.18   0.40 0.82  1.7      1.05  0.98    1.0  1.9  5.0
     log10           1.80  1.01   0.44 0.88  1.9      1.81  0.93    1.1  2.0  4.2
     sinh            2.30  2.30   0.43 0.72  1.6      2.25  2.25    1.1  1.8  4.9
     cosh            1.32  1.34   0.33 0.52  1.3      1.34  1.34   0.90  1.3  3.8
     asinh           1.78  1.78   0.85  1.4  3.0      1.77  1.69    2.8  3.4  6.9
     acosh           2.02  2.02   0.63  1.2  2.6      1.99  1.99    1.8  2.9  6.2
     atanh           2.03  2.07   0.63  1.0  2.4      1.85  1.85    1.8  2.5  5.8
     tan             1.74  1.74    1.6  3.4  6.2      2.18  2.18    4.9  8.0   18
       near          1.74  1.74   0.53 0.82  2.3      2.18  2.18    1.5  2.4  5.6
     asin            1.61  1.61   0.33 0.47  1.2      1.68  1.65    1.0  1.5  4.0
     acos            1.08  1.08   0.52 0.97  1.1      1.19  1.19    1.0  1.6  4.1
     atan            2.00  2.00   0.45 0.73  1.2      1.92  1.92    1.4  1.8  3.9
     atan2           2.20  2.20   0.76  1.7  3.0      1.97  1.97    1.8  4.0  9.3
     cbrt            0.97  0.74   0.57  1.3  2.6      0.95  0.74    1.4  2.9  6.2
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

/* 2^n (1 + r g(r)), |r| <= 1/2; fit 2^-27.5. */
TPF_INLINE float tpf_exp2_f32(float x) {
    float t = tpf_clamp_f32(x, -160.0f, 129.0f), shifted = t + TPF_SHIFT_F32;
    float r = t - (shifted - TPF_SHIFT_F32), g = 1.5825227e-04f;
    g = TPF_FMAF(g, r, 1.3417747e-03f);
    g = TPF_FMAF(g, r, 9.61706e-03f);
    g = TPF_FMAF(g, r, 5.5502728e-02f);
    g = TPF_FMAF(g, r, 2.4022655e-01f);
    g = TPF_FMAF(g, r, 6.9314724e-01f);
    return tpf_scale_f32(TPF_FMAF(g, r, 1.0f), shifted);
}

TPF_INLINE double tpf_exp2_f64(double x) {
    double t = tpf_clamp_f64(x, -1080.0, 1025.0), shifted = t + TPF_SHIFT_F64;
    return tpf_scale_f64(tpf_exp2_poly_long(t - (shifted - TPF_SHIFT_F64)), shifted);
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

/* y, computed for a positive finite x, and what log gives elsewhere. */
TPF_INLINE float tpf_log_specials_f32(float x, float y) {
    y = x > 0.0f ? y : (x == 0.0f ? -(float)TPF_INF : (float)TPF_NAN);
    return x < (float)TPF_INF ? y : x;
}

TPF_INLINE double tpf_log_specials_f64(double x, double y) {
    y = x > 0.0 ? y : (x == 0.0 ? -TPF_INF : TPF_NAN);
    return x < TPF_INF ? y : x;
}

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

TPF_INLINE float tpf_log2_f32(float x) {
    int small = x < 0x1p-126f;
    tpf_parts_f32 z = tpf_split_f32(small ? x * 0x1p23f : x);
    float n = (float)(int32_t)(z.biased - (small ? 150u : 127u)), f = z.m - 1.0f;
    float y = TPF_FMAF(f, TPF_LOG2_E_LOW_F32, f * f * tpf_log2_tail_f32(f));
    return tpf_log_specials_f32(x, n + TPF_FMAF(f, TPF_LOG2_E_F32, y));
}

TPF_INLINE double tpf_log2_f64(double x) {
    int small = x < 0x1p-1022;
    tpf_parts_f64 z = tpf_split_f64(small ? x * 0x1p52 : x);
    double n = tpf_exponent_f64(z.biased, small ? 1075.0 : 1023.0), f = z.m - 1.0, p = f * TPF_LOG2_E_F64;
    double y = TPF_FMA(f, TPF_LOG2_E_LOW_F64, tpf_product_error(f, TPF_LOG2_E_F64, p));
    y = TPF_FMA(tpf_log_tail_f64(f), -TPF_LOG2_E_F64, y);
    return tpf_log_specials_f64(x, n + (p + y));
}

/* Exact at the powers of ten, for what is added to n log10(2) is small beside it. */
TPF_INLINE float tpf_log10_f32(float x) {
    int small = x < 0x1p-126f;
    tpf_parts_f32 z = tpf_split_f32(small ? x * 0x1p23f : x);
    float n = (float)(int32_t)(z.biased - (small ? 150u : 127u)), f = z.m - 1.0f;
    float y = TPF_FMAF(f, TPF_LOG10_E_LOW_F32, f * f * (tpf_log2_tail_f32(f) * 0x1.344136p-2f));
    y = TPF_FMAF(f, TPF_LOG10_E_F32, TPF_FMAF(n, TPF_LOG10_2_LO_F32, y));
    return tpf_log_specials_f32(x, TPF_FMAF(n, TPF_LOG10_2_HI_F32, y));
}

TPF_INLINE double tpf_log10_f64(double x) {
    int small = x < 0x1p-1022;
    tpf_parts_f64 z = tpf_split_f64(small ? x * 0x1p52 : x);
    double n = tpf_exponent_f64(z.biased, small ? 1075.0 : 1023.0), f = z.m - 1.0;
    double y = TPF_FMA(f, TPF_LOG10_E_LOW_F64, -(tpf_log_tail_f64(f) * TPF_LOG10_E_F64));
    y = TPF_FMA(f, TPF_LOG10_E_F64, TPF_FMA(n, TPF_LOG10_2_LO_F64, y));
    return tpf_log_specials_f64(x, TPF_FMA(n, TPF_LOG10_2_HI_F64, y));
}

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

TPF_INLINE double tpf_asinh_f64(double x) {
    double a = TPF_ABS(x), w = a * a, b = a + w / (1.0 + TPF_SQRT(w + 1.0));
    int big = a > 0x1p28;
    return tpf_with_sign_f64(tpf_log1p_plus_f64(big ? a - 1.0 : b, big ? 1.0 : 0.0), x);
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

/* log1p(2 a / (1 - a)) / 2; beyond 1 the argument is negative: NaN. */
TPF_INLINE float tpf_atanh_f32(float x) {
    float a = TPF_ABSF(x);
    return tpf_with_sign_f32(0.5f * tpf_log1p_plus_f32(2.0f * a / (1.0f - a), 0.0f), x);
}

TPF_INLINE double tpf_atanh_f64(double x) {
    double a = TPF_ABS(x);
    return tpf_with_sign_f64(0.5 * tpf_log1p_plus_f64(2.0 * a / (1.0 - a), 0.0), x);
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

TPF_INLINE float tpf_acos_f32(float x) {
    float a = TPF_ABSF(x), z = a > 0.5f ? TPF_FMAF(-0.5f, a, 0.5f) : a * a, s = a > 0.5f ? TPF_SQRTF(z) : x;
    float t = tpf_asin_tail_f32(s, z), y = 2.0f * (s + t);
    y = x < 0.0f ? TPF_PI_F32 - (y - TPF_PI_LOW_F32) : y;
    return a > 0.5f ? y : 0.5f * TPF_PI_F32 - (s + (t - 0.5f * TPF_PI_LOW_F32));
}

TPF_INLINE double tpf_acos_f64(double x) {
    double a = TPF_ABS(x), z = a > 0.5 ? TPF_FMA(-0.5, a, 0.5) : a * a, s = a > 0.5 ? TPF_SQRT(z) : x;
    double t = tpf_asin_tail_f64(s, z), y = 2.0 * (s + t);
    y = x < 0.0 ? TPF_PI_F64 - (y - TPF_PI_LOW_F64) : y;
    return a > 0.5 ? y : 0.5 * TPF_PI_F64 - (s + (t - 0.5 * TPF_PI_LOW_F64));
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

/* The angle of (larger, smaller), from 0 to pi/4, then mirrored at pi/4, pi/2 and 0. Scaled where lo + hi could
   overflow or hi tan(pi/8) be subnormal. */
TPF_INLINE float tpf_atan2_f32(float y, float x) {
    float ay = TPF_ABSF(y), ax = TPF_ABSF(x), t, k, r;
    int swap = ay > ax, mid;
    float hi = swap ? ay : ax, lo = swap ? ax : ay, scale;
    scale = hi > 0x1p126f ? 0.25f : (hi < 0x1p-60f ? 0x1p60f : 1.0f);
    hi = (hi == 0.0f) | (lo == (float)TPF_INF) ? 1.0f : hi * scale;
    lo = lo == (float)TPF_INF ? 1.0f : lo * scale;
    mid = lo > hi * (float)TPF_TAN_PI_8;
    t = (mid ? lo - hi : lo) / (mid ? lo + hi : hi);
    k = mid ? 0.25f : 0.0f;
    r = k * TPF_PI_F32 + (t + TPF_FMAF(k, TPF_PI_LOW_F32, tpf_atan_tail_f32(t)));
    r = swap ? 0.5f * TPF_PI_F32 - (r - 0.5f * TPF_PI_LOW_F32) : r;
    r = tpf_bits_f32(x) >= TPF_SIGN_F32 ? TPF_PI_F32 - (r - TPF_PI_LOW_F32) : r;
    r = tpf_with_sign_f32(r, y);
    return (x != x) | (y != y) ? x + y : r;
}

TPF_INLINE double tpf_atan2_f64(double y, double x) {
    double ay = TPF_ABS(y), ax = TPF_ABS(x), t, k, r;
    int swap = ay > ax, mid;
    double hi = swap ? ay : ax, lo = swap ? ax : ay, scale;
    scale = hi > 0x1p1022 ? 0.25 : (hi < 0x1p-500 ? 0x1p500 : 1.0);
    hi = (hi == 0.0) | (lo == TPF_INF) ? 1.0 : hi * scale;
    lo = lo == TPF_INF ? 1.0 : lo * scale;
    mid = lo > hi * TPF_TAN_PI_8;
    t = (mid ? lo - hi : lo) / (mid ? lo + hi : hi);
    k = mid ? 0.25 : 0.0;
    r = k * TPF_PI_F64 + (t + TPF_FMA(k, TPF_PI_LOW_F64, tpf_atan_tail_f64(t)));
    r = swap ? 0.5 * TPF_PI_F64 - (r - 0.5 * TPF_PI_LOW_F64) : r;
    r = tpf_bits_f64(x) >= TPF_SIGN_F64 ? TPF_PI_F64 - (r - TPF_PI_LOW_F64) : r;
    r = tpf_with_sign_f64(r, y);
    return (x != x) | (y != y) ? x + y : r;
}

/* ---- cbrt, hypot ---- */

/* |x| = w 8^q with w = m 2^(-1, 0 or 1). y ~ w^(-1/3), from a polynomial in m (fit 2^-17.4), gives the root
   c = w y^2 and the slope of a Newton step on c^3 = w. */
TPF_INLINE float tpf_cbrt_f32(float x) {
    float a = TPF_ABSF(x);
    int small = a < 0x1p-126f;
    tpf_parts_f32 z = tpf_split_f32(small ? a * 0x1p24f : a);
    float e = (float)(int32_t)(z.biased - (small ? 151u : 127u)), f = z.m - 1.0f;
    float shifted = TPF_FMAF(e, 0x1.555556p-2f, TPF_SHIFT_F32), rest = TPF_FMAF(shifted - TPF_SHIFT_F32, -3.0f, e);
    float w = z.m * (rest == 0.0f ? 1.0f : (rest > 0.0f ? 2.0f : 0.5f)), v, c, y = -1.0714575e-01f;
    y = TPF_FMAF(y, f, 1.6030565e-01f);
    y = TPF_FMAF(y, f, -1.7594096e-01f);
    y = TPF_FMAF(y, f, 2.2161211e-01f);
    y = TPF_FMAF(y, f, -3.332577e-01f);
    y = TPF_FMAF(y, f, 1.0000038e+00f);
    y *= rest == 0.0f ? 1.0f : (rest > 0.0f ? 0.7937005f : 1.2599211f);
    v = y * y;
    c = w * v;
    c = TPF_FMAF(TPF_FMAF(-c * c, c, w) * v, 0x1.555556p-2f, c);
    c = tpf_with_sign_f32(c * tpf_power_of_two_f32(shifted), x);
    return (a > 0.0f) & (a < (float)TPF_INF) ? c : x;
}

/* The same (fit 2^-14.7), after a step of third order on y. */
TPF_INLINE double tpf_cbrt_f64(double x) {
    double a = TPF_ABS(x);
    int small = a < 0x1p-1022;
    tpf_parts_f64 z = tpf_split_f64(small ? a * 0x1p54 : a);
    double e = tpf_exponent_f64(z.biased, small ? 1077.0 : 1023.0), f = z.m - 1.0;
    double shifted = TPF_FMA(e, 0x1.5555555555555p-2, TPF_SHIFT_F64);
    double rest = TPF_FMA(shifted - TPF_SHIFT_F64, -3.0, e);
    double w = z.m * (rest == 0.0 ? 1.0 : (rest > 0.0 ? 2.0 : 0.5)), v, c, d, y = 0.12837092943684072;
    y = TPF_FMA(y, f, -0.18890929478072493);
    y = TPF_FMA(y, f, 0.22436250511149036);
    y = TPF_FMA(y, f, -0.3329015284686532);
    y = TPF_FMA(y, f, 0.999976578710395);
    y *= rest == 0.0 ? 1.0 : (rest > 0.0 ? 0.7937005259840998 : 1.2599210498948732);
    d = TPF_FMA(-w * y, y * y, 1.0);
    y = TPF_FMA(y * d, TPF_FMA(d, 0x1.c71c71c71c71cp-3, 0x1.5555555555555p-2), y);
    v = y * y;
    c = w * v;
    c = TPF_FMA(TPF_FMA(-c * c, c, w) * v, 0x1.5555555555555p-2, c);
    c = tpf_with_sign_f64(c * tpf_power_of_two_f64(shifted), x);
    return (a > 0.0) & (a < TPF_INF) ? c : x;
}

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
   Python and NumPy. The _near_ forms vectorise and give the same bits; they need tpf_divide_is_near_. */

/* The highest bit is clear where b is normal and the quotient below 2^21 (beyond, NumPy's float32 result is no longer
   the exact one); for float64, below 2^50, and no product can overflow or underflow. */
TPF_INLINE uint32_t tpf_divide_beyond_f32(float a, float b) {
    uint32_t ea = (tpf_bits_f32(a) >> 23) & 0xffu, eb = (tpf_bits_f32(b) >> 23) & 0xffu;
    return (eb - 1u) | (254u - eb) | (254u - ea) | (eb + 20u - ea);
}

TPF_INLINE uint64_t tpf_divide_beyond_f64(double a, double b) {
    uint64_t ea = (tpf_bits_f64(a) >> 52) & 0x7ffu, eb = (tpf_bits_f64(b) >> 52) & 0x7ffu;
    return (eb - 124u) | (1922u - eb) | (1922u - ea) | (eb + 49u - ea);
}

TPF_INLINE int tpf_divide_is_near_f32(float a, float b) { return tpf_divide_beyond_f32(a, b) < TPF_SIGN_F32; }
TPF_INLINE int tpf_divide_is_near_f64(double a, double b) { return tpf_divide_beyond_f64(a, b) < TPF_SIGN_F64; }

/* 1 if the whole block is near. */
TPF_INLINE int tpf_divide_all_near_f32(const float *a, const float *b, int64_t n) {
    uint32_t beyond = 0;
    for (int64_t i = 0; i < n; i++) beyond |= tpf_divide_beyond_f32(a[i], b[i]);
    return beyond < TPF_SIGN_F32;
}

TPF_INLINE int tpf_divide_all_near_f64(const double *a, const double *b, int64_t n) {
    uint64_t beyond = 0;
    for (int64_t i = 0; i < n; i++) beyond |= tpf_divide_beyond_f64(a[i], b[i]);
    return beyond < TPF_SIGN_F64;
}

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
