"""Files that show a profile as a flame graph: written, and read again to compare with.

Called by the verb flame.  Invariant: a file that was not written here is refused, for its functions have other names.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from ..errors import UsageError
from ..text import title
from .flame_page import Side, page, read_page
from .profile_rows import ProfileRows
from .speedscope import read_speedscope, speedscope

_SPEEDSCOPE, _PAGE = ".json", ".html"
_REMEDY = "Give a page or a speedscope file that it has written."


def require_format(file: str, compares: bool) -> None:
    """Raises UsageError if there is no such format, or if it cannot show a difference."""
    suffix = Path(file).suffix.lower()
    if suffix not in (_PAGE, _SPEEDSCOPE):
        raise UsageError(f"A flame graph is no {suffix or 'file without a suffix'}: {file}.",
                         "Give -o FILE.html or -o FILE.speedscope.json")  # fmt: skip
    if compares and suffix == _SPEEDSCOPE:
        raise UsageError("A speedscope file cannot show a difference.", "Give -o FILE.html")


def text_of(file: str, taken: ProfileRows, job: str, before: ProfileRows | None = None, against: str = "") -> str:
    """What to write into the file, by its suffix."""
    if Path(file).suffix.lower() == _SPEEDSCOPE:
        return speedscope(job, taken)
    made = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    sides = [Side("this profile", f"{made}: {about(taken)}", taken)]
    if before is not None:
        sides.append(Side(Path(against).name, f"{Path(against).name}: {about(before)}", before))
    return page(" against ".join([f"Profile of {job}", *(side.name for side in sides[1:])]), sides)


def about(taken: ProfileRows) -> str:
    """`ranks 0-1, 143 stacks, 40.0 s in 257.3 steps of each; 0.1 % of the time has no stack`."""
    stacks = f"{taken.stacks:,} stack{'s' * (taken.stacks != 1)}"
    text = f"{title(taken.ranks)}, {stacks}, {taken.seconds:,.1f} s"
    if taken.steps:
        text += f" in {sum(taken.steps.values()) / len(taken.steps):,.1f} steps" + " of each" * bool(taken.ranks[1:])
    return text + f"; {100 * taken.without_stack:.1f} % of the time has no stack" * bool(taken.without_stack)


def read(file: str) -> ProfileRows:
    """The profile that a file shows.  Raises UsageError."""
    try:
        found = parse(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from error
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise UsageError(f"{file} is broken: {type(error).__name__}.", _REMEDY) from error
    if found is None:
        raise UsageError(f"{file} was not written by probe flame.", _REMEDY)
    return found


def parse(text: str) -> ProfileRows | None:
    """The profile in the text of a file; None if it was not written here.  Raises what the formats' readers raise."""
    return read_speedscope(text) if text.startswith("{") else read_page(text)
