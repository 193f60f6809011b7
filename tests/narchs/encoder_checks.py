"""Checks that every convolutional encoder has to pass, and configurations to try them on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from hyperion_lite.layer_blocks.res_blocks import BLOCK_KINDS
from hyperion_lite.narchs.conv_encoder import ConvEncoder
from hyperion_lite.narchs.resnet import ResNet
from hyperion_lite.narchs.resnet1d_encoder import ResNet1dEncoder

FILLS = (0.0, 1e3, math.inf, math.nan)


def randomize(module: nn.Module, seed: int = 0) -> None:
    """Random norm statistics, affines and biases, so that a wrong order of operations or a leak shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0, generator=generator)
            elif name.endswith(("bias", "running_mean", "pos_enc")):
                tensor.normal_(0.0, 0.3, generator=generator)
            elif tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5, generator=generator)
            else:
                tensor.normal_(0.0, 1.0 / math.sqrt(tensor[0].numel()), generator=generator)


def random_input(
    encoder: ConvEncoder, batch: int, frames: int, seed: int = 0, dtype: Any = torch.float64
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = [batch, *(size for size in encoder.in_shape()[1:-1] if size is not None), frames]
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference relative to the largest value."""
    assert a.shape == b.shape, f"{tuple(a.shape)} and {tuple(b.shape)}"
    return float(((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).detach())


def padded(items: Sequence[torch.Tensor], fill: float, frames: int) -> torch.Tensor:
    batch = torch.full((len(items), *items[0].shape[1:-1], frames), fill, dtype=items[0].dtype)
    for row, item in zip(batch, items, strict=True):
        row[..., : item.size(-1)] = item[0]
    return batch


def check_batch_equals_alone(
    encoder: ConvEncoder, lengths: Sequence[int], fill: float, frames: int, tolerance: float, dtype: Any = torch.float64
) -> None:
    """Every item of a padded batch has the output it has alone, and the lengths say where it ends."""
    encoder.eval()
    items = [random_input(encoder, 1, length, seed=i, dtype=dtype) for i, length in enumerate(lengths)]
    with torch.no_grad():
        h, h_lengths = encoder(padded(items, fill, frames), torch.tensor(lengths))
        assert h_lengths is not None
        assert h_lengths.tolist() == encoder.out_lengths(torch.tensor(lengths)).tolist()
        for i, item in enumerate(items):
            alone, none = encoder(item)
            assert none is None
            assert alone.size(-1) == h_lengths[i]
            assert relative_error(h[i : i + 1, ..., : h_lengths[i]], alone) <= tolerance
            assert not h[i, ..., h_lengths[i] :].any()


def check_chunked_equals_whole(
    encoder: ConvEncoder, lengths: Sequence[int], frames: int, chunk_length: int, tolerance: float = 1e-10
) -> None:
    encoder.eval()
    items = [random_input(encoder, 1, length, seed=i) for i, length in enumerate(lengths)]
    x = padded(items, math.nan, frames)
    x_lengths = torch.tensor(lengths)
    with torch.no_grad():
        whole, whole_lengths = encoder(x, x_lengths)
        chunked, chunked_lengths = encoder.forward_chunked(x, x_lengths, chunk_length=chunk_length)
    assert whole_lengths is not None
    assert chunked_lengths is not None
    assert whole_lengths.tolist() == chunked_lengths.tolist()
    assert relative_error(chunked, whole) <= tolerance


def check_receptive_field(encoder: ConvEncoder) -> None:
    """The gradient of an output reaches exactly the stated inputs for some output, and never more.

    Where the output is upsampled, only some outputs reach the ends of the stated context, so the union over a period is looked at.
    """
    encoder.double().eval()
    left, right = encoder.in_context()
    stride, period = encoder.total_stride, encoder.alignment // encoder.total_stride
    first = -(-(left + right + 2 * encoder.alignment) // encoder.alignment) * encoder.alignment
    reached_left, reached_right = 0, 0
    for frames in range(first * 2 + right, first * 2 + right + encoder.alignment):
        x = random_input(encoder, 1, frames).requires_grad_()
        h, _ = encoder(x)
        for t in range(first // stride, first // stride + period):
            (gradient,) = torch.autograd.grad(h[..., t].square().sum(), x, retain_graph=True)
            touched = gradient.abs().flatten(0, -2).amax(dim=0).nonzero().flatten()
            reached_left = max(reached_left, t * stride - int(touched[0]))
            reached_right = max(reached_right, int(touched[-1]) - t * stride)
    assert (reached_left, reached_right) == (left, right)


def fewest_frames(encoder: ConvEncoder, norm_layer: str | None) -> int:
    """Lengths worth comparing to rounding. Norms with statistics over time multiply rounding errors where they see a few values only."""
    return encoder.min_length if norm_layer in (None, "batch-norm") else 5 * encoder.alignment


NORM_POSITIONS = (
    {"use_norm": True, "norm_before": True},
    {"use_norm": True, "norm_before": False},
    {"use_norm": False, "norm_before": True},
    {"use_norm": False, "norm_before": False},
)


@st.composite
def resnet1d_configs(draw: st.DrawFn, se: bool = True, norms: Sequence[str | None] | None = None) -> dict[str, Any]:
    """Small 1-D encoders of all kinds."""
    kinds = [name for name, kind in BLOCK_KINDS.items() if se or not kind.se]
    count = draw(st.integers(1, 3))
    each = st.lists(st.integers(1, 3), min_size=count, max_size=count)
    norm_layers = norms or (None, "batch-norm", "group-norm", "instance-norm", "instance-norm-affine", "layer-norm")
    config: dict[str, Any] = {
        "in_feats": 5,
        "in_conv_channels": 16,
        "in_kernel_size": draw(st.sampled_from([1, 3, 5, 4])),
        "in_stride": draw(st.integers(1, 2)),
        "resb_type": draw(st.sampled_from(kinds)),
        "resb_repeats": draw(st.lists(st.integers(1, 2), min_size=count, max_size=count)),
        "resb_channels": draw(st.sampled_from([16, [16, 32, 16][:count]])),
        "resb_kernel_sizes": draw(st.sampled_from([1, 3, 5])),
        "resb_strides": draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)),
        "resb_dilations": draw(each),
        "resb_groups": draw(st.sampled_from([1, 2])),
        "head_channels": draw(st.sampled_from([0, 7])),
        "hid_act": draw(st.sampled_from(["relu", "swish", {"name": "relu6", "inplace": True}, "prelu", "gelu"])),
        "head_act": draw(st.sampled_from([None, "tanh"])),
        "dropout_rate": 0.1,
        "drop_connect_rate": 0.1,
        "se_r": 4,
        "res2net_scale": draw(st.sampled_from([1, 2, 4])),
        "res2net_width_factor": draw(st.sampled_from([1, 2])),
        "norm_layer": draw(st.sampled_from(norm_layers)),
        **draw(st.sampled_from(NORM_POSITIONS)),
    }
    if config["norm_layer"] == "group-norm" and config["resb_type"] not in ("basic", "sebasic"):
        # eight groups do not divide the narrow parts of the other blocks
        config["norm_layer"] = None
    if draw(st.booleans()):
        layers = draw(st.none() | st.lists(st.integers(1, count), min_size=1, max_size=count, unique=True))
        config.update(
            multilayer=True,
            multilayer_concat=draw(st.booleans()),
            endpoint_channels=draw(st.sampled_from([None, 16])),
            endpoint_layers=layers,
            endpoint_scale_layer=draw(st.integers(-count, count - 1)),
            upsampling_mode=draw(st.sampled_from(["nearest", "subpixel"])),
        )
    return config


def small_resnet1d(seed: int = 0, **config: Any) -> ResNet1dEncoder:
    encoder = ResNet1dEncoder(
        **{"in_feats": 5, "in_conv_channels": 16, "resb_channels": 16, "se_r": 4, **config}
    ).double()
    randomize(encoder, seed)
    return encoder


def small_resnet(resnet_type: str = "resnet18", seed: int = 0, **config: Any) -> ResNet:
    defaults = {
        "in_channels": 1,
        "in_feats": 16,
        "conv_channels": 8,
        "base_channels": 8,
        "in_kernel_size": 3,
        "se_r": 2,
    }
    encoder = ResNet(resnet_type, **{**defaults, **config}).double()
    randomize(encoder, seed)
    return encoder
