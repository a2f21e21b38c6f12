/* This file holds the examples of prompt_option one_shot and few_shot: one to three pairs a backend. No example is a
 * problem of a benchmark or of a built-in set. rl/loop/rl_test.c checks that their answers parse. */
#include "policy/prompt.h"

#include <string.h>

static const char add_module[] = "import torch\n"
                                 "import torch.nn as nn\n"
                                 "\n"
                                 "\n"
                                 "class Model(nn.Module):\n"
                                 "    def forward(self, a, b):\n"
                                 "        return a + b\n"
                                 "\n"
                                 "\n"
                                 "def get_inputs():\n"
                                 "    return [torch.randn(64, 256), torch.randn(64, 256)]\n"
                                 "\n"
                                 "\n"
                                 "def get_init_inputs():\n"
                                 "    return []\n";

static const char linear_gelu_module[] = "import torch\n"
                                         "import torch.nn as nn\n"
                                         "import torch.nn.functional as F\n"
                                         "\n"
                                         "\n"
                                         "class Model(nn.Module):\n"
                                         "    def __init__(self, n_in, n_out):\n"
                                         "        super().__init__()\n"
                                         "        self.fc = nn.Linear(n_in, n_out)\n"
                                         "\n"
                                         "    def forward(self, x):\n"
                                         "        return F.gelu(self.fc(x))\n"
                                         "\n"
                                         "\n"
                                         "def get_inputs():\n"
                                         "    return [torch.randn(32, 256)]\n"
                                         "\n"
                                         "\n"
                                         "def get_init_inputs():\n"
                                         "    return [256, 512]\n";

static const char softmax_module[] = "import torch\n"
                                     "import torch.nn as nn\n"
                                     "\n"
                                     "\n"
                                     "class Model(nn.Module):\n"
                                     "    def forward(self, x):\n"
                                     "        return torch.softmax(x, dim=1)\n"
                                     "\n"
                                     "\n"
                                     "def get_inputs():\n"
                                     "    return [torch.randn(128, 1024)]\n"
                                     "\n"
                                     "\n"
                                     "def get_init_inputs():\n"
                                     "    return []\n";

static const char add_c[] = "void kernel(const float *restrict a, const float *restrict b, float *restrict out) {\n"
                            "#pragma omp parallel for simd schedule(static)\n"
                            "    for (long i = 0; i < OUT_N; i++) out[i] = a[i] + b[i];\n"
                            "}\n";

static const char linear_gelu_c[] =
    "// Each row of the weight is read once for all rows of x; bias and GELU are applied while the sum is in a "
    "register.\n"
    "void kernel(const float *restrict x, const float *restrict fc_weight, const float *restrict fc_bias,\n"
    "            float *restrict out) {\n"
    "#pragma omp parallel for schedule(static)\n"
    "    for (long o = 0; o < OUT_D1; o++) {\n"
    "        for (long r = 0; r < OUT_D0; r++) {\n"
    "            float sum = 0;\n"
    "#pragma omp simd reduction(+ : sum)\n"
    "            for (long k = 0; k < X_D1; k++) sum += x[r * X_D1 + k] * fc_weight[o * X_D1 + k];\n"
    "            const float v = sum + fc_bias[o];\n"
    "            out[r * OUT_D1 + o] = 0.5f * v * (1.0f + erff(v * 0.70710678f));\n"
    "        }\n"
    "    }\n"
    "}\n";

static const char softmax_c[] =
    "// A row stays in the cache for its three passes: largest value, exponentials and their sum, scaling.\n"
    "void kernel(const float *restrict x, float *restrict out) {\n"
    "#pragma omp parallel for schedule(static)\n"
    "    for (long r = 0; r < X_D0; r++) {\n"
    "        const float *in = x + r * X_D1;\n"
    "        float *y = out + r * X_D1, top = in[0], sum = 0;\n"
    "#pragma omp simd reduction(max : top)\n"
    "        for (long i = 0; i < X_D1; i++) top = in[i] > top ? in[i] : top;\n"
    "#pragma omp simd reduction(+ : sum)\n"
    "        for (long i = 0; i < X_D1; i++) {\n"
    "            y[i] = expf(in[i] - top);\n"
    "            sum += y[i];\n"
    "        }\n"
    "        const float scale = 1.0f / sum;\n"
    "#pragma omp simd\n"
    "        for (long i = 0; i < X_D1; i++) y[i] *= scale;\n"
    "    }\n"
    "}\n";

static const char add_native[] =
    "__global__ void add(const float *a, const float *b, float *out) {\n"
    "    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;\n"
    "    if (i < OUT_N) out[i] = a[i] + b[i];\n"
    "}\n"
    "\n"
    "extern \"C\" void kernel(const float *a, const float *b, float *out, cudaStream_t stream) {\n"
    "    add<<<(OUT_N + 255) / 256, 256, 0, stream>>>(a, b, out);\n"
    "}\n";

static const char add_triton[] =
    "import torch\n"
    "import torch.nn as nn\n"
    "import triton\n"
    "import triton.language as tl\n"
    "\n"
    "\n"
    "@triton.jit\n"
    "def add_kernel(a, b, out, n, BLOCK: tl.constexpr):\n"
    "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
    "    inside = i < n\n"
    "    tl.store(out + i, tl.load(a + i, mask=inside) + tl.load(b + i, mask=inside), mask=inside)\n"
    "\n"
    "\n"
    "class ModelNew(nn.Module):\n"
    "    def forward(self, a, b):\n"
    "        a, b = a.contiguous(), b.contiguous()\n"
    "        out = torch.empty_like(a)\n"
    "        add_kernel[(triton.cdiv(out.numel(), 1024),)](a, b, out, out.numel(), BLOCK=1024)\n"
    "        return out\n";

static const char add_cuda[] =
    "import torch\n"
    "import torch.nn as nn\n"
    "from torch.utils.cpp_extension import load_inline\n"
    "\n"
    "cuda_source = \"\"\"\n"
    "#include <torch/extension.h>\n"
    "\n"
    "__global__ void add_kernel(const float *a, const float *b, float *out, long n) {\n"
    "    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;\n"
    "    if (i < n) out[i] = a[i] + b[i];\n"
    "}\n"
    "\n"
    "torch::Tensor add(torch::Tensor a, torch::Tensor b) {\n"
    "    auto out = torch::empty_like(a);\n"
    "    const long n = a.numel();\n"
    "    add_kernel<<<(n + 255) / 256, 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n);\n"
    "    return out;\n"
    "}\n"
    "\"\"\"\n"
    "add_module = load_inline(name=\"add_example\", cpp_sources=\"torch::Tensor add(torch::Tensor a, torch::Tensor "
    "b);\",\n"
    "                         cuda_sources=cuda_source, functions=[\"add\"])\n"
    "\n"
    "\n"
    "class ModelNew(nn.Module):\n"
    "    def forward(self, a, b):\n"
    "        return add_module.add(a.contiguous(), b.contiguous())\n";

static const char add_torch[] = "import torch\n"
                                "import torch.nn as nn\n"
                                "\n"
                                "\n"
                                "class ModelNew(nn.Module):\n"
                                "    def forward(self, a, b):\n"
                                "        out = torch.empty_like(a)\n"
                                "        torch.add(a, b, out=out)\n"
                                "        return out\n";

static const struct prompt_example c_examples[] = {
    {add_module, add_c}, {linear_gelu_module, linear_gelu_c}, {softmax_module, softmax_c}};
static const struct prompt_example native_examples[] = {{add_module, add_native}};
static const struct prompt_example triton_examples[] = {{add_module, add_triton}};
static const struct prompt_example cuda_examples[] = {{add_module, add_cuda}};
static const struct prompt_example torch_examples[] = {{add_module, add_torch}};

int prompt_examples(const char *backend, int most, const struct prompt_example **out) {
    static const struct {
        const char *backend;
        const struct prompt_example *example;
        int n;
    } all[] = {
        {"c", c_examples, ARRAY_LEN(c_examples)},
        {"cuda_native", native_examples, ARRAY_LEN(native_examples)},
        {"triton", triton_examples, ARRAY_LEN(triton_examples)},
        {"cuda", cuda_examples, ARRAY_LEN(cuda_examples)},
        {"torch_cpu", torch_examples, ARRAY_LEN(torch_examples)},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (strcmp(all[i].backend, backend) == 0) {
            *out = all[i].example;
            return most < all[i].n ? most : all[i].n;
        }
    *out = NULL;
    return 0;
}
