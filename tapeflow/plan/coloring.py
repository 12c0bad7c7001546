"""Colours for the columns of sparse matrices: columns of one colour share a direction of differentiation.

Sources: Gebremedhin, Manne and Pothen, "What color is your Jacobian? Graph coloring for computing derivatives", SIAM
Review 47 (2005), for both; Curtis, Powell and Reid, "On the estimation of sparse Jacobian matrices", IMA J. Appl. Math.
13 (1974), and Coleman and Moré, "Estimation of sparse Hessian matrices and graph coloring problems", Math. Programming
28 (1984), for the ideas.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_STAR_WORK = 20_000_000  # steps of a star colouring that are worth fewer colours


def columns(pattern: Any) -> np.ndarray:
    """Colours of the columns of a CSR pattern such that no two of a colour meet in a row: greedily, those with the most
    elements first (distance-2 colouring of the columns)."""
    m, n = pattern.shape
    by_column = pattern.tocsc()
    starts, rows = by_column.indptr, by_column.indices
    used = [0] * m  # of each row, the colours in it, as bits
    colors = np.zeros(n, np.int64)
    for c in np.argsort(-np.diff(starts), kind="stable").tolist():
        mine = rows[starts[c] : starts[c + 1]].tolist()
        taken = 0
        for r in mine:
            taken |= used[r]
        free = ~taken & (taken + 1)
        colors[c] = free.bit_length() - 1
        for r in mine:
            used[r] |= free
    return colors


def star(pattern: Any, work: int = _STAR_WORK) -> np.ndarray:
    """Colours of a symmetric pattern such that neighbours differ and no path of four has two colours: greedily. Where
    that takes more than so much work, one of distance 2, which is one, too."""
    from scipy import sparse

    n = pattern.shape[0]
    starts = pattern.indptr
    degrees = np.diff(starts)
    if int((degrees.astype(np.int64) ** 2).sum()) > work:
        return columns((pattern + sparse.identity(n, dtype=pattern.dtype)).tocsr())
    near = [[int(w) for w in pattern.indices[starts[v] : starts[v + 1]] if w != v] for v in range(n)]
    colors = [-1] * n
    for v in np.argsort(-degrees, kind="stable").tolist():
        forbidden: set[int] = set()
        for w in near[v]:
            color = colors[w]
            if color < 0:  # whoever comes to lie between must not have two neighbours of one colour
                forbidden.update(colors[x] for x in near[w])
                continue
            forbidden.add(color)
            for x in near[w]:  # v w x y: y has w's colour, so v may not have x's
                other = colors[x]
                if other < 0 or x == v or other in forbidden:
                    continue
                if any(colors[y] == color and y != w for y in near[x]):
                    forbidden.add(other)
        color = 0
        while color in forbidden:
            color += 1
        colors[v] = color
    return np.array(colors, np.int64)
