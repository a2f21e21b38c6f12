"""Options longer than what the compiler's shell takes."""

from torch.utils.cpp_extension import load_inline

load_inline("e", "int f(int x) { return x; }", functions=["f"], extra_cflags=["-D" + "A" * 20000])
