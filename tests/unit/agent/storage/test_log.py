"""The log records what serial numbers and string ids mean; only the agent's thread writes it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest

from probe.agent.storage.log import Log
from probe.streams import LOG_EVAL, LOG_MODULE, LOG_RECORD, LOG_STRING


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


def records(log: Log) -> list[tuple[int, int, bytes]]:
    log.write()
    data, at, found = bytes(log.read(0, log.committed)), 0, []
    while at < len(data):
        kind, length, id = struct.unpack_from(LOG_RECORD, data, at)
        at += struct.calcsize(LOG_RECORD)
        found.append((kind, id, data[at : at + length]))
        at += -(-length // 8) * 8
    return found


def test_a_string_is_written_once_and_keeps_its_id(log: Log) -> None:
    assert log.string("all_reduce") == log.string("all_reduce")
    assert [(kind, text) for kind, _, text in records(log)] == [(LOG_STRING, b"all_reduce")]


def test_payloads_are_json_and_ids_are_never_used_twice(log: Log) -> None:
    first, second = log.next_id(), log.next_id()
    log.put(LOG_MODULE, first, {"name": "h.0"})
    assert first != second and json.loads(records(log)[0][2]) == {"name": "h.0"}


def test_nothing_is_committed_before_the_agents_thread_writes(log: Log) -> None:
    log.string("x")
    assert log.committed == 8
    log.write()
    assert struct.unpack_from("<Q", log.buffer)[0] == log.committed > 8


def test_invalid_text_does_not_stop_the_log(log: Log) -> None:
    for text in ("", "\udcff", "é" * 1000):
        log.string(text)
    log.put(LOG_MODULE, 1, {"name": object()})
    assert len(records(log)) == 4


def test_a_full_log_drops_records_and_counts_them(log: Log) -> None:
    log.put(LOG_STRING, 1, "x" * (65 << 20))
    log.string("later")
    assert [text for _, _, text in records(log)] == [b"later"] and log.dropped == 1


def test_modules_leave_room_for_other_records_and_the_log_says_what_is_missing(log: Log) -> None:
    for serial in range(70):
        log.put(LOG_MODULE, serial, {"name": "x" * (1 << 20)})
    log.write()
    assert 0 < log.dropped < 20 and log.trouble.startswith(f"the log is full: {log.dropped} records")
    log.put(LOG_EVAL, 71, {"code": "x" * (4 << 20)})
    log.string("later")
    assert [(kind, id) for kind, id, _ in records(log)][-2:] == [(LOG_EVAL, 71), (LOG_STRING, 1)]


def test_a_log_with_room_says_nothing(log: Log) -> None:
    log.put(LOG_MODULE, 1, {"name": "h.0"})
    assert records(log) and not log.trouble


def test_the_number_of_distinct_strings_is_bounded(log: Log) -> None:
    ids = []
    for i in range(100_010):
        ids.append(log.string(str(i)))
        if i % 10_000 == 0:
            log.write()
    assert ids[-1] == 0 and len({*ids} - {0}) == 100_000
    assert log.trouble == "more came than the log takes: 10 records, such as names of new modules, are missing"


def test_what_comes_while_too_much_waits_is_counted_and_a_string_is_taken_later(log: Log) -> None:
    for serial in range(1 << 16):
        log.put(LOG_MODULE, serial, {})
    log.put(LOG_MODULE, 1 << 16, {})
    assert log.string("linear") == 0 and log.trouble.startswith("more came than the log takes: 2 records")
    assert len(records(log)) == 1 << 16
    assert log.string("linear") and records(log)[-1][2] == b"linear"
