"""One rank of a gloo job, on a played CUDA that is left alone, and with a group of a backend that was not tested.

usage: RANK=… WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python devices_left_alone.py OUT
Writes OUT/<rank>.json: scenario -> what it returned.
"""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from collectives import Recorder, an_eval
from naps import RealClock
from played_cuda import PlayedCuda, played_cuda
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (makes the backend `fake`)

from probe.agent.taps import device_policy
from probe.agent.taps.collectives.flight_recorder import dumps, groups

Told = dict[str, Any]
OPERATIONS = 50


@contextmanager
def recorder() -> Iterator[Any]:
    """A tap of its own, put in and taken out."""
    made = Recorder()  # type: ignore[no-untyped-call]
    made.tap.install()
    try:
        yield made
    finally:
        assert made.tap.remove()


def posted() -> tuple[list[Any], list[Any]]:
    """Receives of rank 0 from rank 1 that are under way, and their tensors; none on rank 1, which sends later."""
    tensors = [torch.zeros(4) for _ in range(OPERATIONS)] if dist.get_rank() == 0 else []
    return [dist.irecv(tensor, 1) for tensor in tensors], tensors


def come(works: list[Any], tensors: list[Any]) -> float:
    """Send, or wait for, what was posted; the sum of what has come."""
    if dist.get_rank() == 1:
        for number in range(OPERATIONS):
            dist.send(torch.full((4,), float(number)), 0)
    for work in works:
        work.wait()
    return float(sum(tensor.sum().item() for tensor in tensors))


def alive(references: list[weakref.ref[Any]]) -> int:
    """How many stay alive; gloo's own threads let go of theirs a moment later."""
    end = time.monotonic() + 3
    while (count := sum(reference() is not None for reference in references)) and time.monotonic() < end:
        time.sleep(0.01)
    return count


def held(tap: Any) -> int:
    return len(tap._works._polled) + len(tap._works._unchecked)


def told(tap: Any) -> Told:
    return {"why_off": tap.why_off, "recording": tap.recording, "held": held(tap), "since_ns": tap.since_ns}


def operations() -> list[weakref.ref[Any]]:
    """Fifty to wait for later and fifty between two ranks; what is left of their Works and tensors."""
    references = list[weakref.ref[Any]]()
    for _ in range(OPERATIONS):
        tensor = torch.ones(4)
        work = dist.all_reduce(tensor, async_op=True)
        references += [weakref.ref(tensor), weakref.ref(work)]
        work.wait()
        del tensor, work
    works, tensors = posted()
    references += map(weakref.ref, [*works, *tensors])
    come(works, tensors)
    return references


def refusals(made: Any, group: Any = None) -> list[str | None]:
    """What an all_reduce says in an eval on rank 0 alone, in one at once and in one on both."""
    found = list[str | None]()
    for ranks, where in (([0], "boundary"), (None, "now"), ([0, 1], "boundary")):
        made.eval = an_eval(ranks, where)
        try:
            dist.all_reduce(torch.ones(2), group=group)
            found.append(None)
        except RuntimeError as error:
            found.append(str(error))
    made.eval = None
    return found


def in_use(played: PlayedCuda) -> Told:
    """CUDA is in use before the tap comes."""
    wait = dist.Work.__dict__["wait"]
    with recorder() as made:
        left = alive(operations())
        rows = made.stream.position()
        same_wait = dist.Work.__dict__["wait"] is wait
        return {"rows": rows, "alive": left, "same_wait": same_wait, "refused": refusals(made), **told(made.tap)}


def as_usual(played: PlayedCuda) -> Told:
    """The same without --no-devices."""
    device_policy.leave_all_alone(False)
    with recorder() as made:
        operations()
        return {"rows": made.stream.position(), "dumps": len(dumps()[0]), **told(made.tap)}


def recorder_dumps(played: PlayedCuda) -> Told:
    calls = list[str]()
    c10d = sys.modules["torch._C._distributed_c10d"]

    def counted(name: str) -> Callable[[], str]:
        return lambda: calls.append(name) or "{}"  # type: ignore[func-returns-value]

    names = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
    with patch.multiple(c10d, create=True, **{name: counted(name) for name in names}):
        texts, why_not = dumps()
        on_cuda = list(calls)
        played.initialized = False
        dumps()
    return {"texts": texts, "why_not": why_not, "on_cuda": on_cuda, "calls": calls, "groups": groups()}


def comes_later(played: PlayedCuda) -> Told:
    """CUDA comes into use while operations of gloo are under way: they are let go, and taken back."""
    played.initialized = False
    with recorder() as made:
        dist.barrier()
        works, tensors = posted()
        before = {"rows": made.stream.position(), **told(made.tap)}
        played.initialized = True
        data = torch.ones(4)
        dist.all_reduce(data)  # comes after them on rank 0, and before the sends on rank 1
        at_once = told(made.tap)
        status = forked(made)
        made.tap.drain()
        after = told(made.tap)
        rows = [row for row in made.rows_of(made.stream, 0) if row["seq"]]
        sums = [data.sum().item(), come(works, tensors)]
        made.tap.drain()
        return {
            "before": before, "at_once": at_once, "after": after, "status": status, "sums": sums,
            "rows": len(rows), "in_flight": sum(not row["done_ns"] for row in rows), "at_the_end": held(made.tap),
        }  # fmt: skip


def forked(made: Any) -> int:
    """How a child ends that was forked while works were held."""
    child = os.fork()
    if child == 0:
        made.tap.forked()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def another_backend(played: PlayedCuda) -> Told:
    """The first operation of a group that is not one of the CPU's comes after the tap; torch.cuda is not in use."""
    device_policy.leave_all_alone(False)
    played.initialized = False
    with recorder() as made:
        dist.all_reduce(torch.ones(4))
        before = {"rows": made.stream.position(), **told(made.tap)}
        group = dist.new_group(backend="fake")
        works = [dist.all_reduce(torch.ones(4), group=group, async_op=True)]
        references = [weakref.ref(works[0])]
        at_once = {"rows": made.stream.position(), **told(made.tap)}
        works.clear()
        refused, left = refusals(made, group), alive(references)
        made.tap.drain()
        why_no_dumps = dumps()[1]
        dist.destroy_process_group(group)
        return {
            "before": before, "at_once": at_once, "refused": refused, "alive": left, "why_no_dumps": why_no_dumps,
            "after": told(made.tap),
        }  # fmt: skip


def another_backend_that_is_silent(played: PlayedCuda) -> Told:
    """Such a group is there and nothing is sent in it: the agent's thread sees it."""
    device_policy.leave_all_alone(False)
    played.initialized = False
    with recorder() as made:
        group = dist.new_group(backend="fake")
        made.tap.drain()
        after = told(made.tap)
        dist.destroy_process_group(group)
    with recorder() as made:
        dist.all_reduce(torch.ones(4))
        return {"after": after, "without": {"rows": made.stream.position(), **told(made.tap)}}


SCENARIOS = (
    in_use, as_usual, recorder_dumps, comes_later, another_backend, another_backend_that_is_silent,
)  # fmt: skip


def main(out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    with played_cuda(RealClock(), left_alone=True) as played:
        for scenario in SCENARIOS:
            device_policy.leave_all_alone(True)
            played.initialized = True
            dist.barrier()
            results[scenario.__name__] = scenario(played)
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(results))
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
