"""A look inside: maps, the lens, the collapse meter."""
