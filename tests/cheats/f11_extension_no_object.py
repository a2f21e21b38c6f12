"""An extension that is compiled to nothing."""

from torch.utils.cpp_extension import load_inline

load_inline("e", "int f(int x) { return x; }", functions=["f"], extra_cflags=["-fsyntax-only"])
