"""Between raw rows and Arrow: the IPC header an agent stamps on its rows, and arrays made of numpy's.

Called by the fetchers (template) and by the tables (coded, nullable, table_of).  Invariant: no copy of
rows but the one that a column needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..schema import Column, Columns
from .integers import Bools, Ints, distinct, places

ARROW_TYPES: dict[str, Any] = {
    "BOOLEAN": pa.bool_(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.dictionary(pa.int32(), pa.string()),
    "TIMESTAMP": pa.timestamp("us"),
    "DOUBLE[]": pa.list_(pa.float64()),
    "BIGINT[]": pa.list_(pa.int64()),
    "INTEGER[]": pa.list_(pa.int32()),
    "VARCHAR[]": pa.list_(pa.string()),
}
ROW = "row"  # name of the one column of a raw batch


def raw_schema(slots: int) -> Any:
    """The schema of a batch of raw rows as it travels."""
    return pa.schema([(ROW, pa.list_(pa.int64(), slots))])


@lru_cache
def template(slots: int) -> tuple[bytes, list[list[int]]]:
    """(record-batch header, [[offset, multiplier], …]): the 8-byte integer at each offset is rows × multiplier.

    The sender needs no Arrow: it patches these integers and sends header and rows as they are.
    """
    small, large = _header(8, slots), _header(16384, slots)
    patch = []
    for offset in range(0, len(small) - 7, 8):
        (a,), (b,) = struct.unpack_from("<q", small, offset), struct.unpack_from("<q", large, offset)
        if a != b and a > 0 and a % 8 == 0 and b == a // 8 * 16384:
            patch.append([offset, a // 8])
    return small, patch


def _header(rows: int, slots: int) -> bytes:
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(rows * slots, np.int64)), slots)
    message = pa.record_batch([values], schema=raw_schema(slots)).serialize().to_pybytes()
    (length,) = struct.unpack_from("<I", message, 4)
    return bytes(message[: 8 + length])


def coded(ids: Ints, names: Mapping[int, str]) -> Any:
    """A dictionary array of the names of these ids, NULL where an id has none."""
    known = distinct(ids)
    values = list(dict.fromkeys(names[i] for i in known.tolist() if i in names))
    place = {name: code for code, name in enumerate(values)}
    codes = np.array([place[names[i]] if i in names else -1 for i in known.tolist()], np.int32)
    codes = codes[places(ids, known)]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(values, pa.string()))


def choice(codes: Any, values: Sequence[str]) -> Any:
    """A dictionary array of values[code]."""
    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(codes, np.int32)), pa.array(values, pa.string()))


def nullable(values: Any, valid: Bools) -> Any:
    """An array that is NULL where not valid."""
    return pa.array(values, mask=~valid)


def nulls(count: int, sql_type: str) -> Any:
    return pa.nulls(count, ARROW_TYPES[sql_type])


def repeated(value: Any, count: int, sql_type: str) -> Any:
    """The same value in every row."""
    if sql_type == "VARCHAR":
        return choice(np.zeros(count, np.int32), [value]) if value is not None else nulls(count, sql_type)
    return pa.repeat(pa.scalar(value, ARROW_TYPES[sql_type]), count)


def schema_of(columns: Sequence[Column]) -> Any:
    return pa.schema([(column.name, ARROW_TYPES[column.type]) for column in columns])


def table_of(columns: Sequence[Column], values: Columns) -> Any:
    """An Arrow table of just these columns; a value that is a function is called here and only here."""
    return pa.Table.from_arrays([array_of(column, values) for column in columns], schema=schema_of(columns))


def array_of(column: Column, values: Columns) -> Any:
    """One column, a pyarrow array or chunked array."""
    return _array(values[column.name], ARROW_TYPES[column.type])


def columns_of(columns: Sequence[Column], records: Sequence[Mapping[str, Any]]) -> Columns:
    """The values of these columns, out of one mapping a row; NULL where it lacks a column's name."""

    def values(column: Column) -> Any:
        arrow_type = pa.string() if column.type == "VARCHAR" else ARROW_TYPES[column.type]  # coded where it is used
        return pa.array([record.get(column.name) for record in records], arrow_type)

    return {column.name: values(column) for column in columns}


def stacked(columns: Sequence[Column], parts: Sequence[Columns]) -> Columns:
    """The rows of each part below those of the one before; NULL where a part lacks a column that another has."""
    rows = [next(len(value) for value in part.values() if not callable(value)) for part in parts]

    def values(column: Column) -> Any:
        chunks = [
            _array(part[column.name], ARROW_TYPES[column.type]) if column.name in part else nulls(count, column.type)
            for part, count in zip(parts, rows, strict=True)
        ]
        return pa.chunked_array(chunks, ARROW_TYPES[column.type])

    present = [column for column in columns if not parts or any(column.name in part for part in parts)]
    return {column.name: partial(values, column) for column in present}


def made(value: Any | Callable[[], Any]) -> Any:
    """A column's values, where they are not there yet."""
    return value() if callable(value) else value


def _array(value: Any | Callable[[], Any], arrow_type: Any) -> Any:
    array = made(value)
    if not isinstance(array, (pa.Array, pa.ChunkedArray)):
        array = pa.array(array)
    if array.type == arrow_type:
        return array
    if pa.types.is_dictionary(arrow_type) and not pa.types.is_dictionary(array.type):
        return array.cast(pa.string()).dictionary_encode().cast(arrow_type)
    return array.cast(arrow_type)
