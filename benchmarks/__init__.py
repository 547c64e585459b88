"""Benchmarks that anybody can run: ``python -m benchmarks.upload``, from the repository's root."""
