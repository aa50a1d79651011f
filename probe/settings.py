"""What `set` takes: names, their valid values, and the words in which users write them.

Called by probe.connection (values) and `probe set` (words).  Invariant: an error names what is valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from .errors import UsageError

EVERY = (1, 2, 5, 10, 20, 50, 100)  # as agent/steps/sampling.py: a test compares
BLOCK = 10

VALID = {
    "sample": f"auto, or one of {', '.join(map(str, EVERY))}: of so many blocks of ten steps one is recorded",
    "budget_pct": "a number above 0 and up to 100: what sample=auto may cost, in percent of a step",
    "backward": "on or off",
}
_WRITTEN = {"sample": "sample", "budget": "budget_pct", "backward": "backward"}  # as users write them


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same, each known and valid.  Raises UsageError."""
    for name, value in settings.items():
        if name not in VALID:
            raise unknown(name, VALID)
        if not _IS_VALID[name](value):
            raise invalid(name, value)
    return dict(settings)


def from_words(words: Sequence[str]) -> dict[str, Any]:
    """Settings out of `name=value` words, such as budget=0.5%.  Raises UsageError."""
    settings: dict[str, Any] = {}
    for word in words:
        written, _, text = word.partition("=")
        if written not in _WRITTEN:
            raise unknown(written, _WRITTEN)
        if _WRITTEN[written] in settings:
            raise UsageError(f"{written} is given twice.", "Give it once.")
        settings[_WRITTEN[written]] = _value(written, text.strip().lower())
    return settings


def _value(written: str, text: str) -> Any:
    name = _WRITTEN[written]
    value: Any = text
    if written == "backward" and text in ("on", "off"):
        value = text == "on"
    elif written == "sample" and text.isascii() and text.isdigit():
        value = int(text)
    elif written == "budget":
        value = _number(text.removesuffix("%"))
    if not _IS_VALID[name](value):
        raise invalid(name, text, written)
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_sample(value: Any) -> bool:
    return value == "auto" or (type(value) is int and value in EVERY)


def _is_budget(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 < value <= 100


def _is_switch(value: Any) -> bool:
    return type(value) is bool


_IS_VALID: dict[str, Callable[[Any], bool]] = {
    "sample": _is_sample,
    "budget_pct": _is_budget,
    "backward": _is_switch,
}


def unknown(name: str, known: Mapping[str, Any]) -> UsageError:
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UsageError(f"No setting named {name!r}.", f"{hint}Settings: {', '.join(sorted(known))}.")


def invalid(name: str, value: Any, written: str = "") -> UsageError:
    return UsageError(f"{written or name}={value} is not valid.", f"Valid: {VALID[name]}.")
