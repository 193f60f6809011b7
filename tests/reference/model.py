"""A whole model by its configuration: canonical keys, then front end, encoder, projection, pooling and head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tests.reference import conformer, convnext, heads, resnet1d, resnet2d
from tests.reference.front_end import front_end
from tests.reference.parts import conv, normalise
from tests.reference.pooling import pool
from tests.reference.tensors import Scope, Tensors

NEGATED = {
    "wo_norm": "use_norm",
    "norm_after": "norm_before",
    "no_maxpool": "do_maxpool",
    "wo_bias": "use_bias",
    "no_norm_mean": "norm_mean",
}


def canonical(config: Any) -> Any:
    """Old spellings to the present ones, everywhere."""
    if not isinstance(config, Mapping):
        return config
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in NEGATED:
            found[NEGATED[key]] = not value
        elif key == "context":
            found.update({} if value is None else {"left_context": value, "right_context": value})
        elif key == "s":
            found["cos_scale"] = value
        elif key == "pool_net" and isinstance(value, str):
            found[key] = canonical({"pool_type": value})
        elif key == "pool_type":
            found[key] = value.replace("mean-stddev", "mean+stddev")
        else:
            found[key] = canonical(value)
    return found


def clean_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Prefixes of wrappers off, weight-norm names as they were."""
    found = {}
    for name, value in state.items():
        while name.startswith("module."):
            name = name.removeprefix("module.")
        name = name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        )
        if name != "n_averaged":
            found[name] = value
    return found


def x_vector(t: Scope, x: Tensor, config: dict[str, Any], class_name: str) -> tuple[list[Tensor], Tensor]:
    """Features (B, F, T) -> embedding by embed layer, logits."""
    cfg = {**heads.DEFAULTS, **config}
    if class_name == "ResNet1dXVector":
        x = resnet1d.encode(t / "encoder_net", x, cfg["resnet_enc"])
    elif class_name == "ConformerV1XVector":
        x = conformer.encode(t / "encoder_net", x, cfg["encoder"])
    elif class_name.startswith("ConvNext"):
        x = convnext.encode(t / "encoder_net", x, cfg["convnext_enc"], two=class_name == "ConvNext2dXVector")
    else:
        x = resnet2d.encode(t / "encoder_net", x, config, cfg)
    if cfg["proj_feats"] is not None:
        x = conv(t / "proj" / "conv1", x, cfg["proj_feats"])
        if cfg["use_norm"]:
            x = normalise(t / "proj" / "bn1", None, x, 1)
    pool_net = cfg["pool_net"]
    x = pool(t / "pool_net", x, {"pool_type": pool_net} if isinstance(pool_net, str) else pool_net)
    if cfg["head_type"] == "dino":
        return heads.dino(t, x, cfg)
    return heads.classify(t / "classif_net", x, cfg)


def run(tensors: Tensors, x: Tensor, config: dict[str, Any], rules: str = "legacy") -> tuple[list[Tensor], Tensor]:
    """Waveforms (B, S) for ``Wav2...`` classes, features (B, F, T) otherwise -> embedding by embed layer, logits."""
    cfg, root = canonical(config), Scope(tensors)
    x = x.to(tensors.dtype)
    class_name = cfg["class_name"]
    if not class_name.startswith("Wav2"):
        return x_vector(root, x, cfg, class_name)
    x = front_end(root / "feats", x, cfg["feats"], rules)
    return x_vector(root / "xvector", x, cfg["xvector"], class_name.removeprefix("Wav2"))
