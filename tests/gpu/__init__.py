"""What holds on an NVIDIA GPU, and how fast it is: `python -m tests.gpu`."""
