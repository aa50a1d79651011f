"""Captures of jobs on played CUDA: kernels are those that torch's profiler shows by hand, and belong to what launched
them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from played import Play, Played
from until import until

from target import PROBE, Probe

IS_ON = "__import__('torch').autograd._profiler_enabled()"
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
KERNELS = """SELECT kernel, k.operator, k.module, k.stream, k.bytes, COUNT(*) AS n, MIN(k.duration) * 1e6 AS least_us,
MIN(queued) AS queued, COUNT(DISTINCT k.step) AS steps, BOOL_AND(o.step = k.step AND o.operator = k.operator) AS joins
FROM python.kernel_trace k LEFT JOIN python.op_trace o ON o.rank = k.rank AND o.seq = k.operator_seq
WHERE k.rank = 0 GROUP BY ALL"""
BY_OPERATOR = """SELECT operator, SUM(device_duration) * 1e6 AS us FROM python.op_trace
WHERE rank = 0 AND NOT annotation GROUP BY 1"""
TRACKS = """SELECT t.name AS track, COUNT(*) AS n FROM slice s JOIN track t ON s.track_id = t.id
JOIN track g ON t.parent_id = g.id WHERE s.category = 'kernels' AND g.name LIKE 'rank 0%' GROUP BY 1"""
ERRORS = "SELECT name, value FROM stats WHERE severity <> 'info' AND value > 0"


def rows(job: Played, probe: Probe, sql: str) -> list[dict[str, Any]]:
    said = probe(job.target.pid, "query", "--open", "--format", "json", sql).stdout
    return json.loads(said)  # type: ignore[no-any-return]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2])
def test_kernels_and_their_times_are_those_that_torch_shows_by_hand(
    play: Play, probe: Probe, tmp_path: Path, ranks: int
) -> None:
    over = tmp_path / "over"
    job = play("training.py", "operations", "6", "--until", str(over), "--hand", str(tmp_path), ranks=ranks)
    probe("attach", job.target.pid)
    probe(job.target.pid, "capture", "--steps", "3")
    kernels = rows(job, probe, "SELECT rank, kernel, kind, duration FROM python.kernel_trace")
    for rank in range(ranks):
        events = json.loads((tmp_path / f"rank{rank}.hand.json").read_text())["traceEvents"]
        hand = [(each["name"], each["cat"], each["dur"] / 1e6) for each in events if each.get("cat") in ON_DEVICE]
        ours = [(row["kernel"], row["kind"], row["duration"]) for row in kernels if row["rank"] == rank]
        assert Counter(each[:2] for each in ours) == Counter(each[:2] for each in hand)
        assert seconds(ours, ranks) == pytest.approx(seconds(hand, ranks), rel=0.02)
    found = {row["operator"]: row["us"] for row in rows(job, probe, BY_OPERATOR)}
    told = json.loads((tmp_path / "rank0.hand.txt").read_text())
    told = {name: us for name, (_, us) in told.items() if us and name in found}  # torch counts annotations, too
    if ranks > 1:  # each waits for the other
        del told["record_param_comms"]
    assert {"aten::addmm", "aten::mm", "aten::copy_"} < told.keys()
    assert {name: found[name] for name in told} == pytest.approx(told, rel=0.02)
    over.touch()
    job.final(ranks)
    assert [each for each in job.broken() if each.rule != "context" or each.is_ours] == []


def seconds(kernels: list[tuple[str, str, float]], ranks: int) -> float:
    """Without operations of NCCL, where ranks wait for each other."""
    return sum(each[2] for each in kernels if ranks == 1 or not each[0].startswith("nccl"))


def test_kernels_belong_to_the_operator_module_and_stream_that_they_were_launched_in(
    play: Play, probe: Probe, tmp_path: Path
) -> None:
    pytest.importorskip("wasmtime")
    from trace_processor import answers

    over, file = tmp_path / "over", tmp_path / "trace"
    job = play("training.py", "ddp", "6", "--until", str(over), ranks=2)
    probe("attach", job.target.pid)
    told = probe(job.target.pid, "capture", "--steps", "2").stderr
    found = rows(job, probe, KERNELS)
    wrong = [row for row in found if not (row["joins"] and row["steps"] == 2 and row["queued"] >= 0)]
    assert not wrong, f"{told}\n{wrong}"
    products = {(row["operator"], row["module"]): row["n"] for row in found if row["kernel"] == "played_gemm"}
    layers = ("0", "2", "4", "6")
    backwards = {("aten::mm", layer): 4 for layer in layers} | {("aten::mm", "0"): 2}  # the input needs no gradient
    assert products == {("aten::addmm", layer): 2 for layer in layers} | backwards
    assert {round(row["least_us"]) for row in found if row["kernel"] == "played_gemm"} == {100}  # as played
    updates = [row for row in found if "multi_tensor_apply" in row["kernel"]]
    assert updates and all(row["operator"].startswith("aten::_f") and row["module"] == "AdamW" for row in updates)
    (copy,) = (row for row in found if row["kernel"].startswith("Memcpy HtoD"))
    assert (copy["operator"], copy["module"], copy["bytes"], copy["n"]) == ("aten::copy_", None, 8 * 64 * 4, 2)
    (reduce,) = (row for row in found if row["kernel"].startswith("nccl"))
    assert reduce["operator"] == "record_param_comms" and round(reduce["least_us"]) >= 300
    probe(job.target.pid, "export", "--perfetto", file)
    tracks, errors = answers(file, TRACKS, ERRORS)
    assert {row["track"]: row["n"] for row in tracks} == {
        f"device 0, stream {stream}": sum(row["n"] for row in found if row["stream"] == stream)
        for stream in (7, reduce["stream"])
    }
    assert errors == []
    over.touch()


def test_kernels_of_a_graph_belong_to_the_step_of_its_replay_and_captures_of_graphs_go_on(
    play: Play, probe: Probe, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    # A graph is captured in every tenth step: the first one makes the gradients, the others, alike, add to them.
    job = play("training.py", "captures", "22", "--until", str(over))
    probe("attach", job.target.pid)
    job.target.wait_for("made 22")
    probe(job.target.pid, "capture", "--steps", "12")
    sql = "SELECT step, COUNT(*) AS n, MIN(queued) AS queued FROM python.kernel_trace WHERE operator IS NULL GROUP BY 1"
    found = rows(job, probe, sql)
    over.touch()
    job.final(1)
    assert len(found) == 12 and len({row["n"] for row in found}) == 1, found
    assert all(row["n"] > 10 and row["queued"] >= 0 for row in found), found
    assert [each for each in job.broken() if each.rule != "context" or each.is_ours] == []


def test_where_another_profiler_occupies_the_device_kernels_are_unknown_or_the_capture_is_refused(
    play: Play, probe: Probe, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    job = play("training.py", "ddp", "6", "--until", str(over))
    probe("attach", job.target.pid)
    probe(job.target.pid, "eval", "import ctypes; ctypes.CDLL('libplayed.so').played_profiler(1)")
    told = probe(job.target.pid, "capture", "--steps", "1")
    assert "rank 0: kernels are unknown: CUPTI tells nothing" in told.stderr
    probe(job.target.pid, "eval", "import os; os.environ['CUDA_INJECTION64_PATH'] = '/opt/nsight'")
    refused = probe(job.target.pid, "capture", status=7)
    assert "CUDA_INJECTION64_PATH is set: another profiler occupies the device" in refused.stderr
    over.touch()


@pytest.mark.timeout(300)
def test_a_capture_that_is_left_leaves_no_profiler(play: Play, probe: Probe, tmp_path: Path) -> None:
    over = tmp_path / "over"
    words = ("ddp", "6", "--until", str(over), "--sleep", "0.2")
    job = play("training.py", *words, ranks=2, PLAYED_COUNT="1")
    pid = job.target.pid
    for leave in (lambda command: command.send_signal(signal.SIGINT), lambda command: probe(pid, "detach")):
        probe("attach", pid)
        command = [str(PROBE), str(pid), "capture", "--steps", "100"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            try:
                until(lambda: "True" in probe(pid, "eval", IS_ON).stdout)
                leave(running)
                running.communicate(timeout=60)
            finally:
                running.kill()
    probe("attach", pid)
    assert "True" not in probe(pid, "eval", IS_ON).stdout
    over.touch()
    job.final(2)
    counted = [line.split(maxsplit=2)[2] for line in job.target.output.splitlines() if line.startswith("counts")]
    for calls in map(json.loads, counted):
        assert calls["cuptiActivityEnable"] == calls["cuptiActivityDisable"] > 0
    assert [each for each in job.broken() if each.rule != "context" or each.is_ours] == []
