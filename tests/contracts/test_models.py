"""Every native model keeps every contract of models."""

import pytest
import torch

from hyperion_lite.models.registry import BUILTIN_MODELS, MODELS, import_builtin_models
from tests.contracts.model_tester import PADDING_VALUES, ModelTester
from tests.models.small_models import ALL_MODELS, build


def test_every_registered_model_of_the_package_is_tested():
    import_builtin_models()
    tested = {class_name for class_name, _ in ALL_MODELS.values()}
    assert set(BUILTIN_MODELS) - {"XVector"} == tested
    assert all(name in MODELS for name in BUILTIN_MODELS)


@pytest.mark.parametrize("name", ALL_MODELS)
class TestEveryModel:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
    @pytest.mark.parametrize("value", PADDING_VALUES)
    def test_an_embedding_does_not_depend_on_the_batch(self, name, dtype, value):
        for seed in (0, 1):
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
