"""OpenCL devices: host.py finds and drives them, the other modules implement ops in kernels."""
