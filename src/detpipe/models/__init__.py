"""Detectors: builders, weights, export."""
