"""Draws: each work-item makes the elements of one counter, so that bits depend on seed, draw and element alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tapeflow.backend.opencl.fused import LOCAL
from tapeflow.backend.opencl.host import Launch
from tapeflow.backend.opencl.memory import Array
from tapeflow.backend.opencl.table import implements
from tapeflow.backend.opencl.text import OPTIONS, SUFFIXES, TYPES, KernelText, program
from tapeflow.plan.ir import CODES, INT64

UNIFORM, NORMAL, BITS32, BITS64, INTEGERS, PERMUTATION = range(6)  # as in core/random.pxi
SMALL_RANGE = 1 << 16  # up to here a word of 32 bits makes an integer of a range

DRAW = "draw"  # the name of the kernel

_ARGSORT = CODES["argsort"]


@cache
def _text(kind: int, dtype: int, words: int) -> KernelText:
    """The kernel of a kind of draw. words: of 32 bits that an element takes."""
    wide = words == 2
    converted, needs = {
        UNIFORM: (f"tpf_word_uniform_{SUFFIXES[dtype]}(w)", f"tpf_word_uniform_{SUFFIXES[dtype]}"),
        NORMAL: (f"tpf_word_normal_{SUFFIXES[dtype]}(w)", f"tpf_word_normal_{SUFFIXES[dtype]}"),
        BITS32: ("(long)w", ""),
        BITS64: ("(long)w", ""),
        INTEGERS: (f"({TYPES[dtype]})tpf_scaled_{32 * words}(w, count, lowest)", f"tpf_scaled_{32 * words}"),
        PERMUTATION: ("tpf_permutation_key(w, lowest, (ulong)(first + k) % count)", "tpf_permutation_key"),
    }[kind]
    ctype, each, vector, philox = (
        TYPES[dtype],
        4 // words,
        *(("ulong", "tpf_philox_long") if wide else ("uint", "tpf_philox")),
    )
    lines = [
        f"__kernel void {DRAW}(const long n, const ulong key, const ulong number, const ulong count,",
        f"    const ulong lowest, __global {ctype} *y, const long p)",
        "{",
        f"    const long first = (long)get_global_id(0)*{each};",
        "    if (first < n) {",
        f"        const {vector}{each} words = {philox}((ulong)get_global_id(0), key, number);",
        f"        {ctype} made[{each}];",
        *(
            f"        {{ const {vector} w = words.s{k}; const long k = {k}; made[{k}] = {converted}; }}"
            for k in range(each)
        ),
        f"        if (first + {each} <= n) {{",
        f"            vstore{each}(({ctype}{each})({', '.join(f'made[{k}]' for k in range(each))}), 0, y + p + first);",
        "        } else {",
        "            for (long k = 0; first + k < n; k++) y[p + first + k] = made[k];",
        "        }",
        "    }",
        "}",
    ]
    argtypes = (np.int64, np.uint64, np.uint64, np.uint64, np.uint64, None, np.int64)
    return KernelText(DRAW, "\n".join(lines) + "\n", (philox, *([needs] if needs else [])), argtypes)


def fill(device: Any, kind: int, out: Array, seed: int, draw: int, count: int = 0, lowest: int = 0) -> None:
    """The draw of this number of a generator of this seed; count (0: 2**64) and lowest: of integers of a range."""
    n = out.size
    if n == 0:
        return
    wide = kind in (BITS64, PERMUTATION) or (kind == INTEGERS and not 0 < count <= SMALL_RANGE)
    wide = wide or (kind in (UNIFORM, NORMAL) and TYPES[out.dtype] == "double")
    words = 2 if wide else 1
    y = out
    if kind == PERMUTATION:
        count = out.shape[-1]
        lowest = (1 << (count - 1).bit_length()) - 1
        y = device.empty_array(INT64, out.shape, "permutation")
    text = _text(kind, out.dtype, words)
    kernel = device.kernel(program([text]), text.name, OPTIONS, text.argtypes)
    each = 4 // words
    offset = y.offset // (out.nbytes // n)
    numbers = (seed % 2**64, draw % 2**64, count % 2**64, lowest % 2**64)
    device.launch(kernel, -(-n // each), LOCAL, n, *numbers, y.memory, offset)
    if kind == PERMUTATION:  # the positions in the order of distinct keys are the permutation
        device.execute(_ARGSORT, (len(out.shape) - 1, 0, count), [y], out)


def redraw(commands: Sequence[Any], seed: int, draw: int) -> None:
    """Let the commands that were noted of a draw make another one of its kind."""
    for command in commands:
        if type(command) is Launch and command.kernel.name == DRAW:
            command.kernel.handle.set_arg(1, np.uint64(seed % 2**64))
            command.kernel.handle.set_arg(2, np.uint64(draw % 2**64))


@implements("random")
def random(device: Any, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: the kind of draw, the seed, the number of the draw; of integers how many and the lowest."""
    fill(device, params[0], out, *params[1:])
