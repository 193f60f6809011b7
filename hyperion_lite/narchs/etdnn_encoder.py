"""The extended time-delay network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyperion_lite.narchs.tdnn_encoder import TDNNEncoder


class ETDNNEncoder(TDNNEncoder):
    """Extended time-delay network of Snyder et al. (2019, doi:10.1109/ICASSP.2019.8683760): deeper, with a wider context.

    Layers that see the frames t-2 ... t+2, {t-2, t, t+2}, {t-3, t, t+3} and {t-4, t, t+4} alternate with layers on single frames; two more
    of these follow, the last one wide. It sees 23 input frames. The arguments are those of
    :class:`~hyperion_lite.narchs.tdnn_encoder.TDNNEncoder` with other defaults.

    Args:
        in_feats: features per input frame.
        channels: output channels of the layers; their number is the number of layers.
        kernel_sizes: kernel sizes, one value or one for each layer.
        dilations: dilations, one value or one for each layer.
        options: the other arguments of :class:`~hyperion_lite.narchs.tdnn_encoder.TDNNEncoder`, by name.

    Raises:
        ValueError: arguments that do not fit together; says which and why.
    """

    def __init__(
        self,
        in_feats: int,
        channels: Sequence[int] = (512, 512, 512, 512, 512, 512, 512, 512, 512, 1500),
        kernel_sizes: int | Sequence[int] = (5, 1, 3, 1, 3, 1, 3, 1, 1, 1),
        dilations: int | Sequence[int] = (1, 1, 2, 1, 3, 1, 4, 1, 1, 1),
        **options: Any,
    ) -> None:
        super().__init__(in_feats, channels, kernel_sizes, dilations, **options)
