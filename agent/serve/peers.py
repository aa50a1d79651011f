"""Where to reach the other ranks: an agent whose server has a port puts a record of it into the job's store.

served(), tick() and ask() on the agent's thread.  Invariant: neither that thread nor the job ever waits for the store.
Short-lived threads talk to it over a connection of our own; the job's store object only supplies the address.
"""

from __future__ import annotations

import json
import os
import sys
import time
from _thread import allocate_lock, start_new_thread
from typing import Any

from ... import protocol as wire
from ..torch_state import is_distributed
from .server import Key, Refused, Server

_TIMEOUT_S = 3.0  # for the store
_RETRY_S = 30.0  # after the store could not be reached
_NO_PORT = "off: no port was asked for"
_ANY_ADDRESS = {"0.0.0.0", "::"}

Place = tuple[str, int, str]  # the store's host and port, and the prefix of our keys


class Unknown(Exception):
    """The job has no store that other ranks could read; the message says why."""


class Peers:
    """served(), tick() and ask() on the agent's thread; remove() on another, once, at the end."""

    def __init__(self, server: Server, identity: str) -> None:
        self.state = _NO_PORT
        self._server, self._identity = server, identity
        self._port: dict[str, Any] | None = None  # of this host's server, as served_by() makes it
        self._published: tuple[Place, int] | None = None  # the store that has our record, and the rank in it
        self._due = 0.0
        self._store_lock = allocate_lock()
        server.handlers[wire.PEERS] = self.ask

    def served(self, port: dict[str, Any] | None) -> None:
        """The server of this host listens there for other hosts, or not at all."""
        if port != self._port:
            self._port, self._published = port, None  # the record is old
            self.state = "off: its port is not in the job's store yet" if port else _NO_PORT

    def tick(self) -> None:
        """Publish the record once there is a process group, and again if the rank changes."""
        if self._port is None or time.monotonic() < self._due or self._store_lock.locked():
            return
        try:
            wanted = place_of_store(), sys.modules["torch.distributed"].get_rank()
        except Unknown as error:
            self.state = f"off: {error}"
            return
        if wanted != self._published:
            self._due = time.monotonic() + _RETRY_S
            self._store_lock.acquire()
            start_new_thread(self._publish, wanted)

    def ask(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Reply with the records of all ranks, by rank; None for a rank that has published none."""
        if self._published is None:
            raise Refused("no-peers", f"knows no other rank: {self.state.removeprefix('off: ')}")
        place = self._published[0]
        size = int(sys.modules["torch.distributed"].get_world_size())
        start_new_thread(self._read, (key, place, size))

    def remove(self) -> None:
        """Delete our record from the store, if the store still exists."""
        self._port = None
        if not self._store_lock.acquire(timeout=_TIMEOUT_S):
            return
        try:
            if self._published is not None:
                place, rank = self._published
                store, name = open_store(place), f"{place[2]}/{rank}"
                if store.check([name]) and json.loads(store.get(name))["id"] == self._identity:
                    store.delete_key(name)
        except Exception:  # a store that is gone has no record either
            pass
        finally:
            self._store_lock.release()

    # ---- on short-lived threads

    def _publish(self, place: Place, rank: int) -> None:
        try:
            port = self._port
            if port is not None:
                open_store(place).set(f"{place[2]}/{rank}", json.dumps(self._record(place, rank, port)))
                self._published, self._due, self.state = (place, rank), 0.0, "on"
        except Exception as error:
            self.state = f"off: the store at {place[0]}:{place[1]}: {_first_line(error)}"
        finally:
            self._store_lock.release()

    def _record(self, place: Place, rank: int, port: dict[str, Any]) -> dict[str, Any]:
        here = port["address"] in _ANY_ADDRESS and not port.get("other_network")
        host = address_towards(place) if here else port["host"]
        return {
            "rank": rank,
            "endpoint": f"tcp://{host}:{port['port']}",
            "served": {"server": "", "tcp": port},
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
            why = f"knows no other rank: the store at {place[0]}:{place[1]}: {_first_line(error)}"
            self._server.post(key, wire.ERROR, code="no-peers", message=why)


def place_of_store() -> Place:
    """Raises Unknown.  Keys contain the run's name and world size: torchrun counts restarts per node separately."""
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
    """A connection of our own.  The port is tried first: for a store that is gone, torch waits and prints messages."""
    import socket
    from datetime import timedelta

    host, port, _ = place
    with socket.create_connection((host, port), _TIMEOUT_S):
        pass
    fields = {"is_master": False, "wait_for_workers": False, "timeout": timedelta(seconds=_TIMEOUT_S)}
    return sys.modules["torch.distributed"].TCPStore(host, port, **fields)


def address_towards(place: Place) -> str:
    """This host's address on the route to the store: one that the other ranks can reach.

    On the store's own host that may be a loopback address (Debian's default); the name by which the other ranks know
    the store is then a name of this host.
    """
    import socket

    family, kind, _, _, address = socket.getaddrinfo(place[0], place[1], type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as udp:
        udp.connect(address)  # sends nothing
        own = str(udp.getsockname()[0])
    host = place[0] if own.startswith("127.") or own == "::1" else own
    return f"[{host}]" if ":" in host else host


def _first_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0] or type(error).__name__
    return str(text)[:200]
