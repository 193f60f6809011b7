"""Manifests: tables of recordings, segments, classes, enrolments and trials, and the data set that names them."""

from hyperion_lite.data.manifests.class_info import ClassInfo
from hyperion_lite.data.manifests.enrollment_map import EnrollmentMap
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset, load_trials
from hyperion_lite.data.manifests.info_table import InfoTable
from hyperion_lite.data.manifests.recording_set import RecordingSet
from hyperion_lite.data.manifests.segment_set import SegmentSet
from hyperion_lite.data.manifests.trials import TrialKey, TrialNdx
from hyperion_lite.data.manifests.vad_set import VADSet
from hyperion_lite.data.manifests.validation_split import split_validation

__all__ = [
    "ClassInfo",
    "EnrollmentMap",
    "HyperDataset",
    "InfoTable",
    "RecordingSet",
    "SegmentSet",
    "TrialKey",
    "TrialNdx",
    "VADSet",
    "load_trials",
    "split_validation",
]
