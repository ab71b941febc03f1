"""Triton kernels in JAX.

Triton compiles a kernel to its intermediate language, TTIR, without a GPU. On a CPU
the module `interpreter` runs TTIR on NumPy arrays: every address is checked, and a
launch that leaves its memory raises `LaunchError`.
"""
