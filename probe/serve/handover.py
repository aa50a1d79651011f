"""What `launch` hands to the keeper, and the keeper to the server: numbers of descriptors, and how to run a module.

Standard library only: the keeper loads nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from typing import Any

SERVER, KEEPER = "probe-server", "probe-keeper"  # the two processes, in ps and top
SERVER_MODULE, KEEPER_MODULE = "probe.serve.server", "probe.serve.keeper"
IPC, CONFIG, TCP = 3, 4, 5  # descriptors: the two sockets listen, the file has what config() returns
_MOST_BYTES = 1 << 20


def config() -> dict[str, Any]:
    """As `launch` has written it: endpoint, folder, role, key, tcp, pid, uid, gid, python_path."""
    return dict(json.loads(os.pread(CONFIG, _MOST_BYTES, 0)))


def command(module: str, endpoint: str) -> list[str]:
    """What runs main() of this module, with the import path of the config and none of the user's settings.  endpoint:
    for who reads the process list."""
    path = f"json.loads(os.pread({CONFIG}, {_MOST_BYTES}, 0))['python_path']"
    code = f"import json, os, sys; sys.path[:] = {path}; from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-B", "-c", code, module, endpoint]


def remove(folder: str) -> None:
    """Remove the folder of the server's socket."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
