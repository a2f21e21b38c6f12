"""A compiler without memory."""

from torch.utils.cpp_extension import load_inline

load_inline("e", "template <long N> struct B { B<2 * N> a; B<2 * N + 1> b; };\nlong f(long x) { return sizeof(B<1>) + x; }",
            functions=["f"], extra_cflags=["-ftemplate-depth=1000000"])
