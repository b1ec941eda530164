"""Hand-written Triton kernels for CUDA, each with a torch equivalent; `dispatch` decides when one is used."""
