"""The small language in which ops.py states values and partial derivatives.

    number  name  + - * /  unary -  < <= > >= == !=  x if c else z  function(...)

Names are the inputs a, b, c, the result y and the cotangent g. One tree is rendered as C and as calls of the public
functions, with the same operations in the same order; that is why a fused loop and its composed rule agree bit for bit.
Trees are immutable and at most MAX_DEPTH deep, so the recursive functions here are safe. Standard library only.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

MAX_TEXT = 4000
MAX_DEPTH = 32
VARIABLES = ("a", "b", "c", "y", "g")
INTEGER_RANGE = {
    "b8": (0, 1),
    "u8": (0, 255),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
}
NAN = float("nan")  # one object: trees with NaN compare equal


class ExprError(ValueError):
    """The text is not an expression, or the expression has no meaning for what was asked."""


class Num(NamedTuple):
    """A literal; never negative (that is a Neg)."""

    value: float


class Name(NamedTuple):
    """One of VARIABLES."""

    id: str


class Neg(NamedTuple):
    """Unary minus."""

    operand: "Expr"


class Binary(NamedTuple):
    """Arithmetic or comparison."""

    op: str
    left: "Expr"
    right: "Expr"


class Cond(NamedTuple):
    """`yes if test else no`."""

    test: "Expr"
    yes: "Expr"
    no: "Expr"


class Call(NamedTuple):
    """A call of another entry of the op table."""

    name: str
    args: "tuple[Expr, ...]"


Expr: TypeAlias = Num | Name | Neg | Binary | Cond | Call

FUNCTION_OF = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "==": "equal",
    "!=": "not_equal",
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")

# ---- parsing ---------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"(?P<space>[ \t\n]+)"
    r"|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<op><=|>=|==|!=|[-+*/<>(),])"
)
_NESTING = 2 * MAX_DEPTH + 2  # text of a legal tree never nests deeper: at most a bracket and a minus for each level


def parse(text: str) -> Expr:
    """The tree of `text`; ExprError, and nothing else, where it is not an expression."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise ExprError(f"an expression is a str of at most {MAX_TEXT} characters")
    parser = _Parser(text)
    node = parser.conditional()
    if parser.peek() != "":
        raise parser.error("expected an operator or the end")
    if depth(node) > MAX_DEPTH:
        raise ExprError(f"the expression is deeper than {MAX_DEPTH}")
    return node


class _Parser:
    """Recursive descent; every recursion goes through conditional() or unary(), which count it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        self.next = 0
        self.nesting = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ExprError(f"unknown character {text[position]!r} at {position} of {_shorten(text)!r}")
            kind = str(match.lastgroup)
            if kind != "space":
                self.tokens.append((kind, match.group(), position))
            position = match.end()
        self.tokens.append(("end", "", len(text)))

    def peek(self) -> str:
        return self.tokens[self.next][1]

    def take(self) -> tuple[str, str]:
        kind, token, _ = self.tokens[self.next]
        if kind != "end":
            self.next += 1
        return kind, token

    def expect(self, token: str) -> None:
        if self.peek() != token:
            raise self.error(f"expected {token!r}")
        self.next += 1

    def error(self, message: str) -> ExprError:
        _, token, position = self.tokens[self.next]
        found = repr(_shorten(token)) if token else "the end"
        return ExprError(f"{message}, found {found} at {position} of {_shorten(self.text)!r}")

    def enter(self) -> None:
        self.nesting += 1
        if self.nesting > _NESTING:
            raise self.error("nested too deep")

    def conditional(self) -> Expr:
        self.enter()
        node = self.comparison()
        if self.peek() == "if":
            self.next += 1
            test = self.comparison()
            self.expect("else")
            node = Cond(test, node, self.conditional())
        self.nesting -= 1
        return node

    def comparison(self) -> Expr:
        node = self.sum()
        if self.peek() in COMPARISONS:
            op = self.take()[1]
            node = Binary(op, node, self.sum())
            if self.peek() in COMPARISONS:
                raise self.error("comparisons do not chain")
        return node

    def sum(self) -> Expr:
        node = self.product()
        while self.peek() in ("+", "-"):
            op = self.take()[1]
            node = Binary(op, node, self.product())
        return node

    def product(self) -> Expr:
        node = self.unary()
        while self.peek() in ("*", "/"):
            op = self.take()[1]
            node = Binary(op, node, self.unary())
        return node

    def unary(self) -> Expr:
        if self.peek() != "-":
            return self.primary()
        self.enter()
        self.next += 1
        node = Neg(self.unary())
        self.nesting -= 1
        return node

    def primary(self) -> Expr:
        kind, token = self.take()
        if kind == "number":
            value = float(token)
            if value == float("inf"):
                raise ExprError(f"the number {_shorten(token)!r} is too large; inf is written inf")
            return Num(value)
        if token == "(":
            node = self.conditional()
            self.expect(")")
            return node
        if kind == "name" and token not in ("if", "else"):
            if token in ("inf", "nan"):
                return Num(NAN if token == "nan" else float("inf"))
            if self.peek() == "(":
                return self.call(token)
            if token in VARIABLES:
                return Name(token)
        if kind != "end":
            self.next -= 1
        raise self.error(f"expected a number, a call, a bracket or one of {' '.join(VARIABLES)}")

    def call(self, name: str) -> Expr:
        self.expect("(")
        args = [self.conditional()]
        while self.peek() == ",":
            self.next += 1
            args.append(self.conditional())
        self.expect(")")
        return Call(name, tuple(args))


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


# ---- trees -----------------------------------------------------------------------------------------------------------


def children(node: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, from left to right as written."""
    if isinstance(node, Neg):
        return (node.operand,)
    if isinstance(node, Binary):
        return (node.left, node.right)
    if isinstance(node, Cond):
        return (node.yes, node.test, node.no)
    if isinstance(node, Call):
        return node.args
    return ()


def depth(node: Expr) -> int:
    """Nodes on the longest path down; without recursion, for it guards the functions that recurse."""
    level, deepest = [node], 0
    while level:
        deepest += 1
        level = [child for parent in level for child in children(parent)]
    return deepest


def nodes(node: Expr) -> Iterator[Expr]:
    """The tree's nodes, the root first."""
    yield node
    for child in children(node):
        yield from nodes(child)


def free_names(node: Expr) -> frozenset[str]:
    """The variables that the value depends on."""
    return frozenset(each.id for each in nodes(node) if isinstance(each, Name))


def calls(node: Expr) -> frozenset[str]:
    """The functions that are called by name."""
    return frozenset(each.name for each in nodes(node) if isinstance(each, Call))


def with_children(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The same node over changed children."""
    if isinstance(node, Neg):
        return Neg(change(node.operand))
    if isinstance(node, Binary):
        return Binary(node.op, change(node.left), change(node.right))
    if isinstance(node, Cond):
        return Cond(change(node.test), change(node.yes), change(node.no))
    if isinstance(node, Call):
        return Call(node.name, tuple(map(change, node.args)))
    return node


def substitute(node: Expr, by: Mapping[str, Expr]) -> Expr:
    """The tree with variables replaced, all at once."""
    if isinstance(node, Name):
        return by.get(node.id, node)
    return with_children(node, lambda child: substitute(child, by))


def constant(node: Expr) -> float | None:
    """The value of a literal or a negated literal, else None."""
    if isinstance(node, Num):
        return node.value
    if isinstance(node, Neg) and isinstance(node.operand, Num):
        return -node.operand.value
    return None


def push(g: Expr, partial: Expr) -> Expr:
    """The cotangent g through a partial derivative.

    Conditionals distribute, so an indicator selects g instead of multiplying it; every other factor goes through smul,
    the product in which a zero cotangent stays zero whatever the factor is, inf and NaN included.
    """
    if isinstance(partial, Cond):
        yes, no = push(g, partial.yes), push(g, partial.no)
        return yes if yes == no else Cond(partial.test, yes, no)
    k = constant(partial)
    if k is None or not abs(k) < float("inf"):
        return Call("smul", (g, partial))
    if k == 0:
        return Num(0.0)
    if k == 1:
        return g
    return Neg(g) if k == -1 else Binary("*", partial, g)


# ---- rendering -------------------------------------------------------------------------------------------------------

_PRECEDENCE = {"+": 3, "-": 3, "*": 4, "/": 4} | dict.fromkeys(COMPARISONS, 2)


def to_text(node: Expr) -> str:
    """The text that parses to this tree, with the fewest brackets."""
    return _text(node, 0)


def _text(node: Expr, least: int) -> str:
    """`node` as an operand of a place where only operators of precedence `least` or higher need no bracket."""
    if isinstance(node, Num):
        return number_text(node.value)
    if isinstance(node, Name):
        return node.id
    if isinstance(node, Call):
        return f"{node.name}({', '.join(_text(arg, 0) for arg in node.args)})"
    if isinstance(node, Neg):
        own, text = 5, "-0.0" if node.operand == Num(0.0) else "-" + _text(node.operand, 5)  # Python's -0 is 0
    elif isinstance(node, Cond):
        own, text = 1, f"{_text(node.yes, 2)} if {_text(node.test, 2)} else {_text(node.no, 1)}"
    else:
        own = _PRECEDENCE[node.op]
        left = own + 1 if own == 2 else own  # comparisons do not chain
        text = f"{_text(node.left, left)} {node.op} {_text(node.right, own + 1)}"
    return f"({text})" if own < least else text


def number_text(value: float) -> str:
    """The shortest literal: 1 for 1.0, so that Python numbers stay weak and integer dtypes can use it."""
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return repr(value)  # inf and nan are spelt so in the language as well


def to_python(node: Expr) -> str:
    """The expression as calls of the public functions, in the order of operations of the C text."""
    if constant(node) is not None or isinstance(node, Name):
        return to_text(node)
    if isinstance(node, Neg):
        return f"negative({to_python(node.operand)})"
    if isinstance(node, Binary):
        return f"{FUNCTION_OF[node.op]}({to_python(node.left)}, {to_python(node.right)})"
    if isinstance(node, Cond):
        if constant(node.yes) is not None and constant(node.no) is not None:
            raise ExprError(f"where() of two numbers has no dtype; move the condition outwards: {to_text(node)}")
        return f"where({to_python(node.test)}, {to_python(node.yes)}, {to_python(node.no)})"
    assert isinstance(node, Call)
    return f"{node.name}({', '.join(map(to_python, node.args))})"


def to_c(node: Expr, dtype: str) -> str:
    """The expression in C for operands of `dtype` (b8 u8 i32 i64 f32 f64), variables under their own names.

    Integers wrap: signed arithmetic goes through the unsigned type, because overflow is undefined in C.
    """
    if isinstance(node, Num):
        return c_literal(node.value, dtype)
    if isinstance(node, Name):
        return node.id
    if isinstance(node, Cond):
        test = to_c(node.test, dtype)
        return f"({test} ? {to_c(node.yes, dtype)} : {to_c(node.no, dtype)})"
    if isinstance(node, Call):
        return f"tpf_{node.name}_{dtype}({', '.join(to_c(arg, dtype) for arg in node.args)})"
    if isinstance(node, Neg):
        operand = to_c(node.operand, dtype)
        return f"(-{operand})" if dtype not in INTEGER_RANGE else _c_integer("-", c_literal(0, dtype), operand, dtype)
    if node.op in COMPARISONS and dtype in INTEGER_RANGE:
        truth = _integer_truth(node, dtype)
        if truth is not None:
            return truth
    left, right = to_c(node.left, dtype), to_c(node.right, dtype)
    if node.op in COMPARISONS or dtype not in INTEGER_RANGE:
        return f"({left} {node.op} {right})"
    return _c_integer(node.op, left, right, dtype)


def _integer_truth(node: Binary, dtype: str) -> str | None:
    """A comparison that integers decide without looking (compilers warn of it): a test for NaN, or unsigned below 0."""
    if node.left == node.right:
        return "1" if node.op in ("==", "<=", ">=") else "0"
    if node.op == "<" and node.right == Num(0.0) and dtype in ("b8", "u8"):
        return "0"
    return None


def c_statements(node: Expr, dtype: str, ctype: str) -> list[str]:
    """The body of a C function whose parameters are the variables' names.

    Every conditional inside another expression gets a statement of its own, so that none is evaluated only on a
    condition; otherwise gcc sees control flow and does not vectorise (clip and the rules of maximum, with gcc 12).
    """
    lines: list[str] = []

    def hoist(inner: Expr) -> Expr:
        inner = with_children(inner, hoist)
        if not isinstance(inner, Cond):
            return inner
        name = f"t{len(lines)}"
        lines.append(f"const {ctype} {name} = {to_c(inner, dtype)};")
        return Name(name)

    root = with_children(node, hoist)
    return [*lines, f"return {to_c(root, dtype)};"]


def _c_integer(op: str, left: str, right: str, dtype: str) -> str:
    if dtype == "b8" and op in ("+", "*"):
        return f"(uint8_t)({left} {'|' if op == '+' else '&'} {right})"
    if dtype == "b8" or op == "/":
        raise ExprError(f"{op} is not defined for {dtype}")
    if dtype == "u8":
        return f"(uint8_t)({left} {op} {right})"
    bits = dtype[1:]
    return f"(int{bits}_t)((uint{bits}_t){left} {op} (uint{bits}_t){right})"


def c_literal(value: float, dtype: str) -> str:
    """A literal of exactly this dtype, rounded as a cast of the Python number would round it."""
    if dtype in INTEGER_RANGE:
        low, high = INTEGER_RANGE[dtype]
        if not low <= value <= high or value != int(value):
            raise ExprError(f"{number_text(value)} is not a value of {dtype}")
        prefix = {"u8": "(uint8_t)", "b8": "(uint8_t)", "i64": "(int64_t)"}.get(dtype, "")
        return f"{prefix}{int(value)}"
    if dtype == "f32":
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf")
    if value != value:
        return "(float)TPF_NAN" if dtype == "f32" else "TPF_NAN"  # csrc/tpf_math.h
    if value == float("inf"):
        return "(float)TPF_INF" if dtype == "f32" else "TPF_INF"
    return repr(value) + ("f" if dtype == "f32" else "")
