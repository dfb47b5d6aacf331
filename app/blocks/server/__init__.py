"""Around the server: who may ask what, and how much."""
