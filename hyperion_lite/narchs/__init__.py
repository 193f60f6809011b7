"""Architectures: encoders, front ends and heads that models are assembled from."""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "NetArch": "hyperion_lite.narchs.net_arch",
    "ResNet1dEncoder": "hyperion_lite.narchs.resnet1d_encoder",
    "ResNet": "hyperion_lite.narchs.resnet",
    "ConformerEncoderV1": "hyperion_lite.narchs.conformer_encoder_v1",
    "ConvNext1dEncoder": "hyperion_lite.narchs.convnext1d_encoder",
    "ConvNext2dEncoder": "hyperion_lite.narchs.convnext2d_encoder",
    "TDNNEncoder": "hyperion_lite.narchs.tdnn_encoder",
    "ETDNNEncoder": "hyperion_lite.narchs.etdnn_encoder",
    "AudioFeatsMVN": "hyperion_lite.narchs.audio_feats_mvn",
    "FeatFuserMVN": "hyperion_lite.narchs.feat_fuser_mvn",
    "IdentityEncoder": "hyperion_lite.narchs.identity_encoder",
    "ClassifHead": "hyperion_lite.narchs.classif_head",
    "DINOHead": "hyperion_lite.narchs.dino_head",
}

__all__ = list(_PUBLIC)

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
