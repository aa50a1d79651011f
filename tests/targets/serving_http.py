"""An HTTP server that calls its model for each request: target of tests.  Prints "ready PORT", and waits in between."""

import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import fast_import  # noqa: F401
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)).eval()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with torch.no_grad():
            answer = model(torch.randn(4, 8)).mean().item()
        time.sleep(0.01)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{answer}".encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
print("ready", server.server_port, flush=True)
server.serve_forever()
