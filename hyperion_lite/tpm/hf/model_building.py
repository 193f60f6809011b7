"""Making transformers modules of the architecture keys of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from hyperion_lite.core.config import ConfigField, to_plain, type_problem
from hyperion_lite.core.errors import ConfigError, HyperionLiteError
from hyperion_lite.tpm.hf.transformers_import import import_transformers

_SIZES_AT_LEAST_ONE = ("conv_kernel", "conv_stride", "conv_dim")


def transformers_class(address: str) -> Any:
    """The class at ``module:name`` below ``transformers.models``."""
    module, _, name = address.partition(":")
    return getattr(import_transformers(f"models.{module}"), name)


def architecture_of(
    document: Mapping[str, Any], config_class: str, fields: Mapping[str, ConfigField], where: object
) -> dict[str, Any]:
    """Architecture keys out of a ``config.json``, which leaves out what equals the default of transformers.

    Args:
        document: its content.
        config_class: address of the configuration class.
        fields: the architecture keys that the encoder has.
        where: for messages.

    Raises:
        ConfigError: a value is ill-typed or refused by transformers.
    """
    cls = transformers_class(config_class)
    config = _guarded(lambda: cls.from_dict(dict(document)), where)
    found: dict[str, Any] = {}
    for name, field in fields.items():
        value = to_plain(getattr(config, name, field.default), f"{where}: {name}")
        problem = type_problem(field, value)
        if problem:
            raise ConfigError(f"{where}: {name}: {problem}")
        found[name] = value
    return found


def build_model(architecture: Mapping[str, Any], config_class: str, model_class: str, where: object) -> nn.Module:
    """The transformers module, with random weights.

    Raises:
        ConfigError: transformers refuses the architecture.
    """
    for key in _SIZES_AT_LEAST_ONE:
        values = architecture.get(key)
        if values is not None and (not values or min(values) < 1):
            raise ConfigError(f"{where}: {key} must be a list of numbers from 1 on, got {values}")
    config_type, model_type = transformers_class(config_class), transformers_class(model_class)
    return _guarded(lambda: model_type(config_type(**architecture)), where)


def _guarded(make: Any, where: object) -> Any:
    try:
        return make()
    except HyperionLiteError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ConfigError(f"{where}: transformers refuses the architecture: {error}") from error
    except Exception as error:
        # newer releases check configurations with an error class of huggingface_hub, which older ones do not have
        if "Strict" in type(error).__name__:
            raise ConfigError(f"{where}: transformers refuses the architecture: {error}") from error
        raise
