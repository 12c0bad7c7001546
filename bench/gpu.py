"""`python -m bench.gpu`: check and measure OpenCL devices, GPUs above all, within minutes, and write a report to send.

It needs a built checkout (`make build`, or `pip install -e ".[opencl]"`) and no other library; where libclblast or
tinygrad are installed it compares with them. Each device is looked at in a process of its own, which may end or hang as
drivers do: what it was at is noted, and another one goes on behind it. What does not fit into the time is named.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GROUPS = (64, 8, 1)  # limits of work-groups under which kernels are checked once more
PRODUCTS = (256, 1024, 2048, 4096)
ON_CPUS = (256, 512)
LEAST = 20.0  # seconds that any section may take


@dataclass(frozen=True)
class Section:
    """A check or a measurement. share: the part of a device's time that it may take; groups: a limit of work-groups."""

    kind: str  # check | measure
    name: str
    share: float
    groups: int = 0

    @property
    def title(self) -> str:
        return f"{self.name}, work-groups of at most {self.groups}" if self.groups else self.name.replace("_", " ")


# In the order of what one wants to know first: whether it is right, how fast it is, and then the rest of both.
SECTIONS = (
    Section("check", "facts", 0.1),
    Section("check", "self_test", 0.2),
    Section("check", "losses", 0.15),
    Section("measure", "transfers", 0.1),
    Section("measure", "elementwise", 0.1),
    Section("measure", "matmul", 0.2),
    Section("measure", "launch", 0.1),
    Section("measure", "eager", 0.1),
    Section("measure", "training", 0.2),
    Section("check", "determinism", 0.1),
    Section("check", "memory", 0.1),
    Section("measure", "shapes", 0.15),
    Section("check", "programs", 0.25),
    Section("check", "functions", 0.35),
    *(Section("check", "self_test", 0.15, groups) for groups in GROUPS),
)
NAMES = list(dict.fromkeys(section.name for section in SECTIONS))


# ---- in the process of a device ----


def serve(name: str, numbers: Sequence[int], minutes: float) -> None:
    """Work through sections of SECTIONS, a line of JSON before each and after it."""
    out = os.fdopen(os.dup(1), "w")  # drivers write to 1 as they like
    os.dup2(2, 1)

    def tell(**said: Any) -> None:
        out.write(json.dumps(said) + "\n")
        out.flush()

    from tapeflow import backend

    from . import checks, devices

    device = backend.open(name)
    scale = min(1.0, minutes / 5)
    # no rests as in harness.settled: a GPU does not share the cores that OpenBLAS's threads spin on
    effort = devices.Effort(rounds=5, target=9e-3, seconds=2 * scale)
    for number in numbers:
        section = SECTIONS[number]
        tell(begin=number)
        if section.kind == "check":
            seconds = 60 * minutes * section.share
            wrong, looked = checks.checked(section.name, device, name, 0.8 * seconds)
            tell(end=number, wrong=wrong, looked=looked)
            continue
        sizes = {"sizes": ON_CPUS if device.is_cpu else PRODUCTS} if section.name == "matmul" else {}
        for found in devices.measured(section.name, device, name, effort, **sizes):
            tell(row=found)
        tell(end=number, wrong="", looked="")


def tell_devices() -> None:
    """The devices that work here, as a line of JSON."""
    from tapeflow import backend
    from tapeflow._info import describe_device

    found = [
        {"name": f"opencl:{k}", "kind": info.kind, "title": describe_device(info)}
        for k, info in enumerate(backend.devices())
    ]
    print("\n" + json.dumps(found))


# ---- in the process that was asked ----


def child(arguments: Sequence[str], groups: int = 0) -> subprocess.Popen:
    """A process of this script."""
    env = {**os.environ, **({"TAPEFLOW_MAX_WORKGROUP": str(groups)} if groups else {})}
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def lines_of(process: subprocess.Popen) -> "queue.Queue[str | None]":
    """What a process prints, line by line; None at its end."""
    said: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(line)
        said.put(None)

    threading.Thread(target=read, daemon=True).start()
    return said


def explore(name: str, seconds: float, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The findings of sections on a device, in `seconds`: {section, status, looked, rows, seconds} each."""
    end = time.monotonic() + seconds
    left = list(numbers)
    while left:
        if time.monotonic() > end:
            yield from [finding(number, "no time left", "", [], 0.0) for number in left]
            return
        groups = SECTIONS[left[0]].groups
        batch = [n for n in left if SECTIONS[n].groups == groups]
        for found in watch(name, batch, groups, seconds, end):
            left.remove(found["number"])
            yield found


def watch(name: str, numbers: list[int], groups: int, seconds: float, end: float) -> Iterator[dict[str, Any]]:
    """The findings of one process, up to the section in which it ends or has to be ended."""
    process = child(["--serve", name, ",".join(map(str, numbers)), "--minutes", str(seconds / 60)], groups)
    said, at, rows, begin = lines_of(process), numbers[0], [], time.monotonic()
    try:
        while True:
            allowed = min(end, begin + max(LEAST, SECTIONS[at].share * seconds)) - time.monotonic()
            try:
                line = said.get(timeout=max(allowed, 0.01))
            except queue.Empty:
                spent = time.monotonic() - begin
                late = "no time left" if time.monotonic() >= end else f"FAILED: no end within {spent:.0f} s"
                yield finding(at, late, "", rows, spent)
                return
            if line is None:
                yield finding(at, f"FAILED: the process ended ({process.wait()})", "", rows, time.monotonic() - begin)
                return
            told = json.loads(line) if line.startswith("{") else {}
            if "begin" in told:
                at, rows, begin = told["begin"], [], time.monotonic()
            elif "row" in told:
                rows.append(told["row"])
            elif "end" in told:
                wrong = told["wrong"] or next((r["note"] for r in rows if is_failure(r)), "")
                wrong = wrong.removeprefix("FAILED: ")
                yield finding(at, f"FAILED: {wrong}" if wrong else "ok", told["looked"], rows, time.monotonic() - begin)
                if at == numbers[-1]:
                    return
    finally:
        process.kill()
        process.wait()


def is_failure(row: dict[str, Any]) -> bool:
    """Whether a row says that tapeflow failed, not a rival."""
    return row["note"].startswith("FAILED") and not row["peer"]


def finding(number: int, status: str, looked: str, rows: list, seconds: float) -> dict[str, Any]:
    section = SECTIONS[number]
    return {
        "number": number, "section": section.title, "kind": section.kind, "status": status, "looked": looked,
        "rows": rows, "seconds": seconds,
    }  # fmt: skip


# ---- the report ----


def text_of(meta: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """All findings as Markdown."""
    from . import opencl, report

    parts = [report.place(meta)]
    for result in results:
        said = [f["looked"] for f in result["findings"] if f["section"] == "facts"]
        others = [f for f in result["findings"] if f["section"] != "facts"]
        cells = [[f["section"], f"{f['seconds']:.1f} s", f["status"], f["looked"]] for f in others]
        rows = [r for f in result["findings"] for r in f["rows"]]
        bad = sum(f["status"].startswith("FAILED") for f in result["findings"])
        head = "\n\n".join([f"## {result['name']}: {result['title']}", *said, f"{bad} sections failed."])
        parts += [head, report.table(["section", "took", "verdict", "looked at"], cells), opencl.TERMS]
        parts.append(opencl.table(rows))
    return "\n\n".join(parts)


def present() -> list[dict[str, str]]:
    """The devices that work here, asked for in a process of its own."""
    process = child(["--tell-devices"])
    try:
        said, _ = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit("The drivers of OpenCL do not answer within 150 s.")
    if process.returncode:
        sys.exit(f"The drivers of OpenCL end the process that asks them ({process.returncode}).")
    found: list[dict[str, str]] = json.loads(said.strip().splitlines()[-1])
    return found


def wanted_of(devices: list[dict[str, str]], names: list[str]) -> list[dict[str, str]]:
    """The devices named, or all that are no processors."""
    if not names:
        return [d for d in devices if d["kind"] != "cpu"]
    chosen = []
    for name in names:
        part = name.partition(":")[2].lower()
        fitting = [d for d in devices if d["name"] == name or (part and part in d["title"].lower())]
        if not fitting:
            sys.exit(f"There is no {name}; there are {', '.join(d['name'] + ' ' + d['title'] for d in devices)}.")
        chosen.append(fitting[0])
    return chosen


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        "python -m bench.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument(
        "--device", action="append", default=[], metavar="NAME", help="as opencl:1 or opencl:nvidia; again for more"
    )
    p.add_argument("--minutes", type=float, default=5.0, help="for all devices together (default 5)")
    p.add_argument("--report", default="tapeflow-devices.txt", metavar="FILE", help="text, and JSON at its end")
    p.add_argument("--only", default="", metavar="S1,S2", help=f"sections: {', '.join(NAMES)}")
    p.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    p.add_argument("--tell-devices", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    if args.serve:
        serve(args.serve[0], [int(n) for n in args.serve[1].split(",")], args.minutes)
        return 0
    if args.tell_devices:
        tell_devices()
        return 0
    unknown = set(filter(None, args.only.split(","))) - set(NAMES)
    if unknown:
        sys.exit(f"unknown sections: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    numbers = [n for n, section in enumerate(SECTIONS) if not args.only or section.name in args.only.split(",")]
    begin = time.monotonic()
    chosen = wanted_of(present(), args.device)
    if not chosen:
        sys.exit("No GPU works with OpenCL here. `python -m tapeflow info` says why; --device opencl:0 takes another.")
    from . import harness

    meta, results = harness.machine(os.cpu_count() or 1, ["tapeflow", "pyopencl", "tinygrad"]), []
    for number, device in enumerate(chosen):
        seconds = (60 * args.minutes - (time.monotonic() - begin)) / (len(chosen) - number)
        print(f"{device['name']}: {device['title']}", flush=True)
        results.append({**device, "findings": []})
        for found in explore(device["name"], seconds, numbers):
            results[-1]["findings"].append(found)
            print(f"  {found['section']}: {found['status'][:300]} ({found['seconds']:.1f} s)", flush=True)
    meta["seconds"] = time.monotonic() - begin
    text = text_of(meta, results)
    data = json.dumps({"meta": meta, "devices": results}, indent=1)
    Path(args.report).write_text(f"{text}\n\n```json\n{data}\n```\n", encoding="utf-8")
    print("\n" + text + f"\n\nThe report is in {args.report}: please send it.")
    return 1 if any(f["status"].startswith("FAILED") for r in results for f in r["findings"]) else 0


if __name__ == "__main__":
    sys.exit(main())
