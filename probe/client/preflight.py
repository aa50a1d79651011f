"""Whether there can be an agent at an address at all: checked before libzmq, which would retry forever silently.

Called by Connection for each address that its user has named.  At a port it sends the first 64 bytes of a handshake
(ZMTP 3.1), which agents answer at once.  Invariant: each way in which there can be no agent has a sentence and a code.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from dataclasses import replace

from ..errors import EndpointError, SilentError
from .endpoints import Address, host_and_port

_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_VERSION_AND_MECHANISM = b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_MECHANISM = slice(12, 32)
_GREETING_BYTES = 64
_LINE_BYTES = 80
_HESITATION_S = 1.0  # an agent signs at once; a web server waits for the end of a line


def look(address: Address, timeout: float) -> Address:
    """The address, its host in numbers.  Raises EndpointError, or SilentError after the time-out."""
    if address.url.startswith("tcp://"):
        return _at_port(address, timeout)
    if not address.pid:  # the agent of a known process is there
        _at_path(address.url.partition("://")[2])
    return address


def _at_path(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise EndpointError(f"{path} is not a socket.", "Run: probe list", "not-an-agent")
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(path)
    except ConnectionRefusedError:
        raise EndpointError(
            f"Nothing listens at {path}: its agent has ended.", "Run: probe list", "unreachable"
        ) from None
    except OSError as error:  # a path that is too long has no strerror
        raise EndpointError(
            f"{path} cannot be reached: {error.strerror or error}.", "Run: probe list", "unreachable"
        ) from None


def _at_port(address: Address, timeout: float) -> Address:
    host, port = host_and_port(address.url.partition("://")[2]) or ("", 0)
    end = time.monotonic() + timeout
    try:
        with socket.create_connection((host, port), timeout) as made:
            _greet(address.url, made, end)
            numbers = str(made.getpeername()[0])
    except TimeoutError:
        raise SilentError(f"{address.url} does not answer within {timeout:g} s.", "Is a firewall in between?") from None
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name"
        raise EndpointError(f"The host {host} has no address: {why}.", "Write it as numbers?", "no-such-host") from None
    except OSError as error:
        what = "Nothing listens" if isinstance(error, ConnectionRefusedError) else "No agent can be reached"
        hint = "On its host, run: probe list"
        raise EndpointError(f"{what} at {address.url}: {error.strerror}.", hint, "unreachable") from None
    return replace(address, url=f"tcp://{f'[{numbers}]' if ':' in numbers else numbers}:{port}", shown=address.url)


def _greet(url: str, made: socket.socket, end: float) -> None:
    """Raises EndpointError if it is another server, TimeoutError if nothing comes."""
    now = time.monotonic()
    said = _said(made, _SIGNATURE, len(_SIGNATURE), now + min(_HESITATION_S, (end - now) / 2))
    if said is None:
        said = _said(made, b"\r\n\r\n", _LINE_BYTES, end)
    if said is None:
        raise TimeoutError
    if said[:1] == _SIGNATURE[:1]:
        said += _said(made, _VERSION_AND_MECHANISM, _GREETING_BYTES - len(said), end) or b""
    if said[_MECHANISM].rstrip(b"\0") != b"CURVE":
        hint = "On the agent's host, probe list shows where it listens."
        raise EndpointError(f"What listens at {url} is no agent: {_told(said)}.", hint, "not-an-agent")


def _said(made: socket.socket, word: bytes, most: int, end: float) -> bytes | None:
    """The first `most` bytes of the answer; fewer if it closes or hesitates, None if nothing comes."""
    said = b""
    try:
        made.sendall(word)
        while len(said) < most and b"\n" not in said:
            made.settimeout(max(0.001, end - time.monotonic()))
            part = made.recv(most - len(said))
            if not part:
                break
            said += part
    except TimeoutError:
        return said or None
    except (ConnectionResetError, BrokenPipeError):
        pass
    return said


def _told(said: bytes) -> str:
    if not said:
        return "it closes the connection"
    if said[:1] == _SIGNATURE[:1]:
        return "it speaks ZeroMQ, but not with the keys of an agent"
    line = said.splitlines()[0].decode("ascii", "replace")
    return f"it says {line!r}" if line.isprintable() and line else "it speaks another protocol"
