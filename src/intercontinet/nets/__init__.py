"""Networks: those that are trained, and frozen encoders below a table that is learned."""

from intercontinet.nets.alexnet import alexnet
from intercontinet.nets.build import build_net
from intercontinet.nets.dictionary import PatchDictionary, TriangleDictionary
from intercontinet.nets.ferns import Ferns, feature_ferns
from intercontinet.nets.lesser import Lesser
from intercontinet.nets.mlp import mlp
from intercontinet.nets.sight import sight
from intercontinet.nets.table import build_exact_net, dictionary_net, fern_net, with_table
from intercontinet.nets.whole import WholeNet
from intercontinet.nets.winners import KWinners

__all__ = [
    "Ferns",
    "KWinners",
    "Lesser",
    "PatchDictionary",
    "TriangleDictionary",
    "WholeNet",
    "alexnet",
    "build_exact_net",
    "build_net",
    "dictionary_net",
    "feature_ferns",
    "fern_net",
    "mlp",
    "sight",
    "with_table",
]
