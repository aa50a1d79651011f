"""What python.tensor_trace lacks, as a note: an agent tells the largest storages of its process one by one.

Called by probe.query.database.  Invariant: nothing is asked that the table has not asked.
"""

from __future__ import annotations

from collections.abc import Iterable

from .. import protocol as wire
from ..snapshot.snapshot import Snapshot
from ..tables.declaration import Table
from ..tables.python.tensor_trace import TABLE
from ..text import some
from .result import UNLISTED, Note


def unlisted(snapshot: Snapshot, scanned: Iterable[Table], endpoint: str) -> tuple[Note, ...]:
    """scanned: the tables that the query read; endpoint: of the job, for the command in the note."""
    answers = snapshot.ask(wire.TENSORS) if TABLE in scanned else {}
    left = {rank.rank: listed for rank, listed in answers.items() if listed["left_storages"]}
    if not left:
        return ()
    ranks, storages = tuple(left), sum(listed["left_storages"] for listed in left.values())
    mb = sum(sum(listed["left_bytes"].values()) for listed in left.values()) / 1e6
    lacks = f"rank {some(ranks)}: without the {storages:,} smallest storages, {mb:.1f} MB in all"
    return (Note(UNLISTED, f"{lacks}: probe {endpoint} memory", ranks),)
