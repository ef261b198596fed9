"""Tables 1, 2 and 3 of the paper: average accuracy over all tasks after the last, in percent, five runs a cell."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A cell of the paper, in percent. It does not say by which formula the deviation was computed."""

    mean: float
    std: float


_SCENARIOS = ("task", "domain", "class")
_ROWS: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "mnist": {
        "sgd": ((96.27, 0.38), (64.58, 0.26), (19.01, 0.04)),
        "adam": ((95.53, 3.16), (59.32, 1.08), (19.74, 0.01)),
        "l2": ((96.31, 0.41), (72.21, 0.17), (18.88, 0.18)),
        "ewc": ((97.01, 0.13), (76.90, 0.41), (18.90, 0.06)),
        "oewc": ((97.01, 0.13), (77.02, 0.51), (18.89, 0.07)),
        "si": ((96.19, 0.63), (80.62, 0.17), (17.94, 0.57)),
        "mas": ((96.52, 0.14), (84.41, 0.42), (17.38, 4.19)),
        "lwf": ((97.03, 0.05), (82.76, 0.17), (49.37, 0.68)),
        "intercontinet-published": ((98.93, 0.05), (77.77, 1.24), (40.73, 3.26)),
        "offline": ((99.74, 0.03), (99.03, 0.04), (98.49, 0.02)),
    },
    "fashion-mnist": {
        "sgd": ((92.22, 3.06), (82.77, 0.44), (19.91, 0.01)),
        "adam": ((88.13, 5.64), (78.48, 0.47), (19.96, 0.01)),
        "l2": ((97.36, 0.17), (92.65, 0.09), (26.91, 1.23)),
        "ewc": ((97.53, 0.15), (92.12, 0.18), (19.90, 0.01)),
        "oewc": ((96.70, 0.57), (88.83, 0.30), (19.87, 0.02)),
        "si": ((97.00, 0.25), (91.45, 0.07), (19.97, 0.34)),
        "mas": ((97.43, 0.14), (91.74, 0.19), (10.00, 0.00)),
        "lwf": ((98.10, 0.07), (88.63, 0.12), (39.51, 1.45)),
        "intercontinet-published": ((98.37, 0.06), (92.65, 0.40), (35.11, 0.02)),
        "offline": ((97.98, 0.05), (96.39, 0.06), (82.54, 0.13)),
    },
    "cifar-10": {
        "sgd": ((64.74, 8.53), (69.22, 0.55), (15.56, 5.07)),
        "ewc": ((67.33, 7.11), (70.26, 0.66), (11.83, 4.10)),
        "oewc": ((64.59, 7.97), (65.97, 8.97), (15.49, 5.01)),
        "si": ((67.26, 7.77), (69.69, 0.73), (17.38, 4.13)),
        "mas": ((66.20, 9.29), (72.54, 0.59), (11.79, 4.01)),
        "lwf": ((93.03, 0.28), (76.97, 0.91), (13.89, 5.33)),
        "intercontinet-published": ((72.64, 1.18), (69.48, 1.36), (19.07, 0.15)),
        "offline": ((93.11, 0.18), (90.54, 0.32), (82.72, 0.09)),
    },
}

PUBLISHED = {
    (dataset, scenario, method): Published(*cell)
    for dataset, methods in _ROWS.items()
    for method, cells in methods.items()
    for scenario, cell in zip(_SCENARIOS, cells, strict=True)
}


def yardstick(dataset: str, scenario: str, method: str) -> Published | None:
    """The cell to compare with. InterContiNet with its promise enforced is held against the published row too.

    >>> yardstick("mnist", "task", "ewc")
    Published(mean=97.01, std=0.13)
    >>> yardstick("mnist", "class", "intercontinet").mean
    40.73
    >>> yardstick("cifar-10", "task", "adam") is None
    True
    """
    row = "intercontinet-published" if method == "intercontinet" else method
    return PUBLISHED.get((dataset, scenario, row))
