"""HuBERT."""

from __future__ import annotations

from typing import Any

from hyperion_lite.tpm.hf.conv_encoder import HFConvEncoder


class HFHubert(HFConvEncoder):
    """HuBERT.

    Args:
        feat_proj_layer_norm: normalise the features before they are projected.
        conv_pos_batch_norm: batch norm in front of the positional convolution, instead of its weight norm.

    Reference: Hsu et al., "HuBERT: self-supervised speech representation learning by masked prediction of hidden units", 2021.
    """

    own_config_keys = (*HFConvEncoder.own_config_keys, "feat_proj_layer_norm", "conv_pos_batch_norm")
    model_type = "hubert"
    transformers_classes = ("hubert.configuration_hubert:HubertConfig", "hubert.modeling_hubert:HubertModel")
    weight_prefixes = ("hubert.",)

    def __init__(
        self, feat_proj_layer_norm: bool = True, conv_pos_batch_norm: bool = False, **conv_encoder: Any
    ) -> None:
        own = {"feat_proj_layer_norm": feat_proj_layer_norm, "conv_pos_batch_norm": conv_pos_batch_norm}
        super().__init__(more_architecture=own, **conv_encoder)
