"""What is read of a loader before it is told to start workers, on loaders of torch's."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from planted import Planted

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset  # noqa: E402
from torch.utils.data import default_collate as collate  # noqa: E402

from probe.diagnose.change.effects import effects  # noqa: E402
from probe.diagnose.measures.loaders import expression  # noqa: E402
from probe.diagnose.measures.new_workers import has_room, why_not  # noqa: E402

ON_CPU = TensorDataset(torch.zeros(8, 2), torch.zeros(8))
ON_A_DEVICE = TensorDataset(torch.zeros(8, 2), torch.empty(8, device="meta"))


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(range(8))


class Moves(Dataset):  # type: ignore[type-arg]
    """Its samples are made on the device."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index], device="cuda")


class MovesBatches(Moves):
    __getitem__ = None  # type: ignore[assignment]

    def __getitems__(self, indices: list[int]) -> Any:
        return [torch.tensor(index).cuda() for index in indices]


class Reads(Dataset):  # type: ignore[type-arg]
    """Its samples come from what it keeps."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __getitem__(self, index: int) -> Any:
        return index


class Collate:
    def __call__(self, samples: Any) -> Any:
        return [each.to("cuda") for each in collate(samples)]


def told(loader: DataLoader[Any]) -> str | None:
    """As a snippet in the job: the value of the last expression, in the names of the training loop's frame."""

    def read(code: str) -> str:
        assert not effects(code, [], ok=True)  # or it would be a change of the user's
        tree, names = ast.parse(code), {"loader": loader}
        last = tree.body.pop()
        assert isinstance(last, ast.Expr)
        exec(compile(tree, "", "exec"), names)
        return repr(eval(compile(ast.Expression(last.value), "", "eval"), names))

    return why_not(Planted().watched(read=read), "loader")


GB = 1 << 30


def shared_memory(monkeypatch: pytest.MonkeyPatch, total: float, free: float) -> None:
    """In /dev/shm, in bytes."""
    blocks = {"f_blocks": total // 4096, "f_bavail": free // 4096}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, **blocks))


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    shared_memory(monkeypatch, 64 * GB, 60 * GB)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has used CUDA."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)


@pytest.mark.parametrize("data", [ON_CPU, [1, 2, 3], {0: 1}, Subset(ON_CPU, [1]), ConcatDataset([ON_CPU, ON_CPU])])
def test_what_is_on_the_cpu_can_be_made_by_workers(data: Any, cuda: None) -> None:
    assert told(DataLoader(data)) == told(DataLoader(data, batch_size=None)) == ""
    assert told(DataLoader(data, batch_size=None, collate_fn=lambda batch: batch)) == ""


@pytest.mark.parametrize(
    "data",
    [ON_A_DEVICE, Subset(Subset(ON_A_DEVICE, [1]), [0]), ConcatDataset([ON_CPU, ON_A_DEVICE]), [ON_A_DEVICE[0]]],
)
def test_samples_that_are_on_a_device_are_seen(data: Any) -> None:
    assert told(DataLoader(data)) == "device"


MOVING: list[Callable[[Any], Any]] = [
    lambda samples: collate(samples).to("cuda"),
    lambda samples: tuple(each.to("cuda") for each in collate(samples)),
    lambda samples: torch.tensor(samples, device="cuda"),
    functools.partial(lambda where, samples: collate(samples).cuda(where), 0),
    Collate(),
    Collate().__call__,
]


@pytest.mark.parametrize("collate_fn", MOVING)
def test_batches_that_are_moved_to_a_device_are_seen(collate_fn: Callable[[Any], Any], cuda: None) -> None:
    assert told(DataLoader(ON_CPU, collate_fn=collate_fn)) == "device"


def test_in_a_job_without_cuda_nothing_is_moved_to_it() -> None:
    assert told(DataLoader(ON_CPU, collate_fn=MOVING[0])) == ""


@pytest.mark.parametrize("data", [Moves(), MovesBatches(), Subset(Moves(), [1])])
def test_samples_that_are_made_on_a_device_are_seen(data: Any, cuda: None) -> None:
    assert told(DataLoader(data, sampler=[0])) == "device"


ARCHIVE = zipfile.ZipInfo("image.png")
OF_H5PY = type("File", (), {"__module__": "h5py._hl.files"})


@pytest.mark.parametrize(
    "opened",
    [
        functools.partial(open, __file__),
        functools.partial(open, __file__, "rb", buffering=0),
        tempfile.TemporaryFile,
        tempfile.NamedTemporaryFile,
        lambda: zipfile.ZipFile(io.BytesIO(), "w"),
        lambda: contextlib.closing(sqlite3.connect(":memory:")),
        lambda: contextlib.nullcontext(OF_H5PY()),
        lambda: contextlib.nullcontext(type("File", (OF_H5PY,), {})()),
    ],
)
def test_files_that_a_dataset_keeps_open_are_seen(opened: Callable[[], Any]) -> None:
    with opened() as kept:
        data = Reads(kept)
        assert told(DataLoader(data, sampler=[0])) == told(DataLoader(Subset(data, [1]))) == "file"
        assert told(DataLoader(Reads([kept]), sampler=[0])) == "file"


def test_an_open_database_is_seen_whose_type_names_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    lmdb = ModuleType("lmdb")
    lmdb.Environment = type("Environment", (), {"__module__": "builtins"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmdb", lmdb)
    assert told(DataLoader(Reads(lmdb.Environment()), sampler=[0])) == "file"


@pytest.mark.parametrize("kept", [io.BytesIO(b"all"), [ARCHIVE], __file__])
def test_what_was_read_of_a_file_is_none(kept: Any) -> None:
    assert told(DataLoader(Reads(kept), sampler=[0])) == ""


def test_a_stream_is_seen() -> None:
    assert told(DataLoader(Stream())) == "stream"


def test_workers_that_are_not_forked_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: None if allow_none else "fork")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "fork"])  # Python 3.14
    assert told(DataLoader(ON_CPU)) == "start"
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    assert told(DataLoader(ON_CPU)) == "start"
    monkeypatch.undo()
    assert multiprocessing.get_start_method(allow_none=True) == before
    loader = DataLoader(ON_CPU, num_workers=1, multiprocessing_context="forkserver")
    loader.num_workers = 0
    assert told(loader) == "start"


def test_a_process_that_may_have_no_children_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    assert told(DataLoader(ON_CPU)) == "daemon"


def test_a_container_without_room_for_batches_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_memory(monkeypatch, GB / 16, GB / 16)  # Docker's
    assert told(DataLoader(ON_CPU)) == "shm"


@pytest.mark.parametrize(("total_gb", "free_gb", "fits"), [(64, 60, True), (64, 9, False), (0.5, 0.5, False)])
def test_batches_of_more_workers_have_to_fit(
    monkeypatch: pytest.MonkeyPatch, total_gb: float, free_gb: float, fits: bool
) -> None:
    shared_memory(monkeypatch, total_gb * GB, free_gb * GB)
    assert has_room(Planted().watched(read=lambda asked: repr(eval(asked))), 2.5) is fits


def test_where_room_cannot_be_read_there_may_be_none() -> None:
    assert not has_room(Planted().watched(), 1.0)


@pytest.mark.parametrize(
    ("name", "set_as"),
    [("loader", "loader"), ("wrapper", "wrapper.base_dataloader"), ("batches", None), ("none", None)],
)
def test_an_iterator_that_the_loop_holds_is_no_loader(name: str, set_as: str | None) -> None:
    loader = DataLoader(ON_CPU)
    names = {"loader": loader, "batches": iter(loader), "wrapper": SimpleNamespace(base_dataloader=loader)}

    def read(code: str) -> str | None:
        return repr(eval(code, dict(names))) if name in names and "trainer." not in code else None

    assert expression(Planted().watched(read=read), SimpleNamespace(name=name)) == set_as  # type: ignore[arg-type]
