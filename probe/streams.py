"""What a fixed-width row of each raw stream holds: shared by the agent, which packs rows, and the reader.

A row is a few little-endian signed 8-byte slots, `seq` always last: 0 until the row is complete, then the row's number
from 1, which determines its place.  A stream is a ring of chunks of CHUNK_ROWS rows in one memfd; chunk c (rows
c * CHUNK_ROWS + 1 ...) lies at place c % chunks.  Rows carry times and serial numbers only: the reader resolves steps,
names and nesting.  Stdlib only, and it imports nothing of probe.
"""

CHUNK_ROWS = 16384
RETENTION_BYTES = 64 << 20  # per stream, less of what is on demand: 1.3 million spans, hours of training

SPANS = "spans"
MARKS = "marks"
STEPS = "steps"
COLLECTIVES = "collectives"
LOADS = "loads"
SAMPLES = "samples"
DEVICE = "device"
PROFILE_NODES, PROFILE_SAMPLES = "profile_nodes", "profile_samples"
CALLS, OPERATORS, KERNELS = "calls", "operators", "kernels"

# Times are nanoseconds of CLOCK_MONOTONIC; `thread` is threading.get_ident(), whose native id and name
# stand in the log; `subject` is a serial number from the log, never a recycled id().
STREAMS: dict[str, tuple[str, ...]] = {
    # anything with a start and an end on one thread; flags give its kind
    SPANS: ("start_ns", "end_ns", "subject", "thread", "flags", "seq"),
    # autograd reached a module's output (its backward begins) or is done with its input (it ends)
    MARKS: ("time_ns", "subject", "thread", "flags", "seq"),
    # a boundary: the anchor optimizer ended step number `count` since the attach.  rss_bytes is 0 if it was not read,
    # samples (the sum of batch dimensions of the root's inputs) if there were none
    STEPS: ("time_ns", "count", "group_seq", "subject", "rss_bytes", "samples", "thread", "flags", "seq"),
    # done_ns is written later, in place, and stays 0 while the operation is in flight
    COLLECTIVES: (
        "start_ns", "issued_ns", "done_ns", "operation", "group", "group_seq", "peer", "bytes", "tensor",
        "source", "thread", "flags", "seq",
    ),
    # a batch taken from a loader; ready and outstanding (batches, when it was asked) are -1 without workers
    LOADS: ("start_ns", "end_ns", "subject", "ready", "outstanding", "thread", "flags", "seq"),
    # one reading of one counter of a source: PROCESS, or a device (its number in the log); readings of one source that
    # were taken together have the same time and become one row
    SAMPLES: ("time_ns", "source", "counter", "value", "seq"),
    # when a span or a mark ran on its CUDA device; it is the one of this kind that this thread began, or made, at
    # host_ns.  Times are by the device's clock, the same for all rows of a device and close to the host's time.
    # Bytes of the caching allocator are -1 if they were not read
    DEVICE: (
        "start_ns", "end_ns", "host_ns", "thread", "device", "allocated_before", "allocated", "max_allocated",
        "reserved", "flags", "seq",
    ),
    # of profiles, which another process takes (probe/profile) and deposits here: a call of a function (an id of the
    # log, FUNCTION) at a line, in the stack whose innermost node is `caller` (a number of this stream; 0: outermost)
    PROFILE_NODES: ("caller", "function", "line", "seq"),
    # a thread was at this node (0: it could not be read, -1: it runs no Python), which stands for weight_ns
    PROFILE_SAMPLES: ("time_ns", "weight_ns", "node", "thread", "native_id", "flags", "seq"),
    # a call of a traced function (an id of the log) that is over; size of its first argument and queued_ns, the time
    # since a time stamp that it was given, are -1 if they are not known
    CALLS: ("start_ns", "end_ns", "function", "size", "queued_ns", "thread", "flags", "seq"),
    # a call of an operator that a capture has seen; caller: the number of the one it ran in, or 0; native_id: its
    # thread; of a backward also when and where the operator ran whose backward it is (0: unknown); operator, shapes,
    # dtype and processor are strings in the log; -1: flops and bytes are not known
    OPERATORS: (
        "start_ns", "end_ns", "operator", "caller", "native_id", "made_ns", "made_native_id", "shapes", "dtype",
        "processor", "flops", "bytes", "flags", "seq",
    ),
    # what ran on a device for an operator (its number, 0: unknown), and when it was launched (0: unknown); kernel and
    # kind are strings in the log
    KERNELS: ("start_ns", "end_ns", "launched_ns", "kernel", "kind", "device", "queue", "operator", "bytes", "seq"),
}  # fmt: skip
# The slot with the time a row was written: rows are in this order, except for threads that were delayed.
WRITTEN = {
    SPANS: "end_ns", MARKS: "time_ns", STEPS: "time_ns", COLLECTIVES: "start_ns", LOADS: "end_ns", SAMPLES: "time_ns",
    DEVICE: "end_ns", PROFILE_SAMPLES: "time_ns", CALLS: "end_ns", OPERATORS: "end_ns", KERNELS: "end_ns",
}  # fmt: skip
# The slots that hold moments of time; all other numbers are the same at any time.
TIMES = {
    SPANS: ("start_ns", "end_ns"), MARKS: ("time_ns",), STEPS: ("time_ns",), LOADS: ("start_ns", "end_ns"),
    COLLECTIVES: ("start_ns", "issued_ns", "done_ns"), SAMPLES: ("time_ns",), DEVICE: ("start_ns", "end_ns", "host_ns"),
    PROFILE_SAMPLES: ("time_ns",), CALLS: ("start_ns", "end_ns"), OPERATORS: ("start_ns", "end_ns", "made_ns"),
    KERNELS: ("start_ns", "end_ns", "launched_ns"),
}  # fmt: skip
# A row is packed a moment after that time was read; a preempted thread may take some milliseconds.
PACKING_NS = 50_000_000
# streams that are created once there is something to record
ON_DEMAND = {DEVICE, PROFILE_NODES, PROFILE_SAMPLES, CALLS, OPERATORS, KERNELS}

# flags, bits 0-7: the kind of row
KIND_MASK = 0xFF
FORWARD, OPTIMIZER, ENGINE, EVAL = range(1, 5)  # kinds of spans
MARK = 5  # in DEVICE, beside the kinds of spans: a timed mark
WAIT = 6  # a kind of span, too: its thread waited for a collective operation
GRAPH = 7  # likewise: a replay of a CUDA graph, whose subject is FIRST_GRAPH less its number, from 1
FIRST_GRAPH = -(1 << 32)
BEGIN, BEGIN_SAME_NODE, END = range(1, 4)  # kinds of marks; SAME_NODE: a descendant began at this very node
# flags, single bits
FAILED = 1 << 8
COMPILED = 1 << 9
ASYNC_OP = 1 << 10
SAMPLED = 1 << 11  # steps: the taps on modules were installed from its beginning to its end
BARE = 1 << 12  # steps: no tap was installed except the one that counts steps
UNTIMED = 1 << 13  # steps: so short that engine and optimizer were not timed
EXTRA = 1 << 15  # steps: sampled, but not in a block that stands for those around it
BLOCKING = 1 << 14  # collectives: the issuing thread waited for its end at once
EVAL_MODE = 1 << 16  # forwards: the module was not in training mode
NO_GRAD = 1 << 17  # forwards: autograd was off
ITERATOR = 1 << 18  # loads: not a batch, but the making of an iterator, which starts its workers
CAPTURED = 1 << 19  # collectives: issued into a CUDA graph, which replays it; done_ns is when it had been issued
END_UNKNOWN = 1 << 20  # collectives: it has ended or will, and nobody saw it; done_ns is when that was found out
QUEUED = 1 << 21  # collectives: in flight, and the device had not come to it when the agent looked last
HOLDS_GIL, GIL_UNKNOWN = 1 << 22, 1 << 23  # samples of profiles
ANNOTATION, BACKWARD = 1 << 24, 1 << 25  # operators: a range that the job or torch named; a part of a backward pass
ON_DEVICE = 1 << 26  # operators: it, or what it called, launched something on a device
ASYNC_UNKNOWN = 1 << 27  # collectives: its arguments do not say whether the caller waits for it at once

# Sampling records module calls in one of N blocks of BLOCK steps, N one of EVERY.
BLOCK = 10
EVERY = (1, 2, 4, 8, 16, 32, 64, 128)

# What a sample counts, as the kernel or the driver reports it: counters that only grow (the reader makes rates of two
# readings) and levels.  By number: a new one goes to the end, an old one never changes.
PROCESS = 0  # the source of samplers/process.py; a device of samplers/gpu.py is its id in the log
MEMORY = -1  # of samplers/memory.py; what torch's allocator says of device n is of source MEMORY - 1 - n
ALLOCATORS_END = -1000  # below all of these: the source of another sampler is the next number below this one
(
    CPU_NS,  # ns, of all threads, ended ones too; grows
    VOLUNTARY_SWITCHES,  # a thread of the process blocked; grows
    INVOLUNTARY_SWITCHES,  # a thread of the process lost its core; grows
    MAJOR_FAULTS,  # pages that had to come from storage; grows
    GIL_WAIT_NS,  # ns, of the agent's thread after one nap
    RSS_BYTES,  # bytes
    THREADS,  # of the process
    READ_BYTES,  # bytes from storage; grows
    WRITTEN_BYTES,  # bytes to storage; grows
    HOST_TICKS,  # clock ticks of all cores; grows
    HOST_IDLE_TICKS,  # those in which a core was idle or waited for storage; grows
    HOST_MEMORY_KB,  # kB (2^10)
    HOST_MEMORY_AVAILABLE_KB,  # kB (2^10)
    GPU_UTIL_PCT,  # %
    GPU_MEMORY_UTIL_PCT,  # %
    GPU_MEMORY_USED_BYTES,  # bytes
    GPU_MEMORY_BYTES,  # bytes
    GPU_POWER_MW,  # mW
    GPU_POWER_LIMIT_MW,  # mW
    GPU_TEMPERATURE_CELSIUS,  # °C
    GPU_SM_CLOCK_MHZ,  # MHz
    GPU_MEMORY_CLOCK_MHZ,  # MHz
    GPU_THROTTLE_REASONS,  # bits as NVML defines them
    GPU_ECC_ERRORS,  # uncorrectable ones since the driver was loaded
    GPU_PCIE_RX_BYTES,  # bytes; grows
    GPU_PCIE_TX_BYTES,  # bytes; grows
    GPU_NVLINK_RX_KB,  # kB (2^10); grows
    GPU_NVLINK_TX_KB,  # kB (2^10); grows
    CORE_WAIT_NS,  # ns for which the main thread was ready to run but had no core; grows
) = range(1, 30)
# bytes: resident; shared of the resident ones; the proportional share of these; pinned by torch; then of a device's
# caching allocator: given out, reserved, split off and not given out, and the most given out at once
(
    HOST_RSS, HOST_SHARED, HOST_PSS, HOST_PINNED, DEVICE_ALLOCATED, DEVICE_RESERVED, DEVICE_INACTIVE, DEVICE_PEAK,
) = range(30, 38)  # fmt: skip
# Counters of another sampler: a line of its own here, FIRST, SECOND = range(38, 40).

# The log: an append-only memfd of records (kind u32, length u32, id u64, payload utf-8, padded to 8 bytes).
# Its first 8 bytes are the number of bytes committed, themselves included; written last.
LOG_RECORD = "<IIQ"
LOG_BYTES = 64 << 20  # address space; memory is used as records come
LOG_STRING, LOG_MODULE, LOG_OPTIMIZER, LOG_GROUP, LOG_THREAD, LOG_EVAL, LOG_EVAL_DONE = range(1, 8)
LOG_LOADER, LOG_DEVICE, LOG_COMPILATION = range(8, 11)
# Payloads: STRING the text, all others JSON objects; a later record replaces one of the same kind and id.
#   MODULE    id serial          {"name", "type", "parent": serial or 0, "root": serial, "device": "cuda:0" or null};
#                                optional: "spread": true (tensors on several devices, or elsewhere), "wraps":
#                                serial or 0 (torch.compile's wrapper), "model" (of a root: its model's name), "within"
#                                (of a root: its name in the module that the model is, which nobody calls; or "")
#   OPTIMIZER id serial          {"name", "type", "device"}
#   GROUP     id                 {"name", "backend", "size", "rank", "ranks": [...]}
#   THREAD    id get_ident()     {"native_id", "name", "is_main"}
#   EVAL      id                 {"by", "code", "where": "boundary" | "now", "ranks": [...] or null}
#   EVAL_DONE id                 {"start_ns", "end_ns", "ok", "error", "changed": [...]}
#   LOADER    id serial          {"name", "num_workers", "pin_memory", "prefetch_factor", "batch_size"}
#   DEVICE    id                 {"index", "uuid", "name"}

# The header: one page-aligned memfd. Magic, version, then which of two JSON halves is the valid one.
HEADER_NAME = "probe-header"  # memfd names: probe-header, probe-log, probe-spans, …
HEADER_MAGIC = b"\x89probe\r\n"
HEADER_VERSION = 1
HEADER_LAYOUT = "<8sII"  # magic, version, active half
HEADER_HALVES = (64, 32768)
HEADER_HALF_LAYOUT = "<I"  # length, then the JSON text
HEADER_BYTES = 65536
