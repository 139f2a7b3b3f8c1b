"""Tests of `labextension/` as it is delivered; what pages show is in `tests/browser/`."""
