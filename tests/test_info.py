"""`python -m tapeflow info`: what it says, and that each check of its self-test can fail."""

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import __main__, _core, _info, backend
from tapeflow.backend.opencl import discovery, loader, selftest
from tapeflow.backend.opencl.table import IMPLEMENTED
from tapeflow.errors import DeviceError
from tapeflow.plan import ir
from tests.opencl_devices import device  # noqa: F401


def test_the_command():
    done = subprocess.run([sys.executable, "-m", "tapeflow", "info"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = dict(line.split(":", 1) for line in done.stdout.splitlines())
    facts = {name.strip(): fact.strip() for name, fact in facts.items()}
    assert facts["tapeflow"].startswith(tp.__version__) and facts["NumPy"] == np.__version__
    assert facts["CPU level"].startswith(_core.ISA_LEVEL) and int(facts["threads"]) >= 1
    assert facts["self-test"] == "passed" and all(facts[name] == "ok" for name in _info.CHECKS)
    for k, info in enumerate(backend.devices()):
        assert facts[f"OpenCL {k}"].startswith(info.name) and f"OpenCL {k} {next(iter(selftest.PROGRAMS))}" in facts
    assert {"Python", "SciPy", "BLAS", "OpenCL", "memory pool", "compiled by"} <= set(facts)


def test_an_unknown_command(capsys):
    with pytest.raises(SystemExit) as stop:
        __main__.main(["no-such"])
    assert stop.value.code == 2 and "info" in capsys.readouterr().err


def unseeded(_):
    return GENERATOR(next(SEEDS))


SEEDS, COUNT = itertools.count(), itertools.count(1)
SUM, SIN, EXP, MATMUL, TANH = tp.sum, tp.sin, tp.exp, tp.matmul, tp.tanh
GENERATOR = tp.random.Generator
BROKEN = {
    "values": ("exp", lambda x: EXP(x) * (1 + 1e-15)),
    "gradients": ("tanh", lambda x: TANH(x) + tp.stop_gradient(x)),
    "fused rules": ("sin", lambda x: SIN(x) * next(COUNT)),
    "matmul": ("matmul", lambda a, b: MATMUL(a, b) + 0.001),
    "random": ("random", SimpleNamespace(Generator=unseeded)),
    "thread counts": ("sum", lambda x: SUM(x) + tp.get_num_threads()),
}


@pytest.mark.parametrize("name", _info.CHECKS)
def test_each_check_finds_what_is_broken(name, monkeypatch, capsys):
    monkeypatch.setattr(_info, "opencl", lambda: ({}, True))  # has tests of its own
    assert not _info.self_test()[name]
    monkeypatch.setattr(tp, *BROKEN[name])
    assert _info.self_test()[name]
    assert __main__.main(["info"]) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said and f"{name}:" in said


def test_opencl_that_fails_is_reported(monkeypatch):
    def fails(error):
        raise error

    monkeypatch.setattr(loader, "binding", lambda: fails(RuntimeError("no driver")))
    assert _info.opencl() == ({"OpenCL": "RuntimeError: no driver"}, True)
    monkeypatch.setattr(loader, "binding", lambda: fails(DeviceError("[device] OpenCL needs pyopencl. Install it.")))
    assert _info.opencl() == ({"OpenCL": "OpenCL needs pyopencl. Install it."}, True)


def test_opencl_without_a_device(monkeypatch):
    monkeypatch.setattr(discovery, "_listing", discovery.Listing([], [("Clover", "the platform lists no device")]))
    monkeypatch.setattr(discovery, "_listed_by", os.getpid())
    monkeypatch.setattr(loader, "binding", lambda: SimpleNamespace(VERSION_TEXT="2026.1"))
    facts, sound = _info.opencl()
    assert sound and facts["OpenCL"] == "pyopencl 2026.1, 0 devices"
    notes = [fact for name, fact in facts.items() if name.startswith("  note")]
    assert notes[0] == "Clover is not usable: the platform lists no device" and notes[-1].startswith("Install ")


def test_devices_with_their_capabilities_and_verdicts(device):  # noqa: F811
    facts, sound = _info.opencl()
    (k,) = [k for k, info in enumerate(backend.devices()) if info == device.info]
    said = facts[f"  OpenCL {k}"]
    assert device.name in said and device.driver in said and device.kind in said
    assert ("no fp64" in said) == (not device.fp64)
    verdicts = [facts[f"    OpenCL {k} {name}"] for name in selftest.PROGRAMS]
    assert sound and set(verdicts) == {"ok"}, facts


def test_an_op_that_a_device_lacks_is_a_failure(device, monkeypatch):  # noqa: F811
    monkeypatch.delitem(IMPLEMENTED, ir.CODES["cumulative_sum"])
    (k,) = [k for k, info in enumerate(backend.devices()) if info == device.info]
    facts, sound = _info.opencl()
    assert not sound and facts[f"    OpenCL {k} scans"] == "not available: cumulative_sum"


def test_a_device_that_fails_is_a_failure(device, monkeypatch):  # noqa: F811
    def fails(*_):
        raise DeviceError("[exp] it is off")

    with monkeypatch.context() as patch:
        patch.setattr(selftest, "verdict", fails)
        facts, sound = _info.opencl()
    assert not sound and facts["    OpenCL 0 elementwise"] == "[exp] it is off"
    monkeypatch.setattr(backend, "open", fails)
    facts, sound = _info.opencl()
    assert not sound and facts["    OpenCL 0 opened"] == "[exp] it is off"


@pytest.mark.parametrize("name", selftest.PROGRAMS)
def test_the_self_test_of_a_device_finds_a_wrong_op(device, monkeypatch, name):  # noqa: F811
    assert selftest.verdict(device, name) == ""
    compute, last = type(device).execute, {}

    def wrong(where, op, params, ins, out):
        """The last op of the program with its first byte inverted."""
        compute(where, op, params, ins, out)
        if last.get("op") == op:
            data = where.download(out)
            data.reshape(-1).view("u1")[3 if data.dtype.kind == "f" else 0] ^= 1 if data.dtype.kind != "f" else 64
            where.upload(out, data)
        last["seen"] = op

    monkeypatch.setattr(type(device), "execute", wrong)
    assert selftest.verdict(device, name) == ""
    last["op"] = last["seen"]
    assert selftest.verdict(device, name).startswith(ir.name_of(last["op"]))
