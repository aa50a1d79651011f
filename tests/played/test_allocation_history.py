"""The history of a device's allocator: what torch says that it did, as rows and as the file for torch's viewer."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from played import Play, Played
from until import until

from target import PROBE, Probe

MB = 1 << 20
ROWS = "SELECT * FROM python.allocation_trace ORDER BY start_ns"
IS_ON = "torch._C._cuda_isHistoryEnabled()"
IS_TORCHS = "type(torch._C._cuda_record_memory_history).__name__"


def attached(play: Play, probe: Probe, kind: str) -> Played:
    job = play("allocating.py", kind)
    probe("attach", job.target.pid)
    return job


def rows(job: Played, probe: Probe) -> list[dict[str, Any]]:
    return json.loads(probe(job.target.pid, "query", "--format", "json", ROWS).stdout)  # type: ignore[no-any-return]


def said(job: Played, probe: Probe, expression: str) -> str:
    return probe(job.target.pid, "eval", f"import torch; print({expression})").stdout.split()[-1]


def recording(job: Played, probe: Probe, *words: str) -> subprocess.Popen[str]:
    """A command that records for a minute, once it does."""
    command = [str(PROBE), str(job.target.pid), "memory", "--history", "--seconds", "60", *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: said(job, probe, IS_ON) == "True")
    return running


def viewer() -> Any:
    """torch's own, which needs no torch."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    spec = importlib.util.spec_from_file_location("viewer", Path(torch.origin).parent / "cuda" / "_memory_viz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_thing_that_the_allocator_did_is_a_row_and_torchs_viewer_opens_the_file(
    play: Play, probe: Probe, tmp_path: Path
) -> None:
    job, file = attached(play, probe, "leaking"), tmp_path / "snapshot.pickle"
    reserved = said(job, probe, "torch.cuda.memory_reserved()")
    told = probe(job.target.pid, "memory", "--history", "--steps", "3", "--snapshot", file, "--format", "json")
    found = rows(job, probe)
    assert re.search(rf"Recorded steps \d+-\d+ of rank 0: {len(found)} entries. Torch then kept the GIL", told.stderr)

    allocs = [row for row in found if row["action"] == "alloc"]
    frees = [row for row in found if row["action"] == "free_requested"]
    leaks = [row for row in allocs if row["bytes"] == MB and row["duration"] is None]
    assert [(row["function"], Path(row["file"]).name) for row in leaks] == [("train", "allocating.py")] * 3
    assert len({row["step"] for row in leaks}) == 3 and leaks[0]["stack"][0].startswith("<module> (")
    assert len(allocs) - len(frees) == 3 and all(row["device"] == "cuda:0" for row in found)
    assert sum(row["bytes"] for row in allocs) - sum(row["bytes"] for row in frees) == 3 * MB
    (line,) = [each for each in json.loads(told.stdout) if each["left_mb"] == 3 * MB / 1e6]
    assert (line["allocations"], line["where"]) == (3, f"allocating.py:{leaks[0]['line']}")

    snapshot, viz = pickle.loads(file.read_bytes()), viewer()
    assert f"total_reserved: {viz.Bytes(int(reserved))}" in viz.segsum(snapshot)
    assert viz.trace(snapshot).count("del ") == len(frees)
    assert "Active Memory Timeline" in viz.trace_plot(snapshot) and len(snapshot["device_traces"][0]) == len(found)
    assert said(job, probe, IS_ON) == "False" and said(job, probe, IS_TORCHS) == "builtin_function_or_method"
    assert [each for each in job.broken() if each.is_ours] == []


def test_a_job_without_torchs_compiler_does_not_get_it(play: Play, probe: Probe) -> None:
    """To name the frames of a snapshot torch would import it."""
    job = attached(play, probe, "mlp")
    probe(job.target.pid, "eval", "import sys, torch; del sys.modules['torch._inductor'], torch._inductor")
    probe(job.target.pid, "memory", "--history", "--steps", "1")
    assert said(job, probe, "'torch._inductor' in __import__('sys').modules or '_inductor' in vars(torch)") == "False"
    assert any(row["stack"] for row in rows(job, probe))


def test_what_the_job_records_itself_is_left_to_it(play: Play, probe: Probe) -> None:
    job = attached(play, probe, "recording")
    told = probe(job.target.pid, "memory", "--history", status=7)
    assert "it records the history of its allocator itself" in told.stderr
    probe(job.target.pid, "memory")
    actions = "sorted({each['action'] for each in torch.cuda.memory._snapshot()['device_traces'][0]})"
    assert said(job, probe, f"''.join({actions})") == "allocfree_completedfree_requested"


def test_where_the_job_begins_to_record_ours_ends_first(play: Play, probe: Probe) -> None:
    job = attached(play, probe, "mlp")
    running = recording(job, probe)
    probe(job.target.pid, "eval", "import torch; torch.cuda.memory._record_memory_history(max_entries=7)")
    assert "the job began to record it itself" in running.communicate(timeout=60)[1] and running.returncode == 7
    entries = "len(torch.cuda.memory._snapshot()['device_traces'][0])"
    until(lambda: said(job, probe, entries) == "7")
    assert said(job, probe, IS_TORCHS) == "builtin_function_or_method"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_its_command(play: Play, probe: Probe, end: signal.Signals) -> None:
    job = attached(play, probe, "mlp")
    running = recording(job, probe)
    assert "another command is recording" in probe(job.target.pid, "memory", "--history", status=7).stderr
    running.send_signal(end)
    assert running.wait(30) == (130 if end == signal.SIGINT else -end)
    until(lambda: said(job, probe, IS_ON) == "False")
    assert said(job, probe, IS_TORCHS) == "builtin_function_or_method" and rows(job, probe) == []


def test_a_detach_ends_it(play: Play, probe: Probe) -> None:
    job = attached(play, probe, "mlp")
    running = recording(job, probe)
    probe(job.target.pid, "detach")
    assert running.wait(60) != 0
    probe("attach", job.target.pid)
    assert said(job, probe, IS_ON) == "False" and said(job, probe, IS_TORCHS) == "builtin_function_or_method"


def test_of_each_device_the_last_entries_are_kept(play: Play, probe: Probe) -> None:
    import probe as library

    job = attached(play, probe, "mlp")
    with library.connect(str(job.target.pid)) as connection:
        (taken,) = connection.history(60, steps=5, entries=20, stacks=False)
    assert taken.steps == 5 and len(taken.snapshot["device_traces"][0]) == 20
    assert {row["stack"] for row in rows(job, probe)} == {None}


def test_each_rank_has_a_file_of_its_own(play: Play, probe: Probe, tmp_path: Path) -> None:
    job = play("allocating.py", "mlp", ranks=2)
    probe("attach", job.target.pid)
    told = probe(job.target.pid, "memory", "--history", "--steps", "2", "--snapshot", tmp_path / "mine.pickle")
    assert "of ranks 0-1: " in told.stderr
    assert sorted(each.name for each in tmp_path.glob("mine*")) == ["mine.rank0.pickle", "mine.rank1.pickle"]
