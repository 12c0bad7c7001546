"""`python -m tapeflow info`: what it says, and that each check of its self-test can fail."""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import __main__, _core, _info


def test_the_command():
    done = subprocess.run([sys.executable, "-m", "tapeflow", "info"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = dict(line.split(":", 1) for line in done.stdout.splitlines())
    facts = {name.strip(): fact.strip() for name, fact in facts.items()}
    assert facts["tapeflow"].startswith(tp.__version__) and facts["NumPy"] == np.__version__
    assert facts["CPU level"].startswith(_core.ISA_LEVEL) and int(facts["threads"]) >= 1
    assert facts["self-test"] == "passed" and all(facts[name] == "ok" for name in _info.CHECKS)
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
    assert not _info.self_test()[name]
    monkeypatch.setattr(tp, *BROKEN[name])
    assert _info.self_test()[name]
    assert __main__.main(["info"]) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said and f"{name}:" in said


def test_opencl_that_fails_is_reported(monkeypatch):
    def fails():
        raise RuntimeError("no driver")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "pyopencl", SimpleNamespace(get_platforms=fails))
    assert "no driver" in _info.opencl()
    monkeypatch.setitem(sys.modules, "pyopencl", SimpleNamespace(get_platforms=list))
    assert "no platform" in _info.opencl()
