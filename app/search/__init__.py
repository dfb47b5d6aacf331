"""Search: queries, ranking, answers and comparison."""
