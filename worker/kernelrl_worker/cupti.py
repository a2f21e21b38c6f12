"""Which kernels ran, for how long: CUPTI's activity records, asked for directly. torch.profiler gives the same after
three seconds of start-up; this takes a hundredth of one. Offsets are those of CUpti_ActivityKernel, whose later versions
only add at the end."""

import ctypes
import glob
import os
import sys
import time

KIND_CONCURRENT_KERNEL = 10
START, END, NAME = 16, 24, 104
BUFFER_BYTES = 4 << 20
NOT_INITIALIZED = 15

_lib = None


def library():
    global _lib
    if _lib is None:
        candidates = ["libcupti.so", "libcupti.so.13", "libcupti.so.12"]
        for root in sys.path:
            candidates += glob.glob(os.path.join(root, "nvidia", "*", "lib", "libcupti.so*"))
        for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
            if root:
                candidates += glob.glob(os.path.join(root, "extras", "CUPTI", "lib64", "libcupti.so*"))
                candidates += glob.glob(os.path.join(root, "lib64", "libcupti.so*"))
        # The one that torch has loaded, if any, comes first.
        with open("/proc/self/maps", encoding="utf-8") as f:
            loaded = {line.split()[-1] for line in f if "libcupti" in line}
        for name in list(loaded) + candidates:
            try:
                _lib = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise RuntimeError("libcupti: not found")
    return _lib


class Trace:
    """From construction to stop() the kernels of this process are recorded."""

    def __init__(self):
        self.records = []
        self.buffers = []
        lib = library()

        @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
        def request(buffer, size, count):
            memory = ctypes.create_string_buffer(BUFFER_BYTES + 8)
            self.buffers.append(memory)
            address = ctypes.addressof(memory)
            buffer[0] = (address + 7) // 8 * 8
            size[0] = BUFFER_BYTES
            count[0] = 0

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        def complete(_context, _stream, buffer, _size, valid):
            record = ctypes.c_void_p()
            while lib.cuptiActivityGetNextRecord(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)) == 0:
                base = record.value
                if ctypes.c_uint32.from_address(base).value in (3, KIND_CONCURRENT_KERNEL):
                    name = ctypes.c_char_p.from_address(base + NAME).value or b"?"
                    self.records.append(
                        (
                            name.decode(errors="replace")[:400],
                            ctypes.c_uint64.from_address(base + START).value,
                            ctypes.c_uint64.from_address(base + END).value,
                        )
                    )

        self.callbacks = (request, complete)
        for _ in range(20):
            result = lib.cuptiActivityRegisterCallbacks(request, complete)
            if result != NOT_INITIALIZED:
                break
            time.sleep(0.05)  # seen now and then in a young process
        self._check(result, "cuptiActivityRegisterCallbacks")
        self._check(lib.cuptiActivityEnable(KIND_CONCURRENT_KERNEL), "cuptiActivityEnable")

    @staticmethod
    def _check(result, what):
        if result != 0:
            raise RuntimeError(f"{what}: error {result}")

    def stop(self):
        """(name, start, end) of each kernel, times in nanoseconds."""
        lib = library()
        lib.cuptiActivityFlushAll(1)
        lib.cuptiActivityDisable(KIND_CONCURRENT_KERNEL)
        _kept.append(self.callbacks)  # CUPTI may call them once more
        return self.records


_kept = []
