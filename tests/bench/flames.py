"""What a person reads in a flame graph without zooming, as text; from py-spy's `--format raw`, for `peer_tools.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

WIDE = 0.1  # of a process's samples


def flame(raw: str) -> str:
    """What stands out in a flame graph: of each process, from the bottom up, frames with WIDE of its samples."""
    wholes: Counter[str] = Counter()
    widths: dict[str, Counter[str]] = {}
    depths: dict[str, int] = {}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        process, frames = own_frames(stack.split(";"))
        wholes[process] += int(count)
        widths.setdefault(process, Counter()).update(dict.fromkeys(frames, int(count)))
        for depth, frame in enumerate(frames):
            depths[frame] = min(depth, depths.get(frame, depth))
    return "\n".join(
        line
        for process, whole in wholes.most_common()
        for line in (process, *wide_frames(widths[process], whole, depths))
    )


def own_frames(stack: list[str]) -> tuple[str, list[str]]:
    """The process whose stack it is, and its frames; below them stand the processes that have started it."""
    starts = [place for place, frame in enumerate(stack) if frame.startswith("process ")]
    return (stack[starts[-1]], stack[starts[-1] + 1 :]) if starts else ("the process", stack)


def wide_frames(widths: Counter[str], whole: int, depths: Mapping[str, int]) -> list[str]:
    wide = [frame for frame, width in widths.items() if width >= WIDE * whole]
    return [f"{widths[frame] / whole:6.0%}  {frame}" for frame in sorted(wide, key=depths.__getitem__)]
