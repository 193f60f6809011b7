"""What a saved model is: model directories, single files, and the files of the original toolkit.

This package turns a path into a :class:`~hyperion_lite.serialization.artifact.ModelArtifact` (plain configuration and tensors) and
back. It knows no model class.
"""
