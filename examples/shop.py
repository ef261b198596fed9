"""A model and its data, for the commands of docs/shipping.md.

    cd examples
    python shop.py        # leaves v1.safetensors, plain.safetensors, old.npz, heldout.npz and new.npz here
    intercontinet protect --model shop:build --weights v1.safetensors --data old.npz --unseen heldout.npz

A classifier of sensor readings is shipped. The first sensor lacked two of ten quantities; the next one has them.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from protect_update_verify import Net, readings, train

from intercontinet.files import save_weights


def build() -> Net:
    """What ``--model shop:build`` names: the architecture, whatever its weights."""
    return Net()


def main(folder: Path = Path()) -> None:
    torch.manual_seed(0)
    model = build()
    for name, sensor, seed in (("old", "old", 1), ("heldout", "old", 2), ("new", "new", 3)):
        x, y = readings(sensor, examples=1000, seed=seed)
        np.savez(folder / f"{name}.npz", x=x.numpy(), y=y.numpy())
    train(model, readings("old", 1000, 1), epochs=20, rate=0.01, region=None)
    save_weights(model, folder / "v1.safetensors")
    plain = deepcopy(model)
    train(plain, readings("new", 1000, 3), epochs=10, rate=0.003, region=None)  # the usual way, with no region
    save_weights(plain, folder / "plain.safetensors")


if __name__ == "__main__":
    main()
