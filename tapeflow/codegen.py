"""Writes what the op table says as C and Cython, into tapeflow/_generated.

    optable.h      opcodes and the facts of each op
    loops.h        scalar functions, loops and VJP loops for each op and dtype, and the tables of them for level.c
    scalar.h       the machine that runs programs of 0-d values
    optable.pxi    the declarations of optable.h for Cython
    functions.pxi  the public functions with their docstrings

A file is rewritten only when its content changes, so that nothing is compiled again without need. The output is a
function of expr.py, ops.py and this file alone; their hash is written into it. Standard library only.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from ._hash import table_hash
from .expr import Call, Cond, Expr, Name, c_statements, free_names, nodes, parse, substitute, to_text, with_children
from .ops import DTYPES, FLOATS, INPUTS, KINDS, SAVE_BITS, STRUCTURED, TABLE, Elementwise

WARNING = "Generated from ops.py by codegen.py: edit those."
VJP_KINDS = ("NONE", "PASS", "LOOP")


def generate(out_dir: str | Path) -> list[Path]:
    """Bring the generated files up to date; the paths of all of them, changed or not."""
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    contents = {
        "optable.h": optable_h(),
        "loops.h": loops_h(),
        "scalar.h": scalar_h(),
        "optable.pxi": optable_pxi(),
        "functions.pxi": functions_pxi(),
    }
    for name, text in contents.items():
        data = text.encode()
        path = out / name
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)
    return [out / name for name in contents]


def opcode(name: str) -> str:
    return f"OP_{name.upper()}"


# ---- optable.h -------------------------------------------------------------------------------------------------------


def optable_h() -> str:
    entries = list(TABLE.values())
    names = [*TABLE, *STRUCTURED]
    codes = [opcode(name) for name in names]
    split = len(entries)
    codes[split:] = ["TPF_N_ELEMENTWISE", f"{codes[split]} = TPF_N_ELEMENTWISE", *codes[split + 1 :], "TPF_N_OPS"]
    saves = [_triple(str(e.saves(i)) for i in range(3)) for e in entries]
    rules = [_triple("TPF_VJP_" + e.vjp_kind(i) for i in range(3)) for e in entries]
    lines = [
        f"/* {WARNING} */",
        "#ifndef TPF_OPTABLE_H",
        "#define TPF_OPTABLE_H",
        "",
        "enum {\n" + "".join(f"    {code},\n" for code in codes) + "};",
        "/* NONE: no cotangent. PASS: the cotangent itself. LOOP: a loop of loops.h computes it. */",
        f"enum {{ {', '.join('TPF_VJP_' + kind for kind in VJP_KINDS)} }};",
        f"enum {{ {', '.join('TPF_KIND_' + kind.upper() for kind in KINDS)} }};",
        "",
        _array("char *const tpf_op_name[TPF_N_OPS]", [f'"{name}"' for name in names]),
        "/* Of an elementwise op: how many inputs, what all its rules and each rule save (a 1, b 2, c 4, y 8), the\n"
        "   kind of each rule, and the kind of dtypes. */",
        _array("unsigned char tpf_op_nin[TPF_N_ELEMENTWISE]", [str(e.nin) for e in entries]),
        _array("unsigned char tpf_op_saves[TPF_N_ELEMENTWISE]", [str(e.saves()) for e in entries]),
        _array("unsigned char tpf_op_vjp_saves[TPF_N_ELEMENTWISE][3]", saves),
        _array("unsigned char tpf_op_vjp_kind[TPF_N_ELEMENTWISE][3]", rules),
        _array("unsigned char tpf_op_kind[TPF_N_ELEMENTWISE]", ["TPF_KIND_" + e.kind.upper() for e in entries]),
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _array(declaration: str, items: list[str]) -> str:
    return f"static const {declaration} = {{\n" + "".join(f"    {item},\n" for item in items) + "};"


def _triple(items: Iterable[str]) -> str:
    return "{" + ", ".join(items) + "}"


# ---- loops.h ---------------------------------------------------------------------------------------------------------

# Primitives with faster forms of the same bits, tpf_<name>_<form>_<dtype>, and the family of tests whether an element
# may take one: the highest bit of tpf_<family>_not_<form>_<dtype> is clear where it may. A loop takes a form, the first
# of these, for a block whose elements all may.
_NEAR = ("near",)
_FORMS: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(("sin", "cos", "tan"), ("trig", _NEAR)),
    **dict.fromkeys(("remainder", "floor_divide"), ("divide", _NEAR)),
    **dict.fromkeys(("log", "log2", "log10"), ("normal", _NEAR)),
    "cbrt": ("magnitude", _NEAR),
    "atan2": ("plane", _NEAR),
    "exp": ("range", _NEAR),
    "exp2": ("range2", _NEAR),
    "pow": ("power", ("square", "sqrt", "inverse", "near")),
}
# Of these csrc/tpf_integer.h has the loop itself, tpf_each_<name>_<dtype>.
_WHOLE_LOOPS = {
    *((name, dtype) for name in ("pow", "floor_divide", "remainder") for dtype in ("u8", "i32", "i64")),
    ("bitwise_right_shift", "u8"),
}


@dataclass(frozen=True)
class _Element:
    """A C function on one element: an op, or g through one of its partials.

    Loops call it with all operands loaded, whichever way a condition goes; where gcc meets a load under a condition it
    sees control flow and does not vectorise for SSE.
    """

    name: str
    dtype: str
    result: str
    inputs: dict[str, str]  # name -> C type
    tree: Expr

    @property
    def forms(self) -> tuple[str, tuple[str, ...], tuple[Expr, ...]] | None:
        """Family, forms and arguments of all calls of _FORMS primitives, if there are any and they share those."""
        calls = [node for node in nodes(self.tree) if isinstance(node, Call) and node.name in _FORMS]
        found = {(*_FORMS[call.name], call.args) for call in calls}
        if len(found) != 1 or self.dtype not in FLOATS:
            return None
        family, forms, arguments = found.pop()
        conditions = any(isinstance(node, Cond) for argument in arguments for node in nodes(argument))
        return None if conditions else (family, forms, arguments)

    def definition(self) -> str:
        parts = [self._define("", self.tree)]
        if self.forms:
            family, forms, arguments = self.forms
            parts += [self._define(f"_{form}", _in_form(self.tree, form)) for form in forms if not self.primitive]
            parts += [self._define(f"_not_{form}", Call(f"{family}_not_{form}", arguments)) for form in forms]
            if forms == _NEAR:
                parts.append(self._full())
        return "\n".join(parts[self.primitive :])

    def _full(self) -> str:
        """The general form as a function of its own: inlined beside the near one, both would be computed."""
        inputs = ", ".join(f"{ctype} {name}" for name, ctype in self.inputs.items())
        head = f"TPF_NOINLINE {self.result} tpf_{self.name}_full_{self.dtype}({inputs})"
        return f"{head} {{ return {self.one('', tuple(self.inputs))}; }}\n"

    @property
    def primitive(self) -> bool:
        return isinstance(self.tree, Call) and self.tree.name == self.name

    def _define(self, suffix: str, tree: Expr) -> str:
        inputs = ", ".join(f"{ctype} {name}" for name, ctype in self.inputs.items())
        result = f"uint{self.dtype[1:]}_t" if suffix.startswith("_not_") else self.result
        head = f"TPF_INLINE {result} tpf_{self.name}{suffix}_{self.dtype}({inputs})\n{{\n"
        return head + "".join(f"    {line}\n" for line in c_statements(tree, self.dtype, result)) + "}\n"

    def pointers(self) -> list[str]:
        lines = [f"    const {ctype} *{name} = (const {ctype} *){name}_;" for name, ctype in self.inputs.items()]
        return lines + [f"    (void){name}_;" for name in SAVE_BITS if name not in self.inputs]

    def one(self, suffix: str, operands: tuple[str, ...]) -> str:
        return f"tpf_{self.name}{suffix}_{self.dtype}({', '.join(operands)})"

    def call(self, index: str, suffix: str = "") -> str:
        return self.one(suffix, tuple(f"{name}[{index}]" for name in self.inputs))

    def alone(self, operands: tuple[str, ...]) -> str:
        """The value for one element: by the near form where it may be."""
        if self.forms is None or self.forms[1] != _NEAR:
            return self.one("", operands)
        test = f"{self.one('_not_near', operands)} < TPF_SIGN_{self.dtype.upper()}"
        return f"{test} ? {self.one('_near', operands)} : {self.one('_full', operands)}"

    def at_0(self) -> str:
        return self.alone(tuple(f"{name}[0]" for name in self.inputs))

    def loop(self, target: str) -> list[str]:
        """`target` followed by the value, for each i."""
        if (self.name, self.dtype) in _WHOLE_LOOPS:
            return [f"tpf_each_{self.name}_{self.dtype}(y, {', '.join(self.inputs)}, n);"]
        if self.forms is None:
            return ["TPF_IVDEP", "for (int64_t i = 0; i < n; i++)", f"    {target} {self.call('i')};"]
        sign, bits = f"TPF_SIGN_{self.dtype.upper()}", f"uint{self.dtype[1:]}_t"
        lines = [
            "for (int64_t start = 0, end; start < n; start = end) {",
            f"    {bits} beyond;",
            "    end = n - start < TPF_BLOCK ? n : start + TPF_BLOCK;",
        ]
        for form in self.forms[1]:
            lines += [
                f"    beyond = {self.call('start', f'_not_{form}')};",
                f"    if (beyond < {sign})",
                f"        for (int64_t i = start; i < end; i++) beyond |= {self.call('i', f'_not_{form}')};",
                f"    if (beyond < {sign}) {{",
                *(f"    {line}" for line in self._block(target, f"_{form}")),
                "        continue;",
                "    }",
            ]
        return [*lines, *self._block(target, ""), "}"]

    def _block(self, target: str, suffix: str) -> list[str]:
        lines = ["TPF_IVDEP", "for (int64_t i = start; i < end; i++)", f"    {target} {self.call('i', suffix)};"]
        return [f"    {line}" for line in lines]


def _in_form(tree: Expr, form: str) -> Expr:
    tree = with_children(tree, lambda child: _in_form(child, form))
    return Call(f"{tree.name}_{form}", tree.args) if isinstance(tree, Call) and tree.name in _FORMS else tree


def loops_h() -> str:
    parts = [
        f"/* {WARNING}\n\n"
        "   Included once for each instruction-set level, after tpf_math.h. y may be the very memory of an operand,\n"
        "   and gx that of g; nothing else may overlap. bool is uint8_t, 0 or 1. */\n"
        "#ifndef TPF_LOOPS_H\n#define TPF_LOOPS_H\n",
    ]
    entries = list(TABLE.values())
    values = [(e, _value(e, dtype)) for e in entries for dtype in e.dtypes]
    rules = [
        (f"tpf_vjp_{e.name}_{INPUTS[i]}_{dtype}", _partial(e, i, dtype))
        for e in entries
        for i in range(e.nin)
        if e.vjp_kind(i) == "LOOP"
        for dtype in FLOATS
    ]
    parts += [element.definition() for _, element in values]
    parts += [element.definition() for _, element in rules]
    parts += [_loop(element) for _, element in values]
    parts += [_vjp(name, element) for name, element in rules]
    parts += [_loop_table(entries), _vjp_table(entries), "#endif\n"]
    return "\n".join(parts)


def _input_type(entry: Elementwise, name: str, dtype: str) -> str:
    return "uint8_t" if entry.kind == "select" and name == "a" else DTYPES[dtype][1]


def _value(entry: Elementwise, dtype: str) -> _Element:
    result = "uint8_t" if entry.kind == "compare" else DTYPES[dtype][1]
    inputs = {name: _input_type(entry, name, dtype) for name in entry.inputs}
    return _Element(entry.name, dtype, result, inputs, entry.value)


def _partial(entry: Elementwise, i: int, dtype: str) -> _Element:
    ctype = DTYPES[dtype][1]
    saved = [name for name, bit in SAVE_BITS.items() if entry.saves(i) & bit]
    inputs = {"g": ctype} | {name: _input_type(entry, name, dtype) for name in saved}
    return _Element(f"push_{entry.name}_{INPUTS[i]}", dtype, ctype, inputs, entry.pushed[i])


def _loop(element: _Element) -> str:
    lines = [
        f"static void tpf_loop_{element.name}_{element.dtype}(void *y_, const void *a_, const void *b_,",
        "    const void *c_, int64_t n)",
        "{",
        f"    {element.result} *y = ({element.result} *)y_;",
        *(line for line in element.pointers() if line != "    (void)y_;"),
        "    if (n == 1) {",
        f"        y[0] = {element.at_0()};",
        "        return;",
        "    }",
        *(f"    {line}" for line in element.loop("y[i] =")),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _vjp(name: str, element: _Element) -> str:
    """The cotangent of one input, set or added."""
    ctype = element.result
    lines = [
        f"static void {name}(void *gx_, const void *g_, const void *a_,",
        "    const void *b_, const void *c_, const void *y_, int64_t n, int acc)",
        "{",
        f"    {ctype} *gx = ({ctype} *)gx_;",
        *element.pointers(),
        "    if (n == 1) {",
        f"        const {ctype} value = {element.at_0()};",
        "        gx[0] = acc ? gx[0] + value : value;",
        "        return;",
        "    }",
        "    if (acc) {",
        *(f"        {line}" for line in element.loop("gx[i] = gx[i] +")),
        "    } else {",
        *(f"        {line}" for line in element.loop("gx[i] =")),
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _loop_table(entries: list[Elementwise]) -> str:
    """tpf_kernels.loop, by opcode and dtype code."""
    rows = [[f"tpf_loop_{e.name}_{dtype}" if dtype in e.dtypes else "0" for dtype in DTYPES] for e in entries]
    return _macro("TPF_LOOP_TABLE", ["{" + ", ".join(row) + "}" for row in rows])


def _vjp_table(entries: list[Elementwise]) -> str:
    """tpf_kernels.vjp, by opcode, input and float32 or float64."""
    rows = []
    for e in entries:
        cells = [
            "{" + ", ".join(f"tpf_vjp_{e.name}_{INPUTS[i]}_{dtype}" for dtype in FLOATS) + "}"
            if e.vjp_kind(i) == "LOOP"
            else "{0, 0}"
            for i in range(3)
        ]
        rows.append("{" + ", ".join(cells) + "}")
    return _macro("TPF_VJP_TABLE", rows)


def _macro(name: str, rows: list[str]) -> str:
    return f"#define {name} {{ \\\n" + "".join(f"    {row}, \\\n" for row in rows) + "}\n"


# ---- scalar.h --------------------------------------------------------------------------------------------------------

# Ops with a label of their own in the machine, for float32 and float64; others go through their loop, some ns a call.
_SCALAR = (
    "add subtract multiply divide negative smul square sqrt rsqrt reciprocal exp expm1 log log1p sin cos tanh sigmoid "
    "relu abs sign maximum minimum pow where less less_equal greater greater_equal equal not_equal"
).split()

_LONG = frozenset("exp expm1 log log1p sin cos tanh sigmoid pow".split())  # over lanes these go through their loop

_SCALAR_HEAD = """/* Programs of 0-d values: one pass over cells of eight bytes, and the same over lanes of them,
   TPF_LANES single programs side by side. With GCC and Clang each instruction jumps to the label of the next one,
   which the processor predicts better than one switch that all share. In lanes y may be the very memory of an operand
   as wide; nothing else may overlap. */
"""
_MACHINE = """
static void {name}(void *cells_, const tpf_scalar *code, const tpf_scalar *end)
{{
    char *const w = (char *)cells_;
    const tpf_scalar_more *more;
#define TPF_CELL(i) (w + {bytes} * (size_t)(i))
#if defined(__GNUC__)
    static const void *const labels[] = {{{labels}}};
#define TPF_CASE(number, name) name:
#define TPF_NEXT if (++code == end) return; goto *labels[code->op]
    if (code == end) return;
    goto *labels[code->op];
    {{
#else
#define TPF_CASE(number, name) case number:
#define TPF_NEXT break
    for (; code < end; code++) switch (code->op) {{
#endif
{cases}
    }}
#undef TPF_CASE
#undef TPF_NEXT
#undef TPF_CELL
}}
"""


def scalar_codes() -> dict[tuple[str, str], int]:
    """The instruction of (op, dtype suffix): 0 and 1 go through a loop and a cast, 2 copies a cell."""
    cells = [(name, dtype) for name in _SCALAR for dtype in FLOATS if dtype in TABLE[name].dtypes]
    return {cell: 3 + k for k, cell in enumerate(cells)}


def scalar_h() -> str:
    machines = ("tpf_run_scalars", "8", _scalar_case), ("tpf_run_lanes", "8 * TPF_LANES", _lane_case)
    return f"/* {WARNING} */\n{_SCALAR_HEAD}" + "".join(_machine(*machine) for machine in machines)


def _machine(name: str, size: str, case: Callable[[Elementwise, str], list[str]]) -> str:
    """A machine over cells of that many bytes; case: an op of the table on cells called y, a, b, c."""
    n = "1" if size == "8" else "TPF_LANES"
    cells = [f"TPF_CELL({'more' if key == 'c' else 'code'}->{key})" for key in "yabc"]
    more = "more = (const tpf_scalar_more *)(code + 1);"
    cases = [
        (0, "generic", [more, f"((tpf_loop)more->function)({', '.join(cells)}, {n});", "code++;"]),
        (1, "cast", [more, f"((tpf_cast)more->function)({', '.join(cells[:2])}, {n});", "code++;"]),
        (2, "copy", [f"memmove({', '.join(cells[:2])}, {size});"]),
    ]
    for (op, dtype), number in scalar_codes().items():
        entry = TABLE[op]
        three = entry.nin == 3
        body = [more] if three else []
        body += [*case(entry, dtype)] + (["code++;"] if three else [])
        cases.append((number, f"{op}_{dtype}", body))
    text = ""
    for number, label, body in cases:
        lines = "".join(f"        {line}\n" for line in [*body, "TPF_NEXT;"])
        text += f"    TPF_CASE({number}, {label}) {{\n{lines}    }}\n"
    labels = ", ".join(f"&&{label}" for _, label, _ in cases)
    return _MACHINE.format(name=name, bytes=size, labels=labels, cases=text.rstrip())


def _cell(key: str, ctype: str) -> str:
    return f"({ctype} *)TPF_CELL({'more' if key == 'c' else 'code'}->{key})"


def _scalar_case(entry: Elementwise, dtype: str) -> list[str]:
    element = _value(entry, dtype)
    operands = tuple(f"*{_cell(key, ctype)}" for key, ctype in element.inputs.items())
    return [f"*{_cell('y', element.result)} = {element.alone(operands)};"]


def _lane_case(entry: Elementwise, dtype: str) -> list[str]:
    element = _value(entry, dtype)
    if entry.name in _LONG:
        cells = [f"TPF_CELL(code->{key})" if key in element.inputs or key == "y" else "0" for key in "yabc"]
        return [f"tpf_loop_{entry.name}_{dtype}({', '.join(cells)}, TPF_LANES);"]
    return [
        *(f"const {ctype} *{key} = {_cell(key, f'const {ctype}')};" for key, ctype in element.inputs.items()),
        f"{element.result} *y = {_cell('y', element.result)};",
        "TPF_LANE_LOOP",
        f"for (int i = 0; i < TPF_LANES; i++) y[i] = {element.call('i')};",
    ]


# ---- optable.pxi -----------------------------------------------------------------------------------------------------


def optable_pxi() -> str:
    constants = [opcode(name) for name in (*TABLE, *STRUCTURED)] + ["TPF_N_ELEMENTWISE", "TPF_N_OPS"]
    constants += ["TPF_VJP_" + kind for kind in VJP_KINDS] + ["TPF_KIND_" + kind.upper() for kind in KINDS]
    n = len(TABLE)
    lines = [
        f"# {WARNING}",
        'cdef extern from "tpf.h" nogil:',
        "    enum:",
        *(f"        {name}" for name in constants),
        f"    const char *const tpf_op_name[{n + len(STRUCTURED)}]",
        f"    const unsigned char tpf_op_nin[{n}]",
        f"    const unsigned char tpf_op_saves[{n}]",
        f"    const unsigned char tpf_op_vjp_saves[{n}][3]",
        f"    const unsigned char tpf_op_vjp_kind[{n}][3]",
        f"    const unsigned char tpf_op_kind[{n}]",
        f'cdef bytes TPF_TABLE_HASH = b"{table_hash()}"  # not in optable.h: a change of words compiles no loop again',
    ]
    return "\n".join(lines) + "\n"


# ---- functions.pxi ---------------------------------------------------------------------------------------------------

_DTYPES_OF_KIND = {
    "float": "float32 or float64; integers and bool are first cast to the default float dtype",
    "number": "any but bool; the result has the promoted dtype",
    "all": "any; the result has the promoted dtype",
    "compare": "any; the result is bool",
    "select": "the condition is bool, the others any; the result has their promoted dtype",
    "integer": "bool or an integer one; the result has the promoted dtype",
}


def functions_pxi() -> str:
    return f"# {WARNING}\n" + "".join("\n\n" + _function(entry) for entry in TABLE.values() if entry.public)


def parameters(entry: Elementwise) -> tuple[str, ...]:
    """The names of the public function's arguments, in the order of a, b, c."""
    return ("condition", "a", "b") if entry.kind == "select" else tuple(entry.inputs)


def _function(entry: Elementwise) -> str:
    names = parameters(entry)
    body = docstring(entry).replace("\\", "\\\\").splitlines()
    lines = [
        f"def {entry.name}({', '.join(names)}, /):",
        '    """' + body[0],
        *(f"    {line}" if line else "" for line in body[1:]),
        '    """',
        f"    return call{entry.nin}({opcode(entry.name)}, {', '.join(names)})",
    ]
    return "\n".join(lines) + "\n"


def docstring(entry: Elementwise) -> str:
    """What a user should know of the op, all of it from its entry."""
    names = parameters(entry)
    shape = "any shape" if entry.nin == 1 else "shapes that broadcast together"
    dtypes = _DTYPES_OF_KIND[entry.kind]
    if entry.without:
        result = "is bool" if entry.kind == "compare" else "has the promoted dtype"
        dtypes = f"{', '.join(DTYPES[dtype][0] for dtype in entry.dtypes)}; the result {result}"
    about = f"Of {shape}. Dtypes: {dtypes}. A number takes the dtype of the tensors beside it."
    lines = [entry.doc, ""]
    if entry.note:
        lines += [entry.note, ""]
    lines += _section("Parameters", f"{', '.join(names)} : Tensor, array or number", *_indent(about))
    lines += _section(
        "Returns", "Tensor", *_indent("Of the same shape." if entry.nin == 1 else "Of the broadcast shape.")
    )
    lines += _section("Notes", *_notes(entry, names))
    raises = ["DTypeError", *_indent("For an argument that is no tensor, array or number, or that has another dtype.")]
    if entry.nin > 1:
        raises += ["ShapeError", *_indent("Where the shapes do not broadcast.")]
    lines += _section("Raises", *raises)
    if entry.example:
        inputs, result = entry.example.split(" -> ")
        lists = re.sub(r"inf|nan", lambda word: f"float('{word[0]}')", inputs).replace("], [", "]; [").split("; ")
        arguments = ", ".join(f"tp.tensor({item})" for item in lists)
        lines += _section("Examples", f">>> tp.{entry.name}({arguments}).tolist()", result)
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, *lines: str) -> list[str]:
    return [title, "-" * len(title), *lines, ""]


def _indent(text: str) -> list[str]:
    return wrap(text, 100, initial_indent="    ", subsequent_indent="    ")


def _notes(entry: Elementwise, names: tuple[str, ...]) -> list[str]:
    """Derivative and accuracy."""
    if entry.kind == "compare":
        return ["The result is bool and has no derivative."]
    if entry.kind == "integer":
        return ["Integers have no derivative."]
    public = {inner: Name(name) for inner, name in zip(entry.inputs, names, strict=True)}
    rules = [(names[i], parse(text)) for i, text in enumerate(entry.d_text) if entry.vjp_kind(i) != "NONE"]
    lines = []
    for name, tree in rules:
        text = to_text(substitute(tree, public))
        rule = f"to {name} goes {text}, g being the cotangent" if "g" in free_names(tree) else f"d/d{name} = {text}"
        lines += wrap(rule, 100, initial_indent="    ", subsequent_indent="        ")
    lines = ["Derivative, y being the result::", "", *lines] if rules else ["The derivative is 0."]
    if entry.ulp:
        lines += ["", f"The largest error is {entry.ulp:g} units in the last place, for float32 and float64."]
    return lines
