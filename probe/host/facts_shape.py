"""What the facts of an agent must look like, whether they come as a reply or out of a process's memory.

Invariant: what has passed fits Facts, and every number in it fits a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..shapes import LINE, NUMBER, SMALL, TEXT, TIME, Each, Printable, Whole, compiled
from ..streams import STREAMS

ENDPOINT = Printable(256)
SERVED = {
    "server": ENDPOINT,
    "tcp": (
        {
            "host": ENDPOINT, "address": ENDPOINT, "port": Whole(1, 65535), "public": ENDPOINT, "key_file": Printable(),
            "other_network?": bool,
        },
        None,
    ),
}  # fmt: skip
_ADDRESS = Whole(0, (1 << 64) - 1)
_OFFSET = Whole(0, 1 << 16)
LAYOUT = {  # as agent/inspect/interpreter_layout.py gives it
    **dict.fromkeys(("interp", "none", "code_type"), _ADDRESS), "gil": (_ADDRESS, None),
    **dict.fromkeys((
        "threads_head", "thread_next", "thread_id", "head", "frame_instr", "frame_code", "frame_previous", "code_file",
        "code_table", "code_name", "code_line", "code_flags", "text_kind", "text_data", "text_wide", "bytes_data",
    ), _OFFSET),
    **dict.fromkeys(("thread_tid", "head_inner", "instr_start"), (_OFFSET, None)), "text_ascii": Whole(0, 1 << 32),
}  # fmt: skip
FACTS = {
    "monotonic_ns": NUMBER, "wall_ns": NUMBER, "attached_ns?": TIME, "attached_wall_ns?": TIME, "last_step_ns?": TIME,
    "step_ns?": TIME, "collectives_ns?": TIME, "start_ticks?": TIME, "pid?": SMALL, "uid?": (Whole(), None),
    "rank?": SMALL, "world_size?": SMALL, "local_rank?": SMALL, "distributed?": (bool, None),
    "step_base?": (NUMBER, None),
    "step_source?": LINE, "step_settled?": (bool, None), "count?": TIME, "anchor?": LINE, "agent?": LINE, "host?": LINE,
    "step_ends?": LINE, "devices?": (bool, None),
    "python?": LINE, "torch?": LINE, "torch_cuda?": LINE, "endpoint?": (ENDPOINT, None), "trouble?": TEXT,
    "holder?": TEXT, "held_since_ns?": TIME, "freed_ns?": TIME, "training?": TIME,
    "layout?": (LAYOUT, None),
    "boot_id?": LINE, "id?": LINE, "name?": LINE, "served?": (SERVED, None), "peers?": TEXT,
    "taps?": Each(str), "streams": Each({"slots": [str], "chunks": Whole(1, 1 << 31)}),
    "sampling?": ({"sample": (int, str), "every": Whole(1, 1 << 31)}, None),
}  # fmt: skip

_check = compiled(FACTS)


def wrong_facts(said: Any) -> str:
    """What is wrong with facts as an agent says them; "" for nothing."""
    return _check(said, "facts") or wrong_slots(said["streams"])


def wrong_slots(layouts: Mapping[str, Any]) -> str:
    """What is wrong with the slots of streams; "" for nothing.

    A stream may have additional slots; all known ones must be there.
    """
    for name, described in layouts.items():
        slots = described["slots"]
        if tuple(slots) == STREAMS.get(name):
            continue
        missing = {*STREAMS.get(name, ("seq",))} - {*slots}
        if missing or slots[-1] != "seq" or len(slots) > 64:
            return f"stream {name[:40]!r} without {', '.join(sorted(missing)) or 'an end'}"
    return ""
