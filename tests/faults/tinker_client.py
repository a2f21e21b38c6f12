"""A client of the Tinker protocol that is no more than its calls, for tests that break what lies between it and the
server: each call is a connection of its own, and is made again, with the same bytes, until it has its answer."""

import http.client
import json
import random
import struct
import time


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A field of a message: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(dtype, values, shape):
    """float32 is 1, int64 is 2."""
    data = struct.pack(f"<{len(values)}{'f' if dtype == 1 else 'q'}", *values)
    return field(1, data) + field(3, dtype) + b"".join(field(4, n) for n in shape)


def datum(tokens, targets, weights, shape):
    inputs = {"target_tokens": tensor(2, targets, shape), "weights": tensor(1, weights, shape)}
    chunk = field(1, field(1, struct.pack(f"<{len(tokens)}i", *tokens)))
    return field(1, chunk) + b"".join(
        field(2, field(1, name.encode()) + field(2, value)) for name, value in inputs.items()
    )


def forward_backward(model, seq, datums, forward_only=False):
    body = field(1, model.encode()) + field(2, seq) + b"".join(field(3, d) for d in datums)
    return body + field(4, b"cross_entropy") + (field(6, 1) if forward_only else b"")


class Client:
    """Calls of a server at a port, which may be away, or a proxy that breaks connections."""

    def __init__(self, port, patience_s=240):
        self.port, self.patience_s = port, patience_s

    def once(self, path, body, method="POST"):
        """One attempt: status and body. OSError, HTTPException: there was no whole answer."""
        proto = isinstance(body, bytes)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=45)
        headers = {"Content-Type": "application/x-protobuf" if proto else "application/json", "Connection": "close"}
        try:
            data = body if proto else json.dumps(body).encode()
            connection.request(method, f"/api/v1/{path}", data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def call(self, path, body):
        """The answer, however many attempts it takes."""
        until, why = time.monotonic() + self.patience_s, None
        while time.monotonic() < until:
            try:
                status, answer = self.once(path, body)
            except (OSError, http.client.HTTPException) as e:
                why = repr(e)
                time.sleep(random.uniform(0.01, 0.1))
                continue
            if status == 200:
                return answer
            why = f"{status} {answer[:300]}"
            if status not in (408, 429) and status < 500:
                raise RuntimeError(f"{path}: {why}")
            time.sleep(random.uniform(0.01, 0.1))
        raise RuntimeError(f"{path}: no answer for {self.patience_s} s: {why}")

    def promise(self, path, body):
        return json.loads(self.call(path, body))["request_id"]

    def result(self, promise):
        answer = self.call("retrieve_future", {"request_id": promise})
        if answer.startswith(b'{"error"'):
            raise RuntimeError(answer)
        return answer
