"""A recorder of a played agent, with a launcher that is a process of its own: when it ends, and what it has then."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from fake_agent import FakeAgent, resolved
from recorded import plant

from probe.agent.storage.rows import Stream
from probe.errors import EndpointError, OutputError, UsageError
from probe.record import job as job_module
from probe.record import lock
from probe.record import recorder as recorder_module
from probe.record import written as written_module
from probe.record.archive import Archive
from probe.record.mirrored import take_over_what_is_left
from probe.record.recorder import Order, Recorder
from probe.record.retention import Keep
from probe.record.stored import About, write
from probe.streams import OPERATORS, STREAMS

MS = 1_000_000
_MOST = 50  # rounds of a recorder that should have ended long before


class Played:
    """One rank and its launcher.  at: what happens in which round of the recorder; lives: the agent, as it looks."""

    def __init__(self, folder: Path, agent: FakeAgent) -> None:
        self.folder, self.agent, self.lives, self.looks = folder, agent, True, 0
        self.launcher = subprocess.Popen(["sleep", "600"])
        self.followed = [self.launcher.pid]
        self.at = dict[int, Callable[[], None]]()
        self.told, self.rounds, self.trained = list[str](), 0, 0
        self.writings = set[int]()  # the rounds in which steps were written into the tables
        self.at_look = 0  # at which it has ended, 0 for none
        self.is_full = False

    def find(self) -> Any:
        if not self.lives:
            raise EndpointError("There is none.")
        return resolved(self.agent)

    def recorder(self, follow: bool = False, write_s: float = 60.0, keep: Keep | None = None) -> Recorder:
        order = Order(self.folder, "exp7", keep or Keep(), 0.01, write_s, 0.01, follow=self.followed if follow else [])
        return Recorder(self.find, order, self.told.append)

    def stop(self, seconds: float) -> bool:
        time.sleep(seconds)
        self.rounds += 1
        self.at.get(self.rounds, lambda: None)()
        return self.rounds >= _MOST

    def look(self, held: Any) -> bool:
        """As of `job._lives`."""
        self.looks += 1
        if self.looks == self.at_look:
            self.lives = False
        return self.lives

    def capture_deposits(self) -> None:
        """Five operators of the first steps, long before those that a recorder's next window begins with."""
        add = self.agent.log.string("aten::add")
        for at in range(1, 6):
            self.agent.streams[OPERATORS].append(at * MS, at * MS + 9, add, 0, 4242, 0, 0, add, add, add, -1, -1, 0)
        self.agent.publish()

    def write(self, *words: Any) -> None:
        """As of `written.write`."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if any("table=python.step_trace" in str(word) for word in words):
            self.writings.add(self.rounds)
        write(*words)

    def trains(self) -> None:
        self.trained = self.agent.train(1, start=self.trained or 20_000 * MS, unit=MS)
        self.agent.publish()

    def disk_fills(self) -> None:
        """While five steps end."""
        self.is_full = True
        self.agent.train(5, start=20_000 * MS, unit=MS)
        self.agent.publish()

    def disk_has_room(self) -> None:
        self.is_full = False

    def rank_ends(self) -> None:
        self.lives = False

    def launcher_ends(self) -> None:
        self.launcher.kill()
        self.launcher.wait()

    def rows(self, table: str) -> list[dict[str, Any]]:
        files = Archive(self.folder).files(table)[0]
        return [row for each in files for row in pq.ParquetFile(each.path).read().to_pylist()]


@pytest.fixture
def played(agent: Callable[..., FakeAgent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    made = agent()
    made.streams[OPERATORS] = stream = Stream(OPERATORS, STREAMS[OPERATORS], 1 << 20)
    made.facts["streams"][OPERATORS] = {"slots": list(stream.slots), "chunks": stream.chunks}
    made.name_modules()
    made.train(20, unit=MS)
    made.publish()
    played = Played(tmp_path, made)
    monkeypatch.setattr(job_module, "_lives", played.look)
    monkeypatch.setattr(written_module, "write", played.write)
    yield played
    played.launcher_ends()


@pytest.mark.parametrize("at_look", [0, 1, 3])  # between two rounds, before the first flush, within a round
def test_a_recorder_whose_launcher_outlives_the_ranks_ends_with_it(played: Played, at_look: int) -> None:
    played.at_look = at_look
    played.at = {3: played.rank_ends, 8: played.launcher_ends}
    played.recorder(follow=True).run(played.stop)
    assert 8 <= played.rounds < _MOST
    assert [row["event"] for row in played.rows("probe.events")] == ["begun", "ended"]
    assert played.told[-1] == "The job has ended."
    assert len(played.rows("python.step_trace")) == 20


@pytest.mark.parametrize("place", [0, 1])
def test_a_recorder_ends_with_the_last_process_that_may_start_ranks(played: Played, place: int) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        played.followed.insert(place, other.pid)
        played.at = {3: played.rank_ends, 6: played.launcher_ends, 9: other.kill}
        played.recorder(follow=True).run(played.stop)
        other.kill()
    assert 9 <= played.rounds < _MOST


def test_a_recorder_without_a_launcher_ends_with_the_ranks_also_between_two_looks(played: Played) -> None:
    played.at_look = 3
    played.recorder(follow=False).run(played.stop)
    assert played.rounds < _MOST and len(played.rows("python.step_trace")) == 20


def test_a_capture_whose_rows_came_just_before_recording_was_stopped_is_recorded(played: Played) -> None:
    played.recorder().run(lambda seconds: played.capture_deposits() is None)
    assert [row["seq"] for row in played.rows("python.op_trace")] == [1, 2, 3, 4, 5]
    assert played.told[-1] == "Recording was stopped."


def test_a_capture_whose_rows_came_just_before_the_recorder_was_killed_is_taken_over(played: Played) -> None:
    recorder = played.recorder(write_s=0.0)
    recorder.flush()
    played.capture_deposits()
    recorder.flush()
    recorder.close()  # as far as a kill does
    assert played.rows("python.op_trace") == []
    take_over_what_is_left([recorder.folder])
    assert [row["seq"] for row in played.rows("python.op_trace")] == [1, 2, 3, 4, 5]


def test_tables_are_written_soon_at_first_and_then_less_and_less_often(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: float(played.rounds), time_ns=time.time_ns)  # a round takes a second
    monkeypatch.setattr(recorder_module, "time", clock)
    played.at = {**dict.fromkeys(range(1, 40), played.trains), 40: played.rank_ends}
    played.recorder(write_s=10.0).run(played.stop)
    assert sorted(played.writings) == [0, 1, 2, 4, 8, 16, 26, 36, 40]
    assert len(played.rows("python.step_trace")) == 59


def test_the_last_rows_wait_for_room_on_the_disk(played: Played) -> None:
    played.at = {2: played.disk_fills, 3: played.rank_ends, 6: played.disk_has_room}
    played.recorder().run(played.stop)
    assert 6 <= played.rounds < _MOST and len(played.rows("python.step_trace")) == 25
    assert [row["event"] for row in played.rows("probe.events")] == ["begun", "paused", "resumed", "ended"]


def test_a_recorder_that_waits_for_room_can_be_stopped_and_says_what_is_missing(played: Played) -> None:
    played.at = {2: played.disk_fills, 3: played.rank_ends}
    with pytest.raises(OutputError, match="lacks the last rows"):  # so that `record` does not exit with 0
        played.recorder().run(played.stop)
    assert played.rounds == _MOST and len(played.rows("python.step_trace")) == 20
    assert played.told[-2:] == [
        "Nothing can be written: No space left on device.", "The last rows could not be written.",
    ]  # fmt: skip


def test_ranks_that_have_gone_are_kept_until_their_rows_are_written_also_when_others_have_come(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = played.recorder()
    recorder.flush()
    before = recorder._job
    monkeypatch.setattr(recorder, "_others", lambda: resolved(played.agent))
    played.disk_fills()
    recorder._take_new_agents()
    assert recorder._job is before and before.held
    played.disk_has_room()
    recorder._take_new_agents()
    assert recorder._job is not before and not before.held
    recorder.close()


@pytest.mark.parametrize(
    "refused", [PermissionError(errno.EPERM, "not yours"), FileNotFoundError(errno.ENOENT, "gone")]
)
@pytest.mark.parametrize("is_replaced", [False, True])
def test_old_files_that_cannot_be_removed_do_not_keep_a_recorder_from_writing(
    played: Played, monkeypatch: pytest.MonkeyPatch, refused: OSError, is_replaced: bool
) -> None:
    old = [plant(played.folder, "python.step_trace", [{"step": step}], job="theirs") for step in (1, 2)]
    about = About(replaces=(old[0].name,) if is_replaced else ())
    plant(played.folder, "python.step_trace", [{"step": 3}], job="theirs", about=about)
    for path in old:
        os.utime(path, (0, 0))
    unlink = os.unlink

    def unlinked(path: Any, **options: Any) -> None:
        if "job=theirs" in str(path):
            raise refused
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", unlinked)
    played.at = {3: played.rank_ends}
    recorder = played.recorder(write_s=0.0, keep=Keep(days=1.0))
    recorder.run(played.stop)
    assert played.rounds < _MOST and played.told[-1] == "The job has ended."
    kept = ["kept"] * isinstance(refused, PermissionError)
    assert [row["event"] for row in played.rows("probe.events")] == ["begun", *kept, "ended"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_that_cannot_lock_files_is_refused_with_its_reason(
    played: Played, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with pytest.raises(UsageError, match=f"Cannot record into {played.folder}: its file system cannot lock files"):
        played.recorder()
