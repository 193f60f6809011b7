"""Weight-decay schedules."""

from hyperion_lite.wd_schedulers.cos_wd import CosineWD
from hyperion_lite.wd_schedulers.factory import WDSchedulerFactory
from hyperion_lite.wd_schedulers.wd_scheduler import WDScheduler

__all__ = ["CosineWD", "WDScheduler", "WDSchedulerFactory"]
