"""Measures of classification and verification: accuracy, DET curve, equal error rate, detection costs."""

from hyperion_lite.metrics.accuracy import categorical_accuracy
from hyperion_lite.metrics.verification import (
    DetCurve,
    act_dcf,
    det_curve,
    equal_error_rate,
    min_dcf,
    rocch,
)

__all__ = ["DetCurve", "act_dcf", "categorical_accuracy", "det_curve", "equal_error_rate", "min_dcf", "rocch"]
