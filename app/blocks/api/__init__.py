"""What a program asks: the app's endpoints, plain HTTP, a shell, and Python."""
