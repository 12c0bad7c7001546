"""Makes docs/ops.md from the op table: of each elementwise op its value, derivatives, dtypes and error bound.

Run from the repository root: python tools/make_ops_doc.py. A test compares the file with text().
"""

import re
from pathlib import Path

from tapeflow import codegen, ops
from tapeflow.expr import Name, free_names, parse, substitute, to_text

HEAD = """\
# Elementwise ops

Made from the op table (`tapeflow/ops.py`) by `tools/make_ops_doc.py`; a test holds it against the table. Each op is
declared by its value and its partial derivatives; the loops, the rules of `backward`, the docstrings and the tests come
from the same entry.

- *Value*: the expression that is computed, in the order that is computed; where there is none, a function of its own
  (`csrc/tpf_math.h` and its neighbours).
- *Derivative*: by each input, in terms of the inputs and of the result y. g is the cotangent. A condition selects the
  cotangent, all else is multiplied by `smul`: [kinks.md](kinks.md).
- *Dtypes*: "float": float32 and float64; integers and bool are cast to the default float dtype first.
- *Bound*: the largest error of the value in units in the last place, the same for float32 and float64; "exact" ops
  round nothing, 0.5 is correct rounding, "each" rounds each operation.
- *Measured*: the largest error found, float32 / float64, the worse of code with and without fma; how, and how fast, say
  the heads of `csrc/tpf_math.h` and its neighbours.

| op | meaning | value | derivative | dtypes | bound | measured |
| --- | --- | --- | --- | --- | --- | --- |
"""

DTYPES = {
    "float": "float",
    "number": "all but bool",
    "all": "all",
    "compare": "all, to bool",
    "select": "all",
    "integer": "integers, bool",
}


def measured() -> dict[str, str]:
    """Op -> its errors, from the tables at the heads of the C sources: ten figures a line, float32 then float64."""
    found = {}
    for name in ("tpf_math.h", "tpf_math_more.h", "tpf_math_special.h", "tpf_composite.h"):
        head = (Path(ops.__file__).parent / "csrc" / name).read_text(encoding="utf-8").split("*/")[0]
        for line in re.finditer(r"^ {5}([a-z][a-z0-9_, ]*?) {2,}((?:[0-9.]+ *){10})$", head, re.M):
            figures = line[2].split()
            errors = [max(figures[k : k + 2], key=float) for k in (0, 5)]
            found |= dict.fromkeys(line[1].split(", "), " / ".join(errors))
    return found


MEASURED = measured()


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def derivatives(entry: ops.Elementwise, names: tuple[str, ...]) -> str:
    """One line per input that has a cotangent, "-" for none."""
    public = {inner: Name(name) for inner, name in zip(entry.inputs, names, strict=True)}
    lines = []
    for i, text in enumerate(entry.d_text):
        if entry.vjp_kind(i) != "NONE":
            tree = parse(text)
            to = "to {} goes" if "g" in free_names(tree) else "d/d{} ="
            lines.append(f"{to.format(names[i])} `{cell(to_text(substitute(tree, public)))}`")
    none = "-" if entry.kind in ("compare", "integer") else "0"
    return "<br>".join(lines) or none


def row(entry: ops.Elementwise) -> str:
    names = codegen.parameters(entry)
    public = {inner: Name(name) for inner, name in zip(entry.inputs, names, strict=True)}
    value = "" if entry.primitive else f"`{cell(to_text(substitute(entry.value, public)))}`"
    dtypes = DTYPES[entry.kind] if not entry.without else ", ".join(ops.DTYPES[dtype][0] for dtype in entry.dtypes)
    bound = "each" if entry.note.startswith("Each operation") else f"{entry.ulp:g}" if entry.ulp else "exact"
    meaning = f"{entry.doc} {entry.note}".strip()
    cells = [f"`{entry.name}({', '.join(names)})`", cell(meaning), value, derivatives(entry, names), dtypes, bound]
    cells.append(MEASURED.get(entry.name, ""))
    return f"| {' | '.join(cells)} |\n"


def text() -> str:
    """The whole document."""
    return HEAD + "".join(map(row, ops.TABLE.values()))


if __name__ == "__main__":
    Path("docs/ops.md").write_text(text(), encoding="utf-8")
