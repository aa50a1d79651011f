"""From the two texts of `probe compare` to runs: endpoints, stretches of steps, folders of recorded jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.comparing import Opening
from probe.errors import UsageError


class Connections:
    """Stands in for probe.connect: which endpoints it was asked for, and which are still open."""

    def __init__(self) -> None:
        self.asked, self.open, self.cancelled = list[str](), list[str](), list[str]()

    @contextmanager
    def __call__(self, endpoint: str) -> Iterator[Any]:
        self.asked.append(endpoint)
        self.open.append(endpoint)
        yield SimpleNamespace(endpoint=endpoint, notes=["a note"], cancel=lambda: self.cancelled.append(endpoint))
        self.open.remove(endpoint)


@pytest.fixture
def connections() -> Connections:
    return Connections()


def test_stretches_of_one_job_share_its_connection_which_is_closed(connections: Connections) -> None:
    with Opening(connections) as opening:  # type: ignore[arg-type]
        (before,), (after,) = opening.sides("4242@100..400", " 4242@500..800")
        assert before.tables is after.tables and connections.asked == ["4242"]
        assert (before.steps, after.steps) == ((100, 400), (500, 800)) and before.name == "4242@100..400"
        assert opening.notes == ["a note"]
        opening.cancel()
        assert connections.cancelled == ["4242"]
    assert not connections.open


def test_each_job_in_a_folder_of_recordings_is_a_run(connections: Connections, tmp_path: Path) -> None:
    for name in ("job=b", "job=a"):
        (tmp_path / name).mkdir()
    (tmp_path / "job=a" / "job.json").write_text(json.dumps({"command": "python train.py", "world_size": 2}))
    (tmp_path / "job=b" / "job.json").write_text("broken")
    with Opening(connections) as opening:  # type: ignore[arg-type]
        runs, (other,) = opening.sides(f"{tmp_path}@5..90", "4242")
        assert connections.asked == [str(tmp_path / "job=a"), str(tmp_path / "job=b"), "4242"]
        assert [run.steps for run in runs] == [(5, 90)] * 2 and other.steps is None
        assert [run.settings for run in runs] == [{"command": "python train.py"}, {}]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("4242", "4242 ", "A and B share steps of 4242"),
        ("4242@1..99", "4242@99..200", "share steps"),
        ("4242", "4242@1..9", "share steps"),
        ("4242", "4242@9..5", "names no steps"),
        ("4242@1..9", "4242@x..y", "4242@x..y names no steps"),
    ],
)
def test_what_names_no_two_sides_is_refused(connections: Connections, before: str, after: str, why: str) -> None:
    with Opening(connections) as opening, pytest.raises(UsageError, match=why):  # type: ignore[arg-type]
        opening.sides(before, after)


def test_a_name_with_an_at_is_no_stretch_of_steps(connections: Connections) -> None:
    with Opening(connections) as opening:  # type: ignore[arg-type]
        (before,), _ = opening.sides("me@host", "tcp://[::1]:4242@1..9")
        assert before.steps is None and connections.asked == ["me@host", "tcp://[::1]:4242"]
