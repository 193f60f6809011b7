"""Data augmentation: reproducible by construction, configured in YAML.

Importing the package registers all augmenter types.
"""

from hyperion_lite.data.augment.base import Augmenter
from hyperion_lite.data.augment.pipeline import Augmented, AugmentPipeline, Occasion, load_pipelines

__all__ = ["AugmentPipeline", "Augmented", "Augmenter", "Occasion", "load_pipelines"]
