"""Who holds the memory of a real job that leaks, and that nothing of the job runs, changes or stays for a look."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from until import until

from target import Probe, Start, Target

pytest.importorskip("torch")

PLANTED = {  # holder, kind -> tensors that each step leaves
    ("train().losses[*]", "activation"): 3,
    ("CACHE[*]", "variable"): 1,
    ("train().record closure of record().seen[*]", "variable"): 1,
    ("train().errors[*] traceback, risky().scaled", "variable"): 1,
    ("train().copies[*]", "parameter"): 2,
    ("train().callbacks[*].args[*]", "variable"): 1,
    ("train().packed[*] packed by a hook for ExpBackward0[*]", "activation"): 1,
    ("train().contexts[*] ctx of ScaleBackward.mine", "activation"): 1,
    ("train().checkpoints[*]", "activation"): 1,
    ("train().tracker.outputs['logits'][*]", "variable"): 1,
    ("Registry.store[*]", "variable"): 1,
    ("train().net.stats['norms'][*]", "variable"): 1,
    ("train().source (generator batches()).past[*]", "variable"): 1,
    ("remember default of remember().seen[*]", "variable"): 1,
    ("features cache[*]", "cache"): 1,
    ("train().work.queue[*]['x']", "variable"): 1,
    ("train().dog[*]", "variable"): 1,
    ("train().table[*]", "variable"): 1,
    ("train().last.before…", "variable"): 1,
}
FORKS_AMID_A_LOOK = """
import __main__, gc, os, sys, threading
sys.setswitchinterval(1e-5)
__main__.records = [{'a': [n]} for n in range(20_000)]
def fork():
    while gc.isenabled():
        pass
    if not (child := os.fork()):
        os._exit(10 + gc.isenabled())
    __main__.told = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
__main__.forking = threading.Thread(target=fork, daemon=True)
__main__.forking.start()
"""
OWNED = """SELECT kind, holder, module, shape, dtype, bytes FROM python.tensor_trace
WHERE holder LIKE 'train().net.%' AND kind <> 'variable' ORDER BY ALL"""
BUCKETS = """SELECT rank, SUM(bytes) AS bytes FROM python.tensor_trace
WHERE kind = 'gradient' AND holder = 'main().train_model: bucket' GROUP BY ALL ORDER BY ALL"""
SAMPLED = "SELECT * FROM python.memory_trace ORDER BY start_ns"
WHOLE = """SELECT COUNT(*) - COUNT(DISTINCT storage) AS twice, SUM(bytes) AS bytes,
SUM(bytes) FILTER (kind <> 'other') AS named, MIN(step) AS step FROM python.tensor_trace"""


@pytest.fixture(scope="module")
def leaking(start_once: Start, probe: Probe) -> Target:
    target = start_once("holding.py")
    probe("attach", target.pid)
    return target


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_what_has_grown_since_the_last_look_is_what_each_step_left(leaking: Target, probe: Probe) -> None:
    first = probe(leaking.pid, "memory", "--diff", "--format", "csv")
    assert "nothing to compare with" in first.stderr and rows(first.stdout) == []
    before = leaking.output.count("weights")
    leaking.wait_for("weights", times=before + 1)
    told = probe(leaking.pid, "memory", "--diff", "--format", "csv")
    steps = int(re.findall(r"Since the last look, (\d+) steps ago", told.stderr)[0])
    grown = {(row["holder"], row["kind"]): int(row["tensors"]) for row in rows(told.stdout)}
    missing = {key: (grown.get(key), each * steps) for key, each in PLANTED.items() if grown.get(key) != each * steps}
    assert missing == {}, grown
    assert re.search(r"Looked at rank 0 for [\d, ]+ ms.*: \d+ tensors with \d+\.\d MB\.\nNot listed: ", told.stderr)


def test_each_storage_is_a_row_and_nearly_all_bytes_are_named(leaking: Target, probe: Probe) -> None:
    (found,) = rows(probe(leaking.pid, "query", "--format", "csv", WHOLE).stdout)
    assert found["twice"] == "0" and int(found["named"]) > 0.95 * int(found["bytes"]), found
    assert int(found["step"]) > 2


def test_what_modules_and_optimizers_own_has_the_parameters_name(leaking: Target, probe: Probe) -> None:
    found = [tuple(row.values()) for row in rows(probe(leaking.pid, "query", "--format", "csv", OWNED).stdout)]
    weight = ("first", "(32, 32)", "float32", "4096")
    assert ("buffer", "train().net.scale", "Net", "(32, 32)", "float32", "4096") in found
    assert ("parameter", "train().net.first.weight", *weight) in found
    assert ("optimizer", "train().net.first.weight: exp_avg", *weight) in found
    assert ("parameter", "train().net.second.0.bias", "second.0", "(32)", "float32", "128") in found
    assert len(found) == 4 + 12 + 1


def test_ranks_are_added_up_and_ddps_buckets_are_named(start: Start, probe: Probe) -> None:
    job = start("loop.py", ranks=2)
    probe("attach", job.pid)
    told = probe(job.pid, "memory", "--format", "csv")
    found = {(row["kind"], row["holder"]): row for row in rows(told.stdout)}
    assert "Looked at ranks 0-1 for " in told.stderr
    assert found["parameter", "main().train_model.module"]["tensors"] == "8"
    buckets = rows(probe(job.pid, "query", "--format", "csv", BUCKETS).stdout)
    assert [(row["rank"], row["bytes"]) for row in buckets] == [("0", "644"), ("1", "644")]


def test_the_memory_of_the_process_is_sampled_each_second(leaking: Target, probe: Probe) -> None:
    found = until(lambda: rows(probe(leaking.pid, "query", "--format", "csv", SAMPLED).stdout))
    resident = int(Path(f"/proc/{leaking.pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)
    last = found[-1]
    assert float(last["rss_mb"]) == pytest.approx(resident, rel=0.1) and float(last["shared_mb"]) > 10
    assert any(float(row["pss_mb"] or 0) > 10 for row in found)
    assert {(row["device"], row["allocated_mb"]) for row in found} == {("cpu", "")}


def test_a_look_that_takes_too_long_goes_on_at_the_next_boundaries(start: Start, probe: Probe) -> None:
    job = start("loop.py")
    probe("attach", job.pid)
    many = "import __main__, torch; __main__.records = [{'a': [n]} for n in range(100_000)]"
    probe(job.pid, "eval", f"{many}; __main__.records[50_000]['wanted'] = torch.ones(99)")
    told = probe(job.pid, "memory", "--wait", "60", "--format", "csv", timeout=100)
    assert re.search(r"Looked at rank 0 for \d+(, \d+)+ ms, at \d boundaries: ", told.stderr), told.stderr
    assert "not followed to the end" not in told.stderr
    (wanted,) = (row for row in rows(told.stdout) if row["holder"] == "records[*]['wanted']")
    assert (wanted["tensors"], wanted["kind"]) == ("1", "variable")


def test_a_child_forked_by_another_thread_amid_a_look_has_its_garbage_collected(start: Start, probe: Probe) -> None:
    job = start("loop.py")
    probe("attach", job.pid)
    probe(job.pid, "eval", FORKS_AMID_A_LOOK)
    probe(job.pid, "memory", "--wait", "30")
    assert "told 11" in probe(job.pid, "eval", "__main__.forking.join(30); print('told', __main__.told)").stdout


def test_a_history_needs_cuda(leaking: Target, probe: Probe) -> None:
    assert "it does not use CUDA" in probe(leaking.pid, "memory", "--history", status=7).stderr
    assert "for --history" in probe(leaking.pid, "memory", "--steps", "3", status=2).stderr


def test_nothing_of_the_job_ran_was_kept_or_changed(leaking: Target, start: Start, probe: Probe) -> None:
    alone = start("holding.py").wait_for("weights", times=2)
    output = leaking.wait_for("weights", times=2)
    assert " kept " not in f" {output}" and "ran " not in output, output
    assert re.findall(r"weights (\w+)", alone)[:2] == re.findall(r"weights (\w+)", output)[:2]


def test_a_look_without_a_boundary_says_what_it_left_out(leaking: Target, probe: Probe) -> None:
    told = probe(leaking.pid, "memory", "--wait", "0", "--format", "csv")
    kinds = {row["kind"] for row in rows(told.stdout)}
    assert {"parameter", "optimizer", "variable"} <= kinds and "activation" not in kinds
    assert "rank 0: gradients and graphs are left out" in told.stderr
    probe(leaking.pid, "detach")
    assert "ran " not in leaking.output and leaking.alive
