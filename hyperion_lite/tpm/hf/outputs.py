"""What an encoder returns, and what its parts hand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hyperion_lite.core.padding import Padding


class HFFeatsOutput(NamedTuple):
    """What a Hugging Face encoder returns.

    Attributes:
        hidden_states: h_0 ... h_n, each (batch, frames, hidden_size), n the number of layers. h_0 is the input of the first layer, h_i the
            output of layer i; h_n is the encoder's output, after the final layer norm where there is one. ``None`` if not asked for.
        last_hidden_state: (batch, frames, hidden_size), h_n; where the model has an adapter, its output at its lower frame rate.
        lengths: (batch,) valid frames of the hidden states, ``None`` if no lengths were given. Padded frames are 0.
        last_lengths: the same of ``last_hidden_state``.
    """

    hidden_states: list[torch.Tensor] | None
    last_hidden_state: torch.Tensor
    lengths: torch.Tensor | None
    last_lengths: torch.Tensor | None


class Encoded(NamedTuple):
    """Hidden states of a batch, between the parts of an encoder.

    Attributes:
        states: those to return, each (batch, frames, features); may be empty.
        last: the last hidden state.
        padding: valid frames of ``states``.
        last_padding: valid frames of ``last``.
    """

    states: list[torch.Tensor]
    last: torch.Tensor
    padding: Padding | None
    last_padding: Padding | None


def join_groups(results: Sequence[Encoded], groups: Sequence[list[int]]) -> Encoded:
    """The results of groups as one batch, in the order of its items."""
    states = [_scatter(pieces, groups) for pieces in zip(*(r.states for r in results), strict=True)]
    return Encoded(states, _scatter([r.last for r in results], groups), None, None)


def _scatter(pieces: Sequence[torch.Tensor], groups: Sequence[list[int]]) -> torch.Tensor:
    frames = max(piece.size(1) for piece in pieces)
    batch = pieces[0].new_zeros(sum(map(len, groups)), frames, pieces[0].size(2))
    for piece, group in zip(pieces, groups, strict=True):
        batch[torch.tensor(group, device=batch.device), : piece.size(1)] = piece
    return batch
