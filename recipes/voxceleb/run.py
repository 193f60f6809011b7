"""Train and test speaker embedders on VoxCeleb. See README.md.

python run.py --voxceleb1 /data/voxceleb1 --voxceleb2 /data/voxceleb2 --musan /data/musan --rirs /data/RIRS_NOISES
python run.py --smoke --root /tmp/try          # the same stages on a few made-up voices, in a minute or two
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import stages
from stages import CONFIGS, run

from hyperion_lite.data.manifests import HyperDataset, TrialKey

STAGES = ("prepare", "train", "finetune", "extract", "score")
MODELS = ("ecapa", "resnet34")
_VALIDATION = 0.01
_TEST_LISTS = {"Vox1-O": "veri_test2.txt", "Vox1-E": "list_test_all2.txt", "Vox1-H": "list_test_hard2.txt"}
_SMOKE = [
    "data.train.sampler.min_chunk_length=1.0",
    "data.train.sampler.max_batch_size=16",
    "data.train.data_loader.num_workers=0",
    "data.val.data_loader.num_workers=0",
    "trainer.max_steps=2",
    "trainer.use_amp=false",
]
# a narrow network with the parts of the real one
_SMOKE_MODEL = {
    "ecapa": ["resnet_enc.in_conv_channels=16", "resnet_enc.resb_channels=16", "resnet_enc.endpoint_channels=24"],
    "resnet34": ["conv_channels=4", "base_channels=4"],
}


class Recipe:
    """The stages; what one writes is below ``root``, where the next ones find it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.data = args.root / "data" / "voxceleb"
        self.exp = args.root / "exp" / f"voxceleb_{args.model}"
        self.systems = {"trained": self.exp / "train", "fine-tuned": self.exp / "finetune"}

    # data

    def prepare(self) -> None:
        """Manifests of training, validation, test and augmentation data, and the trial lists."""
        if self.args.smoke:
            from made_up import write_corpora

            write_corpora(self.data / "corpora")
            for name in ("voxceleb1", "voxceleb2", "musan", "rirs"):
                setattr(self.args, name, self.data / "corpora" / name)
        self._prepare_training(self.args.voxceleb2)
        self._prepare_test(self.args.voxceleb1)
        for kind in ("noise", "music", "speech"):
            self._prepare_folder(self.args.musan / kind, kind)
        self._prepare_folder(self.args.rirs, "rir")

    def _prepare_training(self, folder: Path) -> None:
        # dev/<speaker>/<video>/<number>.wav or .m4a that was converted
        everything = HyperDataset.from_folder(folder, speaker_level=1 if (folder / "dev").is_dir() else 0, num_jobs=8)
        fraction = 0.25 if self.args.smoke else _VALIDATION
        train, val = everything.split_validation(fraction, by="speaker")
        # classes are those of the training speakers alone
        HyperDataset.from_segments(train.segments, train.recordings).save(self.data / "train", "arrow")
        val.save(self.data / "val", "arrow")
        ids, speakers = list(val.segments.ids), list(val.segments.column("speaker"))
        stages.thinned(stages.all_pairs(ids, speakers, 200_000), 40_000).save(self.data / "trials_val.csv")

    def _prepare_test(self, folder: Path) -> None:
        dataset = HyperDataset.from_folder(folder / "wav" if (folder / "wav").is_dir() else folder, num_jobs=8)
        dataset.save(self.data / "test", "arrow")
        for name, file in _TEST_LISTS.items():
            if (folder / file).is_file():
                key = TrialKey.from_pairs(_voxceleb_trials(folder / file))
                key.save(self.data / f"trials_{name}.csv")

    def _prepare_folder(self, folder: Path, name: str) -> None:
        HyperDataset.from_folder(folder, speaker_level=None, num_jobs=8).save(self.data / name, "arrow")

    # models

    def _options(self, config: str) -> list[str]:
        paths = [
            f"--data.train.dataset.dataset_path={self.data / 'train'}",
            f"--data.val.dataset.dataset_path={self.data / 'val'}",
            f"--data.val.trials={self.data / 'trials_val.csv'}",
        ]
        smoke = stages.overrides(_SMOKE) if self.args.smoke else []
        return ["--config", str(self._config(config)), *paths, *smoke, *stages.overrides(self.args.set)]

    def _config(self, name: str) -> Path:
        """The configuration with the folders of this run in its augmentation."""
        text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
        path = self.exp / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("data/voxceleb/", f"{self.data}/"), encoding="utf-8")
        return path

    def train(self) -> None:
        """Train from scratch; goes on where it was when it is interrupted."""
        options = self._options(f"voxceleb_{self.args.model}")
        if self.args.smoke:
            options += [f"--model.xvector.{setting}" for setting in _SMOKE_MODEL[self.args.model]]
        run("train", *options, f"--trainer.exp_path={self.exp / 'train'}", ranks=self.args.ranks)

    def finetune(self) -> None:
        """Large-margin fine-tuning."""
        options = self._options("voxceleb_ecapa_finetune")
        options += [f"--finetune.path={self.exp / 'train'}", f"--trainer.exp_path={self.exp / 'finetune'}"]
        if self.args.smoke:
            options += ["--data.train.sampler.num_hard_prototypes=2"]
        run("train", *options, ranks=self.args.ranks)

    def extract(self) -> None:
        """Embeddings of the test data."""
        for name, model in self.systems.items():
            output = self.exp / f"embeddings_{name}.npz"
            source = self.data / "test" / "dataset.yaml"
            run("extract", "--model", model, "--input", source, "--output", output, "--overwrite", "--quiet")

    def score(self) -> None:
        """Error rates by list and stage, in ``results.md``."""
        names = [name for name in _TEST_LISTS if (self.data / f"trials_{name}.csv").is_file()]
        keys = {name: TrialKey.from_file(self.data / f"trials_{name}.csv") for name in names}
        results = {name: stages.error_rates(self.exp / f"embeddings_{name}.npz", keys) for name in self.systems}
        table = stages.result_table(results, keys)
        (self.exp / "results.md").write_text(table, encoding="utf-8")
        print(table)


def _voxceleb_trials(path: Path) -> list[tuple[str, str, bool]]:
    """Lines ``1 id10270/x6uYqmx31kE/00001.wav id10270/8jEAjG6SegY/00008.wav``; ids are as those of folders."""
    trials = []
    for line in path.read_text(encoding="utf-8").splitlines():
        label, first, second = line.split()
        trials.append((_id(first), _id(second), label == "1"))
    return list(dict.fromkeys(trials))


def _id(file: str) -> str:
    return "-".join(Path(file).with_suffix("").parts)


def main() -> None:
    """Parse the options and run the stages."""
    parser = argparse.ArgumentParser(description="Train and test speaker embedders on VoxCeleb.")
    stages.stage_argument(parser, STAGES)
    parser.add_argument("--model", choices=MODELS, default="ecapa", help="which network (ecapa)")
    parser.add_argument("--root", type=Path, default=Path(), help="folder that gets data/ and exp/ (.)")
    parser.add_argument("--voxceleb1", type=Path, help="VoxCeleb 1: wav/<speaker>/<video>/*.wav and the trial lists")
    parser.add_argument("--voxceleb2", type=Path, help="VoxCeleb 2 dev: [dev/]<speaker>/<video>/*.wav")
    parser.add_argument("--musan", type=Path, help="MUSAN: noise/, music/, speech/")
    parser.add_argument("--rirs", type=Path, help="room impulse responses")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train, one a GPU (1)")
    parser.add_argument("--smoke", action="store_true", help="a few made-up voices and steps: does it run?")
    args = parser.parse_args()
    missing = [name for name in ("voxceleb1", "voxceleb2", "musan", "rirs") if getattr(args, name) is None]
    if missing and not args.smoke and {"prepare", "all"} & set(args.stage):
        parser.error(f"the stage prepare needs --{', --'.join(missing)}")
    recipe = Recipe(args)
    stages.run_stages({name: getattr(recipe, name) for name in STAGES}, args.stage)


if __name__ == "__main__":
    main()
