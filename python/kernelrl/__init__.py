"""Language models learn to write compute kernels. The program is in the wheel; `python -m kernelrl` starts it."""
