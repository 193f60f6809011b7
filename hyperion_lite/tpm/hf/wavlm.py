"""WavLM."""

from __future__ import annotations

from typing import Any

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.tpm.hf.attention import GatedPositionAttention
from hyperion_lite.tpm.hf.conv_encoder import HFConvEncoder


class HFWavLM(HFConvEncoder):
    """WavLM.

    Args:
        add_adapter: reduce the frame rate of the last hidden state by strided convolutions.
        adapter_kernel_size: their kernel size.
        adapter_stride: their stride.
        num_adapter_layers: their number.
        output_hidden_size: features behind them; ``None`` for hidden_size.
        num_buckets: entries of the table of the relative position bias.
        max_bucket_distance: frames from which on all distances share an entry.

    Reference: Chen et al., "WavLM: large-scale self-supervised pre-training for full stack speech processing", 2022.
    """

    own_config_keys = (*HFConvEncoder.own_config_keys, "num_buckets", "max_bucket_distance")
    attention_class = GatedPositionAttention
    model_type = "wavlm"
    transformers_classes = ("wavlm.configuration_wavlm:WavLMConfig", "wavlm.modeling_wavlm:WavLMModel")
    weight_prefixes = ("wavlm.",)

    def __init__(
        self,
        add_adapter: bool = False,
        adapter_kernel_size: int = 3,
        adapter_stride: int = 2,
        num_adapter_layers: int = 3,
        output_hidden_size: int | None = None,
        num_buckets: int = 320,
        max_bucket_distance: int = 800,
        **conv_encoder: Any,
    ) -> None:
        own = {
            "add_adapter": add_adapter,
            "adapter_kernel_size": adapter_kernel_size,
            "adapter_stride": adapter_stride,
            "num_adapter_layers": num_adapter_layers,
            "output_hidden_size": output_hidden_size,
            "num_buckets": num_buckets,
            "max_bucket_distance": max_bucket_distance,
        }
        super().__init__(more_architecture=own, **conv_encoder)

    def _fix_architecture(self, architecture: dict[str, Any], drop_layers_gt: int | None) -> None:
        super()._fix_architecture(architecture, drop_layers_gt)
        buckets, distance = architecture["num_buckets"], architecture["max_bucket_distance"]
        # a quarter of the entries: the short distances of one direction, one by one; long ones must follow in logarithmic steps
        if buckets < 4 or distance <= buckets // 4:
            raise ConfigError(
                f"num_buckets must be at least 4 and max_bucket_distance above a quarter of it, got {buckets} and {distance}"
            )
