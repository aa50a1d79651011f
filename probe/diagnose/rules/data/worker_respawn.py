"""Epochs that are short beside the time for which their workers start."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import ms, pct
from ...measures.loaders import ITERATORS, Loader, expression, loaders
from ...measures.places import places
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step, as for input-bound
_TIMES = 2  # that workers have started on each rank: one start says nothing about how often they do
# They have copies, which know nothing of a set_epoch() or of another collate_fn that come later.
_AS_IT_IS = ": workers keep the dataset and collate_fn as they are then"


def _find(watched: Watched) -> Iterator[Finding]:
    data = watched.phase("data")
    for loader in loaders(watched):
        if loader.workers and loader.iterators >= _TIMES and loader.starting_s >= LEAST * watched.step_s:
            live = expression(watched, loader)
            persist = watched.read(f"{live}.persistent_workers") if live else None
            if persist != "True":
                yield _finding(watched, loader, data.sure(LEAST), live, persist)


def _finding(watched: Watched, loader: Loader, sure: float, live: str | None, persist: str | None) -> Finding:
    ending_s = _ending_s(watched)
    seconds, least_s = loader.starting_s + ending_s, loader.least_starting_s + ending_s
    is_known, share = least_s == seconds, seconds / watched.step_s
    setting = f"vars({live})['persistent_workers'] = True"  # DataLoader forbids to set it in the ordinary way
    epoch = watched.steps / loader.iterators
    return Finding(
        f"Worker respawn: {'' if is_known else 'up to '}{pct(share)} of the time goes into new workers of "
        f"{loader.name} in each epoch of {epoch * loader.batches:.0f} batches.",
        why=[
            f"{loader.workers} workers started {loader.iterators:.0f} times in {watched.steps} steps, and held the "
            f"training up for {ms(seconds * epoch)} each time",
            *([] if is_known else ["none of them makes a second batch: it may be the first one that takes so long"]),
        ],
        remedy=f'probe {watched.endpoint} eval "{setting}"' if live else f"persistent_workers=True{_AS_IT_IS}",
        effect=f"takes effect with the next epoch{_AS_IT_IS}; in the code: DataLoader(…, persistent_workers=True)"
        if live
        else "",
        seconds=seconds, share=share, confidence=sure, severity=None if least_s >= LEAST * watched.step_s else "hint",
        now=f"{loader.now}{f', persistent_workers={persist}' if persist else ''}",
        saves=seconds if is_known else None, assumes="with workers that persist" if is_known else "",
    )  # fmt: skip


def _ending_s(watched: Watched) -> float:
    """For how long, in the mean step, the training waits for workers to end; it is in no phase."""
    if watched.why_not_profiled:
        return 0.0
    ending = places(watched).where(lambda stack: stack.phase in ("other", None))
    whole = places(watched).seconds
    ended = ending.within(lambda frame: "_shutdown_workers (torch/utils/data/" in frame).seconds
    return ended / whole * watched.step_s if whole else 0.0


WORKER_RESPAWN: Rule[Watched] = Rule(
    "worker-respawn",
    "Each epoch starts the loader's workers anew.",
    _find,
    needs=("python.step_trace", "python.dataloader_trace", "python.iterator_trace", "python.profile"),
    of=("input-bound",),
    sql=ITERATORS,
)
