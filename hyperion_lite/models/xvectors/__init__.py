"""X-vectors on acoustic features.

The names are loaded on first use.
"""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "XVector": "hyperion_lite.models.xvectors.xvector",
    "XVectorOutput": "hyperion_lite.models.xvectors.xvector",
    "ResNet1dXVector": "hyperion_lite.models.xvectors.resnet1d_xvector",
    "ResNetXVector": "hyperion_lite.models.xvectors.resnet_xvector",
    "ConformerV1XVector": "hyperion_lite.models.xvectors.conformer_v1_xvector",
    "MHFAXVector": "hyperion_lite.models.xvectors.mhfa_xvector",
    "ConvNext1dXVector": "hyperion_lite.models.xvectors.convnext1d_xvector",
    "ConvNext2dXVector": "hyperion_lite.models.xvectors.convnext2d_xvector",
    "TDNNXVector": "hyperion_lite.models.xvectors.tdnn_xvector",
    "ETDNNXVector": "hyperion_lite.models.xvectors.etdnn_xvector",
    "RebuildReport": "hyperion_lite.models.xvectors.output_layers",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
