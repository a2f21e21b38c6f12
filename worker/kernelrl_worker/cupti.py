"""Which kernels ran, for how long and on which streams: CUPTI's activity records, asked for directly. torch.profiler
gives the same after three seconds of start-up; this takes a hundredth of one. Offsets are those of CUpti_ActivityKernel
and of CUpti_ActivityMemcpy and Memset, whose later versions only add at the end."""

import ctypes
import glob
import os
import sys
import time

KIND_KERNEL, KIND_CONCURRENT_KERNEL = 3, 10
KIND_MEMCPY, KIND_MEMSET = 1, 2
RECORDED = (KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMSET)
START, END, NAME = 16, 24, 104  # at the same place in all, but for the name, which copies have not
QUEUE = {KIND_KERNEL: 44, KIND_CONCURRENT_KERNEL: 44, KIND_MEMCPY: 36, KIND_MEMSET: 36}  # context and stream
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
    """From construction to stop() what this process gives the device to do is recorded."""

    def __init__(self):
        self.records = []
        self.buffers = []
        lib = library()

        @ctypes.CFUNCTYPE(
            None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
        )
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
            while (
                lib.cuptiActivityGetNextRecord(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record))
                == 0
            ):
                base = record.value
                kind = ctypes.c_uint32.from_address(base).value
                if kind in QUEUE:
                    name = None
                    if kind not in (KIND_MEMCPY, KIND_MEMSET):
                        name = (ctypes.c_char_p.from_address(base + NAME).value or b"?").decode(errors="replace")[:400]
                    self.records.append(
                        (
                            name,
                            ctypes.c_uint64.from_address(base + START).value,
                            ctypes.c_uint64.from_address(base + END).value,
                            ctypes.c_uint64.from_address(base + QUEUE[kind]).value,
                        )
                    )

        self.callbacks = (request, complete)
        for _ in range(20):
            result = lib.cuptiActivityRegisterCallbacks(request, complete)
            if result != NOT_INITIALIZED:
                break
            time.sleep(0.05)  # seen now and then in a young process
        self._check(result, "cuptiActivityRegisterCallbacks")
        for kind in RECORDED:
            self._check(lib.cuptiActivityEnable(kind), "cuptiActivityEnable")

    @staticmethod
    def _check(result, what):
        if result != 0:
            raise RuntimeError(f"{what}: error {result}")

    def stop(self):
        """(name, start, end, queue) of each kernel, copy and fill, in the order in which they began; times in
        nanoseconds. The name of what is no kernel is None; a queue is a stream of a context."""
        lib = library()
        lib.cuptiActivityFlushAll(1)
        for kind in RECORDED:
            lib.cuptiActivityDisable(kind)
        _kept.append(self.callbacks)  # CUPTI may call them once more
        return sorted(self.records, key=lambda record: record[1])


def summary(records):
    """What ran in a request, whose first record is the harness's own, on the stream that is current: [name, how often,
    nanoseconds] of the others' kernels, and whether any of them, a copy or a fill was on another stream."""
    if not records:
        return [], False
    sums = {}
    for name, start, end, _ in records[1:]:
        if name is not None:
            times, ns = sums.get(name, (0, 0))
            sums[name] = times + 1, ns + end - start
    return [[name, times, ns] for name, (times, ns) in sums.items()], any(r[3] != records[0][3] for r in records[1:])


_kept = []
