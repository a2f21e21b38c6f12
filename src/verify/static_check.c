#include "verify/static_check.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens ---- */

enum token_kind { TOKEN_NAME, TOKEN_NUMBER, TOKEN_STRING, TOKEN_OTHER };
struct check_token {
    const char *p;
    size_t n;
    enum token_kind kind;
    int line;
};
struct tokens {
    struct check_token *v;
    size_t n, cap;
};

static void push(struct tokens *t, const char *p, size_t n, enum token_kind kind, int line) {
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 1024;
        t->v = xrealloc(t->v, t->cap * sizeof *t->v);
    }
    t->v[t->n++] = (struct check_token){p, n, kind, line};
}

static bool name_char(char c) { return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 128; }

/* End of a string that begins at p with its quote (three of them: triple). Lines are counted. */
static const char *string_end(const char *p, bool triple, bool raw, int *line) {
    char quote = *p;
    p += triple ? 3 : 1;
    while (*p) {
        if (*p == '\n') {
            if (!triple) return p;
            ++*line;
        }
        if (*p == '\\' && p[1] && !raw) {
            if (p[1] == '\n') ++*line;
            p += 2;
            continue;
        }
        if (*p == '\\' && raw && p[1] == quote) {
            p += 2;
            continue;
        }
        if (*p == quote && (!triple || (p[1] == quote && p[2] == quote))) return p + (triple ? 3 : 1);
        p++;
    }
    return p;
}

/* r, b, f, u and their pairs. */
static bool is_prefix(const struct check_token *t) {
    if (t->kind != TOKEN_NAME || t->n > 2) return false;
    for (size_t i = 0; i < t->n; i++)
        if (!strchr("rRbBfFuU", t->p[i])) return false;
    return true;
}

static void python_tokens(const char *p, struct tokens *out) {
    int line = 1;
    while (*p) {
        if (*p == '\n') line++;
        if (isspace((unsigned char)*p) || (*p == '\\' && p[1] == '\n')) {
            p++;
            continue;
        }
        if (*p == '#') {
            p += strcspn(p, "\n");
            continue;
        }
        if (*p == '"' || *p == '\'') {
            struct check_token *last = out->n ? &out->v[out->n - 1] : NULL;
            bool prefixed = last && is_prefix(last) && last->p + last->n == p, raw = false;
            for (size_t i = 0; prefixed && i < last->n; i++) raw |= last->p[i] == 'r' || last->p[i] == 'R';
            if (prefixed) out->n--;
            int at = line;
            const char *end = string_end(p, p[1] == *p && p[2] == *p, raw, &line);
            push(out, p, (size_t)(end - p), TOKEN_STRING, at);
            p = end;
        } else if (name_char(*p)) {
            const char *q = p;
            while (name_char(*q)) q++;
            push(out, p, (size_t)(q - p), isdigit((unsigned char)*p) ? TOKEN_NUMBER : TOKEN_NAME, line);
            p = q;
        } else {
            /* == and its like are no assignments. */
            size_t n = strchr("=<>!+-*/%&|^", *p) && p[1] == '=' ? 2 : 1;
            push(out, p++, n, TOKEN_OTHER, line);
            p += n - 1;
        }
    }
}

static void c_tokens(const char *p, const char *end, int line, struct tokens *out) {
    while (p < end) {
        if (*p == '\n') line++;
        if (isspace((unsigned char)*p)) {
            p++;
        } else if (end - p > 1 && p[0] == '/' && p[1] == '/') {
            while (p < end && *p != '\n') p++;
        } else if (end - p > 1 && p[0] == '/' && p[1] == '*') {
            for (p += 2; p < end && !(p[-1] == '/' && p[-2] == '*'); p++) line += *p == '\n';
        } else if (*p == '"' || *p == '\'') {
            const char *q = p + 1;
            while (q < end && *q != *p && *q != '\n') q += 1 + (*q == '\\' && q + 1 < end);
            push(out, p, (size_t)(q - p), TOKEN_STRING, line);
            p = q < end ? q + (*q == *p) : end;
        } else if (name_char(*p)) {
            const char *q = p;
            while (q < end && name_char(*q)) q++;
            push(out, p, (size_t)(q - p), isdigit((unsigned char)*p) ? TOKEN_NUMBER : TOKEN_NAME, line);
            p = q;
        } else {
            size_t n = end - p > 1 && ((p[0] == ':' && p[1] == ':') || (p[0] == '#' && p[1] == '#')) ? 2 : 1;
            push(out, p, n, TOKEN_OTHER, line);
            p += n;
        }
    }
}

/* ---- rules ---- */

/* A pattern is tokens with blanks between; a * stands for any one token, NAME* for a name that begins so. */
struct rule {
    const char *name;
    enum check_severity severity;
    const char *patterns; /* | between alternatives */
};

static const struct rule python_rules[] = {
    {"code_bypass", CHECK_STRICT, "try :|except :|except *|pass"},
    {"timing_event_patch", CHECK_STRICT,
     "cuda . Event =|. elapsed_time =|. record =|cuda . synchronize =|time . time =|time . perf_counter* =|"
     "time . monotonic* =|from time import|testing . do_bench =|setattr (|. __dict__ [|cuda . __dict__"},
    {"thread_injection", CHECK_STRICT,
     "import threading|from threading|import multiprocessing|from multiprocessing|import concurrent|from concurrent|"
     "import subprocess|from subprocess|os . fork|os . system|os . popen|import asyncio|import _thread"},
    {"lazy_eval", CHECK_STRICT,
     "_make_subclass|_make_wrapper_subclass|Tensor . __new__|__torch_function__|__torch_dispatch__|as_subclass|"
     "( torch . Tensor ) :"},
    {"dynamic_code", CHECK_STRICT,
     "exec (|eval (|import base64|from base64|__import__ (|import importlib|import marshal|"
     "import codecs|getattr ( torch|getattr ( nn|getattr ( F"},
    {"introspection", CHECK_STRICT,
     "import gc|gc . get_objects|gc . get_referrers|_getframe|f_back|f_locals|f_globals|inspect . stack|"
     "inspect . currentframe|sys . modules|sys . settrace|globals (|__globals__|__builtins__|import ctypes|from ctypes|"
     "import atexit|import builtins"},
    {"reaches_outside", CHECK_STRICT,
     "open (|torch . load|torch . save|os . environ|import socket|import requests|import urllib|import http|"
     "import pip|hub . load|import shutil|import mmap"},
    {"global_flags", CHECK_STRICT,
     "allow_tf32 =|cudnn . benchmark =|set_float32_matmul_precision|torch . manual_seed|"
     "torch . set_default*|use_deterministic_algorithms"},
    {"patches_torch", CHECK_STRICT, "torch . * = *|torch . Tensor . * =|nn . Module . * =|F . * ="},
    {"compiled_by_torch", CHECK_WARN, "torch . compile|torch . jit"},
    {"stream_injection", CHECK_WARN, "cuda . Stream|cuda . stream|cuda . CUDAGraph|cuda . graph|ExternalStream"},
    {"precision_downgrade", CHECK_WARN,
     ". half (|. bfloat16 (|torch . float16|torch . bfloat16|torch . half|tl . float16|"
     "tl . bfloat16|float8*|autocast"},
    {"pytorch_wrap", CHECK_WARN,
     "nn . Linear|nn . Conv*|nn . BatchNorm*|nn . LayerNorm|nn . GroupNorm|nn . InstanceNorm*|nn . LSTM|nn . GRU|nn . "
     "RNN|"
     "nn . Multihead*|nn . Transformer*|nn . *Pool*|nn . MaxPool*|nn . AvgPool*|nn . Adaptive*|nn . ReLU*|nn . GELU|"
     "nn . Softmax|nn . Sigmoid|nn . Tanh|nn . Dropout*|nn . Embedding|nn . Softplus|nn . Hardtanh|nn . ELU|nn . SiLU"},
    {"torch_computation_ops", CHECK_WARN,
     "torch . matmul|torch . mm|torch . bmm|torch . addmm|torch . einsum|torch . conv*|torch . relu|torch . softmax|"
     "torch . sigmoid|torch . tanh|torch . sum|torch . mean|torch . max|torch . min|torch . cumsum|torch . cumprod|"
     "torch . logsumexp|torch . norm|torch . clamp|torch . exp|F . *"},
    {"imports_kernels", CHECK_WARN,
     "import flash_attn|from flash_attn|import flashinfer|from flashinfer|import vllm|"
     "from vllm|import xformers|from xformers|import apex|from apex|import torchao"},
};

static const struct rule c_rules[] = {
    {"thread_injection", CHECK_STRICT,
     "pthread_create|std :: thread|std :: async|std :: jthread|fork (|vfork (|clone ("},
    {"reaches_outside", CHECK_STRICT,
     "system (|popen (|execve|execl*|dlopen|dlsym|fopen|ifstream|ofstream|socket (|ptrace|process_vm_*|mprotect|mmap "
     "("},
    {"runs_outside_the_call", CHECK_STRICT, "constructor )|constructor ,|atexit (|at_quick_exit"},
    {"other_devices", CHECK_STRICT, "cudaSetDevice|cudaMemcpyPeer*|cudaDeviceEnablePeerAccess"},
    {"cache_policy", CHECK_STRICT, "cudaAccessPolicyWindow|cudaLimitPersistingL2CacheSize|cudaStreamSetAttribute"},
    {"stream_injection", CHECK_WARN, "cudaStreamCreate*|getStreamFromPool|cudaStreamNonBlocking|cudaGraphLaunch"},
    {"token_pasting", CHECK_WARN, "##"},
    {"library_call", CHECK_WARN,
     "at :: matmul|at :: mm|at :: bmm|at :: addmm|at :: conv*|at :: linear|at :: softmax|at :: relu|torch :: matmul|"
     "torch :: mm|torch :: bmm|torch :: addmm|torch :: conv*|torch :: nn|torch :: relu|torch :: softmax|torch :: sum|"
     "cublas*|cudnn*|cusparse*|thrust ::|cub ::"},
    {"static_state", CHECK_WARN,
     "static std ::|static torch ::|static at ::|static float *|static void *|thread_local"},
    {"precision_downgrade", CHECK_WARN,
     "__half|half2|__half2|nv_bfloat16|__nv_bfloat16|__nv_fp8*|wmma ::|__float2half*"},
};

/* Does one pattern hold at token i? p ends at a | or at the end. */
static bool matches(const struct tokens *t, size_t i, const char *p, const char *end) {
    while (p < end) {
        const char *blank = memchr(p, ' ', (size_t)(end - p)), *stop = blank ? blank : end;
        size_t n = (size_t)(stop - p);
        if (i >= t->n || t->v[i].kind == TOKEN_STRING) return false;
        const struct check_token *k = &t->v[i];
        bool any = n == 1 && *p == '*', prefix = n > 1 && p[n - 1] == '*';
        if (!any && prefix && (k->kind != TOKEN_NAME || k->n < n - 1 || memcmp(k->p, p, n - 1) != 0)) return false;
        if (!any && !prefix && (k->n != n || memcmp(k->p, p, n) != 0)) return false;
        i++;
        p = blank ? blank + 1 : end;
    }
    return true;
}

static void note(struct static_findings *out, const char *rule, enum check_severity severity, int line) {
    for (int i = 0; i < out->n; i++)
        if (out->items[i].rule == rule && out->items[i].line == line) return;
    if (out->n < CHECK_MAX_FINDINGS) out->items[out->n++] = (struct finding){rule, severity, line};
}

static void apply(const struct tokens *t, const struct rule *rules, size_t n_rules, const char *precision,
                  struct static_findings *out) {
    for (size_t r = 0; r < n_rules; r++) {
        if (strcmp(rules[r].name, "precision_downgrade") == 0 && strcmp(precision, "fp32") != 0) continue;
        for (size_t i = 0; i < t->n; i++) {
            if (i > 0 && t->v[i - 1].n == 1 && *t->v[i - 1].p == '.' && *rules[r].patterns != '.' &&
                strcmp(rules[r].name, "code_bypass") == 0)
                continue; /* an attribute of that name */
            for (const char *p = rules[r].patterns; *p;) {
                size_t n = strcspn(p, "|");
                if (matches(t, i, p, p + n)) note(out, rules[r].name, rules[r].severity, t->v[i].line);
                p += n + (p[n] == '|');
            }
        }
    }
}

static bool has(const struct tokens *t, const char *pattern) {
    for (size_t i = 0; i < t->n; i++)
        if (matches(t, i, pattern, pattern + strlen(pattern))) return true;
    return false;
}

/* Whether all of the patterns between & are there, of which | separates alternatives. */
static bool has_all(const struct tokens *t, const char *needs) {
    bool all = true;
    while (*needs && all) {
        const char *end = needs + strcspn(needs, "&");
        bool any = false;
        while (needs < end) {
            const size_t n = strcspn(needs, "|&");
            CLEANUP_FREE char *pattern = xstrndup(needs, n);
            any |= has(t, pattern);
            needs += n + (needs[n] == '|');
        }
        all = any;
        needs += *needs == '&';
    }
    return all;
}

/* A string that holds C++ rather than words. */
static bool looks_like_c(const struct check_token *s) {
    static const char *const signs[] = {"#include", "__global__", "__device__", "torch::", "at::", "void "};
    for (size_t i = 0; i < ARRAY_LEN(signs); i++)
        if (mem_find(s->p, s->n, signs[i], strlen(signs[i]))) return true;
    return false;
}

void static_check(enum verify_backend backend, const char *precision, const char *source, struct static_findings *out) {
    struct tokens python = {0}, c = {0};
    out->n = 0;
    const struct backend_info *info = backend_info(backend);
    if (!info->is_module)
        c_tokens(source, source + strlen(source), 1, &c);
    else {
        python_tokens(source, &python);
        for (size_t i = 0; i < python.n; i++)
            if (python.v[i].kind == TOKEN_STRING && looks_like_c(&python.v[i]))
                c_tokens(python.v[i].p, python.v[i].p + python.v[i].n, python.v[i].line, &c);
    }
    apply(&python, python_rules, ARRAY_LEN(python_rules), precision, out);
    apply(&c, c_rules, ARRAY_LEN(c_rules), precision, out);
    /* What the backend is made of has to be there. */
    if (!has_all(&c, info->c_needs) || !has_all(&python, info->python_needs))
        note(out, "no_backend_code", CHECK_STRICT, 1);
    free(python.v);
    free(c.v);
}

void findings_text(const struct static_findings *f, struct str *out) {
    for (int severity = CHECK_STRICT; severity >= CHECK_WARN; severity--)
        for (int i = 0; i < f->n; i++)
            if ((int)f->items[i].severity == severity)
                str_addf(out, "%s%s:%d", out->len ? " " : "", f->items[i].rule, f->items[i].line);
}

const struct finding *findings_strict(const struct static_findings *f) {
    for (int i = 0; i < f->n; i++)
        if (f->items[i].severity == CHECK_STRICT) return &f->items[i];
    return NULL;
}
