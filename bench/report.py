"""The results as Markdown: per workload a table of the contenders, then one table of goals."""

import statistics
from collections.abc import Sequence


def seconds(t: float | None) -> str:
    """Three digits and a unit."""
    if t is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if t >= scale:
            return f"{t / scale:.3g} {unit}" if t < 1000 * scale else f"{t / scale:.0f} {unit}"
    return f"{t / 1e-9:.3g} ns"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned; all but the first to the right where they are numbers."""
    widths = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * w for w in widths], *rows]
    return "\n".join("| " + " | ".join(str(c).ljust(w) for c, w in zip(r, widths, strict=True)) + " |" for r in lines)


def place(meta: dict) -> str:
    """When, what and on which machine."""
    versions = ", ".join(f"{k} {v}" if v else f"{k} ABSENT" for k, v in meta["versions"].items())
    lines = [
        f"# Bench, {meta['date']}, commit {meta['commit']}",
        "",
        f"- {meta['cpu']}, {meta['cpus']} CPUs, {meta['threads']} threads for everybody; {meta['system']}",
        f"- Python {meta['python']}, NumPy {meta['numpy']}, {versions}",
        *[f"- BLAS: {b}" for b in meta["blas"]],
        f"- load at the start {meta['load']}",
        *[f"- WARNING: {w}" for w in meta["warnings"]],
    ]
    return "\n".join(lines)


def head(meta: dict) -> str:
    """The machine and the terms."""
    lines = [
        place(meta),
        f"- {meta['rounds']} rounds, samples of about {seconds(meta['target'])}",
        "- a number stands only after value and gradients agreed with float64 NumPy; `ratio` is the median over the",
        "  rounds of time / tapeflow's time; `quiet` is the fastest sample, `busy` the median beside a busy core",
    ]
    return "\n".join(lines)


def workload(result: dict) -> str:
    """The table of one workload."""
    rows = []
    busy = any(r["slower"] for r in result["rows"])
    for r in result["rows"]:
        if r["status"] == "ok":
            ratio = "-" if r["ratio"] is None else f"{r['ratio']:.2f}"
            crowded = [seconds(r["beside"]), f"{r['slower']:.2f}" if r["slower"] else "-"] if busy else []
            cells = [seconds(r["median"]), seconds(r["best"]), ratio, *crowded, seconds(r["first"])]
            cells += [f"{r['error']:.0e}", r["note"]]
        else:
            cells = ["-"] * (7 if busy else 5) + [r["status"]]
        rows.append([r["contender"], r["kind"], *cells])
    lines = [f"## {result['name']}: {result['title']}", f"{result['dtype']}, within {result['tolerance']:.0e}"]
    for name, c in result["controls"].items():
        lines[-1] += f"; {name} {seconds(statistics.median(c))} ({seconds(min(c))} to {seconds(max(c))})"
    crowded = ["busy", "busy / quiet"] if busy else []
    head = ["contender", "kind", "median", "quiet", "ratio", *crowded, "first call", "error", "note"]
    return "\n".join([*lines, "", table(head, rows)])


def micro(results: list[dict]) -> str:
    """The single costs."""
    rows = [[r["name"], r["contender"], r["text"], r.get("note", "")] for r in results]
    return "## Single costs and limits\n\n" + table(["what", "contender", "measured", "how"], rows)


def goals(results: list[dict], micro: list[dict], busy: dict[str, list[str]]) -> str:
    """All goals in one table."""
    rows = []
    disturbed = {name for names in busy.values() for name in names}
    for owner in [*results, *micro]:
        for g in owner.get("goals", []):
            sign = ">=" if g["at_least"] else "<="
            measured = "not measured" if g["measured"] is None else f"{g['measured']:.3g} {g['unit']}"
            verdict = {True: "met", False: "NOT MET", None: "-"}[g["met"]]
            if owner["name"] in disturbed and g["met"] is not None:
                verdict = f"machine busy ({verdict})"
            rows.append([owner["name"], g["what"], f"{sign} {g['limit']:.3g} {g['unit']}", measured, verdict])
    return "## Goals\n\n" + table(["", "what", "goal", "measured", ""], rows)


def controls(results: list[dict], busy: dict[str, list[str]]) -> str:
    """Whether the machine held its speed, and where it did not."""
    lines = []
    for name, slow in busy.items():
        medians = [statistics.median(r["controls"][name]) for r in results]
        lines.append(f"{name}: {seconds(min(medians))} to {seconds(max(medians))} over the run.".capitalize())
        if slow:
            lines.append(f"WARNING: the machine was busy during {', '.join(slow)}; no ratio holds there. Repeat them.")
    return "\n".join(lines)
