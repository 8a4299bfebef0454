"""SMODICE as a staged artifact pipeline: offline imitation from observations, mismatched experts and examples."""

__version__ = "0.1.0"
