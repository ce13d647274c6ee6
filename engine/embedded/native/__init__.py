"""Kernels for CPUs in C++, built once on the machine that runs them. Without a compiler torch computes the same.

- `compiler`: which one there is.
- `library`: compiles the sources, keeps the result, loads it.
- `linear`: products with weights stored narrow (`linear.cpp`).
- `rows`: norms, gates, rotation and cache writes (`rows.cpp`, `cache.h`).
- `attention`: attention over the paged cache in place (`attention.cpp`).

`simd.h` has the vectors that all of them compute with.
"""
