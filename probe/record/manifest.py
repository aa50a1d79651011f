"""job.json: what a job was, beside its tables: command line, versions, ranks, settings, and what it was asked.

Written by the recorder when ranks or answers change and every five minutes, read by Recording.  Invariant: it is whole
or not there.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..host.facts import Facts, SamplingSettings
from .stored import FORMAT, sync

NAME = "job.json"
_OF_RANK = (
    "rank", "host", "pid", "world_size", "python", "torch", "torch_cuda", "name", "anchor", "step_ends", "step_source",
    "step_base", "taps", "sampling", "attached_wall_ns",
)  # fmt: skip


def read(folder: Path) -> dict[str, Any]:
    """{} where there is none that can be read; ranks: a dictionary each."""
    with suppress(OSError, ValueError, AttributeError):
        said = json.loads((folder / NAME).read_text(encoding="utf-8"))
        ranks = {rank: each for rank, each in said.get("ranks", {}).items() if isinstance(each, dict)}
        return {**said, "ranks": ranks}
    return {}


def write(folder: Path, said: Mapping[str, Any]) -> None:
    """Ranks of other hosts stay in it.  Raises OSError."""
    ranks = {**read(folder).get("ranks", {}), **said["ranks"]}
    part = folder / f".{NAME}.{socket.gethostname()}.{os.getpid()}.part"
    text = json.dumps({"format": FORMAT, **said, "ranks": ranks}, indent=1, ensure_ascii=False)
    part.write_text(text, encoding="utf-8")
    sync(part)
    os.rename(part, folder / NAME)


def is_of_another_run(folder: Path, ranks: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether it tells of other processes than these ranks have now; of other ranks alone, whether of a job of another
    size."""
    before = read(folder).get("ranks", {})
    both = [(before[rank], now) for rank, now in ranks.items() if rank in before]
    if both:
        return not any(_is_same_process(*each) for each in both)
    sizes, sizes_now = _world_sizes(before), _world_sizes(ranks)
    return bool(sizes and sizes_now) and sizes.isdisjoint(sizes_now)


def _world_sizes(ranks: Mapping[str, Mapping[str, Any]]) -> set[int]:
    """As far as they are known."""
    return {size for each in ranks.values() if (size := each.get("world_size")) is not None}


def _is_same_process(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Pids are used again; a manifest of an earlier version does not tell when a process began."""
    return all(before.get(name) in (None, now[name]) for name in ("host", "pid", "start_ticks"))


def asked(said: Mapping[str, Any], what: str) -> dict[str, Any]:
    """What a recorder was told by the job that it asked (asked.py); {} if that was nothing."""
    told = (record.get(what) for record in said.get("ranks", {}).values())
    return next((each for each in told if each and isinstance(each, dict)), {})


def of_rank(facts: Facts, start_ticks: int | None) -> dict[str, Any]:
    """What is kept of a rank's facts.  start_ticks: when its process began, in clock ticks since its host did."""
    said = {name: getattr(facts, name) for name in _OF_RANK}
    return {
        **said,
        "start_ticks": start_ticks,
        "taps": dict(facts.taps),
        "sampling": facts.sampling and facts.sampling._asdict(),
    }


def facts(said: Mapping[str, Any]) -> list[Facts]:
    """Of the ranks in a manifest, by rank."""
    found = []
    for record in said.get("ranks", {}).values():
        known = {name: value for name, value in record.items() if name in _OF_RANK and value is not None}
        if "sampling" in known:
            known["sampling"] = SamplingSettings(**known["sampling"])
        found.append(Facts(**known))
    return sorted(found, key=lambda each: each.rank or 0)
