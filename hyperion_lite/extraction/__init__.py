"""From audio files to a file of embeddings: batches of like length, failures reported, interrupted jobs resumed.

Also reading such files back and scoring them. Uses models and data; the command line is a thin layer over it.
"""
