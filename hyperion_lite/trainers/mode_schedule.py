"""A schedule of train modes: the phases of one training run, as a configuration describes them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from hyperion_lite.core.config import Configurable, nearest
from hyperion_lite.core.errors import ConfigError

# changes that put new parameters into the place of old ones; ranks, averages and the optimizer are made for the parameters of a run
_REPLACING = ("loss_type", "num_subcenters")

LRSchedChoice = Literal["continue", "restart"]


class TrainingPhase(Configurable):
    """One phase, as it is written in ``trainer.phases``. What is not given stays as it was in the phase before.

    Args:
        start_epoch: epochs that are done when the phase begins. The first phase begins at once; each other one has one of both starts.
        start_step: optimizer steps that are done when the phase begins, also within an epoch.
        name: for the logs.
        train_mode: which parts learn, one of the model's ``valid_train_modes``.
        last_layers: of the encoder only so many of its last layers learn, beside everything behind it; 0 freezes the encoder. In place
            of ``train_mode``.
        optim: changes of ``trainer.optim``, for instance lr, layer_decay or weight_decay; not the type.
        lrsched: ``continue``: the schedule goes on from where it is; ``restart``: it begins anew, counting from here; or another schedule,
            counting from here, as in ``trainer.lrsched``.
        change: what changes in the model, as in ``finetune.change``: margins, dropout. A margin warm-up counts from here.
        sampler: changes of ``data.train.sampler``, for instance chunk lengths and batch sizes; needs ``start_epoch``.

    Raises:
        ConfigError: choices that exclude each other.
    """

    def __init__(
        self,
        start_epoch: int | None = None,
        start_step: int | None = None,
        name: str = "",
        train_mode: str | None = None,
        last_layers: int | None = None,
        optim: dict[str, Any] | None = None,
        lrsched: LRSchedChoice | dict[str, Any] = "continue",
        change: dict[str, Any] | None = None,
        sampler: dict[str, Any] | None = None,
    ) -> None:
        self.start_epoch, self.start_step = start_epoch, start_step
        self.name = name
        self.train_mode, self.last_layers = train_mode, last_layers
        self.optim, self.lrsched = dict(optim or {}), copy.deepcopy(lrsched)
        self.change, self.sampler = copy.deepcopy(change or {}), dict(sampler or {})
        if train_mode is not None and last_layers is not None:
            raise ConfigError(
                "train_mode and last_layers exclude each other: last_layers is full, without the lower part of the encoder"
            )
        if "opt_type" in self.optim:
            raise ConfigError("optim.opt_type cannot change, the state of one optimizer means nothing to another")
        if any("train_mode" in part for part in (self.change, *_mappings(self.change))):
            raise ConfigError("change: train_mode is a key of the phase itself")
        if self.sampler and start_epoch is None and start_step is not None:
            raise ConfigError("sampler needs start_epoch: the batches of an epoch are planned when it begins")

    def is_reached(self, epoch: int, step: int) -> bool:
        """Whether ``epoch`` epochs and ``step`` optimizer steps are enough for the phase to begin."""
        if self.start_epoch is not None:
            return epoch >= self.start_epoch
        return self.start_step is not None and step >= self.start_step


def _mappings(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [part for part in value.values() if isinstance(part, Mapping)]


@dataclass(frozen=True)
class PhaseSettings:
    """All that holds in a phase, what earlier phases have set included.

    Attributes:
        name: for the logs.
        train_mode, last_layers: which parts learn; both ``None``: as the model is.
        optim: changes of the optimizer's options.
        lrsched: ``None`` for the trainer's schedule, or another one.
        new_lrsched: whether the schedule begins with this phase.
        change: changes of the model, since the beginning of training.
        new_change: whether this phase adds to them.
        sampler: changes of the sampler's options.
    """

    name: str = ""
    train_mode: str | None = None
    last_layers: int | None = None
    optim: dict[str, Any] = field(default_factory=dict)
    lrsched: dict[str, Any] | None = None
    new_lrsched: bool = True
    change: dict[str, Any] = field(default_factory=dict)
    new_change: bool = True
    sampler: dict[str, Any] = field(default_factory=dict)

    @property
    def learning(self) -> tuple[str | None, int | None]:
        """What tells two sets of learning parts apart."""
        return self.train_mode, self.last_layers


class ModeSchedule:
    """The phases of a run in order.

    Args:
        phases: their documents; ``None`` or empty for a run without phases.
        train_mode: of the trainer; that of the first phase unless it has its own.

    Raises:
        ConfigError: names the phase and the key that is wrong.
    """

    def __init__(self, phases: Sequence[Mapping[str, Any]] | None, train_mode: str | None = None) -> None:
        self._phases = [_parsed(index, document) for index, document in enumerate(phases or [{}])]
        self._check_starts()
        self._settings = self._resolve(train_mode)

    def __len__(self) -> int:
        return len(self._phases)

    def __getitem__(self, index: int) -> PhaseSettings:
        return self._settings[index]

    @property
    def changes_learning(self) -> bool:
        """Whether different parts learn in different phases."""
        return len({settings.learning for settings in self._settings}) > 1

    def next_after(self, index: int, epoch: int, step: int) -> int:
        """The phase that ``epoch`` epochs and ``step`` steps have reached, ``index`` at least: phases begin one after another."""
        while index + 1 < len(self._phases) and self._phases[index + 1].is_reached(epoch, step):
            index += 1
        return index

    def describe(self, index: int) -> str:
        """Number, name and learning parts, for the logs."""
        settings = self._settings[index]
        parts = settings.train_mode or "as the model is"
        if settings.last_layers is not None:
            parts = f"the last {settings.last_layers} layers of the encoder and what follows"
        named = f" ({settings.name})" if settings.name else ""
        return f"phase {index + 1} of {len(self)}{named}: {parts}"

    def fit_to(self, model: nn.Module) -> None:
        """Find out before training begins what ``model`` cannot do, and remember what it has now: phases can be entered in any order.

        Raises:
            ConfigError: a train mode that the model does not have, or in which nothing learns; or too many layers; or changes that it
                does not know, or that would replace its output layer on the way.
        """
        for index, settings in enumerate(self._settings):
            _check_settings(settings, model, f"trainer.phases[{index}]")
        everything: dict[str, Any] = {}
        for settings in self._settings:
            everything = merged(everything, settings.change)
        originals = _same_keys(model.get_config(), everything) if everything else {}  # type: ignore[operator]
        mode: Any = getattr(model, "train_mode", None) if self.changes_learning else None
        self._settings = [
            replace(
                settings,
                change=merged(originals, settings.change),
                train_mode=mode if settings.learning == (None, None) else settings.train_mode,
            )
            for settings in self._settings
        ]
        for index, settings in enumerate(self._settings):
            self._check_learning(index, model)
            for key in _REPLACING:
                if _values_of(settings.change, key) != _values_of(self._settings[0].change, key):
                    raise ConfigError(
                        f"trainer.phases[{index}].change: {key} cannot change in the course of training, it makes a new output layer. "
                        "Give it in the first phase, or train further in a run of its own with finetune.path and finetune.change"
                    )

    def _check_learning(self, index: int, model: nn.Module) -> None:
        """Find out whether anything learns; leaves ``model`` in the mode of the phase, and the first phase sets its own."""
        if self.changes_learning and self._settings[index].learning != (None, None):
            set_learning_parts(model, self._settings[index])
            if not any(p.requires_grad for p in model.parameters()):
                raise ConfigError(
                    f"trainer.phases[{index}]: nothing learns in it ({self.describe(index)}); choose another train_mode"
                )

    def _check_starts(self) -> None:
        for index, phase in enumerate(self._phases):
            starts = [value for value in (phase.start_epoch, phase.start_step) if value is not None]
            if index == 0 and any(starts):
                raise ConfigError("trainer.phases[0] begins at once; leave its start out")
            if index > 0 and (len(starts) != 1 or starts[0] < 1):
                raise ConfigError(f"trainer.phases[{index}] needs either start_epoch or start_step, of at least 1")
        for key in ("start_epoch", "start_step"):
            values = [value for phase in self._phases if (value := getattr(phase, key)) is not None]
            if values != sorted(set(values)):
                raise ConfigError(f"trainer.phases are not in order: their {key} are {', '.join(map(str, values))}")

    def _resolve(self, train_mode: str | None) -> list[PhaseSettings]:
        resolved: list[PhaseSettings] = []
        last = PhaseSettings(train_mode=train_mode)
        for index, phase in enumerate(self._phases):
            keeps = phase.train_mode is None and phase.last_layers is None
            last = PhaseSettings(
                name=phase.name,
                train_mode=last.train_mode if keeps else phase.train_mode,
                last_layers=last.last_layers if keeps else phase.last_layers,
                optim={**last.optim, **phase.optim},
                lrsched=dict(phase.lrsched) if isinstance(phase.lrsched, Mapping) else last.lrsched,
                new_lrsched=index == 0 or phase.lrsched != "continue",
                change=merged(last.change, phase.change),
                new_change=index == 0 or bool(phase.change),
                sampler={**last.sampler, **phase.sampler},
            )
            resolved.append(last)
        return resolved


def _check_settings(settings: PhaseSettings, model: nn.Module, where: str) -> None:
    modes: Any = getattr(model, "valid_train_modes", ())
    name = type(model).__name__
    if settings.train_mode is not None and settings.train_mode not in modes:
        hint = nearest(settings.train_mode, modes)
        raise ConfigError(
            f"{where}.train_mode: {name} has no {settings.train_mode!r}{hint} (it has: {', '.join(modes) or 'none'})"
        )
    if settings.last_layers is not None:
        stack: Any = model.layer_stack() if hasattr(model, "layer_stack") else None  # type: ignore[operator]
        count = 0 if stack is None else len(stack.layers)
        if not 0 <= settings.last_layers <= count or count == 0:
            raise ConfigError(
                f"{where}.last_layers is {settings.last_layers}, the encoder of {name} has {count} layers"
            )
    if settings.change:
        check: Any = getattr(model, "check_changes", None)
        if check is None:
            raise ConfigError(f"{where}.change: {name} has nothing that can be changed")
        accepted = inspect.signature(check).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
            for key in settings.change:
                if key not in accepted:
                    raise ConfigError(
                        f"{where}.change: {name} has no part {key!r}; write the keys of a part below its name ({', '.join(accepted)}), "
                        f"as in {{{next(iter(accepted), 'xvector')}: {{{key}: ...}}}}"
                    )
        try:
            check(**settings.change)
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{where}.change: {error}") from error


def set_learning_parts(model: nn.Module, settings: PhaseSettings) -> None:
    """Let the parts of ``model`` learn that learn in a phase."""
    if settings.last_layers is not None:
        model.train_last_layers(settings.last_layers)  # type: ignore[operator]
    elif settings.train_mode is not None:
        model.set_train_mode(settings.train_mode)  # type: ignore[operator]


def _values_of(change: Mapping[str, Any], key: str) -> list[Any]:
    return [part.get(key) for part in (change, *_mappings(change))]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``base`` with ``changes``, mappings merged key by key."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        inner = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if inner else copy.deepcopy(value)
    return result


def _same_keys(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The part of ``config`` that has the keys of ``wanted``."""
    found: dict[str, Any] = {}
    for key, value in wanted.items():
        if isinstance(value, Mapping):
            inner = config.get(key)
            found[key] = _same_keys(inner, value) if isinstance(inner, Mapping) else {}
        elif config.get(key) is not None:
            found[key] = copy.deepcopy(config[key])
    return found


def _parsed(index: int, document: Mapping[str, Any]) -> TrainingPhase:
    try:
        return TrainingPhase.from_config(document)
    except ConfigError as error:
        raise ConfigError(f"trainer.phases[{index}]: {error}") from error
