"""`probe ENDPOINT eval CODE`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import UsageError

from ...evaluating import evaluate
from ...options import SECONDS, TextCommand, endpoint_and_text, text_argument
from ...output.formats import Output, output_options
from ...session import connected

MOST_RANKS = 1_000_000  # more than any job has


@click.command("eval", cls=TextCommand)
@text_argument("code")
@click.option("--rank", "ranks", metavar="LIST", help="Only on these ranks: 0,3 or 0-7.")
@click.option("--now", is_flag=True, help="At once, beside the training, instead of between two steps.")
@click.option(
    "--timeout", type=SECONDS, metavar="SECONDS", help="For the step and the code; by default 30 s for the step."
)
@click.option("--frame", metavar="FUNCTION", default="", help="With the variables of this function, or frame number.")
@click.option("--no-write", is_flag=True, help="Leave the job's variables unchanged.")
@output_options
def command(
    words: Sequence[str], endpoints: Sequence[str], file: str | None, ranks: str | None, now: bool,
    timeout: float | None, no_write: bool, frame: str, output: Output,
) -> None:  # fmt: skip
    """Run Python inside the job, on all ranks at the same step.

    The code runs between two steps, on the training thread. It sees what a debugger sees: the local variables of the
    training loop, then the globals. The value of a last expression is printed. Variables that the code rebinds are
    rebound in the job. --frame gives it the variables of one function instead, such as a library's loop; numbers count
    frames outward from the loop. `probe ENDPOINT names` lists what it sees. With --json there is a row per rank.

    \b
    Example:
      probe 4242 eval "print(model.config)"
      probe 4242 eval --rank 0 "optimizer.param_groups[0]['lr']"
    """
    endpoint, code = endpoint_and_text(endpoints, words, file, "code")
    chosen = None if ranks is None else parse_ranks(ranks)
    name = "<eval>" if file in (None, "-") else str(file)
    with connected(endpoint, 10.0 if timeout is None else min(timeout, 10.0)) as connection:
        shown = None if output.is_default else output
        evaluate(connection, code, name, chosen, now, timeout, not no_write, frame, shown)


def parse_ranks(text: str) -> list[int]:
    """`0,3` or `0-7` as a sorted list.  Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not first.isdigit() or not last.isdigit() or int(last) < int(first):
            raise UsageError(f"{text!r} is not a list of ranks.", "For example: --rank 0,3 or --rank 0-7")
        if int(last) >= MOST_RANKS:
            raise UsageError(f"There is no rank {last}.", "probe ENDPOINT query 'SELECT rank FROM probe.agents'")
        ranks.update(range(int(first), int(last) + 1))
    return sorted(ranks)
