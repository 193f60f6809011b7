"""Manifests: tables of recordings, segments, classes, enrolments and trials, and the data set that names them."""

from hyperion_lite.data.manifests.class_info import ClassInfo
from hyperion_lite.data.manifests.info_table import InfoTable
from hyperion_lite.data.manifests.recording_set import RecordingSet
from hyperion_lite.data.manifests.segment_set import SegmentSet

__all__ = ["ClassInfo", "InfoTable", "RecordingSet", "SegmentSet"]
