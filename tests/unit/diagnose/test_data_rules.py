"""Rules on batches, on planted rows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from planted import MS, Planted

from probe.diagnose.measures.hosts import Cores
from probe.diagnose.measures.loaders import loaders, use
from probe.diagnose.rule import Finding
from probe.diagnose.rules.data.input_bound import INPUT_BOUND
from probe.diagnose.rules.data.starved_workers import STARVED_WORKERS
from probe.diagnose.rules.data.worker_respawn import WORKER_RESPAWN
from probe.diagnose.why import judge
from probe.host.facts import Facts


def loads(
    planted: Planted, *, workers: int, wait_ms: float, ready: int | None = None, count: int = 200, epoch: int = 0,
    first_ms: float = 0.0, rank: int = 0, loader: str = "train_loader", every: int = 1,
) -> Planted:  # fmt: skip
    """A batch in each of these steps; an iterator every `epoch` of them, whose first batch takes longer."""
    steps = range(1, count + 1, every)
    starts = [step for step in steps if epoch and step % epoch == 1]
    rows = [
        {"step": step, "rank": rank, "loader": loader, "num_workers": workers, "batch_size": 16, "pin_memory": False,
         "failed": False, "wait_duration": (first_ms if step in starts else wait_ms) * MS,
         "ready": 0 if step in starts else ready}
        for step in steps
    ]  # fmt: skip
    iterators = [
        {"step": step, "rank": rank, "loader": loader, "num_workers": workers, "start_duration": 100 * MS,
         "first_batch_duration": first_ms * MS} for step in starts
    ]  # fmt: skip
    planted.plant("python.dataloader_trace", rows)
    return planted.plant("python.iterator_trace", iterators) if iterators else planted


ROOM = f"[0, {1 << 40}]"  # in /dev/shm: used, and free


def is_there(expression: str) -> str:
    """Reads the job: each loader is in the variable that has its name, nothing is wrapped or set, and there is room."""
    return ROOM if "f_blocks" in expression else "False"


def one(findings: Iterable[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_slow_loader_without_workers_is_found_with_its_function_and_remedy() -> None:
    stack = ("main (train.py:9)", "__next__ (torch/utils/data/dataloader.py:7)", "build_graph (train.py:41)")
    planted = loads(Planted().steps(data=60, forward=8, backward=10, other=2), workers=0, wait_ms=60)
    planted.profile(("data", 9.0, stack), ("data", 1.0, stack[:2]), ("forward", 9.0, stack[:1]))
    (found,) = INPUT_BOUND.find(planted.watched(read=is_there))
    assert found.sentence == "Input-bound: 75 % of each step waits for train_loader."
    assert found.where == "90 % of the loader's time is in build_graph (train.py:41)"
    assert found.now == "train_loader: num_workers=0, batch_size=16, pin_memory=False"
    assert found.remedy.startswith('probe 4242 eval "train_loader.num_workers, ')
    assert found.seconds is not None and abs(found.seconds - 0.06) < 0.002
    assert found.confidence is not None and found.confidence > 0.99


@pytest.mark.parametrize(
    ("path", "is_wrapper", "live"),
    [
        ("train_loader", "True", "train_loader.base_dataloader"),  # accelerate's
        ("trainer.train_loader", "False", "trainer.train_loader"),
        ("trainer.callback_handler.train_loader", "True", "trainer.callback_handler.train_loader.base_dataloader"),
    ],
)
def test_a_loader_is_set_where_the_job_or_its_trainer_has_it(path: str, is_wrapper: str, live: str) -> None:
    def read(expression: str) -> str | None:
        return "''" if "_why_not" in expression else is_wrapper if f"({path}, " in expression else None

    planted = loads(Planted().steps(data=60, forward=8), workers=0, wait_ms=60).profile()
    remedy = one(INPUT_BOUND.find(planted.watched(read=read))).remedy
    assert remedy.startswith(f'probe 4242 eval "{live}.num_workers, {live}.prefetch_factor = ')


def test_a_loader_that_an_eval_does_not_reach_is_set_in_the_code() -> None:
    planted = loads(Planted().steps(data=60, forward=8), workers=0, wait_ms=60).profile()
    found = one(INPUT_BOUND.find(planted.watched()))
    assert "num_workers" in found.remedy and "eval" not in found.remedy and not found.effect


def test_a_stream_gets_no_workers_that_would_all_yield_the_whole_of_it() -> None:
    def read(expression: str) -> str:
        return "'stream'" if "IterableDataset" in expression else "False"

    planted = loads(Planted().steps(data=60, forward=8), workers=0, wait_ms=60).profile()
    found = one(INPUT_BOUND.find(planted.watched(read=read)))
    assert "num_workers" in found.remedy and "get_worker_info" in found.remedy
    assert "eval" not in found.remedy and not found.effect


@pytest.mark.parametrize(
    ("told", "change"),
    [
        ("'device'", "leave the device alone"),
        ("'file'", "opens its file in the worker"),
        ("'daemon'", "may have children"),
        ("'start'", "can be pickled"),
        ("'shm'", "room in /dev/shm"),
        (None, "in DataLoader"),
    ],
)
def test_workers_that_would_end_the_training_are_no_live_remedy(told: str | None, change: str) -> None:
    def read(expression: str) -> str | None:
        return told if "_why_not" in expression else "False"

    planted = loads(Planted().steps(data=60, forward=8), workers=0, wait_ms=60).profile()
    found = one(INPUT_BOUND.find(planted.watched(read=read)))
    assert "num_workers" in found.remedy and change in found.remedy and "eval" not in found.remedy and not found.effect
    assert (found.saves is None) == (told == "'device'")


def test_workers_that_persist_are_let_go_so_that_more_can_come() -> None:
    def read(expression: str) -> str:
        return "True" if expression.endswith(".persistent_workers") else is_there(expression)

    planted = loads(Planted().steps(noise=0, data=60, forward=60), workers=2, wait_ms=60, ready=0).profile()
    planted.plant("host.process_trace", [{"step": 50, "host_cpu_pct": 50.0}])
    remedy = one(STARVED_WORKERS.find(planted.watched(read=read))).remedy
    assert remedy == 'probe 4242 eval "train_loader.num_workers = 5; train_loader._iterator = None"'


@pytest.mark.parametrize("memory", [f"[0, {64 << 20}]", f"[{9 << 30}, {20 << 30}]", None])
def test_more_workers_than_there_is_room_for_are_no_live_remedy(memory: str | None) -> None:
    planted = loads(Planted().steps(noise=0, data=60, forward=60), workers=2, wait_ms=60, ready=0).profile()
    planted.plant("host.process_trace", [{"step": 50, "host_cpu_pct": 50.0}])
    found = one(STARVED_WORKERS.find(planted.watched(read=lambda asked: memory if "f_blocks" in asked else "False")))
    assert found.remedy.startswith("num_workers=5 in DataLoader, with room in /dev/shm") and not found.effect


@pytest.mark.parametrize(("elsewhere", "is_live"), [(ROOM, True), (f"[0, {64 << 20}]", False), (None, False)])
def test_workers_are_a_live_remedy_only_where_every_host_has_room(elsewhere: str | None, is_live: bool) -> None:
    """The remedy runs on all ranks, and a worker that finds no room ends by a bus error."""
    where: dict[str, Any] = {"read": is_there, "elsewhere": lambda asked: [ROOM, elsewhere]}
    planted = loads(Planted().steps(noise=0, data=60, forward=60), workers=2, wait_ms=60, ready=0).profile()
    planted.plant("host.process_trace", [{"step": 50, "host_cpu_pct": 50.0}])
    starved = one(STARVED_WORKERS.find(planted.watched(**where)))
    where["read"] = lambda asked: "''" if "_why_not" in asked else is_there(asked)
    planted = loads(Planted().steps(data=60, forward=8), workers=0, wait_ms=60).profile()
    for found in (starved, one(INPUT_BOUND.find(planted.watched(**where)))):
        assert ("eval" in found.remedy, "room in /dev/shm" in found.remedy) == (is_live, not is_live)


def test_a_loader_that_takes_little_is_left_alone() -> None:
    planted = loads(Planted().steps(data=1, forward=40, backward=40), workers=0, wait_ms=1).profile()
    assert not list(INPUT_BOUND.find(planted.watched()))


def computing(planted: Planted, **columns: float) -> Planted:
    return planted.plant("host.process_trace", [{"step": 50, **columns}])


def test_a_loader_that_waits_for_storage_gains_by_more_workers_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    planted = loads(Planted().steps(noise=0, data=90, forward=30), workers=0, wait_ms=90).profile()
    found = one(INPUT_BOUND.find(computing(planted, cpu_pct=25).watched()))
    assert found.assumes == "with 4 workers" and found.saves == pytest.approx(0.09)


def test_a_loader_that_computes_gains_no_more_than_the_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    planted = loads(Planted().steps(noise=0, data=90, forward=30), workers=0, wait_ms=90).profile()
    found = one(INPUT_BOUND.find(computing(planted, cpu_pct=100).watched()))
    assert found.assumes == "with 2 workers" and found.saves == pytest.approx(0.06)


@pytest.mark.parametrize(("cpu_pct", "waits_pct", "host_pct", "saves"), [(100, 0, 75, 0.04), (50, 50, 100, 0.0)])
def test_cores_that_others_use_make_no_batches(
    monkeypatch: pytest.MonkeyPatch, cpu_pct: float, waits_pct: float, host_pct: float, saves: float
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    planted = loads(Planted().steps(noise=0, data=90, forward=30), workers=0, wait_ms=90).profile()
    computing(planted, cpu_pct=cpu_pct, core_wait_pct=waits_pct, host_cpu_pct=host_pct)
    found = one(INPUT_BOUND.find(planted.watched()))
    assert found.assumes == "with 2 workers" and found.saves == pytest.approx(saves, abs=1e-9)


def test_a_busy_host_does_not_keep_workers_from_waiting_for_storage() -> None:
    planted = loads(Planted().steps(noise=0, data=90, forward=30), workers=0, wait_ms=90).profile()
    found = one(INPUT_BOUND.find(computing(planted, cpu_pct=25, host_cpu_pct=100).watched()))
    assert found.assumes == "with 4 workers" and found.saves == pytest.approx(0.09)


def test_the_first_batch_of_a_short_epoch_is_waited_for_with_workers_too() -> None:
    planted = loads(Planted().steps(noise=0, data=80, forward=40), workers=0, wait_ms=80, epoch=8, first_ms=80)
    found = one(INPUT_BOUND.find(computing(planted.profile(), cpu_pct=30).watched()))
    assert found.assumes == "with 3 workers" and found.saves == pytest.approx(0.07)


def test_the_loop_that_asks_for_batches_is_not_where_they_are_made() -> None:
    collate = ("train (train.py:9)", "default_collate (torch/utils/data/_utils/collate.py:7)")
    planted = loads(Planted().steps(data=60, forward=40), workers=0, wait_ms=60)
    planted.profile(("data", 6.0, collate), ("backward", 4.0, ("train (train.py:12)",)))
    assert one(INPUT_BOUND.find(planted.watched())).where == ""


def test_what_a_loader_of_validation_gains_is_not_estimated() -> None:
    planted = loads(Planted().steps(data=30, forward=70), workers=0, wait_ms=600, every=20, loader="val_loader")
    found = one(INPUT_BOUND.find(planted.profile().watched()))
    assert found.sentence == "Input-bound: 30 % of each step waits for val_loader." and found.saves is None


def test_workers_that_keep_up_are_a_hint_even_if_taking_batches_over_takes_long() -> None:
    planted = loads(Planted().steps(data=15, forward=85), workers=2, wait_ms=15, ready=4).profile()
    assert one(INPUT_BOUND.find(planted.watched())).severity == "hint"
    assert not list(STARVED_WORKERS.find(planted.watched()))


def test_a_rank_that_waits_alone_is_a_hint_for_the_others_wait_for_it() -> None:
    planted = loads(Planted().steps(data=60, forward=40), workers=0, wait_ms=60)
    planted = loads(planted.steps(ranks=(1,), data=2, forward=40, comm=58), workers=0, wait_ms=2, rank=1).profile()
    found = one(INPUT_BOUND.find(planted.watched()))
    assert (found.severity, found.ranks) == ("hint", (0,))
    assert found.sentence == "Input-bound in part: rank 0: 60 % of each step waits for train_loader."


def test_workers_that_are_too_slow_are_found_with_how_many_it_takes() -> None:
    planted = loads(
        Planted().steps(noise=0, data=60, forward=30, backward=30), workers=2, wait_ms=60, ready=0
    ).profile()
    planted.plant("host.process_trace", [{"step": 50, "host_cpu_pct": 50.0}])
    found = one(STARVED_WORKERS.find(planted.watched(read=is_there)))
    assert found.sentence == (
        "Starved: 2 workers of train_loader make batches too slowly; 50 % of each step waits for one."
    )
    assert found.remedy == 'probe 4242 eval "train_loader.num_workers = 5"'
    assert found.saves == pytest.approx(0.06, rel=0.03) and "a worker takes about 240 ms for a batch" in found.why
    told = judge(planted.watched(), [INPUT_BOUND, STARVED_WORKERS, WORKER_RESPAWN])
    assert [each.code for each in told.findings] == ["starved-workers"]


def test_workers_gain_no_more_than_the_cores_of_the_host_allow() -> None:
    planted = loads(Planted().steps(noise=0, data=60, forward=60), workers=2, wait_ms=60, ready=0).profile()
    computing(planted, cpu_pct=50, host_cpu_pct=80)
    assert one(STARVED_WORKERS.find(planted.watched())).saves == pytest.approx(0.2 * 0.12)


def test_on_a_host_without_a_free_core_no_gain_is_promised() -> None:
    planted = loads(Planted().steps(data=60, forward=60), workers=2, wait_ms=60, ready=0).profile()
    planted.plant("host.process_trace", [{"step": 50, "host_cpu_pct": 99.0}])
    found = one(STARVED_WORKERS.find(planted.watched()))
    assert found.saves is None and "the host's cores are 99 % busy: more workers help only if they wait" in found.why


def respawning(epoch: int) -> Planted:
    """Two workers that keep up, and take 400 ms for each start."""
    data_ms = 400 / epoch + 1
    planted = Planted().steps(400, noise=0, data=data_ms, forward=40, backward=50)
    return loads(planted, workers=2, wait_ms=1, ready=4, count=400, epoch=epoch, first_ms=301)


def test_workers_that_start_in_each_epoch_are_found() -> None:
    ending = (
        "other",
        0.04,
        ("train (train.py:9)", "_MultiProcessingDataLoaderIter._shutdown_workers (torch/utils/data/d.py:9)"),
    )
    planted = respawning(8).profile(("backward", 0.96, ("train (train.py:12)",)), ending)
    found = one(WORKER_RESPAWN.find(planted.watched(read=is_there)))
    assert found.sentence == (
        "Worker respawn: 39 % of the time goes into new workers of train_loader in each epoch of 8 batches."
    )
    assert found.remedy == "probe 4242 eval \"vars(train_loader)['persistent_workers'] = True\""
    assert ": workers keep the dataset and collate_fn as they are then; in the code" in found.effect
    assert found.saves == pytest.approx(0.05 + 0.04 * 0.14, rel=0.03)
    told = judge(planted.watched(), [INPUT_BOUND, STARVED_WORKERS, WORKER_RESPAWN])
    assert [each.code for each in told.findings] == ["worker-respawn"]


def test_workers_that_persist_in_the_code_keep_their_dataset_too() -> None:
    found = one(WORKER_RESPAWN.find(respawning(8).profile().watched()))
    assert found.remedy == "persistent_workers=True: workers keep the dataset and collate_fn as they are then"


def test_workers_that_persist_are_left_alone() -> None:
    assert not list(WORKER_RESPAWN.find(respawning(8).watched(read=lambda expression: "True")))


def test_long_epochs_are_left_alone() -> None:
    assert not list(WORKER_RESPAWN.find(respawning(200).watched()))


def test_a_single_start_says_nothing_about_how_often_workers_start() -> None:
    planted = Planted().steps(100, noise=0, data=31, forward=40)
    loads(planted, workers=2, wait_ms=1, ready=4, count=100, epoch=100, first_ms=3000)
    assert not list(WORKER_RESPAWN.find(planted.watched()))


def filling(workers: int, batches: int, epochs: int = 20) -> Planted:
    """Workers that keep up and take 600 ms for a batch, the first of which is waited for; 80 ms for their start."""
    planted = Planted().steps(epochs * batches, noise=0, data=680 / batches, forward=100)
    at = [(epoch * batches + batch + 1, batch) for epoch in range(epochs) for batch in range(batches)]
    of = {"loader": "train_loader", "num_workers": workers}
    started = {"start_duration": 80 * MS, "first_batch_duration": 600 * MS}
    planted.plant("python.iterator_trace", [{**of, **started, "step": step} for step, batch in at if not batch])
    rows = [
        {**of, "step": step, "failed": False, "wait_duration": 0.0 if batch else 600 * MS,
         "outstanding": batches - batch, "ready": min(batches, workers * (1 + batch // 6)) - batch if batch else 0}
        for step, batch in at
    ]  # fmt: skip
    return planted.plant("python.dataloader_trace", rows).profile()


def test_a_first_batch_that_takes_workers_long_is_not_their_start() -> None:
    watched = filling(8, 13).watched(read=is_there)
    (loader,) = loaders(watched)
    assert loader.starting_s == loader.least_starting_s == pytest.approx(80 * MS / 13)
    respawn = one(WORKER_RESPAWN.find(watched))
    assert respawn.saves == pytest.approx(80 * MS / 13) and "held the training up for 80 ms each time" in respawn.why[0]
    told = judge(watched, [INPUT_BOUND, STARVED_WORKERS, WORKER_RESPAWN])
    assert told.code == "input-bound" and told.findings[0].severity == "critical"
    assert "680 ms of that at the start of each epoch, for its first batch" in told.findings[0].finding.why


def test_of_workers_that_make_one_batch_each_it_is_told_what_their_start_may_take() -> None:
    found = one(WORKER_RESPAWN.find(filling(8, 8).watched(read=is_there)))
    assert found.sentence.startswith("Worker respawn: up to 46 % of the time") and found.saves is None
    assert "it may be the first one that takes so long" in found.why[1]
    assert found.severity is None  # 80 ms of it, at least
    (loader,) = loaders(filling(8, 8).watched())
    assert loader.least_starting_s == pytest.approx(80 * MS / 8)


def test_first_batches_of_workers_that_are_too_slow_are_waited_for_as_others_are() -> None:
    planted = loads(
        Planted().steps(noise=0, data=70, forward=60), workers=2, wait_ms=60, ready=0, epoch=20, first_ms=160
    )
    (starved,) = loaders(planted.watched())
    assert starved.starting_s == pytest.approx(100 * MS / 20) and starved.iterators == 10


def test_workers_that_fail_to_keep_up_once_in_a_while_are_not_too_few() -> None:
    planted = loads(Planted().steps(noise=0, data=40, forward=60), workers=2, wait_ms=1, ready=4)
    loads(planted, workers=2, wait_ms=600, ready=0, every=20)
    assert one(INPUT_BOUND.find(planted.profile().watched())).severity is None
    assert not list(STARVED_WORKERS.find(planted.watched()))


def test_cores_of_another_host_are_those_that_the_job_sees() -> None:
    planted = Planted(agents=[Facts(rank=0, host="elsewhere")]).steps(100, data=60)
    assert use(planted.watched(read=lambda _: "(64, 64, 8, [])")).cores.usable == 64
    unknown = use(planted.watched())
    assert (unknown.cores.usable, unknown.shared, unknown.part(8)) == (1, None, 0.0)


def may_use(allowed: int, quota: str = "max 100000\n") -> Callable[[str], str]:
    """Reads a job on a host with 64 cores."""
    return lambda expression: repr((64, allowed, 1, [quota])) if "cpu_count" in expression else is_there(expression)


@pytest.mark.parametrize(
    ("allowed", "quota", "workers", "step_s"),
    [(64, "max 100000", 8, 0.09 / 8), (4, "max 100000", 4, 0.1 / 4), (64, "200000 100000", 2, 0.1 / 2)],
)
def test_a_loader_that_computes_gains_no_more_than_the_cores_that_the_job_may_use(
    allowed: int, quota: str, workers: int, step_s: float
) -> None:
    planted = loads(Planted().steps(noise=0, data=90, forward=10), workers=0, wait_ms=90).profile()
    computing(planted, cpu_pct=100, host_cpu_pct=100 / 64)
    found = one(INPUT_BOUND.find(planted.watched(read=may_use(allowed, quota))))
    assert found.assumes == f"with {workers} workers" and found.saves == pytest.approx(0.1 - step_s)


def starving(host_cpu_pct: float) -> Planted:
    """Four workers that take 40 ms for a batch, 10 ms of which the training needs itself."""
    planted = loads(Planted().steps(noise=0, data=30, forward=10), workers=4, wait_ms=30, ready=0).profile()
    return computing(planted, cpu_pct=10, host_cpu_pct=host_cpu_pct)


def test_workers_that_compute_on_all_cores_that_the_job_may_use_do_not_gain_by_more() -> None:
    found = one(STARVED_WORKERS.find(starving(6.4).watched(read=may_use(64, "400000 100000"))))
    assert "the job may use no more than 4 cores: more workers help only if they wait" in found.why
    assert found.saves is None and found.remedy.endswith('num_workers = 5"')
    found = one(STARVED_WORKERS.find(starving(6.4).watched(read=may_use(8))))
    assert found.remedy.endswith('num_workers = 8"') and found.saves == pytest.approx(0.04 * (1 - 4.1 / 8), rel=0.01)


def test_workers_that_wait_gain_by_more_than_the_cores_that_the_job_may_use() -> None:
    found = one(STARVED_WORKERS.find(starving(0.5).watched(read=may_use(4))))
    assert found.remedy.endswith('num_workers = 20"') and found.saves == pytest.approx(0.03)


def test_cores_of_a_host_are_shared_by_its_ranks() -> None:
    known = Cores(64, 4, math.inf, 1)
    assert known.shared(1, ()) == 4 and known.shared(4, ()) is None  # each may have some of its own
    assert Cores(64, 64, 2.5, 1).shared(4, ()) == 2.5
    assert known.shared(2, [os.getpid(), os.getpid()]) == len(os.sched_getaffinity(0))
    assert known.shared(1, [1 << 30]) is None  # it has ended
