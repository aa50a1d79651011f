"""The agent does not take the last descriptors of a job."""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from probe.agent.storage import memory, room
from probe.agent.storage.room import NEEDED, NoDescriptors, check_descriptors


def limited(monkeypatch: pytest.MonkeyPatch, folder: Path, soft: int | str) -> None:
    (folder / "limits").write_text(f"Limit  Soft Limit  Hard Limit  Units\nMax open files  {soft}  1048576  files\n")
    monkeypatch.setattr(memory, "_LIMITS", str(folder / "limits"))


def limit_with(left: int) -> int:
    """The limit below which so many numbers are free."""
    return next(limit for limit in count(left) if limit - room._open_below(limit) == left)


@pytest.mark.parametrize("more", [0, 1000])
def test_a_job_with_descriptors_left_has_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: int) -> None:
    limited(monkeypatch, tmp_path, limit_with(NEEDED + more))
    check_descriptors()
    limited(monkeypatch, tmp_path, "unlimited")
    check_descriptors()


def test_one_that_is_close_to_its_limit_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = limit_with(NEEDED - 1)
    limited(monkeypatch, tmp_path, limit)
    with pytest.raises(NoDescriptors, match=f"^31 of its {limit} descriptors are left") as raised:
        check_descriptors()
    assert raised.value.probe_code == "no-descriptors"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOENT])
def test_a_limit_that_cannot_be_read_forbids_nothing_unless_for_want_of_a_descriptor(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def unreadable(name: str) -> str:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(room, "soft_limit", unreadable)
    if error == errno.ENOENT:  # a sandbox without /proc
        check_descriptors()
    else:
        with pytest.raises(NoDescriptors, match="Too many open files"):
            check_descriptors()
