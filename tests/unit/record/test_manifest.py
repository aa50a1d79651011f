"""Which run a job.json tells of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probe.host.facts import Facts
from probe.record import job, manifest
from probe.record.job import RecordedJob, folder_of

FIRST = {"host": "a", "pid": 7, "start_ticks": 100}
OTHER = {**FIRST, "host": "b"}
SIZE_8, SIZE_16 = {"world_size": 8}, {"world_size": 16}


@pytest.mark.parametrize(
    ("before", "now", "is_another"),
    [
        ({}, {"0": FIRST}, False),
        ({"0": FIRST}, {"0": FIRST}, False),
        ({"0": FIRST}, {"0": {**FIRST, "pid": 8}}, True),
        ({"0": FIRST}, {"0": {**FIRST, "host": "b"}}, True),
        ({"0": FIRST}, {"0": {**FIRST, "start_ticks": 101}}, True),  # as in a container, where it is always 7
        ({"0": {"host": "a", "pid": 7}}, {"0": FIRST}, False),  # written by an earlier version
        ({"0": FIRST}, {"1": {**FIRST, "host": "b"}}, False),  # the ranks of another host
        ({"0": FIRST | SIZE_8}, {"8": OTHER | SIZE_16}, True),  # a run of more hosts, whose first has another folder
        ({"0": FIRST | SIZE_16}, {"8": OTHER | SIZE_16}, False),
        ({"0": FIRST | SIZE_8}, {"8": OTHER}, False),  # it does not know yet
        ({"0": FIRST | SIZE_8}, {"0": FIRST | SIZE_16, "8": FIRST | SIZE_16}, False),
        ({"0": FIRST, "1": FIRST}, {"0": FIRST, "1": {**FIRST, "pid": 8}}, False),  # one was started again
    ],
)
def test_a_run_is_told_by_its_processes(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], is_another: bool
) -> None:
    manifest.write(tmp_path, {"ranks": before})
    assert manifest.is_of_another_run(tmp_path, now) is is_another


def test_a_folder_without_one_is_of_no_run(tmp_path: Path) -> None:
    assert not manifest.is_of_another_run(tmp_path / "job=exp7", {"0": FIRST})


def test_a_run_of_the_same_name_does_not_take_the_folder_that_another_one_has_just_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, other = Facts(attached_wall_ns=10**18), {"0": {**FIRST, "pid": 8}}
    one, two = (cast(RecordedJob, SimpleNamespace(facts=[facts], command="python train.py", ranks=ranks))
                for ranks in ({"0": FIRST}, other))  # fmt: skip
    folder = folder_of(tmp_path, "", one)

    def first_writes(seconds: float) -> None:
        manifest.write(folder, {"ranks": one.ranks})

    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=first_writes))
    assert folder_of(tmp_path, "", two).name == f"{folder.name}-2"
    assert folder_of(tmp_path, "", one) == folder
