"""Train "sight" without labels, and make it whole: what src/intercontinet/nets/sight.safetensors holds.

    python -m benchmarks.pretrain --twin twin.safetensors --out sight.safetensors

Two random views of an image (a part of it, perhaps mirrored, in other colours) are to be found among the views of a
thousand others: a contrastive loss, for which no label is read. Then batch norms are folded into the convolutions
before them, and everything is rounded to whole numbers that reach as far as activations do on the same images. Where
the twin in floating point exists already, it is only made whole.

500 epochs take 390 s on one H200. A GPU does not add up in a fixed order: another run gives another net, as good.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from intercontinet.nets.numbers import BRIGHTEST
from intercontinet.nets.sight import BLOCKS, WIDTHS
from intercontinet.nets.whole import WholeConvolution, WholeNet, whole_convolution
from intercontinet.tasks import stream

BATCH, TEMPERATURE, RATE, DECAY, WARMING = 1024, 0.2, 0.6, 1e-4, 0.03
TASKS = 20  # of a few classes each, in which the images come: a tenth of each is measured
LOUDEST = 0.9999  # share of activations that whole numbers must reach up to


class Convolution(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(filters)

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        h: Tensor = self.norm(self.conv(x))
        return F.relu(h if beside is None else h + beside)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Filters and bias with the norm's part in them."""
        norm = self.norm
        mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        slope = norm.weight / (variance + norm.eps).sqrt()
        return self.conv.weight * slope[:, None, None, None], norm.bias - mean * slope


class Twin(nn.Module):
    """Sight before it is made whole, and what a contrastive loss is computed on."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        channels = 3
        for place, (width, count) in enumerate(zip(WIDTHS, BLOCKS, strict=True)):
            first = Convolution(channels, width, stride=1 if place == 0 else 2)
            self.stages.append(nn.ModuleList([first, *(Convolution(width, width) for _ in range(2 * count))]))
            channels = width
        self.projector = nn.Sequential(nn.Linear(channels, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 128))

    def activations(self, h: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Stage, place in it, and what its convolution puts out."""
        for number, layers in enumerate(self.stages):
            stage = cast(nn.ModuleList, layers)
            h = stage[0](h)
            yield number, 0, h
            for place in range(1, len(stage), 2):
                inner = stage[place](h)
                yield number, place, inner
                h = stage[place + 1](inner, h)
                yield number, place + 1, h

    def forward(self, x: Tensor) -> Tensor:
        *_, (_, _, h) = self.activations(x)
        return cast(Tensor, self.projector(h.mean((2, 3))))


def views(x: Tensor) -> Tensor:
    """Random parts of images, mirrored or not, in other colours: [batch, 3, height, width]."""
    n, device = len(x), x.device

    def drawn(low: float, high: float) -> Tensor:
        return torch.empty(n, device=device).uniform_(low, high)

    area, ratio = drawn(0.2, 1.0), drawn(math.log(3 / 4), math.log(4 / 3)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    side = torch.where(drawn(0, 1) < 0.5, -1.0, 1.0)
    place = torch.zeros(n, 2, 3, device=device)
    place[:, 0, 0], place[:, 1, 1] = side * width, height
    place[:, 0, 2], place[:, 1, 2] = drawn(-1, 1) * (1 - width), drawn(-1, 1) * (1 - height)
    x = F.grid_sample(x, F.affine_grid(place, list(x.shape), align_corners=False), align_corners=False)
    return recoloured(x, drawn)


def recoloured(x: Tensor, drawn: Callable[[float, float], Tensor]) -> Tensor:
    """Other hues, strengths of colour, brightness and contrast, and some images in grey."""
    grey = torch.tensor([0.299, 0.587, 0.114], device=x.device)
    greys, same = grey.expand(3, 3), torch.eye(3, device=x.device)
    axis = torch.ones(3, device=x.device) / math.sqrt(3)
    cross = torch.tensor([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=x.device) / math.sqrt(3)
    angle = (drawn(-0.1, 0.1) * 2 * math.pi)[:, None, None]
    turned = angle.cos() * same + angle.sin() * cross + (1 - angle.cos()) * torch.outer(axis, axis)
    full = drawn(0.6, 1.4)[:, None, None]
    mixed = turned @ (full * same + (1 - full) * greys) * drawn(0.6, 1.4)[:, None, None]
    mixed = torch.where((drawn(0, 1) < 0.8)[:, None, None], mixed, same)
    mixed = torch.where((drawn(0, 1) < 0.2)[:, None, None], greys, mixed)
    x = torch.einsum("nij,njhw->nihw", mixed, x)
    mean = x.mean((1, 2, 3), keepdim=True)
    contrast = torch.where(drawn(0, 1) < 0.8, drawn(0.6, 1.4), torch.ones_like(drawn(0, 1)))[:, None, None, None]
    return ((x - mean) * contrast + mean).clamp(0, 1)


def found_again(h: Tensor) -> Tensor:
    """Cross-entropy of finding a view's other one: the first half's among the second, and the other way round."""
    h = F.normalize(h.float())
    likeness = h @ h.T / TEMPERATURE
    likeness.fill_diagonal_(-torch.inf)
    half = len(h) // 2
    partner = torch.arange(len(h), device=h.device).roll(half)
    return F.cross_entropy(likeness, partner)


def trained(images: Tensor, twin: Twin, epochs: int) -> None:
    """Train the twin on bytes, [images, 3, height, width]."""
    device = images.device
    twin.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(twin.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=DECAY)
    each = len(images) // BATCH
    steps = epochs * each
    began, told = time.perf_counter(), 0.0
    for step in range(steps):
        if step % each == 0:
            order = torch.randperm(len(images), device=device)
        share = step / steps
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(share / WARMING, 0.5 + 0.5 * math.cos(math.pi * share))
        x = images[order[(step % each) * BATCH :][:BATCH]].float() / BRIGHTEST
        x = views(torch.cat([x, x])).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            h = twin(x)
        loss = found_again(h)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if time.perf_counter() - told > 10:
            told = time.perf_counter()
            print(f"epoch {step // each} of {epochs}: loss {loss:.3f}, {told - began:.0f} s", flush=True)


@torch.no_grad()
def made_whole(twin: Twin, images: Tensor) -> WholeNet:
    """The twin in whole numbers; ``images``, [images, 3, height, width], bytes, tell how large activations become."""
    twin.eval()
    loudest: dict[tuple[int, int], Tensor] = {}
    for part in torch.split(images, 500):
        for stage, place, h in twin.activations(part.float() / BRIGHTEST):
            key = (stage, place if place % 2 else 0)  # all that goes round the blocks of a stage has one scale
            top = h.transpose(0, 1).flatten(1)[:, : 1 << 20].float().quantile(LOUDEST, dim=1)
            loudest[key] = torch.maximum(loudest.get(key, top), top)
    scales = {key: value.clamp(min=float(value.mean()) / 100) / BRIGHTEST for key, value in loudest.items()}
    whole = WholeNet(WIDTHS, BLOCKS).to(images.device)
    given = torch.full((3,), 1 / BRIGHTEST, device=images.device)
    for number, (layers, targets) in enumerate(zip(twin.stages, whole.stages, strict=True)):
        pairs = zip(cast(nn.ModuleList, layers), cast(nn.ModuleList, targets), strict=True)
        for place, (layer, target) in enumerate(pairs):
            wanted = scales[number, place if place % 2 else 0]
            weight, bias = cast(Convolution, layer).folded()
            whole_convolution(cast(WholeConvolution, target), weight, bias, given, wanted)
            given = wanted
    return whole


@torch.no_grad()
def likeness(twin: Twin, whole: WholeNet, images: Tensor) -> float:
    """How well features of both agree: the mean correlation over features, of images, bytes."""
    x = images.float() / BRIGHTEST
    *_, (_, _, h) = twin.activations(x)
    before = F.avg_pool2d(h, h.shape[-1] // whole.pool).flatten(1)
    after = whole(x)[:, -before.shape[1] :]  # of the last stage
    both = [f - f.mean(0) for f in (before, after)]
    return float(F.cosine_similarity(both[0], both[1], dim=0).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--twin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(given.seed)
    torch.backends.cudnn.benchmark = True
    images = torch.cat([task.train[0] for task in stream("cifar-100", "task").tasks])
    images = (BRIGHTEST * images).round().to(torch.uint8).to(device)
    twin = Twin().to(device)
    if given.twin.exists():
        twin.load_state_dict(load_file(given.twin))
    else:
        trained(images, twin, given.epochs)
        save_file({name: tensor.contiguous() for name, tensor in twin.state_dict().items()}, given.twin)
    whole = made_whole(twin, torch.cat([part[: len(part) // 10] for part in torch.split(images, len(images) // TASKS)]))
    print(f"features before and after they are made whole correlate by {likeness(twin, whole, images[1::50]):.4f}")
    save_file({name: tensor.contiguous() for name, tensor in whole.state_dict().items()}, given.out)


if __name__ == "__main__":
    main()
