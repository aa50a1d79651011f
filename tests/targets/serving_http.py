"""An HTTP server that calls its model for each request: target of tests.  Prints "ready PORT", and waits in between.

What each call took, in seconds by its own clock, is in the answer.
"""

import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import fast_import  # noqa: F401
import torch
from torch import nn


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.01)
        return x


model = nn.Sequential(nn.Linear(8, 64), Slow(), nn.ReLU(), nn.Linear(64, 1)).eval()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = torch.randn(4, 8)
        begun = time.perf_counter()
        with torch.no_grad():
            model(asked)
        took = time.perf_counter() - begun
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{took}".encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
print("ready", server.server_port, flush=True)
server.serve_forever()
