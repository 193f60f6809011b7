"""Architectures: encoders, front ends and heads that models are assembled from."""
