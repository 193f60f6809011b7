"""The x-vector trainers: loss, margins, verification, hard prototypes, class tables, separate front end."""

import json

import numpy as np
import pytest
import torch

from hyperion_lite.data.manifests import TrialKey
from hyperion_lite.metrics import equal_error_rate
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.trainers.xvector_trainer import XVectorTrainer
from hyperion_lite.trainers.xvector_trainer_from_wav import XVectorTrainerFromWav
from tests.trainers import voices

COMMON = {"optim": voices.OPTIM, "num_epochs": 1, "device": "cpu", "loggers": []}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voices")
    return {
        "train": voices.write_voices(folder / "train"),
        "val": voices.write_voices(folder / "val", 3, first=100),
    }


def make_trainer(tmp_path, model=None, **options):
    return XVectorTrainer(
        voices.make_model() if model is None else model, **{**COMMON, "exp_path": str(tmp_path / "exp"), **options}
    )


def first_batch(loader):
    return next(iter(loader))


def current_margin(trainer):
    return trainer.module.xvector.classif_net.output.cur_margin


def test_training_loss_is_the_cross_entropy_with_the_margin(data, tmp_path):
    trainer = make_trainer(tmp_path)
    batch = first_batch(voices.train_loader(data["train"]))
    trainer.module.train()
    trainer.module.update_loss_margin(5)
    reference = trainer.module.copy()
    loss, metrics = trainer.compute_loss(trainer.preprocess_batch(batch))
    cosines = reference.copy()
    cosines.update_loss_margin(0)
    plain = cosines(batch["audio"], batch["audio_lengths"]).double() / voices.XVECTOR["cos_scale"]
    target = batch["speaker"]
    angle = plain[range(len(target)), target].arccos() + voices.XVECTOR["margin"]
    plain[range(len(target)), target] = angle.cos()
    expected = torch.nn.functional.cross_entropy(plain * voices.XVECTOR["cos_scale"], target)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert set(metrics) == {"acc"}


def test_validation_has_no_margin(data, tmp_path):
    trainer = make_trainer(tmp_path)
    batch = first_batch(voices.val_loader(data["val"]))
    trainer.module.update_loss_margin(5)
    trainer.module.eval()
    size, metrics = trainer.validation_step(0, batch)
    logits = trainer.module(batch["audio"], batch["audio_lengths"])
    assert size == len(batch["id"])
    assert metrics["loss"].item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, batch["speaker"]).item(), rel=1e-6
    )
    assert metrics["acc"].item() == pytest.approx((logits.argmax(1) == batch["speaker"]).float().mean().item())


def test_margin_follows_the_restored_epoch(data, tmp_path):
    first = make_trainer(tmp_path)
    first.fit(voices.train_loader(data["train"]))
    assert current_margin(first) == 0.0
    second = make_trainer(tmp_path, num_epochs=2)
    second.load_last_checkpoint()
    seen = []
    second.compute_loss, compute = None, second.compute_loss
    second._update_step.compute_loss = lambda batch: seen.append(current_margin(second)) or compute(batch)
    second.fit(voices.train_loader(data["train"]))
    expected = voices.make_model()
    expected.update_loss_margin(1)
    assert set(seen) == {expected.xvector.classif_net.output.cur_margin}
    assert 0 < seen[0] < voices.XVECTOR["margin"]


def test_margin_warm_up_in_steps_goes_on_in_the_middle_of_an_epoch(data, tmp_path):
    model = voices.make_model(margin_warmup_steps=4)
    trainer = make_trainer(tmp_path, model, num_epochs=2, max_steps=4)
    margins = []
    compute = trainer.compute_loss
    trainer._update_step.compute_loss = lambda batch: margins.append(current_margin(trainer)) or compute(batch)
    trainer.fit(voices.train_loader(data["train"]))
    resumed = make_trainer(tmp_path, voices.make_model(margin_warmup_steps=4), num_epochs=2)
    resumed.load_last_checkpoint()
    resumed.on_step_begin()
    assert margins == sorted(margins) and len(set(margins)) == 4
    assert current_margin(resumed) == pytest.approx(voices.XVECTOR["margin"])


@pytest.mark.parametrize("kind", ["file", "all"])
def test_verification_error_rate_is_that_of_the_embeddings(data, tmp_path, kind):
    segments = data["val"].segments
    ids, speakers = list(segments.ids), list(segments.column("speaker"))
    pairs = [(a, b, speakers[i] == speakers[j]) for i, a in enumerate(ids) for j, b in enumerate(ids) if i < j]
    trials = "all"
    if kind == "file":
        pairs = pairs[::2]
        trials = tmp_path / "trials.csv"
        TrialKey.from_pairs(pairs).save(trials)
    trainer = make_trainer(tmp_path, trials=str(trials))
    logs = trainer.validation_epoch(voices.val_loader(data["val"]))
    model = trainer.module.eval()
    audio = {item["id"]: item["audio"] for item in (voices.val_loader(data["val"]).dataset[i] for i in ids)}
    with torch.inference_mode():
        vectors = {i: torch.nn.functional.normalize(model.extract_embed(audio[i][None])[0], dim=0) for i in ids}
    scores = np.array([float(vectors[a] @ vectors[b]) for a, b, _ in pairs])
    target = np.array([t for _, _, t in pairs])
    assert logs["val_eer"] == pytest.approx(equal_error_rate(scores[target], scores[~target]), abs=1e-3)
    assert set(logs) == {"val_loss", "val_acc", "val_eer", "val_min_dcf"}


def test_speakers_that_training_does_not_know_are_verified_without_a_loss(data, tmp_path):
    segments = data["val"].segments
    pairs = [(a, b, a[:4] == b[:4]) for a in segments.ids for b in segments.ids if a < b]
    trainer = make_trainer(tmp_path, trials=TrialKey.from_pairs(pairs), best_metric="val_eer")
    logs = trainer.fit(voices.train_loader(data["train"]), voices.val_loader(data["val"], class_names=[]))
    assert {"val_eer", "val_min_dcf", "train_loss"} <= set(logs) and "val_loss" not in logs
    assert 0 <= logs["val_eer"] <= 0.5


def test_best_checkpoint_is_that_of_the_error_rate(data, tmp_path):
    trainer = make_trainer(tmp_path, trials="all", best_metric="val_eer", num_epochs=3, keep_last=1, keep_best=1)
    trainer.fit(voices.train_loader(data["train"]), voices.val_loader(data["val"]))
    kept = sorted(path.name for path in (tmp_path / "exp").glob("checkpoint_*"))
    states = {name: json.loads((tmp_path / "exp" / name / "trainer_state.json").read_text()) for name in kept}
    best = trainer.find_best_checkpoint_dir()
    assert best.name in kept and len(kept) <= 2
    assert states[best.name]["logs"]["val_eer"] == min(state["logs"]["val_eer"] for state in states.values())


def test_class_table_is_part_of_the_checkpoint(data, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.fit(voices.train_loader(data["train"]))
    model = HyperTorchModel.auto_load(tmp_path / "exp")
    assert model.class_names == voices.SPEAKERS
    for name, tensor in trainer.module.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_another_order_of_classes_is_refused(data, tmp_path):
    make_trainer(tmp_path).fit(voices.train_loader(data["train"]))
    model = voices.make_model()
    model.class_names = voices.SPEAKERS[::-1]
    with pytest.raises(ValueError, match="order of the classes"):
        make_trainer(tmp_path, model).load_last_checkpoint()


def test_hard_prototypes_of_the_next_epoch_are_those_of_the_trained_classes(data, tmp_path):
    loader = voices.train_loader(data["train"], num_hard_prototypes=2, max_batch_size=8)
    trainer = make_trainer(tmp_path)
    trainer.fit(loader)
    affinity = trainer.module.compute_prototype_affinity().numpy().copy()
    np.fill_diagonal(affinity, -np.inf)
    loader.set_epoch(1)
    table = loader.sampler.hard_prototypes
    assert table[:, 0].tolist() == list(range(voices.NUM_VOICES))
    assert table[:, 1].tolist() == affinity.argmax(axis=1).tolist()


def test_hard_prototypes_survive_a_resume(data, tmp_path):
    def train(path, epochs_at_once):
        for epochs in epochs_at_once:
            trainer = make_trainer(path, voices.make_model(), num_epochs=epochs)
            trainer.load_last_checkpoint()
            loader = voices.train_loader(data["train"], num_hard_prototypes=2, max_batch_size=8)
            trainer.fit(loader)
        return trainer.module.state_dict()

    whole, resumed = train(tmp_path / "whole", [3]), train(tmp_path / "resumed", [1, 2, 3])
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_hard_prototypes_can_be_left_alone(data, tmp_path):
    loader = voices.train_loader(data["train"], num_hard_prototypes=2, max_batch_size=8)
    make_trainer(tmp_path, hard_prototypes_epochs=0).fit(loader)
    loader.set_epoch(1)
    assert loader.sampler.hard_prototypes is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audio": None}, "a batch needs 'audio', it has: "),
        ({"speaker": None}, "a training batch needs 'speaker'"),
        ({"speaker": torch.tensor([0.0, 1.0])}, r"must be \(batch,\) integers"),
        ({"speaker": torch.tensor([0, 4])}, "speaker of 'second' is class 4, the model has 4 classes"),
    ],
)
def test_wrong_batches_are_named(tmp_path, change, message):
    batch = {"id": ["first", "second"], "audio": torch.zeros(2, 4000), "speaker": torch.tensor([0, 1])}
    batch = {key: value for key, value in {**batch, **change}.items() if value is not None}
    trainer = make_trainer(tmp_path)
    trainer.module.train()
    with pytest.raises(ValueError, match=message):
        trainer.preprocess_batch(batch)


def test_a_batch_is_not_changed(data, tmp_path):
    trainer = make_trainer(tmp_path, trials="all")
    batch = first_batch(voices.val_loader(data["val"]))
    copy = {k: v.clone() if isinstance(v, torch.Tensor) else list(v) for k, v in batch.items()}
    trainer.validation_step(0, batch)
    assert batch.keys() == copy.keys()
    assert all(torch.equal(v, copy[k]) if isinstance(v, torch.Tensor) else v == copy[k] for k, v in batch.items())


def test_configuration_is_plain_and_complete(tmp_path):
    config = make_trainer(tmp_path).get_config()
    assert json.loads(json.dumps(config)) == config
    assert config["hard_prototypes_epochs"] == 1 and config["grad_acc_steps"] == 1


# a separate front end


def from_wav_trainer(tmp_path, **options):
    model = voices.make_model()
    xvector = model.xvector
    xvector.class_names = voices.SPEAKERS
    return XVectorTrainerFromWav(xvector, voices.FEATS, **{**COMMON, "exp_path": str(tmp_path / "wav"), **options})


def test_a_separate_front_end_trains_the_same_network(data, tmp_path):
    together = make_trainer(tmp_path, trials="all", num_epochs=2)
    apart = from_wav_trainer(tmp_path, trials="all", num_epochs=2)
    logs = [t.fit(voices.train_loader(data["train"]), voices.val_loader(data["val"])) for t in (together, apart)]
    assert logs[0] == pytest.approx(logs[1])
    for name, tensor in apart.module.state_dict().items():
        assert torch.allclose(tensor, together.module.state_dict()[f"xvector.{name}"], atol=1e-6)


def test_front_end_and_network_are_joined_for_delivery(data, tmp_path):
    trainer = from_wav_trainer(tmp_path)
    trainer.fit(voices.train_loader(data["train"]))
    trainer.save_waveform_model(tmp_path / "model")
    model = Wav2XVector.auto_load(tmp_path / "model")
    batch = first_batch(voices.val_loader(data["val"]))
    feats, lengths = trainer.feat_extractor.eval()(batch["audio"], batch["audio_lengths"])
    with torch.inference_mode():
        expected = trainer.module.eval().extract_embed(feats, lengths)
        found = model.extract_embed(batch["audio"], batch["audio_lengths"])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert model.class_names == voices.SPEAKERS


def test_a_front_end_that_does_not_fit_is_refused(tmp_path):
    feats = {**voices.FEATS, "audio_feats": {**voices.FEATS["audio_feats"], "num_filters": 20}}
    with pytest.raises(ValueError, match="gives 20 features a frame, the model takes 16"):
        XVectorTrainerFromWav(voices.make_model().xvector, feats, optim=voices.OPTIM, exp_path=str(tmp_path))


def test_training_separates_the_voices(data, tmp_path):
    trainer = make_trainer(
        tmp_path, trials="all", num_epochs=15, grad_clip=5.0, optim={"opt_type": "adamw", "lr": 0.01}
    )
    before = trainer.validation_epoch(voices.val_loader(data["train"]))
    after = trainer.fit(voices.train_loader(data["train"]), voices.val_loader(data["train"]))
    assert before["val_acc"] < 0.6 and after["val_acc"] > 0.8
    assert after["val_eer"] < 0.5 * before["val_eer"]
