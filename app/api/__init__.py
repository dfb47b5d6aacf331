"""The programming interfaces: HTTP, Gradio endpoints, shell and Python."""
