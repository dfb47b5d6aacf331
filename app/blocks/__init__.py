"""The page in `gr.Blocks` with its server and endpoints."""
