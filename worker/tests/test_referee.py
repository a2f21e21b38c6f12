"""The referee's guards on a GPU, with the parts of the driver and of the clock played by this machine's memory and by
numbers: whether a device rests, whether watched memory has changed, what stays open, and want of memory."""

import ctypes
import types
import unittest
from unittest import mock

import torch
from kernelrl_worker import gpu, problem, referee, tensors


def with_gpu(test, free=lambda: 1, total=2):
    for name, value in (("synchronize", lambda: None), ("mem_get_info", lambda: (free(), total))):
        patch = mock.patch.object(torch.cuda, name, value)
        patch.start()
        test.addCleanup(patch.stop)


class Rest(unittest.TestCase):
    def setUp(self):
        self.now, self.taken = 0.0, []
        with_gpu(self)
        torch.cuda.synchronize = self.synchronize  # put back by the cleanup
        clock = mock.patch.object(gpu, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        clock.start()
        self.addCleanup(clock.stop)
        self.referee = referee.Referee()
        self.referee.gpu.tick = torch.zeros(1)

    def synchronize(self):
        self.now += self.taken.pop(0) if len(self.taken) > 1 else self.taken[0]

    def rests(self, *taken):
        self.taken = list(taken)
        return self.referee.gpu.rests("cpu")

    def test_a_device_rests_when_a_small_piece_of_work_takes_what_it_usually_takes(self):
        self.assertTrue(self.rests(30e-6))  # the first time says what is usual
        begun = self.now
        self.assertFalse(self.rests(2e-3))
        self.assertGreaterEqual(self.now - begun, gpu.REST_WAIT_S)
        self.assertTrue(self.rests(2e-3, 2e-3, 40e-6))  # others were busy for a while
        self.assertEqual(self.referee.gpu.usual_s, 30e-6)

    def test_watched_memory_that_changes_is_seen(self):
        memory = {"aa": torch.zeros(4096, dtype=torch.uint8), "bb": torch.ones(64, dtype=torch.uint8)}
        r = self.referee
        r.gpu.opened = lambda handle, offset, size, device: memory.get(handle)
        r.gpu.cuda = types.SimpleNamespace(close_all=lambda: None, opened={})
        r.cases[0] = types.SimpleNamespace(device="cpu", kind="cpu", stage=lambda lanes, slots: None)
        request = {"problem": 0, "timed": True, "lanes": [0, 1], "slots": []}
        blocks = [[0, 4096, "aa"], [8192, 64, "bb"], [16384, 64, "gone"]]
        for changed in (False, True):
            self.assertEqual(r.do_stage(dict(request, watch=blocks), None), {"busy": False})
            memory["aa"][4095] += changed
            self.assertEqual(r.do_watch({"problem": 0}, None), {"changed": changed})
        self.assertEqual(r.do_watch({"problem": 0}, None), {"changed": False})  # nothing has been staged since


class WantOfMemory(unittest.TestCase):
    def test_room_is_made_once_and_then_it_is_said_whose_fault_it_is_not(self):
        self.assertTrue(problem.lacks_room("CUDA out of memory. Tried to allocate"))
        self.assertFalse(problem.lacks_room("invalid argument"))
        refusals = [1]

        def do_ask(_request, _channel):
            refusals[0] -= 1
            if refusals[0] >= 0:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return {"here": 1}

        r = referee.Referee()
        r.do_ask = do_ask
        self.assertEqual(r.handle("ask", {}, None), {"here": 1})
        refusals[0] = 2
        with self.assertRaisesRegex(problem.NoRoom, "out of memory"):
            r.handle("ask", {}, None)


class Opening:
    """Takes the place of a function of a library, which has argument types."""

    def __init__(self, said):
        self.said = said

    def __call__(self, pointer, handle, flags):
        self.said.append("open")
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint64))[0] = 4096 + len(self.said)
        return 0


class OpenBlocks(unittest.TestCase):
    """Blocks of an answer's memory stay open between calls: until there is little room, until somebody asks for a fresh
    look, or until the handle stands for another block."""

    def setUp(self):
        self.said, self.free = [], 100
        with_gpu(self, lambda: self.free, 100)
        self.cuda = tensors.Cuda.__new__(tensors.Cuda)
        self.cuda.lib = types.SimpleNamespace(
            cuIpcOpenMemHandle_v2=Opening(self.said), cuIpcCloseMemHandle=lambda pointer: self.said.append("close")
        )
        self.cuda.opened = {}
        self.referee = referee.Referee()
        self.referee.gpu.cuda = self.cuda
        self.referee.cases[0] = types.SimpleNamespace(device="cpu", kind="cuda")
        self.referee.gpu.opened = lambda handle, offset, size, device: self.cuda.open(handle) and torch.zeros(
            size, dtype=torch.uint8
        )

    def copy(self, handle, fresh=False):
        del self.said[:]
        places = [{"handle": handle, "offset": 0, "bytes": 64, "dense": True}]
        reply = self.referee.do_copy({"problem": 0, "seed": 0, "fresh": fresh, "places": places}, None)
        return reply["kept"], self.said[:]

    def test_what_stays_open(self):
        one, other = "ab" * 64, "cd" * 64
        self.assertEqual(self.copy(one + ":1"), (False, ["open"]))
        self.assertEqual(self.copy(one + ":1"), (True, []))
        self.assertEqual(self.copy(other + ":2"), (False, ["open"]))
        self.assertEqual(self.copy(one + ":3"), (False, ["close", "open"]))  # another block under the same handle
        self.assertEqual(self.copy(one + ":3", fresh=True), (False, ["close", "close", "open"]))
        self.referee.do_let_go(None, None)
        self.assertEqual(self.copy(one + ":3"), (False, ["open"]))
        self.free, self.referee.gpu.looks = 20, 16
        self.assertEqual(self.copy(one + ":3"), (True, ["close"]))
        self.assertEqual(self.cuda.opened, {})


if __name__ == "__main__":
    unittest.main()
