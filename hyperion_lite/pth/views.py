"""Known kinds of checkpoints as named fields, over the generic values that a file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.errors import PthFormatError, PthUnsupportedError, shorten
from hyperion_lite.pth.values import TensorRef
from hyperion_lite.pth.voice_layout import (
    PHONE_WIDTHS,
    PITCH_TENSORS,
    VOICE_FIELDS,
    Shape,
    VoiceConfig,
    expected_shapes,
    parse_voice_config,
    posterior_shapes,
)
from hyperion_lite.pth.weight_norm import split_weight_norm_name

if TYPE_CHECKING:
    from hyperion_lite.pth import PthFile

_NAMED = ("weight", "config", "info", "sr", "f0", "version")
_SHOWN_PROBLEMS = 8


@dataclass(frozen=True)
class ShapeProblem:
    """A tensor that contradicts the configuration.

    Attributes:
        name: the tensor, as the file spells it.
        expected: its shape by the configuration, or None when the configuration has no such tensor.
        found: its shape in the file, or None when it is missing.
    """

    name: str
    expected: Shape | None
    found: Shape | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.name}: missing, expected {list(self.expected or ())}"
        if self.expected is None:
            return f"{self.name}: present with pitch guidance off"
        return f"{self.name}: expected {list(self.expected)}, found {list(self.found)}"


@dataclass(frozen=True)
class VoiceModelInfo:
    """A voice-conversion inference checkpoint with its fields named.

    Attributes:
        version: "v1" or "v2" (or a later label); "v1" where the file does not say.
        f0: pitch guidance; on where the file does not say.
        sr: sample-rate label as saved ("40k", 40000), or None.
        sample_rate: sample rate in Hz, from the label or else from the configuration; None when neither can be understood.
        info: training label as saved, or None.
        config: the positional configuration, named.
        config_extra: entries of the configuration after the last known one.
        extra: fields of the file other than the known ones, as generic values.
        tensors: tensor name (without the field name ``weight``) -> reference.
        path: the file, or None.
    """

    version: str
    f0: bool
    sr: Any
    sample_rate: int | None
    info: Any
    config: VoiceConfig
    config_extra: tuple[Any, ...]
    extra: Mapping[Any, Any]
    tensors: Mapping[str, TensorRef] = field(repr=False)
    path: str | None = None

    @property
    def phone_width(self) -> int | None:
        """Input width of the phone embedding that the version implies; None for an unknown version."""
        return PHONE_WIDTHS.get(self.version)

    def problems(self, complete: bool = False) -> list[ShapeProblem]:
        """List the tensors that contradict the configuration.

        Either spelling of weight normalisation, and layers whose normalisation was fused, are understood. Tensors that the known
        architecture does not have are left alone, except those of pitch guidance in a checkpoint that says it has none.

        Args:
            complete: whether a missing tensor is a problem too.
        """
        expected = expected_shapes(self.config, self.phone_width, self.f0)
        seen: set[str] = set()
        found = []
        known = {**expected, **posterior_shapes(self.config)}
        for name, tensor in self.tensors.items():
            canonical = _canonical(name)
            seen.add(canonical)
            shape = known.get(canonical)
            if shape is None and f"{canonical}_v" in known:
                seen.update((f"{canonical}_v", f"{canonical}_g"))
                shape = known[f"{canonical}_v"]
            if shape is not None:
                if tuple(tensor.shape) != shape:
                    found.append(ShapeProblem(name, shape, tuple(tensor.shape)))
            elif not self.f0 and canonical.startswith(PITCH_TENSORS):
                found.append(ShapeProblem(name, None, tuple(tensor.shape)))
        if complete:
            found.extend(ShapeProblem(name, shape, None) for name, shape in expected.items() if name not in seen)
        return found

    def unknown_tensors(self) -> list[str]:
        """Names of the tensors that the known architecture does not have."""
        known = {**expected_shapes(self.config, None, True), **posterior_shapes(self.config)}
        known["enc_p.emb_phone.weight"] = ()
        names = []
        for name in self.tensors:
            canonical = _canonical(name)
            if canonical not in known and f"{canonical}_v" not in known:
                names.append(name)
        return names

    def validate(self, complete: bool = False) -> None:
        """Check the tensor shapes against the configuration.

        Args:
            complete: whether a missing tensor is an error too.

        Raises:
            PthFormatError: shapes contradict the configuration; the message lists the tensors with both shapes.
        """
        found = self.problems(complete)
        if found:
            shown = "; ".join(str(problem) for problem in found[:_SHOWN_PROBLEMS])
            more = f"; and {len(found) - _SHOWN_PROBLEMS} more" if len(found) > _SHOWN_PROBLEMS else ""
            message = f"{len(found)} of {len(self.tensors)} tensors contradict the configuration: {shown}{more}"
            raise PthFormatError(message, path=self.path)


def voice_model_info(file: PthFile) -> VoiceModelInfo:
    """Name the fields of a voice-conversion inference checkpoint.

    The positional ``config`` is, in order, what :class:`VoiceConfig` lists. A missing ``version`` means v1, a missing ``f0`` means
    that pitch guidance is on.

    Raises:
        PthUnsupportedError: the file is something else (a training checkpoint of the same family has no ``config``).
        PthFormatError: a field is there but malformed; the message names it.
    """
    root = file.root
    path = file.path
    if not isinstance(root, Mapping):
        raise PthUnsupportedError(
            f"not a voice model: the file holds a {type(root).__name__}, not a dictionary", path=path
        )
    weights, config = root.get("weight"), root.get("config")
    if not isinstance(weights, Mapping) or config is None:
        raise PthUnsupportedError(_not_a_voice_model(root), path=path)
    tensors = {name: value for name, value in weights.items() if isinstance(name, str) and isinstance(value, TensorRef)}
    try:
        named = parse_voice_config(config)
        f0 = _switch(root.get("f0", 1))
        version = _version(root.get("version"))
    except ValueError as error:
        raise PthFormatError(str(error), path=path) from error
    label = root.get("sr")
    return VoiceModelInfo(
        version=version,
        f0=f0,
        sr=label,
        sample_rate=_sample_rate(label) or _sample_rate(named.sr),
        info=root.get("info"),
        config=named,
        config_extra=tuple(config[len(VOICE_FIELDS) :]),
        extra={key: value for key, value in root.items() if key not in _NAMED},
        tensors=tensors,
        path=path,
    )


def _not_a_voice_model(root: Mapping[Any, Any]) -> str:
    keys = ", ".join(shorten(key, 30) for key in list(root)[:_SHOWN_PROBLEMS]) or "nothing"
    if "model" in root and "config" not in root:
        return (
            f"a training checkpoint without a 'config' (it holds {keys}); voice-model information is in the inference checkpoint "
            "that is extracted from it, with 'weight' and 'config'"
        )
    missing = [name for name in ("weight", "config") if root.get(name) is None]
    if not missing:
        return f"not a voice model: 'weight' is a {type(root['weight']).__name__}, not a state dictionary"
    return f"not a voice model: {' and '.join(map(repr, missing))} missing (the file holds {keys})"


def _canonical(name: str) -> str:
    # the older spelling is the one that the layout is written in
    split = split_weight_norm_name(name)
    return f"{split[0]}_{split[1]}" if split else name


def _version(value: Any) -> str:
    if value is None:
        return "v1"
    if isinstance(value, str):
        return value
    raise ValueError(f"'version' is {shorten(value)}; expected a label such as 'v1' or 'v2'")


def _switch(value: Any) -> bool:
    if isinstance(value, bool | int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip() in ("0", "1"):
        return value.strip() == "1"
    raise ValueError(f"'f0' is {shorten(value)}; expected 0 or 1")


def _sample_rate(label: Any) -> int | None:
    """Hz out of 40000, "40000", "40k" or "44.1kHz"."""
    if isinstance(label, int) and not isinstance(label, bool):
        return label if label > 0 else None
    if not isinstance(label, str) or len(label) > 16:
        return None
    text = label.strip().lower().removesuffix("hz").rstrip()
    factor = 1000 if text.endswith("k") else 1
    number = text.removesuffix("k").rstrip()
    if not number.replace(".", "", 1).isdecimal() or not number.isascii():
        return None
    return round(float(number) * factor) or None
