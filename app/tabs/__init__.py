"""The app's tabs: each has one `build` that lays it out and connects it to the session."""
