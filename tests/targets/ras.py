"""NCCL's RAS, played: it listens where NCCL_RAS_ADDR says and answers as NCCL 2.28 does, with the JSON of a file.

usage: NCCL_RAS_ADDR=HOST:PORT python ras.py FILE [text]     text: as NCCL 2.24 does, which knows no JSON
"""

import os
import socket
import sys
import threading
import time
from pathlib import Path


def serve(file, knows_json=True):
    """On a thread of its own; says so on stdout once it listens."""
    host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
    server = socket.create_server((host, int(port)))

    def answer():
        while True:
            client, _ = server.accept()
            with client:
                for line in client.makefile("rb"):
                    word = line.split()[0]
                    if word == b"VERBOSE":
                        client.sendall(Path(file).read_bytes())
                        break
                    refuses = word == b"SET" and not knows_json
                    told = b"ERROR: unknown\n" if refuses else b"SERVER PROTOCOL 2\n" if word == b"CLIENT" else b"OK\n"
                    client.sendall(told)

    threading.Thread(target=answer, daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1], "text" not in sys.argv)
    print("ready", flush=True)
    time.sleep(300)
