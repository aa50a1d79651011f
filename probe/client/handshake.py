"""From addresses to agents: whether there can be one at all, then the first request, which finds out who answers.

Called by probe.connection.  Each address that the user has named is checked before libzmq connects, which would retry
forever silently.  At a port, that is done with the first 64 bytes of a handshake (ZMTP 3.1), which servers answer at
once.  For job://, one agent knows the servers of the others.  Invariant: each way in which there can be no agent has
a sentence and a code; afterwards every link has facts or the reason for its silence, also that of a rank that has left
no record of its address, or for which none of several addresses answers; a connection on which nothing can be asked or
read is refused.
"""

from __future__ import annotations

import getpass
import os
import socket
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import protocol as wire
from ..errors import EndpointError, ProbeError, SilentError
from ..host import agent_memory
from ..host.facts import NO_FACTS, Facts
from ..version import __version__
from .agent_link import AgentLink, nobody
from .client import Call, Client
from .endpoints import Address, host_and_port
from .host_names import in_numbers, numeric
from .ways import connect_all

_NO_RECORD = "has published no address: on its host, run probe attach --listen"
_TOLD = 3  # addresses that do not answer, in words
_MOST = 1 << 20  # ranks of a job that are believed in before they are seen
_QUIET_S = 3.0  # since the last update of a header, which agents update once a second
_PATIENCE_S = 3.0  # with one that has not updated it; it may come back
_MOMENT_S = 0.02  # an attach stops a thread for some milliseconds
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_VERSION_AND_MECHANISM = b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_MECHANISM = slice(12, 32)
_GREETING_BYTES = 64
_LINE_BYTES = 80
_HESITATION_S = 1.0  # an agent signs at once; a web server waits for the end of a line


def open_links(client: Client, addresses: Iterable[Address], timeout: float) -> None:
    """Connect to the agents at these addresses, not to recordings.  Raises EndpointError, SilentError."""
    there, errors = list[Address](), list[ProbeError]()
    for address in addresses:
        try:
            there += [] if address.source else [look(address, timeout)]
        except (EndpointError, SilentError) as error:
            errors.append(error)
    errors += connect_all(client, there, timeout)
    if client.links:
        greet(client, timeout, errors)
    elif errors:
        raise errors[0]


def greet(client: Client, timeout: float, errors: Iterable[ProbeError] = ()) -> None:
    """errors: of addresses that do not answer.  Raises SilentError if no rank answers and none can be read, here or by
    its server; EndpointError if agents belong to different jobs; the first error of an address if all ranks of the job
    are at the others."""
    calls = _hello(client, client.links, timeout)
    errors = [*errors, *(call.error for call in calls if call.error is not None and call.link not in client.links)]
    if not client.links:
        raise errors[0]
    for known in _one_of_each_server([link for link in client.links if link.address.whole_job]):
        peers = _find_peers(client, known, timeout)
        calls += _hello(client, peers, timeout)
        # the first reply took as long as the connection did, so it tells little of that host's clock
        _hello(client, [link for link in peers if link.welcomed and not link.silent], timeout)
    _keep_one_of_each(client)
    if not any(map(_can_be_asked_or_read, client.links)):
        raise nobody([call.error for call in calls])
    if errors:
        _add_unanswered(client, errors)


def _can_be_asked_or_read(link: AgentLink) -> bool:
    is_read = link.is_served or (link.here and agent_memory.facts(link.pid) is not None)
    return not link.gone and (not link.silent or is_read)


def _add_unanswered(client: Client, errors: Sequence[ProbeError]) -> None:
    """Silent links to the ranks of the job that have none: which of them is at which address, nobody can tell.

    Raises the first error if there are none, for then the address is none of this job's, as far as is known.
    """
    size = max((link.facts.world_size or 1 for link in client.links if link.welcomed), default=0)
    missing = sorted(set(range(min(size, _MOST))) - {link.rank for link in client.links})
    if not missing:
        hint = "Leave it out: the other addresses have all ranks of a job." if size else errors[0].hint
        raise type(errors[0])(errors[0].message, hint, errors[0].code)
    told = [error.message.rstrip(".") for error in errors[:_TOLD]]
    told += [f"{len(errors) - _TOLD} more do not answer"] if len(errors) > _TOLD else []
    for rank in missing:
        link = client.connect(Address("", facts=Facts.parse({"rank": rank})))
        link.silent, link.gone = f"is at no address that answers: {'; '.join(told)}", True


def go_around_servers(client: Client, links: Iterable[AgentLink], timeout: float) -> None:
    """Ask those of these agents that are on this host at their own sockets from now on: a server does not answer.

    Who does not answer there either is silent.
    """
    served = [link for link in links if link.address.pid and link.route is not None and not link.asked_directly]
    for link in served:
        link.route = client.link(link.address).route
    _hello(client, served, timeout)


def _hello(client: Client, links: list[AgentLink], timeout: float) -> list[Call]:
    stopped = [link for link in links if link.stopped]
    time.sleep(_MOMENT_S if stopped else 0)
    for link in stopped:
        link.silent = link.why_silent() if link.stopped else ""
    said = {"protocol": wire.PROTOCOL, "version": __version__, "by": whoami(), "role": client.role}
    quiet = [link for link in links if link.here and _is_quiet(link.facts)]
    others = [link for link in links if link not in quiet]
    calls = client.ask(wire.HELLO, time.monotonic() + min(timeout / 2, _PATIENCE_S), quiet, **said)
    calls += client.ask(wire.HELLO, time.monotonic() + timeout, others, **said)
    for call in calls:
        if call.answer is not None:
            call.link.welcome(call.answer)
        elif call.error is not None and call.link.facts == NO_FACTS:
            client.drop(call.link)  # not even its rank is known
        else:
            call.link.silent = call.link.why_silent()
            call.link.gone |= call.error is not None and call.error.code == "protocol"
    return calls


def _is_quiet(facts: Facts) -> bool:
    """Whether its agent has not updated them lately: it is busy, or stuck."""
    return time.monotonic_ns() - facts.monotonic_ns > _QUIET_S * 1e9


def all_answer(client: Client) -> bool:
    """Whether each rank has answered whatever it was asked, and nothing speaks against the next answer."""
    for link in client.links:
        facts = agent_memory.facts(link.pid) if link.here else link.facts
        if link.silent or link.gone or link.stopped or facts is None or _is_quiet(facts):
            return False
    return True


def _keep_one_of_each(client: Client) -> None:
    """Drop agents that were named twice.  Raises EndpointError if two have the same rank."""
    agents: dict[object, AgentLink] = {}
    ranks: dict[int, AgentLink] = {}
    for link in list(client.links):
        if agents.setdefault(link.facts.id or link, link) is not link:
            client.drop(link)
        elif (other := ranks.setdefault(link.rank, link)) is not link:
            where = " and ".join(each.name for each in (other, link))
            message = f"These agents belong to different jobs: {where}."
            raise EndpointError(message, "Ask each job by itself.", "rank-twice")


def _one_of_each_server(links: Sequence[AgentLink]) -> list[AgentLink]:
    """An agent that answers, where there is one."""
    found: dict[object, AgentLink] = {}
    for link in sorted(links, key=lambda link: bool(link.silent)):
        found.setdefault(link.route.carrier if link.route is not None else link, link)
    return [*found.values()]


def whoami() -> str:
    """Who asks, as others read it in probe.evals."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = str(os.getuid())
    return f"{name}, pid {os.getpid()}"


def _find_peers(client: Client, known: AgentLink, timeout: float) -> list[AgentLink]:
    """Links to the other ranks of an agent's job.  Raises AgentError, SilentError."""
    deadline = time.monotonic() + timeout
    (call,) = client.ask(wire.PEERS, deadline, [known])
    if call.error is not None:
        told = f"{call.error.message.rstrip('.')}."
        raise type(call.error)(told, "Or name them all: tcp://HOST:PORT,tcp://HOST:PORT", call.error.code)
    links, linked = [], {link.facts.id for link in client.links}
    records = call.result()["ranks"]
    numbers = numeric(filter(None, map(_host_of, records)), deadline)  # else libzmq would look them up, again and again
    for rank, record in enumerate(records):
        facts = Facts.parse({**(record or {}), "rank": rank})
        url = str(facts.endpoint) if record is not None else ""
        is_port = url.startswith("tcp://")  # a path would be one of this machine, where no key is needed
        host = _host_of(record)
        if not is_port and rank not in {link.rank for link in client.links}:
            links.append(_out_of_reach(client, Address("", facts=facts), _NO_RECORD))
        elif is_port and facts.id not in linked and host and host not in numbers:
            why = f"is out of reach: its host {host} has no address here"
            links.append(_out_of_reach(client, Address("", facts=facts, shown=url), why))
        elif is_port and facts.id not in linked:
            there = in_numbers(url, numbers[host]) if host else url
            links.append(client.connect(Address(there, facts=facts, shown=url), client.server(there)))
    return links


def _host_of(record: Mapping[str, Any] | None) -> str:
    """Of the port that this record of a rank names; "" without one."""
    found = host_and_port(str((record or {}).get("endpoint")).partition("tcp://")[2])
    return found[0] if found else ""


def _out_of_reach(client: Client, address: Address, why: str) -> AgentLink:
    link = client.connect(address)
    link.silent, link.gone = why, True
    return link


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
    except OSError as error:  # a path that is too long has no strerror
        ended = isinstance(error, ConnectionRefusedError)
        why = f"{path} cannot be reached: {error.strerror or error}."
        why = f"Nothing listens at {path}: its agent has ended." if ended else why
        raise EndpointError(why, "Run: probe list", "unreachable") from None


def _at_port(address: Address, timeout: float) -> Address:
    host, port = host_and_port(address.url.partition("://")[2]) or ("", 0)
    end = time.monotonic() + timeout
    try:
        with socket.create_connection((host, port), timeout) as made:
            _check_greeting(address.url, made, end)
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
    return address._replace(url=in_numbers(address.url, numbers), shown=address.url)


def _check_greeting(url: str, made: socket.socket, end: float) -> None:
    """Raises EndpointError if it is another server, TimeoutError if nothing comes."""
    now = time.monotonic()
    said = _said(made, _SIGNATURE, len(_SIGNATURE), now + min(_HESITATION_S, (end - now) / 2))
    said = _said(made, b"\r\n\r\n", _LINE_BYTES, end) if said is None else said
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
