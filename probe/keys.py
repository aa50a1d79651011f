"""The file with a job's keys: its holders may query the job over the network.

Made by the verb `key`, read by attach (the server's part) and when connecting (the reader's part).  It holds the
server's pair of CURVE keys and one pair for each role that it allows, as JSON; the file for readers has only its
public key and the pair for `read`.  Invariant: a file that anybody but its owner may read is neither made nor used.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from typing import Any, NamedTuple

from .errors import EndpointError, UsageError
from .protocol import CONTROL, READ

FORMAT = 1
VARIABLE = "PROBE_KEY"
_MODES = (0o600, 0o400)
_KEY_LENGTH = 40  # of 32 bytes in Z85
_MAX_FILE_BYTES = 1 << 16


class Pair(NamedTuple):
    public: str
    secret: str


class Key(NamedTuple):
    """The contents of a file.  server_secret: "" in a file for readers; roles: role -> the pair that proves it."""

    path: str
    server_public: str
    server_secret: str
    roles: dict[str, Pair]

    @property
    def client(self) -> Pair:
        """The pair to connect with: that of the most powerful role."""
        return self.roles.get(CONTROL) or self.roles[READ]

    def of_server(self) -> dict[str, Any]:
        """What a server needs to listen: its own pair, and the role of each public key (hex) that may connect.

        Raises UsageError.
        """
        if not self.server_secret:
            raise UsageError(f"{self.path} is a key for readers: no server can listen with it.",
                             "Take the file that it was shared from.", "key-file")  # fmt: skip
        from zmq.utils import z85

        known = {z85.decode(pair.public).hex(): role for role, pair in self.roles.items()}
        return {"public": self.server_public, "secret": self.server_secret, "roles": known,
                "key_file": os.path.abspath(self.path)}  # fmt: skip


def create(path: str, read_only: bool = False) -> None:
    """Write a new key to a new file.  read_only: nobody can control a job with it.  Raises UsageError."""
    import zmq

    pairs = {name: zmq.curve_keypair() for name in ("server", READ, *(() if read_only else (CONTROL,)))}
    _write(path, {name: {"public": public.decode(), "secret": secret.decode()}
                  for name, (public, secret) in pairs.items()})  # fmt: skip


def share(path: str, reader_path: str) -> None:
    """Write the part of a key that is for reading to a new file.  Raises UsageError."""
    key = read(path)
    pair = key.roles[READ]
    reader = {"server": {"public": key.server_public}, READ: {"public": pair.public, "secret": pair.secret}}
    _write(reader_path, reader)


def given(path: str | None) -> str | None:
    """The key file to use: this one, else the one that the environment names."""
    return path or os.environ.get(VARIABLE) or None


def for_port(url: str, path: str | None) -> Key:
    """The key in this file, else in the one that the environment names.  Raises EndpointError without a file, and what
    read() raises."""
    path = given(path)
    if path is None:
        hint = f"Give the file it was attached with, or a part shared of it: --key FILE, or {VARIABLE}=FILE"
        raise EndpointError(f"{url} asks for a key.", hint, "no-key")
    return read(path)


def read(path: str) -> Key:
    """The key in a file.  Raises UsageError if it is not a key, or if others may read it."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode not in _MODES:
                raise _wrong(f"{path} has mode {mode:04o}: others may have read this key.", f"Run: chmod 600 {path}")
            return _parsed(path, file.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise _wrong(f"The key {path} cannot be read: {error.strerror}.", "Make one: probe key create FILE") from error


def _parsed(path: str, text: bytes) -> Key:
    try:
        said = json.loads(text)
        if said["probe_key"] != FORMAT:
            raise ValueError
        roles = {role: Pair(_z85(said[role]["public"]), _z85(said[role]["secret"])) for role in (CONTROL, READ)
                 if role == READ or role in said}  # fmt: skip
        server = said["server"]
        return Key(path, _z85(server["public"]), _z85(server["secret"]) if "secret" in server else "", roles)
    except (ValueError, LookupError, TypeError):
        raise _wrong(f"{path} is not a key of probe.", "Make one: probe key create FILE") from None


def _z85(text: Any) -> str:
    if not isinstance(text, str) or len(text) != _KEY_LENGTH or not text.isascii():
        raise ValueError
    return text


def _write(path: str, pairs: dict[str, Any]) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise _wrong(f"{path} exists already and stays as it is.", "Choose another name, or delete it first.") from None
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o600)  # whatever the umask is
            file.write(json.dumps({"probe_key": FORMAT, **pairs}, indent=2) + "\n")
    except BaseException as error:
        with suppress(OSError):
            os.unlink(path)  # what is begun is no key, and would keep the next one from being made
        if isinstance(error, OSError):
            raise _unwritten(path, error) from error
        raise


def _unwritten(path: str, error: OSError) -> UsageError:
    return _wrong(f"The key cannot be written to {path}: {error.strerror}.", "Choose another place.")


def _wrong(message: str, hint: str) -> UsageError:
    return UsageError(message, hint, "key-file")
