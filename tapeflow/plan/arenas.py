"""Where values lie on a device: in few pieces of its memory, none larger than it allocates at once."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from tapeflow.plan.schedule import give_back

ALIGN = 64  # bytes
ALWAYS = (-1, float("inf"))  # the life of what is there before a run and after it


class Life(NamedTuple):
    """A value: its bytes, and the steps between which, both included, it must stay."""

    number: int
    nbytes: int
    first: int
    last: float


class Places(NamedTuple):
    """Of each value the piece and the offset in it, in bytes; how long pieces are."""

    of: dict[int, tuple[int, int]]
    pieces: list[int]


class _Piece:
    def __init__(self) -> None:
        self.top = 0
        self.holes: list[tuple[int, int]] = []  # (offset, bytes), by offset

    def take(self, size: int, limit: int) -> int | None:
        """The offset of a range that is free, in the first hole that is long enough or at the end."""
        for i, (offset, nbytes) in enumerate(self.holes):
            if nbytes >= size:
                self.holes[i : i + 1] = [(offset + size, nbytes - size)] if nbytes > size else []
                return offset
        if self.top + size > limit:
            return None
        self.top += size
        return self.top - size


def pack(values: Iterable[Life], limit: int) -> Places:
    """First fit: values that live at the same time are apart. A piece is longer than limit only for a value that is."""
    places: dict[int, tuple[int, int]] = {}
    pieces: list[_Piece] = []
    ending: list[tuple[float, int, int]] = []  # a heap of (last step, piece, number)
    size_of: dict[int, int] = {}
    for value in sorted(values, key=lambda value: value.first):
        while ending and ending[0][0] < value.first:
            _, n, gone = heappop(ending)
            give_back(pieces[n].holes, (places[gone][1], size_of[gone]))
        size = size_of[value.number] = max(-(-value.nbytes // ALIGN) * ALIGN, ALIGN)
        n, _ = places[value.number] = _take(pieces, size, limit)
        heappush(ending, (value.last, n, value.number))
    return Places(places, [piece.top for piece in pieces])


def _take(pieces: list[_Piece], size: int, limit: int) -> tuple[int, int]:
    for n, piece in enumerate(pieces):
        offset = piece.take(size, limit)
        if offset is not None:
            return n, offset
    pieces.append(_Piece())
    pieces[-1].top = size
    return len(pieces) - 1, 0
