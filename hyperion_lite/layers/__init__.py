"""Primitive layers: acoustic features, normalisation, augmentation, pooling, output layers.

The names are loaded on first use.
"""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "AudioFeatsFactory": "hyperion_lite.layers.audio_feats_factory",
    "MeanVarianceNorm": "hyperion_lite.layers.mean_var_norm",
    "SpecAugment": "hyperion_lite.layers.spec_augment",
    "BatchNorm1d": "hyperion_lite.layers.batch_norm",
    "BatchNorm2d": "hyperion_lite.layers.batch_norm",
    "make_norm": "hyperion_lite.layers.norm",
    "make_activation": "hyperion_lite.layers.activation",
    "GlobalPool1dFactory": "hyperion_lite.layers.pool_factory",
    "GlobalPool1d": "hyperion_lite.layers.pool_stats",
    "MHFAPool1d": "hyperion_lite.layers.mhfa",
    "FeatFuserFactory": "hyperion_lite.layers.feat_fuser",
    "ArcLossOutput": "hyperion_lite.layers.margin_losses",
    "CosLossOutput": "hyperion_lite.layers.margin_losses",
    "SoftmaxOutput": "hyperion_lite.layers.margin_losses",
    "SubCenterArcLossOutput": "hyperion_lite.layers.margin_losses",
    "make_output_layer": "hyperion_lite.layers.margin_losses",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
