"""Answers queries on a local Ray: python on_ray.py FOLDER FILE, SQL by lines on stdin; a process of its own, because
Daft takes one runner a process."""

from __future__ import annotations

import pickle
import sys

from probe.record.fleet.fleet import LOCAL, Fleet, on_ray

with on_ray(LOCAL):
    fleet = Fleet(f"file://{sys.argv[1]}")
    answers = {sql: fleet.query(sql) for sql in sys.stdin.read().splitlines()}
with open(sys.argv[2], "wb") as file:
    pickle.dump(answers, file)
