"""Ranks that attach --follow comes upon while the port of their server is still that of the ranks before."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import probe.attach
from probe.cli import attaching
from probe.errors import AttachError
from probe.serve.launch import Prepared


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as job:
        yield job
        job.kill()


class Followed:
    """attach --follow --listen of a job with one rank.  attached: its pid, once for each attach."""

    def __init__(self, job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.attached = list[int]()
        self._job, self._patch = job, monkeypatch
        self.ranks: dict[int, int | None] = {job.pid: 0}
        monkeypatch.setattr(attaching, "_ranks_now", lambda *_: self.ranks)
        monkeypatch.setattr(probe.attach, "attach", self._attach)
        monkeypatch.setattr(Prepared, "start", lambda prepared: None)

    def _attach(self, pid: int, *_: object) -> SimpleNamespace:
        self.attached.append(pid)
        return SimpleNamespace(taps={})

    def follow(self, port: int, *between: Callable[[], object]) -> None:
        """between: what happens after each look at the ranks; the job ends after the last."""
        order = {"address": "127.0.0.1", "host": "here", "port": port, "public": "", "key_file": ""}
        listen: Any = SimpleNamespace(order=lambda: order)
        turns = iter([*between, self._end])
        self._patch.setattr(attaching, "time", SimpleNamespace(sleep=lambda _: next(turns)()))
        wanted = attaching.Wanted(listen=listen, tell=lambda attached: None)
        attaching.attach_as_they_come([self._job.pid], wanted)

    def _end(self) -> None:
        self._job.kill()
        self._job.wait()


@pytest.fixture
def followed(job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(job, monkeypatch)


def test_a_rank_whose_port_is_in_use_is_attached_to_once_it_is_free(
    followed: Followed, job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        followed.follow(taken.getsockname()[1], lambda: None, taken.close, lambda: None)
    assert followed.attached == [job.pid]
    assert capsys.readouterr().err.count("[port-in-use]") == 1


def test_a_port_that_stays_in_use_is_a_failure_that_is_said_once(
    followed: Followed, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AttachError, match="1 of 1 ranks") as caught:
        followed.follow(taken.getsockname()[1], lambda: None)
    assert caught.value.code == "port-in-use" and not followed.attached
    assert capsys.readouterr().err.count("[port-in-use]") == 1


@pytest.mark.parametrize("has_rank", [False, True])
def test_it_says_when_it_has_attached_to_nothing(
    followed: Followed, job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str], has_rank: bool
) -> None:
    followed.ranks = {job.pid: None} if has_rank else {}
    followed.follow(0)
    assert ("Nothing was attached to" in capsys.readouterr().err) is not has_rank
