"""Two servers, one of threads (http.server) and one of asyncio; and functions to trace: target of tests.

Prints "ready HTTP_PORT ASYNCIO_PORT".  An answer of either says how long its handler took, as seen from inside and from
outside, and how long the request had waited before, as seen from outside and from inside; in seconds by its own clock.
Without torch.
"""

import asyncio
import contextlib
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Request:
    __slots__ = ("arrived", "name")

    def __init__(self, name, arrived):
        self.name, self.arrived = name, arrived


def serve(request):
    begun, waited = time.perf_counter(), time.time() - request.arrived
    time.sleep(random.uniform(0.004, 0.02))
    return time.perf_counter() - begun, waited


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        arrived = time.time()
        time.sleep(random.uniform(0.002, 0.01))
        waited, begun = time.time() - arrived, time.perf_counter()
        took, waited_inside = serve(Request(self.path, arrived))
        around = time.perf_counter() - begun
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{took} {around} {waited} {waited_inside}".encode())

    def log_message(self, *_):
        pass


async def answer(line, arrived):
    begun, waited = time.perf_counter(), asyncio.get_running_loop().time() - arrived
    await asyncio.sleep(random.uniform(0.004, 0.02))
    return time.perf_counter() - begun, waited


async def connected(reader, writer):
    while line := await reader.readline():
        arrived = asyncio.get_running_loop().time()
        await asyncio.sleep(random.uniform(0.002, 0.01))
        waited, begun = asyncio.get_running_loop().time() - arrived, time.perf_counter()
        took, waited_inside = await answer(line, arrived)
        around = time.perf_counter() - begun
        writer.write(f"{took} {around} {waited} {waited_inside}\n".encode())
    writer.close()


def often(number):
    return number + 1


class Worker:
    def __init__(self):
        self.done = 0

    def work(self, items):
        if not items:
            raise ValueError("nothing to do")
        self.done += len(items)


worker = Worker()


def spin():
    while True:
        for each in range(10_000):
            often(each)
        time.sleep(0.1)


def run_worker():
    while True:
        for items in ([1, 2], [], [3]):
            with contextlib.suppress(ValueError):
                worker.work(items)
            time.sleep(0.005)


async def main():
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    for run in (http.serve_forever, spin, run_worker):
        threading.Thread(target=run, daemon=True).start()
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print("ready", http.server_port, server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
