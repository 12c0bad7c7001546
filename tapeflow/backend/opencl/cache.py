"""Files that may be lost at any time: binaries of kernels and what is known of drivers.

A file is a head (magic, key, length, checksum) and a body. One that is damaged, cut short, of another key or half
written by somebody is as good as none; it is replaced as a whole. Nothing here raises: without a folder to write to,
there is nothing to read either.

All files together have a limit; those go first whose last use is longest ago. Processes do not wait for each other:
what one of them deletes another one makes anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MAGIC = b"tapeflow\x00\x01\r\n"  # the end shows whether line ends were converted
HEAD = struct.Struct("<12s32sQ32s")
UNFINISHED = "unfinished-"  # what names of files begin with until they are whole
ABANDONED = 3600.0  # seconds after which a file that somebody was writing has nobody who does

limit = 256 << 20  # bytes; an opened device sets it to TAPEFLOW_CACHE_LIMIT, in MiB
_NAME = re.compile("[0-9a-f]{64}")
_room: dict[Path, int] = {}  # bytes that may be written in a folder before its files are looked through


def folder() -> Path:
    """TAPEFLOW_CACHE_DIR, or tapeflow's part of where the system keeps the user's caches."""
    asked = os.environ.get("TAPEFLOW_CACHE_DIR")
    if asked:
        return Path(asked)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        home = os.devnull  # a user without a home: a folder that cannot be
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or f"{home}/AppData/Local") / "tapeflow" / "cache"
    if sys.platform == "darwin":
        return Path(home) / "Library" / "Caches" / "tapeflow"
    return Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache") / "tapeflow"


def key_of(*facts: Any) -> bytes:
    """A digest of texts and numbers."""
    return hashlib.sha256(json.dumps(facts).encode()).digest()


def path_of(kind: str, key: bytes) -> Path:
    return folder() / kind / key.hex()


def read(kind: str, key: bytes) -> bytes | None:
    """The body stored under the key, if all of it is there."""
    path = path_of(kind, key)
    try:
        data = path.read_bytes()
        os.utime(path)  # its last use
    except OSError:
        return None
    if len(data) < HEAD.size:
        return None
    magic, stored, length, checksum = HEAD.unpack_from(data)
    body = data[HEAD.size :]
    sound = (magic, stored, length) == (MAGIC, key, len(body)) and checksum == hashlib.sha256(body).digest()
    return body if sound else None


def write(kind: str, key: bytes, body: bytes) -> bool:
    """Store the body under the key, in one step for whoever reads; False where that cannot be."""
    data = HEAD.pack(MAGIC, key, len(body), hashlib.sha256(body).digest()) + body
    if not write_file(path_of(kind, key), data):
        return False
    home = folder()
    _room[home] = _room.get(home, 0) - len(data)
    if _room[home] < 0:
        _room[home] = max(limit - trim(home, limit), 0) // 4  # others write, too
    return True


def trim(home: Path, most: int) -> int:
    """Delete the files whose last use is longest ago, until those left have at most so many bytes, and a quarter less
    where they had more; how many they have."""
    files = sorted(_files(home))
    total = sum(size for _, size, _ in files)
    if total <= most:
        return total
    for _, size, path in files:
        if total <= most * 3 // 4:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
    return total


def _files(home: Path) -> list[tuple[float, int, Path]]:
    """Of each file that `write` has made: its last use, bytes, path. What was never finished is deleted."""
    found: list[tuple[float, int, Path]] = []
    for kind in _entries(home):
        for entry in _entries(kind.path):
            try:
                known = entry.stat(follow_symlinks=False)
                if not entry.is_file(follow_symlinks=False):
                    continue
                if _NAME.fullmatch(entry.name):
                    found.append((known.st_mtime, known.st_size, Path(entry.path)))
                elif entry.name.startswith(UNFINISHED) and known.st_mtime < time.time() - ABANDONED:
                    os.unlink(entry.path)
            except OSError:
                pass  # somebody else has deleted it
    return found


def _entries(place: Any) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return list(entries)
    except OSError:
        return []


def write_file(path: Path, data: bytes) -> bool:
    """Replace the file by one with this content, or leave what is there and return False."""
    name = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
        return True
    except OSError:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
        return False
