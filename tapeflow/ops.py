"""The op table: each op is declared here, once; loops, rules, names and documentation are derived from it.

An elementwise op is its value and its partial derivatives in the language of expr.py. The partials of one op may name
its inputs a, b, c and its result y; whatever they name is what the tape saves. A value that calls its own name is a
primitive of csrc/tpf_math.h. A partial that is a condition of 0, 1 or -1 selects the cotangent (see expr.push), so the
kinks are decided here and nowhere else. Standard library only: setup.py, the tests and the devices read this file.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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


def table_hash() -> str:
    """16 hex digits over the sources of what is generated; the build stores it and the import compares it."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in ("expr.py", "ops.py", "codegen.py"):
        digest.update((here / file).read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


# ---- the table -------------------------------------------------------------------------------------------------------
# fmt: off
# ruff: noqa: E501

R = (-3.0, 3.0)       # where nothing special happens
P = (0.1, 4.0)        # positive
MAXIMUM_D = ("1 if a > b else 0.5 if a == b else 1 if a != a else 0", "1 if b > a else 0.5 if a == b else 0 if a != a else 1 if b != b else 0")
MINIMUM_D = ("1 if a < b else 0.5 if a == b else 1 if a != a else 0", "1 if b < a else 0.5 if a == b else 0 if a != a else 1 if b != b else 0")
POW_D     = ("0 if b == 0 else b*pow(a, b - 1)", "0 if y == 0 else (0 if a == 0 else y*log(a)) if b == 0 else y*log(a)")
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
structured("logsumexp",     "log of the sum of exponentials over axes, without overflow.")
structured("take",          "Elements along an axis at integer positions.")
structured("scatter_add",   "Zeros with elements added at integer positions, in ascending order.")
structured("matmul",        "Matrix product.")
structured("softmax",       "exp(x) divided by its sum along an axis.")
structured("log_softmax",   "x less its logsumexp along an axis.")
structured("cross_entropy", "Mean negative log-likelihood of integer labels under softmax logits.")
structured("leaf",          "A value that no recorded op made.")
# fmt: on

for _entry in TABLE.values():
    _unknown = frozenset().union(*map(calls, _entry.pushed)) - set(TABLE)
    if _unknown:
        raise ExprError(f"[{_entry.name}] a partial calls what is not an entry: {sorted(_unknown)}")
