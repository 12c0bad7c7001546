"""A number that says in which modes the modules are (`Module.train()`, `Module.eval()`): part of what a recording takes
for constant, so part of the key by which it is found again.

It is the exclusive or of one random token per module whose mode has been switched an odd number of times: training,
evaluating and training again gives the number that was there before, and so what was recorded then.
"""

from __future__ import annotations

import os
import threading

_lock = threading.Lock()
_value = 0


def _fresh_lock() -> None:
    """In a child process: another thread of the parent may have held the lock at the fork."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


def current() -> int:
    """The number now."""
    return _value


def new_token() -> int:
    """A random number of 64 bits; not from a generator that a user may have seeded."""
    return int.from_bytes(os.urandom(8), "little")


def switch(token: int) -> None:
    """Note that the module with this token has changed its mode."""
    global _value
    with _lock:
        _value ^= token
