"""Data sets and scenarios."""

from intercontinet.tasks.datasets import IMAGE_SETS, data_folder, image_set, split_images
from intercontinet.tasks.digits import digits, split_digits
from intercontinet.tasks.scenario import SCENARIOS, Scenario, Stream, Task, split

__all__ = [
    "IMAGE_SETS",
    "SCENARIOS",
    "Scenario",
    "Stream",
    "Task",
    "data_folder",
    "digits",
    "image_set",
    "split",
    "split_digits",
    "split_images",
]
