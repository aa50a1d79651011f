"""The formats of --format: what each writes of a result.

Called by formats.py, and by the process that answers for a server.  Invariant: only a table is shortened or coloured,
and only as the paper says; all other formats have every row and every digit.  Text is UTF-8, which the stream of a
terminal turns into what that shows.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple

from probe.errors import UsageError

from . import table
from .result import Tabular, encoded

BINARY = ("parquet", "arrow")
_CRLF = "\r\n"


class Paper(NamedTuple):
    """What is written on.  width: of a terminal, None for no limit.

    most_rows: of a table, None for no limit; coloured: it may be.  The process that answers for a server gets a list.
    """

    is_file: bool = False
    width: int | None = None
    most_rows: int | None = None
    coloured: bool = False


def _write_table(result: Tabular, sink: BinaryIO, paper: Paper) -> None:
    shown = result if paper.most_rows is None else result.first(paper.most_rows)
    lines = table.render(shown, paper.width, paper.coloured)
    sink.writelines(encoded(f"{line}\n") for line in lines)


def _write_csv(result: Tabular, sink: BinaryIO, paper: Paper) -> None:
    """RFC 4180 with \\n; NULL is an empty field, a list or struct its JSON."""
    lines = SimpleNamespace(write=lambda line: sink.write(encoded(f"{line.removesuffix(_CRLF)}\n")))
    writer = csv.writer(lines, lineterminator=_CRLF)  # fields are quoted that have a character of this
    writer.writerow(result.names)
    for batch in result.batches():
        writer.writerows(zip(*([_field(value) for value in column] for column in batch), strict=True))


def _write_json(result: Tabular, sink: BinaryIO, paper: Paper) -> None:
    separator = "["
    for line in _objects(result):
        sink.write(encoded(f"{separator}{line}"))
        separator = ",\n "
    sink.write(b"]\n" if separator != "[" else b"[]\n")


def _write_ndjson(result: Tabular, sink: BinaryIO, paper: Paper) -> None:
    sink.writelines(encoded(f"{line}\n") for line in _objects(result))


def _write_parquet(result: Tabular, sink: BinaryIO, paper: Paper) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        parquet.write_table(result.arrow(), sink)
    except pa.ArrowNotImplementedError as error:
        reason = str(error).rstrip(".")
        raise UsageError(f"Parquet cannot hold this: {reason}.", "Cast the column to VARCHAR, or use arrow.") from error


def _write_arrow(result: Tabular, sink: BinaryIO, paper: Paper) -> None:
    """The IPC stream format, which works in a pipe; in a file the IPC file format: .arrow and .feather mean that."""
    import pyarrow as pa

    with (pa.ipc.new_file if paper.is_file else pa.ipc.new_stream)(sink, result.arrow().schema) as writer:
        writer.write_table(result.arrow())


WRITERS: dict[str, Callable[[Tabular, BinaryIO, Paper], None]] = {
    "table": _write_table, "csv": _write_csv, "json": _write_json, "ndjson": _write_ndjson,
    "parquet": _write_parquet, "arrow": _write_arrow,
}  # fmt: skip


def _objects(result: Tabular) -> Iterator[str]:
    for batch in result.batches():
        for row in zip(*batch, strict=True):
            values = {name: _jsonable(value) for name, value in zip(result.names, row, strict=True)}
            yield json.dumps(values, ensure_ascii=False)


def _field(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
        return value
    return table.cell(value) if not isinstance(value, Decimal) else str(value)


def _jsonable(value: Any) -> Any:
    """The value as JSON can hold it: NaN and the infinities, which JSON lacks, are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else table.cell(value)
