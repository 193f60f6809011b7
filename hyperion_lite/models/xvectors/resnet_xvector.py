"""``ResNetXVector``: x-vector with a 2-D residual encoder."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.resnet import ResNet

_SHARED_KEYS = ("hid_act", "norm_layer", "norm_before", "dropout_rate")


class ResNetXVector(XVector):
    """X-vector with a 2-D residual encoder. ``hid_act``, ``norm_layer``, ``norm_before`` and ``dropout_rate`` hold for encoder and head.

    Args:
        resnet_type: name of the variant, see :class:`~hyperion_lite.narchs.resnet.ResNet`. Some variants fix ``conv_channels``,
            ``base_channels`` or ``groups``; the configuration says the fixed value then.
        in_feats: features per input frame.
        num_classes: number of classes.
        in_channels: channels of the input.
        conv_channels: channels of the first convolution.
        base_channels: width of the first layer.
        in_kernel_size: kernel size of the first convolution.
        in_stride: its stride in frequency and time.
        zero_init_residual: start the residual branches at zero.
        groups: groups of the 3x3 convolutions.
        replace_stride_with_dilation: for each of layers 2 to 4, dilate instead of striding.
        do_maxpool: max-pool after the first convolution.
        in_norm: norm on the input.
        se_r: reduction of squeeze-excitation.
        res2net_scale: number of Res2Net groups.
        res2net_width_factor: width of the Res2Net groups together, relative to the channels.
        freq_pos_enc: add a trained vector over frequencies to the input of every block.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.
    """

    config_exclude: ClassVar[Collection[str]] = ("encoder_cfg",)
    encoder_key: ClassVar[str | None] = None
    norm_before_is_heads: ClassVar[bool] = False

    def __init__(
        self,
        resnet_type: str,
        in_feats: int,
        num_classes: int,
        in_channels: int = 1,
        conv_channels: int = 64,
        base_channels: int = 64,
        in_kernel_size: int = 7,
        in_stride: int = 1,
        zero_init_residual: bool = False,
        groups: int = 1,
        replace_stride_with_dilation: list[bool] | None = None,
        do_maxpool: bool = False,
        in_norm: bool = False,
        se_r: int = 16,
        res2net_scale: int = 4,
        res2net_width_factor: float = 1,
        freq_pos_enc: bool = False,
        **options: Any,
    ) -> None:
        encoder = ResNet(
            resnet_type,
            in_channels=in_channels,
            in_feats=in_feats,
            conv_channels=conv_channels,
            base_channels=base_channels,
            in_kernel_size=in_kernel_size,
            in_stride=in_stride,
            zero_init_residual=zero_init_residual,
            groups=groups,
            replace_stride_with_dilation=replace_stride_with_dilation,
            do_maxpool=do_maxpool,
            in_norm=in_norm,
            se_r=se_r,
            res2net_scale=res2net_scale,
            res2net_width_factor=res2net_width_factor,
            freq_pos_enc=freq_pos_enc,
            **{key: options[key] for key in _SHARED_KEYS if key in options},
        )
        super().__init__(encoder, num_classes, **options)
        fixed = encoder.get_config()
        self._update_config(**{key: fixed[key] for key in ("conv_channels", "base_channels", "groups")})
