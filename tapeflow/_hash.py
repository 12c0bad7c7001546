"""The hash that tells whether the compiled core was made from the op table that lies beside it.

A module of its own, so that an import need not read the table (which takes longer than all the rest). Standard library
only: setup.py uses it before anything is built.
"""

import hashlib
from pathlib import Path


def table_hash() -> str:
    """16 hex digits over the sources of what is generated; the build stores it and the import compares it."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in ("expr.py", "ops.py", "codegen.py"):
        digest.update((here / file).read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]
