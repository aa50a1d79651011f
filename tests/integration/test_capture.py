"""Captures of a real job of two ranks: the operators are those that torch's profiler shows, and nothing stays."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from until import until

from probe.capture.trace import Trace
from target import PROBE, Probe, Start, Target, links

pytest.importorskip("torch")

IS_ON = "__import__('torch').autograd._profiler_enabled()"
COUNTS = """SELECT rank, operator, COUNT(*) AS n FROM python.op_trace WHERE step > {} AND NOT annotation
GROUP BY ALL"""


class Job:
    def __init__(self, target: Target, folder: Path, probe: Probe) -> None:
        self.pid, self.target, self.folder, self._probe = target.pid, target, folder, probe

    def rows(self, sql: str) -> list[dict[str, str]]:
        told = self._probe(self.pid, "query", "--format", "csv", sql).stdout
        return list(csv.DictReader(io.StringIO(told)))

    def captured(self) -> subprocess.Popen[str]:
        """A capture that takes half a minute, and has begun."""
        (self.folder / "slow").touch()
        command = [str(PROBE), str(self.pid), "capture", "--steps", "100"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: not self.is_off() or running.poll() is not None)
        assert running.poll() is None, running.communicate()
        return running

    def eval(self, code: str) -> str:
        return self._probe(self.pid, "eval", "--rank", "0", code).stdout.strip()

    def by_hand(self, rank: int = 0) -> dict[str, tuple[int, float, float]]:
        return json.loads((self.folder / f"rank{rank}.hand.txt").read_text())  # type: ignore[no-any-return]

    def is_off(self) -> bool:
        """On all ranks."""
        return "True" not in self._probe(self.pid, "eval", IS_ON).stdout


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("captured")
    target = start_once("captured.py", str(folder), ranks=2)
    probe("attach", target.pid)
    yield Job(target, folder, probe)


def test_all_ranks_are_captured_at_the_same_steps_with_the_operators_that_torch_shows_by_hand(
    job: Job, probe: Probe
) -> None:
    traces = job.folder / "traces"
    told = probe(job.pid, "capture", "--steps", "3", "-o", traces, "--format", "csv")
    assert re.search(r"Captured steps \d+-\d+ of ranks 0-1: \d+ operators, 0 kernels\. Training stood ", told.stderr)
    assert sorted(each.name for each in traces.iterdir()) == ["rank0.pt.trace.json", "rank1.pt.trace.json"]
    (steps,) = job.rows("SELECT COUNT(DISTINCT step) AS n, MIN(step) AS first, MAX(step) AS last FROM python.op_trace")
    assert int(steps["last"]) - int(steps["first"]) == 3, steps  # the last begins before the boundary
    found = {(int(row["rank"]), row["operator"]): int(row["n"]) for row in job.rows(COUNTS.format(-1))}
    for rank in (0, 1):
        hand = {name: count for name, (count, _, _) in job.by_hand(rank).items()}
        ours = {name: count for (of, name), count in found.items() if of == rank}
        trained = {name for name in hand if "Backward" in name or name in ("aten::conv1d", "aten::embedding")}
        assert len(trained) > 10
        assert {name: ours.get(name) for name in trained} == {name: hand[name] for name in trained}
    shown = {row["operator"]: int(row["calls"]) for row in csv.DictReader(io.StringIO(told.stdout))}
    assert shown["aten::embedding"] == 6


@pytest.mark.parametrize("rank", [0, 1])
def test_counts_and_times_are_those_that_torch_makes_of_the_same_trace(job: Job, rank: int) -> None:
    trace = Trace.parse((job.folder / f"rank{rank}.hand.json").read_bytes(), 0)
    rows = [*trace.operator_rows(lambda name: hash(name), 1)]
    inside = dict.fromkeys(range(len(rows) + 1), 0)
    for begin, end, _, caller, *_ in rows:
        inside[caller] += end - begin
    found: dict[str, list[float]] = {}
    for each, (begin, end, *_, number) in zip(trace.operators, rows, strict=True):
        sums = found.setdefault(each.name, [0, 0.0, 0.0])
        for place, value in enumerate((1, (end - begin - inside[number]) / 1e3, (end - begin) / 1e3)):
            sums[place] += value
    hand = {name: told for name, told in job.by_hand(rank).items() if name in found}
    assert len(hand) > 60 and {name: told[0] for name, told in found.items()} == {
        name: told[0] for name, told in hand.items()
    }
    own, whole = (sum(told[place] for told in hand.values()) for place in (1, 2))
    for name, (_, self_us, total_us) in found.items():
        if name.startswith("gloo:"):  # an annotation that ends on another thread: torch gives it no time
            continue
        assert self_us == pytest.approx(hand[name][1], rel=0.02, abs=own / 1000), name
        assert name.startswith("aten::") or total_us == pytest.approx(hand[name][2], rel=0.02, abs=whole / 1000), name


def test_operators_have_the_modules_that_called_them_and_backwards_those_whose_backward_they_are(
    job: Job, probe: Probe
) -> None:
    probe(job.pid, "capture", "--steps", "1")
    sql = """SELECT operator, LIST(DISTINCT module ORDER BY module) AS modules, BOOL_AND(backward) AS backward FROM
    python.op_trace WHERE start_ns >= (SELECT MAX(start_ns) FROM probe.evals) GROUP BY 1"""
    found = {row["operator"]: (row["modules"].replace('"', ""), row["backward"]) for row in job.rows(sql)}
    assert found["aten::embedding"] == ("[table]", "false") and found["EmbeddingBackward0"] == ("[table]", "true")
    assert found["aten::conv1d"] == ("[conv]", "false") and found["ConvolutionBackward0"] == ("[conv]", "true")
    assert "attention.linear1" in found["aten::linear"][0] and "attention.linear1" in found["AddmmBackward0"][0]
    assert found["Optimizer.step#SGD.step"][0] == "[SGD]"


def test_one_rank_is_captured_alone(job: Job, probe: Probe) -> None:
    traces = job.folder / "of one"
    told = probe(job.pid, "capture", "--steps", "2", "--rank", "1", "-o", traces)
    assert re.search(r"Captured steps \d+-\d+ of rank 1: \d+ operators", told.stderr), told.stderr
    assert [each.name for each in traces.iterdir()] == ["rank1.pt.trace.json"]
    sql = """SELECT DISTINCT rank FROM python.op_trace WHERE start_ns >= (SELECT MAX(start_ns) FROM probe.evals)"""
    assert job.rows(sql) == [{"rank": "1"}] and job.is_off()
    refused = probe(job.pid, "capture", "--rank", "2", "-o", job.folder / "of none", status=2)
    assert "There is no rank 2" in refused.stderr and not (job.folder / "of none").exists()


def test_one_capture_at_a_time_and_none_while_the_job_profiles_itself(job: Job, probe: Probe) -> None:
    first = job.captured()
    refused = probe(job.pid, "capture", status=7)
    assert "[captured] Rank" in refused.stderr and refused.stderr.count("\n") == 1
    job.eval("import torch; torch._own = torch.profiler.profile(); torch._own.start()")  # it ends ours, and runs
    refused = probe(job.pid, "capture", "--steps", "1", status=7)
    assert refused.stderr.count("\n") == 1, refused.stderr  # the other rank is captured still
    assert job.eval("torch._own.stop(); len(torch._own.events()) > 0") == "True"
    (job.folder / "slow").unlink()  # the other rank goes on to the end
    _, err = first.communicate(timeout=100)
    assert first.returncode == 0 and "rank 0: it ended after" in err and "began a profiler of its own" in err
    warm = "torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1))"
    job.eval(f"torch._own = {warm}; torch._own.start()")
    refused = probe(job.pid, "capture", status=7)
    assert "[no-capture] Rank 0: its own torch.profiler is running." in refused.stderr
    assert job.eval("torch._own.step(); torch._own.step(); torch._own.stop(); del torch._own") == ""
    probe(job.pid, "capture", "--steps", "1")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_command_that_ends_leaves_no_profiler_running(job: Job, number: signal.Signals) -> None:
    first = job.captured()
    first.send_signal(number)
    _, err = first.communicate(timeout=30)
    assert first.returncode == (130 if number == signal.SIGINT else -number)
    assert err == ("probe: [interrupted] Interrupted.\n" if number == signal.SIGINT else "")
    until(job.is_off, 60)  # long before its end: of a client that was killed, after ten silent seconds
    (job.folder / "slow").unlink()


def test_a_capture_that_nobody_wants_ends_amid_a_validation(job: Job) -> None:
    first = job.captured()
    (job.folder / "validate").touch()
    try:
        first.send_signal(signal.SIGINT)
        assert first.wait(30) == 130
        job.target.wait_for("validates unprofiled", times=2)
    finally:
        (job.folder / "slow").unlink()
        (job.folder / "validate").unlink()


FORKED = """import os, torch
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20
def grown():
    one, before = torch.ones(2), resident()
    for _ in range(20_000): one + 1
    return resident() - before
pid = os.fork()
if not pid:
    os._exit(grown())
os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"""


def test_a_child_that_is_forked_during_a_capture_is_not_profiled(job: Job) -> None:
    first = job.captured()
    assert int(job.eval(FORKED)) < 8  # 20 MB where each operator is recorded
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == 130
    (job.folder / "slow").unlink()
    until(job.is_off, 60)


def test_a_child_that_is_forked_by_a_job_that_was_captured_ends_by_itself(
    start: Start, probe: Probe, tmp_path: Path
) -> None:
    """Kineto would wait there, at the end of the process, for a thread that only its parent has."""
    job = Job(start("captured.py", str(tmp_path), "0"), tmp_path, probe)
    probe("attach", job.pid)
    probe(job.pid, "capture", "--steps", "1")
    second = job.captured()
    (tmp_path / "fork").touch()
    job.target.wait_for("child ended 3")
    second.send_signal(signal.SIGINT)
    assert second.wait(30) == 130
    (tmp_path / "slow").unlink()
    probe(job.pid, "detach")
    (tmp_path / "fork").touch()
    job.target.wait_for("child ended 3", times=2)


def test_detach_waits_for_the_step_that_ends_a_capture(job: Job, probe: Probe) -> None:
    first = job.captured()
    (job.folder / "stand").touch()
    held = probe(job.pid, "detach", status=11)
    assert "[still-held] Still attached: Rank 0: a capture ends only with the step that is under way." in held.stderr
    for name in ("stand", "slow"):
        (job.folder / name).unlink()
    _, err = first.communicate(timeout=60)
    assert first.returncode == 0 and "the agent was about to leave" in err
    assert job.is_off()


def test_detach_ends_a_capture_and_the_weights_are_as_without_it(job: Job, probe: Probe, start: Start) -> None:
    first = job.captured()
    (job.folder / "slow").unlink()
    assert probe(job.pid, "detach").returncode == 0
    _, err = first.communicate(timeout=30)
    assert first.returncode in (7, 8), err
    for line in re.findall(r"ready (\d+)", job.target.output):
        assert not [link for link in links(int(line)) if "probe" in link or "torch-trace" in link]
    probe("attach", job.pid)
    assert job.is_off()
    (job.folder / "end").touch()
    looked_at = sorted(re.findall(r"final (\d+) ([0-9a-f]{64})", job.target.wait_for("final", times=2)))
    alone = start("captured.py", str(job.folder), looked_at[0][0], ready="", ranks=2)
    assert sorted(re.findall(r"final (\d+) ([0-9a-f]{64})", alone.wait_for("final", times=2))) == looked_at


@pytest.mark.parametrize("thread", ["", "joined", "daemon"])
def test_a_job_that_ends_during_its_second_capture_ends_in_order(
    thread: str, start: Start, probe: Probe, tmp_path: Path
) -> None:
    """torch takes a process down that ends, or whose thread ends, while a second profiler is on."""
    job = Job(start("captured.py", str(tmp_path), "0", thread), tmp_path, probe)
    probe("attach", job.pid)
    probe(job.pid, "capture", "--steps", "1")
    second = job.captured()
    (tmp_path / "end").touch()
    out, err = second.communicate(timeout=30)
    assert second.returncode in (7, 8) and not out, err
    assert job.target.process.wait(30) == 0, job.target.output
