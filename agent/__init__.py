"""The code that runs inside the training process: taps that record rows, and one thread that serves them."""
