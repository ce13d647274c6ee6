"""NVIDIA GPUs.

- nvml: the driver, and the only `import pynvml`
- nvml_values: what NVML's numbers mean
- cuda_visible: which GPUs CUDA would show, by UUID
- gpu_sources: ways to learn a card's energy, the best first
- gpu_reads: what else a card offers to read and to set
- gpu: an NVIDIA GPU as a device
"""
