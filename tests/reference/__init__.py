"""A second, independent reading of the model files: plain functions written from the specification alone.

Nothing here imports the package. Every function takes a configuration and a scope of tensors; run over an empty set of tensors it
draws them, which makes the same text the list of tensor names and shapes and the formula. The tests compare the package with it.
"""
