"""`probe ENDPOINT sql`: on a real terminal, and from a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal import COLUMNS, Terminal

from target import Probe, Start, Target

PROMPT = r"probe {}>\s*$"
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b;"

Open = Callable[..., Terminal]


@pytest.fixture(scope="module")
def job(start_once: Start) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:  # a path that is short enough for a socket
        yield start_once("answering.py", folder)


@pytest.fixture
def terminal(job: Target, tmp_path: Path) -> Iterator[Open]:
    """Opens the shell on a terminal, at its prompt."""
    opened: list[Terminal] = []

    def open(endpoint: int = job.pid, **options: object) -> Terminal:
        opened.append(Terminal(endpoint, "sql", state=tmp_path / "state", **options))  # type: ignore[arg-type]
        opened[-1].wait_for(f"{endpoint}, 1 rank.*" + PROMPT.format(endpoint))
        return opened[-1]

    yield open
    for each in opened:
        each.end()


def test_a_statement_of_several_lines_is_answered_and_the_next_one_too(terminal: Open, job: Target) -> None:
    shell = terminal()
    shell.type("SELECT COUNT(*) > 5 AS enough,")
    shell.wait_for("-> ")
    shell.type("'a;b' AS text FROM python.step_trace")
    shell.wait_for("-> ")
    shell.type(";")
    shell.wait_for(r"enough  text\n------  ----\ntrue    a;b \n?\(1 row, \d+ ms\)|true    a;b\n\(1 row, \d+ ms\)")
    shell.type("SELECT 40 + 2 AS n; SELECT 43 AS m;")
    shell.wait_for(r"\n42\n\(1 row, \d+ ms\)\n m\n--\n43\n\(1 row, \d+ ms\)\n.*" + PROMPT.format(job.pid))
    shell.type("\x04", enter=False)
    assert shell.wait() == 0


def test_tab_completes_a_column_of_the_table_that_is_named(terminal: Open) -> None:
    shell = terminal()
    shell.type("SELECT retention FROM probe.drops LIMIT 1;" + "\x1b[D" * 26, enter=False)
    shell.wait_for("retention_mb +DOUBLE in MB")
    shell.type("\t", enter=False)
    shell.wait_for("_mb FROM probe.drops")
    shell.type("")
    shell.wait_for(r"\nretention_mb\n-+\n")


def test_candidates_are_shown_with_their_meaning(terminal: Open) -> None:
    shell = terminal()
    shell.type("SELECT optimizer_d", enter=False)
    shell.wait_for(r"optimizer_duration +in python.step_trace")
    shell.type("\x03.sch", enter=False)
    shell.wait_for(r"\.schema +Show the columns of a table, or of all\.")
    shell.type("ema probe.dr", enter=False)
    shell.wait_for("probe.drops")


def test_the_history_is_kept_and_readable_only_by_its_user(terminal: Open, tmp_path: Path) -> None:
    file = tmp_path / "state" / "probe" / "sql_history"
    file.parent.mkdir(parents=True)
    file.touch(mode=0o644)
    shell = terminal()
    shell.type("SELECT 41 + 1")
    shell.wait_for("-> ")
    shell.type("AS kept;")
    shell.wait_for(r"\n  42\n")
    shell.type("quit")
    assert shell.wait() == 0
    assert file.stat().st_mode & 0o777 == 0o600
    again = terminal()
    again.type("\x1b[A\x1b[A", enter=False)
    again.wait_for("AS kept;")
    again.type("")
    again.wait_for(r"\n  42\n")


def test_ctrl_c_cancels_the_query_and_the_shell_continues(terminal: Open, job: Target) -> None:
    shell = terminal()
    for _ in range(2):
        shell.type(f"SELECT 'begun' AS now; {ENDLESS}")
        shell.wait_for(r"\nbegun\n\(1 row")
        shell.press("\x03")
        shell.wait_for(r"\^C\nprobe: \[interrupted\] Interrupted\.\n.*" + PROMPT.format(job.pid))
    shell.type("SELECT 6 * 7 AS n;")
    shell.wait_for(r"\n42\n\(1 row")


def test_ctrl_c_at_the_prompt_clears_the_line(terminal: Open, job: Target) -> None:
    shell = terminal()
    shell.type("SELECT wrong")
    shell.wait_for("-> ")
    shell.type("\x03", enter=False)
    shell.wait_for(PROMPT.format(job.pid))
    shell.type("SELECT 6 * 7 AS n;")
    assert "[" not in shell.wait_for(r"\n42\n\(1 row")


def test_an_error_is_printed_as_query_prints_it_and_the_shell_continues(
    terminal: Open, job: Target, probe: Probe
) -> None:
    shell = terminal()
    sql = "SELECT duratoin FROM python.step_trace"
    shell.type(f"{sql};")
    shown = shell.wait_for(r"\[unknown-column\].*" + PROMPT.format(job.pid))
    told = probe(job.pid, "query", sql, status=5).stderr
    assert told in shown
    shell.type("CREATE TABLE mine AS SELECT 1;")
    shell.wait_for(r"probe: \[query\] CREATE has no effect")
    shell.type(".nonsense")
    shell.wait_for(r"probe: \[usage\] No such command: \.nonsense\.")
    shell.type("SELECT 6 * 7 AS n;")
    shell.wait_for(r"\n42\n\(1 row")


def test_a_wide_or_long_result_fits_the_screen(terminal: Open) -> None:
    shell = terminal()
    shell.type("FROM torch_trace LIMIT 2;")
    shown = shell.wait_for(r"\(2 rows, \d+ ms\)")
    assert "-- row 2 --" in shown and max(map(len, shown.splitlines())) <= COLUMNS
    shell.type("FROM range(1000);")
    shown = shell.wait_for(r"\(1000 rows, \d+ ms; the first 40 are shown, \.rows all shows all\)")
    assert "\n   39\n" in shown and "\n   40\n" not in shown
    shell.type(".rows all")
    shell.type("FROM range(1000);")
    shell.wait_for(r"\n  999\n\(1000 rows, \d+ ms\)")


@pytest.mark.parametrize("key", ["q", "\x1a"], ids=["q", "Ctrl-Z"])
def test_watch_redraws_in_place_until_a_key_is_pressed(terminal: Open, job: Target, key: str) -> None:
    shell = terminal()
    shell.type("SELECT MAX(step) AS newest FROM step_trace;")
    shell.wait_for(r"\(1 row")
    shell.type(".watch 0.1")
    shown = shell.wait_for("(every 0.1 s: SELECT MAX.step. AS newest FROM step_trace.*){4}")
    steps = [int(line) for line in shown.splitlines() if line.strip().isdigit()]
    assert steps == sorted(steps) and steps[0] < steps[-1]
    assert shell.raw.count("\x1b[?1049h") == 1 and shell.raw.count("\x1b[?1049l") == 0
    shell.type(key, enter=False)
    shell.wait_for(PROMPT.format(job.pid))
    assert shell.raw.count("\x1b[?1049l") == 1
    shell.type("SELECT 6 * 7 AS n;")
    shell.wait_for(r"\n42\n\(1 row")


@pytest.mark.parametrize("sql", ["SELECT 1 AS one", ENDLESS], ids=["between two looks", "in a query"])
def test_ctrl_c_ends_a_watch_and_restores_the_screen(terminal: Open, job: Target, sql: str) -> None:
    shell = terminal()
    shell.type(f".watch 30 {sql}")
    shell.wait_for_raw("any key to stop" if "one" in sql else "\x1b[?1049h")
    shell.press("\x03")
    assert "probe: [" not in shell.wait_for(PROMPT.format(job.pid))
    shell.type("SELECT 6 * 7 AS n;")
    shell.wait_for(r"\n42\n\(1 row")
    shell.wait_for(PROMPT.format(job.pid))
    shell.type("\x04", enter=False)
    assert shell.wait() == 0
    assert shell.settings == shell.before


def test_an_agent_that_ends_is_reported_and_another_can_be_queried(
    terminal: Open, start: Start, short_folder: Path
) -> None:
    first, second = (start("answering.py", str(short_folder)) for _ in range(2))
    shell = terminal(first.pid)
    shell.type("SELECT 6 * 7 AS n FROM probe.agents;")
    shell.wait_for(r"\n42\n\(1 row")
    first.end()
    shell.type("SELECT 6 * 7 AS n FROM probe.agents;")
    shown = shell.wait_for("Then ask again, or ask another job: .connect PID.*" + PROMPT.format(first.pid))
    assert "probe: [gone] Rank 0" in shown and f"There is no process {first.pid}." in shown
    shell.type("SELECT 6 * 7 AS n FROM probe.agents;")
    shell.wait_for(rf"\[endpoint\] There is no process {first.pid}\.")
    shell.type(f".connect {second.pid}")
    shell.wait_for(f"Connected to {second.pid}, 1 rank.*" + PROMPT.format(second.pid))
    shell.type("SELECT 6 * 7 AS n FROM probe.agents;")
    shell.wait_for(r"\n42\n\(1 row")


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.1])
def test_sigterm_restores_the_terminal(terminal: Open, after_s: float) -> None:
    shell = terminal()
    assert shell.settings != shell.before
    time.sleep(after_s)  # the prompt's first drawing and the loading of its history go on
    shell.process.send_signal(signal.SIGTERM)
    assert shell.wait() == 130
    assert shell.settings == shell.before


def test_results_can_be_redirected_while_the_prompt_stays_on_the_terminal(terminal: Open, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        shell = terminal(stdout=out)
        shell.type("FROM range(50);")
        shell.wait_for(r"\(50 rows")
        shell.type("\x04", enter=False)
        assert shell.wait() == 0
    assert (tmp_path / "out").read_text().splitlines()[-1] == "   49"
    assert "\x1b" not in (tmp_path / "out").read_text()


def test_statements_of_a_file_are_run_in_order(job: Target, probe: Probe) -> None:
    done = probe(job.pid, "sql", "--format", "csv", input="SELECT 1 AS a,\n ';' AS b; SELECT 2 AS c;\nSELECT 3 AS d")
    assert done.stdout == "a,b\n1,;\nc\n2\nd\n3\n"
    assert done.stderr.count("(1 row, ") == 3
    assert probe(job.pid, "sql", input="").stdout == ""


def test_the_first_failing_statement_of_a_file_sets_the_exit_status(job: Target, probe: Probe) -> None:
    done = probe(job.pid, "sql", input="SELECT 1 AS a;\nFROM python.nowhere;\nSELECT 2 AS b;", status=5)
    assert "a" in done.stdout and "b" not in done.stdout
    assert done.stderr.splitlines()[1].startswith("probe: [unknown-table] ")
    assert probe(job.pid, "sql", input="DROP TABLE mine", status=5).stdout == ""
    assert "No such command" in probe(job.pid, "sql", input=".nonsense\nSELECT 1;", status=2).stderr


def test_dot_commands_work_in_a_file(job: Target, probe: Probe) -> None:
    done = probe(job.pid, "sql", input=".format json\n.open on\nSELECT 1 AS a;\n.quit\nSELECT 2 AS b;\n")
    assert json.loads(done.stdout) == [{"a": 1}]


def test_a_statement_on_stdin_is_answered_before_the_next_one_arrives(job: Target) -> None:
    words = [str(Path(sys.executable).parent / "probe"), str(job.pid), "sql", "--format", "csv"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdin is not None and shell.stdout is not None
        for number in ("1", "2"):
            shell.stdin.write(f"SELECT {number} AS n;\n")
            shell.stdin.flush()
            assert [shell.stdout.readline() for _ in range(2)] == ["n\n", f"{number}\n"]


def test_ctrl_c_ends_a_file(job: Target) -> None:
    words = [str(Path(sys.executable).parent / "probe"), str(job.pid), "sql"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdin is not None and shell.stdout is not None
        shell.stdin.write(f"SELECT 1 AS n;\n{ENDLESS}\nSELECT 2 AS m;\n")
        shell.stdin.close()
        shell.stdout.readline()
        os.kill(shell.pid, signal.SIGINT)
        assert shell.wait(60) == 130
        assert "m" not in shell.stdout.read()


def test_sql_given_as_an_argument_is_refused_with_a_hint_to_query(job: Target, probe: Probe) -> None:
    assert "probe ENDPOINT query" in probe(job.pid, "sql", "SELECT 1", status=2).stderr
    assert "[endpoint] There is no process 99999999" in probe("99999999", "sql", status=3).stderr


def test_without_a_terminal_prompt_toolkit_is_not_imported(job: Target) -> None:
    script = (
        "import sys; from probe.cli.entry import run; run(sys.argv[1:]); assert 'prompt_toolkit' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script, str(job.pid), "sql"], input="SELECT 1;", text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
