"""Devices that have little, lack something or fail while they are used: right results, or a clear error and all as it
was."""

import gc
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tapeflow as tp
from tapeflow.backend.opencl import faults, programs
from tapeflow.backend.opencl.host import Device
from tapeflow.errors import DeviceError, TapeflowError
from tapeflow.plan import ir
from tapeflow.plan.placed import DevicePlan
from tests import opencl_devices
from tests.kernel_cases import CASES, agrees, bits, capped, near, numbers, small
from tests.opencl_arrays import Shaped, cpu, in_the_long_run, place
from tests.test_opencl_host import failing, planted
from tests.test_opencl_kernels import check_kernels, oclgrind  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
RNG = np.random.default_rng(23)
GROUPS = ["extrema", "softmaxes", "sums", "products", "sorts", "norms", "variances", "masks", "transposed", "copies"]


# ---- work-groups and local memory


@pytest.mark.parametrize("limit", [1, 8, 64])
@pytest.mark.slow
def test_work_groups_within_a_limit(oclgrind, limit):  # noqa: F811
    """Of the device: every kernel that has groups, under the checker of kernels."""
    verdict = check_kernels.check(
        GROUPS, edges=False, TAPEFLOW_MAX_WORKGROUP=str(limit), OCLGRIND_MAX_WGSIZE=str(limit)
    )
    assert verdict, str(verdict)


@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_kernels_that_take_smaller_groups_than_their_device(oclgrind, limit):  # noqa: F811
    verdict = check_kernels.check(GROUPS, edges=False, cap=limit)
    assert verdict, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 8, 24])
@pytest.mark.parametrize("name", CASES)
def test_limits_on_drivers(name, limit, monkeypatch):
    """The same on a driver, where compilers and schedulers are others."""
    device = Device(opencl_devices.opened("intel").info)
    with small(), capped(limit):
        CASES[name](device, False)


LOCAL = """
import numpy as np
from tapeflow import backend
from tapeflow.backend.opencl import matmul, order
from tapeflow.plan import ir
from tests import kernel_cases
from tests.opencl_arrays import Shaped
device = backend.open("opencl:intel")
assert device.local_memory == 32 << 10, device.local_memory
gpu = Shaped(device, is_cpu=False, max_workgroup=256)
x = np.random.default_rng(1).standard_normal((40, 1500)).astype(np.float32)
double = x[:9, :65].astype(np.float64)
for a in (x[:, :70], double):  # whole tiles, rows of as many elements as a group puts in order, and longer ones
    dtype = ir.FLOAT32 if a.dtype == np.float32 else ir.FLOAT64
    kernel_cases.agrees(gpu, "matmul", (), [a, a.T.copy()], dtype, (len(a), len(a)), rtol=1e-4)
    kernel_cases.agrees(gpu, "var", (2, a.shape[1], kernel_cases.bits(a.shape[1])), [a], dtype, a.shape[:1], rtol=1e-4)
    kernel_cases.agrees(gpu, "softmax", (), [a], dtype, a.shape, rtol=1e-5)
for a in (x[:2, :1000], x[:2], double):
    kernel_cases.agrees(gpu, "argsort", (1, 0, a.shape[1]), [a], ir.INT64, a.shape)
kernel_cases.agrees(gpu, "permute_dims", (1, 0), [double], ir.FLOAT64, double.shape[::-1])
worst = max(k.handle.get_work_group_info(device.cl.kernel_work_group_info.LOCAL_MEM_SIZE, device.info.handle)
            for k in device.programs._kernels.values())
print("at most", worst)
"""


def test_local_memory_of_32_kb():
    """On a driver that keeps to it; and what kernels for GPUs declare is within 16 KB (Oclgrind keeps to that)."""
    opencl_devices.opened("intel")
    done = in_child(LOCAL, CL_CONFIG_CPU_FORCE_LOCAL_MEM_SIZE="32KB")
    assert done.returncode == 0, done.stderr
    assert 1024 <= int(done.stdout.split()[-1]) <= 16 << 10


def in_child(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_device_whose_items_are_fewer_than_its_groups(first, monkeypatch):
    """max_work_item_sizes[0] is a limit, too."""
    sizes = type(first.handle).max_work_item_sizes
    monkeypatch.setattr(type(first.handle), "max_work_item_sizes", property(lambda self: [4, *sizes.fget(self)[1:]]))
    device = Device(first)
    assert device.max_workgroup == 4
    x = RNG.standard_normal((3, 20)).astype(np.float32)
    agrees(Shaped(device, is_cpu=False), "softmax", (), [x], ir.FLOAT32, x.shape, rtol=1e-5)
    agrees(Shaped(device, is_cpu=False), "sum", (1, 3), [x], ir.FLOAT32, (20,), rtol=1e-5)


NARROWED = re.compile(r"\(int\)\s*get_(?:global|group)_(?:id|size)|\bint\s+\w+\s*=\s*get_(?:global|group)_id")


def test_no_kernel_has_numbers_of_elements_in_32_bits():
    """Numbers of work-items and groups are 64 bits wide, but for the probe's, of which there are 100."""
    for path in sorted((ROOT / "kernels").glob("*.cl")):
        found = NARROWED.findall(path.read_text(encoding="utf-8"))
        assert not found or path.name == "probe.cl", (path.name, found)


def test_more_rows_than_groups_fit_one_dimension(first, monkeypatch):
    """Some drivers take fewer than 2^16 groups along dimensions 1 and 2: rows go round."""
    from tapeflow.backend.opencl import fused, moves

    seen = []
    enqueue = Device._enqueue
    monkeypatch.setattr(Device, "_enqueue", lambda self, k, w, s: seen.append((w, s)) or enqueue(self, k, w, s))
    monkeypatch.setattr(moves, "MOST_ROWS", 3)
    monkeypatch.setattr(fused, "LONG_ROW", 5)
    device = Device(first)
    for rows in (1, 3, 4, 7, 10):
        x, y = RNG.standard_normal((rows, 6)).astype(np.float32), RNG.standard_normal(6).astype(np.float32)
        out = device.empty_array(ir.FLOAT32, (rows, 6))
        device.execute(ir.CODES["add"], (), [place(device, x), place(device, y)], out)
        near(device.download(out), x + y, rows)
        assert seen and all(n // w <= 3 for size, local in seen for n, w in zip(size[1:2], local[1:2]))


# ---- memory that runs out, devices that are lost, programs that do not build: within an op


def an_op(device, name):
    """Operands and result of an op of several kernels, and what it should come to."""
    x = RNG.standard_normal((6, 300)).astype(np.float32)
    name, params, ins, dtype, shape, layout = {
        "sum": ("sum", (1, 5000), [numbers(ir.FLOAT32, (5000,))], ir.FLOAT32, (), "packed"),
        "var": ("var", (2, 300, bits(300.0)), [x], ir.FLOAT32, (6,), "strided"),
        "argsort": ("argsort", (1, 0, 300), [x], ir.INT64, (6, 300), "transposed"),
        "cumulative_sum": ("cumulative_sum", (1, 0), [x[:1]], ir.FLOAT32, (1, 300), "reversed"),
        "matmul": ("matmul", (), [x[:, :40], x[:, :40].T.copy()], ir.FLOAT32, (6, 6), "transposed"),
        "scatter_add": ("scatter_add", (1,), [x, np.arange(9), x[:, :9].copy()], ir.FLOAT32, (6, 300), "strided"),
        "cross_entropy": ("cross_entropy", (), [x, np.arange(6)], ir.FLOAT32, (), "strided"),
        "permutation": ("random", (5, 3, 0), [], ir.INT64, (50,), "packed"),
        "nonzero": ("nonzero", (1,), [x > 0], ir.INT64, (int((x > 0).sum()),), "packed"),
    }[name]
    want = None if name == "random" else cpu(name, params, ins, dtype, shape)
    arrays = [place(device, a, layout) for a in ins]
    out = device.empty_array(dtype, shape)

    def compute():
        device.execute(ir.CODES[name], params, arrays, out)
        got = device.download(out)
        if want is not None:
            near(got, want, name, 1e-5)

    return compute


def error_in(compute):
    """What its error says; nothing where it has none."""
    try:
        compute()
    except TapeflowError as error:
        return str(error)
    return ""


KEPT_GEOMETRY = 256  # bytes that a device keeps of the first layout of an elementwise op
OPS = ("sum", "var", "argsort", "cumulative_sum", "matmul", "scatter_add", "cross_entropy", "permutation", "nonzero")


@pytest.mark.parametrize("name", OPS)
def test_each_allocation_of_an_op_fails_in_turn(first, name):
    device = Device(first)
    compute = an_op(device, name)
    compute()
    gc.collect()
    live, real = device.pool.live, device.cl.Buffer
    for at in range(40):
        device.pool.empty()
        made = iter(range(10**6))

        def buffer(*args, at=at, made=made):
            number = next(made)
            return failing(real, faults.ALLOCATION_FAILURE)() if number in (at, at + 1) else real(*args)

        planted(device, Buffer=buffer)
        said = error_in(compute)
        device.cl.Buffer = real
        if not said:
            break
        assert "planted -4" in said
        gc.collect()
        assert device.pool.live == live and not device.lost
        compute()
    gc.collect()
    assert device.pool.live == live and 0 < at < 40, "no allocation failed"


@pytest.mark.parametrize("name", OPS)
def test_a_device_is_lost_at_each_launch_of_an_op(first, name):
    for at in range(60):
        device = Device(first)
        compute = an_op(device, name)
        gc.collect()
        live, launched = device.pool.live, device.cl.enqueue_nd_range_kernel
        planted(device, enqueue_nd_range_kernel=failing(launched, faults.DEVICE_NOT_AVAILABLE, at={at}))
        said = error_in(compute)
        if not said:
            break
        assert " is lost: " in said and device.lost and "is lost" in error_in(compute)
        gc.collect()
        assert device.pool.live <= live + KEPT_GEOMETRY
        if at > 3 and not in_the_long_run():
            break  # the first ones; radix passes are many
    assert at > 0


@pytest.mark.parametrize("name", ["sum", "argsort"])
def test_a_kernel_of_an_op_that_does_not_build(first, name, monkeypatch, tmp_path):
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    device = Device(first)
    compute = an_op(device, name)
    gc.collect()
    live, compiled = device.pool.live, programs.Programs._compile
    for at in range(20):
        left = iter(range(at))

        def compile(self, source, name, options, left=left):
            broken = next(left, None) is None
            return compiled(self, "__kernel void broken(" if broken else source, name, options)

        device.programs = programs.Programs(device)
        with monkeypatch.context() as patch:
            patch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path / str(at)))
            patch.setattr(programs.Programs, "_compile", compile)
            said = error_in(compute)
        if not said:
            break
        assert "does not build on" in said and not device.lost
        gc.collect()
        assert device.pool.live <= live + KEPT_GEOMETRY
    compute()
    assert 0 < at < 20


def a_step():
    """A step of gradient descent as a plan, its input, and the parameter that it writes."""
    w = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def step(x):
        loss = tp.sum(tp.exp(w * x))
        loss.backward()
        with tp.no_grad():
            w.assign_sub(0.1 * w.grad)
            w.grad = None
        return loss

    x = tp.tensor([0.5, 0.25, -0.5])
    return tp.freeze(step, x), x, w


def test_each_allocation_of_a_plan_fails_in_turn(first):
    """The parameter keeps its value, nothing is left in use, and the plan runs when there is memory again."""
    plan, x, w = a_step()
    for at in range(60):
        device, before = Device(first), w.tolist()
        real = device.cl.Buffer
        planted(device, Buffer=failing(real, faults.ALLOCATION_FAILURE, at={at, at + 1}))
        made = []
        said = error_in(lambda device=device, made=made: made.append(DevicePlan(plan, device, "opencl")) or made[0](x))
        device.cl.Buffer = real
        if not said:
            break
        assert "planted -4" in said and w.tolist() == before and w.grad is None and not device.lost
        there = made[0] if made else DevicePlan(plan, device, "opencl")
        loss = float(tp.sum(tp.exp(w.detach() * x)))
        assert abs(float(there(x)) - loss) < 1e-5 and w.tolist() != before
        del there, made
        gc.collect()
        assert device.pool.live <= 4 * KEPT_GEOMETRY
    assert 0 < at < 60


def test_a_plan_whose_device_is_lost_leaves_state_as_it_was(first):
    """And the plan runs where it came from."""
    plan, x, w = a_step()
    device = Device(first)
    there = DevicePlan(plan, device, "opencl")
    there(x)
    before = w.tolist()
    function = device.cl.enqueue_nd_range_kernel
    planted(device, enqueue_nd_range_kernel=failing(function, faults.DEVICE_NOT_AVAILABLE))
    with pytest.raises(DeviceError, match="is lost"):
        there(x)
    assert w.tolist() == before and w.grad is None
    with pytest.raises(DeviceError, match="is lost"):
        there(x)
    loss = float(tp.sum(tp.exp(w.detach() * x)))
    assert abs(float(plan(x)) - loss) < 1e-5 and w.tolist() != before


# ---- two contexts, two threads


def test_operands_of_another_device(first):
    """An error that names both, and neither device is the worse for it."""
    here, there = Device(first), Device(first)
    x, y = place(here, np.ones(5, np.float32)), place(there, np.ones(5, np.float32))
    for ins, out in (([x, y], x), ([y, y], x), ([x, x], y)):
        with pytest.raises(DeviceError, match=r"\[add\] .* another device"):
            here.execute(ir.CODES["add"], (), ins, out)
    out = there.empty_array(ir.FLOAT32, (5,))
    there.execute(ir.CODES["add"], (), [y, y], out)
    near(there.download(out), np.full(5, 2, np.float32), "add")
    assert not here.lost and not there.lost


def test_arguments_that_a_driver_refuses(first):
    """tapeflow's error, not the binding's."""
    device, other = Device(first), Device(first)
    kernel = device.kernel("__kernel void f(__global float *y) { y[0] = 1.0f; }", "f")
    for use in (device.launch, device.bind):
        with pytest.raises(DeviceError, match=r"\[f\]"):
            use(kernel, 1, 1, "no buffer")
    out = device.empty_array(ir.FLOAT32, (1,))
    device.launch(kernel, 1, 1, out.memory)
    assert device.download(out) == 1 and not device.lost and not other.lost


N_OF = (5, 33, 300)


def some_ops(seed):
    """Ops of several kinds, over operands that no other seed has."""
    rng = np.random.default_rng(seed)
    for n in N_OF:
        x = rng.standard_normal((4, n)).astype(np.float32)
        yield "softmax", (), x, ir.FLOAT32, (4, n)
        yield "sum", (2, n), x, ir.FLOAT32, (4,)
        yield "argsort", (1, 0, n), x, ir.INT64, (4, n)
        yield "exp", (), x, ir.FLOAT32, (4, n)
        yield "cumulative_sum", (1, 0), x, ir.FLOAT32, (4, n)


def test_threads_compute_ops_on_one_device_and_on_two(first):
    """What each gets is its own; nothing is left in use."""
    devices, wrong = [Device(first), Device(first)], []

    def work(device, seed, wanted):
        try:
            for (name, params, x, dtype, shape), want in zip(some_ops(seed), wanted, strict=True):
                for layout in ("packed", "strided"):
                    out = device.empty_array(dtype, shape)
                    device.execute(ir.CODES[name], params, [place(device, x, layout)], out)
                    near(device.download(out), want, name, 1e-5)
        except Exception as error:
            wrong.append(error)

    threads = []
    for k in range(4):
        wanted = [cpu(name, params, [x], dtype, shape) for name, params, x, dtype, shape in some_ops(k)]
        threads.append(threading.Thread(target=work, args=(devices[k // 2], k, wanted)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    gc.collect()
    assert all(device.pool.live < 1 << 14 for device in devices)  # geometries are kept
