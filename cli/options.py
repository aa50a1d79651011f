"""Options and arguments that several verbs share, and how an endpoint is read out of them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from probe.errors import UsageError

from .argv import settle


class Seconds(click.FloatRange):
    """A time above 0, of which nan and inf are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


def size(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Callback of an option: bytes out of `500MB` or `4GB`, with units of a thousand."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B", value.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{value!r} is no size such as 500MB or 4GB.", ctx, param)
    return float(match[1]) * 1000.0 ** " kmgt".index(match[2].lower() or " ")


SECONDS = Seconds(min=0, min_open=True)

Function = TypeVar("Function", bound=Callable[..., Any])


class Verb(click.Command):
    """A verb whose help writes it as users do: the endpoint first."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("probe", " ".join([f"[ENDPOINT] {self.name}", *self.collect_usage_pieces(ctx)]))


class TextCommand(Verb):
    """A verb that takes SQL or code, which may begin with a dash."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {
            name: not (param.is_flag or param.count)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in (*param.opts, *param.secondary_opts)
        }
        return super().parse_args(ctx, settle(args, options))


KEY = "probe.key"  # in the context's meta: the file given by --key


def endpoint_option(function: Function) -> Function:
    """-t ENDPOINT and --key FILE of a verb that connects; cli/session.py takes the key from the context."""
    keyed = click.option(
        "--key", metavar="FILE", expose_value=False, help="The key for tcp:// and job://. Default: $PROBE_KEY.",
        callback=lambda context, parameter, value: context.meta.update({KEY: value}),
    )(function)  # fmt: skip
    return _target("Which job: a pid, a name, tcp://HOST:PORT, …")(keyed)


def process_option(function: Function) -> Function:
    """-t of a verb that looks at processes, attached or not."""
    return _target("The pid of a process, or of a parent of some.")(function)


def _target(what: str) -> Callable[[Function], Function]:
    """As the list `endpoints`: one given twice is an error of `one_endpoint`, not click's last."""
    return click.option("-t", "--endpoint", "endpoints", multiple=True, metavar="ENDPOINT", help=what)


def one_endpoint(options: Sequence[str], words: Sequence[str] = ()) -> str | None:
    """The endpoint given by -t or as a word, or None.  Raises UsageError for two that differ."""
    given = {text.strip() for text in (*options, *words)}
    if len(given) > 1:
        raise UsageError(f"Several endpoints: {', '.join(sorted(given))}.", "Give one.")
    if "" in given:
        raise UsageError("The endpoint is empty.", "Is $ENDPOINT set? Run: probe list")
    return given.pop() if given else None


def endpoint_and_text(
    options: Sequence[str], words: Sequence[str], file: str | None, what: str
) -> tuple[str | None, str]:
    """The endpoint (or None) and the text, which is the last word, stdin for `-`, or a file's content."""
    if file is not None:
        return one_endpoint(options, _at_most(words, 1, what)), _checked(_read(file, what), what)
    room = 1 if options else 2
    *before, text = _at_most(words, room, what) or [""]
    if not text or (text.isdigit() and what == "SQL"):
        raise UsageError(f"No {what} was given.", "Give it in quotes, or - to read stdin, or -f FILE.")
    return one_endpoint(options, before), _checked(_read("-", what) if text == "-" else text, what)


def _checked(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are none become lone surrogates
        raise UsageError(f"The {what} is not UTF-8 text.") from error
    if what == "SQL" and not text.strip(" \t\r\n;"):
        raise UsageError("The SQL is empty.", 'For example: "SELECT * FROM probe.agents"')
    return text


def _at_most(words: Sequence[str], room: int, what: str) -> list[str]:
    if len(words) > room:
        raise UsageError(f"Too many words: {' '.join(words[room - 1 :])!r}.", f"Put the {what} in quotes.")
    return list(words)


def _read(file: str, what: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"Cannot read the {what} from {file}: {reason}.") from error
