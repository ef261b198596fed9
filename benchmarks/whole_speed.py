"""How long sight takes for an image, in bytes and in floating point, in turn: milliseconds and their ratio.

python benchmarks/whole_speed.py --threads 1
"""

from __future__ import annotations

import argparse
import statistics
import time
from unittest import mock

import torch
from torch import Tensor, nn

from intercontinet.nets import sight, whole


def taken(net: nn.Module, x: Tensor) -> float:
    """Milliseconds an image."""
    began = time.perf_counter()
    net(x)
    return 1000 * (time.perf_counter() - began) / len(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--threads", type=int, help="torch's own number by default")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    if not whole.adds_bytes():
        print("this CPU does not add up products of bytes exactly: there is floating point alone")
        return
    net, x, pairs = sight(), torch.rand(given.images, 3, 32, 32), []
    for _ in range(given.rounds + 1):
        quick = taken(net, x)
        with mock.patch.object(whole, "adds_bytes", return_value=False):
            pairs.append((quick, taken(net, x)))
    quick, plain = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    ratio = statistics.median(slow / fast for fast, slow in pairs[1:])
    print(f"bytes {quick:.2f} ms, floating point {plain:.2f} ms an image: {ratio:.1f}x, torch {torch.__version__}")


if __name__ == "__main__":
    main()
