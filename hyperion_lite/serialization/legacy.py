"""Configurations and tensor names of older releases of the original toolkit, brought to the present spelling."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

from hyperion_lite.serialization.conformer_names import modernise_conv_positions

_T = TypeVar("_T")

_NEGATED = {"wo_norm": "use_norm", "norm_after": "norm_before", "no_maxpool": "do_maxpool"}
_ENCODER_KEYS = ("resnet_enc", "encoder", "convnext_enc", "encoder_cfg")
_POOL_ALIASES = {"ch-wise-att-mean-stddev": "ch-wise-att-mean+stddev"}
_SE_PREFIXES = {"cw-se": "se", "t-se": "tse", "fw-se": "fwse", "cfw-se": "cfwse"}


def modernise_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a model configuration with old keys renamed.

    Args:
        config: plain configuration with ``class_name``.
    """
    modern: dict[str, Any] = copy.deepcopy(dict(config))
    class_name = str(modern.get("class_name", ""))
    if isinstance(modern.get("xvector"), dict):
        _modernise_xvector(modern["xvector"])
    elif class_name.endswith("XVector") and not class_name.startswith(("Wav2", "HF")):
        _modernise_xvector(modern)
    for key in ("feats", "feat_fuser"):
        part = modern.get(key)
        if isinstance(part, dict) and isinstance(part.get("mvn"), dict):
            _modernise_mvn(part["mvn"])
    if isinstance(modern.get("hf_feats"), dict):
        # of no effect since long, for transformers neither
        modern["hf_feats"].pop("resume_download", None)
    if class_name.startswith("HF") and "feat_fusion_method" in modern:
        method = modern.pop("feat_fusion_method")
        modern.setdefault("feat_fuser", {"feat_fuser": {"fuser_type": method}, "mvn": None, "spec_augment": None})
    return modern


def _negate(config: MutableMapping[str, Any], table: Mapping[str, str]) -> None:
    for old, new in table.items():
        if old in config:
            value = config.pop(old)
            config.setdefault(new, not value)


def _modernise_xvector(config: dict[str, Any]) -> None:
    if "s" in config:
        config.setdefault("cos_scale", config.pop("s"))
        config.pop("s", None)
    _negate(config, _NEGATED)
    encoders = [config[key] for key in _ENCODER_KEYS if isinstance(config.get(key), dict)]
    for encoder in encoders:
        _negate(encoder, _NEGATED)
    if encoders:
        if any("in_feats" in encoder for encoder in encoders) or "convnext_enc" not in config:
            # the encoder's own configuration has it, but for the 2-D ConvNeXt
            config.pop("in_feats", None)
    else:
        _modernise_squeeze_excitation(config)
    pool = config.get("pool_net")
    if isinstance(pool, str):
        config["pool_net"] = pool = {"pool_type": pool}
    if isinstance(pool, dict):
        _negate(pool, {"wo_bias": "use_bias"})
        name = pool.get("pool_type")
        if isinstance(name, str):
            pool["pool_type"] = _POOL_ALIASES.get(name, name)


def _modernise_squeeze_excitation(config: dict[str, Any]) -> None:
    kind = config.pop("se_type", None)
    if config.pop("time_se", False):
        kind = kind or "t-se"
    resnet_type = config.get("resnet_type")
    if isinstance(kind, str) and kind in _SE_PREFIXES and isinstance(resnet_type, str) and resnet_type.startswith("se"):
        config["resnet_type"] = _SE_PREFIXES[kind] + resnet_type[2:]


def _modernise_mvn(config: dict[str, Any]) -> None:
    _negate(config, {"no_norm_mean": "norm_mean"})
    if "context" in config:
        context = config.pop("context")
        if context is not None:
            config["left_context"] = config["right_context"] = context


def modernise_tensor_names(
    class_name: str, config: Mapping[str, Any], state: Mapping[str, _T]
) -> tuple[dict[str, Any], OrderedDict[str, _T]]:
    """Bring tensors with a name of another release to the present names: bare fusion layers, convolutions that encode positions.

    Args:
        class_name: of the model.
        config: the configuration as stored, before :func:`modernise_config`.
        state: the tensors as stored, wrapper prefixes stripped.

    Returns:
        The modernised configuration and the renamed tensors.
    """
    modern = modernise_config(config)
    renamed: OrderedDict[str, _T] = OrderedDict(state)
    if class_name.startswith("HF") and isinstance(modern.get("hf_feats"), dict):
        # the file has the encoder: it must not send anybody to the hub, nor into another directory
        modern["hf_feats"]["ignore_pretrained"] = True
    if class_name.startswith("HF") and "feat_fusion_method" in config:
        pairs = {"feat_fuser": "feat_fuser.feat_fuser.feat_fuser"}
        pairs.update({f"feat_fuser.{leaf}": f"feat_fuser.feat_fuser.feat_fuser.{leaf}" for leaf in ("weight", "bias")})
        renamed = OrderedDict((pairs.get(name, name), value) for name, value in state.items())
        fuser = modern["feat_fuser"]["feat_fuser"]
        if fuser.get("fuser_type") == "cat" and "feat_fuser.bias" not in state:
            fuser["proj_bias"] = False
    if class_name.endswith("ConformerV1XVector"):
        renamed = modernise_conv_positions(modern, renamed)
    return modern, renamed
