"""Errors are one line with their code and status, and never a traceback of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from probe.cli import entry
from probe.cli.program import SECTIONS, VERBS, program
from probe.errors import CODES, EndpointError, ProbeError, QueryError

NOBODY = "99999999"  # beyond any kernel's largest pid

Raising = Callable[[BaseException], int]


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Raising:
    """Runs `probe list` with a body that raises; the exit status."""

    def run(error: BaseException) -> int:
        @click.command("list")
        def command() -> None:
            raise error

        monkeypatch.setattr(type(program), "get_command", lambda self, ctx, name: command)
        return entry.run(["list"])

    return run


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_error_code_is_printed_and_sets_the_exit_status(
    code: str, raising: Raising, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, _ = CODES[code]
    assert raising(kind("Something.", "Do this.", code=code)) == kind.exit_status
    assert capsys.readouterr() == ("", f"probe: [{code}] Something. Do this.\n")


def test_the_caret_line_of_a_message_is_kept_in_place(raising: Raising, capsys: pytest.CaptureFixture[str]) -> None:
    raising(QueryError("Parser Error\nSELECT FROM\n       ^", "Mind the caret."))
    assert capsys.readouterr().err == "probe: [query] Parser Error\nSELECT FROM\n       ^\nMind the caret.\n"


def test_an_unexpected_error_is_one_line_and_status_70(raising: Raising, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(ValueError("odd\nthing")) == entry.BUG_STATUS == 70
    assert capsys.readouterr().err == (
        "probe: [bug] ValueError: odd thing. This is a bug in probe. PROBE_DEBUG=1 shows where.\n"
    )


def test_probe_debug_shows_the_traceback(
    raising: Raising, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROBE_DEBUG", "1")
    raising(EndpointError("No such process: 4242."))
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_with_130(raising: Raising, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "probe: [interrupted] Interrupted.\n"


def test_a_closed_pipe_ends_the_command_without_a_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", "from probe.cli import main; main()", "tables"], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, b"Traceback" in done.stderr) == (entry.PIPE_STATUS, False)


@pytest.mark.parametrize(("full", "status"), [(False, entry.PIPE_STATUS), (True, 2)])
def test_an_error_that_stderr_does_not_take_sets_the_exit_status_all_the_same(full: bool, status: int) -> None:
    read, write = os.pipe()
    os.close(read)
    stderr = os.open("/dev/full", os.O_WRONLY) if full else write
    done = subprocess.run([sys.executable, "-c", "from probe.cli import main; main()", "qery"], stderr=stderr)
    for each in {write, stderr}:
        os.close(each)
    assert done.returncode == status


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["qery"], "No such verb: qery. Did you mean query?"),
        (["query", "--fromat", "csv", "SELECT 1"], "Did you mean '--format'? Run: probe query --help"),
        (["query", "--format", "cvs", "SELECT 1"], "'cvs' is not one of 'table'"),
        (["query", "--jsno", "SELECT 1"], "Did you mean '--json'? Run: probe query --help"),
        (["query", "--json", "--format", "csv", "SELECT 1"], "--json and --format csv exclude each other. Give one."),
        (["query", "4242"], "No SQL was given."),
        (["query", "SELECT", "1", "2"], "Put the SQL in quotes."),
        (["4242", "query", "SELECT", "1"], "Put the SQL in quotes."),
        (["4242", "query", "-f", "/nowhere.sql"], "Cannot read the SQL from /nowhere.sql: No such file or directory."),
        (["query", "-t", "1", "2", "SELECT 1"], "Put the SQL in quotes."),
        (["1", "detach", "2"], "Several endpoints: 1, 2. Give one."),
        (["1", "query", "-f", "x.sql", "SELECT 1"], "The SQL is given twice: in x.sql and as 'SELECT 1'. Give one."),
        (["1", "set", "sample"], "sample= is not valid. Valid: auto, or N from 1 to 128"),
        (["eval"], "No code was given."),
        (["eval", "--rank", "0;3", "1"], "'0;3' is not a list of ranks. For example: --rank 0,3"),
        (["eval", "--timeout", "soon", "1"], "'soon' is not a valid number of seconds"),
        (["attach"], "No pid given. For example: probe attach 4242."),
        (["attach", "train.py"], "'train.py' is not a pid."),
        (["attach", "--follow", "--json", "4242"], "--follow prints a line for each rank as it comes, and no rows."),
        (["attach", "0"], "'0' is not a pid."),
        (["run"], "No command given."),
        (["run", "--", "/nowhere/torchrun"], "Cannot start /nowhere/torchrun: No such file or directory."),
        (["tables", "a", "b"], "Give one table"),
        (["help", "query", "eval"], "Give one verb: probe help VERB"),
        (["completion", "fsh"], "'fsh' is not one of 'bash', 'zsh', 'fish'"),
        (["list", "--format", "parquet", "-o", "/nowhere/x"], "Cannot write /nowhere/x"),
    ],
)
def test_each_wrong_command_line_is_a_usage_error_of_one_line(
    line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.run(line) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("probe: [usage] ") and err.count("\n") == 1


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run([*verb.split(), "--help"]) == 0
    assert "Example:\n    probe " in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_what_has_formats_has_json(verb: str) -> None:
    command = program.get_command(click.Context(program), verb)
    assert command is not None
    options = {option for each in command.params for option in each.opts}
    assert ("--format" in options) <= ("--json" in options)


@pytest.mark.parametrize("verb", ["", "query", "help"])
def test_help_shows_what_the_option_does(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run([*verb.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert entry.run(["help", *verb.split()]) == 0
    assert capsys.readouterr().out == shown


def test_python_runs_the_package_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "probe", "help", "qery"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "probe: [usage] No such verb: qery. Did you mean query?\n")


def test_every_verb_has_a_first_line_that_fits_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    entry.run(["--help"])
    listing = capsys.readouterr().out.partition(f"{next(iter(SECTIONS))}:")[2]
    lines = [line for line in listing.split("\n") if line.startswith("  ")]
    assert "..." not in listing and [line.split()[0] for line in lines] == list(VERBS)


@pytest.mark.parametrize("verb", ["attach", "eval", "list", "sql", "--help"])
def test_quick_verbs_import_neither_pyarrow_nor_duckdb(verb: str) -> None:
    script = (
        "import sys; from probe.cli.entry import run; run(sys.argv[1:]);"
        "assert not {'pyarrow', 'duckdb', 'numpy', 'prompt_toolkit'} & set(sys.modules)"
    )
    words = {"attach": ["attach", NOBODY], "eval": [NOBODY, "eval", "1"], "sql": ["sql", "--help"]}.get(verb, [verb])
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_error_class_is_in_the_tree() -> None:
    assert {kind for kind, _ in CODES.values()} == set(ProbeError.__subclasses__())


def test_an_error_class_of_a_user_needs_no_codes() -> None:
    class Own(QueryError):
        code = "max-fetch"

    assert (Own("too much").code, QueryError("wrong").code) == ("max-fetch", "query")
    del Own
