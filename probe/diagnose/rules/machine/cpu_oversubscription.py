"""Ranks that compute with more threads than they have cores."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import SilentError
from ...figures import figure, number, pct
from ...measures.hosts import ALLOWED, CORES, Cores, Host, cores, hosts
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.2  # of the time: with as many threads as cores, the watching itself and short daemons cost less


def _find(watched: Watched) -> Iterator[Finding]:
    found, unseen = list[Finding](), list[SilentError]()
    for host in hosts(watched):
        if host.waits < LEAST or not host.threads_compete:
            continue
        known = cores(watched)
        if known is None:
            raise SilentError("The job does not say how many threads it computes with.", code="unseen")
        wanted = known.threads * len(host.ranks)
        if known.threads == 1 or wanted <= known.usable:
            continue
        usable = known.shared(len(host.ranks), host.pids)  # None where each may have cores of its own
        if usable is None:
            message = f"Whether the ranks of {host.name} have cores of their own can be seen there only."
            unseen.append(SilentError(message, code="unseen"))
        elif wanted > usable:
            found.append(_finding(watched, host, known, usable))
    if unseen and not found:
        raise unseen[0]
    yield from found


def _finding(watched: Watched, host: Host, known: Cores, usable: float) -> Finding:
    count = len(host.ranks)
    threads = f"{known.threads} threads" if count == 1 else f"{count} ranks with {known.threads} threads each"
    free = known.total - max(0.0, host.busy * known.total - host.cores)  # of what others use
    wanted = max(1, int(round(min(usable, free)) // count))
    return Finding(
        f"CPU oversubscription: {threads} share {number(usable, 'core')}, and the training waits {pct(host.waits)} of "
        "the time for one.",
        host.ranks,
        why=[
            f"{figure(host.switches_s)} context switches a second; the ranks use {figure(host.cores)} cores, all that "
            f"runs on {host.name} {figure(host.busy * known.total)}",
        ],
        seconds=host.waits * watched.step_s, share=host.waits, confidence=host.sure(LEAST),
        now=f"torch.get_num_threads()={known.threads}", effect="takes effect with the next step",
        remedy=f'probe {watched.endpoint} eval "import torch; torch.set_num_threads({wanted})"',
    )  # fmt: skip


CPU_OVERSUBSCRIPTION: Rule[Watched] = Rule(
    "cpu-oversubscription",
    "The ranks of a host compute with more threads than they have cores.",
    _find,
    needs=("host.process_trace", "python.step_trace"),
    of=("communication-bound", "straggler", "gpu-idle"),
    sql=CORES,
    asks=(ALLOWED,),
)
