"""Tensor operations that torch lacks, with kernels for the CPU and CUDA."""
