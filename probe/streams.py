"""What one fixed-width row of each raw stream holds: shared by the agent, which packs, and the reader.

A row is a few little-endian signed 8-byte slots, `seq` always last: 0 until the row is complete, then
its number from 1, so a row's place follows from its number.  A stream is a ring of chunks of CHUNK_ROWS
rows in one memfd; chunk c (rows c * CHUNK_ROWS + 1 ...) lies at place c % chunks.  Rows carry times and
serial numbers only: steps, names and nesting are resolved by the reader.  Stdlib only, no imports of ours.
"""

CHUNK_ROWS = 16384
RETENTION_BYTES = 64 << 20  # a stream: 1.3 million spans, hours of a training at full recording

SPANS = "spans"
MARKS = "marks"
STEPS = "steps"
COLLECTIVES = "collectives"
LOADS = "loads"
SAMPLES = "samples"
DEVICE = "device"

# Times are nanoseconds of CLOCK_MONOTONIC; `thread` is threading.get_ident(), whose native id and name
# stand in the log; `subject` is a serial number from the log, never a recycled id().
STREAMS: dict[str, tuple[str, ...]] = {
    # anything with a beginning and an end on one thread; flags say which kind
    SPANS: ("start_ns", "end_ns", "subject", "thread", "flags", "seq"),
    # autograd reached a module's output (its backward begins) or is through with its input (ends)
    MARKS: ("time_ns", "subject", "thread", "flags", "seq"),
    # a boundary: the anchor optimizer ended step number `count` since the attach.  rss_bytes is 0 where it was not
    # read, samples (batch dimensions of the root's inputs, added up) where there was none
    STEPS: ("time_ns", "count", "group_seq", "subject", "rss_bytes", "samples", "thread", "flags", "seq"),
    # done_ns is written later, in place, and stays 0 while the operation is in flight
    COLLECTIVES: (
        "start_ns", "issued_ns", "done_ns", "operation", "group", "group_seq", "peer", "bytes", "tensor",
        "source", "thread", "flags", "seq",
    ),
    # a batch taken from a loader; ready and outstanding (batches, when it was asked) are -1 without workers
    LOADS: ("start_ns", "end_ns", "subject", "ready", "outstanding", "thread", "flags", "seq"),
    # one reading of one counter: of this process and host (source PROCESS) or of a device (its number in the log);
    # readings of one source taken together share their time
    SAMPLES: ("time_ns", "source", "counter", "value", "seq"),
    # when a span or a mark was on its CUDA device; it is the one of this kind that this thread began, or made, at
    # host_ns.  Times by the device's clock, which all rows of a device share and which shows about the host's time.
    # Bytes of the caching allocator are -1 where they were not read
    DEVICE: (
        "start_ns", "end_ns", "host_ns", "thread", "device", "allocated_before", "allocated", "max_allocated",
        "reserved", "flags", "seq",
    ),
}  # fmt: skip
# The slot that says when a row was written: rows come in its order, but for threads that were held up meanwhile.
WRITTEN = {
    SPANS: "end_ns", MARKS: "time_ns", STEPS: "time_ns", COLLECTIVES: "start_ns", LOADS: "end_ns", SAMPLES: "time_ns",
    DEVICE: "end_ns",
}  # fmt: skip
# The slots that hold moments of time; all other numbers are the same at any time.
TIMES = {
    SPANS: ("start_ns", "end_ns"), MARKS: ("time_ns",), STEPS: ("time_ns",), LOADS: ("start_ns", "end_ns"),
    COLLECTIVES: ("start_ns", "issued_ns", "done_ns"), SAMPLES: ("time_ns",), DEVICE: ("start_ns", "end_ns", "host_ns"),
}  # fmt: skip
# A row is packed a moment after that time was read; a preempted thread may take some milliseconds for it.
PACKING_NS = 50_000_000
ON_DEMAND = {DEVICE}  # streams that are made once there is something to record

# flags, bits 0-7: the kind of row
KIND_MASK = 0xFF
FORWARD, OPTIMIZER, ENGINE, EVAL = range(1, 5)  # kinds of spans
MARK = 5  # in DEVICE beside the kinds of spans: it is a mark that was timed
WAIT = 6  # a span too: its thread waited for a collective operation
BEGIN, BEGIN_SAME_NODE, END = range(1, 4)  # kinds of marks; SAME_NODE: a descendant began at this very node
# flags, single bits
FAILED = 1 << 8
COMPILED = 1 << 9
ASYNC_OP = 1 << 10
SAMPLED = 1 << 11  # steps: the taps on modules were in from its beginning to its end
BARE = 1 << 12  # steps: all taps were out but the one that counts steps
UNTIMED = 1 << 13  # steps: so short that the clocks around engine and optimizer were out
BLOCKING = 1 << 14  # collectives: the thread that issued it waited for its end at once

# Sampling records module calls in every N-th block of BLOCK steps, N one of EVERY.
BLOCK = 10
EVERY = (1, 2, 5, 10, 20, 50, 100)

# What a sample counts, as the kernel or the driver gives it: numbers that only grow (the reader makes rates of two of
# them) and levels.  By number; a new one goes to the end, an old one never changes.
PROCESS = 0  # the source of what is no device's
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
    HOST_IDLE_TICKS,  # those in which a core had nothing to do, or waited for storage; grows
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
    CORE_WAIT_NS,  # ns for which the main thread could have run and had no core; grows
) = range(1, 30)

# The log: an append-only memfd of records (kind u32, length u32, id u64, payload utf-8, padded to 8 bytes).
# Its first 8 bytes are the number of bytes committed, themselves included; written last.
LOG_RECORD = "<IIQ"
LOG_BYTES = 64 << 20  # address space; memory is used as records come
LOG_STRING, LOG_MODULE, LOG_OPTIMIZER, LOG_GROUP, LOG_THREAD, LOG_EVAL, LOG_EVAL_DONE = range(1, 8)
LOG_LOADER, LOG_DEVICE = range(8, 10)
# payloads: STRING the text; all others JSON objects; a later record of the same kind and id replaces one.
#   MODULE    id serial          {"name", "type", "parent": serial or 0, "root": serial, "device": "cuda:0" or null};
#                                where it holds "spread": true (tensors on several devices, or elsewhere), "wraps":
#                                serial or 0 (torch.compile's wrapper), "model" (of a root: what its model is called)
#   OPTIMIZER id serial          {"name", "type", "device"}
#   GROUP     id                 {"name", "backend", "size", "rank", "ranks": [...]}
#   THREAD    id get_ident()     {"native_id", "name", "is_main"}
#   EVAL      id                 {"by", "code", "where": "boundary" | "now", "ranks": [...] or null}
#   EVAL_DONE id                 {"ok", "error", "changed": [...]}  (its times: the span of kind EVAL)
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
