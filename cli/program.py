"""The click program and its verbs, each in a file of its own that is imported only when it is used."""

from __future__ import annotations

import importlib

import click

from probe.version import __version__

VERBS = (
    "attach", "demo", "detach", "doctor", "eval", "hang", "key", "list", "names", "profile", "query", "run", "serve",
    "set", "sql", "stack", "stragglers", "tables",
)  # fmt: skip


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
    """Attach to a running PyTorch job and query it in SQL or Python.

    \b
    Example:
      probe attach 4242                  the pid of torchrun, or of one process
      probe 4242 query "SELECT rank, MAX(step) FROM python.step_trace GROUP BY 1"
      probe 4242 eval "print(model)"
      probe 4242 detach

    An ENDPOINT names a job. It is one of these, or several with commas between them:

    \b
      PID               an attached process, or torchrun for all its ranks
      NAME              the name given by attach --name
      ipc://PATH        an agent's socket
      tcp://HOST:PORT   an agent on another host
      job://HOST:PORT   one agent on another host, for all ranks of its job

    It may stand before the verb, after it, or as -t ENDPOINT. If exactly one job is attached on this machine, it may
    be left out.
    """
