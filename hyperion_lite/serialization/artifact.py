"""The content of a saved model, whatever form it had on disk."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

Container = Literal["file", "directory"]

FORMAT_VERSION = 1
"""Version of what this package adds to a model file, under the key :data:`OWN_KEY`."""

OWN_KEY = "hyperion_lite"
"""The one key that a model file of ours has beside those of the original toolkit."""


@dataclass
class ModelArtifact:
    """A model as data.

    Attributes:
        config: plain JSON configuration with ``class_name``.
        state: tensor name -> tensor, on the CPU, names cleaned of wrapper prefixes.
        container: whether it came from a single file or a directory.
        source: the path it was read from.
        classes: ids of the classes in index order, if the file has a class table.
        tied: name -> name of the stored tensor it shares memory with.
        own: what this package wrote about itself (format, version); empty for files of the original toolkit.
        progress: ``epoch``, ``batch``, ``global_step``, ``logs`` of a training checkpoint, as far as stored.
        trainer_state: whether optimizer state lies beside the model, that is, whether it is a training checkpoint.
    """

    config: dict[str, Any]
    state: OrderedDict[str, torch.Tensor]
    container: Container
    source: Path
    classes: list[str] | None = None
    tied: dict[str, str] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    trainer_state: bool = False

    @property
    def class_name(self) -> str:
        """Name of the model class."""
        return str(self.config["class_name"])
