"""Workers that make batches more slowly than the training uses them."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import figure, ms, number, pct
from ...measures.hosts import ALLOWED
from ...measures.loaders import BATCHES, Loader, Use, enough_workers, expression, loaders, use
from ...measures.new_workers import ROOM, has_room
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step, as for input-bound
_NONE_READY = 0.2  # of the requests: where nearly always one is ready, workers keep up, and a wait is an exception
_BUSY_PCT = 90.0  # of the host's cores, or those for the job: further workers would find none free
_HOST = "SELECT AVG(host_cpu_pct) AS busy FROM host.process_trace WHERE {window}"


def _find(watched: Watched) -> Iterator[Finding]:
    data = watched.phase("data")
    for loader in loaders(watched)[:1]:
        starved = loader.starved_s / watched.step_s
        if loader.workers and starved >= LEAST and (loader.none_ready or 0.0) >= _NONE_READY:
            yield _finding(watched, loader, data.sure(LEAST))


def _finding(watched: Watched, loader: Loader, sure: float) -> Finding:
    waits_s = max(loader.starved_s, loader.waited_s - loader.starting_s)
    now = use(watched)
    enough, step_s = enough_workers(watched, loader, now)
    busy = _busy(watched, loader, now)
    remedy, effect = _remedy(watched, loader, enough)
    few = f"{loader.workers} worker{'s' * (loader.workers > 1)}"
    return Finding(
        f"Starved: {few} of {loader.name} make{'s' * (loader.workers == 1)} batches too slowly; "
        f"{pct(waits_s / watched.step_s)} of each step waits for one.",
        why=[
            f"no batch was ready for {pct(loader.none_ready or 0.0)} of the requests",
            f"a worker takes about {ms(loader.workers * watched.step_s / loader.batches)} for a batch",
            *([f"{busy}: more workers help only if they wait"] if busy else []),
        ],
        remedy=remedy, effect=effect,
        seconds=waits_s, share=waits_s / watched.step_s, confidence=sure,
        where=f"in the worker processes of {loader.name}, whose functions are not in the profile", now=loader.now,
        saves=None if busy else max(0.0, watched.step_s - step_s), assumes="" if busy else f"with {enough} workers",
    )  # fmt: skip


def _remedy(watched: Watched, loader: Loader, enough: int) -> tuple[str, str]:
    """So many workers, and when they come."""
    live, in_the_code = expression(watched, loader), f"num_workers={enough} in DataLoader"
    if live is None:
        return in_the_code, ""
    if not has_room(watched, enough / loader.workers):
        return in_the_code + ROOM, ""
    persist = watched.read(f"{live}.persistent_workers") == "True"
    anew = f"; {live}._iterator = None" if persist else ""  # or the next epoch takes the workers that there are
    return f'probe {watched.endpoint} eval "{live}.num_workers = {enough}{anew}"', "takes effect with the next epoch"


def _busy(watched: Watched, loader: Loader, now: Use) -> str:
    """That further workers would find no core; '' if they would."""
    (host,) = watched.rows(_HOST)
    if (host["busy"] or 0.0) > _BUSY_PCT:
        return f"the host's cores are {figure(host['busy'])} % busy"
    is_full = 100 * now.part(loader.workers) > _BUSY_PCT
    return f"the job may use no more than {number(now.shared or 0.0, 'core')}" if is_full else ""


STARVED_WORKERS: Rule[Watched] = Rule(
    "starved-workers",
    "The loader's workers make batches more slowly than the training uses them.",
    _find,
    needs=("python.step_trace", "python.dataloader_trace", "python.iterator_trace", "host.process_trace"),
    of=("input-bound",),
    sql=BATCHES,
    asks=(ALLOWED,),
)
