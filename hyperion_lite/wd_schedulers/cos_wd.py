"""Weight decay along half a cosine."""

from __future__ import annotations

import math

from hyperion_lite.wd_schedulers.wd_scheduler import WDScheduler


class CosineWD(WDScheduler):
    """``final_wd - (final_wd - initial_wd) * (1 + cos(pi * n / warmup_steps)) / 2``, and ``final_wd`` after ``warmup_steps``.

    Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021, where it goes from 0.04 to 0.4.
    """

    def progress(self, position: int) -> float:
        """See the class."""
        if position >= self.warmup_steps:
            return 1.0
        return (1.0 - math.cos(math.pi * position / self.warmup_steps)) / 2.0
