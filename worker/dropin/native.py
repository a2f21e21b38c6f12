# flake8: noqa: F821
# ---- below: a kernel in C or CUDA as a function of tensors ----------------------------------------------------------

import ctypes  # noqa: E402
import hashlib  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

import torch  # noqa: E402

_TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "bool": torch.bool,
}


def _library(unit):
    """The unit as a library, compiled once: the folder is KERNELRL_DROPIN_CACHE, else ~/.cache/kernelrl/dropin."""
    cache = os.environ.get("KERNELRL_DROPIN_CACHE") or os.path.expanduser("~/.cache/kernelrl/dropin")
    os.makedirs(cache, mode=0o700, exist_ok=True)
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
        machine = next((line for line in f if line.startswith(("flags", "Features"))), "")
    key = hashlib.sha256("\0".join([unit, machine, *COMPILE]).encode()).hexdigest()
    path = os.path.join(cache, key + ".so")
    if not os.path.exists(path):
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            source, made = os.path.join(folder, "unit" + ENDING), os.path.join(folder, "unit.so")
            with open(source, "w", encoding="utf-8") as f:
                f.write(unit)
            done = subprocess.run([*COMPILE, source, "-o", made, *LINK], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError("the kernel does not compile here:\n" + done.stderr[-2000:])
            os.replace(made, path)
    return ctypes.CDLL(path)


class _Kernel:
    """One shape of the kernel: what it is called with, and the memory that it asks for."""

    def __init__(self, unit, args):
        self.args = args
        self.library = _library(unit)
        scratch = self.library.kernelrl_scratch_bytes if _DEVICE == "cpu" else self.library.kernelrl_scratch
        scratch.restype = ctypes.c_size_t
        self.scratch_bytes, self.prepared_bytes = scratch(), 0
        if _DEVICE == "cpu":
            self.library.kernelrl_prepared_bytes.restype = ctypes.c_size_t
            self.prepared_bytes = self.library.kernelrl_prepared_bytes()

    def __call__(self, module, inputs):
        held, pointers, outputs, copies = [], [], [], []
        buffers = [b for b in module.buffers() if _DEVICE == "cpu" or b.is_floating_point()]
        state = list(module.parameters()) + buffers
        given = iter(inputs)
        kept = iter(state)
        for arg in self.args:
            if arg["role"] == "output":
                tensor = torch.empty(arg["shape"], dtype=_TYPES[arg["type"]], device=_DEVICE)
                outputs.append(tensor)
            elif arg.get("scalar"):
                value = next(given)
                kinds = {"i64": ctypes.c_int64, "bool": ctypes.c_uint8}
                number = kinds.get(arg["type"], ctypes.c_double)(value)
                held.append(number)
                pointers.append(ctypes.cast(ctypes.pointer(number), ctypes.c_void_p))
                continue
            else:
                tensor = next(given if arg["role"] == "input" else kept).detach()
                wanted = _TYPES[arg["type"]]
                fits = tensor.dtype == wanted and tensor.is_contiguous()
                own = tensor if fits else tensor.to(wanted).contiguous()
                if arg.get("mutated") and own is not tensor:
                    copies.append((tensor, own))
                tensor = own
            held.append(tensor)
            pointers.append(ctypes.c_void_p(tensor.data_ptr()))
        # Behind the arguments: what prepare() has made (in each call, because parameters may have changed), and scratch
        # memory.
        prepared = torch.empty(self.prepared_bytes + 64, dtype=torch.uint8) if self.prepared_bytes else None
        scratch = None
        if self.scratch_bytes:
            scratch = torch.empty(self.scratch_bytes + 64, dtype=torch.uint8, device=_DEVICE)
        for block in (prepared, scratch) if _DEVICE == "cpu" else (scratch,):
            address = 0 if block is None else (block.data_ptr() + 63) // 64 * 64
            pointers.append(ctypes.c_void_p(address))
        array = (ctypes.c_void_p * len(pointers))(*[p.value for p in pointers])
        if _DEVICE != "cpu":
            self.library.kernelrl_native(array, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        else:
            if self.prepared_bytes:
                self.library.kernelrl_prepare(array)
            self.library.kernelrl_call(array)
        for tensor, own in copies:
            tensor.copy_(own)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


_kernels = []


def _shapes_of(module, problems):
    """The kernels by the signature of the inputs that they were made for."""
    if not _kernels:
        _kernels.extend(_Kernel(unit, args) for unit, args in zip(UNITS, ARGUMENTS))
    shapes = {}
    for problem, kernel in zip(problems, _kernels):
        values = [v.to(_DEVICE) if isinstance(v, torch.Tensor) else v for v in problem.get_inputs()]
        shapes[_signature(values)] = kernel
    return shapes
