"""Every error this package raises on purpose. Each message names the culprit and the way out."""

from __future__ import annotations


class InterContiNetError(Exception):
    """The common ancestor: catch this to catch them all."""


class InvalidData(InterContiNetError, ValueError):
    """The examples cannot be used: empty, not finite, labels out of range, of the wrong type."""


class InvalidSetting(InterContiNetError, ValueError):
    """An option has a value that makes no sense."""


class InvalidRegion(InterContiNetError, ValueError):
    """The edges do not make a box: a negative radius, a lower edge above its upper one, NaN."""


class RegionMismatch(InterContiNetError, ValueError):
    """The region and the weights speak of different parameters, or of different shapes."""


class InvalidModel(InterContiNetError, ValueError):
    """The weights cannot be used: NaN or infinite, or of a precision that no promise covers."""


class UnsupportedLayer(InterContiNetError, TypeError):
    """A layer has no rule, or is used in a way that its rule does not cover."""


class TrainingMode(InterContiNetError, RuntimeError):
    """A layer behaves differently while training, so nothing can be promised about it."""


class DeviceMismatch(InterContiNetError, ValueError):
    """Model, region and data are not on one device."""


class CertificateError(InterContiNetError, ValueError):
    """A certificate file is truncated, altered, foreign, too new, or of another architecture."""


class WriteError(InterContiNetError, OSError):
    """A file could not be written; what was there before is untouched."""


class Violation(InterContiNetError):
    """Weights lie outside a certified region: no floor of its certificate holds for them.

    Attributes:
        parameter: Name of the first parameter that left the region.
        excess: How far outside it is (the largest distance of any of its entries).
        others: Names of all further parameters that left.
    """

    def __init__(self, parameter: str, excess: float, others: tuple[str, ...] = ()) -> None:
        more = f", and {len(others)} more parameter(s) left: {', '.join(others[:5])}" if others else ""
        super().__init__(
            f"'{parameter}' lies {excess:.6g} outside the certified region{more}. "
            "No floor holds for these weights: train inside the region, or move back with region.clamp_(model)."
        )
        self.parameter = parameter
        self.excess = excess
        self.others = others
