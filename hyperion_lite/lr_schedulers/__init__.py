"""Learning-rate schedules. :mod:`.lr_scheduler` says what all of them share; :mod:`.factory` makes them out of a configuration."""

from hyperion_lite.lr_schedulers.cycles import CosineLR, OneCycleLR, TriangularLR
from hyperion_lite.lr_schedulers.decays import ExponentialLR, InvPowLR, LinearLR, NoamLR
from hyperion_lite.lr_schedulers.factory import LRSchedulerFactory
from hyperion_lite.lr_schedulers.lr_scheduler import LRScheduler
from hyperion_lite.lr_schedulers.plateau import ReduceLROnPlateau

__all__ = [
    "CosineLR",
    "ExponentialLR",
    "InvPowLR",
    "LRScheduler",
    "LRSchedulerFactory",
    "LinearLR",
    "NoamLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "TriangularLR",
]
