"""New output layers for trained x-vectors: which prototypes are kept, and how they move between kinds of layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hyperion_lite.layers.margin_losses import OutputLayer, SoftmaxOutput, SubCenterArcLossOutput


@dataclass(frozen=True)
class RebuildReport:
    """What happened to the classes when an output layer was rebuilt.

    Attributes:
        kept: ids whose prototypes were taken over, in the order of the new class table.
        new: ids whose prototypes were initialised at random.
        dropped: ids of the old class table that are gone.
        num_classes: size of the new layer. Without class tables everything is new and the lists are empty.
    """

    kept: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]
    num_classes: int


def match_classes(
    class_names: Sequence[str] | None, old_class_names: Sequence[str] | None, num_classes: int
) -> tuple[list[int | None], RebuildReport]:
    """Old index of every new class (``None`` if it is new), and the report that says so."""
    if class_names is None:
        return [None] * num_classes, RebuildReport((), (), tuple(old_class_names or ()), num_classes)
    old_index = {name: i for i, name in enumerate(old_class_names or ())}
    rows = [old_index.get(name) for name in class_names]
    present = set(class_names)
    report = RebuildReport(
        kept=tuple(name for name in class_names if name in old_index),
        new=tuple(name for name in class_names if name not in old_index),
        dropped=tuple(name for name in old_class_names or () if name not in present),
        num_classes=num_classes,
    )
    return rows, report


@torch.no_grad()
def take_over_prototypes(old: OutputLayer, new: OutputLayer, rows: Sequence[int | None]) -> None:
    """Copy prototypes of ``old`` into ``new``.

    Layers of one kind copy everything of a class. Otherwise the prototype (of several sub-centres, the one that won most often) becomes the
    weight vector, or the first sub-centre; what has no counterpart, other sub-centres and biases, stays as initialised, biases at zero.

    Args:
        old: layer to copy from.
        new: layer to change.
        rows: for each class of ``new`` the class of ``old``, or ``None``.
    """
    targets = [i for i, row in enumerate(rows) if row is not None]
    sources = [row for row in rows if row is not None]
    if isinstance(new, SoftmaxOutput):
        new.bias.zero_()
        new.weight[targets] = old.prototypes().T[sources].to(new.weight)
        if isinstance(old, SoftmaxOutput):
            new.bias[targets] = old.bias[sources].to(new.bias)
        return
    columns = new.kernel.unflatten(1, (-1, new.num_subcenters))
    if isinstance(old, SubCenterArcLossOutput) and old.num_subcenters == new.num_subcenters:
        old_columns = old.kernel.unflatten(1, (-1, old.num_subcenters))
        columns[:, targets] = old_columns[:, sources].to(columns)
        if isinstance(new, SubCenterArcLossOutput):
            new.subcenter_counts[targets] = old.subcenter_counts[sources].to(new.subcenter_counts)
    else:
        columns[:, targets, 0] = old.prototypes()[:, sources].to(columns)
