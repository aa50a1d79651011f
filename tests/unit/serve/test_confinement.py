"""How much memory the processes beside a job may take."""

from __future__ import annotations

from pathlib import Path

import pytest
from limited import MB, Cgroup, put_into

from probe.serve import confinement


@pytest.mark.parametrize(("as_one", "held", "most"), [(False, 0, 2048), (True, 0, 150), (True, 100, 200)])
def test_no_process_takes_what_the_container_has_not_left(
    as_one: bool, held: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = Cgroup(most=8192, used=7892, as_one=as_one)
    put_into(container, folder=tmp_path, monkeypatch=monkeypatch)
    monkeypatch.setattr(confinement.os, "sysconf", lambda name: 1 << 20)  # a machine of 1 TB
    share = confinement.memory_share()
    assert share == 2048 * MB  # of addresses too, most of which are no memory
    assert confinement.spare_memory(share, held * MB) == most * MB
