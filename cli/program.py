"""The click program: its verbs, each in a file of its own that is imported only when it is asked for."""

from __future__ import annotations

import importlib

import click

from probe.version import __version__

VERBS = (
    "attach",
    "demo",
    "detach",
    "doctor",
    "eval",
    "hang",
    "key",
    "list",
    "query",
    "run",
    "set",
    "sql",
    "stack",
    "stragglers",
    "tables",
)


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"probe.cli.verbs.{cmd_name}").command
        return command


@click.group(cls=Verbs, options_metavar="[ENDPOINT]", subcommand_metavar="VERB ...",
             context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})  # fmt: skip
@click.version_option(__version__, message="probe %(version)s")
def program() -> None:
    """Attach to a running PyTorch job, and ask it anything in SQL or Python.

    \b
    Example:
      probe attach 4242                  the pid of torchrun, or of one process
      probe 4242 query "SELECT module, AVG(duration) FROM python.torch_trace GROUP BY 1"
      probe 4242 eval "print(model)"
      probe 4242 detach

    An ENDPOINT says which job. It is the pid of an attached process, or of a parent of some (torchrun):
    then it stands for all its ranks; or a name that attach gave; or ipc://PATH, an agent's socket; or
    tcp://HOST:PORT, an agent on another host; or job://HOST:PORT, one agent that knows all the others;
    or several of these with commas. It may come before the verb, after it, or as -t ENDPOINT; where
    exactly one job is attached here it may be left out.
    """
