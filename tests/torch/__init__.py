"""The bridge to PyTorch, where PyTorch is installed."""
