"""Messages of several frames over a ZeroMQ socket, without waiting.

Used by server_socket and serve.relay in place of pyzmq's multipart calls, which combine enums for each frame: over 512
ranks these took a tenth of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK) | int(zmq.SNDMORE)


def send_frames(socket: Any, frames: Sequence[Any]) -> None:
    """Raises zmq.ZMQError, before anything is sent: zmq.Again if it would have to wait."""
    last = len(frames) - 1
    for place, frame in enumerate(frames):
        socket.send(frame, _NOBLOCK if place == last else _MORE)


def receive_frames(socket: Any) -> list[Any]:
    """The zmq.Frames of the next message.  Raises zmq.Again if there is none."""
    frame = socket.recv(_NOBLOCK, copy=False)
    frames = [frame]
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
        frames.append(frame)
    return frames
