"""Networks."""

from intercontinet.nets.alexnet import alexnet
from intercontinet.nets.mlp import mlp

__all__ = ["alexnet", "mlp"]
