"""What a training's Python feels of readers: gaps of a loop that reads the clock, while a million rows are scanned.

    python tests/bench/scan.py [--rounds 10] [--seconds 2] [--rows 1000000]

Windows of one kind after another, in an order that changes: nothing; one client that scans again and again at the
agent's own socket; one that does so at a port (tcp://) of the server beside it; five that ask the agent for all of it
all the time and never read; one that scans and these five.

A gap in which the loop's thread slept is a wait for the GIL; in the others the kernel gave its core to somebody else.
How long the agent's thread ran in a wait is what it is to blame for on a busy machine, too: ends with 1 where that is
over 2 ms in one of 1,000 slots of 10 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import page
from raw_client import RawClient

import probe
from probe import keys
from probe import protocol as wire
from probe.attach.listening import listen
from probe.host import agent_memory
from target import remove_socket

HERE = Path(__file__).resolve().parent
Gap = tuple[int, int, int, int]  # as victim.py writes them
SLOT_NS, LIMIT_NS = 10_000_000, 2_000_000
STUCK, ROW_BYTES = 5, 48


class Readers:
    """Of one agent: one that scans, some that are stuck."""

    def __init__(self, pid: int, rows: int, key: Path) -> None:
        facts = agent_memory.facts(pid)
        assert facts is not None
        self._path, self._rows, self._id = str(facts.endpoint), rows, str(facts.id).encode()
        self._key = key
        keys.create(str(key))
        with probe.connect(str(pid)) as connection:
            self._port = connection.serve(listen("127.0.0.1", str(key)).order())[-1]
        self.scanned = 0

    def connect(self) -> RawClient:
        client = RawClient(self._path, timeout_s=20.0)
        client.hello()
        return client

    def ask(self, client: RawClient, credit: int, id: bytes = b"1") -> None:
        fields = {"stream": "spans", "first": 1, "last": self._rows, "credit": credit, "patch": []}
        client.ask(id, wire.SCAN, b"", **fields)

    def nothing(self, until: float) -> None:
        time.sleep(max(0.0, until - time.monotonic()))

    def scan(self, until: float) -> None:
        """As probe.client.client does it: more is asked for when half of what may travel has come."""
        client = self.connect()
        while time.monotonic() < until:
            self.ask(client, wire.CREDIT)
            came = 0
            while wire.decode((frames := client.receive())[1])["kind"] == wire.ROWS:
                came += 1
                self.scanned += len(frames[-1])
                if came % (wire.CREDIT // 2) == 0:
                    client.ask(b"1", wire.NEXT, credit=wire.CREDIT // 2)
        client.close()

    def scan_at_port(self, until: float) -> None:
        """The same at the server, in Arrow messages."""
        key = keys.read(str(self._key))
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.curve_serverkey, socket.linger = key.server_public.encode(), 0
            socket.curve_publickey, socket.curve_secretkey = key.client.public.encode(), key.client.secret.encode()
            socket.connect(self._port)

            def ask(kind: str, **fields: Any) -> None:
                socket.send_multipart([b"1", self._id, wire.encode(kind, **fields)])

            while time.monotonic() < until:
                ask(wire.SCAN, stream="spans", first=1, last=self._rows, credit=wire.CREDIT)
                came, kind = 0, wire.ROWS
                while kind == wire.ROWS:
                    _, _, header, *payload = socket.recv_multipart()
                    kind, came = wire.decode(header)["kind"], came + 1
                    self.scanned += sum(map(len, payload))
                    if came % (wire.CREDIT // 2) == 0:
                        ask(wire.NEXT, credit=wire.CREDIT // 2)

    def stuck(self, until: float, meanwhile: Callable[[float], None] | None = None) -> None:
        """They ask again ten times a second."""
        clients = [self.connect() for _ in range(STUCK)]
        while time.monotonic() < until:
            for place, client in enumerate(clients):
                with contextlib.suppress(OSError):  # it has been dropped, for it does not read
                    self.ask(client, 1 << 20, b"%d" % place)
            (meanwhile or self.nothing)(min(until, time.monotonic() + 0.1))
        for client in clients:
            client.close()

    def both(self, until: float) -> None:
        self.stuck(until, self.scan)


def gaps(path: Path) -> list[Gap]:
    data = path.read_bytes()
    return list(struct.iter_unpack("<4q", data[: len(data) // 32 * 32]))


def slots(found: list[Gap], windows: list[tuple[int, int]], length: Callable[[Gap], int]) -> list[int]:
    """The longest gap in each slot of these windows, sorted."""
    longest: list[int] = []
    for begin, end in windows:
        of_window = [0] * max(1, (end - begin) // SLOT_NS)
        for gap in found:
            place = (gap[0] - begin) // SLOT_NS
            if 0 <= place < len(of_window):
                of_window[place] = max(of_window[place], length(gap))
        longest += of_window
    return sorted(longest)


def blamed(gap: Gap) -> int:
    """For how long the agent's thread ran while the loop waited for the GIL."""
    start, stop, slept, ran = gap
    return min(ran, stop - start) if slept else 0


def waited(gap: Gap) -> int:
    return gap[1] - gap[0] if gap[2] else 0


def lasted(gap: Gap) -> int:
    return gap[1] - gap[0]


def at(values: list[int], share: float) -> int:
    return values[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="a window")
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gaps")
        command = [sys.executable, str(HERE / "victim.py"), str(path), str(options.rows)]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert victim.stdout is not None and victim.stdout.readline() == "ready\n"
            readers = Readers(victim.pid, options.rows, Path(folder, "key"))
            arms = {
                "nothing": readers.nothing, "one scans": readers.scan, "one scans at tcp://": readers.scan_at_port,
                "five are stuck": readers.stuck,
                "one scans, five are stuck": readers.both,
            }  # fmt: skip
            windows: dict[str, list[tuple[int, int]]] = {name: [] for name in arms}
            chance, scanned = random.Random(0), dict.fromkeys(arms, 0)
            for _ in range(options.rounds):
                for name in chance.sample(list(arms), len(arms)):
                    time.sleep(0.1)
                    begin, before = time.monotonic_ns(), readers.scanned
                    arms[name](time.monotonic() + options.seconds)
                    windows[name].append((begin, time.monotonic_ns()))
                    scanned[name] += readers.scanned - before
            found = gaps(path)
        finally:
            victim.kill()
            victim.wait()
            remove_socket(victim.pid)
    lines, good = [], True
    for name in arms:
        seconds = sum(end - begin for begin, end in windows[name]) / 1e9
        ran, waits, every = (slots(found, windows[name], length) for length in (blamed, waited, lasted))
        good &= at(ran, 0.999) <= LIMIT_NS
        cells = [*(at(ran, share) for share in (0.99, 0.999, 1.0)), at(waits, 0.999), at(every, 0.999)]
        over = f"{sum(gap > LIMIT_NS for gap in waits)} of {len(waits)}"
        rows = f"{scanned[name] / ROW_BYTES / seconds / 1e6:.2f}"
        lines.append([name, *(f"{cell / 1e6:.2f}" for cell in cells), over, rows])
    header = [
        "readers",
        "agent ran, p99",
        "p99.9",
        "most",
        "waited, p99.9",
        "any gap, p99.9",
        "waits over 2 ms",
        "M rows/s",
    ]
    print(f"The longest in each 10 ms of a Python loop, ms; {options.rounds} windows of {options.seconds:g} s each; "
          f"load at the beginning {load:.1f}\n")  # fmt: skip
    print(page.table(header, lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
