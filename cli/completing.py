"""What Tab offers in a shell: click's protocol, for command lines whose endpoint may stand before the verb.

Called by entry on behalf of the script that `probe completion` prints.  Invariant: nothing is asked of a job, and a
command line that is wrong so far offers less, but is no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from probe.errors import UsageError

from .argv import arrange
from .offers import endpoints
from .program import COMPLETING, VERBS, program

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """What the shell has to read.  shell: one of SHELLS."""
    return _of(shell).source()


def answer(instruction: str) -> str:
    """What the script's command prints; what is typed so far is in its environment, as the shell has it."""
    shell = _of(instruction.partition("_")[0])
    args, incomplete = shell.get_completion_args()
    return "\n".join(shell.format_completion(item) for item in offered(shell, args, incomplete))


def offered(shell: ShellComplete, args: Sequence[str], incomplete: str) -> list[CompletionItem[Any]]:
    """What the word after `args` may become."""
    arranged = _verb_first(args)
    items = shell.get_completions(arranged, incomplete)
    if arranged or (args and args[-1] not in ("-t", "--endpoint")):
        return items
    jobs = endpoints(click.Context(program), None, incomplete)
    return jobs if args else [*items, *jobs]


def _verb_first(args: Sequence[str]) -> list[str]:
    try:
        return arrange(args, VERBS) if args else []
    except UsageError:  # no verb yet
        return []


def _of(shell: str) -> ShellComplete:
    kind = get_completion_class(shell)
    if kind is None or shell not in SHELLS:
        raise UsageError(f"No completion for {shell}.", f"There is one for {', '.join(SHELLS)}.")
    return kind(program, {}, "probe", COMPLETING)
