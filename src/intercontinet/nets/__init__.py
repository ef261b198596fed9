"""Networks."""

from intercontinet.nets.alexnet import alexnet
from intercontinet.nets.build import build_net
from intercontinet.nets.mlp import mlp

__all__ = ["alexnet", "build_net", "mlp"]
