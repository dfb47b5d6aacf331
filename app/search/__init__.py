"""Search: queries, questions and answers, comparison, links."""
