"""The connection to one agent: its address, what is known about the agent, and the way to it.

Made by probe.client.client.  A process on this machine is also visible in /proc; one on another host only through what
it sends.  Invariant: pid names a process on this machine only where `here` holds; nothing looks into /proc otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import CODES, EndpointError, ProbeError, SilentError
from ..host import agent_memory
from ..host.facts import Facts
from ..host.processes import has_ended, is_stopped, start_ticks
from ..protocol import CONTROL, NO_READER
from .endpoints import Address

if TYPE_CHECKING:
    from .agent_socket import AgentSocket
    from .server_socket import Route

Header = dict[str, Any]

_NO_CONNECTION = ("refused", "full", "no-room")  # codes of an agent that takes none
_REMEDIES = {
    "refused": "Run probe as that user or as root.",
    "full": "Close one of them, or try again later.",
    "no-room": "Raise the job's limit: prlimit --nofile=4096 --pid {pid}; or free some memory.",
    "protocol": "If it is of another version, replace it: probe attach {pid}",
}


class Loss(NamedTuple):
    """Why an agent will not answer: in words, and as the error of its requests; not for_good: it may come back."""

    why: str
    error: ProbeError
    for_good: bool = True


class AgentLink:
    """facts: the latest; pid: 0 until it is known; silent: why it does not answer, once that is known; gone: it never
    will, and its memory cannot be read (ended, not ours, another version); ended: its process has; refused: the error
    of an agent that takes no connection; route: None where no way to it is known."""

    def __init__(self, address: Address, route: AgentSocket | Route | None) -> None:
        self.address, self.route = address, route
        self._steps_numbered: tuple[Facts, int, str] | None = None
        self.facts = address.facts
        self.pid, self.here = address.pid or address.facts.pid, bool(address.pid)
        self.silent, self.gone, self.ended = "", False, False
        self.refused: ProbeError | None = None
        self.welcomed = False
        self.role = CONTROL

    @property
    def facts(self) -> Facts:
        return self._facts

    @facts.setter
    def facts(self, said: Facts) -> None:
        self._said = self._facts = said
        if self._steps_numbered is not None:
            known, base, source = self._steps_numbered
            if (known.id, known.step_source) == (said.id, said.step_source):
                self._facts = said._replace(step_base=base, step_source=source)

    def number_steps(self, base: int, source: str) -> None:
        """Number its steps so for this connection, until the agent numbers them otherwise: with a key for reading the
        agent cannot be told."""
        self._steps_numbered = self._said, base, source
        self.facts = self._said

    @property
    def rank(self) -> int:
        return self.facts.rank or 0

    @property
    def name(self) -> str:
        """`Rank 3 (pid 4242)`, with its host if that is another one; the address as long as nothing else is known."""
        known = self.pid or self.facts.rank is not None
        return f"Rank {self.number}" if known else self.address.shown or self.address.url

    @property
    def number(self) -> str:
        """`3 (pid 4242)`, for lists of ranks."""
        if not self.pid:
            return str(self.rank)
        return f"{self.rank} ({'' if self.here else f'{self.host}, '}pid {self.pid})"

    @property
    def host(self) -> str:
        """The host of its process, "" for this machine."""
        return "" if self.here else self.facts.host or "another host"

    @property
    def readable(self) -> bool:
        """Whether its memory may be read."""
        return self.here and not self.gone

    @property
    def asked_directly(self) -> bool:
        """Whether it is asked at its own socket."""
        return self.route is not None and self.route.carrier is self.route

    @property
    def is_served(self) -> bool:
        """Whether a server stands beside it, which can answer some requests while it is silent."""
        return self.route is not None and not self.asked_directly and not self.gone

    def welcome(self, header: Header) -> None:
        """Take the agent's first reply, which tells whether its process runs on this machine."""
        self.facts, self.welcomed = header["facts"], True
        facts = self.facts  # perhaps with other numbers of steps
        self.role = str(header.get("role", CONTROL))
        if not self.address.pid:
            found = agent_memory.here(facts)
            self.pid, self.here = (facts.pid, False) if found is None else (found, True)

    def silence(self) -> ProbeError:
        """The error of a request that had no answer."""
        why, trouble = self.why_silent(), self._trouble
        remedy = self._remedy("no-room") if trouble and trouble in why else ""
        return self.refused or SilentError(f"{self.name} {why}.", remedy)

    def why_silent(self) -> str:
        """Why there is no answer, as far as that can be seen from outside."""
        if self.silent:
            return self.silent
        if self.stopped:
            return f"is stopped (to let it go on: kill -CONT {self.pid})"
        return f"does not answer: {trouble}" if (trouble := self._trouble) else "does not answer"

    @property
    def _trouble(self) -> str:
        """What the agent has written down of what keeps it from answering."""
        told = agent_memory.facts(self.pid) if self.here else None
        trouble = "" if told is None else told.trouble or ""
        return trouble if trouble.startswith(NO_READER) else ""

    @property
    def stopped(self) -> bool:
        return self.here and is_stopped(self.pid)

    def _lost(self, why: str, code: str = "", for_good: bool = True) -> Loss:
        kind = CODES[code][0] if code else SilentError
        return Loss(why, kind(f"{self.name} {why}.", self._remedy(code), code), for_good)

    def _remedy(self, code: str) -> str:
        """A pid means nothing on other hosts."""
        remedy = _REMEDIES.get(code, "")
        is_here = self.here or self.address.url.startswith("ipc:") or "{pid}" not in remedy
        where = "" if is_here else f"On {self.facts.host or 'its host'}: "
        return where + remedy.format(pid=self.pid or "PID")

    def refusal(self, code: str, why: str) -> Loss | None:
        """The loss if this error of an agent is about the connection, not about the request."""
        if code in ("gone", "no-socket"):
            return self.left(lacked_socket=code == "no-socket")
        return self._lost(why, code, for_good=code == "refused") if code in _NO_CONNECTION else None

    def left(self, lacked_socket: bool = False) -> Loss:
        """The loss of an agent that is no longer in its process, which perhaps has ended too, or of its socket.

        lacked_socket: there was none when it was asked; by now the agent may have made a new one.
        """
        if not self._process_ended and self._is_attached and (lacked_socket or self._lacks_socket):
            return self._lost("has lost its socket, and makes a new one: run the command again", for_good=False)
        was = "was detached (connect again once it is attached)"
        why = "ended" if self._process_ended else was if self.welcomed or self.here else "has ended"
        return self._lost(why, "gone")

    @property
    def _is_attached(self) -> bool:
        """Whether the agent is seen in its process now."""
        said = agent_memory.facts(self.pid) if self.here else None
        return said is not None and said.id == self.facts.id

    @property
    def _lacks_socket(self) -> bool:
        """Whether its socket is not there: somebody has cleaned the temporary folders."""
        return not os.path.exists(self.address.url.removeprefix("ipc://"))  # the path as seen from here

    def loss(self) -> Loss | None:
        """The loss if the agent will not answer any more: its process has ended, it has closed the connection, or its
        server is out of reach."""
        if self._process_ended:
            return self.left()
        if self.route is None:
            return None
        carrier = self.route.carrier
        if carrier.code == "key-refused":
            theirs = self.facts.server_key
            whose = f" (its own begins with {theirs[:6]}, this one with {carrier.server_key[:6]})" if theirs else ""
            why = f"{carrier.ended}{whose}"
            hint = "Give the key it was attached with, or the part shared of that: --key FILE"
            return Loss(why, EndpointError(f"{self.name} {why}.", hint, carrier.code))
        if carrier.ended and not self.asked_directly:
            return self._lost(carrier.ended, carrier.code)
        if carrier.ended:
            return self.refusal(carrier.code or "gone", carrier.ended) or self._lost(carrier.ended, carrier.code)
        if carrier.is_lost:
            return self._lost("is out of reach: the connection to it broke off", for_good=False)
        return None

    @property
    def _process_ended(self) -> bool:
        """Its very process: a zombie counts as ended, and the pid may have been given to another one."""
        began = self.facts.start_ticks
        return self.here and (has_ended(self.pid) or (began is not None and start_ticks(self.pid) != began))

    def close(self) -> None:
        if self.route is not None:
            self.route.close()


def agent_error(link: AgentLink, header: Header) -> ProbeError:
    """The exception that stands for an agent's error."""
    code = said if (said := str(header.get("code"))) in CODES else "agent"
    message = f"Rank {link.rank}: {header.get('message', '')}"
    hint = f"Run: probe attach {link.pid}" if code == "protocol" and link.here else ""
    return CODES[code][0](message, hint, code)


def nobody(errors: Sequence[ProbeError | None]) -> ProbeError:
    """What to raise when no rank answered: the error of the only one, else the first as a hint."""
    first = errors[0] if errors else None
    alone = first if len(errors) == 1 else None
    return alone or SilentError(f"None of {len(errors)} ranks answered.", str(first or ""))
