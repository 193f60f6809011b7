"""Pooling layers by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from hyperion_lite.core.config import Configurable, nearest, unknown_choice
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.mhfa import MHFAPool1d
from hyperion_lite.layers.pool_attention import GlobalChWiseAttMeanStdPool1d, LDEPool1d, ScaledDotProdAttV1Pool1d
from hyperion_lite.layers.pool_stats import GlobalAvgPool1d, GlobalMeanLogVarPool1d, GlobalMeanStdPool1d, GlobalPool1d

PoolType = Literal[
    "avg",
    "mean+stddev",
    "mean+logvar",
    "lde",
    "scaled-dot-prod-att-v1",
    "ch-wise-att-mean+stddev",
    "ch-wise-att-mean-stddev",
    "mhfa",
]

_CLASSES: Mapping[str, type[GlobalPool1d]] = {
    cls.pool_type: cls
    for cls in (
        GlobalAvgPool1d,
        GlobalMeanStdPool1d,
        GlobalMeanLogVarPool1d,
        LDEPool1d,
        ScaledDotProdAttV1Pool1d,
        GlobalChWiseAttMeanStdPool1d,
        MHFAPool1d,
    )
}
# another spelling, found in configurations
_ALIASES = {"ch-wise-att-mean-stddev": "ch-wise-att-mean+stddev"}


class GlobalPool1dFactory(Configurable):
    """Makes the pooling layer that a configuration names."""

    config_method = "create"

    @staticmethod
    def create(
        pool_type: PoolType = "mean+stddev",
        in_feats: int | None = None,
        inner_feats: int = 128,
        num_comp: int = 64,
        dist_pow: Literal[1, 2] = 2,
        use_bias: bool = False,
        num_heads: int = 8,
        d_k: int = 256,
        d_v: int = 256,
        bin_attn: bool = False,
        use_global_context: bool = True,
        dim: int = -1,
        keepdim: bool = False,
        num_layers: int = 1,
    ) -> GlobalPool1d:
        """Make a pooling layer; keys that its type does not use are ignored.

        Args:
            pool_type: avg, mean+stddev, mean+logvar, lde, scaled-dot-prod-att-v1, ch-wise-att-mean+stddev or mhfa.
            in_feats: number of input features; needed by the types with parameters, models fill it in.
            inner_feats: bottleneck dimension of ch-wise-att.
            num_comp: number of dictionary components of lde.
            dist_pow: power of the distance in lde.
            use_bias: whether lde components have a bias.
            num_heads: number of heads of scaled-dot-prod-att and mhfa.
            d_k: key dimension of a head; of all heads together in mhfa.
            d_v: value dimension of a head.
            bin_attn: sigmoid in place of softmax weights, in the attention types.
            use_global_context: whether the attention of ch-wise-att sees the item's mean and standard deviation.
            dim: time axis, -1 or 1.
            keepdim: keep the time axis with size one.
            num_layers: number of layers whose features mhfa finds beside each other; models fill it in.

        Returns:
            A module with ``forward(x, x_lengths=None)``, ``out_feats(in_feats)`` and ``get_config()``.

        Raises:
            ConfigError: unknown type, or ``in_feats`` missing where it is needed.
        """
        arguments = dict(locals())
        name = _ALIASES.get(arguments.pop("pool_type"), pool_type)
        if name not in _CLASSES:
            raise ConfigError(unknown_choice("pool_type", name, _CLASSES))
        cls = _CLASSES[name]
        used = inspect.signature(cls).parameters
        if "in_feats" in used and in_feats is None:
            raise ConfigError(f"pooling of type {name!r} needs in_feats, the number of input features")
        return cls(**{key: value for key, value in arguments.items() if key in used})

    @classmethod
    def create_for(cls, pool_net: str | Mapping[str, Any], in_feats: int) -> GlobalPool1d:
        """The pooling layer of a model: ``pool_net`` is a type name or a configuration, which is not changed.

        Raises:
            ConfigError: unknown type or key.
        """
        config: dict[str, Any] = {"pool_type": pool_net} if isinstance(pool_net, str) else dict(pool_net)
        config["in_feats"] = in_feats
        unknown = [key for key in config if key not in inspect.signature(cls.create).parameters]
        if unknown:
            known = inspect.signature(cls.create).parameters
            raise ConfigError("; ".join(f"pool_net: unknown key {key!r}{nearest(key, known)}" for key in unknown))
        return cls.create(**config)
