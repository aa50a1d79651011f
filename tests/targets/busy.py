"""Threads that allocate, hash, sleep and start threads, and notice when a result is wrong."""

import hashlib
import os
import random
import sys
import threading
import time


def allocate(seed):
    numbers = random.Random(seed)
    while True:
        blocks = [bytes(numbers.randrange(1, 200_000)) for _ in range(50)]
        texts = {i: str(i) * 3 for i in range(500)}
        if sum(map(len, texts.values())) != 3 * (10 + 180 + 1200) or any(map(any, blocks[:2])):
            print("broken: allocate", flush=True)


def digest():
    data = os.urandom(1 << 20)
    wanted = hashlib.sha256(data).digest()
    while True:
        if hashlib.sha256(data).digest() != wanted:
            print("broken: digest", flush=True)


def sleep():
    while True:
        time.sleep(0.001)


def start_threads():
    while True:
        thread = threading.Thread(target=lambda: [0] * 1000)
        thread.start()
        thread.join()


sys.setswitchinterval(0.0005)  # the threads take turns ten times as often: more happens in a test's time
for work in (lambda: allocate(1), digest, sleep, start_threads):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
allocate(2)
