"""Every native model keeps every contract of models."""

import inspect

import pytest
import torch

from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.registry import BUILTIN_MODELS, MODELS, import_builtin_models
from hyperion_lite.narchs.net_arch import NetArch
from tests.contracts.model_tester import PADDING_VALUES, ModelTester
from tests.helpers import slow_but
from tests.models.small_hf_models import HF_MODELS
from tests.models.small_models import ALL_MODELS, WAV2XVECTORS, build

# the others put an encoder that is among these behind a front end, or before a head, that is
REPEATED = {
    *("hf-wav2vec2-mhfa", "hf-hubert-mhfa", "hf-bert-mhfa", "hf-whisper-mhfa", "hf-wavlm-conformer"),
    *("wav2-basic-strided", "wav2-res2basic-dropout", "wav2-conformer-strided", "wav2-conformer-local-abs"),
    *("wav2-conformer-block", "wav2-conformer-conv", "wav2-convnext1d-merged", "wav2-convnext2d-merged", "wav2-etdnn"),
    *("wav2-fwse-res2", "wav2-multi-level", "wav2-tse-instance-norm"),
}
QUICK = [name for name in ALL_MODELS if name not in REPEATED]


def test_every_registered_model_of_the_package_is_tested():
    import_builtin_models()
    tested = {class_name for class_name, _ in ALL_MODELS.values()}
    assert set(BUILTIN_MODELS) - {"XVector"} == tested
    assert all(name in MODELS for name in BUILTIN_MODELS)


def of_the_package(root):
    """All subclasses of ``root`` that the package defines."""
    import_builtin_models()
    found, waiting = set(), [root]
    while waiting:
        children = waiting.pop().__subclasses__()
        waiting.extend(children)
        found.update(c for c in children if c.__module__.startswith("hyperion_lite."))
    return sorted(found, key=lambda c: c.__name__)


@pytest.mark.parametrize("cls", [c for root in (NetArch, HyperTorchModel) for c in of_the_package(root)])
def test_the_docstring_of_forward_states_the_contract(cls):
    if inspect.isabstract(cls) or cls.forward is torch.nn.Module.forward:
        return
    text = " ".join(inspect.getdoc(cls.forward).split())
    for part in ("Args:", "Returns:", "(batch", "floating point", "train()", "eval()"):
        assert part in text, f"the docstring of {cls.__name__}.forward does not say {part!r}"
    assert ("x_lengths" in text and "True = valid" in text) or "no lengths" in text
    assert any(kind in text for kind in ("rames", "ogits", "mbedding"))
    assert "state" in text.lower() or "running" in text


@pytest.mark.parametrize("name", slow_but([*WAV2XVECTORS, *HF_MODELS], QUICK))
class TestEveryWaveformModel:
    @pytest.mark.parametrize("value", [0.0, float("nan")])
    def test_selected_voice_does_not_depend_on_the_batch(self, name, value):
        ModelTester(build(name)).voice_selection(value)

    def test_chunks_do_not_depend_on_the_batch(self, name):
        ModelTester(build(name)).chunks()


@pytest.mark.parametrize("name", slow_but(ALL_MODELS, QUICK))
class TestEveryModel:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
    @pytest.mark.parametrize("value", PADDING_VALUES)
    def test_an_embedding_does_not_depend_on_the_batch(self, name, dtype, value):
        # other items, of other lengths, for each value
        ModelTester(build(name)).batch_invariance(dtype, value, seed=PADDING_VALUES.index(value))

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
    @pytest.mark.parametrize("value", PADDING_VALUES)
    def test_nor_does_it_with_other_items(self, name, dtype, value):
        for seed in {0, 1} - {PADDING_VALUES.index(value)}:
            ModelTester(build(name)).batch_invariance(dtype, value, seed)

    def test_shapes_and_determinism(self, name):
        ModelTester(build(name)).shapes_and_determinism()

    def test_saved_forms_round_trip(self, name, tmp_path):
        ModelTester(build(name)).round_trip(tmp_path)

    def test_configuration_rebuilds_the_model(self, name):
        ModelTester(build(name)).configuration()

    def test_gradients_reach_the_input(self, name):
        ModelTester(build(name)).gradients_reach_the_input()

    def test_frozen_parts_stay_frozen(self, name):
        ModelTester(build(name)).frozen_stays_frozen()
