"""The warm Python: has imported torch, has run nothing, and forks one jailed child per answer.

Nothing secret is ever in this process, because every child starts with a copy of its memory. It must not run a parallel
operator or touch a GPU either: thread pools and CUDA contexts do not survive a fork.
"""

import contextlib
import gc
import os
import shutil
import sysconfig
import tempfile

import torch

from kernelrl_worker import harness, selfjail


def compiler_paths(gpu):
    """Where a torch extension's compiler and linker look."""
    from torch.utils import cpp_extension

    def of(function):
        try:
            return function("cuda" if gpu else "cpu")
        except Exception:  # older versions take a bool; one without a toolkit has no CUDA paths
            try:
                return function(gpu)
            except Exception:
                return function(False)

    include = of(cpp_extension.include_paths) + [sysconfig.get_paths()["include"]]
    library = of(cpp_extension.library_paths)
    if not any(os.path.isfile(p + "/torch/extension.h") for p in include):
        include = []  # a torch without its headers
    found = {"include": [p for p in include if os.path.isdir(p)], "library": [p for p in library if os.path.isdir(p)]}
    found["standard"] = "c++20" if any(wants_cpp20(p) for p in found["include"]) else "c++17"
    return found


def wants_cpp20(include):
    """The headers themselves say which standard they are for."""
    try:
        with open(include + "/ATen/ATen.h", encoding="utf-8", errors="replace") as f:
            return "#error C++20" in f.read(2000)
    except OSError:
        return False


def nothing_is_tuned():
    """Triton's interpreter has no device to time kernels on, and a kernel under @triton.autotune asks for one. Here all
    of its configurations take the same time, so that the first is used."""

    class NoDevice:
        @staticmethod
        def get_benchmarker():
            return lambda _call, quantiles=(0.5,), **_: [0.0] * len(quantiles)

    with contextlib.suppress(ImportError, AttributeError):  # not installed, or a stand-in
        from triton.runtime import driver

        driver.set_active(NoDevice())


class Zygote:
    def __init__(self):
        # What every answer would import by itself, once for all.
        from torch.utils import cpp_extension  # noqa: F401

        for name in ("triton", "triton.language"):
            try:
                __import__(name)
            except Exception:  # not installed, or not usable here: an answer that wants it will say so
                break
        if os.environ.get("TRITON_INTERPRET"):
            nothing_is_tuned()
        self.filters = {}
        # Forked and not yet collected, so that their numbers cannot belong to anybody else; each with its own folder
        # where there is no jail that gives it a /tmp.
        self.children = {}
        gc.collect()
        gc.freeze()

    def handle(self, request, channel):
        op = request["op"]
        if op == "filter":
            self.filters[request["name"]] = bytes.fromhex(request["program"])
            return {}
        if op == "paths":
            return compiler_paths(request["gpu"])
        if op == "prepare":
            return self.prepare(request["step"])
        if op == "fork":
            fds = [channel.take_fd() for _ in range(2)]
            return self.fork(request, fds, channel)
        if op == "wait":
            return {"code": self.wait(request["pid"])}
        raise ValueError(f"unknown request {op!r}")

    @staticmethod
    def prepare(step):
        """What the first operators on tensors without memory import, which takes seconds: once for all rehearsals.
        First what allocates, which all of them do, then what computes."""
        x = torch.empty_like(torch.empty(2, device="meta"))
        if step > 0:
            torch.relu(x)
        gc.collect()
        gc.freeze()
        return {}

    def wait(self, pid):
        """Collects a child that has ended or is about to. Its status as a shell has it: 128 + N for signal N."""
        if pid not in self.children:
            return -1
        _, status = os.waitpid(pid, 0)
        folder = self.children.pop(pid)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def fork(self, request, fds, channel):
        program = self.filters[request["filter"]]
        own = tempfile.mkdtemp(prefix="kernelrl-answer-") if request.get("weak") else None
        request["folder"] = own or "/tmp"
        pid = os.fork()
        if pid == 0:
            # Standard input and output lead nowhere, standard error is kept for messages, at most a page is read.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            os.dup2(fds[1], 2)
            os.dup2(fds[0], 3)
            for fd in fds + [null]:
                if fd > 3:
                    os.close(fd)
            channel.socket.detach()
            selfjail.enter(request, program, lambda: harness.main(3, request), [3])
        for fd in fds:
            os.close(fd)
        self.children[pid] = own
        return {"pid": pid}
