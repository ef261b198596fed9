"""Ship a model, update it without its old data, and prove that the update did not break it.

Each step runs in a process of its own, as it would on different machines and days:

    python examples/protect_update_verify.py            # all of them, in ./shipping
    python examples/protect_update_verify.py protect    # or one by one: protect, update, verify, extend

What passes from one to the next is files: weights (.safetensors) and certificates (.icn). The old data never does.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.files import load_weights, save_weights

FOLDER = Path("shipping")
STEPS = ("protect", "update", "verify", "extend")


class Net(nn.Module):
    """An ordinary module: two hidden layers, the second beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(10, 32), nn.LayerNorm(32)
        self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(torch.relu(self.first(x)))
        out: Tensor = self.head(hidden + torch.relu(self.second(hidden)))
        return out


def readings(sensor: str, examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """x [examples, 10] and y [examples], one of four classes. The old sensor lacks the last two quantities."""
    rule = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    x = torch.randn(examples, 10, generator=torch.Generator().manual_seed(seed))
    if sensor == "old":
        x[:, 8:] = 0.0
    return x, (x @ rule).argmax(1)


def train(model: nn.Module, data: tuple[Tensor, Tensor], epochs: int, rate: float, region: icn.Region | None) -> None:
    """Any loop with any optimizer; one line keeps it inside."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def loop() -> None:
        for _ in range(epochs):
            for at in range(0, len(data[1]), 100):
                x, y = (part[at : at + 100] for part in data)
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()

    if region is None:
        loop()
    else:
        with icn.keep_inside(model, optimizer, region):
            loop()


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> str:
    return f"{(model(data[0]).argmax(1) == data[1]).double().mean():.1%}"


def shipped(name: str) -> Net:
    model = Net()
    model.load_state_dict(load_weights(FOLDER / name))
    return model.eval()


def protect() -> None:
    """Today: a trained model, and the data it was trained on, for the last time."""
    torch.manual_seed(0)
    model, data = Net(), readings("old", 1000, seed=1)
    train(model, data, epochs=20, rate=0.01, region=None)
    unseen = readings("old", 1000, seed=2)
    certificate = icn.protect(model, data, keep=0.95, task="old sensor", unseen=unseen, challenge=True, steps=20)
    certificate.save(FOLDER / "v1.icn")
    save_weights(model, FOLDER / "v1.safetensors")
    print("v1.icn promises, of every model in its region:")
    for floor in certificate.tasks:
        print(f"  {floor}")


def update() -> None:
    """Months later, elsewhere: new data, the weights, the certificate. Nothing else is left."""
    certificate = icn.Certificate.load(FOLDER / "v1.icn")
    data, test = readings("new", 1000, seed=3), readings("new", 1000, seed=4)
    print(f"v1 on the new sensor: {accuracy(shipped('v1.safetensors'), test)}")
    for name, region in (("v2", certificate.region), ("plain", None)):
        model = shipped("v1.safetensors")
        train(model, data, epochs=10, rate=0.003, region=region)
        save_weights(model, FOLDER / f"{name}.safetensors")
        how = "outside, as ever" if region is None else "inside the region"
        print(f"{name}, fine-tuned {how}: {accuracy(model, test)} on the new sensor")


def verify() -> None:
    """Before a release: no data, no model code, no trust."""
    for name in ("v2", "plain"):
        arguments = ["verify", str(FOLDER / f"{name}.safetensors"), str(FOLDER / "v1.icn")]
        print(f"$ intercontinet {' '.join(arguments)}", flush=True)
        command = [sys.executable, "-c", "from intercontinet.cli import main; main()", *arguments]
        print(f"exit code {subprocess.run(command).returncode}", flush=True)


def extend() -> None:
    """Then v2 is protected in its turn, inside v1's region: both floors hold from now on."""
    model, data = shipped("v2.safetensors"), readings("new", 1000, seed=3)
    certificate = icn.protect(model, data, keep=0.9, task="new sensor", within=FOLDER / "v1.icn", steps=20)
    certificate.save(FOLDER / "v2.icn")
    print(f"v2.icn: {icn.verify(FOLDER / 'v2.safetensors', FOLDER / 'v2.icn')}")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    if sys.argv[1:]:
        {"protect": protect, "update": update, "verify": verify, "extend": extend}[sys.argv[1]]()
    else:
        for step in STEPS:
            print(f"\n--- {step}", flush=True)
            subprocess.run([sys.executable, __file__, step], check=True)
