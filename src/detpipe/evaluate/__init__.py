"""Inference, scores, reports and the gate; after detection all functions of tables."""
