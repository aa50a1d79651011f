"""What Tab offers, and that each shell gets it as its own script asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.shell_completion import get_completion_class

from probe.cli import listing
from probe.cli.completing import SHELLS, offered, script
from probe.cli.entry import run
from probe.cli.listing import jobs_of
from probe.cli.program import COMPLETING, VERBS, program
from probe.host.facts import Facts
from probe.host.processes import Process
from probe.tables import TABLES


@pytest.fixture(autouse=True)
def two_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is attached and has a name."""
    found = [
        Process(pid, 1, 0, 1, None, None, None, None, f"python {pid}.py", True, has_torch)
        for pid, has_torch in ((4242, True), (4343, True), (4444, False))
    ]
    monkeypatch.setattr(listing, "running", lambda: jobs_of(found, {4242: Facts(pid=4242, name="exp7")}))


def tab(*words: str) -> list[str]:
    """What the last word may become."""
    shell = get_completion_class("bash")
    assert shell is not None
    items = offered(shell(program, {}, "probe", COMPLETING), words[:-1], words[-1])
    return [f"<{item.type}>" if item.type != "plain" else item.value for item in items]


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        ([""], [*VERBS, "4242", "exp7"]),
        (["qu"], ["query"]),
        (["e"], ["eval", "export", "exp7"]),
        (["4242", "st"], ["stack", "stragglers"]),
        (["-t", ""], ["4242", "exp7"]),
        (["-t", "exp7", "qu"], ["query"]),
        (["query", "-t", "e"], ["exp7"]),
        (["query", "e"], ["exp7"]),
        (["4242", "query", "e"], []),
        (["detach", "4"], ["4242"]),
        (["attach", "4"], ["4242", "4343"]),
        (["attach", "-t", "43"], ["4343"]),
        (["doctor", ""], ["4242", "4343"]),
        (["4242", "query", "--js"], ["--json"]),
        (["query", "--format", "c"], ["csv"]),
        (["exp7", "query", "SELECT 1", "--form"], ["--format"]),
        (["query", "-f", ""], ["<file>"]),
        (["tables", "-o", ""], ["<file>"]),
        (["tables", "probe.ag"], ["probe.agents"]),
        (["tables", ""], [table.name for table in TABLES]),
        (["exp7", "set", "b"], ["budget=", "backward="]),
        (["key", "c"], ["create"]),
        (["help", "cap"], ["capture"]),
        (["completion", ""], list(SHELLS)),
        (["nonsense", "xyzzy", "lis"], ["list"]),
        (["--vers"], ["--version"]),
    ],
)
def test_tab_offers_what_may_follow(words: list[str], becomes: list[str]) -> None:
    assert tab(*words) == becomes


def test_a_machine_that_does_not_tell_its_jobs_offers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise PermissionError

    monkeypatch.setattr(listing, "running", fails)
    assert tab("attach", "") == []


@pytest.mark.parametrize(
    ("shell", "typed", "said"),
    [
        ("bash", {"COMP_WORDS": "probe\n4242\nstr", "COMP_CWORD": "2"}, "plain,stragglers\n"),
        ("zsh", {"COMP_WORDS": "probe 4242 str", "COMP_CWORD": "2"}, "plain\nstragglers\nShow which ranks"),
        ("fish", {"COMP_WORDS": "probe 4242 str", "COMP_CWORD": "str"}, "plain,stragglers\tShow which ranks"),
    ],
)
def test_each_shell_is_answered_in_its_own_way(
    shell: str, typed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**typed, COMPLETING: f"{shell}_complete"}.items():
        monkeypatch.setenv(name, value)
    assert run([]) == 0
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_asks_for_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    out, err = capsys.readouterr()
    assert out == script(shell) and f"{COMPLETING}={shell}_complete" in out and err == ""


def test_bash_completes_with_the_script() -> None:
    code = f"PATH={os.path.dirname(sys.executable)}:$PATH; {script('bash')}\n" + (
        "COMP_WORDS=(probe 4242 query '\"SELECT 1\"' --js) COMP_CWORD=4; _probe_completion probe; echo ${COMPREPLY[*]}"
    )
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("--json\n", "")


def test_every_option_with_a_file_offers_files() -> None:
    for verb in VERBS:
        command = program.get_command(click.Context(program), verb)
        assert command is not None
        for each in command.params:
            assert ("FILE" in str(each.metavar)) <= isinstance(each.type, click.Path), (verb, each.name)
