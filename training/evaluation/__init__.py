"""Evaluation: metrics, score matrices, faithfulness, and the report."""
