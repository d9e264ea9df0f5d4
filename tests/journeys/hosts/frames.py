"""Runs the network of a file in frames within a budget: ``python frames.py MODEL``."""

import sys
import time

import numpy as np

import cml_engine as cml

gpu = cml.Gpu()
graph = cml.load_cooked(sys.argv[1]) if sys.argv[1].endswith(".cml") else cml.load(sys.argv[1])
session = cml.Session(graph, gpu)
scheduler = cml.FrameScheduler(gpu, frame_ms=1000 / 60, budget_ms=4.0)
job = scheduler.submit(session, {"image": np.ones((1, 3, 16, 16), np.float32)})
end = time.monotonic() + 60
while job.read("large") is None and time.monotonic() < end:
    encoder = gpu.device.create_command_encoder()
    scheduler.encode(encoder)
    gpu.device.queue.submit([encoder.finish()])
    scheduler.end_frame()
large = job.read("large")
assert large is not None, job.state
print(job.state, large.shape, large.mean())
