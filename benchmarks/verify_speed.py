"""How fast two files are verified, against just reading them; and how much memory that takes.

Makes a float32 model and a certificate with edges for all of it in a temporary folder, reads both once so that they
come from memory, then measures in turn: reading both in pieces, with nothing done; ``verify_files``. The quickest of
all rounds counts; `ratio` is the speed of verifying over that of reading. SHA-256 is the bound: `hashing_alone` is what
the ratio would be if nothing but hashing were done, on all cores.

    python benchmarks/verify_speed.py --millions 100
    python benchmarks/verify_speed.py --cold          # both files come from the disk each time
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WIDTH = 4096  # of each of the model's square layers


def make(folder: Path, millions: float, frozen: bool) -> None:
    """Write the two files; in a process of its own, as it takes memory that is none of verifying's."""
    import torch

    import intercontinet as icn
    from intercontinet.files import save_weights

    torch.manual_seed(0)
    layers = max(1, round(millions * 1e6 / WIDTH**2))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    region = icn.Region.around(model, {"0.bias": 0.01} if frozen else 0.01)
    icn.Certificate.of(model, region, [icn.TaskFloor("any", 1, 1, 1)]).save(folder / "model.icn")
    save_weights(model, folder / "model.safetensors")


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def peak() -> float:
    """The most memory that this process ever held, in MB (kilobytes on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=100, help="parameters of the model")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cold", action="store_true", help="let the page cache forget the files before each reading")
    parser.add_argument("--frozen", action="store_true", help="nearly all of it frozen: digests in place of edges")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.millions, options.frozen)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, __file__, "--make", name, *sys.argv[1:]], check=True)
        print(json.dumps(measured(folder, options.rounds, options.frozen, options.cold), indent=1))


def forget(paths: tuple[Path, ...]) -> None:
    """Have the operating system drop what it holds of the files."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def measured(folder: Path, rounds: int, frozen: bool, cold: bool) -> dict[str, object]:
    from intercontinet.header import opened
    from intercontinet.stream import PIECE, THREADS, verify_files

    paths = folder / "model.safetensors", folder / "model.icn"

    def read() -> None:
        piece = bytearray(PIECE)
        for path in paths:
            with opened(path) as file:
                while file.readinto(piece):  # type: ignore[attr-defined]
                    pass

    def hashed() -> None:
        whole, piece = hashlib.sha256(), bytes(PIECE)
        for _ in range(256):
            whole.update(piece)

    read()
    before = peak()
    times = []
    for _ in range(rounds):
        both = []
        for action in (read, lambda: verify_files(*paths)):
            if cold:
                forget(paths)
            both.append(seconds(action))
        times.append(both)
    reading, verifying = (min(column) for column in zip(*times, strict=True))
    command = [sys.executable, "-c", "from intercontinet.cli import main; main()", "verify", *map(str, paths)]
    size = sum(path.stat().st_size for path in paths)
    hashing = min(seconds(hashed) for _ in range(rounds)) / (256 * PIECE)  # seconds a byte and core
    threads = min(os.cpu_count() or 1, THREADS)
    bytes_hashed = paths[0 if frozen else 1].stat().st_size
    return {
        "cores": os.cpu_count(),
        "cold": cold,
        "bytes": {path.name: path.stat().st_size for path in paths},
        "read_gb_per_s": round(size / reading / 1e9, 2),
        "verify_gb_per_s": round(size / verifying / 1e9, 2),
        "ratio": round(reading / verifying, 3),
        "sha256_gb_per_s_and_core": round(1e-9 / hashing, 2),
        "hashing_alone": round(reading / (bytes_hashed * hashing / threads), 3),
        "memory_mb": {"before": round(before), "more_while_verifying": round(peak() - before)},
        "command_s": round(seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)), 2),
    }


if __name__ == "__main__":
    main()
