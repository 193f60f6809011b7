"""Primitive layers: acoustic features, normalisation, augmentation, pooling, output layers."""
