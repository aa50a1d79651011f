"""The agent does not take the last descriptors of a job, and makes no file that the job's limits forbid."""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from probe.agent.storage import memory, room
from probe.agent.storage.room import NEEDED, NoDescriptors, SmallFiles, check_descriptors, check_file_size
from probe.streams import LOG_BYTES


def limited(monkeypatch: pytest.MonkeyPatch, folder: Path, soft: int | str, what: str = "open files") -> None:
    (folder / "limits").write_text(f"Limit  Soft Limit  Hard Limit  Units\nMax {what}  {soft}  1048576  files\n")
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


@pytest.mark.parametrize("soft", ["unlimited", LOG_BYTES])
def test_files_may_be_as_large_as_the_largest_of_the_agents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, soft: int | str
) -> None:
    limited(monkeypatch, tmp_path, soft, "file size")
    check_file_size()


def test_a_limit_of_file_sizes_below_that_is_an_error_with_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited(monkeypatch, tmp_path, LOG_BYTES - 1, "file size")
    with pytest.raises(SmallFiles, match=f"^its files may take {LOG_BYTES - 1} bytes, and .* {LOG_BYTES}$") as raised:
        check_file_size()
    assert raised.value.probe_code == "file-size"
