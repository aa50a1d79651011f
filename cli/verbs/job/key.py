"""`probe key create FILE`, `probe key share FILE READER_FILE`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import UsageError

from ...offers import words
from ...session import say

_FILES = {"create": 1, "share": 2}
_USAGE = "Run: probe key create FILE, or probe key share FILE READER_FILE"


@click.command("key")
@click.argument("action", metavar="create|share", default="", shell_complete=words(_FILES))
@click.argument("files", nargs=-1, type=click.Path(), metavar="FILE [READER_FILE]")
@click.option("--read-only", is_flag=True, help="Create a key with which nobody can eval, set or detach.")
def command(action: str, files: Sequence[str], read_only: bool) -> None:
    """Create the keys for querying a job from other hosts.

    create writes FILE, which attach needs and which allows everything. share derives READER_FILE from FILE, which
    allows one to look (query, stack, hang and others), but not eval, set, profile or detach. create --read-only writes
    a FILE that allows only that, and a server that was started with it can do no more. All files are readable by their
    owner only (mode 0600), and no file is ever overwritten. Copy them as you would an ssh key.

    \b
    Example:
      probe key create job.key
      probe key share job.key reader.key
      probe attach --listen 0.0.0.0 --key job.key 4242
      probe tcp://node1:29600 query --key reader.key "SELECT * FROM probe.agents"
    """
    from probe import keys

    if action not in _FILES:
        said = f"probe key has no action {action!r}." if action else "probe key needs an action."
        raise UsageError(said, _USAGE)
    if len(files) != _FILES[action]:
        raise UsageError(
            f"probe key {action} needs {_FILES[action]} file name{'s' * (_FILES[action] > 1)}, not {len(files)}.",
            _USAGE,
        )
    if read_only and action != "create":
        raise UsageError(f"probe key {action} takes no --read-only: what it makes may only read.", _USAGE)
    if action == "create":
        keys.create(files[0], read_only)
        say(f"{files[0]} allows its holder {'to read' if read_only else 'everything'}. Next, on each host of the job:")
        say(f"  probe attach --listen 0.0.0.0 --key {files[0]} PID")
    else:
        keys.share(*files)
        say(f"{files[1]} allows its holder to read. Next, wherever it has been copied to:")
        say(f'  probe tcp://HOST:PORT query --key {files[1]} "SELECT * FROM probe.agents"')
