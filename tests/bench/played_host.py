"""The server of one host of a played job, for simulated ranks in another process: run by fan.py.

    python tests/bench/played_host.py FOLDER KEY_FILE

Reads the facts of its ranks from stdin, as one JSON list; prints its port, then serves until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from serving import Serving


def main() -> None:
    folder, key = map(Path, sys.argv[1:])
    ranks: list[Any] = [
        SimpleNamespace(facts=facts, path=facts["endpoint"].removeprefix("ipc://"))
        for facts in json.loads(sys.stdin.readline())
    ]
    print(Serving(folder, *ranks, key=key).port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
