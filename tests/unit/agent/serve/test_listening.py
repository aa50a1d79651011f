"""Where the agent listens: at a path that leads readers to it, wherever they and the job stand."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient

from probe.agent.serve import listening
from probe.agent.serve.listening import Listener, listener_in_new_folder

Listens = Callable[[str], Listener]
ROOM = 60 - len(f"/probe-{os.geteuid()}-01234567")  # bytes of the directory in which the folder is made


@pytest.fixture
def other(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that is tried after TMPDIR."""
    made = short_folder / "other"
    made.mkdir()
    monkeypatch.setattr(listening, "_PARENTS", (str(made),))
    return made


@pytest.fixture
def listens(monkeypatch: pytest.MonkeyPatch, other: Path) -> Iterator[Listens]:
    """Makes a listener of a job with this TMPDIR, and removes it with the test."""
    made: list[Listener] = []

    def listens(temporary: str) -> Listener:
        monkeypatch.setenv("TMPDIR", temporary)
        made.append(listener_in_new_folder("7-42.sock"))
        return made[-1]

    yield listens
    for each in made:
        each.remove()
        each.close()


@pytest.mark.parametrize("temporary", ["mine", "link"])
def test_readers_reach_it_through_the_root_of_the_job(
    listens: Listens, short_folder: Path, monkeypatch: pytest.MonkeyPatch, temporary: str
) -> None:
    """An absolute link would lead them out of a container."""
    (short_folder / "mine").mkdir()
    (short_folder / "link").symlink_to(short_folder / "mine")
    monkeypatch.chdir(short_folder)
    path = listens(temporary).path
    assert path.startswith(f"{os.path.realpath(short_folder)}/mine/")
    RawClient(f"/proc/self/root{path}").close()


def test_a_directory_without_room_for_a_socket_is_left_as_it_was(
    listens: Listens, short_folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening_at = listening._listening_at
    full = short_folder / "full"
    full.mkdir()

    def bind(path: str) -> Any:
        if path.startswith(f"{full}/"):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return listening_at(path)

    monkeypatch.setattr(listening, "_listening_at", bind)
    assert listens(str(full)).path.startswith(f"{other}/") and not list(full.iterdir())
    monkeypatch.setattr(listening, "_PARENTS", ())
    with pytest.raises(OSError, match=r"any of .*/full: Operation not supported"):
        listens(str(full))


@pytest.mark.parametrize(("character", "fits"), [("x", True), ("\N{LATIN SMALL LETTER U WITH DIAERESIS}", False)])
def test_the_length_of_a_path_is_counted_in_bytes(
    listens: Listens, short_folder: Path, character: str, fits: bool
) -> None:
    folder = short_folder / character.ljust(ROOM - len(f"{short_folder}/"), "x")
    folder.mkdir()
    assert listens(str(folder)).path.startswith(f"{folder}/") == fits


def test_a_directory_that_readers_cannot_name_is_left_out(listens: Listens, short_folder: Path, other: Path) -> None:
    folder = os.fsencode(short_folder) + b"/\xff"
    os.mkdir(folder)
    assert listens(os.fsdecode(folder)).path.startswith(f"{other}/")


def test_it_listens_again_once_there_is_room_for_a_socket(listens: Listens, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listens("/tmp")
    os.close(listener.socket.fileno())  # as a job does with what it does not know
    with monkeypatch.context() as short:
        short.setattr(listening, "_listening_at", fails)
        listener.restore()
        assert not listener.is_open
    listener.restore()
    assert listener.is_open
    RawClient(listener.path).close()


def fails(path: str) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
