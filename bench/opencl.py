"""The OpenCL devices of this machine beside their rivals: `python -m bench --opencl`, as Markdown and as data."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from . import devices, harness, report

HEAD = ["what", "tapeflow", "quiet", "beside", "takes", "quiet", "ratio", "quiet", "goal", "reached", "note"]
TERMS = """\
Times are medians, `quiet` the fastest sample; ratio: the other's time / tapeflow's, the median over the rounds and that
of the fastest samples. A processor's device and NumPy share cores, on which OpenBLAS's threads spin for some 120 ms
when they have nothing to do: in blocks and after a rest each has the machine for itself, in turn the device finds a
core taken."""


def names(wanted: str = "") -> list[tuple[str, Any]]:
    """(name, open device) of those asked for: one by name, or all that work here."""
    from tapeflow import backend

    if wanted:
        return [(wanted, backend.open(wanted))]
    return [(f"opencl:{k}", backend.open(f"opencl:{k}")) for k in range(len(backend.devices()))]


def title(name: str, device: Any) -> str:
    """What a device is, in a line."""
    from tapeflow._info import describe_device

    return f"{name}: {describe_device(device.info)}"


def sections(parts: Sequence[str], wanted: str, effort: devices.Effort) -> Iterator[dict[str, Any]]:
    """A device after the other, with the rows of all parts."""
    for name, device in names(wanted):
        rows = [found for part in parts for found in devices.measured(part, device, name, effort)]
        yield {"device": name, "title": title(name, device), "rows": rows}


def compare_all(threads: int, parts: Sequence[str], wanted: str, effort: devices.Effort) -> dict[str, Any]:
    """All devices as data; each is printed as Markdown when it is done."""
    import tapeflow as tp

    os.environ.setdefault("RUSTICL_ENABLE", "llvmpipe")
    tp.set_num_threads(threads)
    meta = harness.machine(threads, ["tapeflow", "pyopencl", "tinygrad"])
    meta |= {"rounds": effort.rounds, "target": effort.target}
    print(report.place(meta) + "\n\n" + TERMS, flush=True)
    found = []
    for section in sections(parts, wanted, effort):
        print(f"\n## {section['title']}\n\n{table(section['rows'])}", flush=True)
        found.append(section)
    if not found:
        print("\nNo OpenCL device works here: `python -m tapeflow info` says what to install.")
    return {"meta": meta, "devices": found}


def table(rows: Sequence[devices.Row]) -> str:
    """The rows of a device."""
    return report.table(HEAD, [cells(r) for r in rows])


def cells(r: devices.Row) -> list[str]:
    """One row."""
    times = [report.seconds(r[key]) for key in ("ours", "ours_quiet", "theirs", "theirs_quiet")]
    ratios = ["-" if r[key] is None else f"{r[key]:.2f}" for key in ("ratio", "quiet")]
    goal = r["goal"]
    wanted, verdict = "-", "-"
    if goal:
        wanted = f"{'>=' if goal['at_least'] else '<='} {goal['limit']:.3g} {goal['unit']}".strip()
        verdict = {True: "yes", False: "NO", None: "not measured"}[goal["met"]]
        if goal["unit"] != "x" or not goal["at_least"]:
            verdict += f" ({goal['measured']:.3g} {goal['unit']}".rstrip() + ")"
    return [r["what"], *times[:2], r["peer"] or "-", *times[2:], *ratios, wanted, verdict, r["note"]]


def failed(everything: dict[str, Any]) -> bool:
    """Whether a part of tapeflow's own failed; a rival that fails is only told."""
    rows = [r for section in everything["devices"] for r in section["rows"]]
    return any(r["note"].startswith("FAILED") and not r["peer"] for r in rows)
