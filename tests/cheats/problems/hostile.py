"""A problem that tries to get out of its jail when it is loaded, when it makes inputs and when it runs. It fails with a
message that names what worked; where nothing did, it is an ordinary ReLU."""

import ctypes
import os
import signal
import socket
import subprocess

import torch
import torch.nn as nn

libc = ctypes.CDLL(None, use_errno=True)


def reads(path):
    def attempt():
        with open(path, "rb") as f:
            return f.read(1)

    return attempt


def writes(path):
    def attempt():
        with open(path, "wb") as f:
            f.write(b"x")
        os.unlink(path)

    return attempt


def connects():
    with socket.create_connection(("127.0.0.1", @PORT@), timeout=1):
        pass


def others():
    """Processes that are not of this jail: everything beyond its first three."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if len(pids) <= 3:
        raise OSError("alone")
    return pids


def sees_secrets():
    wanted = [name for name in os.environ if "TOKEN" in name or "SECRET" in name or "KEY" in name]
    if not wanted:
        raise OSError("no secret")


def signals_parent():
    os.kill(os.getppid(), signal.SIGWINCH)  # which does nothing, where it arrives


def new_namespace():
    if libc.unshare(0x20000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def has_descriptors():
    """Descriptors beside the standard ones, the channel to the verifier and the memory of this very problem."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # that of the list itself
            continue
        if int(fd) > 3 and not target.startswith(("/memfd:", "/proc/", "/usr/")):
            return target
    raise OSError("none")


ATTEMPTS = {
    "read SECRET_FILE": reads("@SECRET_FILE@"),
    "read shadow": reads("/etc/shadow"),
    "read a home": lambda: os.listdir("/root") and os.listdir("/home"),
    "read the parent": reads(f"/proc/{os.getppid()}/environ"),
    "write beside it": writes("@SECRET_FILE@.out"),
    "write /usr": writes("/usr/lib/kernelrl-hole"),
    "write the worker": writes(os.path.dirname(os.path.abspath(torch.__file__)) + "/hole.py"),
    "connect": connects,
    "run a program": lambda: subprocess.run(["/bin/true"], check=True),
    "fork": lambda: os.fork() or os._exit(0),
    "other processes": others,
    "secrets in the environment": sees_secrets,
    "a signal to the parent": signals_parent,
    "a new namespace": new_namespace,
    "descriptors of others": has_descriptors,
}


def holes():
    found = []
    for name, attempt in ATTEMPTS.items():
        try:
            attempt()
            found.append(name)
        except Exception:
            pass
    return found


def check(where):
    found = holes()
    if found:
        raise RuntimeError(f"holes when {where}: {found}")


check("loaded")


class Model(nn.Module):
    def forward(self, x):
        check("run")
        return torch.relu(x)


def get_inputs():
    check("drawing inputs")
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
