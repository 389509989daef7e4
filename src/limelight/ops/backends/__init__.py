"""What computes a checked problem: one protocol, one registry.

    reference   the specification, in readable PyTorch: dense, on every device, in every precision
    tiled       the same formulas, some rows at a time: linear memory, for every call too
    torch       PyTorch's own fused kernels, on other devices
    native      our C++ kernels, on the CPU

A new one is a module that implements `protocol.Backend`, and a line in `registry.BACKENDS`.
"""
