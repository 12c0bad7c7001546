"""The script for a machine with a GPU: it survives drivers that end or hang, keeps its time, and writes its report."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import gpu
from tests.opencl_devices import opened

ROOT = Path(__file__).resolve().parent.parent


def acting(monkeypatch, script):
    """Processes that run a script instead of looking at a device; it knows its sections as `numbers`."""
    started = []

    def child(arguments, groups=0):
        started.append((arguments[2], groups))
        text = f"import json, os, time\nnumbers = {[int(n) for n in arguments[2].split(',')]}\n"
        text += "def tell(**said): print(json.dumps(said), flush=True)\n" + script
        return subprocess.Popen([sys.executable, "-c", text], text=True, stdout=subprocess.PIPE)

    monkeypatch.setattr(gpu, "child", child)
    return started


GOOD = """
for n in numbers:
    tell(begin=n)
    print('a driver talks')
    {}
    tell(end=n, wrong='', looked='all')
"""


def test_every_section_is_told_and_each_limit_of_groups_has_a_process(monkeypatch):
    started = acting(monkeypatch, GOOD.format("tell(row={'what': 'x', 'note': '', 'peer': ''})"))
    found = list(gpu.explore("opencl:0", 60.0, range(len(gpu.SECTIONS))))
    assert [f["number"] for f in found] == list(range(len(gpu.SECTIONS)))
    assert all(f["status"] == "ok" and f["looked"] == "all" and len(f["rows"]) == 1 for f in found)
    assert [groups for _, groups in started] == [0, *gpu.GROUPS]


def test_a_process_that_ends_is_a_failure_and_the_next_goes_on_behind(monkeypatch):
    started = acting(monkeypatch, GOOD.format("n == 1 and os._exit(7)"))
    found = list(gpu.explore("opencl:0", 60.0, range(4)))
    assert [f["status"] for f in found] == ["ok", "FAILED: the process ended (7)", "ok", "ok"]
    assert [numbers for numbers, _ in started] == ["0,1,2,3", "2,3"]


def test_a_process_that_hangs_is_ended_and_the_time_is_kept(monkeypatch):
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    acting(monkeypatch, GOOD.format("n in (1, 3) and time.sleep(60)"))
    begin = time.monotonic()
    found = list(gpu.explore("opencl:0", 4.0, range(5)))
    assert time.monotonic() - begin < 8
    assert found[0]["status"] == "ok" and found[1]["status"].startswith("FAILED: no end within ")
    assert found[3]["status"].startswith(("FAILED: no end", "no time left")) and len(found) == 5
    assert [f["status"] for f in gpu.explore("opencl:0", 0.0, range(2))] == ["no time left"] * 2


def test_what_failed_is_told(monkeypatch):
    row = "dict(what='x', note='FAILED: no', peer={!r})"
    for said, status in (
        ("tell(end=n, wrong='sum: off', looked='')", "FAILED: sum: off"),
        (f"tell(row={row.format('')})", "FAILED: no"),
        (f"tell(row={row.format('CLBlast')})", "ok"),  # a rival's
    ):
        acting(monkeypatch, GOOD.format(said))
        assert next(gpu.explore("opencl:0", 60.0, range(1)))["status"] == status


def test_gpus_are_taken_unless_others_are_named():
    there = [("gpu", "Tesla (NVIDIA CUDA)"), ("cpu", "PoCL"), ("gpu", "Arc")]
    devices = [{"name": f"opencl:{n}", "kind": kind, "title": title} for n, (kind, title) in enumerate(there)]
    assert gpu.wanted_of(devices, []) == [devices[0], devices[2]]
    assert gpu.wanted_of(devices, ["opencl:1", "opencl:nvidia"]) == [devices[1], devices[0]]
    with pytest.raises(SystemExit, match="There is no opencl:7"):
        gpu.wanted_of(devices, ["opencl:7"])


def test_the_script_writes_a_report(tmp_path):
    opened("intel")
    out = tmp_path / "report.txt"
    command = [
        sys.executable,
        "-m",
        "bench.gpu",
        "--device",
        "opencl:intel",
        "--only",
        "facts,transfers",
        "--minutes",
        "1",
    ]
    done = subprocess.run([*command, "--report", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text, _, data = out.read_text(encoding="utf-8").partition("```json\n")
    found = json.loads(data.removesuffix("```\n"))
    (device,) = found["devices"]
    assert [f["section"] for f in device["findings"]] == ["facts", "transfers"] and found["meta"]["date"]
    assert "0 sections failed" in text and "one number there and back" in text and "extensions:" in text
