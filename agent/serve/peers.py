"""Where the other ranks of the job are asked: each agent with a port leaves a record in the job's own store.

tick() and ask() on the agent's thread.  The one invariant: neither that thread nor the job ever waits for the store: it
is spoken to on threads that end soon, by a connection of our own; the job's store object only tells its address.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from ... import protocol as wire
from ..torch_state import is_distributed
from .server import Key, Refused, Server

_PATIENCE_S = 3.0  # with the store
_AGAIN_S = 30.0  # after the store could not be reached
_EVERYWHERE = {"0.0.0.0", "::"}

Place = tuple[str, int, str]  # host and port of the store; what our keys begin with


class Unknown(Exception):
    """Why the job has no store that others could look into."""


class Peers:
    """listening(), tick() and ask() on the agent's thread; remove() on another, once, at the end."""

    def __init__(self, server: Server, identity: str) -> None:
        self.state = "off: no port was asked for"
        self._server, self._identity = server, identity
        self._listens: dict[str, Any] | None = None
        self._left: tuple[Place, int] | None = None  # where our record lies, and for which rank
        self._due = 0.0
        self._at_store = sys.modules["_thread"].allocate_lock()

    def listening(self, host: str, address: str, public: str) -> None:
        self._listens = {"host": host, "address": address, "key": public}

    def tick(self) -> None:
        """Leave the record once there is a process group, and again if its rank becomes another."""
        if self._listens is None or time.monotonic() < self._due or self._at_store.locked():
            return
        try:
            wanted = place_of_store(), sys.modules["torch.distributed"].get_rank()
        except Unknown as error:
            self.state = f"off: {error}"
            return
        if wanted != self._left:
            self._due = time.monotonic() + _AGAIN_S
            self._at_store.acquire()
            sys.modules["_thread"].start_new_thread(self._leave, wanted)

    def ask(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """What every rank has left: its records, by rank, None for who has left none."""
        if self._left is None:
            raise Refused("no-peers", f"knows no other rank: {self.state.removeprefix('off: ')}")
        place = self._left[0]
        size = int(sys.modules["torch.distributed"].get_world_size())
        sys.modules["_thread"].start_new_thread(self._read, (key, place, size))

    def remove(self) -> None:
        """Take our record out of the store, if that still is."""
        self._listens = None
        if not self._at_store.acquire(timeout=_PATIENCE_S):
            return
        try:
            if self._left is not None:
                place, rank = self._left
                store, name = open_store(place), f"{place[2]}/{rank}"
                if store.check([name]) and json.loads(store.get(name))["id"] == self._identity:
                    store.delete_key(name)
        except Exception:  # a store that is gone has no record either
            pass
        finally:
            self._at_store.release()

    # ---- threads of their own

    def _leave(self, place: Place, rank: int) -> None:
        try:
            listens = self._listens
            if listens is not None:
                open_store(place).set(f"{place[2]}/{rank}", json.dumps(self._record(place, rank, listens)))
                self._left, self._due, self.state = (place, rank), 0.0, "on"
        except Exception as error:
            self.state = f"off: the store at {place[0]}:{place[1]}: {_line(error)}"
        finally:
            self._at_store.release()

    def _record(self, place: Place, rank: int, listens: dict[str, Any]) -> dict[str, Any]:
        address = listens["address"]
        host = address_towards(place) if address in _EVERYWHERE else listens["host"]
        return {
            "rank": rank,
            "endpoint": f"tcp://{host}:{self._server.doors.port}",
            "server_key": listens["key"],
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "id": self._identity,
        }

    def _read(self, key: Key, place: Place, size: int) -> None:
        try:
            store = open_store(place)
            names = [f"{place[2]}/{rank}" for rank in range(size)]
            ranks = [json.loads(store.get(name)) if store.check([name]) else None for name in names]
            self._server.post(key, wire.KNOWN, ranks=ranks)
        except Exception as error:
            why = f"knows no other rank: the store at {place[0]}:{place[1]}: {_line(error)}"
            self._server.post(key, wire.ERROR, code="no-peers", message=why)


def place_of_store() -> Place:
    """Raises Unknown.  Keys bear the run's name and its size: torchrun counts restarts in each node by itself."""
    if not is_distributed():
        raise Unknown("the job has no process group")
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not (host and port.isdecimal()):
        store: Any = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        host, port = getattr(store, "host", ""), str(getattr(store, "port", ""))
    if not (host and port.isdecimal()):
        raise Unknown("the job's store is no TCPStore")
    size = sys.modules["torch.distributed"].get_world_size()
    return host, int(port), f"probe/{os.environ.get('TORCHELASTIC_RUN_ID') or port}/{size}"


def open_store(place: Place) -> Any:
    """A connection of our own.  A look at the port comes first: torch waits for a store that is gone, and prints so."""
    import socket
    from datetime import timedelta

    host, port, _ = place
    with socket.create_connection((host, port), _PATIENCE_S):
        pass
    fields = {"is_master": False, "wait_for_workers": False, "timeout": timedelta(seconds=_PATIENCE_S)}
    return sys.modules["torch.distributed"].TCPStore(host, port, **fields)


def address_towards(place: Place) -> str:
    """The address of this host on the road to the store: one that the others can reach.

    On the store's own host that may be the loopback's (so it is where Debian installs one): there the others' name for
    the store is a name for this host.
    """
    import socket

    family, kind, _, _, address = socket.getaddrinfo(place[0], place[1], type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as road:
        road.connect(address)  # sends nothing
        own = str(road.getsockname()[0])
    host = place[0] if own.startswith("127.") or own == "::1" else own
    return f"[{host}]" if ":" in host else host


def _line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0] or type(error).__name__
    return str(text)[:200]
