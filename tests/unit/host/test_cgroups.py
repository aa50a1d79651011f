"""What the cgroups of a process let it have of memory, and what they have left."""

from __future__ import annotations

from pathlib import Path

import pytest
from limited import MB, Cgroup, put_into

from probe.host import cgroups

CONTAINER = Cgroup(most=1024, used=900, unused_files=100, as_one=True)


@pytest.mark.parametrize(
    ("own", "above", "left"),
    [
        (CONTAINER, (), 224),
        (CONTAINER._replace(as_one=False), (), None),  # the kernel would end one process
        (CONTAINER._replace(used=2000), (), 0),
        (CONTAINER._replace(path="/pod/c"), (Cgroup("/pod", most=1000, used=950),), 50),
        (Cgroup("/pod/c", most=100, used=90), (Cgroup("/pod", most=1000, used=200, as_one=True),), 800),
        (CONTAINER._replace(path="/pod/c", most="max"), (Cgroup("/pod", most=1000, used=950),), 50),
        (CONTAINER._replace(most="max"), (), None),
    ],
)
def test_what_is_left_counts_where_a_cgroup_is_ended_as_a_whole(
    own: Cgroup, above: tuple[Cgroup, ...], left: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into(own, *above, folder=tmp_path, monkeypatch=monkeypatch)
    assert cgroups.memory_left() == (left if left is None else left * MB)


def test_the_limit_is_the_lowest_of_those_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = Cgroup("/pods", most="max"), Cgroup("/pods/pod", most=300)
    put_into(Cgroup("/pods/pod/c", most=400), *above, folder=tmp_path, monkeypatch=monkeypatch)
    assert cgroups.memory_limit() == 300 * MB


def test_without_cgroup_v2_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    assert cgroups.memory_limit() is None and cgroups.memory_left() is None
