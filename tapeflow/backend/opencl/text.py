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
    r"(?<![\w.])(?:0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?[pP][+-]?\d+|(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?"
    r"|\d+[eE][+-]?\d+)(?![\w.])"
)


class KernelText(NamedTuple):
    """One kernel: its name, its text, the functions that it calls, NumPy's types of its arguments (None: a buffer)."""

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
    inputs = ", ".join(f"{'uint8_t' if entry.kind == 'select' and key == 'a' else ctype} {key}" for key in entry.inputs)
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


# ---- accuracy

# Where float32 is not as accurate as the table says: it is made of float32 alone, that of the cpu of float64.
_WIDER = {"logaddexp": 5.0}
_LOOSE = 4.0  # what quotients and roots that are not rounded correctly add (OpenCL C 1.2, 7.4: 2.5 and 3 ULP)


def bound(name: str, dtype: int, rounds: bool) -> float:
    """The largest error of an op on a device, in the units of its entry. rounds: the device rounds quotients and roots
    of float32 correctly, as processors do; OpenCL asks for that in float64 alone."""
    ulp = ops.TABLE[name].ulp
    if SUFFIXES[dtype] != "f32":
        return ulp
    ulp = _WIDER.get(name, ulp)
    needs = (f"tpf_{name}_f32",)
    return ulp if rounds or not re.search(r"[\w)] / |\bsqrt\b", functions(needs)) else ulp + _LOOSE
