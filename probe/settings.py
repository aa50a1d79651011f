"""What `set` accepts: the settings' names, their valid values, and how users write them.

Called by probe.control (values) and `probe set` (text).  Invariant: an error names what is valid.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import UsageError
from .streams import EVERY
from .text import nearest

NO_SERVER = "PROBE_NO_SERVER"  # in the environment: commands neither start nor ask the server beside a job

VALID = {
    "sample": f"auto, or N from 1 to {EVERY[-1]}: one of N blocks of ten steps is recorded; N is a power of two, or is "
    "taken as the next one",
    "budget_pct": "a number above 0 and at most 100: the overhead that sample=auto may cause, in percent of a step",
    "backward": "on or off",
    "for_steps": "for how many steps sample=N (without it, sample=1) is the least, after which it is as before",
    "step": "the name of a variable of the job that counts its steps, such as i or trainer.global_step; "
    "nothing: look for one",
}
_VARIABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# As users write them.
WRITTEN = {"sample": "sample", "budget": "budget_pct", "backward": "backward", "for": "for_steps", "step": "step"}


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, each known and valid, `sample` as a power of two.  Raises UsageError."""
    for name, value in settings.items():
        if name not in VALID:
            raise _unknown(name, VALID)
        if not _is_valid(name, value):
            raise _invalid(name, name, value)
    sample = settings.get("sample")
    if "for_steps" in settings and sample == "auto":
        raise UsageError("for is of sample=N, not of sample=auto.", "For example: sample=1 for=200")
    return {**settings, "sample": 1 << (sample - 1).bit_length()} if type(sample) is int else dict(settings)


def from_words(words: Sequence[str]) -> dict[str, Any]:
    """The settings in `name=value` words such as budget=0.5%.  Raises UsageError."""
    settings: dict[str, Any] = {}
    for word in words:
        written, _, text = word.partition("=")
        if written not in WRITTEN:
            raise _unknown(written, WRITTEN)
        name = WRITTEN[written]
        if name in settings:
            raise UsageError(f"{written} is given twice.", "Give it once.")
        text = text.strip() if name == "step" else text.strip().lower()
        settings[name] = _value(name, text)
        if not _is_valid(name, settings[name]):
            raise _invalid(written, name, text)
    return settings


def _value(name: str, text: str) -> Any:
    if name == "backward" and text in ("on", "off"):
        return text == "on"
    if name in ("sample", "for_steps") and text.isascii() and text.isdigit():
        return int(text)
    if name == "budget_pct":
        try:
            return float(text.removesuffix("%"))
        except ValueError:
            return None
    return text


def _is_valid(name: str, value: Any) -> bool:
    if name == "sample":
        return value == "auto" or (type(value) is int and 1 <= value <= EVERY[-1])
    if name == "budget_pct":
        return type(value) in (int, float) and math.isfinite(value) and 0 < value <= 100
    if name == "for_steps":
        return type(value) is int and value > 0
    if name == "step":
        return type(value) is str and (not value or is_variable(value))
    return type(value) is bool


def require_seconds(name: str, seconds: float, hint: str = "Give seconds above 0.") -> None:
    """Raises UsageError where the argument of this name is no such number."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"{name}={seconds} is no time to wait.", hint)


def is_variable(name: str) -> bool:
    """Whether `set step=` takes this name: i, or trainer.global_step."""
    return _VARIABLE.fullmatch(name) is not None


def _unknown(name: str, known: Mapping[str, Any]) -> UsageError:
    hint = f"{nearest(name, known)} Settings: {', '.join(sorted(known))}.".lstrip()
    return UsageError(f"No setting named {name!r}.", hint)


def _invalid(written: str, name: str, value: Any) -> UsageError:
    return UsageError(f"{written}={value} is not valid.", f"Valid: {VALID[name]}.")


def state_folder() -> Path:
    """Where what a user's commands keep lies; it may not exist.  Raises RuntimeError for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "probe"


def may_serve() -> bool:
    """Whether this user wants servers beside jobs."""
    return not os.environ.get(NO_SERVER)
