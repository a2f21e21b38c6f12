"""The jailed side of a ModelNew verdict: loads an answer and calls it when asked.

It shares its process with the answer, so nothing that it says is believed. It knows no seeds of inputs, no expected
values and no clock; it says where an output lies, and the verifier reads that memory by itself. The reference is timed
in a process of the same kind, so that whatever a request costs is the same on both sides.
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading

import traceback

import torch

from kernelrl_worker import build, cupti, selfjail, tensors
from kernelrl_worker.channel import Channel

libc = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_PERTURB = -1, -2, -3, -6
ANSWER = "answer.py"  # in the answer's own folder
MAX_OUTPUTS = 64
OPERATIONS = (
    "warm", "available", "load", "rehearse", "attach", "build", "poison", "ready", "call", "describe", "rest",
    "threads", "record",
)  # fmt: skip


def explain(error):
    """The exception in one line, with the answer's own line it came from, and without the traceback."""
    text = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, build.BuildError):
        return str(error)[:6000]
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}" + (
            f"\n{error.text.rstrip()}" if error.text else ""
        )
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.basename(f.filename) == ANSWER]
    if frames:
        text = f"line {frames[-1].lineno}: {text}"
        if frames[-1].line:
            text += f"\n{frames[-1].line}"
    # JSON has no room for a NUL, nor for half of a pair of surrogates.
    return text[:6000].replace("\0", "?").encode("utf-8", "replace").decode()


def place_of(t):
    """(address, elements from the first to behind the last; 0 where that is their number)."""
    if type(t) is not torch.Tensor or t.layout != torch.strided:
        return 0, 0
    if t.is_contiguous() or not t.numel():
        return t.data_ptr(), 0
    return t.data_ptr(), 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))


class Harness:
    def __init__(self, channel, options):
        self.channel = channel
        self.device = options["device"]
        self.gpu = self.device.startswith("cuda")
        self.path = os.path.join(options["folder"], ANSWER)
        self.models = {}
        self.outputs = []
        self.inputs = {}
        self.cls = None
        self.cuda = None
        self.warmed = False
        self.blocks = {}  # address and size of those that outputs have been in and the allocator does not know

    # ---- before there is an answer ----

    def warm(self, request, _):
        """What every answer would wait for: the GPU's context, and Triton's first kernel."""
        if self.gpu:
            self._start_gpu()
            with contextlib.suppress(OSError, RuntimeError):
                cupti.library()
        if request["triton"] and not self.warmed:
            try:
                from kernelrl_worker import warmup

                warmup.touch(self.device)
                self.warmed = True
            except Exception:  # the answer will say so, if it matters to it
                pass
        return {}

    def available(self, request, _):
        """What is lacking for answers of a backend; nothing: "". Believed of a process that has run nothing of one."""
        return {"lacking": build.missing(request["backend"], self.gpu) or ""}

    # ---- loading ----

    def load(self, request, _):
        """Executes the answer's module. Its class must be there afterwards."""
        self.dtype = tensors.PRECISIONS[request["precision"]]
        tensors.seed_everything(request["seed"])
        if request["backend"] == "cuda_native":
            path = f"/proc/self/fd/{self.channel.take_fd()}"
            self.cls = build.native_class(path, request["spec"], request["structure"], self.device)
            return {}
        build.intercept(self.channel)
        with open(self.path, "w", encoding="utf-8", errors="surrogateescape") as f:
            f.write(request["code"])
        sys.dont_write_bytecode = True
        try:
            module = tensors.load_file(self.path, "answer")
        except Exception as error:
            return {"ok": False, "kind": build.kind_of(error), "error": explain(error)}
        name = request["entry"]
        if not hasattr(module, name):
            return {"ok": False, "kind": "compile", "error": f"defines no class {name}"}
        self.cls = getattr(module, name)
        return {}

    def rehearse(self, request, _):
        """Compiles the Triton kernels that a call launches, ahead of the answer's turn: that takes a processor and no
        device. A second copy of the module makes a call on tensors without memory, in which kernels are compiled but
        not launched; the copy is dropped, and Triton finds what it has compiled in its cache on disk. Whatever goes
        wrong here goes wrong again, and is told, when the answer is called. Kernels that are tuned would be timed, and
        what an extension or the driver is asked for by itself would be done: those answers wait."""
        mine = sys.modules.get("answer")
        with open(self.path, encoding="utf-8", errors="surrogateescape") as f:
            text = f.read()
        if build.Builds.asked or any(word in text for word in ("autotune", "ctypes")):
            return {}
        build.Builds.allowed = False  # the verifier waits for this reply, and for no other message
        try:
            from kernelrl_worker import warmup

            with warmup.compiling_only() as possible:
                if possible:
                    copy = tensors.load_file(self.path, "answer")
                    init = tensors.unpack(request["init"])
                    model = tensors.build_module(copy.ModelNew, init, 0, tensors.PLAIN, "meta", self.dtype)
                    shapes = iter([tensors.without_memory(item) for item in request["inputs"]])
                    inputs = [next(shapes) if v is None else v for v in tensors.unpack(request["values"])]
                    with torch.no_grad():
                        model(*inputs)
        except Exception:  # see above
            pass
        build.Builds.allowed = True
        if mine is not None:
            sys.modules["answer"] = mine
        gc.collect()
        if self.gpu and self.cuda:
            torch.cuda.empty_cache()
        return {}

    def attach(self, request, channel):
        """The memory through which inputs and parameters come, and what lies where in it."""
        self.layout = request["layout"]
        if self.gpu:
            self._start_gpu()
            base = self.cuda.open(request["handle"]) + request["offset"]
            self.memory = tensors.Memory(base, request["bytes"], self.device)
        else:
            self.memory = tensors.Memory.from_fd(channel.take_fd(), request["bytes"])
        values = tensors.unpack(request["values"])
        self.values = values
        return {}

    def _start_gpu(self):
        if self.cuda is None:
            torch.cuda.init()
            self.tick = torch.zeros(1, device=self.device)
            self.cuda = tensors.Cuda()

    def build(self, request, _):
        """One instance per parameter set, as KernelBench builds it, with the reference's parameters."""
        which = request["param_set"]
        init = tensors.unpack(request["init"])
        try:
            module = tensors.build_module(
                self.cls, init, request["seed"], request["constants"], self.device, self.dtype
            )
            if not hasattr(module, "forward"):
                return {"ok": False, "kind": "runtime", "error": "the class has no forward()"}
            wanted = []
            for item in self.layout["params"]:
                base = self.layout["param_base"] + which * self.layout["param_stride"]
                wanted.append((item["name"], self.memory.view(item, base)))
            if hasattr(module, "adopt"):
                module.adopt(wanted)
                how = "name"
            else:
                how = tensors.adopt_state(module, wanted) if request["adopt"] else "own"
        except Exception as error:
            return {"ok": False, "kind": build.kind_of(error, "runtime"), "error": explain(error)}
        self.models[which] = module
        self._settle()
        return {"params": how}

    # ---- calling ----

    def poison(self, request, _):
        """Fills what the allocator will hand out next, so that memory nobody has written does not pass for an
        output."""
        byte = request["byte"]
        if not self.gpu:
            libc.mallopt(M_PERTURB, byte)  # 0 turns it off
            return {}
        if byte:
            # All at once, so that each has memory of its own; freed together at the end of the line.
            [torch.full((n,), byte, dtype=torch.uint8, device=self.device) for n in request["sizes"] if n]
        return {}

    def ready(self, request, _):
        """Tensor objects for the inputs of each slot: new ones, over memory whose contents are new."""
        self.outputs = []
        self.inputs = {}
        for slot in request["slots"]:
            base = self.layout["slot_base"] + slot * self.layout["slot_stride"]
            tensors_of_slot = iter([self.memory.view(i, base) for i in self.layout["inputs"]])
            self.inputs[slot] = [next(tensors_of_slot) if v is None else v for v in self.values]
        self._settle()
        gc.collect(0)
        return {"segments": self._segments()} if self.gpu and self.cuda else {}

    def _segments(self):
        """Blocks of this process's memory, with the handles that open them elsewhere: those of the allocator, and those
        that an output has been in."""
        places = {s["address"]: s["total_size"] for s in torch.cuda.memory_snapshot()}
        places.update(self.blocks)
        result = []
        for base, size in places.items():
            try:
                handle, offset, block = self.cuda.export(base)
            except RuntimeError:  # freed meanwhile
                self.blocks.pop(base, None)
                continue
            if offset == 0:
                result.append([base, min(size, block), handle])
        return result

    def _settle(self):
        if self.gpu and self.cuda:
            self.cuda.synchronize()

    def call(self, request, _):
        """The module on each slot in turn. Says where the outputs are as soon as the device has finished. With "apart"
        a call begins when the device has finished the one before."""
        outputs, pointers = [], []
        seeds = request.get("seeds") or [None] * len(request["slots"])
        nonce, apart = request["nonce"], self.gpu and request.get("apart", False)
        batch = [self.inputs[slot] for slot in request["slots"]]
        gc.disable()
        try:
            if self.gpu:
                # The device comes over from another process; a request for no calls costs the same.
                self.tick.add_(1)
                self.cuda.synchronize()
            module = self.models.get(request["param_set"])
            with torch.no_grad():
                for inputs, seed in zip(batch, seeds):
                    if seed is not None:
                        tensors.seed_everything(seed)
                    outputs.append(module(*inputs))
                    if apart:
                        self.cuda.synchronize()
            if self.gpu:
                self.cuda.synchronize()
            for value in outputs:
                flat = []
                tensors.flatten(value, flat)
                pointers.append([place_of(t) for t in flat[:MAX_OUTPUTS]])
        except Exception as error:
            gc.enable()
            return {"ok": False, "kind": build.kind_of(error, "runtime"), "error": explain(error), "nonce": nonce}
        gc.enable()
        self.outputs = outputs
        return {"nonce": nonce, "pointers": pointers}

    def describe(self, request, _):
        """What the outputs of the last calls are; with GPU memory, how another process opens them."""
        result = []
        for index in request["calls"]:
            flat = []
            structure = tensors.flatten(self.outputs[index], flat)
            items = []
            for t in flat[:MAX_OUTPUTS]:
                plain = type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout == torch.strided
                item = {"plain": plain, "type": type(t).__name__}
                if plain:
                    item.update(
                        dtype=tensors.DTYPE_NAMES.get(t.dtype, str(t.dtype)),
                        shape=list(t.shape),
                        stride=list(t.stride()),
                        pointer=t.data_ptr(),
                        device=t.device.type,
                        conjugate=bool(t.is_conj() or t.is_neg()),
                        aliases_input=self._aliases(t, index, request["slots"]),
                    )
                    if self.gpu and t.is_cuda and t.numel():
                        try:
                            handle, offset, size = self.cuda.export(t.data_ptr())
                        except RuntimeError:  # memory of somebody else's: an input's
                            handle = None
                        if handle:
                            item["handle"], item["offset"] = handle, offset
                            self.blocks[t.data_ptr() - offset] = size
                items.append(item)
            result.append({"structure": structure, "outputs": items})
        return {"calls": result}

    def _aliases(self, output, index, slots):
        start = output.data_ptr()
        for value in self.inputs[slots[index]]:
            if isinstance(value, torch.Tensor):
                low = value.data_ptr()
                if output.numel() and low <= start < low + value.numel() * value.element_size():
                    return True
        return False

    def rest(self, _request, _channel):
        """There is nothing to call for a while: others may need the memory."""
        self.outputs = []
        gc.collect()
        if self.gpu and self.cuda:
            torch.cuda.empty_cache()
        return {}

    def threads(self, _request, _channel):
        return {"threads": threading.active_count()}

    def record(self, request, _):
        """Between a request with "on" and one without, what this process gives the device to do is recorded by CUPTI.
        In between comes a request for calls like any other."""
        if request["on"]:
            try:
                self.trace = cupti.Trace()
            except RuntimeError as error:
                return {"ok": False, "kind": "trouble", "error": str(error)}
            return {}
        trace, self.trace = self.trace, None
        kernels, elsewhere = cupti.summary(trace.stop())
        return {"kernels": kernels[:4096], "elsewhere": elsewhere}

    def handle(self, request):
        op = request["op"]
        if op not in OPERATIONS:
            raise ValueError(f"unknown request {op!r}")
        reply = getattr(self, op)(request, self.channel)
        reply.setdefault("ok", True)
        return reply


def main(fd, options):
    """Serves one answer until the verifier closes the socket. Runs in the jail; options["folder"] is the answer's own:
    the jail's /tmp, or without namespaces one that no other answer is given."""
    # Memory that was freed is kept and used again. By default that depends on what the process has freed before, and
    # the page faults of an output that is mapped anew for each call can cost more than the call.
    libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
    libc.mallopt(M_TOP_PAD, 16 << 20)
    torch.set_num_threads(options["threads"])
    os.environ.pop("KERNELRL_HOME", None)
    # Models that are there already; there is no network to look for newer ones.
    os.environ.update(dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), selfjail.hub_cache()))
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    os.environ.update(
        HOME=options["folder"],
        TMPDIR=options["folder"],
        USER="nobody",
        TRITON_CACHE_DIR=os.path.join(options["folder"], "triton"),
        TORCHINDUCTOR_CACHE_DIR=os.path.join(options["folder"], "inductor"),
        # torch.compile compiles in this process: helpers that it keeps would be processes of the answer's own.
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )
    channel = Channel(fd)
    harness = Harness(channel, options)
    channel.send({"ok": True, "hello": os.getpid()})
    while True:
        request = channel.receive()
        if request is None:
            os._exit(0)
        try:
            reply = harness.handle(request)
        except MemoryError as error:
            reply = {"ok": False, "kind": "memory", "error": f"out of memory: {error}"}
        except Exception as error:
            reply = {"ok": False, "kind": build.kind_of(error, "runtime"), "error": explain(error)}
        channel.send(reply)
