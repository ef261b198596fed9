"""Settings that all tests share."""

from __future__ import annotations

import torch

torch.set_num_threads(1)  # models here are tiny: more threads only wait for each other
