"""Changing the head of a trained x-vector: margins, new classes, from DINO to a classifier; and the options for it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Optional, cast

import torch
from torch import nn

from hyperion_lite.core.config import config_fields, nearest, type_problem
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.margin_losses import MARGIN_OPTIONS, LossType, OutputLayer, make_output_layer
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.xvectors.dino_conversion import fill_from_projection, head_layout
from hyperion_lite.models.xvectors.head_settings import HeadSettings
from hyperion_lite.models.xvectors.output_layers import RebuildReport, match_classes, take_over_prototypes
from hyperion_lite.narchs.classif_head import ClassifHead, check_layer
from hyperion_lite.narchs.dino_head import DINOHead
from hyperion_lite.narchs.proj_head import ProjHead

if TYPE_CHECKING:
    import jsonargparse

logger = logging.getLogger(__name__)

_OUTPUT_KEYS = (*MARGIN_OPTIONS, "loss_type", "num_subcenters")
CHANGEABLE_KEYS = (*_OUTPUT_KEYS, "dropout_rate", "embed_layer", "bias_weight_decay")
"""Configuration keys that a trained model can change."""


class HeadChanges(HyperTorchModel, abstract=True):
    """The methods of an x-vector that change its head; the parts themselves are made by the subclass."""

    # False in a subclass whose encoder shares the norm position
    norm_before_is_heads: ClassVar[bool] = True

    bias_weight_decay: float | None
    classif_net: ClassifHead | DINOHead
    proj_head_net: ProjHead | None
    _settings: HeadSettings
    _pooled_dim: int

    @property
    def num_classes(self) -> int:
        """Number of training classes; of prototypes with a DINO head."""
        return self._settings.num_classes

    @property
    def loss_type(self) -> LossType:
        """Kind of the output layer."""
        return self._settings.loss_type

    @property
    def head_type(self) -> str:
        """``x-vector`` or ``dino``."""
        return self._settings.head_type

    @property
    def embed_layer(self) -> int:
        """Layer of the head that gives the embedding."""
        return self._settings.embed_layer

    def _change_settings(self, **changes: Any) -> None:
        self._settings = replace(self._settings, **changes)
        self._update_config(**changes)

    def change_dropouts(self, dropout_rate: float) -> None:
        """Set the rate of every dropout layer, see :meth:`HyperTorchModel.change_dropouts`."""
        super().change_dropouts(dropout_rate)
        self._settings = replace(self._settings, dropout_rate=self.get_config()["dropout_rate"])

    def update_loss_margin(self, epoch: float, step: int | None = None) -> None:
        """Set the margins of the output layer as its warm-up says. Their state is not saved: call this also when training resumes.

        Args:
            epoch: epochs done, from 0.
            step: optimizer steps done, for a warm-up in steps.
        """
        self.classif_net.update_margin(epoch, step)

    def _output_layer(self, action: str) -> OutputLayer:
        if isinstance(self.classif_net, DINOHead):
            raise ConfigError(
                f"cannot {action}: this model has a DINO head. rebuild_output_layer turns it into a classifier"
            )
        return self.classif_net.output

    def compute_prototype_affinity(self) -> torch.Tensor:
        """Cosine similarities of the class prototypes, (num_classes, num_classes) float32, without gradient.

        Raises:
            ConfigError: the model has a DINO head.
        """
        return self._output_layer("compare class prototypes").compute_prototype_affinity()

    def cancel_output_layer_grads(self) -> None:
        """Drop the gradients of the output layer, so that the next optimizer step leaves it alone."""
        for parameter in cast(nn.Module, self.classif_net.output).parameters():
            parameter.grad = None

    def change_config(self, train_mode: str | None = None, **changes: Any) -> None:
        """Change what a trained model can change.

        Args:
            train_mode: as in :meth:`set_train_mode`.
            changes: keys out of :data:`CHANGEABLE_KEYS`; ``None`` leaves a value as it is. Another ``loss_type`` or ``num_subcenters``
                keeps the class prototypes.

        Raises:
            ConfigError: another key, or an ill-typed value; nothing has changed then.
        """
        changes = {key: value for key, value in changes.items() if value is not None}
        self.check_changes(**changes)
        if "embed_layer" in changes and isinstance(self.classif_net, ClassifHead):
            check_layer(changes["embed_layer"], self.classif_net.num_embed_layers, "embed_layer")
        output = {key: changes.pop(key) for key in _OUTPUT_KEYS if key in changes}
        if output:
            self._change_output(output)
        if "dropout_rate" in changes:
            self.change_dropouts(changes.pop("dropout_rate"))
        if "bias_weight_decay" in changes:
            self.bias_weight_decay = changes["bias_weight_decay"]
            self._update_config(bias_weight_decay=changes.pop("bias_weight_decay"))
        self._change_settings(**changes)
        if train_mode is None:
            self._restore_learning_parts()
        else:
            self.set_train_mode(train_mode)

    def check_changes(self, **changes: Any) -> None:
        """Check the arguments of :meth:`change_config`, and change nothing.

        Raises:
            ConfigError: names every wrong key or value.
        """
        fields = config_fields(type(self))
        problems = []
        for key, value in changes.items():
            if key not in CHANGEABLE_KEYS:
                problems.append(
                    f"{key!r} cannot be changed{nearest(key, CHANGEABLE_KEYS)} (keys that can: {', '.join(CHANGEABLE_KEYS)})"
                )
            else:
                problem = type_problem(fields[key], value)
                if not problem and key == "dropout_rate" and not 0 <= value < 1:
                    problem = f"must be in [0, 1), got {value}"
                if problem:
                    problems.append(f"{key}: {problem}")
        if problems:
            raise ConfigError(f"{type(self).__name__}.change_config: {'; '.join(problems)}")

    def _change_output(self, changes: dict[str, Any]) -> None:
        output = self._output_layer("change the output layer")
        changed = {key for key, value in changes.items() if value != getattr(self._settings, key)}
        if changed & {"loss_type", "num_subcenters"}:
            self._replace_output(list(range(self.num_classes)), **changes)
        else:
            output.change_margins(**{key: value for key, value in changes.items() if key in MARGIN_OPTIONS})
            self._change_settings(**changes)
            self.classif_net._update_config(**changes)

    def rebuild_output_layer(
        self,
        num_classes: int | None = None,
        loss_type: LossType | None = None,
        cos_scale: float | None = None,
        margin: float | None = None,
        margin_warmup_epochs: float | None = None,
        intertop_k: int | None = None,
        intertop_margin: float | None = None,
        num_subcenters: int | None = None,
        margin_warmup_steps: int | None = None,
        class_names: Sequence[str] | None = None,
        old_class_names: Sequence[str] | None = None,
    ) -> RebuildReport:
        """Replace the output layer, for new classes or another loss. Options that are ``None`` stay as they are.

        Prototypes of classes that both class tables know are kept; all others are initialised at random, and the log says how many. A DINO
        head becomes a classification head with one layer that gives the same embeddings; there, ``None`` means the default of the class.

        Args:
            num_classes: size of the new layer; ``len(class_names)`` when those are given.
            loss_type, cos_scale, margin, margin_warmup_epochs, intertop_k, intertop_margin, num_subcenters, margin_warmup_steps: as
                in the constructor.
            class_names: ids of the new classes in index order; the new class table.
            old_class_names: ids of the present classes; the model's class table by default.

        Returns:
            Which classes were kept, are new, and are gone.

        Raises:
            ConfigError: wrong values.
            ValueError: class tables that are not unique or do not fit the sizes.
        """
        given = {key: value for key, value in locals().items() if key in (*_OUTPUT_KEYS, "num_classes")}
        changes = {key: value for key, value in given.items() if value is not None}
        old_class_names = self.class_names if old_class_names is None else list(old_class_names)
        if old_class_names is not None and len(old_class_names) != self.num_classes:
            raise ValueError(f"old_class_names has {len(old_class_names)} ids, the model {self.num_classes} classes")
        size = self._new_size(num_classes, class_names)
        rows, report = match_classes(class_names, old_class_names, size)
        changes["num_classes"] = size
        if self.head_type == "dino":
            report = replace(report, kept=(), new=tuple(class_names or ()))
            self._convert_dino(changes)
        else:
            self._replace_output(rows, **changes)
        self._class_names = None
        self.class_names = class_names
        self._restore_learning_parts()
        logger.info(
            "new output layer for %d classes: %d prototypes kept, %d initialised at random, %d old classes gone",
            size,
            len(report.kept),
            size - len(report.kept),
            len(report.dropped),
        )
        if class_names is not None and old_class_names is None:
            logger.warning("the old model has no class table: no prototype could be kept")
        return report

    def _new_size(self, num_classes: int | None, class_names: Sequence[str] | None) -> int:
        if class_names is None:
            return self.num_classes if num_classes is None else num_classes
        if len(set(class_names)) != len(class_names):
            raise ValueError("class_names holds an id twice")
        if num_classes not in (None, len(class_names)):
            raise ValueError(f"num_classes is {num_classes}, but class_names has {len(class_names)} ids")
        return len(class_names)

    def _replace_output(self, rows: Sequence[int | None], **changes: Any) -> None:
        settings = replace(self._settings, **changes)
        old = self._output_layer("replace the output layer")
        new = make_output_layer(
            settings.loss_type,
            settings.embed_dim,
            settings.num_classes,
            settings.cos_scale,
            settings.margin,
            settings.margin_warmup_epochs,
            settings.intertop_k,
            settings.intertop_margin,
            settings.num_subcenters,
            settings.margin_warmup_steps,
        )
        reference = next(old.parameters())
        new = new.to(device=reference.device, dtype=reference.dtype).train(old.training)
        take_over_prototypes(old, new, rows)
        cast(ClassifHead, self.classif_net).replace_output(new, **changes)
        self._change_settings(**changes)

    def _convert_dino(self, changes: dict[str, Any]) -> None:
        proj = cast(ProjHead, self.proj_head_net)
        fields = config_fields(type(self))
        defaults = {key: fields[key].default for key in _OUTPUT_KEYS}
        changes = {**defaults, **changes, "head_type": "x-vector", "num_embed_layers": 1, "embed_layer": 0}
        softmax = changes["loss_type"] == "softmax"
        changes.update(head_layout(proj, self._settings.norm_before, self.norm_before_is_heads, softmax))
        head = cast(ClassifHead, replace(self._settings, **changes).make(self._pooled_dim)[1])
        reference = proj.proj.weight
        head = head.to(device=reference.device, dtype=reference.dtype).train(self.training)
        fill_from_projection(head, proj)
        self.classif_net = head
        self.proj_head_net = None
        self._change_settings(**changes)

    @classmethod
    def filter_finetune_args(cls, **kwargs: Any) -> dict[str, Any]:
        """The arguments of :meth:`change_config` that ``kwargs`` holds and are not ``None``; the rest is dropped."""
        keys = (*CHANGEABLE_KEYS, "train_mode")
        return {key: value for key, value in kwargs.items() if key in keys and value is not None}

    @classmethod
    def add_finetune_args(
        cls, parser: jsonargparse.ArgumentParser, prefix: str | None = None, skip: Collection[str] = ()
    ) -> None:
        """Add the arguments of :meth:`change_config` to a ``jsonargparse`` parser, under ``--prefix.``.

        None of them has a default: what is not given stays as it is in the model.
        """
        lead = f"{prefix}." if prefix else ""
        fields = config_fields(cls)
        options: dict[str, tuple[Any, str]] = {
            key: (fields[key].annotation, fields[key].help) for key in CHANGEABLE_KEYS
        }
        modes = tuple(cls.valid_train_modes)
        options["train_mode"] = (Literal[modes], "which parts learn")  # type: ignore[valid-type]
        for key, (annotation, text) in options.items():
            if key not in skip:
                parser.add_argument(f"--{lead}{key}", type=Optional[annotation], default=None, help=text)
