"""Every public function beside NumPy's, large and small: `python -m bench --ops`.

The two calls of a row are made in turn in one process, on the same data, as a user would write them: tensors to
tapeflow, arrays to NumPy, nothing recorded. They are timed only after the results agreed. The ratio is the median over
the turns of NumPy's time / tapeflow's; what is above 1 is faster than NumPy. `quiet` is that of the fastest samples:
where other programs take the cores, a call that both threads share loses more than one that runs on one, and that is
what the controls warn of. A row is noted as a view where NumPy's result shares its operand's memory: that takes no time
at any size.
"""

import ast
import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import numpy as np

from . import harness
from .cases import CASES, Call
from .report import controls, seconds, table

SIZES = {"large": 1_000_000, "small": 16}
DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}  # of the largest element of each result
GOALS = {"large": (1.0, 1.5), "small": (2.0, 2.0)}  # every row, and the geometric mean
TURNS = 15
ROW_SECONDS = 0.12  # of timing, for calls so slow that fewer turns have to do
CONTROL_EVERY = 20  # functions: on a busy machine a control takes longer than all calls of one


# ---- the data ----


def pool(n: int, dtype: str) -> dict[str, Any]:
    """Every operand of cases.py, n elements each: lower case vectors, capitals r x r matrices with r = sqrt(n)."""
    rng, r = np.random.default_rng(5), math.isqrt(n)
    quarter = math.isqrt(r)
    x, y, d = rng.normal(size=n), rng.normal(size=n), rng.permutation(n) / n - 0.5
    o = rng.choice([-1.0, 1.0], n)  # for products: with few other factors they neither vanish nor depend on rounding
    o[rng.integers(0, n, 10)] *= 1.25
    floats = {
        "x": x, "y": y, "p": rng.uniform(0.1, 3, n), "q": rng.uniform(0.1, 3, n), "u": rng.uniform(-0.95, 0.95, n),
        "g": rng.uniform(1.01, 4, n), "z": np.where(rng.uniform(size=n) < 0.1, np.nan, x), "s": np.sort(y), "t": x,
        "d": d, "o": o, "v": rng.uniform(0.1, 1, r), "w": rng.uniform(0.1, 1, r),
        "X3": x[: n - n % 3].reshape(-1, 3), "Y3": y[: n - n % 3].reshape(-1, 3),
        "K": rng.normal(size=(quarter, quarter)), "a": x, "row": x[None],
    }  # fmt: skip
    floats.update({name.upper(): floats[name].reshape(r, r) for name in "xydoz"})
    whole = n - n % quarter**2
    floats.update(X4=x[:whole].reshape(-1, quarter, quarter), Y4=y[:whole].reshape(-1, quarter, quarter))
    b = rng.uniform(size=n) < 0.5
    others = {
        "b": b, "c": ~b, "B": b.reshape(r, r), "yes": b | True, "no": b & False,
        "i": rng.integers(0, 100, n), "j": rng.integers(1, 100, n), "k": rng.integers(0, 8, n),
        "idx": rng.integers(0, n, n), "rows": rng.permutation(r),
        "A": rng.integers(0, r, (r, r)), "S": np.argsort(y.reshape(r, r), axis=1),
    }  # fmt: skip
    others.update(YES=others["yes"].reshape(r, r), NO=others["no"].reshape(r, r))
    plain = {"n": n, "r": r, "shape": (r, r), "f": np.dtype(dtype), "numbers": x.tolist()}
    return {**{name: v.astype(dtype) for name, v in floats.items()}, **others, **plain}


def _for_library(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The pool as the user of a library holds it, with the library itself as m; `a` stays an array."""
    m = importlib.import_module(name)
    take = np.copy if name == "numpy" else m.tensor
    held = {k: take(v) if isinstance(v, np.ndarray) and k != "a" else v for k, v in values.items()}
    return {**held, "m": m, "special": _special()}


def pools(n: int, dtype: str, calls: Iterable[Call]) -> list[dict[str, Any]]:
    """What the calls use of the pool, for tapeflow, for NumPy, and for NumPy in float64: the same values."""
    used = {name for call in calls for text in spelled(call) for name in names_in(text)}
    values = {k: v for k, v in pool(n, dtype).items() if k in used}
    wide = {k: v.astype(float) if k in floats(values) else v for k, v in values.items()}
    wide["f"] = np.dtype(np.float64)
    return [_for_library("tapeflow", values), _for_library("numpy", values), _for_library("numpy", wide)]


def floats(held: Mapping[str, Any]) -> set[str]:
    """The operands whose dtype is that of the row."""
    return {k for k, v in held.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"}


def _special() -> Any:
    try:
        return importlib.import_module("scipy.special")
    except ImportError:
        return None


# ---- a row ----


def is_expression(text: str) -> bool:
    """Whether the text has a value; a statement is judged by `t`."""
    try:
        compile(text, "case", "eval")
    except SyntaxError:
        return False
    return True


def spelled(call: Call) -> tuple[str, str]:
    """How tapeflow spells a call, and how NumPy does."""
    return call if isinstance(call, tuple) else (call, call)


def names_in(text: str) -> set[str]:
    """The names that a call uses, attributes aside."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def result(text: str, held: dict[str, Any]) -> Any:
    """What a call gives."""
    scope = dict(held)
    if is_expression(text):
        return eval(text, scope)
    exec(text, scope)
    return scope["t"]


def loop(text: str, held: dict[str, Any]) -> Callable[[int], Any]:
    """The call n times over, its operands local variables."""
    used = "".join(f", {name}={name}" for name in sorted(names_in(text) & held.keys()))
    scope = {**held, "_repeat": repeat}
    exec(f"def run(_number{used}, _repeat=_repeat):\n    for _ in _repeat(None, _number):\n        {text}\n", scope)
    return scope["run"]


def flat(value: Any) -> list[Any]:
    """The arrays and other leaves of a result."""
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in flat(part)]
    return [value if isinstance(value, np.dtype) else np.asarray(value)]


def difference(ours: Any, same: Any, wide: Any, rtol: float) -> str:
    """What is wrong or "": floats against NumPy's in float64, everything else exactly against the same call."""
    got, same, wide = flat(ours), flat(same), flat(wide)
    if len(got) != len(same):
        return f"{len(got)} results, not {len(same)}"
    for a, b, w in zip(got, same, wide, strict=True):
        if isinstance(a, np.dtype):
            if a != b:
                return f"{a}, not {b}"
        elif a.shape != b.shape or a.dtype.kind != b.dtype.kind:
            return f"{a.dtype} of shape {a.shape}, not {b.dtype} of shape {b.shape}"
        elif a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"{np.count_nonzero(a != b)} of {a.size} elements differ"
        else:
            bound = rtol * float(np.max(np.abs(w), initial=0.0, where=np.isfinite(w)))
            if not np.allclose(a, w, rtol=0, atol=bound, equal_nan=True):
                off = np.max(np.abs(a - w), initial=0.0, where=np.isfinite(a) & np.isfinite(w))
                return f"off by {off:.1e}, allowed {bound:.0e}; {np.count_nonzero(np.isnan(a))} NaN"
    return ""


def is_view(theirs: Any, held: Mapping[str, Any]) -> bool:
    """Whether NumPy's result is no new memory."""
    arrays = [v for v in held.values() if isinstance(v, np.ndarray)]
    return any(np.may_share_memory(r, a) for r in flat(theirs) if isinstance(r, np.ndarray) and r.ndim for a in arrays)


def calls_for(run: Callable[[int], Any], target: float) -> int:
    """How many calls last about `target` seconds."""
    number = 1
    while True:
        begin = time.perf_counter()
        run(number)
        taken = time.perf_counter() - begin
        if taken > target / 4:
            return max(1, round(number * target / taken))
        number *= 4


def turns(ours: Callable[[int], Any], theirs: Callable[[int], Any], target: float, limit: int) -> list[list[float]]:
    """Seconds per call of both, turn by turn."""
    numbers = [calls_for(run, target) for run in (ours, theirs)]
    taken: list[list[float]] = [[], []]
    end = time.perf_counter() + ROW_SECONDS
    while len(taken[0]) < min(3, limit) or (len(taken[0]) < limit and time.perf_counter() < end):
        for run, number, seen in zip((ours, theirs), numbers, taken, strict=True):
            begin = time.perf_counter()
            run(number)
            seen.append((time.perf_counter() - begin) / number)
    return taken


def compare(name: str, call: Call, held: Sequence[dict[str, Any]], size: str, dtype: str, limit: int) -> dict[str, Any]:
    """One row; held: the pools of tapeflow, of NumPy, and of NumPy in float64."""
    ours, theirs = spelled(call)
    row: dict[str, Any] = {"name": name, "call": ours, "numpy_call": theirs, "size": size, "dtype": dtype}
    row.update(status="ok", ours=None, theirs=None, ratio=None, quiet=None, view=False)
    if "special" in names_in(theirs) and held[1]["special"] is None:
        return {**row, "status": "absent: scipy"}
    try:
        expected = result(theirs, held[1])
        wrong = difference(result(ours, held[0]), expected, result(theirs, held[2]), TOLERANCE[dtype])
    except Exception as error:  # a call that raises has failed; the others go on
        wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if wrong:
        return {**row, "status": f"FAILED: {wrong}"}
    row["view"] = is_expression(theirs) and is_view(expected, held[1])
    del expected
    samples = turns(loop(ours, held[0]), loop(theirs, held[1]), 1e-3 if size == "large" else 3e-4, limit)
    row["ours"], row["theirs"] = map(statistics.median, samples)
    row["quiet"] = min(samples[1]) / min(samples[0])
    row["ratio"] = statistics.median(b / a for a, b in zip(*samples, strict=True))
    return row


# ---- all of them ----


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside: it would hit one call and not the other."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run(
    only: Sequence[str] = (), sizes: Mapping[str, int] = SIZES, limit: int = TURNS
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of all functions named (all there are for none), in the order of the table; and the controls meanwhile."""
    chosen = {name: calls for name, calls in CASES.items() if not only or name in only}
    rows: list[dict[str, Any]] = []
    meanwhile = []
    with uncollected(), np.errstate(all="ignore"):
        for size, n in sizes.items():
            for dtype in DTYPES:
                held = pools(n, dtype, [call for calls in chosen.values() for call in calls])
                typed = floats(held[1]) | {"f"}
                taken: dict[str, list[float]] = {name: [] for name in harness.CONTROLS}
                meanwhile.append({"name": f"{size} {dtype}", "controls": taken})
                for at, (name, calls) in enumerate(chosen.items()):
                    for control, step in harness.CONTROLS.items() if at % CONTROL_EVERY == 0 else ():
                        taken[control].append(harness.sample(step, 1))
                    for call in calls:
                        if dtype == DTYPES[0] or any(names_in(text) & typed for text in spelled(call)):
                            rows.append(compare(name, call, held, size, dtype, limit))
    return rows, meanwhile


def geometric_mean(rows: Sequence[dict[str, Any]], column: str = "ratio") -> float:
    """Of the ratios; 0 of none."""
    return math.exp(statistics.fmean(math.log(row[column]) for row in rows)) if rows else 0.0


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per size and dtype: how many rows, their geometric mean with and without views, how many miss the goal."""
    out = []
    for size, dtype in dict.fromkeys((row["size"], row["dtype"]) for row in rows):
        timed = [r for r in rows if (r["size"], r["dtype"]) == (size, dtype) and r["ratio"]]
        least, mean = GOALS[size]
        out.append({
            "size": size, "dtype": dtype, "rows": len(timed), "geometric_mean": geometric_mean(timed),
            "quiet": geometric_mean(timed, "quiet"),
            "without_views": geometric_mean([r for r in timed if not r["view"]]), "goal_mean": mean, "goal": least,
            "below": sum(r["ratio"] < least for r in timed),
            "not_timed": sum((r["size"], r["dtype"]) == (size, dtype) and not r["ratio"] for r in rows),
        })  # fmt: skip
    return out


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The summary, then a table per size, worst first; what was not timed stands above all."""
    head = ["", "rows", "geometric mean", "quiet", "without views", "goal", "rows below", "each at least", "not timed"]
    cells = [
        [f"{s['size']}, {s['dtype']}", str(s["rows"]), f"{s['geometric_mean']:.2f}", f"{s['quiet']:.2f}",
         f"{s['without_views']:.2f}", f"{s['goal_mean']:.1f}", str(s["below"]), f"{s['goal']:.1f}", str(s["not_timed"])]
        for s in summary(rows)
    ]  # fmt: skip
    parts = ["## Beside NumPy: its time / tapeflow's", table(head, cells)]
    for size in dict.fromkeys(row["size"] for row in rows):
        ordered = sorted((r for r in rows if r["size"] == size), key=lambda r: r["ratio"] or 0.0)
        lines = []
        for r in ordered:
            shown = r["call"].replace("m.", "tp.")
            if r["numpy_call"] != r["call"]:
                shown += f" / {r['numpy_call'].replace('m.', 'np.')}"
            note = r["status"] if r["status"] != "ok" else "view" if r["view"] else ""
            ratios = ["-" if r[column] is None else f"{r[column]:.2f}" for column in ("ratio", "quiet")]
            lines.append([f"`{shown}`", r["dtype"], seconds(r["theirs"]), seconds(r["ours"]), *ratios, note])
        title = f"### {size.capitalize()}: {SIZES[size]:,} elements"
        parts += [title, table(["call", "dtype", "NumPy", "tapeflow", "ratio", "quiet", "note"], lines)]
    return "\n\n".join(parts)


def compare_all(threads: int, only: Sequence[str], limit: int) -> tuple[str, dict[str, Any]]:
    """The whole comparison as Markdown, and as data."""
    importlib.import_module("tapeflow").set_num_threads(threads)
    meta, begin = harness.machine(threads, ["tapeflow", "scipy"]), time.perf_counter()
    rows, meanwhile = run(only, limit=limit)
    meta["seconds"], busy = time.perf_counter() - begin, harness.busy(meanwhile)
    text = markdown(rows) + "\n\n" + controls(meanwhile, busy)
    return text, {"meta": meta, "summary": summary(rows), "ops": rows, "controls": meanwhile, "busy": busy}
