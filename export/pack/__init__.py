"""The pack: its schema, reading and writing it, safety checks, the model card."""
