"""Profiles of a real job: what its time goes into, and that nothing stays of them but rows."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from until import until

import probe as library
from probe.errors import SilentError
from probe.profile import launch
from target import PROBE, Probe, Start, Target, links

pytest.importorskip("torch")

SHARES = """SELECT SUM(seconds) FILTER (WHERE stack LIKE '% much (%') AS much,
SUM(seconds) FILTER (WHERE stack LIKE '% little (%') AS little, SUM(seconds) AS whole, MAX(step) - MIN(step) + 1 AS
steps, COUNT(*) FILTER (WHERE stack IS NULL) AS unread
FROM (SELECT * REPLACE (array_to_string(stack, ' ') AS stack) FROM python.profile WHERE is_main)"""
OF_THREADS = """SELECT thread_name, ANY_VALUE(function) AS function, COUNT(DISTINCT thread) AS threads, COUNT(*) AS n,
COUNT(*) FILTER (WHERE holds_gil) AS holding FROM python.profile GROUP BY 1 ORDER BY 1"""


class Job:
    def __init__(self, target: Target, spent: Path, probe: Probe) -> None:
        self.pid, self._target, self._spent, self._probe = target.pid, target, spent, probe
        self._mark = f"{__name__}-{target.pid}"

    def spent(self) -> tuple[float, float]:
        much, little = struct.unpack("2d", self._spent.read_bytes())
        return much, little

    def rows(self, sql: str) -> list[dict[str, str]]:
        told = self._probe(self.pid, "query", "--format", "csv", sql).stdout
        return list(csv.DictReader(io.StringIO(told)))

    def profile(self, *words: str) -> subprocess.Popen[str]:
        command = [str(PROBE), str(self.pid), "profile", *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PROFILED_BY": self._mark},
        )  # fmt: skip

    def profilers(self) -> set[str]:
        """The processes that the commands of profile() have to read its memory."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # ended
                is_profiler = "probe.profile.profiler" in (process / "cmdline").read_text()
                if is_profiler and self._mark in (process / "environ").read_text():
                    found.add(process.name)
        return found

    def has_rows(self) -> bool:
        return self.rows("SELECT COUNT(*) AS n FROM python.profile")[0]["n"] != "0"


@pytest.fixture
def job(start: Start, probe: Probe, tmp_path: Path) -> Iterator[Job]:
    spent = tmp_path / "spent"
    spent.write_bytes(bytes(16))
    target = start("profiled.py", str(spent))
    probe("attach", target.pid)
    yield Job(target, spent, probe)


def test_shares_are_those_that_the_job_measured_and_every_thread_is_there(job: Job, probe: Probe) -> None:
    before = job.spent()
    told = probe(job.pid, "profile", "--seconds", "6", "--format", "csv")
    took = [now - then for now, then in zip(job.spent(), before, strict=True)]
    (found,) = job.rows(SHARES)
    much, little = float(found["much"]), float(found["little"])
    assert abs(much / (much + little) - took[0] / sum(took)) < 0.1, found  # 600 samples: chance alone is 0.016
    assert 5.8 < float(found["whole"]) < 6.5 and int(found["steps"]) > 20 and int(found["unread"]) < 30, found
    threads = {row["thread_name"]: row for row in job.rows(OF_THREADS)}
    assert threads["sleeper"]["function"] == "sleeps" and threads["sleeper"]["holding"] == "0"
    main = threads["MainThread"]
    assert int(main["holding"]) > 0.8 * int(main["n"]) and main["threads"] == threads["sleeper"]["threads"] == "1"
    assert "probe-agent" not in str(threads) and re.match(r"Looked at rank 0 for 6\.\d s, \d+ times: ", told.stderr)
    shown = {row["function"]: row for row in csv.DictReader(io.StringIO(told.stdout))}
    assert {"spin", "small"} <= shown.keys() and shown["spin"]["where"] == "profiled.py"
    assert float(shown["spin"]["total_s"]) > float(shown["spin"]["self_s"]) > 0.1


def test_the_samples_of_a_thread_add_up_to_the_time(job: Job) -> None:
    with library.connect(str(job.pid)) as connection:
        (taken,) = connection.profile(1.2, rate=2)
    (found,) = job.rows("SELECT SUM(seconds) AS seconds FROM python.profile WHERE is_main")
    assert 1.2 < float(found["seconds"]) == pytest.approx((taken.end_ns - taken.start_ns) / 1e9)


PHASES = """SELECT (SELECT SUM(seconds) FILTER (WHERE phase = 'other') / SUM(seconds) FROM python.profile
WHERE phase IS NOT NULL) AS seen, (SELECT SUM(other_duration) / SUM(duration) FROM python.step_trace
SEMI JOIN (FROM python.profile WHERE phase IS NOT NULL) USING (step) WHERE sampled) AS measured,
(SELECT LIST(DISTINCT phase ORDER BY phase) FROM python.profile WHERE is_main) AS phases,
(SELECT COUNT(phase) FROM python.profile WHERE NOT is_main) AS of_others"""


def test_samples_are_in_the_phases_that_step_trace_measured(job: Job, probe: Probe) -> None:
    probe(job.pid, "set", "sample=1")
    probe(job.pid, "profile", "--seconds", "8", "--rate", "200")
    (found,) = job.rows(PHASES)
    assert abs(float(found["seen"]) - float(found["measured"])) < 0.08, found
    assert float(found["measured"]) > 0.7 and found["of_others"] == "0"
    assert {"backward", "other"} <= set(re.findall(r"\w+", found["phases"])), found


def test_a_profile_of_so_many_steps_ends_with_them(job: Job, probe: Probe) -> None:
    probe(job.pid, "profile", "--steps", "15")
    (found,) = job.rows(SHARES)
    assert 15 <= int(found["steps"]) <= 60, found


def test_a_job_that_ends_no_steps_is_told_to_be_profiled_by_seconds(
    start: Start, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_PATIENCE_S", 0.5)
    target = start("plain.py")
    probe("attach", target.pid)
    with (
        library.connect(str(target.pid)) as connection,
        pytest.raises(SilentError, match="has ended no step") as caught,
    ):
        connection.profile(60, steps=3)
    assert (caught.value.code, caught.value.hint) == ("few-steps", "Give --seconds instead of --steps.")


def test_one_profile_at_a_time_and_the_next_goes_on_where_a_killed_one_ended(job: Job, probe: Probe) -> None:
    first = job.profile("--seconds", "60")
    until(job.has_rows)
    refused = probe(job.pid, "profile", status=7)
    assert "[profiled] Rank 0" in refused.stderr and refused.stderr.count("\n") == 1
    (running,) = job.profilers()
    os.kill(int(running), signal.SIGKILL)
    _, err = first.communicate(timeout=30)
    assert first.returncode == 7 and "ended without a word" in err
    before = int(job.rows("SELECT COUNT(*) AS n FROM python.profile")[0]["n"])
    probe(job.pid, "profile", "--seconds", "0.5")
    assert int(job.rows("SELECT COUNT(*) AS n FROM python.profile WHERE stack IS NOT NULL")[0]["n"]) > before > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_ends_takes_its_profilers_along_and_leaves_the_rows(job: Job, number: signal.Signals) -> None:
    first = job.profile("--seconds", "60")
    until(job.has_rows)
    first.send_signal(number)
    _, err = first.communicate(timeout=30)
    assert first.returncode == (130 if number == signal.SIGINT else -number)
    assert err == ("probe: [interrupted] Interrupted.\n" if number == signal.SIGINT else "")
    until(lambda: not job.profilers())
    assert job.has_rows()


def test_detach_ends_a_profile_and_frees_its_memory(job: Job, probe: Probe) -> None:
    first = job.profile("--seconds", "60")
    until(job.has_rows)
    probe(job.pid, "detach")
    _, err = first.communicate(timeout=30)
    assert first.returncode == 8 and "[gone]" in err
    assert not [link for link in links(job.pid) if "probe" in link] and not job.profilers()
