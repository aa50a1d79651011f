"""A flame graph as a page: one file that a browser opens, without a network.

Written and read by the verb flame; flame.html and flame.js are the page without its data.  Invariant: nothing in the
data can become a part of the page; what is read back is what was written, function by function.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from .flame import Cells, Flame, flame
from .profile_rows import ProfileRows

_FORMAT = "probe-flame-1"
_DATA, _END = '<script type="application/json" id="profile">', "</script>"


@dataclass(frozen=True)
class Side:
    """A profile in a page.  name: of the job or file that it comes from; about: a line about it."""

    name: str
    about: str
    profile: ProfileRows


def page(title: str, sides: Sequence[Side]) -> str:
    """The text of the page, for one profile or for the difference between two."""
    shown = flame([side.profile for side in sides])
    data = {
        "format": _FORMAT, "title": title, "about": [side.about for side in sides], "frames": shown.frames,
        "parent": shown.parent.tolist(), "frame": shown.frame.tolist(), "phases": shown.phases, "ranks": shown.ranks,
        "has_threads": shown.has_threads,
        "sides": [_side(side, shown.cells.of(shown.cells.side == place)) for place, side in enumerate(sides)],
    }  # fmt: skip
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # it stands in strings only
    template, program = (files(__package__).joinpath(f"flame.{end}").read_text("utf-8") for end in ("html", "js"))
    before, _, after = template.replace("{{program}}", program).partition("{{profile}}")
    return f"{before}{text}{after}"


def _side(side: Side, cells: Cells) -> dict[str, Any]:
    return {
        "name": side.name, "ranks": side.profile.ranks, "steps": side.profile.steps,
        "node": cells.node.tolist(), "phase": cells.phase.tolist(), "seconds": np.round(cells.seconds, 9).tolist(),
        "samples": cells.samples.tolist(),
    }  # fmt: skip


def read_page(text: str) -> ProfileRows | None:
    """The profile that a page shows; None if it is no such page.  Raises ValueError, LookupError for a broken one."""
    data = json.loads(text.partition(_DATA)[2].partition(_END)[0] or "{}")
    if data.get("format") != _FORMAT:
        return None
    side = data["sides"][0]
    node, phase, seconds, samples = (np.array(side[name]) for name in ("node", "phase", "seconds", "samples"))
    cells = Cells(node, phase, node * 0, seconds, samples)
    parents, frames = np.array(data["parent"]), np.array(data["frame"])
    if not all((parents[1:] >= 0) & (parents[1:] < np.arange(1, len(parents)))):
        raise ValueError("a node before its parent")
    ranks = data["ranks"] if data["ranks"][1:] else side["ranks"]
    shown = Flame(data["frames"], parents, frames, cells, data["phases"], ranks, data["has_threads"])
    return ProfileRows(shown.rows(), {int(rank): steps for rank, steps in side["steps"].items()})
