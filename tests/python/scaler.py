"""Prints the scales of torch.amp's GradScaler if gradients hold an inf in the steps marked 1.

    scaler.py INIT_SCALE GROWTH_FACTOR BACKOFF_FACTOR GROWTH_INTERVAL 0010...
"""

import sys

import torch

init, growth, backoff = (float(text) for text in sys.argv[1:4])
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
scaler = torch.amp.GradScaler("cpu", init, growth, backoff, int(sys.argv[4]))
for is_inf in sys.argv[5]:
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    if is_inf == "1":
        weight.grad[1] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    print(scaler.get_scale().hex())
