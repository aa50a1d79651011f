"""What runs inside the training process: taps that pack rows, and one thread that serves them."""
