"""Names go to an agent in parts that it takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probe import protocol as wire
from probe.client.deposits import deposited, in_parts


@given(st.lists(st.tuples(st.text(max_size=300), st.text(max_size=3000)), max_size=60))
def test_every_name_is_in_one_part_and_no_header_is_too_large(names: list[tuple[str, str]]) -> None:
    many = names * 20
    parts = list(in_parts(many))
    assert [name for part in parts for name in part] == many
    for part in parts:
        header = wire.encode(wire.DEPOSIT, names=[deposited(name) for name in part])
        assert part and len(header) <= wire.MAX_CONTROL_BYTES
