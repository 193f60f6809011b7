from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.pth import PthError, TensorRef
from hyperion_lite.pth.views import voice_model_info
from hyperion_lite.pth.voice_layout import VOICE_FIELDS, expected_shapes, parse_voice_config, posterior_shapes
from tests.pth.builders import PITCHED_40K, voice_config

REAL_40K = [
    1025, 32, 192, 192, 768, 2, 6, 3, 0, "1", [3, 7, 11], [[1, 3, 5], [1, 3, 5], [1, 3, 5]], PITCHED_40K[0], 512, PITCHED_40K[1],
    109, 256, 40000,
]  # fmt: skip
_odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


def _file(root: object) -> SimpleNamespace:
    return SimpleNamespace(root=root, path="voice.pth")


def _ref(shape: tuple[int, ...]) -> TensorRef:
    return TensorRef(None, "float32", shape, (1,) * len(shape))


def test_shapes_of_a_published_configuration():
    shapes = expected_shapes(parse_voice_config(REAL_40K), 768, True)
    assert len(shapes) == 457
    assert shapes["enc_p.emb_phone.weight"] == (192, 768) and shapes["enc_p.emb_pitch.weight"] == (256, 192)
    assert shapes["enc_p.encoder.attn_layers.0.emb_rel_k"] == (1, 21, 96)
    assert shapes["dec.ups.0.weight_v"] == (512, 256, 16) and shapes["dec.ups.0.weight_g"] == (512, 1, 1)
    assert [shapes[f"dec.noise_convs.{stage}.weight"] for stage in range(4)] == [
        (256, 1, 80),
        (128, 1, 8),
        (64, 1, 4),
        (32, 1, 1),
    ]
    assert shapes["flow.flows.0.enc.cond_layer.weight_v"] == (1152, 256, 1) and shapes["emb_g.weight"] == (109, 256)
    assert len(posterior_shapes(parse_voice_config(REAL_40K))) == 103


def test_a_network_without_speakers_has_no_speaker_tensors():
    config = voice_config()
    config[15] = config[16] = 0
    shapes = expected_shapes(parse_voice_config(config), 256, False)
    assert not [name for name in shapes if name.startswith(("emb_g", "dec.cond")) or "cond_layer" in name]


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, len(VOICE_FIELDS) - 1), value=_odd)
def test_any_value_in_any_position_is_a_configuration_or_a_value_error(position, value):
    config = voice_config()
    config[position] = value
    named = None
    with suppress(ValueError):
        named = parse_voice_config(config)
    assert named is None or len(expected_shapes(named, 256, True)) < 100_000


@settings(max_examples=100, deadline=None)
@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "config": st.just(voice_config()) | _odd,
            "f0": _odd,
            "version": _odd,
            "sr": _odd,
            "info": _odd,
            "weight": _odd,
        },
    ),
    shape=st.lists(st.integers(0, 9), max_size=4).map(tuple),
)
def test_any_fields_give_information_or_a_reader_error(fields, shape):
    root = {"weight": {"emb_g.weight": _ref(shape), 3: _ref(shape), "note": "text"}, **fields}
    info = None
    with suppress(PthError):
        info = voice_model_info(_file(root))
    if info is not None and "emb_g.weight" in info.tensors:
        assert [problem.name for problem in info.problems()] == ([] if shape == (5, 10) else ["emb_g.weight"])


@pytest.mark.parametrize("root", [None, 3, [1], "text"])
def test_a_root_that_is_no_dictionary_is_no_voice_model(root):
    with pytest.raises(PthError, match="not a voice model"):
        voice_model_info(_file(root))
