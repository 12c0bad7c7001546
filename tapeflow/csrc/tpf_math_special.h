/* erf erfc erfinv lgamma digamma, on the terms of tpf_math_more.h, which includes this file.

   Where the forms come from: exp(a^2) erfc(a) as a polynomial in (a - k) / (a + k) from M. M. Shepherd and
   J. G. Laframboise (Math. Comp. 36, 1981); the division of erfinv's domain, with sqrt(-log(1 - x)) in the tail, from
   M. J. Wichura (Algorithm AS 241, 1988); Stirling's series, recurrences and reflection from Abramowitz and Stegun,
   6.1 and 6.3. The coefficients are our own minimax fits; quotients of polynomials by weighted least squares whose
   weights are adapted until the error is level.

   lgamma and digamma: for x > 0 the error is in ULP of the result, at their zeros included; for x < 0, in
   units of epsilon * max(1, |x|, |x log|x||, |result|). lgamma(-inf) is inf, as in C; erfinv(-0) is -0.

                   float32 error    ns               float64 error    ns
     erf             1.30  1.13   0.47 0.82  2.5      1.38  1.37    1.6  2.8  8.3
     erfc            0.53  0.53    1.2  2.1  5.1      3.70  3.66    2.9  5.1   15
     erfinv          3.03  3.03   0.90  1.4  3.6      3.69  3.69    3.1  4.2   12
     lgamma          0.51  0.51    4.3  9.1   21      6.91  5.67    5.8   13   26
       x < 0       0.50                         2.50   (in those units)
     digamma         0.57  0.57    3.8  7.5   15      5.20  5.20    4.2  8.7   22
       x < 0       0.51                         5.56 */
#ifndef TPF_MATH_SPECIAL_H
#define TPF_MATH_SPECIAL_H

#include "tpf_math_more.h"

/* ---- erf, erfc, erfinv ---- */

/* Below 0.9, a + a p(a^2), fit 2^-26; above, 1 - exp(q(a)), fit of q 2^-29.1 relative to erf. */
TPF_INLINE float tpf_erf_f32(float x) {
    float a = TPF_ABSF(x), w = a * a, p = -6.0207467e-04f, q = 1.9821781e-04f;
    float b = a > 4.0f ? 4.0f : a;
    tpf_reduced_f32 z;
    p = TPF_FMAF(p, w, 4.9989526e-03f);
    p = TPF_FMAF(p, w, -2.6770491e-02f);
    p = TPF_FMAF(p, w, 1.1281922e-01f);
    p = TPF_FMAF(p, w, -3.7612504e-01f);
    p = TPF_FMAF(p, w, 1.2837915e-01f);
    q = TPF_FMAF(q, b, -3.0654722e-03f);
    q = TPF_FMAF(q, b, 2.2315156e-02f);
    q = TPF_FMAF(q, b, -1.041136e-01f);
    q = TPF_FMAF(q, b, -6.369761e-01f);
    q = TPF_FMAF(q, b, -1.1277972e+00f);
    q = TPF_FMAF(q, b, -1.6644108e-04f);
    p = TPF_FMAF(a, p, a);
    z = tpf_reduce_exp_f32(q);
    q = 1.0f - tpf_power_of_two_f32(z.shifted) * (1.0f + tpf_expm1_poly_f32(z.r, 0.0f));
    return tpf_with_sign_f32(a > 0.9f ? q : p, x);
}

/* p in erf(x) = x + x p(x^2) for |x| <= 0.9; fit 2^-54.3. */
TPF_INLINE double tpf_erf_poly_f64(double w) {
    double p = 1.0249150242568838e-08;
    p = TPF_FMA(p, w, -1.5541143697415232e-07);
    p = TPF_FMA(p, w, 1.6374908964717224e-06);
    p = TPF_FMA(p, w, -1.4919842984675905e-05);
    p = TPF_FMA(p, w, 0.00012055082662260129);
    p = TPF_FMA(p, w, -0.0008548320060693906);
    p = TPF_FMA(p, w, 0.005223977504268922);
    p = TPF_FMA(p, w, -0.02686617063279116);
    p = TPF_FMA(p, w, 0.1128379167089048);
    p = TPF_FMA(p, w, -0.37612638903182427);
    p = TPF_FMA(p, w, 0.12837916709551253);
    return p;
}

/* exp(a^2) erfc(a) = h q(t) with h = 1 / (a + k), t = (a - k) h. From 0.9 on, 1 - exp(-a^2) h q(t), k = 3,
   fit 2^-56.1 relative to erf. */
TPF_INLINE double tpf_erf_f64(double x) {
    double a = TPF_ABS(x), p = tpf_erf_poly_f64(a * a);
    double b = a > 6.0 ? 6.0 : a, h = 1.0 / (b + 3.0), t = (b - 3.0) * h, q = 4.399319104257654e-05;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(-b * b);
    q = TPF_FMA(q, t, 0.00010088628469707498);
    q = TPF_FMA(q, t, -0.0002966791770627777);
    q = TPF_FMA(q, t, -0.0005653344574614792);
    q = TPF_FMA(q, t, 0.003025784848775663);
    q = TPF_FMA(q, t, -0.001214965802222817);
    q = TPF_FMA(q, t, -0.02682773908657955);
    q = TPF_FMA(q, t, 0.1195276998569738);
    q = TPF_FMA(q, t, -0.3104672658817091);
    q = TPF_FMA(q, t, 0.5902283570410245);
    q = TPF_FMA(q, t, -0.8833944531639625);
    q = TPF_FMA(q, t, 1.074006907088546);
    p = TPF_FMA(a, p, a);
    q = 1.0 - tpf_power_of_two_f64(z.shifted) * (1.0 + tpf_expm1_poly_f64(z.r, 0.0)) * (q * h);
    return tpf_with_sign_f64(a > 0.9 ? q : p, x);
}

/* The same form from 0 on; k = 3, fit 2^-29.2. */
TPF_INLINE double tpf_erfc_short(double x) {
    double a = tpf_clamp_f64(TPF_ABS(x), 0.0, 10.2), h = 1.0 / (a + 3.0), t = (a - 3.0) * h;
    double q = 7.776248076578992e-06;
    q = TPF_FMA(q, t, -0.00031219210043356845);
    q = TPF_FMA(q, t, -0.00048421285843257733);
    q = TPF_FMA(q, t, 0.00307046241436402);
    q = TPF_FMA(q, t, -0.0012278866395736786);
    q = TPF_FMA(q, t, -0.026837189602248516);
    q = TPF_FMA(q, t, 0.11952945837864772);
    q = TPF_FMA(q, t, -0.31046628898426515);
    q = TPF_FMA(q, t, 0.5902282756051691);
    q = TPF_FMA(q, t, -0.8833944780244057);
    q = TPF_FMA(q, t, 1.0740069079011392);
    q *= tpf_exp_short(-a * a) * h;
    return x < 0.0 ? 2.0 - q : q;
}

TPF_INLINE float tpf_erfc_f32(float x) { return (float)tpf_erfc_short(x); }

/* 1 - x - x p(x^2) below 0.9; from there on, k = 4, fit 2^-53.9. What the roundings of a + 4, of h and of a^2 lost
   goes into t and the exponential. */
/* factor * erfc(x + low). */
TPF_INLINE double tpf_erfc_times(double x, double low, double factor) {
    double a = tpf_clamp_f64(TPF_ABS(x), 0.0, 27.3), w = a * a, d = a + 4.0, h = 1.0 / d, back = h * d;
    double lost = ((1.0 - back) - tpf_product_error(h, d, back)) - h * (a - (d - 4.0));
    double t = TPF_FMA(-8.0 * h, lost, 1.0 - 8.0 * h), p, y, q_low, q = -1.4165699398518913e-08;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(-w);
    q = TPF_FMA(q, t, 1.0023953695313726e-07);
    q = TPF_FMA(q, t, -4.663670927172716e-08);
    q = TPF_FMA(q, t, -8.310046393580934e-07);
    q = TPF_FMA(q, t, 1.400937734451309e-06);
    q = TPF_FMA(q, t, 4.689777421897639e-06);
    q = TPF_FMA(q, t, -1.885065228365572e-05);
    q = TPF_FMA(q, t, -3.6346301019624083e-06);
    q = TPF_FMA(q, t, 0.0001768101398010189);
    q = TPF_FMA(q, t, -0.0004550526286365573);
    q = TPF_FMA(q, t, -0.00028095844132458483);
    q = TPF_FMA(q, t, 0.006112055631994643);
    q = TPF_FMA(q, t, -0.02637005337981684);
    q = TPF_FMA(q, t, 0.0763815149119663);
    q = TPF_FMA(q, t, -0.1740109372379417);
    q = TPF_FMA(q, t, 0.33085158787788815);
    q = TPF_FMA(q, t, -0.5408538313132808);
    q = TPF_FMA(q, t, 0.7732087022652392);
    q = TPF_FMA(q, t, -0.9765487290808816);
    y = TPF_FMA(q, t, 1.095995661000491);
    q_low = TPF_FMA(q, t, 1.095995661000491 - y); /* what that rounding lost */
    q = y;
    p = tpf_expm1_poly_f64(z.r, z.low);
    p = TPF_FMA(lost - tpf_product_error(a, a, w) - 2.0 * a * low, 1.0 + p, p);
    y = q * h;
    y = (y + TPF_FMA(y, p, TPF_FMA(q_low, h, tpf_product_error(q, h, y)))) * factor;
    q = tpf_scale_f64(y, z.shifted);
    q = x < 0.0 ? 2.0 * factor - q : q;
    p = TPF_FMA(-x, tpf_erf_poly_f64(w), 1.0 - x) * factor;
    return a < 0.9 ? p : q;
}

TPF_INLINE double tpf_erfc_f64(double x) { return tpf_erfc_times(x, 0.0, 1.0); }

/* a + a g(0.64 - a^2) up to a = 0.8; beyond, s + g(s - 1.25) with s = sqrt(-log(1 - a)); each g is a quotient of
   polynomials. Fits 2^-26.3 and 2^-25.3 relative to erfinv. */
TPF_INLINE float tpf_erfinv_f32(float x) {
    float a = TPF_ABSF(x), y, s, t, r = TPF_FMAF(-a, a, 0.64f);
    int tail = a > 0.8f;
    tpf_parts_f32 z = tpf_split_f32(1.0f - a);
    float pm = -4.3412593e-01f, qm = 6.185512e-01f, pt = -1.0136098e-03f, qt = 5.1492214e-02f;
    s = TPF_SQRTF(-tpf_log_core_f32(z.m - 1.0f, (float)(int32_t)(z.biased - 127u)));
    t = s - 1.25f;
    pm = TPF_FMAF(pm, r, -1.0667294e+00f);
    pm = TPF_FMAF(pm, r, -2.0790125e-01f);
    pm = TPF_FMAF(pm, r, 1.3274224e-01f);
    qm = TPF_FMAF(qm, r, 3.3253863e+00f);
    qm = TPF_FMAF(qm, r, 3.623734e+00f);
    qm = TPF_FMAF(qm, r, 1.0f);
    pt = TPF_FMAF(pt, t, -9.674939e-02f);
    pt = TPF_FMAF(pt, t, -4.1038686e-01f);
    pt = TPF_FMAF(pt, t, -3.6283922e-01f);
    qt = TPF_FMAF(qt, t, 4.8804712e-01f);
    qt = TPF_FMAF(qt, t, 1.1868887e+00f);
    qt = TPF_FMAF(qt, t, 1.0f);
    y = (tail ? pt : pm * a) / (tail ? qt : qm) + (tail ? s : a);
    y = a < 1.0f ? y : (a == 1.0f ? (float)TPF_INF : (float)TPF_NAN);
    return tpf_with_sign_f32(y, x);
}

/* Fits 2^-54.1 and 2^-52.6. */
TPF_INLINE double tpf_erfinv_f64(double x) {
    double a = TPF_ABS(x), y, s, t, r = TPF_FMA(-a, a, 0.64);
    int tail = a > 0.8;
    tpf_parts_f64 z = tpf_split_f64(1.0 - a);
    double pm = -0.001590809338463093, qm = 0.5068949867927278;
    double pt = -2.6879562673205603e-06, qt = 7.695555274137045e-07;
    s = TPF_SQRT(-tpf_log_core_f64(z.m - 1.0, tpf_exponent_f64(z.biased, 1023.0)));
    t = s - 1.25;
    pm = TPF_FMA(pm, r, -0.37888900728246167);
    pm = TPF_FMA(pm, r, -3.0140401231620633);
    pm = TPF_FMA(pm, r, -6.875189836422679);
    pm = TPF_FMA(pm, r, -5.728433001249059);
    pm = TPF_FMA(pm, r, -1.3350407332010659);
    pm = TPF_FMA(pm, r, 0.34908372956965705);
    pm = TPF_FMA(pm, r, 0.13274225304602896);
    qm = TPF_FMA(qm, r, 5.97317675433171);
    qm = TPF_FMA(qm, r, 21.195306912745764);
    qm = TPF_FMA(qm, r, 32.030324221124836);
    qm = TPF_FMA(qm, r, 23.0803428447945);
    qm = TPF_FMA(qm, r, 7.8197436682280275);
    qm = TPF_FMA(qm, r, 1.0);
    pt = TPF_FMA(pt, t, -0.0003293307101672643);
    pt = TPF_FMA(pt, t, -0.009143182767365329);
    pt = TPF_FMA(pt, t, -0.09097470641078637);
    pt = TPF_FMA(pt, t, -0.39207046350424757);
    pt = TPF_FMA(pt, t, -0.827118058968918);
    pt = TPF_FMA(pt, t, -0.8679004745167338);
    pt = TPF_FMA(pt, t, -0.36283926932147736);
    qt = TPF_FMA(qt, t, 0.00013746267119270293);
    qt = TPF_FMA(qt, t, 0.005188217973110292);
    qt = TPF_FMA(qt, t, 0.07138546947518487);
    qt = TPF_FMA(qt, t, 0.4460993239636322);
    qt = TPF_FMA(qt, t, 1.4413974409261217);
    qt = TPF_FMA(qt, t, 2.5713327488699473);
    qt = TPF_FMA(qt, t, 2.4478214286037625);
    qt = TPF_FMA(qt, t, 1.0);
    y = (tail ? pt : pm * a) / (tail ? qt : qm) + (tail ? s : a);
    y = a < 1.0 ? y : (a == 1.0 ? TPF_INF : TPF_NAN);
    return tpf_with_sign_f64(y, x);
}

/* ---- lgamma, digamma ---- */

/* Both take float32 in float64, with shorter polynomials. */

/* lgamma(x) for -1/2 < x < 8 is t r(t) + log|product| with t = x - n - 2, |t| <= 1/2: t r(t) = lgamma(2 + t), and the
   product is (x - 1) ... (x - n), or 1 / x or 1 / (x (x + 1)) where n is -1 or -2. From 8 on, Stirling's
   series. Both need one logarithm, that of arg. */
typedef struct { double t, arg; int inverse, large; } tpf_gamma_step;

TPF_INLINE tpf_gamma_step tpf_lgamma_step(double x) {
    tpf_gamma_step z;
    double product = 1.0;
    z.large = x >= 8.0;
    z.inverse = x < 1.5;
    z.t = x - (TPF_FLOOR(x - 1.5) + 2.0);
    product *= x - 1.0 >= 1.5 ? x - 1.0 : 1.0;
    product *= x - 2.0 >= 1.5 ? x - 2.0 : 1.0;
    product *= x - 3.0 >= 1.5 ? x - 3.0 : 1.0;
    product *= x - 4.0 >= 1.5 ? x - 4.0 : 1.0;
    product *= x - 5.0 >= 1.5 ? x - 5.0 : 1.0;
    product *= x - 6.0 >= 1.5 ? x - 6.0 : 1.0;
    product = z.inverse ? (x < 0.5 ? TPF_ABS(x * (x + 1.0)) : x) : product;
    z.arg = z.large ? x : product;
    return z;
}

/* The sum of the parts: log_arg = log(arg), r = r(t), s = Stirling's series, a polynomial in 1 / x^2 over x. */
TPF_INLINE double tpf_lgamma_sum(tpf_gamma_step z, double x, double log_arg, double r, double s) {
    double large = TPF_FMA(x - 0.5, log_arg - 1.0, 0.4189385332046727 + s); /* log(2 pi) / 2 - 1/2 */
    return z.large ? large : TPF_FMA(z.t, r, z.inverse ? -log_arg : log_arg);
}

/* |sin(pi a)|. */
TPF_INLINE double tpf_abs_sin_pi(double a) {
    double b = TPF_ABS(a - TPF_RINT(a));
    int outer = b > 0.25;
    tpf_quarter_turn t = {TPF_PI_F64 * (outer ? b - 0.5 : b), 0.0, 0};
    t.quadrant = (uint64_t)outer;
    return tpf_quarter_turn_sin(t);
}

/* Up to -1/2 by reflection: log(pi / (a |sin(pi a)|)) - lgamma(a), a = -x. The poles, 0 and the negative whole
   numbers, give infinity. */
TPF_INLINE double tpf_lgamma_reflect(double x, double y, double log_sine) {
    y = x <= -0.5 ? (1.1447298858494002 - log_sine) - y : y; /* log(pi) */
    return (x <= 0.0) & (TPF_RINT(x) == x) ? TPF_INF : y;
}

/* log to 2^-35 for float32 functions that work in float64: x is not subnormal. */
TPF_INLINE double tpf_log_brief(double x) {
    tpf_parts_f64 z = tpf_split_f64(x);
    double y = TPF_FMA(tpf_exponent_f64(z.biased, 1023.0), 0x1.62e42fefa39efp-1, tpf_log_short(z.m - 1.0));
    return tpf_log_specials_f64(x, y);
}

/* Fits: r 2^-31.8, s 2^-33.5 relative to lgamma. */
TPF_INLINE float tpf_lgamma_f32(float x) {
    double a = x <= -0.5f ? -(double)x : x, inverse = 1.0 / a, w = inverse * inverse;
    double r = 0.00012236151908524812, s = -0.0027598838886931983;
    tpf_gamma_step z = tpf_lgamma_step(a);
    r = TPF_FMA(r, z.t, -0.0002536188329737418);
    r = TPF_FMA(r, z.t, 0.0005015182579674657);
    r = TPF_FMA(r, z.t, -0.0011859591340855618);
    r = TPF_FMA(r, z.t, 0.0028917323513587903);
    r = TPF_FMA(r, z.t, -0.007386158681514125);
    r = TPF_FMA(r, z.t, 0.02058073442747642);
    r = TPF_FMA(r, z.t, -0.06735228224429772);
    r = TPF_FMA(r, z.t, 0.32246703468761595);
    r = TPF_FMA(r, z.t, 0.42278433500646073);
    s = TPF_FMA(s, w, 0.08333323982268448);
    s = tpf_lgamma_sum(z, a, tpf_log_brief(z.arg), r, s * inverse);
    return (float)tpf_lgamma_reflect(x, s, tpf_log_brief(a * tpf_abs_sin_pi(a)));
}

/* Fits: r 2^-55.7, s 2^-62.8. */
TPF_INLINE double tpf_lgamma_f64(double x) {
    double a = x <= -0.5 ? -x : x, inverse = 1.0 / a, w = inverse * inverse;
    double r = 2.977006446265744e-07, s = -0.0016090408429144522;
    tpf_gamma_step z = tpf_lgamma_step(a);
    r = TPF_FMA(r, z.t, -5.806114979033464e-07);
    r = TPF_FMA(r, z.t, 8.999075365500017e-07);
    r = TPF_FMA(r, z.t, -1.974827244425021e-06);
    r = TPF_FMA(r, z.t, 4.393518173814834e-06);
    r = TPF_FMA(r, z.t, -9.456078523679521e-06);
    r = TPF_FMA(r, z.t, 2.0503544641694903e-05);
    r = TPF_FMA(r, z.t, -4.492377202342067e-05);
    r = TPF_FMA(r, z.t, 9.945794408721875e-05);
    r = TPF_FMA(r, z.t, -0.00022315497224709705);
    r = TPF_FMA(r, z.t, 0.0005096694951211698);
    r = TPF_FMA(r, z.t, -0.0011927539013307108);
    r = TPF_FMA(r, z.t, 0.002890510331841288);
    r = TPF_FMA(r, z.t, -0.007385551028925137);
    r = TPF_FMA(r, z.t, 0.02058080842776597);
    r = TPF_FMA(r, z.t, -0.06735230105319576);
    r = TPF_FMA(r, z.t, 0.3224670334241133);
    r = TPF_FMA(r, z.t, 0.42278433509846713);
    s = TPF_FMA(s, w, 0.0008353210884211474);
    s = TPF_FMA(s, w, -0.0005951698692036532);
    s = TPF_FMA(s, w, 0.0007936504188038473);
    s = TPF_FMA(s, w, -0.002777777776804937);
    s = TPF_FMA(s, w, 0.08333333333333245);
    s = tpf_lgamma_sum(z, a, tpf_log_f64(z.arg), r, s * inverse);
    return tpf_lgamma_reflect(x, s, tpf_log_f64(a * tpf_abs_sin_pi(a)));
}

/* digamma(x) for 0 <= x < 8 is digamma(1 + u) + quotient, u = x - floor(x): the quotient is 1 / (x - 1) + ... +
   1 / (1 + u), or -1 / x below 1. From 8 on, log(x) - quotient / 2 - Stirling's series, the quotient being 1 / x. */
typedef struct { double u, quotient; } tpf_digamma_parts;

TPF_INLINE tpf_digamma_parts tpf_digamma_step(double x) {
    double num = 0.0, den = 1.0, f;
    tpf_digamma_parts z;
    z.u = x - TPF_FLOOR(x);
#define TPF_DIGAMMA_TERM(i) \
    f = x - i; \
    num = f >= 1.0 ? TPF_FMA(num, f, den) : num; \
    den = f >= 1.0 ? den * f : den;
    TPF_DIGAMMA_TERM(1.0)
    TPF_DIGAMMA_TERM(2.0)
    TPF_DIGAMMA_TERM(3.0)
    TPF_DIGAMMA_TERM(4.0)
    TPF_DIGAMMA_TERM(5.0)
    TPF_DIGAMMA_TERM(6.0)
#undef TPF_DIGAMMA_TERM
    num = x < 1.0 ? -1.0 : (x < 8.0 ? num : 1.0);
    den = (x < 1.0) | (x >= 8.0) ? x : den;
    z.quotient = num / den;
    return z;
}

/* log_x = log(x), r = digamma(1 + u) / (u - u0) with u0 its zero, s = Stirling's series in w = 1 / x^2. */
TPF_INLINE double tpf_digamma_sum(tpf_digamma_parts z, double x, double log_x, double r, double s, double w) {
    double small = TPF_FMA((z.u - 0x1.d8b618d5af8fep-2) + 0x1.1e563779a1f5bp-56, r, z.quotient);
    double large = log_x - TPF_FMA(w, s, 0.5 * z.quotient);
    return x < 8.0 ? small : large;
}

/* digamma(x) = digamma(1 - x) + pi cot(pi a), a = -x, for x < 0; its poles give NaN, 0 infinity. */
TPF_INLINE double tpf_digamma_reflect(double x, double y) {
    double d = TPF_RINT(x) - x, b = TPF_ABS(d);
    int outer = b > 0.25;
    tpf_quarter_turn t = {TPF_PI_F64 * (outer ? b - 0.5 : b), 0.0, 0};
    t.quadrant = (uint64_t)outer;
    d = tpf_with_sign_f64(TPF_PI_F64, d) * (tpf_quarter_turn_cos(t) / tpf_quarter_turn_sin(t));
    y = x < 0.0 ? y + d : y;
    return (x < 0.0) & (TPF_RINT(x) == x) ? TPF_NAN : y;
}

/* Fits: r 2^-28, s 2^-32 relative to digamma. */
TPF_INLINE float tpf_digamma_f32(float x) {
    double a = x < 0.0f ? 1.0 - (double)x : x, r = 0.01112003894150632, s = -0.008245835427506815, t, w;
    tpf_digamma_parts z = tpf_digamma_step(a);
    t = z.u - 0.5;
    w = z.quotient * z.quotient;
    r = TPF_FMA(r, t, -0.016384310806655564);
    r = TPF_FMA(r, t, 0.016979435163955833);
    r = TPF_FMA(r, t, -0.025780886455817036);
    r = TPF_FMA(r, t, 0.0408795818060525);
    r = TPF_FMA(r, t, -0.0620571000844228);
    r = TPF_FMA(r, t, 0.09498205750018161);
    r = TPF_FMA(r, t, -0.1483987841093927);
    r = TPF_FMA(r, t, 0.24054261667248514);
    r = TPF_FMA(r, t, -0.42362749892105694);
    r = TPF_FMA(r, t, 0.9510558756227514);
    s = TPF_FMA(s, w, 0.08333288943952726);
    return (float)tpf_digamma_reflect(x, tpf_digamma_sum(z, a, tpf_log_brief(a), r, s, w));
}

/* Fits: r 2^-52.7, s 2^-60.2. */
TPF_INLINE double tpf_digamma_f64(double x) {
    double a = x < 0.0 ? 1.0 - x : x, r = 0.0002572775145347924, s = -0.017202050406106766, t, w;
    tpf_digamma_parts z = tpf_digamma_step(a);
    t = z.u - 0.5;
    w = z.quotient * z.quotient;
    r = TPF_FMA(r, t, -0.00037863234164998934);
    r = TPF_FMA(r, t, 0.00023023927534412253);
    r = TPF_FMA(r, t, -0.00035447713948040744);
    r = TPF_FMA(r, t, 0.0007217314099672328);
    r = TPF_FMA(r, t, -0.0010778293263995176);
    r = TPF_FMA(r, t, 0.0015571003472146583);
    r = TPF_FMA(r, t, -0.002337513645611025);
    r = TPF_FMA(r, t, 0.0035189232310301375);
    r = TPF_FMA(r, t, -0.005280909388863583);
    r = TPF_FMA(r, t, 0.00792695378081877);
    r = TPF_FMA(r, t, -0.011908145894680509);
    r = TPF_FMA(r, t, 0.017907251828856923);
    r = TPF_FMA(r, t, -0.026975800064868608);
    r = TPF_FMA(r, t, 0.04076083383585768);
    r = TPF_FMA(r, t, -0.0619221331896183);
    r = TPF_FMA(r, t, 0.09498872445448453);
    r = TPF_FMA(r, t, -0.14840492305487377);
    r = TPF_FMA(r, t, 0.24054248424077768);
    r = TPF_FMA(r, t, -0.4236274212814572);
    r = TPF_FMA(r, t, 0.9510558760318328);
    s = TPF_FMA(s, w, 0.0074962630768688);
    s = TPF_FMA(s, w, -0.004165839495846534);
    s = TPF_FMA(s, w, 0.003968249525420299);
    s = TPF_FMA(s, w, -0.008333333322130767);
    s = TPF_FMA(s, w, 0.08333333333332363);
    return tpf_digamma_reflect(x, tpf_digamma_sum(z, a, tpf_log_f64(a), r, s, w));
}

#endif
