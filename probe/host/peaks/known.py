"""What a processor can do at most: arithmetic by type, and bytes of its memory a second.

Called by the table module_cost and by the verb `doctor`.  What this user has measured counts; else, for a device, its
data sheet.  Of a CPU there is only what was measured, for one number of threads.  Invariant: a processor of another
name has no peak, however similar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import OutputError
from ...settings import state_folder
from .data_sheets import SHEETS, Sheet


@dataclass(frozen=True)
class Peak:
    """flops_s: operations a second, by type; bytes_s: of a copy, both those read and those written; source: who says
    so, and of a measurement when and with which versions."""

    flops_s: Mapping[str, float]
    bytes_s: float
    source: str


def cpu_name(model: str, threads: int) -> str:
    """What a CPU is called here: its threads decide, too."""
    return f"{model or 'CPU'}, {threads} thread{'s' * (threads != 1)}"


def peaks() -> dict[str, Peak]:
    """Of every processor that is known, by name."""
    return {name: _of_sheet(sheet) for name, sheet in SHEETS.items()} | measured()


def _of_sheet(sheet: Sheet) -> Peak:
    flops_s = {dtype: 1e12 * each for dtype, each in sheet.tflops_s.items()}
    return Peak(flops_s, 1e9 * sheet.memory_gbps, sheet.source)


def measured() -> dict[str, Peak]:
    """What was kept; nothing where the file is not there, or was not written by keep()."""
    found: dict[str, Peak] = {}
    with suppress(OSError, RuntimeError, ValueError, TypeError, AttributeError):
        for name, each in json.loads(_file().read_text()).items():
            flops_s = {str(dtype): float(value) for dtype, value in each["flops_s"].items() if float(value) > 0}
            if float(each["bytes_s"]) > 0:
                found[name] = Peak(flops_s, float(each["bytes_s"]), str(each["source"]))
    return found


def keep(new: Mapping[str, Peak]) -> Path:
    """Beside those of other processors, in place of older ones of the same; the file.  Raises OutputError."""
    try:
        file = _file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        spare = file.with_suffix(".new")
        spare.write_text(json.dumps({name: asdict(peak) for name, peak in (measured() | dict(new)).items()}, indent=1))
        spare.replace(file)
    except (OSError, RuntimeError) as error:
        raise OutputError(f"The peaks cannot be kept: {error}.") from None
    return file


def _file() -> Path:
    return state_folder() / "peaks.json"
