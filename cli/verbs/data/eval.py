"""`probe ENDPOINT eval CODE`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ...evaluating import evaluate
from ...options import SECONDS, TextCommand, endpoint_and_text, ranks_option, text_argument
from ...output.formats import Output, output_options
from ...session import connected


@click.command("eval", cls=TextCommand)
@text_argument("code")
@ranks_option
@click.option("--now", is_flag=True, help="At once, beside the training, instead of between two steps.")
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="For the step and the code; by default for the step alone: 30 s, or ten steps if they take longer.",
)
@click.option("--frame", metavar="FUNCTION", default="", help="With the variables of this function, or frame number.")
@click.option("--no-write", is_flag=True, help="Leave the job's variables unchanged.")
@output_options
def command(
    words: Sequence[str], endpoints: Sequence[str], file: str | None, ranks: list[int] | None, now: bool,
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
    name = "<eval>" if file in (None, "-") else str(file)
    with connected(endpoint, 10.0 if timeout is None else min(timeout, 10.0)) as connection:
        shown = None if output.is_default else output
        evaluate(connection, code, name, ranks, now, timeout, not no_write, frame, shown)
