"""What an answer's compilation goes through: load_inline and load are handed to the verifier, which compiles outside of
this process, in a jail of its own and through its cache, and hands back a shared object."""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys

import torch

from kernelrl_worker import tensors


class BuildError(Exception):
    """The compiler's errors."""


class Builds:
    """How many objects this process has asked for, and whether it may ask now."""

    asked, allowed = 0, True


# The last: PyTorch asks NVML for the figures in its message, and a jail has no NVML.
NO_MEMORY = (
    "out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED", "not enough memory", "can't allocate memory",
    "Cannot allocate memory", "->nvmlInit",
)  # fmt: skip
# What has to import before an answer of a backend makes sense.
PACKAGES = {"triton": "triton", "tilelang": "tilelang", "cute": "cutlass"}


def missing(backend, gpu):
    """Why a backend cannot be used here; None when it can."""
    package = PACKAGES.get(backend)
    if package:
        try:
            importlib.import_module(package)
        except Exception as error:
            return f"{package}: {type(error).__name__}: {error}"
    if backend == "hip" and not torch.version.hip:
        return "this PyTorch is not built for HIP"
    if backend == "thunderkittens" and not os.path.isdir(os.environ.get("THUNDERKITTENS_ROOT", "")):
        return "THUNDERKITTENS_ROOT names no directory"
    if backend in ("cuda", "hip", "cute", "tilelang", "thunderkittens") and not gpu:
        return "needs a GPU"
    return None


def kind_of(error, otherwise="compile"):
    """Which outcome an exception stands for."""
    text = str(error)
    if isinstance(error, BuildError):
        return "compile"
    if isinstance(error, MemoryError) or any(t in text for t in NO_MEMORY):
        return "memory"
    if isinstance(error, (SyntaxError, ImportError)):
        return "compile"
    if type(error).__name__ in ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"):
        return "compile"
    return otherwise


def _request(channel, message):
    """Asks the verifier for a shared object. Returns its path and the reply."""
    if not Builds.allowed:
        raise BuildError("nobody compiles now")
    Builds.asked += 1
    channel.send(message)
    reply = channel.receive()
    if reply is None:
        os._exit(0)
    if not reply["ok"]:
        raise BuildError(reply["error"])
    return f"/proc/self/fd/{channel.take_fd()}", reply


def _text(sources):
    if sources is None:
        return ""
    if isinstance(sources, (list, tuple)):
        return "\n".join(sources)
    return sources


def _flags(flags):
    return [f for f in (flags or []) if isinstance(f, str)]


def intercept(channel):
    """Replaces torch.utils.cpp_extension's load_inline and load."""
    from torch.utils import cpp_extension

    def load_inline(
        name,
        cpp_sources,
        cuda_sources=None,
        functions=None,
        extra_cflags=None,
        extra_cuda_cflags=None,
        extra_ldflags=None,
        extra_include_paths=None,
        with_cuda=None,
        **_ignored,
    ):
        if isinstance(functions, str):
            functions = [functions]
        if isinstance(functions, dict):
            functions = list(functions)
        return _build(
            channel,
            name,
            _text(cpp_sources),
            _text(cuda_sources),
            functions,
            _flags(extra_cflags),
            _flags(extra_cuda_cflags),
            _flags(extra_ldflags),
        )

    def load(name, sources, extra_cflags=None, extra_cuda_cflags=None, extra_ldflags=None, **_ignored):
        cpp, cuda = [], []
        for path in [sources] if isinstance(sources, str) else sources:
            with open(path, encoding="utf-8") as f:
                (cuda if str(path).endswith((".cu", ".cuh")) else cpp).append(f.read())
        return _build(
            channel,
            name,
            _text(cpp),
            _text(cuda),
            None,
            _flags(extra_cflags),
            _flags(extra_cuda_cflags),
            _flags(extra_ldflags),
        )

    cpp_extension.load_inline = load_inline
    cpp_extension.load = load


class Extension:
    """What load_inline gives back: functions as attributes."""


def _build(channel, name, cpp, cuda, functions, cflags, cuda_cflags, ldflags):
    message = {
        "op": "build",
        "cpp": cpp,
        "cuda": cuda,
        "functions": functions,
        "cflags": cflags,
        "cuda_cflags": cuda_cflags,
        "ldflags": ldflags,
    }
    path, reply = _request(channel, message)
    if reply["standin"]:
        return _standin(path, functions)
    loader = importlib.machinery.ExtensionFileLoader("kernelrl_extension", path)
    spec = importlib.util.spec_from_file_location("kernelrl_extension", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.__name__ = name
    sys.modules.pop("kernelrl_extension", None)
    return module


def _standin(path, functions):
    """An object compiled with the stand-in for torch's headers: functions that take a tuple of Python objects."""
    library = ctypes.PyDLL(path)
    module = Extension()

    def entry(symbol):
        function = getattr(library, symbol)
        function.restype = ctypes.py_object
        function.argtypes = [ctypes.py_object]
        return function

    if functions:
        for name in functions:
            function = entry("kernelrl_call_" + name)
            setattr(module, name, lambda *arguments, call=function: call(arguments))
        return module
    by_name = entry("kernelrl_module")
    for name in by_name((None,)):
        setattr(module, name, lambda *arguments, key=name: by_name((key, arguments)))
    return module


# ---- native answers ----


def native_class(path, spec, structure, device):
    """A class like ModelNew around a shared object with kernelrl_native(void **arguments, void *stream)."""
    library = ctypes.CDLL(path)
    library.kernelrl_native.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.kernelrl_scratch.restype = ctypes.c_size_t
    args = spec["args"]
    types = tensors.SPEC_TYPES
    outputs = [a for a in args if a["role"] == "output"]
    scalar_type = {"f32": ctypes.c_double, "i64": ctypes.c_int64, "bool": ctypes.c_uint8}

    class Native(torch.nn.Module):
        def __init__(self, *_init, **_named):
            super().__init__()
            for number, a in enumerate(a for a in args if a["role"] in ("param", "buffer")):
                self.register_buffer(f"t{number}", torch.empty(a["shape"], dtype=types[a["type"]]), persistent=False)
            self.names = [a["name"] for a in args if a["role"] in ("param", "buffer")]

        def adopt(self, wanted):
            """The reference's parameters, by the names that the interface has."""
            values = dict(wanted)
            for number, name in enumerate(self.names):
                getattr(self, f"t{number}").copy_(values[name])

        def forward(self, *inputs):
            made = [torch.empty(a["shape"], dtype=types[a["type"]], device=device) for a in outputs]
            kept, pointers = [], []
            for a, value in zip(args, inputs):
                if a.get("scalar"):
                    kept.append(scalar_type[a["type"]](value))
                    pointers.append(ctypes.addressof(kept[-1]))
                else:
                    kept.append(value.contiguous())
                    pointers.append(kept[-1].data_ptr())
            pointers += [getattr(self, f"t{i}").data_ptr() for i in range(len(self.names))]
            pointers += [t.data_ptr() for t in made]
            size = library.kernelrl_scratch()
            if size:
                kept.append(torch.empty(size, dtype=torch.uint8, device=device))
                pointers.append(kept[-1].data_ptr())
            stream = torch.cuda.current_stream().cuda_stream if device != "cpu" else None
            library.kernelrl_native((ctypes.c_void_p * len(pointers))(*pointers), stream)
            return made[0] if structure == "T" else tuple(made)

    return Native
