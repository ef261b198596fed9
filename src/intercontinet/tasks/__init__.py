"""Data sets and scenarios."""

from intercontinet.tasks.catalogue import IMAGE_SETS, data_folder
from intercontinet.tasks.datasets import SetDescription, describe_sets, image_set
from intercontinet.tasks.digits import digits, split_digits
from intercontinet.tasks.download import download
from intercontinet.tasks.scenario import SCENARIOS, Scenario, Stream, Task, split
from intercontinet.tasks.streams import STREAMS, stream

__all__ = [
    "IMAGE_SETS",
    "SCENARIOS",
    "STREAMS",
    "Scenario",
    "SetDescription",
    "Stream",
    "Task",
    "data_folder",
    "describe_sets",
    "digits",
    "download",
    "image_set",
    "split",
    "split_digits",
    "stream",
]
