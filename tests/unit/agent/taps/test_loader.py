"""The tap on loaders: what it records, how it names them, and that the job gets its very batches."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from preempting import Preempted, preempt, preempting  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler  # noqa: E402
from until import until  # noqa: E402

from probe.agent.boundary.boundary import Boundary  # noqa: E402
from probe.agent.names.modules import Modules  # noqa: E402
from probe.agent.steps.sample_count import SampleCount  # noqa: E402
from probe.agent.storage.log import Log  # noqa: E402
from probe.agent.storage.rows import Stream  # noqa: E402
from probe.agent.taps.loader import Loader  # noqa: E402
from probe.protocol import NO_LOADERS  # noqa: E402
from probe.streams import FAILED, ITERATOR, LOADS, LOG_LOADER, STREAMS  # noqa: E402

DATA = list(range(40))
Rows = list[dict[str, int]]


@dataclass
class Tap:
    loads: Stream
    modules: Modules
    told: dict[int, dict[str, Any]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    loader: Any = None

    @property
    def rows(self) -> Rows:
        """Of batches."""
        return [row for row in self.every if not row["flags"] & ITERATOR]

    @property
    def iterators(self) -> Rows:
        return [row for row in self.every if row["flags"] & ITERATOR]

    @property
    def every(self) -> Rows:
        found = []
        for _, view in self.loads.read(1, self.loads.position(), 4096):
            found += [dict(zip(self.loads.slots, row, strict=True)) for row in self.loads.struct.iter_unpack(view)]
            view.release()
        return found

    @property
    def names(self) -> list[str]:
        """Of each batch, its loader's."""
        return [self.told[row["subject"]]["name"] for row in self.rows]


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tap]:
    log, boundary, handler = Log(), Boundary(), signal.getsignal(signal.SIGCHLD)
    made = Tap(Stream(LOADS, STREAMS[LOADS], 1), Modules(log))
    monkeypatch.setattr(log, "put", lambda kind, id, fields: kind == LOG_LOADER and made.told.update({id: fields}))
    before = torch.utils.data.dataloader._BaseDataLoaderIter.__next__, DataLoader.__iter__
    context: Any = SimpleNamespace(
        streams={LOADS: made.loads},
        modules=made.modules,
        boundary=boundary,
        steps=SimpleNamespace(samples=SampleCount()),
        reporter=lambda name: lambda error: made.faults.append(f"{name}: {error!r}"),
    )
    made.loader = Loader(context)
    made.loader.install()
    yield made
    made.loader.remove()
    assert (torch.utils.data.dataloader._BaseDataLoaderIter.__next__, DataLoader.__iter__) == before
    assert made.faults == []
    made.modules.close()
    made.loads.close()
    log.close()
    signal.signal(signal.SIGCHLD, handler)  # torch sets one of its own for workers


# An assert is rewritten to call locals(), and functions that do are not looked into: the loops stand in these.


def epochs(train_loader: Any, times: int = 1, each: Callable[[], None] = lambda: None) -> list[Any]:
    taken = []
    for _ in range(times):
        for batch in train_loader:
            taken.append(batch)
            each()
    return taken


def both(first: Any, second: Any) -> None:
    for _ in range(3):
        for _ in zip(first, second, strict=False):
            pass


def one(batches: Any) -> Any:
    return next(batches)


def test_without_loaders_the_tap_says_so_only_as_long_as_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch.utils.data.dataloader")
        tap = Loader(SimpleNamespace())  # type: ignore[arg-type]
        assert tap.state == NO_LOADERS
    assert tap.state == "off: torch.utils.data had no loaders at the attach"


class Stream40(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


def test_each_batch_is_a_row_and_the_end_of_the_epoch_is_none(tap: Tap) -> None:
    taken = epochs(DataLoader(DATA, batch_size=8))
    assert [batch.tolist() for batch in taken] == [DATA[at : at + 8] for at in range(0, 40, 8)]
    assert len(tap.rows) == 5
    assert all(row["start_ns"] <= row["end_ns"] and (row["ready"], row["outstanding"]) == (-1, -1) for row in tap.rows)
    assert list(tap.told.values()) == [
        {"name": "train_loader", "num_workers": 0, "pin_memory": False, "prefetch_factor": None, "batch_size": 8}
    ]


def test_the_wait_is_the_time_that_the_dataset_takes(tap: Tap) -> None:
    class Slow:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            times.append(time.perf_counter_ns())
            time.sleep(0.001)
            times.append(time.perf_counter_ns())
            return index

    times: list[int] = []
    iterator = iter(DataLoader(Slow(), batch_size=None))
    for row in range(3):
        asked = time.perf_counter_ns()
        assert one(iterator) == row
        start, end = tap.rows[row]["start_ns"], tap.rows[row]["end_ns"]
        assert asked <= start <= times[-2] < times[-1] <= end <= time.perf_counter_ns()


def test_a_loader_keeps_its_number_over_epochs_and_two_loaders_have_two(tap: Tap) -> None:
    both(DataLoader(DATA, batch_size=20), DataLoader(DATA, batch_size=40))
    assert tap.names == ["first", "second", "first"] * 3


class Noted(DataLoader):  # type: ignore[type-arg]
    """Whose iterator can be looked at."""

    def _get_iterator(self) -> Any:
        self.iterator = super()._get_iterator()
        return self.iterator

    def wait_until_all_are_ready(self) -> None:
        until(lambda: self.iterator._data_queue.qsize() == self.iterator._tasks_outstanding, every_s=0.001)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_number_of_ready_batches_comes_from_the_workers(tap: Tap, persistent: bool) -> None:
    loader = Noted(DATA, batch_size=4, num_workers=2, prefetch_factor=2, persistent_workers=persistent)
    epochs(loader, 2, loader.wait_until_all_are_ready)
    rows = tap.rows
    assert len(rows) == 20 and set(tap.names) == {"train_loader"} and len(tap.told) == 1
    assert [row["outstanding"] for row in rows] == [4, 4, 4, 4, 4, 4, 4, 3, 2, 1] * 2
    assert all(0 <= row["ready"] <= row["outstanding"] for row in rows)
    assert all(row["ready"] == row["outstanding"] for row in rows[1:10] + rows[11:])
    fields = tap.told[rows[0]["subject"]]
    assert (fields["num_workers"], fields["prefetch_factor"], fields["batch_size"]) == (2, 2, 4)


def test_batches_that_came_out_of_order_count_as_ready(tap: Tap) -> None:
    class Uneven:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            time.sleep(1.5 * (index == 0))
            return index

    iterator = iter(DataLoader(Uneven(), batch_size=None, num_workers=2, prefetch_factor=2))
    next(iterator)
    next(iterator)
    assert len(iterator._task_info) - iterator._tasks_outstanding > 0
    assert tap.rows[1]["ready"] >= 2
    del iterator


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_datasets(tap: Tap, workers: int) -> None:
    taken = epochs(DataLoader(Stream40(), batch_size=10, num_workers=workers))
    assert len(taken) == len(tap.rows) == 4 * max(1, workers)
    assert set(tap.names) == {"train_loader"}


def test_an_exception_leaves_a_failed_row_and_reaches_the_user(tap: Tap) -> None:
    class Broken:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        next(iter(DataLoader(Broken(), batch_size=None)))
    assert [row["flags"] for row in tap.rows] == [FAILED]


class Interrupted:
    """A queue of batches; the signal comes while they are counted."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def qsize(self) -> int:
        preempt()
        return int(self._queue.qsize())

    def __getattr__(self, name: str) -> Any:
        if name == "queue":
            raise AttributeError(name)
        return getattr(self._queue, name)


def test_what_a_signal_handler_raises_while_batches_are_counted_reaches_the_job(tap: Tap) -> None:
    batches = iter(DataLoader(DATA, batch_size=4, num_workers=1))
    batches._data_queue = Interrupted(batches._data_queue)
    with preempting(), pytest.raises(Preempted):
        next(batches)
    batches._data_queue = batches._data_queue._queue
    assert next(batches).tolist() == DATA[:4] and not tap.faults


def test_a_list_of_batches_counts_as_a_loader(tap: Tap) -> None:
    assert len(epochs(DataLoader(DATA, batch_sampler=[[0, 1], [2, 3]]))) == 2
    assert (
        len(tap.told) == 1
        and tap.names == ["train_loader"] * 2
        and tap.told[tap.rows[0]["subject"]]["batch_size"] is None
    )


def test_the_batch_size_is_that_of_the_batch_sampler(tap: Tap) -> None:
    loader = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 5, False))
    next(iter(loader))
    assert [fields["batch_size"] for fields in tap.told.values()] == [5]


class Trainer:
    def __init__(self) -> None:
        self.train_loader = DataLoader(DATA, batch_size=8)
        self.loaders = {"val": DataLoader(DATA, batch_size=40)}

    def train(self) -> None:
        for _ in self.train_loader:
            pass

    def validate(self) -> None:
        loaders = self.loaders
        list(loaders["val"])


def test_attributes_and_items_name_a_loader(tap: Tap) -> None:
    trainer = Trainer()
    trainer.train()
    trainer.validate()
    assert set(tap.names) == {"self.train_loader", "loaders['val']"}


def test_an_iterator_names_a_loader_that_nothing_holds(tap: Tap) -> None:
    one(iter(DataLoader(DATA, batch_size=8)))
    assert tap.names == ["batches"]


def test_a_loader_that_no_variable_holds_is_named_by_its_class(tap: Tap) -> None:
    for _ in map(str, DataLoader(DATA, batch_size=40)):
        pass
    assert tap.names == ["DataLoader"]


def test_dicts_that_locals_returned_are_left_alone(tap: Tap) -> None:
    config = locals()
    loader = DataLoader(DATA, batch_size=40)
    assert len(list(loader)) == 1
    assert "loader" not in config and tap.names == ["DataLoader"]


def test_a_function_that_calls_eval_is_not_looked_into_but_one_that_calls_a_models_eval_is(tap: Tap) -> None:
    model = torch.nn.Linear(1, 1)

    def validate() -> None:
        model.eval()
        validation_loader = DataLoader(DATA, batch_size=40)
        list(validation_loader)

    def evaluate() -> None:
        model.eval()
        loader = eval("DataLoader(DATA, batch_size=40)")
        list(loader)

    validate()
    evaluate()
    assert tap.names == ["validation_loader", "DataLoader" if sys.version_info < (3, 13) else "loader"]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="variables can be read at any time")
def test_a_loader_is_named_only_once_no_trace_function_runs(tap: Tap) -> None:
    iterator = iter(DataLoader(DATA, batch_size=20))
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        one(iterator)
        assert tap.names == ["DataLoader"]
    finally:
        sys.settrace(before)
    one(iterator)
    assert set(tap.names) == {"batches"}


def test_nothing_keeps_a_loader_alive(tap: Tap) -> None:
    for _ in range(20):
        epochs(DataLoader(DATA, batch_size=40))
    gc.collect()
    assert not tap.modules.serials and len({row["subject"] for row in tap.rows}) == 20


def test_a_detach_in_the_middle_of_a_batch_does_not_end_the_epoch(tap: Tap) -> None:
    class Detaching:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            if index == 1:
                tap.loader.remove()
                tap.loads.close()
            return index

    assert list(DataLoader(Detaching(), batch_size=None)) == [0, 1, 2]
    assert [text.partition(":")[0] for text in tap.faults] == ["loader"]
    tap.faults.clear()


def final_weights(toggle: Callable[[int], None]) -> bytes:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(60, 3), batch_size=4, shuffle=True)
    for step, batch in enumerate(loader):
        toggle(step)
        model(batch).pow(2).mean().backward()
        sgd.step()
        sgd.zero_grad()
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def test_weights_are_bit_identical(tap: Tap) -> None:
    recorded = final_weights(lambda step: None)
    toggled = final_weights(lambda step: tap.loader.remove() if step % 3 else tap.loader.install())
    tap.loader.remove()
    assert final_weights(lambda step: None) == recorded == toggled


class Workers(DataLoader):  # type: ignore[type-arg]
    """Whose workers take their time to start."""

    def _get_iterator(self) -> Any:
        time.sleep(0.05)
        return super()._get_iterator()


def test_the_making_of_an_iterator_is_a_row(tap: Tap) -> None:
    train_loader = Workers(DATA, batch_size=8)
    epochs(train_loader, times=2)
    assert [(row["end_ns"] - row["start_ns"]) / 1e9 >= 0.05 for row in tap.iterators] == [True, True]
    assert {row["subject"] for row in tap.every} == {tap.rows[0]["subject"]} and tap.names[0] == "train_loader"
    assert [row["flags"] for row in tap.every][:2] == [ITERATOR, 0]


def test_a_loader_with_other_workers_than_before_has_another_number(tap: Tap) -> None:
    loader = DataLoader(DATA, batch_size=8)
    epochs(loader)
    loader.num_workers, loader.prefetch_factor = 1, 3
    epochs(loader, times=2)
    told = [(tap.told[row["subject"]]["num_workers"], tap.told[row["subject"]]["prefetch_factor"]) for row in tap.rows]
    assert told == [(0, None)] * 5 + [(1, 3)] * 10
    assert len({row["subject"] for row in tap.rows}) == 2
    gc.collect()  # it has workers


class Elsewhere(DataLoader):  # type: ignore[type-arg]
    """Whose batches do not come from torch's iterators."""

    def _get_iterator(self) -> Any:
        return iter(DATA)


def test_an_iterator_that_is_not_torchs_is_left_alone(tap: Tap) -> None:
    assert list(Elsewhere(DATA)) == DATA and tap.every == []


class DataLoaderAdapter:
    """As accelerate wraps a loader."""

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = DataLoader(DATA, batch_sampler=loader.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        yield from self.base_dataloader


def test_a_loader_in_a_wrapper_of_accelerates_has_the_wrappers_name(tap: Tap) -> None:
    def train(loader: Any) -> None:
        train_loader = DataLoaderAdapter(loader)
        for _ in train_loader:
            pass

    train(DataLoader(DATA, batch_size=8))
    assert tap.names == ["train_loader"] * 5


def test_a_job_that_keeps_making_loaders_has_a_name_for_one_a_second(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("probe.agent.taps.loader.monotonic", lambda: now)

    def evaluate() -> str:
        validation_loader = DataLoader(DATA, batch_size=40)
        list(validation_loader)
        return tap.names[-1]

    assert [evaluate() for _ in range(66)] == ["validation_loader"] * 64 + ["DataLoader"] * 2
    now += 4
    assert [evaluate() for _ in range(5)] == ["validation_loader"] * 4 + ["DataLoader"]


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class _DataLoaderSource(Holder):
    """As Lightning has it."""


def test_lightnings_loops_say_what_their_loaders_are_called(tap: Tap, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "loops.py"
    package.parent.mkdir()
    package.write_text(
        "def run(self):\n    for combined in [self._combined_loader]:\n        for dl in combined._flattened:\n"
        "            for batch in dl:\n                pass\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(package.read_text(), str(package), "exec"), namespace)

    def run(name: str, loaders: int) -> list[str]:
        before = len(tap.names)
        combined = Holder(_flattened=[DataLoader(DATA, batch_size=40) for _ in range(loaders)])
        namespace["run"](Holder(_combined_loader=combined, _data_source=_DataLoaderSource(name=name)))
        return tap.names[before:]

    assert run("train_dataloader", 1) == ["train_dataloader"]
    assert run("val_dataloader", 2) == ["val_dataloader[0]", "val_dataloader[1]"]
