"""The command against real jobs: every verb, and every kind of wrong input."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from until import until

from target import ATTACHED, PROBE, TARGETS, Probe, Start, Target, descendants, links

SQL = "SELECT module, stage, COUNT(*) AS n FROM python.torch_trace GROUP BY ALL ORDER BY ALL"


@pytest.fixture
def job(start: Start) -> Target:
    return start("loop.py", "--sleep", "0.05")


@pytest.fixture(scope="module")
def attached(start_once: Start, probe: Probe) -> Target:
    made = start_once("loop.py", "--sleep", "0.05")
    probe("attach", made.pid)
    return made


def test_attach_query_eval_detach(job: Target, probe: Probe) -> None:
    assert ATTACHED.fullmatch(probe("attach", job.pid).stdout)
    rows = json.loads(wait_for_rows(job, probe))
    assert {row["stage"] for row in rows} == {"forward", "backward", "step"}
    done = probe(job.pid, "eval", "print(type(model).__name__); optimizer.param_groups[0]['lr']")
    assert done.stdout == "Sequential\n0.01\n"
    assert re.search(r"ran at step \d+, training held \d+(\.\d+)? m?s", done.stderr)
    assert probe(job.pid, "detach").stdout == f"detached  rank 0  pid {job.pid}\n"
    assert "not-attached" in probe(job.pid, "query", SQL, status=3).stderr
    assert job.alive


def last_step(job: Target, probe: Probe) -> int:
    rows = probe(job.pid, "query", "--format", "json", "SELECT MAX(step) AS step FROM python.torch_trace").stdout
    return int(json.loads(rows)[0]["step"])


def wait_for_rows(job: Target, probe: Probe) -> str:
    def rows() -> str:
        return probe(job.pid, "query", "--format", "json", SQL).stdout.replace("[]\n", "")

    return until(rows, why=lambda: "no rows came")


def test_a_second_attach_reports_the_running_agent(attached: Target, probe: Probe) -> None:
    assert probe("attach", attached.pid).stdout.startswith(f"already   rank 0  pid {attached.pid} ")


# As conda and an agent of sweeps do: Python without torch, which waits for the program.
WRAPPER = (sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))")


@pytest.mark.parametrize("wrapper", [(), WRAPPER], ids=["alone", "wrapped"])
def test_run_attaches_to_the_ranks_as_they_appear(probe: Probe, tmp_path: Path, wrapper: tuple[str, ...]) -> None:
    target = Target((str(PROBE), "run", "--", *wrapper, sys.executable, str(TARGETS / "loop.py")),
                    tmp_path / "run.txt", {})  # fmt: skip
    try:
        target.wait_for("attached  rank 0")
        target.wait_for("ready")  # the attach comes while torch is imported
        assert "Sequential" in probe(target.pid, "eval", "type(model)").stdout
    finally:
        target.end()
    assert target.process.returncode == -15 or target.process.returncode == 143


@pytest.mark.alone
def test_the_only_attached_job_needs_no_endpoint(job: Target, probe: Probe) -> None:
    probe("attach", job.pid)
    done = probe("eval", "1 + 1", status=None)
    if "several-jobs" not in done.stderr:  # another job of this machine may be attached
        assert (done.stdout, f"probe: using {job.pid}" in done.stderr) == ("2\n", True)


@pytest.mark.parametrize(
    ("words", "status"),
    [(["query", "--format", "csv", "SELECT 7 AS n"], 0), (["query", "SELEC"], 5), (["sql"], 0), (["sql", "--no"], 2)],
)
def test_a_forked_command_says_what_a_started_one_does(
    attached: Target, probe: Probe, words: list[str], status: int
) -> None:
    sql = "SELECT 'é' AS e;"
    both = [probe(attached.pid, *words, input=sql, status=status, fresh=fresh) for fresh in (False, True)]
    forked, started = ((done.stdout, re.sub(r"\d+ ms", "ms", done.stderr)) for done in both)
    assert forked == started


def test_a_verb_that_is_forked_in_all_other_tests_imports_what_it_needs(
    job: Target, probe: Probe, tmp_path: Path
) -> None:
    probe("attach", job.pid)
    probe("key", "create", tmp_path / "job.key", fresh=True)
    lists = {("list",): "loop.py", ("names",): "loss", ("set",): "sample"}
    assert all(said in probe(*words, "-t", job.pid, fresh=True).stdout for words, said in lists.items())
    assert "[one-rank]" in probe(job.pid, "stragglers", status=2, fresh=True).stderr
    probe(job.pid, "detach", fresh=True)


def test_python_without_torch_is_attached_and_says_what_is_missing(start: Start, probe: Probe) -> None:
    plain = start("plain.py")
    assert "no torch: its tables stay empty" in probe("attach", plain.pid).stdout
    assert probe(plain.pid, "eval", "--now", "os.getpid()").stdout == f"{plain.pid}\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["query", "SELEC 1"], 5, "[query]"),
        (["query", "SELECT * FROM python.torch_trac"], 5, "[unknown-table]"),
        (["query", "SELECT modul FROM python.torch_trace"], 5, "[unknown-column]"),
        (["eval", "1/0"], 1, "ZeroDivisionError"),
        (["eval", "1 +"], 1, "SyntaxError"),
        (["eval", "import sys; sys.exit(3)"], 1, "SystemExit"),
        (["eval", "--timeout", "0.5", "while True: pass"], 6, "[eval-timeout]"),
        (["eval", "--rank", "7", "1"], 2, "There is no rank 7"),
    ],
)
def test_an_error_is_reported_and_the_job_goes_on(
    attached: Target, probe: Probe, words: list[str], status: int, said: str
) -> None:
    done = probe(attached.pid, *words, status=status)
    assert said in done.stderr and 'File "' + str(PROBE.parent) not in done.stderr
    assert probe(attached.pid, "eval", "'still here'").stdout == "'still here'\n"
    step = last_step(attached, probe)
    until(lambda: last_step(attached, probe) > step)


@pytest.mark.parametrize("limit", [9, 12, 30])
def test_a_query_that_may_open_too_few_files_says_so(attached: Target, limit: int) -> None:
    command = ["bash", "-c", f"ulimit -n {limit}; exec {PROBE} {attached.pid} query 'SELECT 1'"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "[open-files]" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_attaching_to_a_pid_that_does_not_exist_fails(probe: Probe) -> None:
    assert "[no-process] There is no process 99999999." in probe("attach", "99999999", status=4).stderr


def test_a_pid_with_several_programs_below_it_is_refused(tmp_path: Path, probe: Probe) -> None:
    script = f"{sys.executable} {TARGETS}/plain.py & {sys.executable} {TARGETS}/plain.py & wait"
    shell = Target(("bash", "-c", script), tmp_path / "shell.txt", {})
    try:
        shell.wait_for("ready", times=2)
        said = probe("attach", shell.pid, status=3).stderr
        assert "[no-ranks]" in said
        assert set(map(int, re.findall(r"\d+", said))) == {shell.pid, *descendants(shell.pid)}
    finally:
        shell.end()


def test_a_process_without_python_is_refused(probe: Probe) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        assert "[not-python]" in probe("attach", sleeper.pid, status=4).stderr
        sleeper.kill()


def test_a_target_that_has_ended_is_reported(start: Start, probe: Probe) -> None:
    job = start("plain.py")
    probe("attach", job.pid)
    job.end()
    assert probe(job.pid, "query", SQL, status=3).stderr.startswith("probe: [endpoint] There is no process")


@pytest.mark.parametrize("verb", ["attach", "doctor"])
def test_the_command_itself_is_not_a_rank_of_its_shell(verb: str) -> None:
    done = subprocess.run(["bash", "-c", f"{PROBE} {verb} $$; exit $?"], capture_output=True, text=True)
    assert done.returncode == 4 and "(bash) is not CPython" in done.stderr
    assert "attached  rank" not in done.stdout


def test_follow_attaches_again_after_a_process_executes_another_program(tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = Target((sys.executable, str(TARGETS / "living.py"), "into_plain", str(go)), tmp_path / "job", {})
    job.wait_for("ready")
    following = subprocess.Popen([str(PROBE), "attach", "--follow", str(job.pid)], stdout=subprocess.PIPE, text=True)
    try:
        assert following.stdout is not None
        assert following.stdout.readline().startswith(f"attached  rank 0  pid {job.pid}")
        go.touch()
        job.wait_for("ready", times=2)
        assert following.stdout.readline().startswith(f"attached  rank 0  pid {job.pid}")
    finally:
        job.end()
        following.communicate(timeout=60)


def test_the_agent_has_ended_when_detach_returns(start: Start, probe: Probe) -> None:
    plain = start("plain.py")
    for _ in range(10):
        probe("attach", plain.pid)
        probe(plain.pid, "detach")
        assert [link for link in links(plain.pid) if "probe" in link] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_hang_watch_also_between_two_looks(
    attached: Target, probe: Probe, number: signal.Signals
) -> None:
    watching = subprocess.Popen(
        [str(PROBE), str(attached.pid), "hang", "--watch", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def pauses() -> bool:
        """It sleeps for longer than between the two halves of a look."""
        end = time.monotonic() + 1.5
        while "nanosleep" in Path(f"/proc/{watching.pid}/wchan").read_text():
            if time.monotonic() > end:
                return True
            time.sleep(0.05)
        return False

    until(pauses)
    watching.send_signal(number)
    _, err = watching.communicate(timeout=60)
    assert watching.returncode == 130 and err.endswith("[interrupted] Interrupted.\n")


# As C code may do while it is initialized; the import then goes on.
SWALLOWING = """
import os, signal, sys
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
sys.path.remove(os.path.dirname(__file__))
del sys.modules["duckdb"]
import duckdb
"""


def test_ctrl_c_in_the_midst_of_an_import_ends_the_command(
    attached: Target, probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "duckdb.py").write_text(SWALLOWING)
    forever = "SELECT COUNT(*) FROM range(1000000000) a, range(1000) b WHERE hash(a.range, b.range) % 3 = 0"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = probe(attached.pid, "query", "--no-server", forever, status=130, fresh=True)
    assert told.stderr.endswith("probe: [interrupted] Interrupted.\n")


def test_follow_attaches_to_ranks_started_by_a_restart(start: Start, tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    env = {"PET_MAX_RESTARTS": "1"}
    job = start("restarting.py", str(fails), ready="round 0", ranks=1, torchrun=True, env=env)
    following = subprocess.Popen(
        [str(PROBE), "attach", "--follow", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    first = following.stdout.readline()
    fails.touch()
    second_pid = job.wait_for("round 1").rpartition("round 1 pid ")[2].split()[0]
    second = following.stdout.readline()
    assert first.startswith("attached  rank 0") and second.startswith("attached  rank 0")
    assert f"pid {second_pid} " in second and f"pid {second_pid} " not in first
    job.end()
    out, err = following.communicate(timeout=60)
    assert (following.returncode, out, err) == (0, "", "")
