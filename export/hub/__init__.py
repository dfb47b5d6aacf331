"""The Hugging Face Hub, or any server that speaks its protocol: push, pull, list, sources."""
