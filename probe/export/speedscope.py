"""A profile as a file of speedscope's format, which speedscope.app and other viewers open.

Written and read by the verb flame.  Each rank is a profile, and each thread of it where there are several.  Invariant:
the weights of a profile add up to its seconds.  They are sums, the heaviest first: their order is not that in time.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from ..text import grouped
from ..version import __version__
from .flame import NO_STACK, flame
from .profile_rows import SCHEMA, ProfileRows

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_EXPORTER = "torch-probe"
_NAME = re.compile(r"rank (\d+)(?:, (.*))?", re.DOTALL)
_MOST_NODES = 100_000  # each sample is written with its whole stack

Row = dict[str, Any]


def speedscope(title: str, taken: ProfileRows) -> str:
    """The text of the file.  Beside the format's own fields, a profile has `steps`, how many its rank made, and
    `counts`, how many samples each weight stands for."""
    rows = sorted(flame([taken], _MOST_NODES).rows().to_pylist(), key=lambda row: -row["seconds"])
    of_threads = grouped(((row["rank"], row["thread"]), row) for row in rows)
    frames: dict[str, int] = {}
    profiles = [
        _profile(f"rank {rank}" + ("" if thread is None else f", {thread}"), of_threads[rank, thread], frames)
        | {"steps": taken.steps.get(rank)}
        for rank, thread in sorted(of_threads, key=lambda one: (one[0], one[1] or ""))
    ]
    file = {
        "$schema": _SCHEMA, "name": title, "exporter": f"{_EXPORTER} {__version__}",
        "shared": {"frames": [_frame(name) for name in frames]}, "profiles": profiles,
    }  # fmt: skip
    return json.dumps(file, separators=(",", ":"))


def _profile(name: str, rows: list[Row], frames: dict[str, int]) -> dict[str, Any]:
    weights = [row["seconds"] for row in rows]
    return {
        "type": "sampled", "name": name, "unit": "seconds", "startValue": 0, "endValue": sum(weights),
        "samples": [[frames.setdefault(each, len(frames)) for each in row["stack"] or [NO_STACK]] for row in rows],
        "weights": weights, "counts": [row["samples"] for row in rows],
    }  # fmt: skip


def _frame(text: str) -> dict[str, str]:
    function, _, file = text.partition(" (")
    return {"name": function, "file": file.removesuffix(")")} if file and function else {"name": text}


def read_speedscope(text: str) -> ProfileRows | None:
    """The profiles of a file that speedscope() wrote, without phases; None if it is none.

    Raises ValueError, LookupError or AttributeError if it is broken.
    """
    file = json.loads(text)
    if not str(file.get("exporter")).startswith(_EXPORTER):
        return None
    names = [
        f"{each['name']} ({each['file']})" if "file" in each else each["name"] for each in file["shared"]["frames"]
    ]
    rows, steps = [], {}
    for profile in file["profiles"]:
        match = _NAME.fullmatch(profile["name"])
        if match is None:
            raise ValueError("a profile of no rank")
        rank, steps[int(match[1])] = int(match[1]), profile["steps"]
        for sample, seconds, count in zip(profile["samples"], profile["weights"], profile["counts"], strict=True):
            stack = [names[frame] for frame in sample]
            known = None if stack == [NO_STACK] else stack
            rows.append({"rank": rank, "thread": match[2], "stack": known, "seconds": seconds, "samples": count})
    return ProfileRows(pa.Table.from_pylist(rows, SCHEMA), {rank: each for rank, each in steps.items() if each})
