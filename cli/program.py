"""The click program and its verbs, each in a file of its own that is imported only when it is used."""

from __future__ import annotations

import importlib

import click

from probe.version import __version__

from .options import color_option

SECTIONS = {  # of the help -> the room of its verbs, and these
    "Attach and detach": ("job", ("attach", "demo", "detach", "doctor", "key", "list", "record", "run", "serve")),
    "Ask and change": ("data", ("ask", "eval", "export", "fleet", "names", "query", "set", "sql", "tables")),
    "Find out why": (
        "insight",
        ("capture", "compare", "flame", "hang", "memory", "profile", "stack", "stragglers", "trace", "why"),
    ),
    "Learn to use it": ("about", ("completion", "help")),
}
COMPLETING = "_PROBE_COMPLETE"  # in the environment while Tab is pressed: `bash_complete`
_COLOR = color_option(hidden=True)  # of the verbs: the help of the program tells of it
VERBS = {verb: room for room, verbs in SECTIONS.values() for verb in verbs}


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"probe.cli.verbs.{VERBS[cmd_name]}.{cmd_name}")
        command: click.Command = module.command
        if _COLOR not in command.params:
            command.params.append(_COLOR)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With a heading for each section."""
        width = max(map(len, VERBS))
        for heading, (_, verbs) in SECTIONS.items():
            commands = [(verb.ljust(width), self.get_command(ctx, verb)) for verb in verbs]
            with formatter.section(heading):
                formatter.write_dl([(verb, each.get_short_help_str(100)) for verb, each in commands if each])


@click.group(cls=Verbs, options_metavar="[ENDPOINT]", subcommand_metavar="VERB ...",
             params=[color_option(help="Default: on a terminal, unless NO_COLOR is set.")],
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
      ipc://PATH        the server beside a job, or one agent's socket
      tcp://HOST:PORT   the ranks of a job on another host
      job://HOST:PORT   any one host of a job, for its ranks on all hosts
      DIR               the folder of a recording

    It may stand before the verb, after it, or as -t ENDPOINT. If exactly one job is attached on this machine, it may
    be left out.
    """
