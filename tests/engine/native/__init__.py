"""The native kernels against torch."""
