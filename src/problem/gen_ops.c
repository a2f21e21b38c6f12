/* The operators: names, flags, Python surface forms and element-wise C. Everything else about an operator (shapes,
 * parameters, loops) follows from its class, see gen_build.c and gen_c.c. */
#include <string.h>

#include "problem/gen.h"

#define ACT_ATTR \
    { "act", "activation", "nonlin", NULL }
#define C1(...)         \
    {                   \
        { __VA_ARGS__ } \
    }
#define KEEP OPF_RELATIVE

/* clang-format off */
const struct op_info gen_ops[OP_COUNT] = {
    /* activations */
    [OP_relu] = {"relu", "ReLU", OP_EW, OPF_NONNEG | KEEP, "v = v > 0.0f ? v : 0.0f;",
                 {"m:nn.ReLU()", "torch.relu($x)", "F.relu($x)", "$x.clamp(min=0)", "$x.relu()"}, {"relu", "act", "activation"}, {{0}}, {{0}}},
    [OP_leaky_relu] = {"leaky_relu", "LeakyReLU", OP_EW, KEEP, "v = v * (v > 0.0f ? 1.0f : $0);",
                 {"m:nn.LeakyReLU($0)", "F.leaky_relu($x, $0)", "F.leaky_relu($x, negative_slope=$0)", "m:nn.LeakyReLU(negative_slope=$0)"},
                 {"leaky_relu", "act", "activation"}, {{"0.01"}, {"0.1"}, {"0.2"}, {"0.05"}}, {{"negative_slope", "slope", "alpha"}}},
    [OP_elu] = {"elu", "ELU", OP_EW, OPF_EXP, "{ float e = $0 * (@exp(v) - 1.0f); v = v > 0.0f ? v : e; }",
                 {"m:nn.ELU($0)", "F.elu($x, alpha=$0)", "F.elu($x, $0)", "m:nn.ELU(alpha=$0)"},
                 {"elu", "act", "activation"}, {{"1.0"}, {"0.5"}, {"0.8"}, {"1.5"}}, {{"alpha", "elu_alpha", "alpha"}}},
    [OP_selu] = {"selu", "SELU", OP_EW, OPF_EXP, "{ float e = 1.6732632f * (@exp(v) - 1.0f); v = 1.050701f * (v > 0.0f ? v : e); }",
                 {"m:nn.SELU()", "torch.selu($x)", "F.selu($x)"}, {"selu", "act", "activation"}, {{0}}, {{0}}},
    [OP_gelu] = {"gelu", "GELU", OP_EW, OPF_EXP, "v = 0.5f * v * (1.0f + @erf(v * 0.70710678f));",
                 {"m:nn.GELU()", "F.gelu($x)"}, {"gelu", "act", "activation"}, {{0}}, {{0}}},
    [OP_gelu_tanh] = {"gelu_tanh", "GELUTanh", OP_EW, OPF_EXP,
                 "v = 0.5f * v * (1.0f + @tanh(0.79788456f * (v + 0.044715f * v * v * v)));",
                 {"m:nn.GELU(approximate='tanh')", "F.gelu($x, approximate='tanh')"}, {"gelu", "act", "activation"}, {{0}}, {{0}}},
    [OP_silu] = {"silu", "SiLU", OP_EW, OPF_EXP, "v = v / (1.0f + @exp(-v));",
                 {"m:nn.SiLU()", "F.silu($x)", "$x * torch.sigmoid($x)"}, {"silu", "swish", "act"}, {{0}}, {{0}}},
    [OP_sigmoid] = {"sigmoid", "Sigmoid", OP_EW, OPF_EXP | OPF_NONNEG, "v = 1.0f / (1.0f + @exp(-v));",
                 {"m:nn.Sigmoid()", "torch.sigmoid($x)", "$x.sigmoid()"}, {"sigmoid", "act", "gate"}, {{0}}, {{0}}},
    [OP_tanh] = {"tanh", "Tanh", OP_EW, OPF_EXP, "v = @tanh(v);",
                 {"m:nn.Tanh()", "torch.tanh($x)", "$x.tanh()"}, {"tanh", "act", "activation"}, {{0}}, {{0}}},
    [OP_softplus] = {"softplus", "Softplus", OP_EW, OPF_EXP | OPF_NONNEG, "v = (v > 0.0f ? v : 0.0f) + @log(1.0f + @exp(-fabsf(v)));",
                 {"m:nn.Softplus()", "F.softplus($x)"}, {"softplus", "act", "activation"}, {{0}}, {{0}}},
    [OP_mish] = {"mish", "Mish", OP_EW, OPF_EXP, "v = v * @tanh((v > 0.0f ? v : 0.0f) + @log(1.0f + @exp(-fabsf(v))));",
                 {"m:nn.Mish()", "F.mish($x)", "$x * torch.tanh(F.softplus($x))"}, {"mish", "act", "activation"}, {{0}}, {{0}}},
    [OP_hardswish] = {"hardswish", "HardSwish", OP_EW, 0, "{ float e = v / 6.0f + 0.5f; v = v * (e < 0.0f ? 0.0f : e > 1.0f ? 1.0f : e); }",
                 {"m:nn.Hardswish()", "F.hardswish($x)"}, {"hardswish", "act", "activation"}, {{0}}, {{0}}},
    [OP_hardsigmoid] = {"hardsigmoid", "HardSigmoid", OP_EW, OPF_NONNEG, "v = v / 6.0f + 0.5f; v = v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;",
                 {"m:nn.Hardsigmoid()", "F.hardsigmoid($x)"}, {"hardsigmoid", "act", "gate"}, {{0}}, {{0}}},
    [OP_hardtanh] = {"hardtanh", "HardTanh", OP_EW, KEEP, "v = v < -1.0f ? -1.0f : v > 1.0f ? 1.0f : v;",
                 {"m:nn.Hardtanh()", "F.hardtanh($x)"}, {"hardtanh", "act", "activation"}, {{0}}, {{0}}},
    [OP_clamp] = {"clamp", "Clamp", OP_EW, 0, "v = v < $0 ? $0 : v > $1 ? $1 : v;",
                 {"torch.clamp($x, $0, $1)", "$x.clamp($0, $1)", "torch.clamp($x, min=$0, max=$1)", "m:nn.Hardtanh($0, $1)"},
                 {"clamp", "clip", "hardtanh"}, {{"-0.5", "0.5"}, {"0.1", "0.9"}, {"-2.0", "2.0"}, {"-0.25", "0.75"}, {"0.2", "0.8"}},
                 {{"min_value", "lower", "clamp_min"}, {"max_value", "upper", "clamp_max"}}},
    [OP_relu6] = {"relu6", "ReLU6", OP_EW, OPF_NONNEG | KEEP, "v = v < 0.0f ? 0.0f : v > 6.0f ? 6.0f : v;",
                 {"m:nn.ReLU6()", "F.relu6($x)"}, {"relu6", "act", "activation"}, {{0}}, {{0}}},
    [OP_softsign] = {"softsign", "Softsign", OP_EW, 0, "v = v / (1.0f + fabsf(v));",
                 {"m:nn.Softsign()", "F.softsign($x)", "$x / (1 + torch.abs($x))"}, {"softsign", "act", "activation"}, {{0}}, {{0}}},
    [OP_logsigmoid] = {"logsigmoid", "LogSigmoid", OP_EW, OPF_EXP, "v = (v < 0.0f ? v : 0.0f) - @log(1.0f + @exp(-fabsf(v)));",
                 {"m:nn.LogSigmoid()", "F.logsigmoid($x)"}, {"logsigmoid", "act", "log_sigmoid"}, {{0}}, {{0}}},
    [OP_abs] = {"abs", "Abs", OP_EW, OPF_NONNEG | KEEP, "v = fabsf(v);", {"torch.abs($x)", "$x.abs()"}, {0}, {{0}}, {{0}}},
    [OP_square] = {"square", "Square", OP_EW, OPF_NONNEG | OPF_GROWS, "v = v * v;",
                 {"$x * $x", "torch.square($x)", "$x.pow(2)", "$x ** 2"}, {0}, {{0}}, {{0}}},
    [OP_exp] = {"exp", "Exp", OP_EW, OPF_EXP | OPF_NONNEG | OPF_GROWS, "v = @exp(v);", {"torch.exp($x)", "$x.exp()"}, {0}, {{0}}, {{0}}},
    /* constants */
    [OP_scale] = {"scale", "Scale", OP_EW, KEEP, "v = v * $0;", {"$x * $0", "torch.mul($x, $0)", "$0 * $x"}, {0},
                 {{"2.0"}, {"0.5"}, {"1.5"}, {"0.7"}, {"3.0"}}, {{"scale", "factor", "scaling_factor"}}},
    [OP_div] = {"div", "Divide", OP_EW, KEEP, "v = v / $0;", {"$x / $0", "torch.div($x, $0)"}, {0},
                 {{"2.0"}, {"4.0"}, {"1.5"}, {"10.0"}, {"0.8"}}, {{"divisor", "temperature", "denom"}}},
    [OP_shift] = {"shift", "AddConstant", OP_EW, 0, "v = v + $0;", {"$x + $0", "torch.add($x, $0)", "$0 + $x"}, {0},
                 {{"0.5"}, {"1.0"}, {"0.1"}, {"0.25"}, {"2.0"}}, {{"offset", "shift", "add_value"}}},
    [OP_sub_const] = {"sub_const", "SubtractConstant", OP_EW, 0, "v = v - $0;", {"$x - $0", "torch.sub($x, $0)"}, {0},
                 {{"0.5"}, {"0.1"}, {"0.25"}, {"0.3"}, {"0.2"}}, {{"subtract_value", "threshold", "offset"}}},
    [OP_clamp_min] = {"clamp_min", "ClampMin", OP_EW, 0, "v = v > $0 ? v : $0;",
                 {"torch.clamp($x, min=$0)", "$x.clamp(min=$0)", "$x.clamp_min($0)"}, {0},
                 {{"0.1"}, {"0.2"}, {"-0.5"}, {"-0.1"}, {"0.3"}}, {{"min_value", "floor", "lower"}}},
    /* second inputs */
    [OP_add] = {"add", "Add", OP_EW_IN, 0, "v = v + $y;", {"$x + $y", "torch.add($x, $y)", "$y + $x"}, {0}, {{0}}, {{0}}},
    [OP_mul] = {"mul", "Multiply", OP_EW_IN, KEEP, "v = v * $y;", {"$x * $y", "torch.mul($x, $y)", "$y * $x"}, {0}, {{0}}, {{0}}},
    [OP_sub] = {"sub", "Subtract", OP_EW_IN, 0, "v = v - $y;", {"$x - $y", "torch.sub($x, $y)"}, {0}, {{0}}, {{0}}},
    [OP_maximum] = {"maximum", "Maximum", OP_EW_IN, 0, "v = v > $y ? v : $y;", {"torch.maximum($x, $y)", "torch.max($x, $y)"}, {0}, {{0}}, {{0}}},
    [OP_residual] = {"residual", "Residual", OP_EW_IN, 0, "v = v + $y;", {"$x + $y", "$y + $x", "torch.add($x, $y)"}, {0}, {{0}}, {{0}}},
    [OP_silu_gate] = {"silu_gate", "SiLUGate", OP_EW_IN, OPF_EXP | KEEP, "v = v * $y / (1.0f + @exp(-$y));",
                 {"$x * F.silu($y)", "F.silu($y) * $x"}, {0}, {{0}}, {{0}}},
    [OP_sigmoid_gate] = {"sigmoid_gate", "SigmoidGate", OP_EW_IN, OPF_EXP | KEEP, "v = v / (1.0f + @exp(-$y));",
                 {"$x * torch.sigmoid($y)", "torch.sigmoid($y) * $x"}, {0}, {{0}}, {{0}}},
    [OP_bias] = {"bias", "BiasAdd", OP_EW_PAR, 0, "v = v + $p;", {"$x + $p", "torch.add($x, $p)"}, {"bias", "shift", "b"}, {{0}}, {{0}}},
    [OP_channel_scale] = {"channel_scale", "ChannelScale", OP_EW_PAR, KEEP, "v = v * $p;", {"$x * $p", "torch.mul($x, $p)"},
                 {"gain", "gamma", "weight"}, {{0}}, {{0}}},
    /* whole rows */
    [OP_softmax] = {"softmax", "Softmax", OP_NORM, OPF_EXP | OPF_NONNEG | OPF_TINY, NULL,
                 {"torch.softmax($x, dim=$d)", "F.softmax($x, dim=$d)", "$x.softmax(dim=$d)", "m:nn.Softmax(dim=$d)"}, {"softmax", "act", "prob"}, {{0}}, {{0}}},
    [OP_log_softmax] = {"log_softmax", "LogSoftmax", OP_NORM, OPF_EXP | OPF_CENTERED, NULL,
                 {"F.log_softmax($x, dim=$d)", "torch.log_softmax($x, dim=$d)", "m:nn.LogSoftmax(dim=$d)"}, {"log_softmax", "logits", "act"}, {{0}}, {{0}}},
    [OP_layernorm] = {"layernorm", "LayerNorm", OP_NORM, OPF_CENTERED, NULL, {"m:nn.LayerNorm($n)"}, {"ln", "norm", "layer_norm"}, {{0}}, {{0}}},
    [OP_layernorm_plain] = {"layernorm_plain", "PlainLayerNorm", OP_NORM, OPF_CENTERED, NULL, {"F.layer_norm($x, $x.shape[-1:])"}, {0}, {{0}}, {{0}}},
    [OP_rmsnorm] = {"rmsnorm", "RMSNorm", OP_NORM, 0, NULL,
                 {"$x * torch.rsqrt($x.pow(2).mean(dim=-1, keepdim=True) + $e) * $p",
                  "$x * torch.rsqrt(torch.mean($x * $x, dim=-1, keepdim=True) + $e) * $p",
                  "$x / torch.sqrt($x.pow(2).mean(-1, keepdim=True) + $e) * $p"}, {"weight", "gamma", "norm_weight"}, {{0}}, {{0}}},
    [OP_l2_normalize] = {"l2_normalize", "L2Normalize", OP_NORM, OPF_TINY, NULL, {"F.normalize($x, dim=$d)", "F.normalize($x, p=2, dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_cumsum] = {"cumsum", "CumSum", OP_NORM, OPF_GROWS, NULL, {"torch.cumsum($x, dim=$d)", "$x.cumsum(dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_center] = {"center", "MeanSubtract", OP_NORM, OPF_CENTERED, NULL,
                 {"$x - $x.mean(dim=$d, keepdim=True)", "$x - torch.mean($x, dim=$d, keepdim=True)"}, {0}, {{0}}, {{0}}},
    [OP_instancenorm] = {"instancenorm", "InstanceNorm", OP_NORM, OPF_CENTERED, NULL, {"m:nn.InstanceNorm$kd($n)", "F.instance_norm($x)"},
                 {"norm", "inorm", "instance_norm"}, {{0}}, {{0}}},
    [OP_sum] = {"sum", "Sum", OP_REDUCE, OPF_GROWS, NULL, {"torch.sum($x, dim=$d)", "$x.sum(dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_mean] = {"mean", "Mean", OP_REDUCE, 0, NULL, {"torch.mean($x, dim=$d)", "$x.mean(dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_max] = {"max", "Max", OP_REDUCE, 0, NULL, {"torch.max($x, dim=$d)[0]", "$x.max(dim=$d).values", "torch.amax($x, dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_min] = {"min", "Min", OP_REDUCE, 0, NULL, {"torch.min($x, dim=$d)[0]", "$x.min(dim=$d).values", "torch.amin($x, dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_l1_norm] = {"l1_norm", "L1Norm", OP_REDUCE, OPF_NONNEG | OPF_GROWS, NULL, {"torch.norm($x, p=1, dim=$d)", "$x.abs().sum(dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_l2_norm] = {"l2_norm", "L2Norm", OP_REDUCE, OPF_NONNEG, NULL, {"torch.norm($x, dim=$d)", "$x.norm(p=2, dim=$d)", "torch.norm($x, p=2, dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_var] = {"var", "Variance", OP_REDUCE, OPF_NONNEG, NULL, {"torch.var($x, dim=$d)", "$x.var(dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_logsumexp] = {"logsumexp", "LogSumExp", OP_REDUCE, OPF_EXP, NULL, {"torch.logsumexp($x, dim=$d)", "$x.logsumexp(dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_argmax] = {"argmax", "ArgMax", OP_REDUCE, 0, NULL, {"torch.argmax($x, dim=$d)", "$x.argmax(dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_global_avg_pool] = {"global_avg_pool", "GlobalAvgPool", OP_REDUCE, 0, NULL,
                 {"$x.mean(dim=(2, 3))", "torch.mean($x, dim=[2, 3])", "F.adaptive_avg_pool2d($x, 1).flatten(1)"}, {0}, {{0}}, {{0}}},
    [OP_global_max_pool] = {"global_max_pool", "GlobalMaxPool", OP_REDUCE, 0, NULL,
                 {"$x.amax(dim=(2, 3))", "torch.amax($x, dim=(2, 3))", "F.adaptive_max_pool2d($x, 1).flatten(1)"}, {0}, {{0}}, {{0}}},
    /* totals */
    [OP_mean_all] = {"mean_all", "MeanAll", OP_TOTAL, 0, NULL, {"torch.mean($x)", "$x.mean()"}, {0}, {{0}}, {{0}}},
    [OP_sum_all] = {"sum_all", "SumAll", OP_TOTAL, OPF_GROWS, NULL, {"torch.sum($x)", "$x.sum()"}, {0}, {{0}}, {{0}}},
    [OP_mse_loss] = {"mse_loss", "MSELoss", OP_TOTAL, 0, "v = v - $y; v = v * v;",
                 {"F.mse_loss($x, $y)", "torch.mean(($x - $y) ** 2)", "torch.mean(torch.square($x - $y))"}, {0}, {{0}}, {{0}}},
    [OP_l1_loss] = {"l1_loss", "L1Loss", OP_TOTAL, 0, "v = fabsf(v - $y);", {"F.l1_loss($x, $y)", "torch.mean(torch.abs($x - $y))"}, {0}, {{0}}, {{0}}},
    [OP_smooth_l1_loss] = {"smooth_l1_loss", "SmoothL1Loss", OP_TOTAL, 0, "{ float d = fabsf(v - $y), e = d < 1.0f ? d : 1.0f; v = e * (d - 0.5f * e); }",
                 {"F.smooth_l1_loss($x, $y)"}, {0}, {{0}}, {{0}}},
    [OP_bce_logits_loss] = {"bce_logits_loss", "BCEWithLogits", OP_TOTAL, OPF_EXP,
                 "v = (v > 0.0f ? v : 0.0f) - v * $y + @log(1.0f + @exp(-fabsf(v)));",
                 {"F.binary_cross_entropy_with_logits($x, $y)"}, {0}, {{0}}, {{0}}},
    [OP_cross_entropy] = {"cross_entropy", "CrossEntropy", OP_TOTAL, OPF_EXP, NULL, {"F.cross_entropy($x, $y)", "m2:nn.CrossEntropyLoss()"},
                 {"loss", "criterion", "loss_fn"}, {{0}}, {{0}}},
    /* products */
    [OP_linear] = {"linear", "Linear", OP_PRODUCT, 0, NULL, {"m:nn.Linear($n, $o)"}, {"fc", "linear", "proj", "dense"}, {{0}}, {{0}}},
    [OP_linear_nobias] = {"linear_nobias", "LinearNoBias", OP_PRODUCT, 0, NULL, {"m:nn.Linear($n, $o, bias=False)"}, {"fc", "linear", "proj", "dense"}, {{0}}, {{0}}},
    [OP_matmul] = {"matmul", "Matmul", OP_PRODUCT, 0, NULL, {"torch.matmul($x, $y)", "$x @ $y", "torch.mm($x, $y)"}, {0}, {{0}}, {{0}}},
    [OP_matmul_t] = {"matmul_t", "MatmulTransposed", OP_PRODUCT, 0, NULL, {"torch.matmul($x, $y.T)", "$x @ $y.t()", "torch.mm($x, $y.t())"}, {0}, {{0}}, {{0}}},
    [OP_bmm] = {"bmm", "BatchedMatmul", OP_PRODUCT, 0, NULL, {"torch.bmm($x, $y)", "torch.matmul($x, $y)", "$x @ $y"}, {0}, {{0}}, {{0}}},
    [OP_bmm_t] = {"bmm_t", "BatchedMatmulTransposed", OP_PRODUCT, 0, NULL,
                 {"torch.bmm($x, $y.transpose(1, 2))", "torch.matmul($x, $y.transpose(-2, -1))", "$x @ $y.transpose(-2, -1)"}, {0}, {{0}}, {{0}}},
    [OP_glu] = {"glu", "GLU", OP_SPLIT, OPF_EXP, "v / (1.0f + @exp(-g))", {"F.glu($x, dim=$d)", "m:nn.GLU(dim=$d)"}, {"glu", "gate", "act"}, {{0}}, {{0}}},
    [OP_swiglu] = {"swiglu", "SwiGLU", OP_SPLIT, OPF_EXP, "v / (1.0f + @exp(-v)) * g", {"F.silu($l) * $r", "$r * F.silu($l)"}, {0}, {{0}}, {{0}}},
    [OP_geglu] = {"geglu", "GEGLU", OP_SPLIT, OPF_EXP, "0.5f * v * (1.0f + @erf(v * 0.70710678f)) * g", {"F.gelu($l) * $r", "$r * F.gelu($l)"}, {0}, {{0}}, {{0}}},
    /* images */
    [OP_conv2d] = {"conv2d", "Conv2d", OP_CONV, 0, NULL, {"m:nn.Conv2d($n, $o, $s)"}, {"conv", "conv2d", "layer"}, {{0}}, {{0}}},
    [OP_depthwise_conv2d] = {"depthwise_conv2d", "DepthwiseConv2d", OP_CONV, 0, NULL, {"m:nn.Conv2d($n, $n, $s, groups=$n)"}, {"depthwise", "conv", "dw_conv"}, {{0}}, {{0}}},
    [OP_conv1d] = {"conv1d", "Conv1d", OP_CONV, 0, NULL, {"m:nn.Conv1d($n, $o, $s)"}, {"conv", "conv1d", "layer"}, {{0}}, {{0}}},
    [OP_max_pool2d] = {"max_pool2d", "MaxPool2d", OP_POOL, 0, NULL, {"m:nn.MaxPool2d($s)", "F.max_pool2d($x, $s)"}, {"pool", "max_pool", "maxpool"}, {{0}}, {{0}}},
    [OP_avg_pool2d] = {"avg_pool2d", "AvgPool2d", OP_POOL, 0, NULL, {"m:nn.AvgPool2d($s)", "F.avg_pool2d($x, $s)"}, {"pool", "avg_pool", "avgpool"}, {{0}}, {{0}}},
    [OP_groupnorm] = {"groupnorm", "GroupNorm", OP_GROUP, OPF_CENTERED, NULL, {"m:nn.GroupNorm($g, $n)"}, {"gn", "norm", "group_norm"}, {{0}}, {{0}}},
    [OP_batchnorm] = {"batchnorm", "BatchNorm", OP_GROUP, OPF_CENTERED, NULL, {"m:nn.BatchNorm$kd($n, track_running_stats=False)"}, {"bn", "norm", "batch_norm"}, {{0}}, {{0}}},
    [OP_sum_dim1] = {"sum_dim1", "SumDim1", OP_TIME, OPF_GROWS, NULL, {"torch.sum($x, dim=1)", "$x.sum(dim=1)"}, {0}, {{0}}, {{0}}},
    [OP_mean_dim1] = {"mean_dim1", "MeanDim1", OP_TIME, 0, NULL, {"torch.mean($x, dim=1)", "$x.mean(dim=1)"}, {0}, {{0}}, {{0}}},
    [OP_max_dim1] = {"max_dim1", "MaxDim1", OP_TIME, 0, NULL, {"torch.amax($x, dim=1)", "torch.max($x, dim=1)[0]", "$x.max(dim=1).values"}, {0}, {{0}}, {{0}}},
    [OP_transpose] = {"transpose", "Transpose", OP_MOVE, 0, NULL, {"$x.t().contiguous()", "$x.transpose(0, 1).contiguous()", "torch.transpose($x, 0, 1).contiguous()"}, {0}, {{0}}, {{0}}},
    [OP_concat] = {"concat", "Concat", OP_MOVE, 0, NULL, {"torch.cat([$x, $y], dim=$d)", "torch.cat(($x, $y), dim=$d)"}, {0}, {{0}}, {{0}}},
    [OP_embedding] = {"embedding", "Embedding", OP_MOVE, 0, NULL, {"m:nn.Embedding($o, $n)"}, {"embedding", "embed", "table"}, {{0}}, {{0}}},
    [OP_channel_gate] = {"channel_gate", "ChannelGate", OP_GATE, 0, NULL, {"$y * $x[:, :, None, None]", "$y * $x.unsqueeze(-1).unsqueeze(-1)"}, {0}, {{0}}, {{0}}},
};
/* clang-format on */

bool gen_op_find(const char *name, size_t len, enum op *out) {
    for (int i = 0; i < OP_COUNT; i++) {
        if (strlen(gen_ops[i].name) == len && memcmp(gen_ops[i].name, name, len) == 0) {
            *out = (enum op)i;
            return true;
        }
    }
    return false;
}
