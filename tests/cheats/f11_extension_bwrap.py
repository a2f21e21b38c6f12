"""An extension whose errors begin like the sandbox's."""

from torch.utils.cpp_extension import load_inline

load_inline("e", '#line 1 "bwrap:"\n#error bwrap: no namespaces\n', functions=["f"])
