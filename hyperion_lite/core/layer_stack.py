"""The layers of an encoder in order, for what treats them by depth: gradual unfreezing, and learning rates that fall towards the input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that a network repeats: the entries of its outermost ``ModuleList``s that have parameters."""
    blocks: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.ModuleList):
                for entry in child:
                    if isinstance(entry, nn.ModuleList):
                        visit(child)
                        break
                    if any(True for _ in entry.parameters()):
                        blocks.append(entry)
            else:
                visit(child)

    visit(model)
    return blocks


@dataclass(frozen=True)
class LayerStack:
    """An encoder and its layers.

    What the encoder has beside its layers belongs to the stem when it was registered before the first layer (first convolution, feature
    extractor, positions), and to the last layer when it was registered after it (merging of layers) or is named in ``top``.

    Attributes:
        encoder: the module that holds the layers.
        layers: its layers, the one next to the input first.
        top: modules that work on what the layers give, wherever they were registered (a last norm).
    """

    encoder: nn.Module
    layers: tuple[nn.Module, ...]
    top: tuple[nn.Module, ...] = ()

    def depths(self) -> dict[int, int]:
        """``id`` of each parameter of the encoder -> number of layers above its own: 0 for the last layer, ``len(layers)`` for the stem."""
        count = len(self.layers)
        known = {id(p): 0 for module in self.top for p in module.parameters()}
        known |= {id(p): count - 1 - index for index, layer in enumerate(self.layers) for p in layer.parameters()}
        first = next((id(p) for layer in self.layers for p in layer.parameters()), None)
        depths: dict[int, int] = {}
        begun = False
        for parameter in self.encoder.parameters():
            begun = begun or id(parameter) == first
            depths[id(parameter)] = known.get(id(parameter), 0 if begun else count)
        return depths

    def below(self, count: int) -> tuple[list[nn.Module], list[nn.Parameter]]:
        """What lies below the last ``count`` layers.

        Returns:
            The outermost modules that lie there as a whole; and all parameters that lie there.

        Raises:
            ValueError: there are not so many layers.
        """
        if not 0 <= count <= len(self.layers):
            raise ValueError(f"the encoder has {len(self.layers)} layers, so there are no last {count}")
        if count == 0:
            return [self.encoder], list(self.encoder.parameters())
        depths = self.depths()
        parameters = [p for p in self.encoder.parameters() if depths[id(p)] >= count]
        return list(_whole_modules(self.encoder, {id(p) for p in parameters})), parameters


def _whole_modules(module: nn.Module, below: set[int]) -> Iterator[nn.Module]:
    """The outermost modules all of whose parameters are ``below``; one without parameters goes with what comes next to it."""
    pending: list[nn.Module] = []
    for child in module.children():
        own = {id(p) for p in child.parameters()}
        if not own:
            pending.append(child)
            continue
        if own & below:
            yield from pending
            if own <= below:
                yield child
            else:
                yield from _whole_modules(child, below)
        pending = []
