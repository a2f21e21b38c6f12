"""Turns a forked child of the warm Python into a jail, before it sees any of an answer's code.

bubblewrap starts its program with exec, and then importing torch would cost seconds for every answer. A fork keeps the
import; this module does what bubblewrap does, with the same system calls: namespaces of its own for mounts, processes,
network, IPC and host name (and users, when not started by root), a file system of read-only system directories with a
private /tmp and a fresh /proc, no capabilities, a system call filter (made by the verifier) and resource limits.

Three processes: the outermost waits and dies with whoever started it; below it the first process of the jail, which
collects orphans and whose death kills everything inside; below that the answer's.
"""

import contextlib
import ctypes
import ctypes.util
import glob
import os
import re
import resource
import signal
import sys
import traceback

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR, SYS_CAPSET = 155, 442, 126  # x86-64
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
CAP_SYS_ADMIN = 21
NOBODY = 65534
FIRST_OWN_ID = 1000000  # limits on processes count those of a user, whatever jail they are in: each answer is its own
# The new root is put together on top of a directory that every system has and that the jail sees afresh anyway.
NEW_ROOT = "/proc"


class JailError(Exception):
    pass


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise JailError(f"{what}: {os.strerror(number)}")


def mount(source, target, kind, flags, options=None):
    result = libc.mount(
        source.encode() if source else None,
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    check(result, f"mount {target}")


def bind(path, as_nobody, writable_devices=False):
    """Shows a file or directory of the system at the same place in the jail, read-only."""
    target = NEW_ROOT + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a", encoding="ascii"):
            pass
    mount(path, target, None, MS_BIND | MS_REC)
    if writable_devices:
        return

    class Attributes(ctypes.Structure):
        _fields_ = [
            ("set", ctypes.c_uint64),
            ("clear", ctypes.c_uint64),
            ("a", ctypes.c_uint64),
            ("b", ctypes.c_uint64),
        ]

    attributes = Attributes(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, 0, 0)
    result = libc.syscall(
        SYS_MOUNT_SETATTR,
        AT_FDCWD,
        target.encode(),
        AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    if result != 0:  # a kernel before 5.12: without the mounts below
        try:
            mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
        except JailError:
            if not as_nobody:  # who nobody is cannot write to what belongs to root
                raise


def hub_cache():
    """Where huggingface_hub keeps what it has downloaded, by its own rules."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.realpath(os.path.expanduser(given or os.path.join(home, "hub")))


def becomes_nobody():
    """Whether an answer is nobody in the namespaces that this process can make for it, as unshare() decides it."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        held = [int(line.split()[1], 16) for line in f if line.startswith("CapEff:")]
    return bool(held and held[0] >> CAP_SYS_ADMIN & 1)


def unreadable_model(code):
    """What nobody may not read of the models in the Hub's cache that `code` names; None where there is no such thing.
    Some programs write files that their owner alone may read."""
    for name in set(re.findall(r"""["']([\w.-]+(?:/[\w.-]+)?)["']""", code)):
        for folder, _, files in os.walk(f"{hub_cache()}/models--{name.replace('/', '--')}"):
            for path, needed in [(folder, 0o5)] + [(os.path.join(folder, file), 0o4) for file in files]:
                with contextlib.suppress(OSError):  # a link that leads nowhere
                    if os.stat(path).st_mode & needed != needed:
                        return path
    return None


def visible_paths():
    """What Python, torch and a compiler need: the system's programs and libraries, and wherever this Python lives. Of
    the Hub's cache the models, which the answers to KernelBench's fourth level load; not its data sets, no token."""
    paths = ["/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd"]
    for name in ("/lib", "/lib64", "/bin", "/sbin"):
        if os.path.isdir(name) and not os.path.islink(name):
            paths.append(name)
    own = [sys.prefix, sys.base_prefix, sys.exec_prefix] + [p for p in sys.path if p]
    own.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    own += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if os.environ.get("CUDA_HOME"):
        own.append(os.environ["CUDA_HOME"])
    own += glob.glob(glob.escape(hub_cache()) + "/models--*")
    for path in own:
        path = os.path.realpath(path) if path else ""
        if path and os.path.isdir(path) and path not in ("/", "/tmp", "/root", "/home"):
            paths.append(path)
    kept = []
    for path in sorted(set(paths), key=len):
        if os.path.exists(path) and not any(path == k or path.startswith(k + "/") for k in kept):
            kept.append(path)
    return kept


def build_root(paths, devices, tmp_bytes, as_nobody):
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", NEW_ROOT, "tmpfs", MS_NOSUID, "mode=0755,size=16m")
    for name, size in (("/tmp", tmp_bytes), ("/dev/shm", 64 << 20)):  # first: a Python may live below /tmp
        os.makedirs(NEW_ROOT + name, exist_ok=True)
        mount("tmpfs", NEW_ROOT + name, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={size},nr_inodes=16384")
    for path in paths:
        bind(path, as_nobody)
    for name in ("/lib", "/lib64", "/bin", "/sbin"):
        if os.path.islink(name):
            os.symlink(os.readlink(name), NEW_ROOT + name)
    for name in ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"] + devices:
        if os.path.exists(name):
            bind(name, as_nobody, writable_devices=True)
    os.makedirs(NEW_ROOT + "/proc", exist_ok=True)
    mount("proc", NEW_ROOT + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(NEW_ROOT)
    if libc.syscall(SYS_PIVOT_ROOT, b".", b".") == 0:
        check(libc.umount2(b".", MNT_DETACH), "umount the old root")
    else:
        os.chroot(".")  # for kernels that cannot; there is no way back without capabilities, which go next
    os.chdir("/")
    if libc.mount(None, b"/", None, ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID), None) != 0:
        os.chmod("/", 0o555)
    os.chdir("/tmp")


def drop_privileges(as_nobody, own_id):
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    if as_nobody:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        try:
            os.setresuid(own_id, own_id, own_id)
        except OSError:  # a container without such numbers
            os.setresuid(NOBODY, NOBODY, NOBODY)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    check(libc.syscall(SYS_CAPSET, header, data), "capset")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def install_filter(program):
    """program: a BPF program's bytes. Holds for this thread and all that it will start."""

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    buffer = ctypes.create_string_buffer(program, len(program))
    wanted = Program(len(program) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(wanted), 0, 0), "seccomp")


def limit(which, value):
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def own_address_space():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def close_others(kept):
    last = 2
    for fd in sorted(kept) + [1 << 20]:
        os.closerange(last + 1, min(fd, 4096))
        last = fd


def wait_for(pid):
    """Collects children until `pid` has ended, and ends as it did (a signal N as status 128 + N)."""
    while True:
        try:
            ended, status = os.wait()
        except InterruptedError:
            continue
        except ChildProcessError:
            os._exit(1)
        if ended == pid:
            os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def enter(options, filter_program, body, kept_fds):
    """In a fresh child: becomes a jail and runs body() in it; never returns. options: `memory_bytes` (of address space
    over what is mapped already; 0: not limited), `cpu_s`, `tmp_bytes`, `processes`, `gpu`, `weak` (no namespaces)."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        close_others(kept_fds)
        as_nobody, own_id = False, FIRST_OWN_ID + os.getpid()
        if not options.get("weak"):
            as_nobody = unshare()
            pid = os.fork()
            if pid:
                wait_for(pid)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            devices = sorted(glob.glob("/dev/nvidia*")) if options.get("gpu") else []
            build_root(visible_paths(), [d for d in devices if not os.path.isdir(d)], options["tmp_bytes"], as_nobody)
            libc.sethostname(b"jail", 4)
            pid = os.fork()
            if pid:
                for fd in kept_fds:
                    os.close(fd)
                wait_for(pid)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if options.get("memory_bytes"):
            limit(resource.RLIMIT_AS, own_address_space() + options["memory_bytes"])
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_FSIZE, options["tmp_bytes"])
        limit(resource.RLIMIT_NOFILE, 1024)
        limit(resource.RLIMIT_NPROC, options["processes"])
        limit(resource.RLIMIT_CPU, options["cpu_s"])
        drop_privileges(as_nobody, own_id)
        install_filter(filter_program)
    except BaseException as error:
        os.write(2, f"jail: {type(error).__name__}: {error}\n".encode())
        os._exit(120)
    try:
        body()
    except Exception:  # of a harness that an answer has changed; what the caller does with errors is not for the jail
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def unshare():
    """True: the answer has to become nobody, because this process is root outside as well."""
    inner = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.geteuid() == 0 and libc.unshare(inner) == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(inner | CLONE_NEWUSER), "unshare (user namespaces must be allowed)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as f:
            f.write(text)
    return False
