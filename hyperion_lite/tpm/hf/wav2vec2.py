"""wav2vec 2.0."""

from __future__ import annotations

from typing import Any

from hyperion_lite.tpm.hf.conv_encoder import HFConvEncoder


class HFWav2Vec2(HFConvEncoder):
    """wav2vec 2.0, and what has its architecture (XLS-R, MMS).

    Args:
        add_adapter: reduce the frame rate of the last hidden state by strided convolutions.
        adapter_kernel_size: their kernel size.
        adapter_stride: their stride.
        num_adapter_layers: their number.
        output_hidden_size: features behind them; ``None`` for hidden_size.
        adapter_attn_dim: width of small adapters inside each layer, with stable layer norm only; ``None`` for none.

    Reference: Baevski et al., "wav2vec 2.0: a framework for self-supervised learning of speech representations", 2020.
    """

    own_config_keys = (*HFConvEncoder.own_config_keys, "adapter_attn_dim")
    model_type = "wav2vec2"
    transformers_classes = (
        "wav2vec2.configuration_wav2vec2:Wav2Vec2Config",
        "wav2vec2.modeling_wav2vec2:Wav2Vec2Model",
    )
    weight_prefixes = ("wav2vec2.",)

    def __init__(
        self,
        add_adapter: bool = False,
        adapter_kernel_size: int = 3,
        adapter_stride: int = 2,
        num_adapter_layers: int = 3,
        output_hidden_size: int | None = None,
        adapter_attn_dim: int | None = None,
        **conv_encoder: Any,
    ) -> None:
        own = {
            "add_adapter": add_adapter,
            "adapter_kernel_size": adapter_kernel_size,
            "adapter_stride": adapter_stride,
            "num_adapter_layers": num_adapter_layers,
            "output_hidden_size": output_hidden_size,
            "adapter_attn_dim": adapter_attn_dim,
        }
        super().__init__(more_architecture=own, **conv_encoder)
