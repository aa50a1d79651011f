"""`probe completion SHELL`."""

from __future__ import annotations

import sys

import click

from ...completing import SHELLS, script
from ...session import say

# Where each shell reads it from, as one appends to it or writes it.
_FILES = {"bash": ">> ~/.bashrc", "zsh": ">> ~/.zshrc", "fish": "> ~/.config/fish/completions/probe.fish"}


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
def command(shell: str) -> None:
    """Print a script with which Tab completes, for a shell.

    SHELL is bash, zsh or fish. Tab then completes verbs, options and their values, tables, names of attached jobs, and
    pids of processes with torch. In zsh, compinit comes first. It works in shells that are opened from then on.

    \b
    Example:
      probe completion bash >> ~/.bashrc
      probe completion zsh >> ~/.zshrc
      probe completion fish > ~/.config/fish/completions/probe.fish
    """
    click.echo(script(shell), nl=False)
    if sys.stdout.isatty():
        say(f"To use it: probe completion {shell} {_FILES[shell]}")
