"""Data sets and scenarios."""

from intercontinet.tasks.digits import digits, split_digits
from intercontinet.tasks.scenario import SCENARIOS, Scenario, Stream, Task, split

__all__ = ["SCENARIOS", "Scenario", "Stream", "Task", "digits", "split", "split_digits"]
