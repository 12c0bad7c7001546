"""Profiles as files of others: the Trace Event Format of Chrome and Perfetto, and SVG."""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

from tapeflow.profiling import rates

if TYPE_CHECKING:
    from tapeflow.profiling import Profile, Step

ROWS = 60  # bars of a picture at most: the steps that take longest
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 1200, 330, 250, 18, 70  # pixels
_NEUTRAL = "hsl(0,0%,70%)"  # of what neither moves nor computes
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2


def chrome(profile: Profile) -> str:
    """Complete events ("ph": "X") with ts and dur in microseconds; names of the process and its thread as metadata.

    The fields are those of "Trace Event Format" (Google, 2016).
    """
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": f"tapeflow: {profile.name}"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "steps"}},
    ]
    for step in profile.steps:
        bandwidth, arithmetic, share = rates(step.seconds, step.nbytes, step.flops, profile.bound(step))
        events.append(
            {
                "name": step.name,
                "cat": "step",
                "ph": "X",
                "ts": step.start * 1e6,
                "dur": (step.seconds + step.inside) * 1e6,
                "pid": 1,
                "tid": 1,
                "args": {
                    "ops": " ".join(step.ops),
                    "dtype": step.dtype,
                    "shape": list(step.shape),
                    "own us": step.seconds * 1e6,
                    "bytes": step.nbytes,
                    "flops": step.flops,
                    "GB/s": bandwidth,
                    "GFLOP/s": arithmetic,
                    "bound us": profile.bound(step) * 1e6,
                    "of bound": share,
                    "line": step.line,
                },
            }
        )
    machine = profile.machine
    about = {
        "threads": machine.threads,
        "GB/s": [x / 1e9 for x in machine.bandwidths],
        "GFLOP/s": {dtype: x / 1e9 for dtype, x in machine.peaks.items()},
    }
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}, allow_nan=False, indent=1)


def svg(profile: Profile) -> str:
    """A row for each of the longest steps in the order in which they ran: name, bar, time and share of the bound."""
    longest = sorted(range(len(profile.steps)), key=lambda n: -profile.steps[n].seconds)[:ROWS]
    shown = [profile.steps[n] for n in sorted(longest)]
    end = max([profile.wall, *(s.start + s.seconds + s.inside for s in profile.steps)]) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    height = _TOP + _ROW * (len(shown) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(10, 22, f"{profile.name}: {len(profile.steps)} steps, {profile.seconds * 1e6:.1f} us", "font-size='15'"),
        *_legend(),
        _text(_LEFT, _TOP - 8, "0"),
        _text(_WIDTH - _RIGHT, _TOP - 8, f"{end * 1e6:.1f} us", "text-anchor='end'"),
    ]
    for row, step in enumerate(shown):
        lines += _bar(profile, step, _TOP + _ROW * row, scale)
    rest = len(profile.steps) - len(shown)
    if rest:
        took = profile.seconds - sum(s.seconds for s in shown)
        lines.append(_text(10, height - 5, f"and {rest} shorter steps, {took * 1e6:.1f} us"))
    return "\n".join([*lines, "</svg>", ""])


def _bar(profile: Profile, step: Step, top: int, scale: float) -> list[str]:
    """Name, bar and numbers of a step; the pointer over it shows all that is known of it."""
    bound = profile.bound(step)
    bandwidth, arithmetic, share = rates(step.seconds, step.nbytes, step.flops, bound)
    colour, of_bound = (_colour(share), f"{100 * share:.0f} % of bound") if bound else (_NEUTRAL, "")
    x, width = _LEFT + step.start * scale, max(1.0, (step.seconds + step.inside) * scale)
    name = step.name if len(step.name) <= 44 else step.name[:41] + "..."
    known = (
        f"{' '.join(step.ops)}\n{step.result}\n{step.line}\n{step.nbytes} bytes, {step.flops} flops, "
        f"{bandwidth:.2f} GB/s, {arithmetic:.2f} GFLOP/s\nbound {bound * 1e6:.2f} us"
    )
    return [
        f"<g><title>{_clean(known)}</title>",
        f'<rect x="0" y="{top}" width="{_WIDTH}" height="{_ROW}" fill="white"/>',
        _text(10, top + 13, name),
        f'<rect x="{x:.2f}" y="{top + 2}" width="{width:.2f}" height="{_ROW - 4}" fill="{colour}"/>',
        _text(_WIDTH - _RIGHT + 110, top + 13, f"{step.seconds * 1e6:.2f} us", "text-anchor='end'"),
        _text(_WIDTH - 20, top + 13, of_bound, "text-anchor='end'"),
        "</g>",
    ]


def _legend() -> list[str]:
    """What the colours mean."""
    lines = [_text(10, 46, "share of the bound:")]
    for n in range(11):
        lines.append(f'<rect x="{160 + 14 * n}" y="36" width="14" height="12" fill="{_colour(n / 10)}"/>')
    return [*lines, _text(160, 62, "0"), _text(314, 62, "100 %", "text-anchor='end'")]


def _colour(share: float) -> str:
    """From red at 0 over yellow to green at 1."""
    return f"hsl({120 * min(max(share, 0.0), 1.0):.0f},65%,48%)"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}>{_clean(text)}</text>'


def _clean(text: str) -> str:
    """The text as it may stand in XML."""
    return escape(_NOT_XML.sub("\ufffd", text))
