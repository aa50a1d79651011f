"""Steps that wait for the data loader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....text import title
from ...figures import ms, pct
from ...measures.hosts import ALLOWED
from ...measures.loaders import BATCHES, Loader, expression, loaders, workers_for
from ...measures.new_workers import DAEMON, DEVICE, FILE, ROOM, SHM, START, STREAM, why_not
from ...measures.places import EXPLAINS, places
from ...rule import Finding, Rule
from ...watched import Phase, Watched

LEAST = 0.03  # of the step: below that nobody would change the loader
_SHARES = (
    "SELECT rank, SUM(data_duration) / SUM(duration) AS share FROM python.step_trace WHERE {window} AND "
    "data_duration IS NOT NULL AND COALESCE(eval_duration, 0) = 0 GROUP BY rank ORDER BY share DESC"
)
_IN_THE_CODE = {
    STREAM: ", and a part of the stream for each (torch.utils.data.get_worker_info)",
    DEVICE: ", with a dataset and a collate_fn that leave the device alone: a forked worker cannot use it; or, where "
    "all samples are on the device, whole batches by their indices, without a DataLoader",
    FILE: ", with a dataset that opens its file in the worker, at the first sample: forked workers share what is open, "
    "and where it is being read",
    DAEMON: ", in a process that may have children: this one is daemonic (multiprocessing.Process with daemon=False)",
    START: ", with a dataset and a collate_fn that can be pickled, in a script that starts under if __name__ == "
    "'__main__': workers are not forked here",
    SHM: ROOM,
}
_SOME = 3  # times as long as the least: only some ranks wait, and the others wait for these
_NOT_READY = 0.5  # of the waits: below that, workers keep up, and it is taking batches over that takes the time


def _find(watched: Watched) -> Iterator[Finding]:
    data, found = watched.phase("data"), loaders(watched)
    if not found or data.share < LEAST:
        return
    first = found[0]
    name = first.name if first.waited_s >= EXPLAINS * sum(each.waited_s for each in found) else _names(found)
    why = [f"data {ms(data.seconds)} ({ms(data.low)} to {ms(data.high)}) of {ms(watched.step_s)}"]
    if first.none_ready is not None:
        why += [f"no batch was ready for {pct(first.none_ready)} of the requests"]
    if first.workers and first.firsts_s > EXPLAINS * data.seconds:
        epoch_s = first.firsts_s * watched.steps / first.iterators
        why += [f"{ms(epoch_s)} of that at the start of each epoch, for its first batch"]
    finding = Finding(
        f"Input-bound: {pct(data.share)} of each step waits for {name}.", why=why, seconds=data.seconds,
        share=data.share, confidence=data.sure(LEAST), where=_where(watched, first), now=first.now,
    )  # fmt: skip
    yield _with_severity(watched, _with_remedy(watched, finding, first, data), first, data)


def _names(found: list[Loader]) -> str:
    return " and ".join(each.name for each in found[:2])


def _with_remedy(watched: Watched, finding: Finding, loader: Loader, data: Phase) -> Finding:
    """Workers, where there are none; rules on workers say what to do where there are."""
    if loader.workers:
        return finding
    more, step_s = workers_for(watched, loader)
    path = expression(watched, loader)
    hindered = None if path is None else why_not(watched, path)
    live = path if hindered == "" else None
    # A loader of validation is waited for in few steps, and what is made on a device takes another time on the CPU.
    known = loader.steps > 0.5 and hindered != DEVICE
    setting = f"{live}.num_workers, {live}.prefetch_factor = {more}, 2"
    in_the_code = f"num_workers={more} in DataLoader{_IN_THE_CODE.get(hindered or '', '')}"
    return replace(
        finding,
        remedy=f'probe {watched.endpoint} eval "{setting}"' if live else in_the_code,
        effect="takes effect with the next epoch" if live else "",
        saves=max(0.0, watched.step_s - step_s) if known else None,
        assumes=f"with {more} worker{'s' * (more > 1)}" if known else "",
    )


def _with_severity(watched: Watched, finding: Finding, loader: Loader, data: Phase) -> Finding:
    shares = watched.rows(_SHARES)
    late = tuple(sorted(row["rank"] for row in shares if _SOME * row["share"] > shares[0]["share"]))
    if len(late) < len(shares):
        share = sum(row["share"] for row in shares if row["rank"] in late) / len(late)
        sentence = f"Input-bound in part: {title(late)}: {pct(share)} of each step waits for {loader.name}."
        return replace(finding, sentence=sentence, ranks=late, severity="hint")
    not_ready = loader.starved_s + loader.firsts_s
    return replace(finding, severity="hint") if loader.workers and not_ready < _NOT_READY * data.seconds else finding


def _where(watched: Watched, loader: Loader) -> str:
    """The function that makes batches; that of a worker process is not in the profile."""
    if watched.why_not_profiled or loader.workers:
        return ""
    everything = places(watched)
    making = everything.where(lambda stack: stack.phase == "data")
    place = making.deepest()
    others = everything.where(lambda stack: stack.phase in ("forward", "backward", "optimizer"))
    if place is None or others.share(place.is_at) > 0.5:  # the loop that asks for batches
        return ""
    return f"{pct(place.share)} of the loader's time is in {place}"


INPUT_BOUND: Rule[Watched] = Rule(
    "input-bound",
    "Steps wait for batches.",
    _find,
    needs=("python.step_trace", "python.dataloader_trace", "python.iterator_trace", "python.profile"),
    of=("gpu-idle",),
    sql=BATCHES,
    asks=(ALLOWED,),
)
