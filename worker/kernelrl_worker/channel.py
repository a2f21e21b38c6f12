"""Framed JSON over a Unix stream socket: a 4-byte little-endian length and that many bytes (docs/formats.md, "Worker
protocol"). Only the standard library is imported here, so that a missing torch is told apart from anything else."""

import array
import json
import socket
import struct

from kernelrl_worker.constants import MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS


class Channel:
    """Keeps descriptors that arrive until a request takes them."""

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)
        self.fds = []

    def _read(self, count):
        chunks = []
        while count > 0:
            size = socket.CMSG_SPACE(MAX_MESSAGE_FDS * struct.calcsize("i"))
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
