"""Reads files written by `torch.save` without torch and without executing anything in them.

with open_pth("model.pth") as file:
    file.root                        # what was saved, as plain values
    file.tensors["encoder.weight"]   # dtype, shape, stride, storage
    file.read_tensor("encoder.weight")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.errors import (
    PthError,
    PthFormatError,
    PthLimitError,
    PthTruncatedError,
    PthUnsupportedError,
)
from hyperion_lite.pth.file import PthFile, open_pth
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.tree import TensorMap
from hyperion_lite.pth.values import (
    GlobalRef,
    NestedTensor,
    NumpyDType,
    Opaque,
    QuantizedTensor,
    SparseTensor,
    StorageRef,
    TensorNode,
    TensorRef,
)

if TYPE_CHECKING:
    from hyperion_lite.pth.convert import ConversionReport, quantize_to_safetensors, to_npz, to_safetensors
    from hyperion_lite.pth.quantize import (
        ChannelRanges,
        Int8Tensor,
        channel_ranges,
        conv1d_to_channels_last,
        dequantize_int8,
        quantize_int8,
    )
    from hyperion_lite.pth.views import ShapeProblem, VoiceModelInfo, voice_model_info
    from hyperion_lite.pth.voice_layout import VoiceConfig
    from hyperion_lite.pth.weight_norm import fuse_weight_norm

__all__ = [
    "ChannelRanges",
    "ConversionReport",
    "GlobalRef",
    "Int8Tensor",
    "Limits",
    "NestedTensor",
    "NumpyDType",
    "Opaque",
    "PthError",
    "PthFile",
    "PthFormatError",
    "PthLimitError",
    "PthTruncatedError",
    "PthUnsupportedError",
    "QuantizedTensor",
    "ShapeProblem",
    "SparseTensor",
    "StorageRef",
    "TensorMap",
    "TensorNode",
    "TensorRef",
    "VoiceConfig",
    "VoiceModelInfo",
    "channel_ranges",
    "conv1d_to_channels_last",
    "dequantize_int8",
    "fuse_weight_norm",
    "open_pth",
    "quantize_int8",
    "quantize_to_safetensors",
    "to_npz",
    "to_safetensors",
    "voice_model_info",
]

# these modules need numpy, which opening and listing a file do not
_LATER = {
    "ConversionReport": "convert",
    "quantize_to_safetensors": "convert",
    "to_npz": "convert",
    "to_safetensors": "convert",
    "ChannelRanges": "quantize",
    "Int8Tensor": "quantize",
    "channel_ranges": "quantize",
    "conv1d_to_channels_last": "quantize",
    "dequantize_int8": "quantize",
    "quantize_int8": "quantize",
    "ShapeProblem": "views",
    "VoiceModelInfo": "views",
    "voice_model_info": "views",
    "VoiceConfig": "voice_layout",
    "fuse_weight_norm": "weight_norm",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
