"""How large the files on disk become, and which of them go."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tapeflow.backend.opencl import cache
from tapeflow.backend.opencl.host import Device
from tapeflow.errors import NumberRangeError
from tests.opencl_devices import opened

ROOT = Path(__file__).resolve().parent.parent
BODY = bytes(1000)
SIZE = cache.HEAD.size + len(BODY)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "limit", 10 * SIZE)
    return tmp_path


def stored(home):
    return {int(path.name[:8], 16) for path in home.glob("*/*") if len(path.name) == 64}


def key(n):
    return n.to_bytes(4, "big") + bytes(28)


def used(home, kind, n, seconds_ago):
    """As if a file had been used then."""
    when = time.time() - seconds_ago
    os.utime(cache.path_of(kind, key(n)), (when, when))


def test_what_was_used_last_stays(home):
    for n in range(10):
        assert cache.write(("programs", "kernels")[n % 2], key(n), BODY)
        used(home, ("programs", "kernels")[n % 2], n, 1000 - n)
    assert stored(home) == set(range(10))
    assert cache.read("programs", key(0)) == BODY  # the oldest one, in use again
    for n in range(10, 14):
        assert cache.write("programs", key(n), BODY)
        assert sum(path.stat().st_size for path in home.glob("*/*")) <= 10 * SIZE
    left = stored(home)
    assert {0, 13} <= left and not {1, 2, 3} & left
    assert all(cache.read("programs", key(n)) == BODY for n in left if n % 2 == 0)


def test_an_entry_that_is_larger_than_the_limit(home):
    assert cache.write("programs", key(1), bytes(20 * SIZE))
    assert sum(path.stat().st_size for path in home.glob("*/*")) <= 10 * SIZE
    assert cache.read("programs", key(1)) is None and cache.write("programs", key(2), BODY)
    assert cache.read("programs", key(2)) == BODY


def test_what_is_not_ours_stays_and_what_was_never_finished_goes(home):
    (home / "programs").mkdir()
    (home / "vendors" / "deep").mkdir(parents=True)
    foreign = [home / "notes", home / "programs" / "notes", home / "vendors" / "deep" / ("a" * 64)]
    old, young = (home / "programs" / f"{cache.UNFINISHED}{name}" for name in ("old", "young"))
    for path in (*foreign, old, young):
        path.write_bytes(bytes(20 * SIZE))
    (home / "programs" / ("b" * 64)).mkdir()
    os.utime(old, (1.0, 1.0))
    for n in range(30):
        assert cache.write("programs", key(n), BODY)
    assert all(path.exists() for path in (*foreign, young)) and not old.exists()
    assert (home / "programs" / ("b" * 64)).is_dir()
    assert 7 <= len(stored(home) - {0xBBBBBBBB}) <= 10


def test_files_that_others_delete_meanwhile(home, monkeypatch):
    for n in range(10):
        cache.write("programs", key(n), BODY)
    real = Path.unlink

    def slower(path, *args, **kwargs):
        real(path)
        return real(path, *args, **kwargs)  # somebody was there before

    monkeypatch.setattr(Path, "unlink", slower)
    for n in range(10, 30):
        assert cache.write("programs", key(n), BODY) and cache.read("programs", key(n)) == BODY
    assert len(stored(home)) <= 10


WORK = """
import sys
from tapeflow.backend.opencl import cache
cache.limit = {limit}
mine = int(sys.argv[1])
for n in range(300):
    key = ((n * 7 + mine) % 40).to_bytes(4, "big") + bytes(28)
    body = cache.read("programs", key)
    assert body is None or body == key * 30, "a body of somebody else"
    if body is None:
        assert cache.write("programs", key, key * 30)
print("done")
"""


def test_processes_that_write_and_delete_at_once(home):
    """Nobody fails, nobody reads what is not whole, and the limit is kept but for what each may write unseen."""
    code = WORK.format(limit=10 * SIZE)
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(k)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for k in range(3)
    ]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert (child.returncode, out) == (0, b"done\n"), err.decode()
    assert sum(path.stat().st_size for path in home.glob("*/*")) <= 10 * SIZE * (1 + 3 / 4)
    assert not list(home.glob(f"*/{cache.UNFINISHED}*"))


def test_the_limit_comes_from_the_environment(home, monkeypatch):
    info = opened("intel").info
    monkeypatch.setenv("TAPEFLOW_CACHE_LIMIT", "3")
    Device(info)
    assert cache.limit == 3 << 20
    monkeypatch.setenv("TAPEFLOW_CACHE_LIMIT", "many")
    with pytest.raises(NumberRangeError, match="TAPEFLOW_CACHE_LIMIT is 'many'"):
        Device(info)
