"""Options and arguments that several verbs share, and how an endpoint or a pid is read from them."""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from probe.errors import UsageError
from probe.settings import NO_SERVER

from .argv import options_first
from .offers import Offer, endpoints, processes
from .output.colours import AUTO, CHOICES, choose

_MOST_RANKS = 1_000_000  # more than any job has
KEY = "probe.key"  # in the context's meta: the file given by --key

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


class Seconds(click.FloatRange):
    """A duration above 0; nan and inf are refused."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


SECONDS = Seconds(min=0, min_open=True)


def size(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Callback of an option: the bytes in `500MB` or `4GB`, with units of a thousand."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B", value.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{value!r} is not a size such as 500MB or 4GB.", ctx, param)
    return float(match[1]) * 1000.0 ** " kmgt".index(match[2].lower() or " ")


def parse_ranks(text: str) -> list[int]:
    """`0,3` or `0-7` as a sorted list.  Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not first.isdigit() or not last.isdigit() or int(last) < int(first):
            raise UsageError(f"{text!r} is not a list of ranks.", "For example: --rank 0,3 or --rank 0-7")
        if int(last) >= _MOST_RANKS:
            raise UsageError(f"There is no rank {last}.", "probe ENDPOINT query 'SELECT rank FROM probe.agents'")
        ranks.update(range(int(first), int(last) + 1))
    return sorted(ranks)


def ranks_option(function: Function) -> Function:
    """--rank LIST, as the argument `ranks`: None for all."""
    return click.option(
        "--rank", "ranks", metavar="LIST", help="Only on these ranks: 0,3 or 0-7.",
        callback=lambda context, parameter, value: None if value is None else parse_ranks(value),
    )(function)  # fmt: skip


def step_range(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Callback of an option: the first and the last step of `100..200`."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", value.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise click.BadParameter(f"{value!r} is not a range of steps such as 100..200.", ctx, param)
    return int(match[1]), int(match[2])


class Verb(click.Command):
    """A verb whose usage line shows the endpoint first, as users write it."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("probe", " ".join([f"[ENDPOINT] {self.name}", *self.collect_usage_pieces(ctx)]))


class TextCommand(Verb):
    """A verb that takes SQL or code, which may begin with a dash."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # Tab: what is typed may lack a value yet
            return super().parse_args(ctx, args)
        options = {
            name: not (param.is_flag or param.count)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in (*param.opts, *param.secondary_opts)
        }
        return super().parse_args(ctx, options_first(args, options))


def color_option(**shown: Any) -> click.Option:
    """--color, of every verb: it chooses before the verb does anything."""
    return click.Option(
        ["--color"], type=click.Choice(CHOICES), default=AUTO, metavar="|".join(CHOICES), expose_value=False,
        callback=lambda context, parameter, value: choose(value), **shown,
    )  # fmt: skip


def timeout_option(default: float, help: str = "Seconds to wait for a silent rank.") -> Decorator:
    return click.option("--timeout", type=SECONDS, metavar="SECONDS", default=default, show_default=True, help=help)


def _without_server(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        os.environ[NO_SERVER] = "1"


no_server_option = click.option("--no-server", is_flag=True, expose_value=False, callback=_without_server,
                                help="Ask the job itself, not the server beside it.")  # fmt: skip
open_option = click.option("--open", "open_steps", is_flag=True, help="Include the step that is still running.")


def target_option(help: str, offer: Offer) -> Decorator:
    """Collects every -t, as the argument `endpoints`, so that two are an error instead of the last one winning."""
    return click.option(
        "-t", "--endpoint", "endpoints", multiple=True, metavar="ENDPOINT", help=help, shell_complete=offer
    )


# Of verbs that need no agent.
process_option = target_option("The pid of a process, or of a parent of ranks.", processes)


def endpoint_option(function: Function) -> Function:
    """-t ENDPOINT, as the argument `endpoints`, and --key FILE, which cli/session.py takes from the context."""
    keyed = click.option(
        "--key", type=click.Path(), metavar="FILE", expose_value=False,
        help="The key for tcp:// and job://. Default: $PROBE_KEY.",
        callback=lambda context, parameter, value: context.meta.update({KEY: value}),
    )(function)  # fmt: skip
    return target_option("Which job: a pid, a name, tcp://HOST:PORT, …", endpoints)(keyed)


def text_argument(what: str, endpoint: Decorator = endpoint_option) -> Decorator:
    """[ENDPOINT] and the SQL or code of a verb, as the arguments that endpoint_and_text() takes."""
    file = click.option(
        "-f", "--file", type=click.Path(), metavar="FILE", help=f"Read the {what} from FILE (- is stdin)."
    )
    words = click.argument("words", nargs=-1, metavar=what.upper(), shell_complete=endpoints)
    return lambda function: words(endpoint(file(function)))


def endpoint_argument(function: Function) -> Function:
    """The endpoint of a verb that connects and takes no other words, as the argument `endpoint`: str or None."""

    @functools.wraps(function)
    def with_endpoint(words: Sequence[str], endpoints: Sequence[str], **options: Any) -> Any:
        return function(endpoint=one_endpoint(endpoints, words), **options)

    words = click.argument("words", nargs=-1, metavar="", shell_complete=endpoints)
    return words(endpoint_option(with_endpoint))


def process_argument(function: Function) -> Function:
    """[PID] of a verb that looks at processes, attached or not, as the argument `pid`: int or None."""

    @functools.wraps(function)
    def with_pid(words: Sequence[str], endpoints: Sequence[str], **options: Any) -> Any:
        endpoint = one_endpoint(endpoints, words)
        return function(pid=None if endpoint is None else pid_of(endpoint), **options)

    words = click.argument("words", nargs=-1, metavar="[PID]", shell_complete=processes)
    return words(process_option(with_pid))


def one_endpoint(options: Sequence[str], words: Sequence[str] = ()) -> str | None:
    """The endpoint given by -t or as a word, or None.  Raises UsageError for two that differ."""
    given = {text.strip() for text in (*options, *words)}
    if len(given) > 1:
        raise UsageError(f"Several endpoints: {', '.join(sorted(given))}.", "Give one.")
    if "" in given:
        raise UsageError("The endpoint is empty.", "Is $ENDPOINT set? Run: probe list")
    return given.pop() if given else None


def endpoint_and_word(options: Sequence[str], words: Sequence[str], what: str) -> tuple[str | None, str]:
    """The endpoint (or None) and the one other word (or ""): a first word is the endpoint if it is a number, or if
    another follows and there is no -t.  Raises UsageError."""
    rest = list(words)
    is_named = not options and rest and (len(rest) == 2 or rest[0].isdigit())
    endpoint = one_endpoint(options, [rest.pop(0)] if is_named else [])
    if len(rest) > 1:
        raise UsageError(f"More than one {what}: {' '.join(rest)}.", "Give one.")
    return endpoint, "".join(rest)


def pid_of(word: str) -> int:
    """The pid that a word gives.  Raises UsageError."""
    if not word.strip().isdigit() or not int(word):
        raise UsageError(f"{word!r} is not a pid.", "Give the number of a process: probe list shows them.")
    return int(word)


def endpoint_and_text(
    options: Sequence[str], words: Sequence[str], file: str | None, what: str
) -> tuple[str | None, str]:
    """The endpoint (or None) and the text: the last word, stdin for `-`, or a file's content.  Raises UsageError."""
    most = 1 if options or file is not None else 2
    if file is not None and options and (others := [word for word in words if word not in options]):
        raise UsageError(f"The {what} is given twice: in {file} and as {' '.join(others)!r}.", "Give one.")
    if len(words) > most:
        raise UsageError(f"Too many words: {' '.join(words[most - 1 :])!r}.", f"Put the {what} in quotes.")
    *before, text = words if file is None and words else [*words, ""]
    if file is None and (not text or (text.isdigit() and what == "SQL")):
        raise UsageError(f"No {what} was given.", "Give it in quotes, or - to read stdin, or -f FILE.")
    if file is not None or text == "-":
        text = _read(file or "-", what)
    try:
        text = text.encode("utf-8", "surrogateescape").decode()  # LC_ALL=C: bytes above 127 come as lone surrogates
    except UnicodeError as error:
        raise UsageError(f"The {what} is not UTF-8 text.") from error
    if what == "SQL" and not text.strip(" \t\r\n;"):
        raise UsageError("The SQL is empty.", 'For example: "SELECT * FROM probe.agents"')
    return one_endpoint(options, before), text


def _read(file: str, what: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"Cannot read the {what} from {file}: {reason}.") from error
