"""Search: retrieval, comparison, and the replacement of unknown words."""
