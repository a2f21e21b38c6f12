"""Serves the verifier over a socket (file descriptor 3), one request at a time.

A message is a 4-byte little-endian length and that many bytes of JSON (docs/formats.md, "Worker protocol"). The
`attach` request carries one file descriptor. The worker ends when the socket closes. Only the standard library is
imported before torch is known to be there, so that a missing torch is told apart from anything else.
"""

import array
import json
import os
import resource
import socket
import struct
import sys

SOCKET_FD = 3
PROTOCOL = 1
MAX_MESSAGE_BYTES = 64 << 20


class Channel:
    """Framed JSON over the socket; keeps descriptors that arrive until a request takes them."""

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)
        self.fds = []

    def _read(self, count):
        chunks = []
        while count > 0:
            size = socket.CMSG_SPACE(struct.calcsize("i"))
            data, ancillary, _, _ = self.socket.recvmsg(min(count, 1 << 20), size)
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                    self.fds.extend(fds)
            if not data:
                return None
            chunks.append(data)
            count -= len(data)
        return b"".join(chunks)

    def receive(self):
        head = self._read(4)
        if head is None:
            return None
        (count,) = struct.unpack("<I", head)
        if count > MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {count} bytes")
        body = self._read(count)
        return None if body is None else json.loads(body)

    def send(self, message):
        body = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def take_fd(self):
        return self.fds.pop(0)


def serve(channel, threads):
    import torch  # noqa: PLC0415  (after the channel is up, so that failure can be reported)

    torch.set_num_threads(threads)
    from kernelrl_worker import reference  # noqa: PLC0415

    channel.send(
        {
            "ok": True,
            "protocol": PROTOCOL,
            "torch": str(torch.__version__),
            "python": sys.version.split()[0],
            "threads": torch.get_num_threads(),
        }
    )
    service = reference.Service()
    while True:
        request = channel.receive()
        if request is None:
            return
        try:
            fd = channel.take_fd() if request.get("op") == "attach" else -1
            reply = service.handle(request, fd)
            reply["ok"] = True
        except reference.ProblemError as error:
            reply = {"ok": False, "kind": "problem", "error": str(error)}
        except MemoryError as error:
            reply = {"ok": False, "kind": "problem", "error": f"out of memory: {error}"}
        except Exception as error:  # a fault of ours, told to the verifier rather than lost
            reply = {"ok": False, "kind": "internal", "error": f"{type(error).__name__}: {error}"}
        channel.send(reply)


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
    channel = Channel(SOCKET_FD)
    limit_memory()
    # Problem code may print; nobody reads that.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        serve(channel, threads)
    except ImportError as error:
        channel.send({"ok": False, "kind": "import", "error": str(error)})
        sys.exit(3)
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass


if __name__ == "__main__":
    main()
