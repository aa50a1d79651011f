"""Every kind of hang, attached before and after it began: is the verdict right?  And of healthy jobs: none is
hung, also while one of their ranks validates, compiles or saves.

python tests/bench/hangs_of_all_kinds.py [ROUNDS]        3 by default: about half an hour
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from forked import ForkServer
from hangs import hanging, told

from target import PYTHON, starting

# kind -> (verdict's code, the ranks that it must name)
KINDS = {
    "sleeps": ("waiting", [1]),
    "in_lock": ("waiting", [1]),
    "raised": ("waiting", [1]),
    "exited": ("gone", [1]),
    "stopped": ("stopped", [1]),
    "another_operation": ("mismatch", [0, 1]),
    "another_size": ("gone", None),  # gloo ends one of the two
    "another_order": ("deadlock", [0, 1]),
    "no_barrier": ("mismatch", [0, 1]),
    "no_send": ("waiting", [1]),
    "both_receive": ("deadlock", [0, 1]),
    "loader": ("loader", [1]),
    "python_loop": ("slow", [1]),  # it computes
    "c_loop": ("waiting", [1]),
}
# between two ranks: gloo's recorder has nothing of what was before the attach
ONLY_BEFORE = ("no_send", "both_receive")
HEALTHY = ("healthy_slow", "healthy_fast", "healthy_validates", "healthy_compiles", "healthy_saves")
TIMES = 5  # each, attached at two moments


def main(rounds: int) -> int:
    cases = [(kind, before) for kind in KINDS for before in (True, False) if before or kind not in ONLY_BEFORE]
    server = ForkServer(PYTHON)
    right = [judged(server, *case) for _ in range(rounds) for case in cases]
    healthy = [judged(server, kind, before) for _ in range(TIMES) for kind in HEALTHY for before in (True, False)]
    server.close()
    print(f"{sum(right)} of {len(right)} verdicts right; {sum(healthy)} of {len(healthy)} healthy jobs not called hung")
    return 0 if sum(right) >= 0.95 * len(right) and all(healthy) else 1


def judged(server: ForkServer, kind: str, before: bool) -> bool:
    with tempfile.TemporaryDirectory() as folder, starting(Path(folder), server) as start:
        job = hanging(start, {kind: before})[kind]
        began = time.monotonic()
        report = told(job)
        took = time.monotonic() - began
    code, ranks = KINDS.get(kind, ("", []))
    good = not report["hung"] if kind in HEALTHY else report["code"] == code and ranks in (None, report["ranks"])
    when = "before" if before else "after"
    print(f"{'ok' if good else 'WRONG':<6} {took:.1f} s  {kind}, attached {when}: {report['verdict']}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
