"""A pytest plugin for the asan variant: once the tests are over, ask LeakSanitizer what nobody can reach any more.

The check runs in an atexit handler: no Python frame is alive then (LeakSanitizer does not see what only a frame's
locals refer to), and the modules, with all that they keep for good, still are. Only blocks that the engine itself
allocated count: some of the libraries that the tests use do leak. Python objects are the business of test_memory.
"""

import atexit
import ctypes
import gc
import os
import tempfile
from pathlib import Path


def check():
    """Show the engine's leaks and end the process with status 1 if there are any."""
    gc.collect()
    sanitizer = ctypes.CDLL(None)
    with tempfile.TemporaryDirectory() as folder:
        sanitizer.__sanitizer_set_report_path(os.fsencode(Path(folder, "report")))
        sanitizer.__lsan_do_recoverable_leak_check()
        report = "".join(path.read_text() for path in Path(folder).iterdir())
    leaks = [leak for leak in report.split("\n\n") if "leak of" in leak and "tapeflow/_core" in leak]
    if leaks:
        print("LeakSanitizer: the engine has leaked", *leaks, sep="\n\n", flush=True)
        os._exit(1)


atexit.register(check)
