"""What the trusted and the jailed side of a ModelNew verdict share: how problems' code is loaded, where tensors lie in
a region of memory, and how both build a module with the same parameters. Nothing here is secret."""

import base64
import contextlib
import ctypes
import importlib.util
import io
import linecache
import math
import mmap
import os
import pickle
import sys
import types

import torch

ALIGN = 256
SHARED_BLOCK = 2 << 20
BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# The types that an answer in C or CUDA C can have, by their names in its interface (docs/formats.md, "Spec").
SPEC_TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "bool": torch.bool,
}
SPEC_NAMES = {dtype: name for name, dtype in SPEC_TYPES.items()}


def element_size(dtype):
    return torch.empty(0, dtype=dtype).element_size()


def load_code(code, name, file_name):
    """A module from source text. Tracebacks show its lines."""
    module = types.ModuleType(name)
    module.__file__ = file_name
    linecache.cache[file_name] = (len(code), None, code.splitlines(True), file_name)
    sys.modules[name] = module  # dataclasses and typing look their module up
    exec(compile(code, file_name, "exec"), module.__dict__)
    return module


def load_file(path, name):
    """A module from a file: compilers such as Triton's want to read the source of what they compile."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def flatten(value, into):
    """Tensors of an output in order, through tuples, lists and dicts. Returns the structure as text."""
    if isinstance(value, torch.Tensor):
        into.append(value)
        return "T"
    if isinstance(value, (tuple, list)):
        return "(" + "".join(flatten(v, into) for v in value) + ")"
    if isinstance(value, dict):
        return "{" + "".join(f"{k}:{flatten(v, into)}" for k, v in value.items()) + "}"
    return f"<{type(value).__name__}>"


class Packer(pickle.Pickler):
    """A configuration of transformers goes as its entries: not every version's can be taken apart and put together."""

    def reducer_override(self, value):
        kind = type(value)
        if callable(getattr(kind, "to_dict", None)) and callable(getattr(kind, "from_dict", None)):
            return kind.from_dict, (value.to_dict(),)
        return NotImplemented


def pack(value):
    buffer = io.BytesIO()
    Packer(buffer).dump(value)
    return base64.b64encode(buffer.getvalue()).decode()


def unpack(text):
    return pickle.loads(base64.b64decode(text))


def is_dense(tensor):
    """True when the elements fill a block of memory without holes or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class Layout:
    """Places of tensors behind each other in a block of memory."""

    def __init__(self, items=None):
        self.items = items or []
        self.bytes = max([i["offset"] + i["bytes"] for i in self.items], default=0)
        self._round()

    def _round(self):
        self.bytes = (self.bytes + ALIGN - 1) // ALIGN * ALIGN

    def add(self, tensor, name=""):
        strides = list(tensor.stride()) if tensor.numel() and is_dense(tensor) else list(contiguous(tensor.shape))
        item = {
            "name": name,
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "stride": strides,
            "offset": self.bytes,
            "bytes": tensor.numel() * tensor.element_size(),
        }
        self.items.append(item)
        self.bytes += item["bytes"]
        self._round()


def contiguous(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides


class Memory:
    """A block of memory that two processes see: a shared mapping, or a piece of a GPU's memory."""

    def __init__(self, base, size, device, keep=None):
        self.base, self.bytes, self.device, self.keep = base, size, device, keep
        if device == "cpu":
            self.flat = torch.frombuffer(keep, dtype=torch.uint8, count=size)
        else:
            self.flat = gpu_bytes(base, size, device)

    @staticmethod
    def from_fd(fd, size, huge=False):
        """Memory of this machine, by a descriptor, which is closed. huge: the memory is filled once, from end to end,
        so that few large pages are better than many small ones."""
        mapping = mmap.mmap(fd, size)
        os.close(fd)
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        return Memory(0, size, "cpu", mapping)

    def holds(self, tensor):
        start = self.flat.data_ptr()
        return start <= tensor.data_ptr() < start + self.bytes

    def view(self, item, base):
        """The tensor of a layout's item whose layout begins at byte `base`. A new object each time."""
        dtype = DTYPES[item["dtype"]]
        start = base + item["offset"]
        flat = self.flat[start : start + item["bytes"]].view(dtype)
        return flat.as_strided(item["shape"], item["stride"]) if item["bytes"] else flat.reshape(item["shape"])

    def array(self, start, shape, dtype):
        """A contiguous tensor that begins at a byte."""
        size = math.prod(shape) * element_size(dtype)
        return self.flat[start : start + size].view(dtype).view(shape)


def without_memory(item):
    """A tensor like that of a layout's item, on the device "meta"."""
    return torch.empty_strided(item["shape"], item["stride"], dtype=DTYPES[item["dtype"]], device="meta")


class _Array:
    """The interface through which torch takes memory it has not allocated."""

    def __init__(self, pointer, size):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }


def gpu_bytes(pointer, size, device):
    return torch.as_tensor(_Array(pointer, size), device=device)


class Cuda:
    """The few driver calls that torch does not offer in a form that fits: memory shared with another process."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.opened = {}

    def _check(self, result, what):
        if result != 0:
            name = ctypes.c_char_p()
            self.lib.cuGetErrorName(result, ctypes.byref(name))
            raise RuntimeError(f"{what}: {(name.value or b'?').decode()}")

    def allocate(self, size):
        # Opening a handle shows the whole of a block, which small pieces share: a block of its own.
        size = (size + SHARED_BLOCK - 1) // SHARED_BLOCK * SHARED_BLOCK
        pointer = ctypes.c_uint64()
        self._check(self.lib.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), "cuMemAlloc")
        return pointer.value

    def free(self, pointer):
        self.lib.cuMemFree_v2(ctypes.c_uint64(pointer))

    def export(self, pointer):
        """(handle in hexadecimal and the block's number, offset of the pointer in the block that the handle stands for,
        its size). A handle may come again for another block at the same address, a number does not."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._check(
            self.lib.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer)),
            "cuMemGetAddressRange",
        )
        handle = (ctypes.c_ubyte * 64)()
        self._check(self.lib.cuIpcGetMemHandle(handle, base), "cuIpcGetMemHandle")
        number = ctypes.c_uint64()
        self._check(self.lib.cuPointerGetAttribute(ctypes.byref(number), BUFFER_ID, base), "cuPointerGetAttribute")
        return f"{bytes(handle).hex()}:{number.value}", pointer - base.value, size.value

    def open(self, handle):
        """A handle's block in this process; opened once, until close_all() or until it stands for another block."""
        handle, _, number = handle.partition(":")
        pointer, known = self.opened.get(handle, (None, None))
        if pointer is not None and known != number:
            self.lib.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
            del self.opened[handle]
        if handle not in self.opened:

            class Handle(ctypes.Structure):
                _fields_ = [("bytes", ctypes.c_ubyte * 64)]

            value = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(handle)))
            pointer = ctypes.c_uint64()
            self.lib.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
            self._check(self.lib.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), value, 1), "cuIpcOpenMemHandle")
            self.opened[handle] = pointer.value, number
        return self.opened[handle][0]

    def extent(self, pointer):
        """Bytes from a pointer to the end of its block."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._check(
            self.lib.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer)),
            "cuMemGetAddressRange",
        )
        return base.value + size.value - pointer

    def close_all(self):
        for pointer, _ in self.opened.values():
            self.lib.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
        self.opened = {}

    def synchronize(self):
        self._check(self.lib.cuCtxSynchronize(), "cuCtxSynchronize")


# ---- modules with equal parameters on both sides ----


PLAIN, TOUCHED, RANDOM = "plain", "touched", "random"  # what initialisers make of constants


def touch_constant(tensor):
    """Changes one element, drawn at random, of a tensor that has several. So whoever looks at some elements cannot tell
    that a scale of ones or a bias of zeros may be left out."""
    if tensor.numel() > 1 and tensor.is_floating_point() and tensor.is_contiguous():
        flat = tensor.detach().view(-1)
        at = int(torch.randint(flat.numel(), (1,)))
        flat[at] = float(flat[at]) / 2 or 0.25  # towards zero, where less is out of some function's domain


@contextlib.contextmanager
def constants(how):
    """Initialisers that fill with a constant (norms' scales of one, biases of zero) change one element (TOUCHED), or
    fill with random numbers instead (RANDOM). They draw from the generator that all initialisers draw from, so that
    both sides get the same."""
    if how == PLAIN:
        yield
        return
    saved = {name: getattr(torch.nn.init, name) for name in ("ones_", "zeros_", "constant_")}

    def around(value):
        def fill(tensor, *rest):
            center = rest[0] if rest else value
            with torch.no_grad():
                if how == RANDOM:
                    return tensor.copy_(center + 0.25 * torch.randn(tensor.shape).to(tensor.dtype))
                touch_constant(tensor.fill_(center))
                return tensor

        return fill

    torch.nn.init.ones_ = around(1.0)
    torch.nn.init.zeros_ = around(0.0)
    torch.nn.init.constant_ = around(0.0)
    try:
        yield
    finally:
        for name, function in saved.items():
            setattr(torch.nn.init, name, function)


def seed_everything(seed):
    """Without waking the GPU when nothing has used it."""
    if torch.cuda.is_initialized():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def build_module(cls, init, seed, how, device, dtype):
    """A module as KernelBench builds it: under a seed, on the CPU, then moved. init: list, or dict of keywords. how: of
    constants."""
    seed_everything(seed)
    with constants(how):
        module = cls(**init) if isinstance(init, dict) else cls(*init)
    if not isinstance(module, torch.nn.Module):
        return module
    return module.to(device=device, dtype=dtype)


def state_of(module):
    """Named parameters and floating-point buffers, in order."""
    if not isinstance(module, torch.nn.Module):
        return []
    state = list(module.named_parameters())
    state += [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
    return [(n, t.detach()) for n, t in state]


def adopt_state(module, wanted):
    """Gives a module the reference's parameters: by name where names and shapes agree, else in order where all shapes
    do, else it keeps its own, which the same seed has made equal when it was built in the same order. Returns which."""
    mine = state_of(module)
    by_name = dict(mine)
    pairs = None
    if all(n in by_name and by_name[n].shape == t.shape for n, t in wanted):
        pairs, how = [(by_name[n], t) for n, t in wanted], "name"
    elif [t.shape for _, t in mine] == [t.shape for _, t in wanted]:
        pairs, how = [(m, t) for (_, m), (_, t) in zip(mine, wanted)], "order"
    if pairs is None:
        return "own"
    with torch.no_grad():
        # Equal already in most cases; then what the module has derived from them stays valid.
        for target, value in pairs:
            if target.dtype != value.dtype or not torch.equal(target, value):
                target.copy_(value)
    return how
