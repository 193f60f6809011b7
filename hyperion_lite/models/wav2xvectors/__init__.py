"""Models from waveform to speaker embedding: a front end followed by an x-vector network."""
