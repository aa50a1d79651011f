"""What an agent says about itself, parsed once where it enters the reader.

Made from headers by probe.host.agent_memory and from replies, which client.reply_schema has checked, by
probe.client.client.  Invariant: only parse() reads the agent's JSON; a field that an agent does not send, or sends as
null, has its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..streams import CHUNK_ROWS, STREAMS


class StreamLayout(NamedTuple):
    """The slots of a row, as the agent packs them, and how many chunks the ring has."""

    slots: tuple[str, ...]
    chunks: int


class SamplingSettings(NamedTuple):
    """How an agent samples steps: `sample` is "auto" or N; of `every` blocks of steps one is recorded now."""

    sample: int | str
    every: int
    budget_pct: float | None = None


# Every command makes this class; a frozen dataclass of so many fields would take it 1 ms.
class Facts(NamedTuple):
    """One agent at one moment.  Times of the wall clock are called so, all others are of its host's monotonic clock.

    pid: in the agent's own namespace; id: no other agent has it; served: by which server of its job and host
    (agent/agent.py, adopt); count: steps since the attach; step_base: the job's step of count 0; step_ends: "call" if
    each outermost call is a step; step_settled: whether the agent knows where that number comes from; devices: False
    if they are left alone; holder, held_since_ns: whose snippet the training waits for, and since when; freed_ns: when
    one let it go on last; idle: it says that none holds it; collectives_ns: when their tap went in; training: ident of
    the thread that trains; layout: where its interpreter keeps frames (agent/inspect/interpreter_layout.py);
    clock_offset_ns, clock_error_ns: how far the host's wall clock is ahead of this one's, as the client measured it.

    Example: `{facts.rank: facts.torch for facts in job.agents}`
    """

    version: str | None = None
    id: str | None = None
    pid: int = 0
    start_ticks: int | None = None
    boot_id: str | None = None
    host: str = ""
    python: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    name: str = ""
    endpoint: str | None = None
    served: Mapping[str, Any] | None = None
    rank: int | None = None
    world_size: int | None = None
    distributed: bool = False
    attached_ns: int = 0
    attached_wall_ns: int = 0
    monotonic_ns: int = 0
    wall_ns: int = 0
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    step_base: int = 0
    step_source: str | None = None
    step_settled: bool = True
    devices: bool = True
    count: int = 0  # type: ignore[assignment]  # nobody wants the method of tuples
    anchor: str | None = None
    step_ends: str = ""
    step_ns: int | None = None
    last_step_ns: int | None = None
    sampling: SamplingSettings | None = None
    collectives_ns: int | None = None
    taps: Mapping[str, str] = {}
    streams: Mapping[str, StreamLayout] = {}
    peers: str | None = None
    trouble: str | None = None
    holder: str | None = None
    held_since_ns: int | None = None
    freed_ns: int | None = None
    training: int | None = None
    layout: Mapping[str, Any] | None = None
    idle: bool = False

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Facts:
        """Raises LookupError, TypeError or AttributeError for what no agent says, where nobody has checked it."""
        known = {name: value for name, value in said.items() if value is not None and name in _NAMES}
        known["streams"] = {
            name: StreamLayout(tuple(layout["slots"]), layout["chunks"])
            for name, layout in (said.get("streams") or {}).items()
        }
        if (sampling := said.get("sampling")) is not None:
            known["sampling"] = SamplingSettings(sampling["sample"], sampling["every"], sampling.get("budget_pct"))
        return cls(**known, version=said.get("agent"), idle="holder" in said and said["holder"] is None)

    def said(self) -> dict[str, Any]:
        """What parse() makes these facts of, without what is of no use for rows: addresses, and where frames lie."""
        made = {**self._asdict(), "agent": self.version}
        made["streams"] = {name: layout._asdict() for name, layout in self.streams.items()}
        made["sampling"] = self.sampling and self.sampling._asdict()
        return {name: value for name, value in made.items() if value is not None and name not in _OF_ADDRESS}

    @property
    def moved_ns(self) -> int | None:
        """When the last step ended, or a snippet let the training go on; None if neither has been seen."""
        return max(filter(None, (self.last_step_ns, self.freed_ns)), default=None)

    @property
    def server(self) -> str | None:
        """The endpoint of its job's server on its host."""
        return None if self.served is None else str(self.served["server"])

    @property
    def tcp(self) -> str | None:
        """The endpoint of that server for other hosts."""
        port = self._port
        return port and f"tcp://{port['host']}:{port['port']}"

    @property
    def server_key(self) -> str | None:
        """The public key by which other hosts recognize it."""
        return self._port and str(self._port["public"])

    @property
    def _port(self) -> Any:
        return self.served and self.served["tcp"]

    @property
    def step(self) -> int:
        """The job's number of the step that runs."""
        return self.step_base + self.count

    @property
    def wall_offset_ns(self) -> int:
        """What makes a time of the wall clock out of one of the monotonic clock."""
        return self.wall_ns - self.monotonic_ns

    @property
    def wall_correction_ns(self) -> int:
        """What its wall clock is ahead, where that is certain: wall_ns and attached_wall_ns are without it."""
        ahead_ns = self.clock_offset_ns or 0
        return ahead_ns if abs(ahead_ns) > (self.clock_error_ns or 0) else 0

    def slots(self, stream: str) -> Sequence[str]:
        """The slots as the agent packs them; as this version knows them, of a stream that it does not record."""
        layout = self.streams.get(stream)
        return STREAMS[stream] if layout is None else layout.slots

    def ring_rows(self, stream: str) -> int:
        """How many rows of a stream the agent keeps."""
        layout = self.streams.get(stream)
        return CHUNK_ROWS * (1 if layout is None else layout.chunks)


_OF_ADDRESS = {"version", "idle", "endpoint", "served", "peers", "layout"}
_NAMES = set(Facts._fields) - {"version", "idle", "streams", "sampling"}
NO_FACTS = Facts()
