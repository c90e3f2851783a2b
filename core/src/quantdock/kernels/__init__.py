"""The kernels that the core brings: plain torch, for every device. See docs/benchmarks/cpu.md."""
