"""W3 by tinygrad on the OpenCL device that the environment leaves it: `python -m bench.tiny NAME [small]`.

The first line that it prints says {"ready": true, ...} after the gate of harness.py, or what is wrong, and whether that
is the "last" word: the device is the one named. Then it times so many steps for each number that it reads. A step is
TinyJit's, as tinygrad's documents write one, and ends when its loss is read.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

from . import harness, peers
from .workloads import ALL


def tinygrad() -> peers.Peer:
    from tinygrad import Tensor, TinyJit

    def cross_entropy(z: Any, labels: Any) -> Any:
        return z.sparse_categorical_crossentropy(labels)

    ns = SimpleNamespace(relu=Tensor.relu, cross_entropy=cross_entropy)

    def sgd(f: Any, params: Any, consts: Any, lr: float) -> peers.Step:
        ps = [Tensor(a).realize() for a in params]
        cs = [Tensor(a.astype("int32") if a.dtype.kind == "i" else a).realize() for a in consts]

        @TinyJit
        def update() -> Any:
            loss = f(*ps, *cs)
            for p, g in zip(ps, loss.gradient(*ps), strict=True):
                p.assign(p - lr * g)
            return loss.realize(*ps)

        def step() -> list:
            loss = update()
            loss.item()
            return [loss, *ps]

        return step

    return peers.Peer("tinygrad", "compiled", ns, lambda *_: list, sgd)


def tell(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def main(name: str, small: bool) -> None:
    try:
        import tinygrad as module
        from tinygrad import Device

        there = Device["CL"].device_name
    except Exception as error:  # not installed, or its device does not open
        tell(wrong=f"tinygrad: {type(error).__name__}: {error}"[:200], last=isinstance(error, ImportError))
        return
    if there.strip("\0 ") != name.strip():
        tell(wrong=f"tinygrad takes {there}", last=False)
        return
    w = ALL["W3"]
    row, step = harness.admit(w, tinygrad(), "tinygrad", w.small if small else w.size)
    if step is None:
        tell(wrong=f"tinygrad: {row.status}", last=True)
        return
    tell(ready=True, error=row.error, version=peers.version("tinygrad"), module=module.__name__)
    for line in sys.stdin:
        try:
            tell(seconds=harness.sample(step, int(line)))
        except Exception as error:
            tell(wrong=f"tinygrad: {type(error).__name__}: {error}"[:200])
            return


if __name__ == "__main__":
    main(sys.argv[1], "small" in sys.argv[2:])
