"""Self-attention against a loop over pairs of frames, whatever the pattern, the padding and the part of the item that is seen."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers import attention
from hyperion_lite.layers.attention import RelativeSelfAttention, SelfAttention
from hyperion_lite.layers.attention_pattern import ATT_TYPES, AttentionPlan, FramePositions, make_pattern
from hyperion_lite.layers.pos_encoding import sinusoids

D_MODEL, HEADS = 8, 2


def make_layer(relative: bool, causal: bool = False, dtype=torch.float64):
    torch.manual_seed(0)
    layer = RelativeSelfAttention(D_MODEL, HEADS, causal=causal) if relative else SelfAttention(D_MODEL, HEADS)
    return layer.to(dtype).eval()


def plan_for(att_type, context, relative, lengths, frames=None, start=0, item_lengths=None, device="cpu"):
    frames = max(lengths) if frames is None else frames
    padding = Padding(torch.tensor(lengths, device=device), frames, list(lengths)) if min(lengths) < frames else None
    positions = FramePositions(start, tuple(lengths if item_lengths is None else item_lengths))
    return AttentionPlan(make_pattern(att_type, context, relative), positions, padding, frames, torch.device(device))


def allowed_pairs(att_type, context, relative, frames):
    """(T, T), from the definition: sets of frames that attend to each other as a whole."""
    ratio = frames / context
    if att_type.startswith("local"):
        count = max(1, round(ratio))
        whole = count <= 1 if relative else frames <= 2 * context
    else:
        count = max(1, frames // context)
        whole = count <= 1
    if whole or att_type == ATT_TYPES[0]:
        return torch.ones(frames, frames, dtype=torch.bool)
    size = math.ceil(frames / count)
    shift = size // 2
    pairs = torch.zeros(frames, frames, dtype=torch.bool)
    for b in range(count):
        pairs[b * size : (b + 1) * size, b * size : (b + 1) * size] = True
    if att_type.startswith("local"):
        for b in range(count - 1):
            first = shift + b * size
            # what the shifted block adds: its first `shift` frames and those behind its first `size - shift`
            one, two = slice(first, first + shift), slice(first + size - shift, min(first + size, frames))
            pairs[one, two] = pairs[two, one] = True
    return pairs


def expected_output(layer, x, pairs):
    """(T, D) -> (T, D), one head and one frame after the other."""
    frames, size = x.size(0), D_MODEL // HEADS
    q, k, v = layer.linear_q(x), layer.linear_k(x), layer.linear_v(x)
    out = torch.zeros_like(x)
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        for i in range(frames):
            query = q[i, part]
            if isinstance(layer, RelativeSelfAttention):
                distances = i - torch.arange(frames)
                places = layer.linear_pos(sinusoids(distances, D_MODEL, x.dtype))[:, part] @ (query + layer.v[head])
                if layer.causal:
                    places = torch.where(distances < 0, 0.0, places)
                scores = k[:, part] @ (query + layer.u[head]) + places
            else:
                scores = k[:, part] @ query
            scores = (scores / math.sqrt(size)).masked_fill(~pairs[i], -math.inf)
            out[i, part] = scores.softmax(0) @ v[:, part]
    return layer.linear_out(out)


def test_reach_and_pairs_of_the_patterns_for_many_lengths():
    for att_type in ATT_TYPES[1:]:
        for relative in (False, True):
            for context in (1, 2, 3, 4, 5, 8):
                pattern = make_pattern(att_type, context, relative)
                for frames in range(1, 8 * context + 2):
                    blocks = pattern.blocks(frames)
                    assert blocks.size * blocks.count >= frames
                    i = torch.arange(frames)
                    size, count = torch.tensor(blocks.size), torch.tensor(blocks.count)
                    found = pattern.allows(i[:, None], i[None, :], size, count)
                    if blocks.count == 1:
                        found = torch.ones_like(found)
                    expected = allowed_pairs(att_type, context, relative, frames)
                    assert torch.equal(found, expected), (att_type, relative, context, frames)
                    if frames > 2 * pattern.reach:
                        distance = (i[:, None] - i[None, :]).abs()[expected].max()
                        assert distance <= pattern.reach


@given(
    att_type=st.sampled_from(ATT_TYPES),
    context=st.integers(1, 6),
    relative=st.booleans(),
    causal=st.booleans(),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    surplus=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_a_batch_attends_as_the_pairs_say(att_type, context, relative, causal, lengths, surplus):
    layer = make_layer(relative, causal)
    frames = max(lengths) + surplus
    x = torch.randn(len(lengths), frames, D_MODEL, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x, plan_for(att_type, context, relative, lengths, frames))
        assert torch.isfinite(y).all()
        for row, length in enumerate(lengths):
            pairs = allowed_pairs(att_type, context, relative, length)
            expected = expected_output(layer, x[row, :length], pairs)
            assert torch.allclose(y[row, :length], expected, atol=1e-12)


@given(
    att_type=st.sampled_from(ATT_TYPES[1:]),
    context=st.integers(1, 5),
    relative=st.booleans(),
    lengths=st.lists(st.integers(20, 60), min_size=1, max_size=3),
    start=st.integers(0, 19),
    width=st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_a_window_attends_as_the_whole_where_its_edges_are_out_of_reach(
    att_type, context, relative, lengths, start, width
):
    layer = make_layer(relative)
    reach = make_pattern(att_type, context, relative).reach
    seen = [min(n - start, width) for n in lengths]
    x = torch.randn(len(lengths), max(lengths), D_MODEL, dtype=torch.float64)
    with torch.no_grad():
        window = x[:, start : start + max(seen)]
        plan = plan_for(att_type, context, relative, seen, start=start, item_lengths=lengths)
        y = layer(window, plan)
        for row, (length, count) in enumerate(zip(lengths, seen, strict=True)):
            whole = layer(x[row : row + 1, :length], plan_for(att_type, context, relative, [length]))[0]
            left = 0 if start == 0 else reach
            right = count if start + count == length else count - reach
            if length > 2 * reach and left < right:
                found, expected = y[row, left:right], whole[start + left : start + right]
                assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_at_a_time_give_what_all_rows_give(monkeypatch, causal):
    layer = make_layer(True, causal)
    x = torch.randn(2, 53, D_MODEL, dtype=torch.float64)
    plan = plan_for(ATT_TYPES[0], 1, True, [53, 40])
    with torch.no_grad():
        expected = layer(x, plan)
        for scores in (1, 10_000):
            monkeypatch.setattr(attention, "_SCORES_AT_ONCE", scores)
            assert torch.allclose(layer(x, plan), expected, atol=1e-13)


@pytest.mark.parametrize("att_type", ATT_TYPES)
@pytest.mark.parametrize("relative", [False, True])
def test_gradients(att_type, relative):
    layer = make_layer(relative)
    plan = plan_for(att_type, 3, relative, [7, 9, 2])
    x = torch.randn(3, 9, D_MODEL, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(9) < torch.tensor([[7], [9], [2]])

    def loss(x, *parameters):
        return (layer(x, plan) * valid[..., None]).pow(2).sum()

    assert torch.autograd.gradcheck(loss, (x, *layer.parameters()), fast_mode=True)
    loss(x).backward()
    assert (x.grad[~valid] == 0).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest result."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            # an expanded tensor has the elements of its storage
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.untyped_storage().nbytes() // value.element_size())
        return result


@pytest.mark.parametrize("att_type", ATT_TYPES[1:])
@pytest.mark.parametrize("relative", [False, True])
def test_memory_in_blocks_grows_with_the_length_times_the_block(att_type, relative):
    layer = make_layer(relative, dtype=torch.float32)
    frames, context = 3000, 10
    x = torch.randn(1, frames, D_MODEL)
    with torch.no_grad(), LargestTensor() as largest:
        layer(x, plan_for(att_type, context, relative, [frames]))
    assert largest.elements <= frames * HEADS * 4 * (context + 2)


@pytest.mark.parametrize("frames", [700, 2000])
def test_memory_of_relative_scores_is_bounded_without_a_graph(monkeypatch, frames):
    layer = make_layer(True, dtype=torch.float32)
    monkeypatch.setattr(attention, "_SCORES_AT_ONCE", 200_000)
    with torch.no_grad(), LargestTensor() as largest:
        layer(torch.randn(1, frames, D_MODEL), plan_for(ATT_TYPES[0], 1, True, [frames]))
    assert largest.elements <= 210_000


def test_a_masked_batch_is_the_same_plan_for_equal_items():
    plan = plan_for(ATT_TYPES[1], 4, True, [40, 40])
    assert plan.blocks.mask.size(0) == 1
    assert plan_for(ATT_TYPES[1], 4, True, [40, 39]).blocks.mask.size(0) == 2


def test_settings_that_are_impossible():
    with pytest.raises(ValueError, match="num_heads = 3 does not divide d_model = 8"):
        SelfAttention(8, 3)
    with pytest.raises(ValueError, match=r"att_type.*did you mean 'local-scaled-dot-prod-v1'"):
        make_pattern("local-scaled-dot-prod", 5, False)
    with pytest.raises(ValueError, match="att_context"):
        make_pattern(ATT_TYPES[1], 0, False)
