"""`probe record` on real jobs: what is in the files after kills, on a full disk, and when the job has ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hangs import Job, started
from recorder import begun
from until import until

from probe.record import manifest
from probe.record.archive import Archive
from target import PROBE, Probe, Start, Target

pytest.importorskip("torch")

STEPS = "SELECT COUNT(*) AS n, COUNT(DISTINCT step) AS steps, MIN(step) AS first, MAX(step) AS last FROM step_trace"


@pytest.fixture
def job(start: Start, probe: Probe) -> Target:
    job = start("loop.py", "--sleep", "0.005")
    probe("attach", job.pid)
    return job


def steps(probe: Probe, folder: Path) -> dict[str, int]:
    """None of the steps twice, none between two of them missing; how many there are, and which is the last."""
    (row,) = json.loads(probe(folder, "query", "--json", STEPS).stdout)
    assert row["n"] == row["steps"] and (not row["n"] or row["n"] == row["last"] - row["first"] + 1), row
    return dict(row)


def files(folder: Path) -> set[Path]:
    """Of rows of steps."""
    return set(folder.glob("job=*/table=python.step_trace/*/*.parquet"))


def end(recorder: subprocess.Popen[str], number: signal.Signals) -> None:
    recorder.send_signal(number)
    recorder.communicate(timeout=60)


@pytest.mark.long
def test_kills_of_recorder_and_job_lose_nothing_and_double_nothing(job: Target, probe: Probe, tmp_path: Path) -> None:
    folder, last = tmp_path / "runs", 0
    for _ in range(2):
        recorder, before = begun(job.pid, folder), files(folder)
        until(lambda: files(folder) - before, 60)  # noqa: B023  # called at once
        end(recorder, signal.SIGKILL)
        last = max(last, steps(probe, folder)["last"])
    recorder = begun(job.pid, folder)
    second = probe(job.pid, "record", folder, "--name", "exp7", status=2)
    assert second.stderr.startswith("probe: [recorded-already]")
    until(lambda: steps(probe, folder)["last"] > last, 60)
    live = json.loads(probe(job.pid, "query", "--json", STEPS).stdout)[0]["last"]
    os.kill(job.pid, signal.SIGKILL)
    recorder.communicate(timeout=60)
    assert steps(probe, folder)["last"] >= live
    assert not list(folder.rglob(".*.part"))
    events = probe(folder, "query", "--format", "csv", "SELECT event FROM probe.events ORDER BY time").stdout.split()
    assert events == ["event", "begun", "begun", "begun", "ended"]
    manifest = json.loads((folder / "job=exp7" / "job.json").read_text())
    assert "loop.py" in manifest["command"] and manifest["ranks"]["0"]["torch"]


def test_a_kill_of_recorder_and_job_at_once_loses_what_came_since_the_last_flush_at_most(
    job: Target, probe: Probe, tmp_path: Path
) -> None:
    recorder = begun(job.pid, tmp_path, write_s=3600)
    until(lambda: mirrored_steps(tmp_path) > 200, 60)
    seen = mirrored_steps(tmp_path)
    recorder.kill()
    os.kill(job.pid, signal.SIGKILL)
    recorder.communicate()
    assert recorded_steps(tmp_path) < seen
    assert steps(probe, tmp_path)["last"] >= seen - 1
    assert recorded_steps(tmp_path) >= seen - 1 and not list(tmp_path.glob("job=*/.mirror*"))


def mirrored_steps(folder: Path) -> int:
    """As of the last flush."""
    found = [
        json.loads(path.read_text())["last"].get("steps", 0) for path in folder.glob("job=*/.mirror*/*/about.json")
    ]
    return max(found, default=0)


def recorded_steps(folder: Path) -> int:
    """As files have them that every reader understands."""
    return sum(each.rows for each in Archive(folder).files("python.step_trace")[0])


def test_a_recorder_that_was_stopped_goes_on_and_the_open_rows_are_replaced(
    job: Target, probe: Probe, tmp_path: Path
) -> None:
    for _ in range(2):
        recorder = begun(job.pid, tmp_path)
        end(recorder, signal.SIGINT)
        assert recorder.returncode == 0 and steps(probe, tmp_path)["n"] > 0
    opened = [path.parent for path in tmp_path.rglob("open-*.parquet")]
    assert opened and len(opened) == len(set(opened))


def test_two_runs_of_one_name_have_a_folder_each(job: Target, start: Start, probe: Probe, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    other = start("loop.py", "--sleep", "0.005")
    probe("attach", other.pid)
    for pid in (job.pid, other.pid, job.pid):
        end(begun(pid, runs), signal.SIGINT)
    assert {path.name for path in runs.iterdir()} == {"job=exp7", "job=exp7-2"}
    told = probe(runs, "query", "--format", "csv", "SELECT job, pid FROM probe.agents ORDER BY job").stdout.split()
    assert told == ["job,pid", f"exp7,{job.pid}", f"exp7-2,{other.pid}"]
    assert all(steps(probe, each)["n"] > 0 for each in runs.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_recording_pauses_on_a_full_disk_or_without_its_folder_and_goes_on(
    job: Target, probe: Probe, small_disk: Path
) -> None:
    folder = small_disk / "runs"
    recorder = begun(job.pid, folder)
    try:
        until(lambda: files(folder), 60)
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * (1 << 16))
        assert recorder.stderr is not None
        assert any("Nothing can be written: No space left on device" in line for line in recorder.stderr)
        filler.unlink()
        assert any("Recording goes on" in line for line in recorder.stderr)
        assert steps(probe, folder)["n"] > 0
        until(lambda: not list(folder.rglob(".*.part")))  # but those of the flush under way
        gone = folder.rename(small_disk / "gone")
        shutil.rmtree(gone, ignore_errors=True)  # the recorder may be writing into it
        until(lambda: files(folder), 60)
    finally:
        end(recorder, signal.SIGINT)
    assert steps(probe, folder)["n"] > 0
    assert job.alive


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_recording_pauses_while_nothing_may_be_renamed_and_goes_on(job: Target, probe: Probe, small_disk: Path) -> None:
    """As on a mount that lets files be made, but neither renamed nor removed."""
    folder = small_disk / "runs"
    recorder = begun(job.pid, folder)
    try:
        until(lambda: files(folder), 60)
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        if subprocess.run(["chattr", "+a", *folders]).returncode:
            pytest.skip("this system has no folders in which nothing may be renamed")
        assert recorder.stderr is not None
        assert any("Nothing can be written: Operation not permitted" in line for line in recorder.stderr)
        time.sleep(5)  # five tries
        parts = [path.parent for path in folder.rglob(".*.part")]
        assert parts and len(parts) == len(set(parts))  # not one more with each try
        subprocess.run(["chattr", "-a", *folders], check=True)
        assert any("Recording goes on" in line for line in recorder.stderr)
    finally:
        end(recorder, signal.SIGINT)
    assert not list(folder.rglob(".*.part"))
    assert steps(probe, folder)["n"] > 0 and job.alive


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_run_records_beside_the_job_until_it_ends_and_why_knows_what_the_job_was(probe: Probe, tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(
        "import os, torch\nos.chdir(os.path.dirname(__file__))\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(100)))\n"
        "adam = torch.optim.Adam(model.parameters())\n"
        "while not os.path.exists('enough'):\n"
        "    model(torch.randn(2, 4)).sum().backward(); adam.step(); adam.zero_grad()\n"
    )
    runs = tmp_path / "runs"
    run = subprocess.Popen([PROBE, "run", "--record", runs, "--name", "night", "--", sys.executable, script])
    try:
        until(lambda: manifest.asked(manifest.read(runs / "job=night"), "values"), 60)
        until(lambda: steps(probe, runs)["n"] > 50, 60)
    finally:
        (tmp_path / "enough").touch()
    assert run.wait(60) == 0
    assert "ended" in probe(runs, "query", "SELECT event FROM probe.events").stdout  # all is there once run returns
    assert steps(probe, runs)["n"] > 50
    told = probe(runs / "job=night", "why").stdout
    assert "Unfused optimizer: adam (Adam)" in told and "probe $ENDPOINT eval" in told and "since-change" not in told
    (runs / "job=night" / "job.json").unlink()
    assert "Unfused optimizer" not in probe(runs / "job=night", "why").stdout  # which nobody can read any more


def test_a_recording_knows_why_its_job_stood_still(start: Start, probe: Probe, tmp_path: Path) -> None:
    job = start("hanging.py", "sleeps", ranks=2, ready="")
    hangs = Job(job, started)
    hangs.wait_for("trains")
    hangs.hang()
    hangs.wait_for("hangs")
    probe("attach", job.pid)
    recorder = begun(job.pid, tmp_path, stands_s=5.0)
    until(lambda: "stands" in probe(tmp_path, "query", "SELECT event FROM probe.events").stdout, 150)
    end(recorder, signal.SIGINT)
    told = json.loads(probe(tmp_path, "why", "--json").stdout)
    live = json.loads(probe(job.pid, "hang", "--json", status=None).stdout)
    assert told["verdict"]["code"] == "hung" and told["findings"][0]["sentence"] == live["verdict"]
