"""InterContiNet: teach a network new tasks while proving how much of the old ones it keeps."""

from intercontinet.attack import Attack, attack
from intercontinet.bounds import bounds, rule
from intercontinet.certificate import Certificate, Verdict, verify
from intercontinet.errors import InterContiNetError, Violation
from intercontinet.floor import TaskFloor, certify
from intercontinet.interval import Interval
from intercontinet.learners.exact import ExactInterContiNet
from intercontinet.learners.intercontinet import InterContiNet
from intercontinet.learners.settings import Settings
from intercontinet.region import Region
from intercontinet.version import __version__

__all__ = [
    "Attack",
    "Certificate",
    "ExactInterContiNet",
    "InterContiNet",
    "InterContiNetError",
    "Interval",
    "Region",
    "Settings",
    "TaskFloor",
    "Verdict",
    "Violation",
    "attack",
    "bounds",
    "certify",
    "rule",
    "verify",
    "__version__",
]
