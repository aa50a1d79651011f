"""Where a result is written, and in which format: --format, -o FILE or stdout."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from probe.errors import UsageError

from .colours import has_colours
from .printable import buffer_with_colours
from .result import Tabular
from .writers import BINARY, WRITERS, Paper

MOST_ROWS = 40  # of a table on a terminal: few, since the first query is often SELECT *
Function = Callable[..., Any]
SUFFIXES = {".csv": "csv", ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet",
            ".arrow": "arrow", ".feather": "arrow", ".txt": "table"}  # fmt: skip


def output_options(function: Function) -> Function:
    """--format, --json and -o, as the argument `output`: an Output that can be written to."""

    @click.option("-o", "--output", "out", metavar="FILE", type=click.Path(),
                  help="Write to FILE instead of stdout (-).")  # fmt: skip
    @functools.wraps(function)
    def with_output(format: str | None, out: str | None, **options: Any) -> Any:
        return function(output=Output(format, None if out == "-" else out), **options)

    return format_options("by -o's suffix, else table")(with_output)


def limited_output_options(function: Function) -> Function:
    """output_options of a verb whose result may be long: a terminal shows its first MOST_ROWS rows, or --all."""

    @click.option("--all", "all_rows", is_flag=True, help=f"Show all rows; a terminal shows the first {MOST_ROWS}.")
    @output_options
    @functools.wraps(function)
    def with_limit(output: Output, all_rows: bool, **options: Any) -> Any:
        return function(output=output if all_rows else replace(output, most_rows=MOST_ROWS), **options)

    return with_limit


def format_options(default: str = "table", binary: bool = True) -> Callable[[Function], Function]:
    """--format and --json, as the argument `format`: None if neither is given.

    default: what is said of that; binary: whether formats that no terminal shows are among them.
    """
    kinds = [kind for kind in WRITERS if binary or kind not in BINARY]

    def with_options(function: Function) -> Function:
        @click.option("--format", type=click.Choice(kinds), metavar="FORMAT",
                      help=f"{', '.join(kinds)}. Default: {default}.")  # fmt: skip
        @json_option("Short for --format json.")
        @functools.wraps(function)
        def with_format(format: str | None, as_json: bool, **options: Any) -> Any:
            if as_json and format not in (None, "json"):
                raise UsageError(f"--json and --format {format} exclude each other.", "Give one.")
            return function(format="json" if as_json else format, **options)

        return with_format

    return with_options


def json_option(help: str) -> Callable[[Function], Function]:
    """--json, as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help)


@dataclass(frozen=True)
class Output:
    """Where a result goes, and how.  format: of --format, or None; file: of -o, or None for stdout.

    most_rows: that a terminal shows of a table; None for all.

    Raises UsageError for an output that cannot be written, before a verb does any work.
    """

    format: str | None = None
    file: str | None = None
    most_rows: int | None = None

    @property
    def is_default(self) -> bool:
        """Whether the user chose neither, so that a verb may add text for people to read."""
        return self.format is None and self.file is None

    @property
    def kind(self) -> str:
        """The format, from the file's suffix if --format does not say.  Raises UsageError for an unknown suffix."""
        suffix = Path(self.file or "").suffix.lower()
        if self.format is None and suffix and suffix not in SUFFIXES:
            raise UsageError(f"No format has the suffix {suffix!r}: {self.file}.", f"Give --format {'|'.join(WRITERS)}")
        return self.format or SUFFIXES.get(suffix, "table")

    def __post_init__(self) -> None:
        if self.kind in BINARY and self.file is None and sys.stdout.isatty():
            raise UsageError(
                f"{self.format} is binary and stdout is a terminal.", f"Use a pipe, or -o FILE.{self.format}"
            )
        if self.file is not None:
            require_writable(self.file)

    def show(self, result: Tabular) -> None:
        """Write the result; the row count of a table or a file goes to stderr."""
        self.write(result)
        self.tell_rows(result.count)

    def write(self, result: Tabular) -> None:
        """Write the result and nothing else."""
        with self.opened() as sink:
            WRITERS[self.kind](result, sink, self.paper())
            sink.flush()

    def opened(self) -> AbstractContextManager[BinaryIO]:
        """Raises UsageError if it cannot be opened."""
        sys.stdout.flush()
        try:
            if self.file is not None:
                return open(self.file, "wb")
            return nullcontext(buffer_with_colours(sys.stdout) if self.paper().coloured else sys.stdout.buffer)
        except OSError as error:
            raise UsageError(f"Cannot write {self.file}: {error.strerror}.", "Give another: -o FILE") from error

    def paper(self) -> Paper:
        is_table = self.kind == "table"
        if self.file is not None or not sys.stdout.isatty():
            return Paper(self.file is not None, coloured=is_table and self.file is None and has_colours(sys.stdout))
        most_rows = self.most_rows if is_table else None
        width = shutil.get_terminal_size().columns
        return Paper(False, width, most_rows, is_table and has_colours(sys.stdout))

    def tell_rows(self, count: int) -> None:
        if self.file is not None:
            print(f"{rows(count)} written to {self.file}", file=sys.stderr)
        elif self.kind == "table":
            print(f"({rows(count)}{self.left_out(count)})", file=sys.stderr)

    def left_out(self, count: int, show_all: str = "--all") -> str:
        """What to add to the number of rows if not all are shown.  show_all: what shows them."""
        most = self.paper().most_rows
        return "" if most is None or count <= most else f"; the first {most} are shown, {show_all} shows all"


def require_writable(file: str, option: str = "-o") -> None:
    """Before the work whose result this file is to take, which the option names.  Raises UsageError."""
    is_there = os.path.exists(file)
    if os.path.isdir(file):
        raise UsageError(f"Cannot write {file}: it is a folder.", f"Give a file: {option} {file}/FILE")
    if not os.access(file if is_there else Path(file).parent, os.W_OK):
        why = "it is read-only" if is_there else "no such folder, or not writable"
        raise UsageError(f"Cannot write {file}: {why}.", f"Give another: {option} FILE")


def writable_file(context: click.Context, parameter: click.Parameter, file: str) -> str:
    """For options whose file is written at the end of the work."""
    if file:
        require_writable(file, parameter.opts[0])
    return file


def rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
