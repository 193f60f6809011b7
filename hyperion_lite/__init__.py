"""hyperion_lite: speaker-embedding models, data, samplers and training, and a reader of ``.pth`` files that runs no pickle.

The public names are loaded on first use, so that ``import hyperion_lite`` costs nothing and ``hyperion_lite.pth`` never needs torch.
"""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names
from hyperion_lite._version import __version__

_PUBLIC = {
    "HyperTorchModel": "hyperion_lite.models.hyper_torch_model",
    "XVector": "hyperion_lite.models.xvectors.xvector",
    "ResNet1dXVector": "hyperion_lite.models.xvectors.resnet1d_xvector",
    "ResNetXVector": "hyperion_lite.models.xvectors.resnet_xvector",
    "Wav2XVector": "hyperion_lite.models.wav2xvectors.wav2xvector",
    "Wav2ResNet1dXVector": "hyperion_lite.models.wav2xvectors.wav2resnet1d_xvector",
    "Wav2ResNetXVector": "hyperion_lite.models.wav2xvectors.wav2resnet_xvector",
    "HFWav2XVector": "hyperion_lite.models.wav2xvectors.hf_wav2xvector",
    "AudioDataset": "hyperion_lite.data.audio_dataset",
    "LegacyAudioDataset": "hyperion_lite.data.legacy_audio_dataset",
    "HyperSampler": "hyperion_lite.data.hyper_sampler",
    "SegSampler": "hyperion_lite.data.seg_sampler",
    "SegSamplerFactory": "hyperion_lite.data.seg_sampler_factory",
    "NetArch": "hyperion_lite.narchs.net_arch",
    "TorchTrainerBase": "hyperion_lite.trainers.torch_trainer_base",
    "XVectorTrainer": "hyperion_lite.trainers.xvector_trainer",
    "OptimizerFactory": "hyperion_lite.optim.factory",
    "LRSchedulerFactory": "hyperion_lite.lr_schedulers.factory",
    "WDSchedulerFactory": "hyperion_lite.wd_schedulers.factory",
    "make_loader": "hyperion_lite.data.loader",
    "PthFile": "hyperion_lite.pth",
    "open_pth": "hyperion_lite.pth",
}

__all__ = ["__version__", *_PUBLIC]
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
