"""From manifests on disk to batches: tables, audio reading, data sets, augmentation, samplers.

The main names are loaded on first use; nothing here imports models.
"""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "AudioDataset": "hyperion_lite.data.audio_dataset",
    "LegacyAudioDataset": "hyperion_lite.data.legacy_audio_dataset",
    "AudioReader": "hyperion_lite.data.audio_reader",
    "AudioData": "hyperion_lite.data.audio_reader",
    "AudioInfo": "hyperion_lite.data.audio_file",
    "HyperSampler": "hyperion_lite.data.hyper_sampler",
    "EmptySamplerError": "hyperion_lite.data.hyper_sampler",
    "SegSampler": "hyperion_lite.data.seg_sampler",
    "BucketingSegSampler": "hyperion_lite.data.bucketing_seg_sampler",
    "SegChunkSampler": "hyperion_lite.data.seg_chunk_sampler",
    "RandomSegChunkSampler": "hyperion_lite.data.random_seg_chunk_sampler",
    "ClassWeightedRandomSegChunkSampler": "hyperion_lite.data.class_weighted_random_seg_chunk_sampler",
    "SegSamplerFactory": "hyperion_lite.data.seg_sampler_factory",
    "SegmentKey": "hyperion_lite.data.keys",
    "ChunkKey": "hyperion_lite.data.keys",
    "make_loader": "hyperion_lite.data.loader",
    "HyperDataset": "hyperion_lite.data.manifests",
    "RecordingSet": "hyperion_lite.data.manifests",
    "SegmentSet": "hyperion_lite.data.manifests",
    "ClassInfo": "hyperion_lite.data.manifests",
    "EnrollmentMap": "hyperion_lite.data.manifests",
    "TrialKey": "hyperion_lite.data.manifests",
    "TrialNdx": "hyperion_lite.data.manifests",
    "VADSet": "hyperion_lite.data.manifests",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
