"""Writes what the op table says as C and Cython, into tapeflow/_generated.

    optable.h      opcodes and the facts of each op
    loops.h        scalar functions, loops and VJP loops for each op and dtype, and the tables of them for level.c
    optable.pxi    the declarations of optable.h for Cython
    functions.pxi  the public functions with their docstrings

A file is rewritten only when its content changes, so that nothing is compiled again without need. The output is a
function of expr.py, ops.py and this file alone; their hash is written into it. Standard library only.
"""

from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap

from .expr import Name, c_statements, parse, substitute, to_text
from .ops import DTYPES, FLOATS, INPUTS, KINDS, SAVE_BITS, STRUCTURED, TABLE, Elementwise, table_hash

WARNING = "Generated from ops.py by codegen.py: edit those."
VJP_KINDS = ("NONE", "PASS", "LOOP")


def generate(out_dir: str | Path) -> list[Path]:
    """Bring the generated files up to date; the paths of all of them, changed or not."""
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    contents = {
        "optable.h": optable_h(),
        "loops.h": loops_h(),
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
        f'#define TPF_TABLE_HASH "{table_hash()}"',
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

# Integer powers by repeated squaring, modulo 2**bits. The core refuses negative exponents; here they give 1.
_POWER = """TPF_INLINE {ctype} tpf_pow_{dt}({ctype} a, {ctype} b)
{{
    {unsigned} result = 1, base = ({unsigned})a;
    for (; b > 0; b = ({ctype})(b >> 1)) {{
        if (b & 1)
            result = ({unsigned})(result * base);
        base = ({unsigned})(base * base);
    }}
    return ({ctype})result;
}}
"""


def loops_h() -> str:
    parts = [
        f"/* {WARNING}\n\n"
        "   Included once for each instruction-set level, after math.h. y may be the very memory of an operand, and\n"
        "   gx that of g; nothing else may overlap. bool is uint8_t, 0 or 1. */\n"
        "#ifndef TPF_LOOPS_H\n#define TPF_LOOPS_H\n",
        *(
            _POWER.format(ctype=ctype, dt=dtype, unsigned="uint32_t" if dtype == "u8" else "u" + ctype)
            for dtype, (_, ctype) in DTYPES.items()
            if dtype in ("u8", "i32", "i64")
        ),
    ]
    entries = list(TABLE.values())
    parts += [_scalar(e, dtype) for e in entries if not e.primitive for dtype in e.dtypes]
    parts += [_loop(e, dtype) for e in entries for dtype in e.dtypes]
    rules = [(e, i, dtype) for e in entries for i in range(e.nin) if e.vjp_kind(i) == "LOOP" for dtype in FLOATS]
    parts += [_partial(*rule) for rule in rules]
    parts += [_vjp(*rule) for rule in rules]
    parts += [_loop_table(entries), _vjp_table(entries), "#endif\n"]
    return "\n".join(parts)


def _input_type(entry: Elementwise, name: str, dtype: str) -> str:
    return "uint8_t" if entry.kind == "select" and name == "a" else DTYPES[dtype][1]


def _result_type(entry: Elementwise, dtype: str) -> str:
    return "uint8_t" if entry.kind == "compare" else DTYPES[dtype][1]


def _scalar(entry: Elementwise, dtype: str) -> str:
    """The op on one element, for every place that needs it."""
    inputs = ", ".join(f"{_input_type(entry, name, dtype)} {name}" for name in entry.inputs)
    ctype = _result_type(entry, dtype)
    return _inline(f"{ctype} tpf_{entry.name}_{dtype}({inputs})", c_statements(entry.value, dtype, ctype))


def _inline(head: str, body: list[str]) -> str:
    return f"TPF_INLINE {head}\n{{\n" + "".join(f"    {line}\n" for line in body) + "}\n"


def _loop(entry: Elementwise, dtype: str) -> str:
    result = _result_type(entry, dtype)
    lines = [
        f"static void tpf_loop_{entry.name}_{dtype}"
        "(void *y_, const void *a_, const void *b_, const void *c_, int64_t n)",
        "{",
        f"    {result} *y = ({result} *)y_;",
        *(_pointer(name, _input_type(entry, name, dtype)) for name in entry.inputs),
        *(f"    (void){name}_;" for name in INPUTS[entry.nin :]),
        "    if (n == 1) {",
        f"        y[0] = {_call(entry, dtype, '0')};",
        "        return;",
        "    }",
        "    TPF_IVDEP",
        "    for (int64_t i = 0; i < n; i++)",
        f"        y[i] = {_call(entry, dtype, 'i')};",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _pointer(name: str, ctype: str) -> str:
    return f"    const {ctype} *{name} = (const {ctype} *){name}_;"


def _call(entry: Elementwise, dtype: str, index: str) -> str:
    return f"tpf_{entry.name}_{dtype}({', '.join(f'{name}[{index}]' for name in entry.inputs)})"


def _used(entry: Elementwise, i: int) -> list[str]:
    """What the rule for input i reads besides g."""
    return [name for name, bit in SAVE_BITS.items() if entry.saves(i) & bit]


def _partial(entry: Elementwise, i: int, dtype: str) -> str:
    """g through one partial, on one element. A function: its operands are loaded whichever way a condition goes,
    without which gcc takes the loads for control flow and does not vectorise for SSE."""
    ctype = DTYPES[dtype][1]
    inputs = [f"{ctype} g"]
    inputs += [f"{ctype if name == 'y' else _input_type(entry, name, dtype)} {name}" for name in _used(entry, i)]
    head = f"{ctype} tpf_push_{entry.name}_{INPUTS[i]}_{dtype}({', '.join(inputs)})"
    return _inline(head, c_statements(entry.pushed[i], dtype, ctype))


def _vjp(entry: Elementwise, i: int, dtype: str) -> str:
    """The cotangent of input i: g through the partial, set or added."""
    ctype = DTYPES[dtype][1]
    used = _used(entry, i)
    first, each = (
        f"tpf_push_{entry.name}_{INPUTS[i]}_{dtype}({', '.join(f'{name}[{index}]' for name in ['g', *used])})"
        for index in "0i"
    )
    lines = [
        f"static void tpf_vjp_{entry.name}_{INPUTS[i]}_{dtype}(void *gx_, const void *g_, const void *a_,",
        "    const void *b_, const void *c_, const void *y_, int64_t n, int acc)",
        "{",
        f"    {ctype} *gx = ({ctype} *)gx_;",
        _pointer("g", ctype),
        *(_pointer(name, ctype if name == "y" else _input_type(entry, name, dtype)) for name in used),
        *(f"    (void){name}_;" for name in SAVE_BITS if name not in used),
        "    if (n == 1) {",
        f"        const {ctype} value = {first};",
        "        gx[0] = acc ? gx[0] + value : value;",
        "        return;",
        "    }",
        "    if (acc) {",
        "        TPF_IVDEP",
        "        for (int64_t i = 0; i < n; i++)",
        f"            gx[i] = gx[i] + {each};",
        "    } else {",
        "        TPF_IVDEP",
        "        for (int64_t i = 0; i < n; i++)",
        f"            gx[i] = {each};",
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
        "    const char *TPF_TABLE_HASH",
        f"    const char *const tpf_op_name[{n + len(STRUCTURED)}]",
        f"    const unsigned char tpf_op_nin[{n}]",
        f"    const unsigned char tpf_op_saves[{n}]",
        f"    const unsigned char tpf_op_vjp_saves[{n}][3]",
        f"    const unsigned char tpf_op_vjp_kind[{n}][3]",
        f"    const unsigned char tpf_op_kind[{n}]",
    ]
    return "\n".join(lines) + "\n"


# ---- functions.pxi ---------------------------------------------------------------------------------------------------

_DTYPES_OF_KIND = {
    "float": "float32 or float64; integers and bool are first cast to the default float dtype",
    "number": "any but bool; the result has the promoted dtype",
    "all": "any; the result has the promoted dtype",
    "compare": "any; the result is bool",
    "select": "the condition is bool, the others any; the result has their promoted dtype",
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
        dtypes = f"any but {', '.join(DTYPES[dtype][0] for dtype in entry.without)}; the result has the promoted dtype"
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
        lists = inputs.replace("inf", "float('inf')").replace("], [", "]; [").split("; ")
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
    public = {inner: Name(name) for inner, name in zip(entry.inputs, names, strict=True)}
    partials = [
        f"    d/d{names[i]} = {to_text(substitute(parse(text), public))}"
        for i, text in enumerate(entry.d_text)
        if entry.vjp_kind(i) != "NONE"
    ]
    lines = ["Derivative, y being the result::", "", *partials] if partials else ["The derivative is 0."]
    if entry.ulp:
        lines += ["", f"The largest error is {entry.ulp:g} units in the last place, for float32 and float64."]
    return lines
