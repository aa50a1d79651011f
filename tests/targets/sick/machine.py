"""Jobs that share cores or the GIL with something else, and servers: `machine.py JOB`."""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from families import CNN, GPT, MLP, UNet
from job import helper, random_batches, ready, run, sgd, train


def endless(model, size):
    train(model, random_batches(model, size), sgd(model))


def cpu_oversubscription_cnn():
    torch.set_num_threads(16)
    endless(CNN(width=32), 16)


def cpu_oversubscription_ranks():
    """Two ranks, each with a thread for each of the machine's many cores, as it believes."""
    torch.set_num_threads(8)
    model = torch.nn.parallel.DistributedDataParallel(inner := UNet(width=16))
    model.batch, model.loss = inner.batch, inner.loss
    endless(model, 16)


def host_contention_cnn():
    helper("burning.py", 8, start_new_session=True)
    endless(CNN(), 16)


def host_contention_mlp():
    helper("burning.py", 6, start_new_session=True)
    endless(MLP(), 128)


class Monitor(threading.Thread):
    """Looks at something, in Python; it sleeps between two looks for so long."""

    def __init__(self, pause_s):
        super().__init__(name="monitor", daemon=True)
        self.pause_s, self.running = pause_s, True

    def run(self):
        while self.running:
            self.summarize()
            time.sleep(self.pause_s)

    def summarize(self):
        sum(number * number for number in range(200_000))


def watched(model, size, pause_s):
    monitor = Monitor(pause_s)
    monitor.start()
    optimizer, train_batches = sgd(model), random_batches(model, size)
    ready()
    for inputs, targets in train_batches:
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gil_contention_gpt():
    watched(GPT(depth=6, length=32), 4, 0.0)


def gil_contention_mlp():
    watched(MLP(192, 24), 128, 0.0)


def healthy_monitor():
    """It looks once a second."""
    watched(MLP(), 192, 1.0)


class Handler(BaseHTTPRequestHandler):
    """Answers with what the model says."""

    model = None

    def do_GET(self):
        answer = self.predict()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def predict(self):
        with torch.no_grad():
            return str(self.model(self.model.batch(16)[0]).argmax().item()).encode()

    def log_message(self, *_):
        pass


def serving(clients, pause_s=0.0):
    """A server of one thread, and so many clients that pause for so long after an answer."""
    Handler.model = CNN(width=32).eval()
    server = HTTPServer(("127.0.0.1", 0), Handler)
    if clients:
        helper("asking.py", server.server_port, clients, pause_s)
    ready()
    server.serve_forever()


def server_saturated():
    serving(8)


def healthy_server():
    """Busy for about a third of the time."""
    serving(2, 0.08)


def idle_server():
    serving(0)


if __name__ == "__main__":
    run(globals())
