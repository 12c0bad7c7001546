"""The checker of kernels: every OpenCL kernel on Oclgrind, an interpreter that sees what goes wrong inside of one.

    python tools/check_kernels.py [--fast]

The cases of tests/kernel_cases.py run in two processes, since Oclgrind serves one thread; --fast leaves out the edges
(10 seconds in place of 3 minutes).
Accesses out of bounds, data races, reads of what nobody wrote and barriers in divergent flow are in Oclgrind's log, and
the log is the verdict: Oclgrind and the tests say nothing of them. Beside it, results must be the cpu's, and no kernel
of kernels/*.cl may be left out. The exit status is 0 when nothing is wrong, 2 when Oclgrind is not here.

Programs are built without optimization: what compilers make of a kernel has intrinsics that Oclgrind lacks, and reads
and writes that they leave out are not checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
MOST = 1 << 20  # work-items of a work-group: no limit
ABSENT = 2  # the exit status where Oclgrind is not here
ENVIRONMENT = {
    "OCLGRIND_DATA_RACES": "1",
    "OCLGRIND_UNINITIALIZED": "1",
    "OCLGRIND_MAX_ERRORS": "20",
    "OCLGRIND_LOCAL_MEM_SIZE": "16384",  # what kernels for GPUs must do with
    "TAPEFLOW_OPENCL_EXACT": "1",  # buffers of exactly the size of what is in them, each used once
    "TAPEFLOW_TEST_OCLGRIND": "1",
}
PLANTS = {  # a fault: the file, the text in it, and what is there instead
    "result": ("index.cl", "y[start + i] = (ITEM)bits;", "y[start + i] = (ITEM)(bits + 1);"),
    "bounds": ("index.cl", "if (i < n) y[start + i] = (ITEM)bits;", "if (i <= n) y[start + i] = (ITEM)bits;"),
    "race": (
        "index.cl",
        "        part[l] = count;\n        barrier(CLK_LOCAL_MEM_FENCE);",
        "        part[l] = part[0] = count;\n        barrier(CLK_LOCAL_MEM_FENCE);",
    ),
    "uninitialized": ("index.cl", "        part[l] = count;\n", "        if (count > 4) part[l] = count;\n"),
    "divergence": (
        "index.cl",
        "        part[l] = count;\n        barrier(CLK_LOCAL_MEM_FENCE);",
        "        part[l] = count;\n        if (l < width - 1) barrier(CLK_LOCAL_MEM_FENCE);",
    ),
}


# ---- which kernels there are


def definitions(text: str, name: str = "") -> set[str]:
    """The names of the kernels in a text of OpenCL C, those that macros make among them; NAME is what it is for."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text.replace("\\\n", " "), flags=re.S)
    macros = {}
    for found in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\(([^)]*)\))?[ \t]+(.*)$", text, re.M):
        macros.setdefault(found[1], (None if found[2] is None else found[2].replace(" ", "").split(","), found[3]))
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)
    makers = [m for m, (_, body) in macros.items() if "__kernel" in body]
    makers += [m for m, (_, body) in macros.items() if any(re.search(rf"\b{k}\b", body) for k in makers)]
    for _ in range(3):  # macros that call macros
        for maker in makers:
            parameters, body = macros[maker]
            if parameters is None:
                text = re.sub(rf"\b{maker}\b", body, text)
            else:
                text = re.sub(rf"\b{maker}\(([^()]*)", lambda m, p=parameters, b=body: expanded(p, b, m[1]), text)
    names = re.findall(r"__kernel\s+(?:__attribute__\(\(.*?\)\)\)\s*)?void\s+(\w+)(?:\((\w+)\)\()?", text)
    return {f"{name}_{inner}" if outer == "FN" else outer for outer, inner in names}


def expanded(parameters: list[str], body: str, arguments: str) -> str:
    """The body of a macro with the arguments that are words put in."""
    for parameter, argument in zip(parameters, arguments.split(","), strict=False):
        body = re.sub(rf"\b{parameter}\b", argument.strip(), body)
    return body.replace("##", "").replace(" ## ", "")


def kernels() -> set[str]:
    """Every kernel of kernels/*.cl, those of reduce.cl for each kind, and the generated ones."""
    found = {"fused", "draw"}
    for path in sorted((ROOT / "kernels").glob("*.cl")):
        text = path.read_text(encoding="utf-8")
        kinds = re.findall(r"^#undef ([A-Z]+)$", text.partition("#undef NAME\n")[2].partition("#undef SUMS")[0], re.M)
        for kind in kinds or [""]:
            found |= definitions(text, f"reduce_{kind.lower()}")
    return found


# ---- in a process of its own: cases on Oclgrind


def plant(fault: str) -> None:
    """Make one kernel wrong, before anybody reads its text."""
    from tapeflow.backend.opencl import table

    file, before, after = PLANTS[fault]
    source = table.source

    def planted(name: str) -> str:
        text = source(name)
        if name != file:
            return text
        assert text.count(before) == 1, f"the text that {fault} changes is not in {file}"
        return text.replace(before, after)

    table.source = planted


def run(names: list[str], edges: bool, fault: str, cap: int) -> dict[str, object]:
    """Which kernels were launched, what failed, and how long each case took."""
    if fault:
        plant(fault)
    from tapeflow import backend
    from tapeflow.backend.opencl.host import Device
    from tapeflow.backend.opencl.memory import Pool
    from tapeflow.errors import DeviceError
    from tests import kernel_cases, opencl_arrays

    try:
        device, kept = backend.open("opencl:oclgrind"), []
    except DeviceError as error:
        print(error, file=sys.stderr)
        raise SystemExit(ABSENT) from None
    device.build_options += ("-cl-opt-disable",)
    opencl_arrays.MARGIN = 0
    launched: set[str] = set()
    alloc, enqueue = Pool.alloc, Device._enqueue

    def kept_alloc(*args):
        """Oclgrind takes what kernels write in memory that was freed and given out again for uninitialized."""
        kept.append(alloc(*args))
        return kept[-1]

    def noted_enqueue(self, kernel, *sizes):
        launched.add(kernel.name)
        enqueue(self, kernel, *sizes)

    Pool.alloc, Device._enqueue = kept_alloc, noted_enqueue
    failures, seconds = {}, {}
    with kernel_cases.small(), kernel_cases.capped(cap):
        for name in names:
            start = time.perf_counter()
            try:
                kernel_cases.CASES[name](device, edges)
            except Exception:
                failures[name] = traceback.format_exc(limit=-6)
            seconds[name] = round(time.perf_counter() - start, 2)
    return {"launched": sorted(launched), "failures": failures, "seconds": seconds}


# ---- the verdict


class Verdict:
    """What the checker found. here: Oclgrind is; log: what it said; failures: of cases; launched, missed: kernels;
    seconds: of each case."""

    def __init__(self) -> None:
        self.here, self.log = True, ""
        self.failures: dict[str, str] = {}
        self.launched: set[str] = set()
        self.missed: set[str] = set()
        self.seconds: dict[str, float] = {}

    def __bool__(self) -> bool:
        return self.here and not (self.log or self.failures or self.missed)

    def __str__(self) -> str:
        if self:
            return f"{len(self.launched)} kernels in {len(self.seconds)} cases: nothing is wrong"
        said = [self.log] if self.log else []
        said += [f"{name}: {text}" for name, text in self.failures.items()]
        if self.missed:
            said.append(f"no case launches {', '.join(sorted(self.missed))}")
        return "\n".join(said)


def shares(names: list[str]) -> list[list[str]]:
    return [names[k::PROCESSES] for k in range(PROCESSES)] if len(names) > 1 else [names]


def check(
    names: list[str], edges: bool = True, fault: str = "", every: bool = False, cap: int = MOST, **environment: str
) -> Verdict:
    """Run cases, and gather what there is against them. every: no kernel may be left out; cap: the largest work-group
    that kernels take, though the device takes larger ones."""
    verdict = Verdict()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        children = []
        for k, share in enumerate(shares(names)):
            log = folder / f"log{k}"
            command = [sys.executable, __file__, "--run", ",".join(share), "--fault", fault, "--cap", str(cap)]
            child = subprocess.Popen(
                command + ([] if edges else ["--fast"]),
                cwd=ROOT,
                env=os.environ
                | ENVIRONMENT
                | {"OCLGRIND_LOG": str(log), "TAPEFLOW_CACHE_DIR": str(folder / "cache")}
                | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            children.append((child, share, log))
        for child, share, _ in children:
            out, err = child.communicate()
            if child.returncode == ABSENT:
                verdict.here, verdict.log = False, err
                continue
            if child.returncode:
                verdict.failures[", ".join(share)] = f"status {child.returncode}\n{err}"
                continue
            said = json.loads(out.splitlines()[-1])
            verdict.launched |= set(said["launched"])
            verdict.failures |= said["failures"]
            verdict.seconds |= said["seconds"]
        for _, _, log in children:
            verdict.log += log.read_text() if log.exists() else ""
    known = kernels()
    if verdict.launched - known:
        verdict.failures["definitions"] = f"overlooks {', '.join(sorted(verdict.launched - known))}"
    if verdict.here and every:
        verdict.missed = known - verdict.launched
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="without edges")
    parser.add_argument("--cases", help="some, with commas in between")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--cap", type=int, default=MOST, help="the largest work-group that kernels take")
    parser.add_argument("--fault", default="", help=f"make a kernel wrong: {', '.join(PLANTS)}")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if given.run:
        print(json.dumps(run(given.run.split(","), not given.fast, given.fault, given.cap)))
        return 0
    from tests.kernel_cases import CASES

    names = given.cases.split(",") if given.cases else list(CASES)
    verdict = check(names, not given.fast, given.fault, not given.cases, given.cap)
    print(verdict)
    return 0 if verdict else 1 if verdict.here else ABSENT


if __name__ == "__main__":
    sys.exit(main())
