"""Raw rows on their way to Arrow."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from probe.arrays.arrow import coded, raw_schema, template
from probe.snapshot.rows import complete
from probe.streams import STREAMS


@pytest.mark.parametrize("slots", sorted({len(slots) for slots in STREAMS.values()}))
@pytest.mark.parametrize("rows", [1, 7, 8, 100, 2048, 16384])
def test_pyarrow_reads_rows_behind_the_patched_template(slots: int, rows: int) -> None:
    header, patch = template(slots)
    patched = bytearray(header)
    for offset, multiplier in patch:
        struct.pack_into("<q", patched, offset, rows * multiplier)
    values = np.random.default_rng(rows).integers(-(1 << 62), 1 << 62, rows * slots)
    end = struct.pack("<iI", -1, 0)
    stream = raw_schema(slots).serialize().to_pybytes() + bytes(patched) + values.tobytes() + end
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    assert table.num_rows == rows
    assert np.array_equal(table.column(0).combine_chunks().values.to_numpy(), values)


def test_rows_that_are_not_written_or_overwritten_are_dropped() -> None:
    table = np.array([[10, 5], [11, 0], [12, 7], [13, 24]])
    assert complete(table, 5)[:, 0].tolist() == [10, 12]


def test_names_are_a_dictionary_with_nulls_for_what_has_none() -> None:
    array = coded(np.array([3, 1, 3, 9, 2]), {1: "a", 2: "a", 3: "b"})
    assert array.to_pylist() == ["b", "a", "b", None, "a"]
    assert sorted(array.dictionary.to_pylist()) == ["a", "b"]
    assert coded(np.array([], np.int64), {}).to_pylist() == []
