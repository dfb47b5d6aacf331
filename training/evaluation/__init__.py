"""Evaluation: score matrices, metrics, faithfulness of maps, and reports."""
