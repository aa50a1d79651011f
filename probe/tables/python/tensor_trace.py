"""python.tensor_trace: every tensor of the job at this moment, and who holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import protocol as wire
from ...arrays.arrow import columns_of
from ...schema import Column, Columns
from ...snapshot.call_steps import CALL
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank
from ...streams import SPANS, STEPS
from ..declaration import IDENTITY, NEVER, Table, identity

if TYPE_CHECKING:
    from ...memory.holders import Tensor


def derive(job: Snapshot) -> Columns:
    from ...memory.holders import tensors_of

    answers = job.ask(wire.TENSORS)
    if any(rank.facts.step_ends == CALL for rank in answers):
        job.ranks_with(STEPS, SPANS)
    rows = [
        {**identity(rank), "step": _step(rank, listed), **_row(tensor)}
        for rank, listed in answers.items()
        if not rank.left
        for tensor in tensors_of(listed)
    ]
    return columns_of(TABLE.columns, rows)


def _step(rank: Rank, listed: Mapping[str, Any]) -> int:
    """The agent counts boundaries; where each call is a step, the reader does."""
    return rank.timeline.running if rank.facts.step_ends == CALL else rank.facts.step_base + listed["count"]


def _row(tensor: Tensor) -> dict[str, Any]:
    return {column.name: getattr(tensor, column.name) for column in TABLE.columns if hasattr(tensor, column.name)}


TABLE = Table(
    name="python.tensor_trace",
    doc="One row per storage of tensors, at the first boundary between two steps after the query: views of the same "
    "memory are one row.  On CUDA also one per block of torch's allocator that no tensor uses, so that all it gave out "
    "is there.  A look takes the training thread some 100 ms.  If no boundary comes within 5 s, it is taken at once, "
    "and gradients and graphs are left out.  `probe ENDPOINT memory` shows the same, folded, and what is not listed.",
    columns=(
        *IDENTITY,
        Column("step", "BIGINT", "", "The step that was about to begin, or that ran if no boundary came; where each "
               "call is a step, the one at the moment of the query.", "boundaries", joins="step everywhere"),
        Column("holder", "VARCHAR", "", "The path that keeps it alive, from a variable of a function (`train().losses"
               "[3]`) or of a module; of what modules own, the path of the parameter or buffer.", "references",
               "It was not looked for: too small a part of what no path leads to."),
        Column("kind", "VARCHAR", "", "What holds it: parameter, gradient, optimizer (its state), buffer, activation "
               "(saved by autograd), variable (the user's, or an attribute or item of it), cache (of a library), "
               "other.", "the last object on the path"),
        Column("module", "VARCHAR", "", "The module that owns it or, of an activation, that made it: the one with the "
               "parameters beside it in the graph, or what lies around it.", "modules, the autograd graph",
               "No module owns it, or none is beside it in the graph.", "module of python.torch_trace"),
        Column("saved_by", "VARCHAR", "", "Autograd's function that has saved it for the backward pass.",
               "the autograd graph", "It is no activation."),
        Column("shape", "VARCHAR", "", "Shape of one of the tensors that use it.", "torch", "A subclass of the job's "
               "tells shapes itself; no tensor uses it."),
        Column("dtype", "VARCHAR", "", "Data type of that tensor.", "torch", "It is a block of a device's allocator "
               "that no tensor uses."),
        Column("device", "VARCHAR", "", "Where the memory is: `cpu`, `cuda:0`.", "torch"),
        Column("bytes", "BIGINT", "B", "Size of the storage; of a block what was asked of the allocator for it.",
               "torch"),
        Column("storage", "VARCHAR", "", "Address of the memory.", "torch"),
    ),
    derive_job=derive,
    final=NEVER,
    question="Which holders have the most memory?",
    example="SELECT rank, kind, holder, ROUND(SUM(bytes) / 1e6, 1) AS mb FROM python.tensor_trace GROUP BY ALL "
    "ORDER BY mb DESC LIMIT 20",
)  # fmt: skip
