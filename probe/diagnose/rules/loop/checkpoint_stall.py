"""Checkpoints for which the training waits."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import figure, pct
from ...measures.outside import is_saving, outside
from ...measures.places import places
from ...measures.spells import Spells, spells
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the time: below that nobody would save less often
_WRITTEN = "SELECT MAX(write_mb_s) AS mb_s FROM host.process_trace WHERE {window}"


def _find(watched: Watched) -> Iterator[Finding]:
    everything = places(watched)
    saving = outside(everything).within(is_saving)
    saves = spells(everything, saving)
    if saves is None or saves.share < LEAST:
        return
    place = saving.innermost(everything.where(lambda stack: not stack.has(is_saving)))
    if saves.count < 2:  # how often it comes is not known
        yield Finding(
            f"A checkpoint took {figure(saves.each_s)} s; no second one was seen in {watched.seconds:.0f} s.",
            remedy=f"probe {watched.endpoint} why --seconds {max(60.0, 4 * watched.seconds):.0f}", severity="hint",
            where=str(place or ""),
        )  # fmt: skip
        return
    yield Finding(
        f"Checkpoint stall: {pct(saves.share)} of the time goes into saving, {saves}.",
        (saves.rank,) if len(watched.ranks) > 1 else (),
        _evidence(watched, saves),
        "Save less often, or in the background with torch.distributed.checkpoint.async_save.",
        seconds=saves.share * watched.step_s, share=saves.share, confidence=saves.sure(LEAST), where=str(place or ""),
        saves=saves.share * watched.step_s / 2, assumes="with half as many checkpoints",
    )  # fmt: skip


def _evidence(watched: Watched, saves: Spells) -> list[str]:
    (written,) = watched.rows(_WRITTEN)
    seen = f"the thread that trains was seen in a function that saves in {saves.count} steps"
    return [seen, *([f"up to {figure(written['mb_s'])} MB/s were written"] if written["mb_s"] else [])]


CHECKPOINT_STALL: Rule[Watched] = Rule(
    "checkpoint-stall",
    "The training waits while checkpoints are written.",
    _find,
    needs=("python.step_trace", "python.profile", "host.process_trace"),
    of=("python-outside-model", "communication-bound", "straggler"),
    sql="SELECT rank, step, SUM(seconds) AS saving FROM python.profile WHERE {window} AND "
    "ARRAY_TO_STRING(stack, ' ') LIKE '%save (torch/serialization.py%' GROUP BY ALL ORDER BY ALL",
)
