"""X-vectors on acoustic features."""
