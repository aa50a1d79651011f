"""Where the target and the command meet: what is swept away there is certainly ours."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.attach import rendezvous
from probe.attach.rendezvous import PREFIX, Rendezvous, sweep
from probe.errors import AttachError


@pytest.fixture
def stale() -> Iterator[Callable[..., Path]]:
    """Makes an old folder with a socket that nobody listens in, and what else is given: name -> content."""
    with tempfile.TemporaryDirectory(prefix="probe-test") as parent:

        def make(name: str, mode: int = 0o700, socket_name: str = "s", **files: str) -> Path:
            folder = Path(parent) / name
            folder.mkdir()
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(folder / socket_name))
            for file, content in files.items():
                (folder / file).write_text(content)
            folder.chmod(mode)
            os.utime(folder, (time.time() - 1000,) * 2)
            return folder

        yield make


def swept(folder: Path) -> bool:
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sweep(parent)
    finally:
        os.close(parent)
    return not folder.exists()


@pytest.mark.parametrize("name", [f"{PREFIX}{'ab' * 8}", f"probe-{os.geteuid()}-0123abcd"])
def test_only_what_is_certainly_ours_is_swept(stale: Callable[..., Path], name: str) -> None:
    assert swept(stale(name))
    assert swept(stale(name, socket_name="server")) and swept(stale(name, socket_name="17-42.sock"))
    assert not swept(stale(name, **{"results.csv": "loss"}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (f"probe-{os.geteuid() + 7}-20240501", {}),
        (f"probe-{os.geteuid()}-2024050", {}),
        (f"probe-{os.geteuid()}-20240501", {"mode": 0o755}),
        (f"probe-{os.geteuid()}-20240501", {"socket_name": "mine"}),
    ],
    ids=["another owner", "another name", "another mode", "another socket"],
)
def test_a_folder_that_only_looks_like_ours_stays(
    stale: Callable[..., Path], name: str, options: dict[str, Any]
) -> None:
    assert not swept(stale(name, **options))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_what_took_the_place_of_the_new_directory_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="probe-test") as parent:
        other, make = Path(parent) / "etc", os.mkdir
        make(other, 0o755)
        (other / "passwd").touch()
        os.chmod(parent, 0o777)

        def mkdir(name: str, mode: int, *, dir_fd: int) -> None:
            make(name, mode, dir_fd=dir_fd)
            os.rmdir(name, dir_fd=dir_fd)  # the target is quick
            os.rename(other, Path(parent) / name)

        monkeypatch.setattr(os, "mkdir", mkdir)
        monkeypatch.setattr(rendezvous, "DIRECTORIES", (parent,))
        monkeypatch.setattr(rendezvous, "environment", lambda pid: {})
        with pytest.raises(AttachError):
            Rendezvous(os.getpid(), SimpleNamespace(uid=65534, gid=65534))  # type: ignore[arg-type]
        (left,) = Path(parent).iterdir()
        assert left.stat().st_uid == 0 and (left / "passwd").exists()
