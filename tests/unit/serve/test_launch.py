"""The folder of a server's socket, as root makes it for the job's user."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.serve.launch import Prepared

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_the_folder_is_its_users_once_nothing_is_left_to_do_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = list[int]()

    def watched(call: Callable[..., None]) -> Callable[..., None]:
        def seen(path: str, *arguments: int, **more: Any) -> None:
            owners.append(os.fstat(more["dir_fd"]).st_uid)  # whose it is may put anything in place of the socket
            call(path, *arguments, **more)

        return seen

    monkeypatch.setattr(os, "chmod", watched(os.chmod))
    monkeypatch.setattr(os, "chown", watched(os.chown))
    with Prepared(os.getpid(), NOBODY, NOBODY) as prepared:
        socket = Path(prepared.endpoint.removeprefix("ipc://"))
        assert owners == [0, 0]
        assert {each.stat().st_uid for each in (socket, socket.parent)} == {NOBODY}
        assert [stat.S_IMODE(each.stat().st_mode) for each in (socket, socket.parent)] == [0o600, 0o700]
    assert not socket.parent.exists()
