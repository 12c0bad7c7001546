"""The op table: each op is declared here, once; loops, rules, names and documentation are derived from it.

An elementwise op is its value and its partial derivatives in the language of expr.py. The partials of one op may name
its inputs a, b, c and its result y; whatever they name is what the tape saves. A value that calls its own name is a
primitive of csrc/tpf_math.h or tpf_math_more.h (of tpf_integer.h for integers). A partial that is a condition of 0, 1
or -1 selects the cotangent (see expr.push), so the kinks are decided here and nowhere else. Standard library only:
setup.py, the tests and the devices read this file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .expr import Call, Expr, ExprError, Name, Num, calls, free_names, parse, push, to_python

DTYPES = {
    "b8": ("bool", "uint8_t"),
    "u8": ("uint8", "uint8_t"),
    "i32": ("int32", "int32_t"),
    "i64": ("int64", "int64_t"),
    "f32": ("float32", "float"),
    "f64": ("float64", "double"),
}
FLOATS = ("f32", "f64")
KINDS = {
    "float": FLOATS,  # integers and bool are cast to the default float dtype
    "number": ("u8", "i32", "i64", "f32", "f64"),
    "all": tuple(DTYPES),
    "compare": tuple(DTYPES),  # the result is bool
    "select": tuple(DTYPES),  # a is bool, b and c share the dtype of the result
    "integer": ("b8", "u8", "i32", "i64"),
}
INPUTS = "abc"
SAVE_BITS = {"a": 1, "b": 2, "c": 4, "y": 8}


@dataclass(frozen=True)
class Structured:
    """An op with kernels and a rule of its own; only its number, name and meaning stand here."""

    name: str
    opcode: int
    doc: str


@dataclass(frozen=True)
class Elementwise:
    """One elementwise op. Domains and kinks are for the tests: a kink is where an expression is 0."""

    name: str
    opcode: int
    value_text: str
    d_text: tuple[str, ...]
    kind: str
    without: tuple[str, ...]  # dtypes of the kind for which the op has no meaning
    domain: tuple[tuple[float, float], ...]
    ulp: float  # largest error of the value, float32 and float64; 0: exact, 0.5: correctly rounded
    kinks: tuple[str, ...]
    doc: str
    note: str
    example: str  # "inputs -> result", lists that are exact in float32
    public: bool

    @cached_property
    def value(self) -> Expr:
        return parse(self.value_text)

    @cached_property
    def nin(self) -> int:
        return 1 + max(INPUTS.index(name) for name in free_names(self.value))

    @cached_property
    def inputs(self) -> str:
        return INPUTS[: self.nin]

    @cached_property
    def primitive(self) -> bool:
        return bool(self.value == Call(self.name, tuple(map(Name, self.inputs))))

    @cached_property
    def pushed(self) -> tuple[Expr, ...]:
        """For each input g through its partial; 0 where it has none. A text that names g is the whole rule."""
        texts = self.d_text + ("0",) * (self.nin - len(self.d_text))
        trees = (parse(text) for text in texts)
        return tuple(tree if "g" in free_names(tree) else push(Name("g"), tree) for tree in trees)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for dtype in KINDS[self.kind] if dtype not in self.without)

    def vjp_kind(self, i: int) -> str:
        """NONE: no cotangent; PASS: the cotangent itself; LOOP: a loop computes it."""
        if i >= self.nin or self.pushed[i] == Num(0.0):
            return "NONE"
        return "PASS" if self.pushed[i] == Name("g") else "LOOP"

    def saves(self, i: int | None = None) -> int:
        """SAVE_BITS of the values that the rule for input i needs, or all the rules."""
        trees = self.pushed if i is None else self.pushed[i : i + 1]
        names = frozenset().union(*map(free_names, trees)) - {"g"}
        return sum(SAVE_BITS[name] for name in names)


TABLE: dict[str, Elementwise] = {}
STRUCTURED: dict[str, Structured] = {}


def elementwise(
    name: str,
    value: str,
    *,
    d: Sequence[str | None] = (),
    kind: str = "float",
    without: Sequence[str] = (),
    domain: Sequence[tuple[float, float]] = (),
    ulp: float = 0,
    kinks: Sequence[str] = (),
    doc: str,
    note: str = "",
    example: str = "",
    public: bool = True,
) -> None:
    """Add one op. Raises ExprError where the entry contradicts itself."""
    entry = Elementwise(
        name, len(TABLE), value, tuple(text or "0" for text in d), kind, tuple(without),
        tuple(domain), ulp, tuple(kinks), doc, note, example, public,
    )  # fmt: skip
    if name in TABLE or STRUCTURED:
        raise ExprError(f"[{name}] declared twice, or after a structured op")
    if not free_names(entry.value) or not free_names(entry.value) <= set(INPUTS):
        raise ExprError(f"[{name}] the value must depend on a, b, c and nothing else")
    if len(d) > entry.nin or len(entry.domain) != entry.nin:
        raise ExprError(f"[{name}] {entry.nin} inputs need as many domains and at most as many partials")
    if not entry.primitive and not calls(entry.value) <= set(TABLE):
        raise ExprError(f"[{name}] a value may call only entries above it")
    for tree in entry.pushed:
        if not free_names(tree) <= {*entry.inputs, "y", "g"}:
            raise ExprError(f"[{name}] a partial may name only the inputs and y")
        to_python(tree)
    TABLE[name] = entry


def structured(name: str, doc: str) -> None:
    """Add one op that has kernels of its own."""
    if name in TABLE or name in STRUCTURED:
        raise ExprError(f"[{name}] declared twice")
    STRUCTURED[name] = Structured(name, len(TABLE) + len(STRUCTURED), doc)


def composed_vjp(name: str, i: int) -> str | None:
    """Python source of the rule for input i, in g, a, b, c, y and public functions; None where it has no cotangent."""
    entry = TABLE[name]
    return None if entry.vjp_kind(i) == "NONE" else to_python(entry.pushed[i])


# ---- the table -------------------------------------------------------------------------------------------------------
# fmt: off
# ruff: noqa: E501

R = (-3.0, 3.0)       # where nothing special happens
U = (-0.95, 0.95)     # inside of -1..1
P = (0.1, 4.0)        # positive
MAXIMUM_D = ("1 if a > b else 0.5 if a == b else 1 if a != a else 0", "1 if b > a else 0.5 if a == b else 0 if a != a else 1 if b != b else 0")
MINIMUM_D = ("1 if a < b else 0.5 if a == b else 1 if a != a else 0", "1 if b < a else 0.5 if a == b else 0 if a != a else 1 if b != b else 0")
POW_D     = ("(0 if a == 0 else 0 if a != a else b*pow(a, b - 1)) if b == 0 else b*pow(a, b - 1)", "0 if y == 0 else (0 if a == 0 else y*log(a)) if b == 0 else y*log(a)")
ATAN2_D   = tuple(f"0 if hypot(a, b) == 0 else 0 if hypot(a, b) == inf else {x}/hypot(a, b)/hypot(a, b)" for x in ("b", "-a"))
SIGMOIDS  = "sigmoid(U), sigmoid(0 - U)".replace("U", "a*(1.5957691216057308 + 0.07135481627260025*(a*a))").split(", ")
GELU_TANH_D = (f"{SIGMOIDS[0]} + smul({SIGMOIDS[0]}*{SIGMOIDS[1]}, a*(1.5957691216057308 + 0.21406444881780074*(a*a)))",)
LOGADDEXP_D = tuple(f"0 if y == -inf else sigmoid({u} - {v}) if y != inf else (0.5 if {v} == inf else 1) if {u} == inf else 0" for u, v in ("ab", "ba"))
CLIP_D    = ("0 if a < b else 0 if a > c else 1", "(1 if b <= c else 0) if a < b else 0", "0 if a != a else 1 if a > c else 1 if b > c else 0")

# smul first: every rule below may use it. Its own rule for b is 0 where g or a is 0, written so that its derivatives are
# those of g*a there, too (0 if a == 0 would make every third derivative at 0 wrong). In sigmoid 0 - a instead of -a:
# with that gcc 12 vectorises the rule for SSE. clip is not minimum(maximum(a, b), c) because that is twice as slow.
elementwise("smul",          "0 if a == 0 else a*b", d=("b", "smul(a, g) if a == 0 else smul(g, a)"), domain=[R, R], ulp=0.5, doc="Product in which a zero first factor gives 0, also times inf or NaN: the chain rule's product.", example="[0.0, 2.0], [inf, 3.0] -> [0.0, 6.0]")
elementwise("add",           "a + b",  d=("1", "1"),       kind="all",    domain=[R, R], ulp=0.5, doc="Sum.",        note="Of bool: logical or.",  example="[1.0, 2.0], [10.0, 20.0] -> [11.0, 22.0]")
elementwise("subtract",      "a - b",  d=("1", "-1"),      kind="all",    domain=[R, R], ulp=0.5, doc="Difference.", without=["b8"],               example="[1.0, 2.0], [10.0, 20.0] -> [-9.0, -18.0]")
elementwise("multiply",      "a*b",    d=("b", "a"),       kind="all",    domain=[R, R], ulp=0.5, doc="Product.",    note="Of bool: logical and.", example="[1.0, 2.0], [10.0, 20.0] -> [10.0, 40.0]")
elementwise("divide",        "a/b",    d=("1/b", "-y/b"),  kind="float",  domain=[R, P], ulp=0.5, doc="True quotient.",                            example="[1.0, 2.0], [4.0, 8.0] -> [0.25, 0.25]")
elementwise("negative",      "-a",     d=("-1",),          kind="number", domain=[R],             doc="Negation.",                                 example="[1.0, -2.0] -> [-1.0, 2.0]")
elementwise("equal",         "a == b", kind="compare", domain=[R, R], doc="Whether a is equal to b; NaN equals nothing.", example="[1.0, 2.0], [1.0, 3.0] -> [True, False]")
elementwise("not_equal",     "a != b", kind="compare", domain=[R, R], doc="Whether a differs from b; NaN differs from all.", example="[1.0, 2.0], [1.0, 3.0] -> [False, True]")
elementwise("less",          "a < b",  kind="compare", domain=[R, R], doc="Whether a is less than b.",                    example="[1.0, 2.0], [1.0, 3.0] -> [False, True]")
elementwise("less_equal",    "a <= b", kind="compare", domain=[R, R], doc="Whether a is less than or equal to b.",        example="[1.0, 4.0], [1.0, 3.0] -> [True, False]")
elementwise("greater",       "a > b",  kind="compare", domain=[R, R], doc="Whether a is greater than b.",                 example="[1.0, 4.0], [1.0, 3.0] -> [False, True]")
elementwise("greater_equal", "a >= b", kind="compare", domain=[R, R], doc="Whether a is greater than or equal to b.",     example="[1.0, 2.0], [1.0, 3.0] -> [True, False]")

elementwise("exp",      "exp(a)",     d=("y",),             domain=[R],            ulp=2,   doc="Exponential.",                                       example="[0.0] -> [1.0]")
elementwise("expm1",    "expm1(a)",   d=("y + 1",),         domain=[R],            ulp=2,   doc="exp(a) - 1, accurate near 0.",                       example="[0.0] -> [0.0]")
elementwise("log",      "log(a)",     d=("1/a",),           domain=[P],            ulp=2,   doc="Natural logarithm; NaN for a < 0, -inf for 0.",      example="[1.0] -> [0.0]")
elementwise("log1p",    "log1p(a)",   d=("1/(1 + a)",),     domain=[(-0.9, 4.0)],  ulp=2,   doc="log(1 + a), accurate near 0.",                       example="[0.0] -> [0.0]")
elementwise("sqrt",     "sqrt(a)",    d=("0.5/y",),         domain=[P],            ulp=0.5, doc="Square root; NaN for a < 0.",                        example="[4.0, 9.0] -> [2.0, 3.0]")
elementwise("rsqrt",    "1/sqrt(a)",  d=("-0.5*y/a",),      domain=[P],            ulp=1.5, doc="Reciprocal of the square root.",                     example="[4.0, 16.0] -> [0.5, 0.25]")
elementwise("square",   "a*a",        d=("2*a",),           domain=[R],            ulp=0.5, doc="a times a.", kind="number",                          example="[3.0, -4.0] -> [9.0, 16.0]")
elementwise("sin",      "sin(a)",     d=("cos(a)",),        domain=[(-9.0, 9.0)],  ulp=2,   doc="Sine of an angle in radians.",                       example="[0.0] -> [0.0]")
elementwise("cos",      "cos(a)",     d=("-sin(a)",),       domain=[(-9.0, 9.0)],  ulp=2,   doc="Cosine of an angle in radians.",                     example="[0.0] -> [1.0]")
elementwise("tanh",     "tanh(a)",    d=("1 - y*y",),       domain=[(-4.0, 4.0)],  ulp=2,   doc="Hyperbolic tangent.",                                example="[0.0] -> [0.0]")
elementwise("sigmoid",  "sigmoid(a)", d=("y*sigmoid(0 - a)",), domain=[(-9.0, 9.0)], ulp=2,  doc="Logistic function 1/(1 + exp(-a)).",                 example="[0.0] -> [0.5]")
elementwise("abs",      "0 - a if a <= 0 else a",                           d=("-1 if a < 0 else 0 if a == 0 else 1",), kind="number", domain=[R], kinks=["a"], doc="Absolute value.", note="The derivative at 0 is 0.", example="[-3.0, 2.0] -> [3.0, 2.0]")
elementwise("sign",     "1 if a > 0 else -1 if a < 0 else 0 if a == 0 else a",                                          kind="number", domain=[R], kinks=["a"], doc="-1, 0 or 1; NaN for NaN.",                          example="[-3.0, 0.0, 2.0] -> [-1.0, 0.0, 1.0]")
elementwise("relu",     "0 if a <= 0 else a",                               d=("0 if a <= 0 else 1",),                  kind="number", domain=[R], kinks=["a"], doc="a where a > 0, else 0.", note="The derivative at 0 is 0.", example="[-3.0, 2.0] -> [0.0, 2.0]")
elementwise("maximum",  "a if a != a else a if a > b else b",             d=MAXIMUM_D, kind="all",    domain=[R, R],    kinks=["a - b"],          doc="The larger of a and b; NaN if either is.",  note="Equal operands get half of the cotangent each.", example="[1.0, 5.0], [3.0, 4.0] -> [3.0, 5.0]")
elementwise("minimum",  "a if a != a else a if a < b else b",             d=MINIMUM_D, kind="all",    domain=[R, R],    kinks=["a - b"],          doc="The smaller of a and b; NaN if either is.", note="Equal operands get half of the cotangent each.", example="[1.0, 5.0], [3.0, 4.0] -> [1.0, 4.0]")
elementwise("clip",     "c if c != c else b if b != b else c if a > c else (c if b > c else b) if a < b else a", d=CLIP_D,    kind="number", domain=[R, R, R], kinks=["a - b", "a - c", "b - c"], doc="a limited to b..c; c where b > c.",          note="At a bound the cotangent goes to a.", public=False)
elementwise("softplus", "log1p(exp(-abs(a))) + maximum(a, 0)",              d=("sigmoid(a)",), domain=[(-9.0, 9.0)], ulp=2.5,                     doc="log(1 + exp(a)), without overflow.", example="[1000.0] -> [1000.0]")
elementwise("pow",      "pow(a, b)",                                        d=POW_D,     kind="number", domain=[P, R],    ulp=2,                    doc="a to the power b; integers wrap and need b >= 0.", note="pow(0, 0) sends 0 to the exponent.", public=False)
elementwise("where",    "b if a else c", d=(None, "1 if a else 0", "0 if a else 1"), kind="select", domain=[(0, 1), R, R],                           doc="a where condition is true, else b.", example="[True, False], [1.0, 2.0], [3.0, 4.0] -> [1.0, 4.0]")

# smul keeps inf*0 out of silu and the derivatives of gelu. Of xlogy's smul(a, 1/b), 0 where a is 0, the derivative there
# is 1/b nevertheless. silu's exp(-|a|/2) twice instead of exp(-|a|) once: the latter is subnormal before the result is.
elementwise("positive",   "a",         d=("1",),                              kind="number", domain=[R],                        doc="The operand itself.",                                   example="[1.0, -2.0] -> [1.0, -2.0]")
elementwise("reciprocal", "1/a",       d=("-(y*y)",),                         domain=[P],                              ulp=0.5, doc="1/a.",                                                  example="[2.0, 4.0] -> [0.5, 0.25]")
elementwise("cbrt",       "cbrt(a)",   d=("1/(3*(y*y))",),                    domain=[P],                              ulp=2,   doc="Cube root.", note="The derivative at 0 is inf.",        example="[8.0, -27.0] -> [2.0, -3.0]")
elementwise("exp2",       "exp2(a)",   d=("0.6931471805599453*y",),           domain=[R],                              ulp=2,   doc="2 to the power a.",                                     example="[3.0, -1.0] -> [8.0, 0.5]")
elementwise("log2",       "log2(a)",   d=("1.4426950408889634/a",),           domain=[P],                              ulp=2,   doc="Logarithm to base 2; NaN for a < 0, -inf for 0.",       example="[8.0, 0.5] -> [3.0, -1.0]")
elementwise("log10",      "log10(a)",  d=("0.4342944819032518/a",),           domain=[P],                              ulp=2.5, doc="Logarithm to base 10; NaN for a < 0, -inf for 0.",      example="[100.0, 1.0] -> [2.0, 0.0]")
elementwise("tan",        "tan(a)",    d=("1 + y*y",),                        domain=[(-1.4, 1.4)],                    ulp=2.5, doc="Tangent of an angle in radians.",                       example="[0.0] -> [0.0]")
elementwise("asin",       "asin(a)",   d=("1/sqrt((1 - a)*(1 + a))",),        domain=[U],                              ulp=2,   doc="Angle in -pi/2..pi/2 whose sine is a; NaN for |a| > 1.", note="The derivative at 1 and -1 is inf.", example="[0.0] -> [0.0]")
elementwise("acos",       "acos(a)",   d=("-1/sqrt((1 - a)*(1 + a))",),       domain=[U],                              ulp=2,   doc="Angle in 0..pi whose cosine is a; NaN for |a| > 1.",    note="The derivative at 1 and -1 is -inf.", example="[1.0] -> [0.0]")
elementwise("atan",       "atan(a)",   d=("1/(1 + a*a)",),                    domain=[(-9.0, 9.0)],                    ulp=2.5, doc="Angle in -pi/2..pi/2 whose tangent is a.",              example="[0.0] -> [0.0]")
elementwise("sinh",       "sinh(a)",   d=("cosh(a)",),                        domain=[R],                              ulp=3,   doc="Hyperbolic sine.",                                      example="[0.0] -> [0.0]")
elementwise("cosh",       "cosh(a)",   d=("sinh(a)",),                        domain=[R],                              ulp=3,   doc="Hyperbolic cosine.",                                    example="[0.0] -> [1.0]")
elementwise("hypot",      "hypot(a, b)", d=("0 if y == 0 else a/y", "0 if y == 0 else b/y"), domain=[R, P],           ulp=2,   doc="sqrt(a*a + b*b), without overflow; inf if either is infinite.", note="The derivatives at (0, 0) are 0.", example="[3.0, 5.0], [4.0, 12.0] -> [5.0, 13.0]")
elementwise("asinh",      "asinh(a)",  d=("1/hypot(a, 1)",),                  domain=[R],                              ulp=3.5,  doc="Inverse of sinh.",                                      example="[0.0] -> [0.0]")
elementwise("acosh",      "acosh(a)",  d=("1/(sqrt(a - 1)*sqrt(a + 1))",),    domain=[(1.1, 6.0)],                     ulp=3,   doc="Inverse of cosh, 0 or more; NaN for a < 1.", note="The derivative at 1 is inf.", example="[1.0] -> [0.0]")
elementwise("atanh",      "atanh(a)",  d=("1/((1 - a)*(1 + a))",),            domain=[U],                              ulp=3,   doc="Inverse of tanh; NaN for |a| > 1, inf and -inf for 1 and -1.", example="[0.0] -> [0.0]")
elementwise("atan2",      "atan2(a, b)", d=ATAN2_D,                           domain=[P, R],                           ulp=2.5, doc="Angle in -pi..pi of the point with ordinate a and abscissa b.", note="The derivatives are 0 at (0, 0) and where an operand is infinite.", example="[0.0, 0.0], [1.0, 2.0] -> [0.0, 0.0]")
elementwise("logaddexp",  "logaddexp(a, b)", d=LOGADDEXP_D, domain=[R, R], ulp=4, doc="log(exp(a) + exp(b)), without overflow.", note="Where the result is near 0, the bound is in units of the larger operand. The derivatives at (-inf, -inf) are 0.", example="[1000.0, 5.0], [0.0, -inf] -> [1000.0, 5.0]")
elementwise("erf",        "erf(a)",    d=("1.1283791670955126*exp(-(a*a))",), domain=[R],                              ulp=2,   doc="Error function.",                                       example="[0.0, inf] -> [0.0, 1.0]")
elementwise("erfc",       "erfc(a)",   d=("-1.1283791670955126*exp(-(a*a))",), domain=[R],                             ulp=4,   doc="1 - erf(a), accurate where that is small.",             example="[0.0, inf] -> [1.0, 0.0]")
elementwise("erfinv",     "erfinv(a)", d=("0.886226925452758*exp(y*y)",),     domain=[U],                              ulp=4,   doc="Inverse of erf; inf and -inf at 1 and -1, NaN beyond.", example="[0.0, 1.0] -> [0.0, inf]")
elementwise("lgamma",     "lgamma(a)", d=("digamma(a)",),                     domain=[P],                              ulp=8,   doc="Logarithm of the absolute value of the gamma function; inf at 0, -1, -2 and so on.", note="For a < 0 the bound is 8 epsilon times the largest of 1, |a|, |a log|a|| and |y|.", example="[1.0, 2.0] -> [0.0, 0.0]")
elementwise("digamma",    "digamma(a)", d=("polygamma(1, a)",),               domain=[P],                              ulp=8,   doc="Derivative of lgamma; NaN at -1, -2 and so on.",         note="For a < 0 the bound is 8 epsilon times the largest of 1, |a|, |a log|a|| and |y|.", example="[-1.0] -> [nan]")
elementwise("polygamma",  "polygamma(a, b)", d=(None, "polygamma(a + 1, b)"), domain=[(0, 5), (0.1, 4.0)],             ulp=8,   doc="The derivative of order a of digamma at b; NaN unless a is a whole number in 0..40.", note="For b < 0 the bound is 8 (a + 1) epsilon times the largest of 1, |b|, |b log|b|| and |y|.", example="[1.0], [inf] -> [0.0]")
elementwise("sinc",       "sinc(a)",   d=("-9.869604401089358*a*spherical_ratio(1, a)",), domain=[(-3.0, 3.0)],             ulp=3,   doc="sin(pi*a)/(pi*a), and 1 at 0; NaN at inf and -inf.", note="The derivatives of every order are exact at 0 and next to it.", example="[0.0, 1.0] -> [1.0, 0.0]")
elementwise("spherical_ratio", "spherical_ratio(a, b)", d=(None, "-9.869604401089358*b*spherical_ratio(a + 1, b)"), domain=[(0, 5), (-0.9, 0.9)], ulp=8, doc="j_a(pi*b)/(pi*b)**a, j_a being the spherical Bessel function of order a; NaN unless a is a whole number in 0..40.", note="What the derivatives of sinc are made of. Next to a zero of j_a, the bound is in units of 1/(pi*b)**(a + 1).", example="[0.0, 1.0], [1.0, 0.0] -> [0.0, 0.3333333432674408]")
elementwise("silu",       "silu(a)",   d=("sigmoid(a) + smul(sigmoid(a)*sigmoid(0 - a), a)",), domain=[(-9.0, 9.0)], ulp=3, doc="a*sigmoid(a), without overflow.", example="[0.0, 1000.0] -> [0.0, 1000.0]")
elementwise("gelu",       "gelu(a)",   d=("0.5*erfc(-0.7071067811865476*a) + 0.3989422804014327*smul(exp(-0.5*(a*a)), a)",), domain=[R], ulp=4, doc="a times the normal distribution function: a*erfc(-a/sqrt(2))/2.", example="[0.0, 100.0] -> [0.0, 100.0]", public=False)
elementwise("gelu_tanh",  "gelu_tanh(a)", d=GELU_TANH_D, domain=[R], ulp=4, doc="The approximation of gelu by a*(1 + tanh(sqrt(2/pi)*(a + 0.044715*a*a*a)))/2.", example="[0.0, 100.0] -> [0.0, 100.0]")
elementwise("elu",        "a if a > 0 else b*expm1(a)", d=("1 if a > 0 else b*exp(a)", "0 if a > 0 else expm1(a)"), domain=[R, P], ulp=3, kinks=["a"], doc="a where a > 0, else b*(exp(a) - 1).", note="The derivative at 0 is b.", public=False)
elementwise("leaky_relu", "a if a > 0 else a*b",        d=("1 if a > 0 else b", "0 if a > 0 else a"),  domain=[R, P], ulp=0.5, kinks=["a"], doc="a where a > 0, else a*b.", note="The derivative at 0 is b.", public=False)
elementwise("floor",      "floor(a)",     kind="number", domain=[R],    doc="The largest whole number that is not above a.", example="[1.5, -1.5] -> [1.0, -2.0]")
elementwise("ceil",       "ceil(a)",      kind="number", domain=[R],    doc="The smallest whole number that is not below a.", example="[1.5, -1.5] -> [2.0, -1.0]")
elementwise("trunc",      "trunc(a)",     kind="number", domain=[R],    doc="The whole number next to a in the direction of 0.", example="[1.5, -1.5] -> [1.0, -1.0]")
elementwise("round",      "round(a)",     kind="number", domain=[R],    doc="The nearest whole number; halves go to the even one.", example="[1.5, 2.5, -0.6] -> [2.0, 2.0, -1.0]", public=False)
elementwise("floor_divide", "floor_divide(a, b)", kind="number", domain=[R, P], doc="floor(a/b), as // of Python: of the exact quotient.", note="Integers divided by 0 give 0.", example="[7.0, -7.0], [2.0, 2.0] -> [3.0, -4.0]")
elementwise("remainder",  "remainder(a, b)", d=("1", "-floor_divide(a, b)"), kind="number", domain=[(4.2, 4.8), (1.65, 1.9)], doc="a - b*floor(a/b), as % of Python: it has the sign of b.", note="Integers divided by 0 give 0.", example="[7.0, -7.0], [2.0, 2.0] -> [1.0, 1.0]")
elementwise("copysign",   "copysign(a, b)", d=("0 if a == 0 else -1 if y == -a else 1",), domain=[R, R], kinks=["a", "b"], doc="|a| with the sign of b.", note="The derivative at a = 0 is 0.", example="[1.0, 2.0], [-0.0, 3.0] -> [-1.0, 2.0]")
elementwise("nextafter",  "nextafter(a, b)", d=("1",),                           domain=[R, R], kinks=["a - b"], doc="The next number that can be represented from a towards b.", example="[1.0, 0.0], [1.0, 0.0] -> [1.0, 0.0]")
elementwise("xlogy",      "b if b != b else 0 if a == 0 else a*log(b)",   d=("log(b)", "smul(a, 1/b)"),         domain=[R, P], ulp=3, doc="a*log(b), and 0 where a is 0.", note="The derivative by a is log(b) for a = 0, too.", example="[0.0, 2.0], [0.0, 1.0] -> [0.0, 0.0]")
elementwise("xlog1py",    "b if b != b else 0 if a == 0 else a*log1p(b)", d=("log1p(b)", "smul(a, 1/(1 + b))"), domain=[R, P], ulp=3, doc="a*log(1 + b), and 0 where a is 0.", note="The derivative by a is log1p(b) for a = 0, too.", example="[0.0, 2.0], [-1.0, 0.0] -> [0.0, 0.0]")
elementwise("lerp",       "a + c*(b - a)", d=("1 - c", "c", "b - a"),            domain=[R, R, (0.0, 1.0)], doc="a + c*(b - a): from a, where the weight c is 0, to b.", note="Each operation is rounded.", example="[1.0], [3.0], [0.25] -> [1.5]")
elementwise("isnan",       "a != a",                       kind="compare", domain=[R],    doc="Whether a is NaN.",               example="[1.0, inf, nan] -> [False, False, True]")
elementwise("isinf",       "(a*0 != 0) != (a != a)",       kind="compare", domain=[R],    doc="Whether a is inf or -inf.",       example="[1.0, inf, nan] -> [False, True, False]")
elementwise("isfinite",    "a*0 == 0",                     kind="compare", domain=[R],    doc="Whether a is neither infinite nor NaN.", example="[1.0, inf, nan] -> [True, False, False]")
elementwise("signbit",     "copysign(1, a) < 0",           kind="compare", domain=[R],    doc="Whether the sign bit of a is set.", without=["b8", "u8", "i32", "i64"], example="[1.0, -0.0] -> [False, True]")
elementwise("logical_not", "a == 0",                       kind="compare", domain=[R],    doc="Whether a is 0.",                 example="[0.0, 2.0] -> [True, False]")
elementwise("logical_and", "(a != 0)*(b != 0) != 0",       kind="compare", domain=[R, R], doc="Whether neither is 0.",           example="[0.0, 2.0], [1.0, 1.0] -> [False, True]")
elementwise("logical_or",  "(a != 0) + (b != 0) != 0",     kind="compare", domain=[R, R], doc="Whether one of them is not 0.",   example="[0.0, 2.0], [0.0, 0.0] -> [False, True]")
elementwise("logical_xor", "(a != 0) != (b != 0)",         kind="compare", domain=[R, R], doc="Whether exactly one of them is not 0.", example="[0.0, 2.0], [0.0, 1.0] -> [False, False]")
elementwise("bitwise_invert",      "bitwise_invert(a)",         kind="integer", domain=[R],    doc="Every bit the other way; of bool: logical not.", example="[True, False] -> [False, True]")
elementwise("bitwise_and",         "bitwise_and(a, b)",         kind="integer", domain=[R, R], doc="The bits that both have.",            example="[6, 5], [3, 3] -> [2, 1]")
elementwise("bitwise_or",          "bitwise_or(a, b)",          kind="integer", domain=[R, R], doc="The bits that one of them has.",      example="[6, 5], [3, 3] -> [7, 7]")
elementwise("bitwise_xor",         "bitwise_xor(a, b)",         kind="integer", domain=[R, R], doc="The bits that exactly one of them has.", example="[6, 5], [3, 3] -> [5, 6]")
elementwise("bitwise_left_shift",  "bitwise_left_shift(a, b)",  kind="integer", domain=[R, P], without=["b8"], doc="a with its bits moved b places up.", note="0 where b is negative or not below the bits of the dtype.", example="[1, 3], [4, 1] -> [16, 6]")
elementwise("bitwise_right_shift", "bitwise_right_shift(a, b)", kind="integer", domain=[R, P], without=["b8"], doc="a with its bits moved b places down, copies of the sign bit following.", note="Nothing but those is left where b is negative or not below the bits of the dtype.", example="[16, -8], [4, 1] -> [1, -4]")

structured("identity",      "The operand itself, as a value of its own.")
structured("astype",        "The operand cast to another dtype.")
structured("reshape",       "The same elements in C order with another shape.")
structured("permute_dims",  "Axes in another order.")
structured("broadcast_to",  "The operand repeated to a larger shape.")
structured("getitem",       "Basic indexing: integers, slices, None and Ellipsis.")
structured("unslice",       "Zeros with the operand at a basic index: the rule of getitem.")
structured("assign",        "A copy of the first operand with the second at an index.")
structured("concat",        "Operands joined along an axis.")
structured("sum",           "Sum over axes.")
structured("mean",          "Mean over axes.")
structured("max",           "Largest element over axes; ties share the cotangent.")
structured("min",           "Smallest element over axes; ties share the cotangent.")
structured("argmax",        "Position of the first largest element.")
structured("argmin",        "Position of the first smallest element.")
structured("count_nonzero", "How many elements over axes are not 0.")
structured("nansum",        "Sum over axes, NaN taken as 0.")
structured("vector_norm",   "Square root of the sum of squares over axes; at 0 the cotangent is 0.")
structured("any",           "Whether an element over axes is not 0.")
structured("all",           "Whether no element over axes is 0.")
structured("var",           "Mean squared distance from the mean over axes.")
structured("std",           "Square root of var; at 0 the cotangent is 0.")
structured("logsumexp",     "log of the sum of exponentials over axes, without overflow.")
structured("cumulative_sum", "Sums of the first 1, 2, ... elements along an axis, from either end.")
structured("cumulative_prod", "Products of the first 1, 2, ... elements along an axis.")
structured("cumulative_max", "Largest of the first 1, 2, ... elements along an axis; the first of equals has the cotangent.")
structured("logcumsumexp",  "log of the sum of exponentials of the first 1, 2, ... elements along an axis, without overflow.")
structured("recurrence",    "y[k] = x[k] + y[k - 1]*a[k] along an axis, or from its end x[k] + y[k + 1]*a[k + 1]: the rule of scans.")
structured("cumulative_argmax", "Positions, in C order, of the running maxima of cumulative_max.")
structured("take",          "Elements along an axis at integer positions.")
structured("places",        "Positions from index tensors: steps along axes plus wrapped indices times strides.")
structured("put",           "The first operand with the third at integer positions; the last one wins.")
structured("nonzero",       "Positions, or coordinates, of the elements that are not 0.")
structured("argsort",       "The indices, along an axis, of the first elements in stable order.")
structured("searchsorted",  "How many elements of the first operand come before each of the second.")
structured("scatter_add",   "Zeros with elements added at integer positions, in ascending order.")
structured("matmul",        "Matrix product.")
structured("vecdot",        "Sum of the products of two operands over axes.")
structured("layer_norm",    "Normalised over the last axes, scaled and shifted; rms_norm is a case of it.")
structured("one_hot",       "1 at class numbers along a new last axis.")
structured("class_positions", "Where a flat (rows, classes) holds each row's class.")
structured("softmax",       "exp(x) divided by its sum along an axis.")
structured("log_softmax",   "x less its logsumexp along an axis.")
structured("cross_entropy", "Mean negative log-likelihood of integer labels under softmax logits.")
structured("accumulate",    "What a .grad slot holds with the operand added; the operand where the slot is empty.")
structured("random",        "The next draw of a generator.")
structured("cross_entropy_vjp", "The cotangent of the logits of cross_entropy.")
structured("custom",        "A call with a rule of its own: of the user's, or to compute it again.")
structured("custom_result", "One of the results of a call with a rule of its own.")
structured("leaf",          "A value that no recorded op made.")
# fmt: on

for _entry in TABLE.values():
    _unknown = frozenset().union(*map(calls, _entry.pushed)) - set(TABLE)
    if _unknown:
        raise ExprError(f"[{_entry.name}] a partial calls what is not an entry: {sorted(_unknown)}")
