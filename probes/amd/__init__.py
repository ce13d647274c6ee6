"""AMD GPUs, observed only.

- amd_smi: the driver, and the only `import amdsmi`
- amd_gpu: an AMD GPU as a device
"""
