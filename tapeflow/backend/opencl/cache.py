"""Files that may be lost at any time: binaries of kernels and what is known of drivers.

A file is a head (magic, key, length, checksum) and a body. One that is damaged, cut short, of another key or half
written by somebody is as good as none; it is replaced as a whole. Nothing here raises: without a folder to write to,
there is nothing to read either.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

MAGIC = b"tapeflow\x00\x01\r\n"  # the end shows whether line ends were converted
HEAD = struct.Struct("<12s32sQ32s")


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
    try:
        data = path_of(kind, key).read_bytes()
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
    return write_file(path_of(kind, key), HEAD.pack(MAGIC, key, len(body), hashlib.sha256(body).digest()) + body)


def write_file(path: Path, data: bytes) -> bool:
    """Replace the file by one with this content, or leave what is there and return False."""
    name = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
        return True
    except OSError:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
        return False
