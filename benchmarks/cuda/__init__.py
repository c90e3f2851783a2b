"""Benchmarks of the CUDA kernels; each runs on a GPU: ``python -m benchmarks.cuda.gemm``."""
