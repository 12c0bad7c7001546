"""The expression language, the op table and what is generated from them. No compiled code is run here."""

import importlib
import itertools
import math
import operator
import re
import shutil
import struct
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeflow import codegen, expr, ops
from tapeflow._hash import table_hash
from tapeflow.expr import Binary, Call, Cond, ExprError, Name, Neg, Num, parse, push, to_text

SOURCES = Path(ops.__file__).parent
G = Name("g")

# ---- parser ----------------------------------------------------------------------------------------------------------

_numbers = st.floats(min_value=0, allow_nan=False, allow_infinity=True).map(Num) | st.just(Num(expr.NAN))
_leaves = _numbers | st.sampled_from(expr.VARIABLES).map(Name)


def _grow(inner):
    arithmetic = st.sampled_from(["+", "-", "*", "/"])
    comparison = st.sampled_from(expr.COMPARISONS)
    return (
        st.builds(Neg, inner)
        | st.builds(Binary, arithmetic | comparison, inner, inner)
        | st.builds(Cond, inner, inner, inner)
        | st.builds(Call, st.sampled_from(["exp", "pow", "x_1"]), st.lists(inner, min_size=1, max_size=3).map(tuple))
    )


trees = st.recursive(_leaves, _grow, max_leaves=25).filter(lambda tree: expr.depth(tree) <= expr.MAX_DEPTH)
_pieces = st.sampled_from(
    "a b c y g z if else inf nan exp ( ) ( ) , + - * / < <= > >= == != = ! 1 0.5 1e-3 .5 1. 1e999 1e .".split() + [" "]
)
soup = st.lists(_pieces, max_size=60).map(" ".join) | st.lists(_pieces, max_size=60).map("".join)


def check_text(text):
    """The parser's promise: ExprError, or a tree that renders and parses to itself."""
    try:
        tree = parse(text)
    except ExprError:
        return
    assert expr.depth(tree) <= expr.MAX_DEPTH
    assert parse(to_text(tree)) == tree


@given(st.text())
def test_random_text(text):
    check_text(text)


@given(st.binary())
def test_random_bytes(data):
    check_text(data.decode("latin-1"))
    with pytest.raises(ExprError):
        parse(data)


@given(soup)
def test_random_tokens(text):
    check_text(text)


@given(trees)
def test_text_reads_back(tree):
    assert parse(to_text(tree)) == tree


@given(trees)
def test_rendering_raises_only_expr_error(tree):
    for dtype in ops.DTYPES:
        try:
            assert expr.to_c(tree, dtype)
            assert expr.c_statements(tree, dtype, "float")
        except ExprError:
            assert dtype not in ops.FLOATS
    try:
        source = expr.to_python(push(G, tree))
    except ExprError:
        return
    compile(source, "rule", "eval")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "-" * 3000 + "a",
        "(" * 1500 + "a" + ")" * 1500,
        "a" + "+a" * 1900,
        "a if b else " * 300 + "c",
        "exp(" * 900 + "a" + ")" * 900,
        "a if " * 700 + "b",
        "1" * 3900,
        "a" * 3900,
    ],
)
def test_deep_or_long_text_is_an_error(text):
    with pytest.raises(ExprError):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *["", "(", ")", "a b", "a +", "* a", "a < b < c", "a == b == c", "if", "a if b", "a if else c", "exp", "exp()"],
        *["exp(a,)", "exp a", "d", "A", "1 2", "1e999", ".", "a = b", "a.b", "a[0]", "'a'", "a**b", "()", "a,", "+a"],
    ],
)
def test_not_an_expression(text):
    with pytest.raises(ExprError):
        parse(text)


@pytest.mark.parametrize("value", [None, 1, b"a", ["a"], "a" * (expr.MAX_TEXT + 1)])
def test_not_a_text(value):
    with pytest.raises(ExprError, match="str of at most"):
        parse(value)


def test_error_says_where():
    with pytest.raises(ExprError, match=r"found '\*' at 4 of 'a \+ \* b'"):
        parse("a + * b")


def test_grouping():
    a, b, c = map(Name, "abc")
    assert parse("a - b - c") == Binary("-", Binary("-", a, b), c)
    assert parse("a - (b - c)") == Binary("-", a, Binary("-", b, c))
    assert parse("-a/b") == Binary("/", Neg(a), b)
    assert parse("-(a/b)") == Neg(Binary("/", a, b))
    assert parse("a + b*c") == Binary("+", a, Binary("*", b, c))
    assert parse("a if b else c if y else g") == Cond(b, a, Cond(Name("y"), c, G))
    assert parse("(a if b else c) if y else g") == Cond(Name("y"), Cond(b, a, c), G)
    assert parse("a + b < c if y else g") == Cond(Name("y"), Binary("<", Binary("+", a, b), c), G)
    assert parse("pow(a, b - 1)") == Call("pow", (a, Binary("-", b, Num(1.0))))
    assert parse("1e-3") == Num(1e-3)
    assert parse("inf") == Num(math.inf)
    assert parse("nan") == Num(expr.NAN)


_SCALAR = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negative": lambda a: -a,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "where": lambda c, x, z: x if c else z,
    "smul": lambda a, b: 0.0 if a == 0 else a * b,
    "exp": lambda *args: args[0] + 0.25,
    "pow": lambda *args: args[0],
    "x_1": lambda *args: args[-1],
    "inf": math.inf,
    "nan": math.nan,
}


@given(trees, st.tuples(*[st.sampled_from([-2.0, 0.0, 0.5, 1.0, 3.0])] * 5))
def test_text_and_python_mean_the_same(tree, values):
    """The language is a subset of Python's, and the calls compute what the operators say."""
    scope = {**_SCALAR, **dict(zip(expr.VARIABLES, values))}
    try:
        first, second = (eval(source, scope) for source in (to_text(tree), expr.to_python(tree)))
    except (ExprError, ArithmeticError):  # both branches of where() are computed, only one of a conditional
        return
    assert same(float(first), float(second))


def same(x, y):
    """The same bits, but for those of a NaN."""
    return (x != x and y != y) or (x == y and math.copysign(1, x) == math.copysign(1, y))


# ---- trees -----------------------------------------------------------------------------------------------------------


def test_names_and_calls():
    tree = parse("0 if b == 0 else b*pow(a, b - 1)")
    assert expr.free_names(tree) == {"a", "b"}
    assert expr.calls(tree) == {"pow"}
    assert expr.free_names(Num(1.0)) == frozenset()


def test_substitution_is_simultaneous():
    assert expr.substitute(parse("a - b*exp(a)"), {"a": Name("b"), "b": parse("a + 1")}) == parse("b - (a + 1)*exp(b)")
    assert expr.substitute(parse("-a if b else c"), {"a": Num(1.0)}) == parse("-1 if b else c")


@pytest.mark.parametrize(
    ("partial", "pushed"),
    [
        ("1", "g"),
        ("0", "0"),
        ("-0", "0"),
        ("-1", "-g"),
        ("0.5", "0.5*g"),
        ("-2", "-2*g"),
        ("b", "smul(g, b)"),
        ("inf", "smul(g, inf)"),
        ("nan", "smul(g, nan)"),
        ("1 - y*y", "smul(g, 1 - y*y)"),
        ("1 if a else 0", "g if a else 0"),
        ("0 if a else 0", "0"),
        ("1 if a > b else 0.5 if a == b else 0", "g if a > b else 0.5*g if a == b else 0"),
        ("0 if b == 0 else b*pow(a, b - 1)", "0 if b == 0 else smul(g, b*pow(a, b - 1))"),
        ("(1 if b <= c else 0) if a < b else 0", "(g if b <= c else 0) if a < b else 0"),
        ("2*(a if b else c)", "smul(g, 2*(a if b else c))"),
    ],
)
def test_push(partial, pushed):
    assert push(G, parse(partial)) == parse(pushed)


# ---- rendering -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dtype", "c"),
    [
        ("1 - y*y", "f32", "(1.0f - (y * y))"),
        ("1 - y*y", "f64", "(1.0 - (y * y))"),
        ("0.1", "f32", "0.10000000149011612f"),
        ("0.1", "f64", "0.1"),
        ("1e300", "f32", "(float)TPF_INF"),
        ("inf", "f64", "TPF_INF"),
        ("nan", "f32", "(float)TPF_NAN"),
        ("-a", "f32", "(-a)"),
        ("-a", "i32", "(int32_t)((uint32_t)0 - (uint32_t)a)"),
        ("a + b*c", "i64", "(int64_t)((uint64_t)a + (uint64_t)(int64_t)((uint64_t)b * (uint64_t)c))"),
        ("a*b", "u8", "(uint8_t)(a * b)"),
        ("a + b", "b8", "(uint8_t)(a | b)"),
        ("a*b", "b8", "(uint8_t)(a & b)"),
        ("a if a != a else b", "f64", "((a != a) ? a : b)"),
        ("a if a != a else b", "i64", "(0 ? a : b)"),
        ("a < 0", "u8", "0"),
        ("exp(-a)", "f32", "tpf_exp_f32((-a))"),
    ],
)
def test_c(text, dtype, c):
    assert expr.to_c(parse(text), dtype) == c


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("0.5", "i32"),
        ("inf", "i64"),
        ("nan", "u8"),
        ("256", "u8"),
        ("2", "b8"),
        ("a/b", "i32"),
        ("a - b", "b8"),
        ("-a", "b8"),
    ],
)
def test_no_meaning_for_the_dtype(text, dtype):
    with pytest.raises(ExprError):
        expr.to_c(parse(text), dtype)


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_float32_literals_are_rounded_once(value):
    literal = expr.c_literal(value, "f32")
    if literal == "(float)TPF_INF":
        assert value > 3.4028235e38
    else:
        number = float(literal.removesuffix("f"))
        assert literal.endswith("f")
        assert struct.pack("<f", number) == struct.pack("<f", value)
        assert struct.unpack("<f", struct.pack("<f", number))[0] == number


def test_nested_conditions_get_statements():
    lines = expr.c_statements(parse("exp(a if a > 0 else b) if b < c else (c if y else 0)"), "f32", "float")
    assert lines == [
        "const float t0 = ((a > 0.0f) ? a : b);",
        "const float t1 = (y ? c : 0.0f);",
        "return ((b < c) ? tpf_exp_f32(t0) : t1);",
    ]


def test_python_rendering():
    assert expr.to_python(parse("-0.5*y/a")) == "divide(multiply(-0.5, y), a)"
    assert expr.to_python(parse("g if a <= 0 else -g")) == "where(less_equal(a, 0), g, negative(g))"
    with pytest.raises(ExprError, match="two numbers"):
        expr.to_python(parse("a*(1 if a > 0 else 2)"))


# ---- the table -------------------------------------------------------------------------------------------------------

entries = pytest.mark.parametrize("entry", ops.TABLE.values(), ids=ops.TABLE)


@entries
def test_entry_is_complete(entry):
    assert re.fullmatch(r"[a-z][a-z0-9_]*", entry.name)
    assert list(ops.TABLE).index(entry.name) == entry.opcode
    assert 1 <= entry.nin <= 3
    assert len(entry.domain) == entry.nin
    assert all(low < high for low, high in entry.domain)
    assert set(entry.without) <= set(ops.KINDS[entry.kind])
    assert entry.doc.endswith(".")
    assert entry.ulp <= (8 if "gamma" in entry.name or entry.name == "spherical_ratio" else 4)
    assert not entry.public or entry.example
    assert all(name in entry.inputs for text in entry.kinks for name in expr.free_names(parse(text)))
    if entry.kind in ("compare", "integer"):
        assert entry.pushed == (Num(0.0),) * entry.nin


@entries
def test_saves_are_what_the_rules_name(entry):
    for i in range(3):
        source = ops.composed_vjp(entry.name, i) if i < entry.nin else None
        named = set() if source is None else set(re.findall(r"\b[abcyg]\b", source)) - {"g"}
        assert entry.saves(i) == sum(ops.SAVE_BITS[name] for name in named)
        assert entry.vjp_kind(i) == {None: "NONE", "g": "PASS"}.get(source, "LOOP")
    assert entry.saves() == entry.saves(0) | entry.saves(1) | entry.saves(2)


@entries
def test_composed_rule_uses_only_public_functions(entry):
    for i in range(entry.nin):
        source = ops.composed_vjp(entry.name, i)
        if source is not None:
            names = set(re.findall(r"[A-Za-z_]\w*", source))
            assert names <= {*ops.TABLE, *"abcyg", "inf", "nan"}
            compile(source, entry.name, "eval")


@pytest.mark.parametrize(
    ("name", "saves", "rules"),
    [
        ("add", "", ["g", "g"]),
        ("subtract", "", ["g", "negative(g)"]),
        ("multiply", "ab", ["smul(g, b)", "smul(g, a)"]),
        ("divide", "by", ["smul(g, divide(1, b))", "smul(g, divide(negative(y), b))"]),
        ("smul", "ab", ["smul(g, b)", "where(equal(a, 0), smul(a, g), smul(g, a))"]),
        ("tanh", "y", ["smul(g, subtract(1, multiply(y, y)))"]),
        ("relu", "a", ["where(less_equal(a, 0), 0, g)"]),
        ("where", "a", [None, "where(a, g, 0)", "where(a, 0, g)"]),
        ("sign", "", [None]),
        ("less", "", [None, None]),
    ],
)
def test_rules(name, saves, rules):
    assert [ops.composed_vjp(name, i) for i in range(ops.TABLE[name].nin)] == rules
    assert ops.TABLE[name].saves() == sum(ops.SAVE_BITS[value] for value in saves)


_PRIMITIVES = {
    **vars(math),
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "round": round,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "logaddexp": lambda a, b: math.log(math.exp(a) + math.exp(b)),
    **dict.fromkeys(
        ["erfinv", "digamma", "polygamma", "sinc", "spherical_ratio", "silu", "gelu", "gelu_tanh"], lambda *x: math.nan
    ),
    **{name: operator.xor for name in ops.TABLE if name.startswith("bitwise_")},
}


def _evaluate(tree, scope):
    """A tree of the table over Python floats; calls of entries through their own values."""
    if isinstance(tree, Call):
        args = [_evaluate(arg, scope) for arg in tree.args]
        entry = ops.TABLE[tree.name]
        if entry.primitive:
            try:
                return _PRIMITIVES[tree.name](*args)
            except (ValueError, TypeError):  # outside of the domain; bits of floats
                return math.nan
        return _evaluate(entry.value, dict(zip("abc", args)))
    if isinstance(tree, Cond):
        return _evaluate(tree.yes if _evaluate(tree.test, scope) else tree.no, scope)
    if isinstance(tree, (Neg, Binary)):
        args = [_evaluate(child, scope) for child in expr.children(tree)]
        try:
            return _SCALAR["negative" if isinstance(tree, Neg) else expr.FUNCTION_OF[tree.op]](*args)
        except ZeroDivisionError:
            return math.inf
    return tree.value if isinstance(tree, Num) else scope[tree.id]


def value(name, *args):
    return _evaluate(ops.TABLE[name].value, dict(zip("abc", args)))


def gradient(name, *args, g=1.0):
    scope = dict(zip("abc", args), g=g, y=value(name, *args))
    return [_evaluate(tree, scope) for tree in ops.TABLE[name].pushed]


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("abs", (-0.0,), 0.0),
        ("abs", (-INF,), INF),
        ("abs", (NAN,), NAN),
        ("sign", (NAN,), NAN),
        ("sign", (-2.0,), -1.0),
        ("relu", (NAN,), NAN),
        ("relu", (-INF,), 0.0),
        ("maximum", (NAN, 1.0), NAN),
        ("maximum", (1.0, NAN), NAN),
        ("minimum", (NAN, 1.0), NAN),
        ("minimum", (1.0, NAN), NAN),
        ("clip", (5.0, 0.0, 1.0), 1.0),
        ("clip", (5.0, 2.0, 1.0), 1.0),
        ("clip", (NAN, 0.0, 1.0), NAN),
        ("clip", (NAN, 2.0, 1.0), NAN),
        ("clip", (0.5, NAN, 1.0), NAN),
        ("clip", (0.5, 0.0, NAN), NAN),
        ("clip", (1.5, 2.0, 1.0), 1.0),
        ("clip", (0.5, 2.0, 1.0), 1.0),
        ("softplus", (1000.0,), 1000.0),
        ("softplus", (-1000.0,), 0.0),
        ("softplus", (INF,), INF),
        ("softplus", (NAN,), NAN),
        ("smul", (0.0, INF), 0.0),
        ("smul", (-0.0, NAN), 0.0),
        ("where", (1.0, 2.0, NAN), 2.0),
    ],
)
def test_values(name, args, expected):
    assert same(float(value(name, *args)), expected)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("abs", (0.0,), [0]),
        ("relu", (0.0,), [0]),
        ("maximum", (1.0, 1.0), [0.5, 0.5]),
        ("maximum", (2.0, 1.0), [1, 0]),
        ("maximum", (NAN, 1.0), [1, 0]),
        ("maximum", (1.0, NAN), [0, 1]),
        ("maximum", (NAN, NAN), [1, 0]),
        ("minimum", (1.0, 1.0), [0.5, 0.5]),
        ("minimum", (2.0, 1.0), [0, 1]),
        ("minimum", (1.0, NAN), [0, 1]),
        ("clip", (0.5, 0.0, 1.0), [1, 0, 0]),
        ("clip", (0.0, 0.0, 1.0), [1, 0, 0]),
        ("clip", (1.0, 0.0, 1.0), [1, 0, 0]),
        ("clip", (-1.0, 0.0, 1.0), [0, 1, 0]),
        ("clip", (2.0, 0.0, 1.0), [0, 0, 1]),
        ("clip", (-1.0, 2.0, 1.0), [0, 0, 1]),
        ("clip", (1.5, 2.0, 1.0), [0, 0, 1]),
        ("clip", (3.0, 2.0, 1.0), [0, 0, 1]),
        ("clip", (NAN, 0.0, 1.0), [1, 0, 0]),
        ("pow", (0.0, 0.0), [0, 0]),
        ("pow", (0.0, 1.0), [1, 0]),
        ("pow", (0.0, 2.0), [0, 0]),
        ("where", (1.0, 2.0, NAN), [0, 1, 0]),
    ],
)
def test_kinks(name, args, expected):
    assert gradient(name, *args) == expected


@entries
def test_zero_cotangent_stays_zero(entry):
    for args, g in itertools.product(itertools.product([0.5, 1.0, 2.0], repeat=entry.nin), [0.0, -0.0]):
        assert all(result == 0 for result in gradient(entry.name, *args, g=g))


@pytest.mark.parametrize("infinite", [INF, -INF, NAN])
def test_selection_does_not_multiply(infinite):
    """An infinite cotangent on the selected side leaves 0, not NaN, on the other."""
    for name, args in [
        ("where", (1.0, 2.0, 3.0)),
        ("maximum", (2.0, 1.0)),
        ("clip", (0.5, 0.0, 1.0)),
        ("relu", (-1.0,)),
    ]:
        results = gradient(name, *args, g=infinite)
        assert all(result == 0 or same(result, infinite) for result in results)


@pytest.mark.parametrize(
    "bad",
    [
        dict(name="add", value="a + b", domain=[ops.R, ops.R]),
        dict(name="new_op", value="1", domain=[]),
        dict(name="new_op", value="a + y", domain=[ops.R]),
        dict(name="new_op", value="a", domain=[]),
        dict(name="new_op", value="a", d=("1", "1"), domain=[ops.R]),
        dict(name="new_op", value="a", d=("b",), domain=[ops.R]),
        dict(name="new_op", value="undeclared(a)", domain=[ops.R]),
        dict(name="new_op", value="a", d=("a*(1 if a > 0 else 2)",), domain=[ops.R]),
        dict(name="new_op", value="a +", domain=[ops.R]),
    ],
)
def test_bad_entry_is_refused(bad, monkeypatch):
    monkeypatch.setattr(ops, "STRUCTURED", {})
    before = dict(ops.TABLE)
    with pytest.raises(ExprError):
        ops.elementwise(**bad, doc="Nothing.")
    assert before == ops.TABLE


# ---- generation ------------------------------------------------------------------------------------------------------


def test_generation_is_stable(tmp_path):
    paths = codegen.generate(tmp_path)
    assert {path.name for path in paths} == {"optable.h", "loops.h", "scalar.h", "optable.pxi", "functions.pxi"}
    stamps = [path.stat().st_mtime_ns for path in paths]
    texts = [path.read_text() for path in paths]
    assert codegen.generate(tmp_path) == paths
    assert [path.stat().st_mtime_ns for path in paths] == stamps
    paths[1].write_text("damaged")
    codegen.generate(tmp_path)
    assert [path.read_text() for path in paths] == texts


def test_opcodes_count(tmp_path):
    codegen.generate(tmp_path)
    header = (tmp_path / "optable.h").read_text()
    members = re.search(r"enum \{\n(.*?)\};", header, re.S)[1].replace("\n", " ").split(", ")
    names = [member.split(" = ")[0].strip(" ,") for member in members if member.strip()]
    assert names.index("TPF_N_ELEMENTWISE") == len(ops.TABLE)
    assert names.index("TPF_N_OPS") == len(ops.TABLE) + 1 + len(ops.STRUCTURED)
    assert [op.opcode for op in ops.STRUCTURED.values()] == list(
        range(len(ops.TABLE), len(ops.TABLE) + len(ops.STRUCTURED))
    )
    assert f'TPF_TABLE_HASH = b"{table_hash()}"' in (tmp_path / "optable.pxi").read_text()


@entries
def test_everything_is_generated(entry):
    loops = codegen.loops_h()
    for dtype in ops.DTYPES:
        assert (f"tpf_loop_{entry.name}_{dtype}(" in loops) == (dtype in entry.dtypes)
    for i, letter in enumerate(entry.inputs):
        for dtype in ops.FLOATS:
            assert (f"tpf_vjp_{entry.name}_{letter}_{dtype}(" in loops) == (entry.vjp_kind(i) == "LOOP")
    assert (f"\ndef {entry.name}(" in codegen.functions_pxi()) == entry.public


def test_loops_take_the_forms_of_their_primitives():
    loops = codegen.loops_h()
    assert "gx[i] = gx[i] + tpf_push_sin_a_near_f32(g[i], a[i]);" in loops
    assert "return tpf_smul_f64(g, (-tpf_sin_near_f64(a)));" in loops
    one = "tpf_sin_not_near_f32(a[0]) < TPF_SIGN_F32 ? tpf_sin_near_f32(a[0]) : tpf_sin_full_f32(a[0])"
    assert f"y[0] = {one};" in loops
    assert "return tpf_power_not_square_f64(a, (b - 1.0));" in loops  # of the rule b*pow(a, b - 1)
    assert "tpf_each_floor_divide_i32(y, a, b, n);" in loops
    assert "expm1_near" not in loops


def test_public_functions_parse():
    """functions.pxi is also plain Python."""
    module = {f"call{n}": None for n in (1, 2, 3)}
    exec(codegen.functions_pxi(), module)
    for entry in ops.TABLE.values():
        if entry.public:
            assert module[entry.name].__doc__.startswith(entry.doc)
            assert max(map(len, module[entry.name].__doc__.splitlines())) <= 120


def _load_copy(tmp_path, addition):
    """The three files as a package of their own, the way setup.py loads them, with a line added to ops.py."""
    for name in ("_hash.py", "expr.py", "ops.py", "codegen.py"):
        shutil.copy(SOURCES / name, tmp_path)
    source = (tmp_path / "ops.py").read_text()
    at = source.index('structured("identity"')
    (tmp_path / "ops.py").write_text(source[:at] + addition + "\n" + source[at:])
    package = types.ModuleType("table_copy")
    package.__path__ = [str(tmp_path)]
    sys.modules["table_copy"] = package
    try:
        return importlib.import_module("table_copy.codegen")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "table_copy"]:
            del sys.modules[name]


def test_adding_an_op_touches_one_file(tmp_path):
    line = (
        'elementwise("cube", "a*a*a", d=("3*(a*a)",), kind="number", domain=[R], ulp=1, '
        'doc="Third power.", example="[2.0] -> [8.0]")'
    )
    copy = _load_copy(tmp_path, line)
    out = tmp_path / "out"
    copy.generate(out)
    text = {path.name: path.read_text() for path in out.iterdir()}
    assert "    OP_CUBE,\n    TPF_N_ELEMENTWISE,\n" in text["optable.h"]
    assert "        OP_CUBE\n" in text["optable.pxi"]
    assert "return call1(OP_CUBE, a)" in text["functions.pxi"]
    assert "return ((a * a) * a);" in text["loops.h"]
    assert "return tpf_smul_f32(g, (3.0f * (a * a)));" in text["loops.h"]
    assert (
        "{0, tpf_loop_cube_u8, tpf_loop_cube_i32, tpf_loop_cube_i64, tpf_loop_cube_f32, tpf_loop_cube_f64}"
        in text["loops.h"]
    )
    assert re.search(r'TPF_TABLE_HASH = b"([0-9a-f]{16})"', text["optable.pxi"])[1] != table_hash()


def test_only_the_standard_library():
    for name in ("_hash.py", "expr.py", "ops.py", "codegen.py"):
        for module in re.findall(r"^(?:from|import) ([\w.]+)", (SOURCES / name).read_text(), re.M):
            assert module.startswith(".") or module.split(".")[0] in sys.stdlib_module_names
