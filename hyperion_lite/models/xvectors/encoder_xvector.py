"""X-vectors whose class says what kind of encoder they have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.net_arch import NetArch


class EncoderXVector(XVector, abstract=True):
    """Base of the x-vectors with one kind of encoder, whose configuration lies under :attr:`encoder_key`.

    A subclass sets ``encoder_key``, names the class of the encoder under that key in ``nested_configs``, and calls
    :meth:`make_encoder` in its constructor.
    """

    config_exclude: ClassVar[Collection[str]] = ("encoder_cfg",)

    @classmethod
    def make_encoder(cls, config: Mapping[str, Any] | NetArch) -> Any:
        """The encoder that ``config`` describes; an encoder is taken as it is."""
        encoder_class = cls.nested_configs[str(cls.encoder_key)]
        return config if isinstance(config, encoder_class) else encoder_class.from_config(config)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments as plain JSON types, and ``class_name``."""
        config = super().get_config()
        # this model has one kind of encoder: its class name would say nothing
        config[str(self.encoder_key)].pop("class_name", None)
        return config
