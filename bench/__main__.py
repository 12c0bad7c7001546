"""`python -m bench`: tapeflow and its peers in one run, interleaved, no number without a passed check.

Install what is to be compared into the same environment (torch, jax, autograd, mygrad, casadi, tensorflow); what is
not there is named absent. Unset OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE first: they make OpenBLAS choose other kernels.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from . import peers

LIBRARIES = list(dict.fromkeys(module for _, _, module in peers.PEERS.values()))


def arguments(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser("python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--only", default="", metavar="W1,micro", help="workloads to run; micro stands for the single costs")
    p.add_argument("--peers", default="", metavar="torch,jax", help="libraries to compare with (default: all), or none")
    p.add_argument("--repeat", type=int, default=0, metavar="N", help="rounds (default 9, or 3 with --quick)")
    p.add_argument("--threads", type=int, default=2, metavar="N", help="threads for everybody (default 2)")
    p.add_argument("--compiled", action="store_true", help="torch.compile and XLA by TensorFlow too (minutes)")
    p.add_argument("--busy", action="store_true", help="time everything once more while a process keeps one core busy")
    p.add_argument("--quick", action="store_true", help="3 rounds of short samples: a smoke test, not a measurement")
    p.add_argument("--json", metavar="FILE", help="write everything measured, samples included")
    p.add_argument(
        "--ops",
        action="store_true",
        help="every function beside NumPy's instead; --only then names functions, --repeat is 15",
    )
    p.add_argument(
        "--opencl",
        action="store_true",
        help="each OpenCL device beside NumPy, CLBlast, a loop in C, tinygrad; --only then names parts",
    )
    p.add_argument("--device", default="", metavar="NAME", help="with --opencl: one device, as opencl:1 or opencl:pocl")
    p.add_argument("--list", action="store_true", help="name workloads and peers, run nothing")
    return p.parse_args(argv)


def chosen(text: str, known: list[str], what: str) -> list[str]:
    """Names of a comma list, in the order known; all of them for an empty list."""
    names = {n.strip().lower() for n in text.split(",") if n.strip()}
    unknown = names - {k.lower() for k in known} - {"none"}
    if unknown:
        sys.exit(f"unknown {what}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [k for k in known if not names or k.lower() in names]


def compare_ops(args: argparse.Namespace) -> int:
    """The comparison with NumPy, function by function."""
    from . import ops, report

    turns = args.repeat or (5 if args.quick else ops.TURNS)
    text, everything = ops.compare_all(args.threads, chosen(args.only, list(ops.CASES), "functions"), turns)
    print(report.place(everything["meta"]) + "\n\n" + text)
    if args.json:
        Path(args.json).write_text(json.dumps(everything, indent=1))
    return 1 if any(row["status"].startswith("FAILED") for row in everything["ops"]) else 0


def compare_opencl(args: argparse.Namespace) -> int:
    """The OpenCL devices, one after the other."""
    from . import devices, opencl

    rounds, target = args.repeat or (3 if args.quick else 9), 5e-3 if args.quick else 30e-3
    effort = devices.Effort(rounds, target, 0.5 if args.quick else 3.0)
    parts = chosen(args.only, list(devices.PARTS), "parts")
    everything = opencl.compare_all(args.threads, parts, args.device, effort)
    if args.json:
        Path(args.json).write_text(json.dumps(everything, indent=1))
    return 1 if opencl.failed(everything) else 0


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    peers.limit_threads(args.threads)
    if args.opencl:
        if gpus is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        return compare_opencl(args)
    from . import harness, micro, report  # after the threads are set, since they import NumPy
    from .workloads import ALL

    if args.ops:
        return compare_ops(args)
    only = chosen(args.only, [*ALL, "micro"], "workloads")
    libs = ["tapeflow", *(x for x in chosen(args.peers, LIBRARIES[1:], "peers"))]
    names = [n for n, (_, _, module) in peers.PEERS.items() if module in libs]
    names = [n for n in names if args.compiled or n not in peers.SLOW_TO_COMPILE]
    if args.list:
        for w in ALL.values():
            print(f"{w.name:4} {w.dtype}  {w.title}: {', '.join(n for n in w.peers if w.needs(n) in names)}")
        return 0

    found = {name: peers.load(name, args.threads) for name in names}
    rounds, target = args.repeat or (3 if args.quick else 9), 5e-3 if args.quick else 30e-3
    meta = {**harness.machine(args.threads, libs), "rounds": rounds, "target": target}
    print(report.head(meta), flush=True)
    results = []
    for name in only:
        if name != "micro":
            results.append(harness.run(ALL[name], found, rounds, target, beside=args.busy))
            print("\n" + report.workload(results[-1]), flush=True)
    singles: list[dict] = []
    if "micro" in only:
        running = {peers.PEERS[name][2] for name, peer in found.items() if not isinstance(peer, str)}
        there = ["numpy", *(m for m in libs if m in running)]
        singles = micro.op_costs(there, rounds, target) + micro.limits(there, 2 if args.quick else 5)
        print("\n" + report.micro(singles), flush=True)
    busy = harness.busy(results)
    print("\n" + report.goals(results, singles, busy) + "\n\n" + report.controls(results, busy))
    if args.json:
        everything = {"meta": meta, "workloads": results, "micro": singles, "busy": busy}
        Path(args.json).write_text(json.dumps(everything, indent=1))
    failed = any(r["status"].startswith("FAILED") for w in results for r in w["rows"] if harness.BASE in r["contender"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
