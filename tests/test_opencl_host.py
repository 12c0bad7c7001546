"""An open OpenCL device: memory and its pool, transfers, kernels and their cache, failures of the driver, fork."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tapeflow.backend.opencl import cache, faults, memory, opened, programs
from tapeflow.backend.opencl.host import DTYPES, Array, Device, contiguous_strides
from tapeflow.backend.opencl.table import IMPLEMENTED
from tapeflow.errors import DeviceError, DeviceOutOfMemory, NumberRangeError, ShapeError
from tapeflow.plan import ir
from tests.opencl_devices import device  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent

SOURCE = """
#pragma OPENCL FP_CONTRACT OFF
__kernel void scale(__global float *y, const long offset, const float factor, const int n)
{
    const int i = (int)get_global_id(0);
    if (i < n)
        y[offset + i] = (float)i * factor;
}
__kernel void groups(__global int *sizes, const int rows, const int columns)
{
    const int j = (int)get_global_id(0), i = (int)get_global_id(1);
    if (i < rows && j < columns)
        sizes[i * columns + j] = (int)(get_local_size(0) + 1000 * get_local_size(1));
}
"""
SCALE = (None, np.int64, np.float32, np.int32)


@pytest.fixture
def own(device):  # noqa: F811
    """A device of the test's own, with no memory in use."""
    return Device(device.info)


@pytest.fixture
def one(first):
    """A device of it, of the test's own."""
    return Device(first)


def on_device(where, values):
    """A contiguous array there with these values."""
    values = np.asarray(values)
    code = DTYPES.index(values.dtype)
    array = where.empty_array(code, values.shape)
    where.upload(array, values)
    return array


def scale(where, n=10, factor=2.0):
    return where.kernel(SOURCE, "scale", argtypes=SCALE), n, 8, where.alloc(4 * n), 0, factor, n


def runs(where):
    """The device computes what it should."""
    kernel, n, local, y, offset, factor, _ = scale(where)
    where.launch(kernel, n, local, y, offset, factor, n)
    got = where.download(Array(y, 0, ir.FLOAT32, (n,), (4,)))
    return np.array_equal(got, np.arange(n, dtype=np.float32) * np.float32(factor))


# ---- transfers


@pytest.mark.parametrize("dtype", ir.DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (7,), (5, 3, 2), (1000,)])
def test_what_is_uploaded_comes_back(device, dtype, shape):  # noqa: F811
    values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 200, shape).astype(dtype)
    got = device.download(on_device(device, values))
    assert (got.dtype, got.shape) == (values.dtype, values.shape) and got.tobytes() == values.tobytes()
    assert got.flags.writeable and got.flags.c_contiguous


def test_host_arrays_of_any_layout_and_bytes(device):  # noqa: F811
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (values.T, values[::-1, ::2], np.broadcast_to(values[:1], (4, 6)), values[:, 1]):
        assert np.array_equal(device.download(on_device(device, view)), view)
    array = device.empty_array(ir.INT32, (4, 6))
    for data in (values.tobytes(), bytearray(values.tobytes()), memoryview(values).cast("B")):
        device.fill(array, 0)
        device.upload(array, data)
        assert np.array_equal(device.download(array), values)


def test_an_upload_into_a_part(device):  # noqa: F811
    whole = on_device(device, np.zeros(8, np.int64))
    device.upload(Array(whole.memory, 16, ir.INT64, (3,), (8,)), np.array([7, 8, 9]))
    assert device.download(whole).tolist() == [0, 0, 7, 8, 9, 0, 0, 0]


def test_views_on_the_device(device):  # noqa: F811
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    whole = on_device(device, values)
    for view in (
        values[1:, ::-2, 1:4],
        values.transpose(2, 0, 1),
        values[:, :0],
        values[::-1, 0, 0],
        values[2, 3, 4:].reshape(()),
    ):
        offset = view.__array_interface__["data"][0] - values.__array_interface__["data"][0]
        array = Array(whole.memory, offset, ir.FLOAT32, view.shape, view.strides)
        got = device.download(array)
        assert np.array_equal(got, view) and got.flags.c_contiguous
        assert array.is_contiguous == view.flags.c_contiguous
        low, high = array.span()
        assert 0 <= low <= high <= whole.nbytes
    stretched = Array(whole.memory, 4, ir.FLOAT32, (3, 2), (0, 4))
    assert device.download(stretched).tolist() == [[1, 2]] * 3


def test_the_caller_may_write_to_what_he_uploaded(device):  # noqa: F811
    for n in (100, 1_000_000):  # copied first; waited for
        values = np.full(n, 3.0, np.float32)
        array = on_device(device, values)
        values[:] = -1
        assert (device.download(array) == 3).all()


def test_host_memory_is_kept_until_uploads_are_done(own):
    arrays = []
    for k in range(40):
        arrays.append(own.empty_array(ir.FLOAT64 if own.fp64 else ir.INT64, (50_000,)))
        own.upload(arrays[-1], np.full(50_000, k, DTYPES[arrays[-1].dtype]), owned=True)
    assert [float(own.download(a)[[0, -1]].sum()) for a in arrays] == [2.0 * k for k in range(40)]
    own.sync()
    assert not own._uploads and own._uploading == 0


def test_held_uploads_are_bounded(one, monkeypatch):
    monkeypatch.setattr("tapeflow.backend.opencl.host.IN_FLIGHT", 1000)
    array = one.empty_array(ir.FLOAT32, (100,))
    for _ in range(50):
        one.upload(array, np.zeros(100, np.float32))
        assert one._uploading <= 1000


def test_several_downloads_under_way(device):  # noqa: F811
    arrays = [on_device(device, np.arange(k, k + 50, dtype=np.int32)) for k in range(10)]
    downloads = [device.begin_download(a) for a in arrays]
    assert [d.result()[0] for d in reversed(downloads)] == list(range(9, -1, -1))
    assert downloads[3].result()[1] == 4  # again


def test_uploads_that_do_not_fit(device):  # noqa: F811
    array = device.empty_array(ir.FLOAT32, (4,))
    with pytest.raises(ShapeError, match=r"\[upload\] got 32 bytes, expected 16"):
        device.upload(array, np.zeros(4))
    with pytest.raises(ShapeError, match="contiguous"):
        device.upload(array._replace(shape=(2,), strides=(8,)), np.zeros(2, np.float32))


def test_copies(own):
    a = on_device(own, np.arange(10, dtype=np.int32))
    b = own.empty_array(ir.INT32, (10,))
    own.copy(a, b)
    assert own.download(b).tolist() == list(range(10))
    upper, lower = a._replace(shape=(6,), offset=8), a._replace(shape=(6,), offset=0)
    own.copy(lower, upper)  # they overlap
    assert own.download(a).tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 8, 9]
    backwards = b._replace(offset=36, strides=(-4,))
    own.copy(backwards, a)
    assert own.download(a).tolist() == list(range(9, -1, -1))
    own.copy(a._replace(shape=(0,)), b._replace(shape=(0,)))
    with pytest.raises(ShapeError, match=r"\[copy\]"):
        own.copy(a, b._replace(shape=(5,)))
    with pytest.raises(ShapeError, match=r"\[copy\]"):
        own.copy(a, backwards)


def test_copies_between_contexts_and_implementations(own):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    others = [Device(own.info), *(Device(info) for info in opened.devices() if info.name != own.name)]
    for other in others:
        there = other.empty_array(ir.FLOAT32, (4, 3))
        here = on_device(own, values)
        other.copy(here._replace(shape=(4, 3), strides=(4, 16)), there)
        assert np.array_equal(other.download(there), values.T)
        assert other.pool.live in (memory.SMALLEST, there.nbytes)  # the latter for the kernel checker


@pytest.mark.parametrize("dtype", ir.DTYPES)
def test_fill(device, dtype):  # noqa: F811
    array = on_device(device, np.zeros(9, dtype))
    device.fill(array._replace(offset=array.nbytes // 9, shape=(7,)), 1)
    assert device.download(array).tolist() == [0, *[1] * 7, 0]
    device.fill(array._replace(shape=(0,)), 1)
    with pytest.raises(ShapeError):
        device.fill(array._replace(shape=(2,), strides=(2 * array.nbytes // 9,)), 1)


# ---- the pool


def test_sizes_of_allocations():
    for n in [0, 1, 255, 256, 257, 1000, 4096, 4097, 10**6, 2**31 + 1, 10**12]:
        size = memory.size_class(n)
        assert max(n, memory.SMALLEST) <= size <= max(memory.SMALLEST, n + n // 8 + 1)
        assert memory.size_class(size) == size and size % 32 == 0
    assert len({memory.size_class(n) for n in range(4096, 8192)}) == 9


def test_memory_is_used_again(one):
    first = one.alloc(1000)
    buffer = first.buffer
    assert one.pool.live == memory.size_class(1000) and one.pool.kept == 0
    del first
    assert one.pool.live == 0 and one.pool.kept == memory.size_class(1000)
    again = one.alloc(1010)
    assert again.buffer is buffer and one.pool.created == 1 and again.nbytes == 1010
    other = one.alloc(1010)
    assert other.buffer is not buffer and one.pool.created == 2
    peak = one.pool.peak
    del again, other
    one.alloc(2000)
    assert one.pool.peak == peak == 2 * memory.size_class(1000)
    one.empty_cache()
    assert one.pool.kept == 0 == one.pool.live


def test_reuse_waits_for_nobody_and_mixes_nothing_up(own):
    expected = []
    results = []
    for k in range(200):
        kernel, n, local, y, offset, _, _ = scale(own, 64)
        own.launch(kernel, n, local, y, offset, float(k), n)
        if k % 40 == 0:
            results.append(own.begin_download(Array(y, 0, ir.FLOAT32, (n,), (4,))))
            expected.append(np.arange(64, dtype=np.float32) * k)
    if "TAPEFLOW_OPENCL_EXACT" not in os.environ:
        assert own.pool.created <= 2 + len(results)  # downloads hold theirs
    assert all(np.array_equal(r.result(), e) for r, e in zip(results, expected))


def test_the_limit(one):
    one.memory_limit = 10_000
    assert one.memory_limit == 10_000
    big, small = one.alloc(6000, "matmul (50, 30) float32"), one.alloc(2000, "weights")
    with pytest.raises(DeviceOutOfMemory) as caught:
        one.alloc(4000, "exp")
    text = str(caught.value)
    assert text.startswith("[exp] wants 3.9 KiB") and one.name in text
    assert "of the limit of 9.8 KiB" in text and text.index("matmul") < text.index("weights") and "memory_limit" in text
    live = one.pool.live
    del big
    kept = one.alloc(4000)  # what was kept is given back for it
    assert one.pool.live == live - memory.size_class(6000) + memory.size_class(4000) and one.pool.kept == 0
    del small, kept
    assert one.pool.live == 0
    one.alloc(9_900)  # the class is over the limit, the size is not
    with pytest.raises(DeviceOutOfMemory):
        one.alloc(10_001)
    one.memory_limit = 0
    assert one.pool.kept == 0
    with pytest.raises(DeviceOutOfMemory):
        one.alloc(0)
    for wrong in (-1, 1.5, None, True, "1"):
        with pytest.raises(NumberRangeError):
            one.memory_limit = wrong
    assert one.memory_limit == 0


def test_the_default_limit_is_a_share_of_the_memory(device):  # noqa: F811
    assert device.memory_bytes // 4 <= device.memory_limit < device.memory_bytes


def test_freed_over_the_limit_is_not_kept(one):
    held = [one.alloc(1000) for _ in range(4)]
    one.memory_limit = 2000
    assert one.pool.live == 4 * memory.size_class(1000)
    held.clear()
    assert one.pool.live == 0 and one.pool.kept == 0


def test_an_allocation_larger_than_the_device_allows(one):
    one.memory_limit = 1 << 60
    with pytest.raises(DeviceOutOfMemory, match=r"\[big\] wants .* in one piece, and .* at most"):
        one.alloc(one.max_allocation + 1, "big")
    assert one.pool.live == 0


def test_memory_freed_in_another_thread_and_by_the_collector(one):
    class Cycle:
        pass

    cycle = Cycle()
    cycle.self, cycle.memory = cycle, one.alloc(100)
    held = [one.alloc(100)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    del cycle
    gc.collect()
    assert one.pool.live == 0


def test_exact_buffers_for_the_kernel_checker(device, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TAPEFLOW_OPENCL_EXACT", "1")
    exact = Device(device.info)
    first = exact.alloc(1001)
    assert first.buffer.size == 1001 == exact.pool.live
    del first
    assert exact.pool.live == 0 == exact.pool.kept
    assert exact.alloc(0).buffer.size == 1
    assert runs(exact)


# ---- kernels


@pytest.mark.parametrize("most", [1, 3, 8, 64])
def test_work_groups_within_the_limit(device, monkeypatch, most):  # noqa: F811
    monkeypatch.setenv("TAPEFLOW_MAX_WORKGROUP", str(most))
    small = Device(device.info)
    assert small.max_workgroup == most
    assert runs(small)
    kernel = small.kernel(SOURCE, "groups", argtypes=(None, np.int32, np.int32))
    assert kernel.max_group <= most
    out = small.empty_array(ir.INT32, (5, 7))
    small.launch(kernel, (7, 5), (16, 4), out.memory, 5, 7)
    (sides,) = set(small.download(out).ravel().tolist())
    width, height, most = sides % 1000, sides // 1000, kernel.max_group
    assert width * height <= most < 2 * width * height or (width, height) == (16, 4)
    assert 16 % width == 0 and 4 % height == 0
    assert small.group_size(kernel, 256) == max(w for w in (1, 2, 4, 8, 16, 32, 64) if w <= most)


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5"])
def test_a_limit_of_work_groups_that_is_none(first, monkeypatch, wrong):
    monkeypatch.setenv("TAPEFLOW_MAX_WORKGROUP", wrong)
    with pytest.raises(NumberRangeError, match="TAPEFLOW_MAX_WORKGROUP"):
        Device(first)


def test_a_group_is_never_larger_than_the_kernel_allows(one):
    kernel = one.kernel(SOURCE, "scale", argtypes=SCALE)
    kernel.max_group = 6  # as a kernel with many registers has it, whatever the device allows
    assert one.sizes(kernel, 100, 256) == ((100,), (4,))
    assert one.sizes(kernel, (10, 9), (8, 8)) == ((10, 10), (2, 2))
    assert one.sizes(kernel, 0, 256) == ((0,), (4,))


def test_launches_of_any_size(own):
    launches = own.launches
    for n in (0, 1, 7, 8, 9, 1000, 1025):
        kernel, _, _, y, _, _, _ = scale(own, n)
        own.launch(kernel, n, 256, y, 0, 3.0, n)
        got = own.download(Array(y, 0, ir.FLOAT32, (n,), (4,)))
        assert np.array_equal(got, np.arange(n, dtype=np.float32) * 3)
    assert own.launches == launches + 6  # none for no element


def test_the_same_kernel_and_another_text(own):
    kernel = own.kernel(SOURCE, "scale", argtypes=SCALE)
    builds = own.builds
    assert own.kernel(SOURCE, "scale", argtypes=SCALE) is kernel
    assert own.kernel(SOURCE, "groups") is not kernel and own.builds == builds  # of the same program
    assert own.kernel(SOURCE, "scale", ("-DX=1",)) is not kernel and own.builds == builds + 1
    assert own.kernel(SOURCE + "\n", "scale") is not kernel and own.builds == builds + 2


def test_bound_launches(own):
    kernel = own.kernel(SOURCE, "scale", argtypes=SCALE)
    y = own.empty_array(ir.FLOAT32, (20,))
    program = [
        own.bind(kernel, 10, 4, y.memory, 0, 1.0, 10),
        own.bind(kernel, 0, 4, y.memory, 0, 9.0, 10),
        own.bind(kernel, 5, 64, y.memory, 10, 2.0, 5),
    ]
    own.fill(y, 0)
    for _ in range(3):
        own.replay(program)
    assert own.download(y).tolist() == [*range(10), 0, 2, 4, 6, 8, 0, 0, 0, 0, 0]
    own.launch(kernel, 10, 4, y.memory, 0, 5.0, 10)  # sets the arguments of another kernel object
    own.replay(program)
    assert own.download(y)[9] == 9


def test_a_kernel_that_does_not_build(own):
    text = "__kernel void broken(__global float *y)\n{\n    y[0] = 1.0f;\n    y[1] = nonsense;\n}\n"
    made = own.builds
    with pytest.raises(DeviceError) as caught:
        own.kernel(text, "broken", ("-DSIZE=3",))
    said = str(caught.value)
    assert said.startswith("[broken] the kernel does not build on ") and own.name in said
    assert "-DSIZE=3" in said and "line 4: y[1] = nonsense;" in said and "undeclared" in said
    assert runs(own) and own.builds > made
    with pytest.raises(DeviceError):  # nor the second time
        own.kernel(text, "broken", ("-DSIZE=3",))


def test_a_kernel_that_is_not_in_its_text(own):
    with pytest.raises(DeviceError, match=r"\[absent\]"):
        own.kernel(SOURCE, "absent")


def test_two_threads_share_a_kernel(own):
    if own.info.platform == "Oclgrind":
        pytest.skip("Oclgrind serves one thread")
    kernel = own.kernel(SOURCE, "scale", argtypes=SCALE)
    wrong = []

    def work(factor):
        for _ in range(50):
            y = own.empty_array(ir.FLOAT32, (64,))
            own.launch(kernel, 64, 64, y.memory, 0, factor, 64)
            if not np.array_equal(own.download(y), np.arange(64, dtype=np.float32) * np.float32(factor)):
                wrong.append(factor)

    threads = [threading.Thread(target=work, args=(f,)) for f in (2.0, 3.0, 5.0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)
    assert own.pool.live == 0


def test_threads_that_want_the_same_kernel_build_it_once(one, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    start, found = threading.Barrier(4), []

    def work():
        start.wait()
        found.append(one.kernel(SOURCE, "scale", argtypes=SCALE))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(found) == 4 and len(set(map(id, found))) == 1 and one.programs.compiled == 1


# ---- the cache


def entries(folder):
    return sorted((folder / programs.KIND).iterdir())


@pytest.fixture
def stored(first, tmp_path, monkeypatch):
    """A device and the file of its one kernel."""
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    made = Device(first)
    assert runs(made) and (made.programs.made, made.programs.compiled) == (1, 1)
    (path,) = entries(tmp_path)
    return first, path


def test_a_binary_is_read_in_place_of_building(stored):
    info, path = stored
    before = path.read_bytes()
    again = Device(info)
    assert runs(again) and (again.builds, again.programs.compiled) == (1, 0)
    assert path.read_bytes() == before


HEAD = cache.HEAD.size
DAMAGE = {
    "empty": lambda data: b"",
    "cut in the head": lambda data: data[: HEAD // 2],
    "the head alone": lambda data: data[:HEAD],
    "cut": lambda data: data[: HEAD + (len(data) - HEAD) // 2],
    "the last byte is missing": lambda data: data[:-1],
    "a byte too many": lambda data: data + b"\0",
    "another magic": lambda data: b"T" + data[1:],
    "converted line ends": lambda data: data.replace(b"\r\n", b"\n"),
    "of another key": lambda data: data[:12] + bytes(32) + data[44:],
    "another length": lambda data: data[:44] + bytes(8) + data[52:],
    "another checksum": lambda data: data[:52] + bytes(32) + data[84:],
    "a flipped bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "no binary": lambda data: os.urandom(len(data)),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_entry_is_made_anew(stored, kind):
    info, path = stored
    sound = path.read_bytes()
    assert DAMAGE[kind](sound) != sound
    path.write_bytes(DAMAGE[kind](sound))
    again = Device(info)
    assert runs(again) and again.programs.compiled == 1
    assert cache.read(programs.KIND, bytes.fromhex(path.name)) and entries(path.parent.parent) == [path]
    last = Device(info)
    assert runs(last) and last.programs.compiled == 0


def test_an_entry_that_the_driver_refuses(one, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    assert runs(one)
    refusing = planted(Device(one.info), _Program=None)
    real = one.cl._cl._Program

    def refuses(context, *rest):
        if len(rest) == 2:
            raise error_of(-42)
        return real(context, *rest)

    refusing.cl._cl._Program = refuses
    assert runs(refusing) and refusing.programs.compiled == 1


def test_a_folder_in_place_of_the_entry(stored):
    info, path = stored
    path.unlink()
    path.mkdir()
    again = Device(info)
    assert runs(again) and again.programs.compiled == 1
    assert path.is_dir() and entries(path.parent.parent) == [path]  # and nothing left over


def test_a_cache_that_cannot_be_written(first, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(place))
        again = Device(first)
        assert runs(again) and again.programs.compiled == 1


def test_a_disk_that_fills_up(first, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    assert runs(Device(first)) and entries(tmp_path) == []


def test_what_a_binary_is_of(stored, monkeypatch):
    info, path = stored
    import dataclasses

    for change in ("driver", "platform_version", "name"):
        other = Device(dataclasses.replace(info, **{change: getattr(info, change) + "x"}))
        assert runs(other) and other.programs.compiled == 1, change
    monkeypatch.setattr(programs, "VERSION", programs.VERSION + 1)
    newer = Device(info)
    assert runs(newer) and newer.programs.compiled == 1
    assert len(entries(path.parent.parent)) == 5


def test_binaries_of_every_driver_are_read_again(own, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    again = Device(own.info)
    assert runs(own) and runs(again)
    compiled = 1 if own.programs.kept_by_driver else 0
    assert (own.programs.compiled, again.programs.compiled, again.builds) == (1, compiled, 1)
    assert (tmp_path / programs.KIND).exists() != own.programs.kept_by_driver


WORK = """
import sys
import numpy as np
from tapeflow.backend.opencl import discovery
from tapeflow.backend.opencl.host import Device
(info,) = [i for i in discovery.listing().candidates if i.place == {place}]
for k in range(3):
    device = Device(info)
    kernel = device.kernel("__kernel void f(__global float *y) {{ y[0] = %d.0f; }}" % k, "f")
    y = device.alloc(4)
    device.launch(kernel, 1, 1, y)
    from tapeflow.backend.opencl.host import Array
    assert device.download(Array(y, 0, 4, (1,), (4,)))[0] == k
print("done", flush=True)
"""


def in_child(code, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_the_cache(first, tmp_path, monkeypatch):
    children = [in_child(WORK.format(place=first.place), TAPEFLOW_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert (child.returncode, out) == (0, "done\n"), err
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    assert len(entries(tmp_path)) == 3
    assert all(cache.read(programs.KIND, bytes.fromhex(path.name)) for path in entries(tmp_path))


# ---- failures of the driver


def error_of(code):
    """An error of pyopencl with a driver's code."""
    import pyopencl as cl

    return cl.Error(cl._cl._ErrorRecord(msg=f"planted {code}", code=code, routine="clPlanted"))


class Planted:
    """A module with other functions in place of some."""

    def __init__(self, module, **functions):
        self.__dict__.update(functions, _module=module)

    def __getattr__(self, name):
        return getattr(self._module, name)


def planted(where, **functions):
    inner = {name: functions.pop(name) for name in list(functions) if name.startswith("_")}
    where.cl = Planted(where.cl, **functions, _cl=Planted(where.cl._cl, **inner))
    return where


def failing(function, code, at=None):
    """The function, but with an error: always, or at the numbered calls."""
    calls = iter(range(10**6))

    def called(*args, **kwargs):
        number = next(calls)
        if at is None or number in at:
            raise error_of(code)
        return function(*args, **kwargs)

    return called


def program_of_three(where):
    """Three allocations that live together; what is needed of the device is freed again."""
    a = on_device(where, np.arange(10, dtype=np.float32))
    b = on_device(where, np.ones(5000, np.int64))
    c = where.empty_array(ir.FLOAT32, (10,))
    where.copy(a, c)
    return where.download(c).tolist(), b


@pytest.mark.parametrize("code", faults.ALLOCATION)
def test_each_allocation_failing_in_turn_leaks_nothing(first, code):
    for at in range(3):
        where = Device(first)
        planted(where, Buffer=failing(where.cl.Buffer, code, at={at, at + 1}))  # and again when it is tried again
        with pytest.raises(DeviceOutOfMemory, match=f"planted {code}"):
            program_of_three(where)
        gc.collect()
        assert where.pool.live == 0 and not where.lost
        assert program_of_three(where)[0] == list(range(10))


def test_an_allocation_is_tried_again_without_what_is_kept(one):
    one.alloc(5000)
    assert one.pool.kept
    planted(one, Buffer=failing(one.cl.Buffer, faults.ALLOCATION_FAILURE, at={0}))
    got = one.alloc(100)
    assert got.nbytes == 100 and one.pool.kept == 0


def test_other_failures_of_an_allocation(one):
    planted(one, Buffer=failing(one.cl.Buffer, -30))
    with pytest.raises(DeviceError, match=r"\[alloc\].*planted -30"):
        one.alloc(10)
    assert one.pool.live == 0


def launch_scale(where):
    kernel, n, local, y, offset, factor, _ = scale(where)
    where.launch(kernel, n, local, y, offset, factor, n)


def test_memory_found_missing_at_the_first_use(own):
    function = own.cl.enqueue_nd_range_kernel
    launch_scale(own)
    own.alloc(5000)
    planted(own, enqueue_nd_range_kernel=failing(function, faults.ALLOCATION_FAILURE, at={0}))
    launch_scale(own)  # tried again
    assert own.pool.kept == 0 or own.pool.live == 0
    held = own.alloc(100_000, "the big one")
    planted(own, enqueue_nd_range_kernel=failing(function, faults.ALLOCATION_FAILURE))
    with pytest.raises(DeviceOutOfMemory, match=r"(?s)planted -4.*largest live: .*the big one"):
        launch_scale(own)
    own.cl.enqueue_nd_range_kernel = function
    assert held.nbytes and runs(own)


@pytest.mark.parametrize("code", [faults.OUT_OF_RESOURCES, -54])
def test_a_launch_that_fails(one, code):
    function = one.cl.enqueue_nd_range_kernel
    planted(one, enqueue_nd_range_kernel=failing(function, code))
    with pytest.raises(DeviceError, match=rf"\[scale\] .*planted {code}"):
        launch_scale(one)
    one.cl.enqueue_nd_range_kernel = function
    assert not one.lost and runs(one)


@pytest.mark.parametrize("code", faults.LOST)
def test_a_device_that_is_lost(first, code):
    where = Device(first)
    kernel, array = where.kernel(SOURCE, "scale", argtypes=SCALE), on_device(where, np.zeros(4, np.float32))
    bound = where.bind(kernel, 4, 4, array.memory, 0, 1.0, 4)
    planted(where, enqueue_nd_range_kernel=failing(where.cl.enqueue_nd_range_kernel, code))
    with pytest.raises(DeviceError, match=r"\[scale\] .* is lost: .*anew"):
        launch_scale(where)
    for use in (
        lambda: where.alloc(4),
        lambda: where.upload(array, np.zeros(4, np.float32)),
        lambda: where.download(array),
        lambda: where.copy(array, array),
        lambda: where.fill(array, 1),
        lambda: where.sync(),
        lambda: where.kernel(SOURCE, "groups"),
        lambda: where.launch(kernel, 4, 4, array.memory, 0, 1.0, 4),
        lambda: where.bind(kernel, 4, 4, array.memory, 0, 1.0, 4),
        lambda: where.replay([bound]),
        lambda: where.execute(ir.CODES["exp"], (), [array], array),
    ):
        with pytest.raises(DeviceError, match="is lost"):
            use()
    where.empty_cache()
    assert runs(Device(first))


@pytest.mark.parametrize("what", ["enqueue_copy", "enqueue_fill_buffer"])
def test_a_transfer_that_fails(one, what):
    array, other = (on_device(one, np.arange(4, dtype=np.int32)) for _ in range(2))
    function = getattr(one.cl, what)
    planted(one, **{what: failing(function, faults.OUT_OF_HOST_MEMORY)})
    for use in (
        lambda: one.upload(array, np.zeros(4, np.int32)),
        lambda: one.download(array),
        lambda: one.copy(array, other),
        lambda: one.fill(array, 0),
    )[slice(3, 4) if "fill" in what else slice(0, 3)]:
        with pytest.raises(DeviceOutOfMemory, match="planted -6"):
            use()
    setattr(one.cl, what, function)
    assert one.download(array).tolist() == [0, 1, 2, 3]


def test_a_failure_that_shows_when_it_is_waited_for(one):
    class Queue:
        def finish(self):
            raise error_of(faults.ILLEGAL_ACCESS)

    one.queue, real = Queue(), one.queue
    with pytest.raises(DeviceError, match="is lost"):
        one.sync()
    assert one.lost and real is not None


def test_an_upload_that_fails_later(one):
    class Event:
        command_execution_status = 1

        def wait(self):
            raise error_of(faults.OUT_OF_RESOURCES)

    one._hold(Event(), np.zeros(1))
    with pytest.raises(DeviceError, match=r"\[upload\]"):
        one._hold(Event(), np.zeros(100 << 20, np.uint8))
    assert not one._uploads and one._uploading == 0


def test_a_context_that_cannot_be_made(device, monkeypatch):  # noqa: F811
    monkeypatch.setattr(device.cl, "Context", failing(device.cl.Context, faults.OUT_OF_HOST_MEMORY))
    with pytest.raises(DeviceOutOfMemory, match="planted"):
        Device(device.info)


def test_a_lost_device_is_opened_anew(device):  # noqa: F811
    name = f"opencl:{device.info.platform}"
    first = opened.device(name)
    assert opened.device(name) is first is device
    first.lost = "[device] lost, for a test"
    try:
        again = opened.device(name)
        assert again is not first and runs(again) and opened.device(name.upper().replace("OPENCL:", "opencl:")) is again
    finally:
        first.lost = ""
        opened._opened[device.info.place] = opened._named[name] = device
        opened._named.clear()


# ---- ops


def test_an_op_that_the_device_does_not_have(device, monkeypatch):  # noqa: F811
    code = ir.CODES["custom"]
    x = on_device(device, np.arange(4, dtype=np.float32))
    with pytest.raises(DeviceError, match=r"\[custom\] is not available on .*to\('cpu'\)") as caught:
        device.execute(code, (), [x], x)
    assert device.name in str(caught.value)
    seen = []

    def compute(where, op, params, ins, out):
        seen.append((where.op, op, params, len(ins)))
        where.copy(ins[0], out)

    monkeypatch.setitem(IMPLEMENTED, code, compute)
    y = device.empty_array(ir.FLOAT32, (4,))
    device.execute(code, (7,), [x], y)
    assert seen == [("custom", code, (7,), 1)] and device.download(y).tolist() == [0, 1, 2, 3]
    assert device.op == "device"


def test_float64_where_there_is_none(device):  # noqa: F811
    if device.fp64:
        device.check_dtype(ir.FLOAT64, "zeros")
    else:
        with pytest.raises(DeviceError, match=r"\[zeros\] .* has no float64"):
            device.check_dtype(ir.FLOAT64, "zeros")
    device.check_dtype(ir.FLOAT32, "zeros")


def test_strides_of_contiguous_arrays():
    assert contiguous_strides(ir.FLOAT32, (2, 3, 4)) == (48, 16, 4)
    assert contiguous_strides(ir.INT64, ()) == ()


# ---- fork

FORK = """
import os, sys, time
import numpy as np
from tapeflow import backend
from tapeflow.backend.opencl.host import Array
from tapeflow.errors import DeviceError

def works(device):
    y = device.empty_array(4, (3,))
    device.upload(y, np.array([1, 2, 3], np.float32))
    return device.download(y).tolist() == [1, 2, 3]

def refused(call):
    try:
        call()
    except DeviceError as error:
        return "fork" in str(error)

def child():
    memory = keep.pop()
    checks = [
        refused(lambda: device.alloc(4)),
        refused(lambda: device.download(array)),
        refused(lambda: device.sync()),
        refused(lambda: backend.open({name!r})),
        refused(lambda: backend.devices()),
    ]
    del memory
    return all(checks)

early = {early!r}
if early:
    device = backend.open({name!r})
    array = device.empty_array(4, (1000,))
    keep = [device.alloc(100)]
    for _ in range(5):
        device.upload(array, np.zeros(1000, np.float32))
pid = os.fork()
if pid == 0:
    # As multiprocessing ends its children: what a driver does at exit without its threads is its own matter.
    os._exit(0 if (child() if early else works(backend.open({name!r}))) else 3)
end = time.time() + 40
while time.time() < end:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
    time.sleep(0.02)
else:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    sys.exit("the child hangs")
assert status == 0, status
assert works(backend.open({name!r}))
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("early", [True, False], ids=["opened before", "opened in the child"])
def test_fork(device, early):  # noqa: F811
    child = in_child(FORK.format(name=f"opencl:{device.info.platform}", early=early))
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out) == (0, "done\n"), err


def test_nothing_is_imported_before_a_device_is_asked_for():
    code = "import sys, tapeflow, tapeflow.backend; print([m for m in sys.modules if 'opencl' in m])"
    out, err = in_child(code).communicate(timeout=60)
    assert out == "[]\n", err
