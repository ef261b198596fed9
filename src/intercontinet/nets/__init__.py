"""Networks."""

from intercontinet.nets.mlp import mlp

__all__ = ["mlp"]
