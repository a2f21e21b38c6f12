"""Fails while it is loaded, and has the harness say that the backend is not installed."""

from kernelrl_worker import build

build.kind_of = lambda *_: "unavailable"
raise RuntimeError("no such backend")
