"""OpenCL C from the op table: the expression of each op as a function, and programs made of kernels that call them.

A kernel names the functions that it calls; a program has those of all its kernels, each once, with what they need of
library.py. The text follows from ops and dtypes alone. A program has float64 where a word of it is `double`; where none
is, no literal may be one either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from tapeflow import ops
from tapeflow.backend.opencl.library import Item, item, library
from tapeflow.expr import c_statements, calls
from tapeflow.plan.ir import BOOL, NAMES

SUFFIXES = tuple(ops.DTYPES)  # by the code of a dtype
TYPES = ("uchar", "uchar", "int", "long", "float", "double")

OPTIONS = ("-w",)  # C that is right by precedence alone makes drivers write to stderr

_DOUBLE_LITERAL = re.compile(
    r"(?<![\w.])(?:0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?[pP][+-]?\d+|(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
    r"(?![\w.])"
)


class KernelText(NamedTuple):
    """One kernel: its name, its text, the functions that it calls, the types of its arguments, NumPy's (None: a buffer)."""

    name: str
    text: str
    needs: tuple[str, ...]
    argtypes: tuple[Any, ...]


def function(op: int, dtype: int) -> str:
    """The name of the function of an elementwise op over a dtype, as in C."""
    return f"tpf_{NAMES[op]}_{SUFFIXES[dtype]}"


def cast(have: int, want: int) -> str | None:
    """The name of the function that casts one element; None where its bits stay."""
    if have == want or (have == BOOL and want == BOOL + 1):
        return None
    return f"tpf_cast_{SUFFIXES[max(have, 1)]}_{SUFFIXES[want]}"


@cache
def _definition(name: str, dtype: int) -> Item | None:
    """The function of an op that the table composes of others; None where the library has it whole."""
    entry = ops.TABLE[name]
    suffix = SUFFIXES[dtype]
    if entry.primitive or f"tpf_{name}_{suffix}" in library().items:
        return None
    ctype = ops.DTYPES[suffix][1]
    result = "uint8_t" if entry.kind == "compare" else ctype
    inputs = ", ".join(
        f"{'uint8_t' if entry.kind == 'select' and key == 'a' else ctype} {key}" for key in entry.inputs
    )
    body = "".join(f"    {line}\n" for line in c_statements(entry.value, suffix, result))
    return item(f"static {result} tpf_{name}_{suffix}({inputs}) {{\n{body}}}\n")


@cache
def _composed(name: str) -> dict[str, Item]:
    """What tpf_<op>_<dtype> needs beside the library, itself first."""
    op, _, suffix = name.removeprefix("tpf_").rpartition("_")
    if op not in ops.TABLE:
        return {}
    entry = ops.TABLE[op]
    own = _definition(op, SUFFIXES.index(suffix))
    if own is None:
        return {}
    found = {name: own}
    for inner in calls(entry.value):
        found |= _composed(f"tpf_{inner}_{suffix}")
    return found


@cache
def functions(needs: tuple[str, ...]) -> str:
    """The definitions of these functions and of what they call."""
    known: dict[str, Item] = {}
    for name in needs:
        known |= _composed(name)
    return "".join(each.text for each in library().closure(needs, known).values())


def program(kernels: Iterable[KernelText]) -> str:
    """The text of a program of these kernels."""
    kernels = list(kernels)
    needs = tuple(sorted({name for kernel in kernels for name in kernel.needs}))
    text = functions(needs) + "".join(kernel.text for kernel in kernels)
    pragmas = "#pragma OPENCL FP_CONTRACT OFF\n"
    if re.search(r"\bdouble\b", text):
        pragmas += "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
    else:
        text = _DOUBLE_LITERAL.sub(r"\g<0>f", text)
    return pragmas + text
