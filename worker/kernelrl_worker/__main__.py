"""Serves the verifier over a socket (file descriptor 3), one request at a time.

With the argument `zygote` it is the warm Python that answers are forked from (zygote.py), else the reference worker.
With `jailed` the reference worker runs in the jail of answers (selfjail.py), because its problem is hostile; descriptor
4 is then the jail's filter of system calls. The worker ends when the socket closes. Only the standard library is
imported before torch is known to be there, so that a missing torch is told apart from anything else.
"""

import os
import resource
import select
import signal
import sys

FILTER_FD = 4
# A hostile problem's processor seconds, its files, and its address space beyond its data (limit_memory).
JAIL_CPU_S, JAIL_TMP_BYTES, JAIL_SHARED_BYTES = 1800, 128 << 20, 4 << 30


def serve(channel, threads, is_zygote):
    import torch  # after the channel is up, so that failure can be reported

    from kernelrl_worker import constants, problem

    if is_zygote:
        from kernelrl_worker import zygote

        service = zygote.Zygote()
    else:
        from kernelrl_worker.service import Service

        torch.set_num_threads(threads)
        service = Service()

    channel.send(
        {
            "ok": True,
            "protocol": constants.PROTOCOL,
            "torch": str(torch.__version__),
            "python": sys.version.split()[0],
            "threads": threads,
        }
    )
    while True:
        request = channel.receive()
        if request is None:
            return
        try:
            reply = service.handle(request, channel)
            reply["ok"] = True
        except problem.ProblemError as error:
            reply = {"ok": False, "kind": constants.KIND_PROBLEM, "error": str(error)}
        except problem.NoRoom as error:
            reply = {"ok": False, "kind": constants.KIND_MEMORY, "error": str(error)}
        except MemoryError as error:
            reply = {"ok": False, "kind": constants.KIND_PROBLEM, "error": f"out of memory: {error}"}
        except Exception as error:  # a fault of ours, told to the verifier rather than lost
            reply = {"ok": False, "kind": constants.KIND_INTERNAL, "error": f"{type(error).__name__}: {error}"}
        channel.send(reply)


def in_jail(body):
    """Runs body() in a jail, and returns when it has ended or the verifier has closed the socket. torch is imported
    here, in front of the fork, and nothing of a problem."""
    import torch  # noqa: F401

    from kernelrl_worker import constants, selfjail, service  # noqa: F401

    with open(FILTER_FD, "rb") as f:
        program = f.read()
    options = {
        "memory_bytes": resource.getrlimit(resource.RLIMIT_DATA)[0] + JAIL_SHARED_BYTES,
        "cpu_s": JAIL_CPU_S,
        "tmp_bytes": JAIL_TMP_BYTES,
        "processes": 512,
    }
    # The jail dies with the thread that has made it. That is this process's, which outlives the verifier's threads.
    pid = os.fork()
    if pid == 0:
        selfjail.enter(options, program, body, [constants.SOCKET_FD])
    watched = select.poll()
    watched.register(os.pidfd_open(pid), select.POLLIN)
    watched.register(constants.SOCKET_FD, 0)
    watched.poll()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def limit_memory():
    """A third of the machine's memory, between 2 and 16 GiB: a problem that asks for more fails by itself instead of
    taking the machine down. Shared memory is not counted."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = max(2 << 30, min(16 << 30, total // 3))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    role = sys.argv[2] if len(sys.argv) > 2 else ""
    is_zygote, is_jailed = role == "zygote", role == "jailed"
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from kernelrl_worker import constants  # found through the path set above
    from kernelrl_worker.channel import Channel

    channel = Channel(constants.SOCKET_FD)
    if not is_zygote:
        limit_memory()
    # Problem code may print; nobody reads that.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        if is_jailed:
            in_jail(lambda: serve(channel, threads, False))
        else:
            serve(channel, threads, is_zygote)
    except ImportError as error:
        channel.send({"ok": False, "kind": constants.KIND_IMPORT, "error": str(error)})
        sys.exit(3)
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass


if __name__ == "__main__":
    main()
