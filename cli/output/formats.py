"""The formats of --format, and where they are written: stdout or -o FILE."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from probe.errors import UsageError

from . import table
from .result import Result

BINARY = ("parquet", "arrow")
SUFFIXES = {".csv": "csv", ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet",
            ".arrow": "arrow", ".feather": "arrow", ".txt": "table"}  # fmt: skip

Function = TypeVar("Function", bound=Callable[..., Any])


def format_options(function: Function) -> Function:
    """--format and -o, as the arguments `form` and `output` that `check` and `show` take."""
    form = click.option("--format", "form", type=click.Choice(list(WRITERS)), metavar="FORMAT",
                        help=f"{', '.join(WRITERS)}; by default what -o's suffix says, or table.")  # fmt: skip
    output = click.option("-o", "--output", "output", metavar="FILE", help="Write to FILE instead of stdout.")
    return form(output(function))


def check(form: str | None, output: str | None) -> None:
    """Raises UsageError for what could not be written, before the work is done whose result it is."""
    if chosen(form, output) in BINARY and output is None and sys.stdout.isatty():
        raise UsageError(f"{form} is binary and stdout is a terminal.", f"Give -o FILE.{form}, or a pipe.")
    if output is not None:
        folder = Path(output).parent
        if Path(output).is_dir():
            raise UsageError(f"Cannot write {output}: it is a folder.")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"Cannot write {output}: no such folder, or not writable.")


def chosen(form: str | None, output: str | None) -> str:
    suffix = Path(output or "").suffix.lower()
    if form is None and suffix and suffix not in SUFFIXES:
        raise UsageError(f"No format has the suffix {suffix!r}: {output}.", f"Say which: --format {'|'.join(WRITERS)}")
    return form or SUFFIXES.get(suffix, "table")


def show(result: Result, form: str | None = None, output: str | None = None, wrap_last: bool = False) -> None:
    """Write result to stdout or to the file `output`; the row count of a table or a file goes to stderr."""
    write(result, form, output, wrap_last)
    if output is not None:
        print(f"{rows(result)} written to {output}", file=sys.stderr)
    elif chosen(form, output) == "table":
        print(f"({rows(result)})", file=sys.stderr)


def write(result: Result, form: str | None = None, output: str | None = None, wrap_last: bool = False) -> None:
    """The result and nothing else."""
    kind = chosen(form, output)
    with _sink(output) as sink:
        if kind == "table":
            _write_table(result, sink, _terminal_width(output), wrap_last)
        elif kind == "arrow" and output is not None:
            _write_arrow_file(result, sink)
        else:
            WRITERS[kind](result, sink)


def rows(result: Result) -> str:
    return f"{result.count} row{'s' * (result.count != 1)}"


def _terminal_width(output: str | None) -> int | None:
    return shutil.get_terminal_size().columns if output is None and sys.stdout.isatty() else None


@contextmanager
def _sink(output: str | None) -> Iterator[BinaryIO]:
    """The open file, or stdout's bytes: everything but a table in a terminal is UTF-8 in any locale."""
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        stream = open(output, "wb")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"Cannot write {output}: {error.strerror}.") from error
    with stream:
        yield stream


def _write_table(result: Result, sink: BinaryIO, width: int | None, wrap_last: bool = False) -> None:
    encoding = sys.stdout.encoding if width is not None else "utf-8"
    for line in table.render(result, width, wrap_last):
        sink.write(f"{line}\n".encode(encoding, "backslashreplace"))


def _write_csv(result: Result, sink: BinaryIO) -> None:
    """RFC 4180 with \\n; NULL is an empty field, a list or struct its JSON."""
    text = io.TextIOWrapper(sink, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.names)
    for batch in result.batches():
        writer.writerows(zip(*([_field(value) for value in column] for column in batch), strict=True))
    text.detach()


def _write_ndjson(result: Result, sink: BinaryIO) -> None:
    for line in _objects(result):
        sink.write(f"{line}\n".encode())


def _write_json(result: Result, sink: BinaryIO) -> None:
    separator = "["
    for line in _objects(result):
        sink.write(f"{separator}{line}".encode())
        separator = ",\n "
    sink.write(b"]\n" if separator != "[" else b"[]\n")


def _write_parquet(result: Result, sink: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        parquet.write_table(result.arrow(), sink)
    except pa.ArrowNotImplementedError as error:
        reason = str(error).rstrip(".")
        raise UsageError(f"Parquet cannot hold this: {reason}.", "Cast the column to VARCHAR, or use arrow.") from error


def _write_arrow(result: Result, sink: BinaryIO) -> None:
    """The IPC stream format, which needs no seeking and so goes into a pipe."""
    import pyarrow as pa

    with pa.ipc.new_stream(sink, result.arrow().schema) as writer:
        writer.write_table(result.arrow())


def _write_arrow_file(result: Result, sink: BinaryIO) -> None:
    """The IPC file format, which is what .arrow and .feather stand for."""
    import pyarrow as pa

    with pa.ipc.new_file(sink, result.arrow().schema) as writer:
        writer.write_table(result.arrow())


WRITERS: dict[str, Callable[[Result, BinaryIO], None]] = {
    "table": lambda result, sink: _write_table(result, sink, None),
    "csv": _write_csv,
    "json": _write_json,
    "ndjson": _write_ndjson,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
}


def _objects(result: Result) -> Iterator[str]:
    for batch in result.batches():
        for row in zip(*batch, strict=True):
            values = {name: _jsonable(value) for name, value in zip(result.names, row, strict=True)}
            yield json.dumps(values, ensure_ascii=False)


def _field(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
        return value
    return table.cell(value) if not isinstance(value, Decimal) else str(value)


def _jsonable(value: Any) -> Any:
    """What JSON can hold of it: NaN and the infinities, for which JSON has no word, are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else table.cell(value)
