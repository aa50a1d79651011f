"""Command lines with their words in any order, and the one order that click is given."""

from __future__ import annotations

import pytest

from probe.cli.argv import arrange, options_first
from probe.errors import UsageError

VERBS = ("attach", "eval", "list", "query", "tables")
QUERY = {"-t": True, "--endpoint": True, "-f": True, "--file": True, "--format": True, "--now": False, "--help": False}


@pytest.mark.parametrize(
    ("line", "arranged"),
    [
        ([], ["--help"]),
        (["--version"], ["--version"]),
        (["4242", "--help"], ["--help"]),
        (["list"], ["list"]),
        (["list", "4242"], ["list", "4242"]),
        (["4242", "query", "SELECT 1"], ["query", "-t", "4242", "SELECT 1"]),
        (["-t", "4242", "query", "SELECT 1"], ["query", "-t", "4242", "SELECT 1"]),
        (["-t 4242", "query", "SELECT 1"], ["query", "-t", "4242", "SELECT 1"]),
        (["-t4242", "query", "SELECT 1"], ["query", "-t", "4242", "SELECT 1"]),
        (["--endpoint=4242", "list"], ["list", "-t", "4242"]),
        (["host:4242", "eval", "list"], ["eval", "-t", "host:4242", "list"]),
        (["query", "query"], ["query", "query"]),
        (["exp7", "list"], ["list", "-t", "exp7"]),
        (["-t exp7", "query", "SELECT 1"], ["query", "-t", "exp7", "SELECT 1"]),
        (["--color", "never", "4242", "list"], ["list", "--color", "never", "-t", "4242"]),
        (["4242", "--color=never", "list"], ["list", "--color=never", "-t", "4242"]),
        (["4242,tcp://node1:1", "list"], ["list", "-t", "4242,tcp://node1:1"]),
        (["somewhere", "query", "SELECT 1"], ["query", "-t", "somewhere", "SELECT 1"]),
    ],
)
def test_arrange_puts_the_verb_first_and_the_endpoint_after_t(line: list[str], arranged: list[str]) -> None:
    assert arrange(line, VERBS) == arranged


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["4242"], "No verb given for 4242. Give one: attach, "),
        (["4242,4243"], "No verb given for 4242,4243. Give one: attach, "),
        (["exp7", "qery", "SELECT 1"], "No such verb: exp7. Did you mean probe exp7 query?"),
        (["qurey", "lists"], "No such verb: qurey. Did you mean query?"),
        (["4242", "qery", "SELECT 1"], "No such verb: qery. Did you mean query?"),
        (["4242", "qery", "tabels"], "No such verb: qery. Did you mean query?"),
        (["qery", "SELECT 1"], "No such verb: qery. Did you mean query?"),
        (["xyzzy"], "No such verb: xyzzy. Run: probe --help"),
        (["--now", "query"], "No such option before a verb: --now."),
        (["", "query", "SELECT 1"], "The endpoint is empty. Is $ENDPOINT set?"),
        (["-t"], "-t needs an endpoint."),
    ],
)
def test_a_command_line_without_a_verb_is_a_usage_error(line: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        arrange(line, VERBS)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("words", "settled"),
    [
        (["SELECT 1"], ["--", "SELECT 1"]),
        (["-- a comment\nSELECT 1"], ["--", "-- a comment\nSELECT 1"]),
        (["-x"], ["--", "-x"]),
        (["-f(1)"], ["--", "-f(1)"]),
        (["-offset + 1"], ["--", "-offset + 1"]),
        (["--format", "csv", "-1"], ["--format", "csv", "--", "-1"]),
        (["--format=csv", "SELECT 1"], ["--format=csv", "--", "SELECT 1"]),
        (["SELECT 1", "--format", "csv"], ["--format", "csv", "--", "SELECT 1"]),
        (["--now", "4242", "- x"], ["--now", "--", "4242", "- x"]),
        (["-t 4242", "SELECT 1"], ["-t", "4242", "--", "SELECT 1"]),
        (["-t", "4242", "-"], ["-t", "4242", "--", "-"]),
        (["--", "--now"], ["--", "--now"]),
        (["-t exp7", "SELECT 1"], ["-t", "exp7", "--", "SELECT 1"]),
        (["-t=1"], ["-t", "1", "--"]),
        (["-tx"], ["--", "-tx"]),
        (["-t - x"], ["--", "-t - x"]),
        (["-f", "slow.sql", "4242"], ["-f", "slow.sql", "--", "4242"]),
    ],
)
def test_code_may_begin_with_a_dash(words: list[str], settled: list[str]) -> None:
    assert options_first(words, QUERY) == settled


@pytest.mark.parametrize("words", [["--fromat", "csv", "SELECT 1"], ["SELECT 1", "-n"], ["-n", "SELECT 1"], ["--nwo"]])
def test_an_unknown_option_is_passed_to_click_as_an_option(words: list[str]) -> None:
    mistyped = next(word for word in words if word.startswith("-"))
    assert mistyped in options_first(words, QUERY)[: options_first(words, QUERY).index("--")]
