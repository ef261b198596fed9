"""Networks: those that are trained, and frozen encoders below a table that is learned by counting."""

from intercontinet.nets.alexnet import alexnet
from intercontinet.nets.build import build_net
from intercontinet.nets.dictionary import PatchDictionary
from intercontinet.nets.ferns import Ferns, feature_ferns
from intercontinet.nets.lesser import Lesser
from intercontinet.nets.mlp import mlp
from intercontinet.nets.table import build_counting_net, dictionary_net, fern_net, with_table
from intercontinet.nets.winners import KWinners

__all__ = [
    "Ferns",
    "KWinners",
    "Lesser",
    "PatchDictionary",
    "alexnet",
    "build_counting_net",
    "build_net",
    "dictionary_net",
    "feature_ferns",
    "fern_net",
    "mlp",
    "with_table",
]
