"""Every rule there is, in the order of these imports.  A new rule is one file here and one import; probe.diagnose says
how.

Invariant: rules on evidence stand in the order of their certainty, because `hang` reports the first that finds
something.
"""

# ruff: noqa: F401, I001 - an import registers a rule, and the order of imports is that of the rules

from __future__ import annotations

from typing import Any

from ..evidence import Evidence
from ..rule import Rule
from .lost_ranks import ENDED, GONE
from .activity import NOT_HUNG
from .snippet import SNIPPET
from .lost_ranks import STOPPED
from .disagreement import MISMATCH, DEADLOCK
from .device import DEVICE
from .activity import COMPILING, SLOW, UNCLEAR
from .waiting import LOADER, WAITING
from .standstill import COLLECTIVE, UNKNOWN
from .activity import IDLE
from .standstill import STANDS
from .straggler import STRAGGLER

RULES: tuple[Rule[Any], ...] = tuple(each for each in list(globals().values()) if isinstance(each, Rule))
ON_EVIDENCE: tuple[Rule[Evidence], ...] = tuple(rule for rule in RULES if not rule.needs)
