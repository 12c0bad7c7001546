"""Makes tapeflow/csrc/normal_table.h: the polynomials behind tpf_normal_f32 and tpf_normal_f64.

Run from the repository root: python tools/make_normal_table.py (needs mpmath, takes a minute).

A random word w of B bits (32 or 64) stands for the probability (w + 1/2) / 2**B. By symmetry only
the lower half is tabulated: an odd integer u in 1 .. 2**B - 1 stands for p = u / 2**(B + 1), and
z(p) > 0 is the quantile with upper tail p. Octave j holds 2**j <= u < 2**(j + 1); it is split into
2**sub equal segments. Inside one, x in (0, 1] grows towards the tail: p = low + width * (1 - x),
and z is a polynomial in x, interpolated at Chebyshev nodes in 50 digits. Its coefficients are all
positive, so Horner's rule is stable. In the last segment (next to p = 1/2, where z = 0) the
constant is exactly 0 and the fit is of z / x: small values keep their relative accuracy.
"""

from mpmath import cos, log, mp, mpf, ncdf, npdf, pi, sqrt

mp.dps = 50
PATH = "tapeflow/csrc/normal_table.h"
TABLES = (("f32", 32, 2, 5), ("f64", 64, 0, 16))  # suffix, bits, sub, degree

HEAD = """\
/* Inverse normal CDF by segments; made by tools/make_normal_table.py, which says what the numbers
   mean. Do not edit. tpf_normal_<dtype>[k][segment] is the coefficient of x**k; used by random.h.
   TPF_TABLE may be defined as the qualifiers of a constant table in another C dialect. */
#ifndef TPF_TABLE
#define TPF_TABLE static const
#endif
"""


def quantile(p):
    """z with upper tail p, by Halley's rule on the tail probability."""
    z = sqrt(-2 * log(p)) * mpf("0.9") if p < 0.05 else (mpf(1) / 2 - p) * mpf("2.5")
    while True:
        step = (ncdf(-z) - p) / npdf(z)
        step /= max(1 + z * step / 2, mpf("0.5"))
        z += step
        if abs(step) < mpf(10) ** -40 * z:
            return z


def fit(low, width, degree, last):
    """Monomial coefficients of z over x in (0, 1]; of x * (z / x) in the last segment."""
    n = degree if last else degree + 1
    xs = [(1 + cos(pi * (2 * i + 1) / (2 * n))) / 2 for i in range(n)]
    c = [quantile(low + width * (1 - x)) / (x if last else 1) for x in xs]
    for k in range(1, n):  # divided differences, in place
        for i in range(n - 1, k - 1, -1):
            c[i] = (c[i] - c[i - 1]) / (xs[i] - xs[i - k])
    poly = [mpf(0)]
    for i in range(n - 1, -1, -1):  # poly = poly * (x - xs[i]) + c[i]
        poly = [mpf(0), *poly]
        for k in range(len(poly) - 1):
            poly[k] -= xs[i] * poly[k + 1]
        poly[0] += c[i]
    return [mpf(0), *poly[:n]] if last else poly[:n]


def literal(value, mantissa):
    """A C hexadecimal float, rounded to the mantissa bits (round half even, by mpmath)."""
    if value == 0:
        return "0"
    mp_prec, mp.prec = mp.prec, mantissa
    value = +value
    mp.prec = mp_prec
    text = float(value).hex()
    head, exponent = text.split("p")
    head = head.rstrip("0").rstrip(".")
    return f"{head}p{int(exponent)}" + ("f" if mantissa == 24 else "")


def table(suffix, bits, sub, degree):
    """The text of one table."""
    segments = []
    for j in range(bits):
        width = mpf(2) ** (j - bits - 1 - sub)
        for s in range(1 << sub):
            low = mpf(2) ** (j - bits - 1) + s * width
            segments.append(fit(low, width, degree, low + width == mpf(1) / 2))
    mantissa, ctype = (24, "float") if suffix == "f32" else (53, "double")
    per_line = 7 if suffix == "f32" else 4
    lines = [f"TPF_TABLE {ctype} tpf_normal_{suffix}_table[{degree + 1}][{len(segments)}] = {{"]
    for k in range(degree + 1):
        row = [literal(c[k], mantissa) for c in segments]
        lines.append("    {")
        lines += [", ".join(row[i : i + per_line]) + "," for i in range(0, len(row), per_line)]
        lines.append("    },")
    return "\n".join([*lines, "};\n"])


if __name__ == "__main__":
    text = HEAD + "".join(table(*spec) for spec in TABLES)
    with open(PATH, "w", encoding="ascii") as file:
        file.write(text)
    print(f"{PATH}: {len(text)} bytes")
