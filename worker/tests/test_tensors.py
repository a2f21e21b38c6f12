"""Layouts, shared memory, parameters and messages."""

import os
import socket
import threading
import unittest

import torch
from kernelrl_worker import channel, constants, tensors


class Memory(unittest.TestCase):
    def test_a_layout_places_tensors_that_do_not_overlap(self):
        layout = tensors.Layout()
        for t in (torch.zeros(3, 5), torch.zeros(4, 6).T, torch.zeros(0, 2), torch.zeros(7, dtype=torch.bool)):
            layout.add(t)
        ends = [(i["offset"], i["offset"] + i["bytes"]) for i in layout.items]
        self.assertTrue(all(a[1] <= b[0] and b[0] % tensors.ALIGN == 0 for a, b in zip(ends, ends[1:])))
        self.assertEqual(layout.items[1]["stride"], [1, 6])  # dense in another order: it stays so
        self.assertEqual(layout.bytes % tensors.ALIGN, 0)

    def test_two_views_of_one_descriptor_share_memory_and_it_is_closed(self):
        before = len(os.listdir("/proc/self/fd"))
        fds = [os.memfd_create("one")]
        os.ftruncate(fds[0], 8192)
        fds.append(os.dup(fds[0]))
        a, b = (tensors.Memory.from_fd(fd, 8192, huge) for fd, huge in zip(fds, (False, True)))
        a.array(512, [2, 3], torch.float32).copy_(torch.arange(6.0).view(2, 3))
        self.assertEqual(b.array(512, [2, 3], torch.float32).tolist(), [[0, 1, 2], [3, 4, 5]])
        item = {"offset": 256, "bytes": 24, "dtype": "float32", "shape": [3, 2], "stride": [1, 3]}
        self.assertEqual(b.view(item, 256).tolist(), [[0, 3], [1, 4], [2, 5]])
        self.assertTrue(a.holds(a.array(0, [1], torch.int64)) and not a.holds(torch.zeros(1)))
        self.assertEqual(a.array(64, [0, 4], torch.float64).shape, (0, 4))
        del a, b
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_what_is_dense(self):
        x = torch.zeros(4, 6)
        for t, dense in ((x, True), (x.T, True), (x[:, :3], False), (x[:1].expand(4, 6), False), (x[:, :1], False)):
            self.assertEqual(tensors.is_dense(t), dense)


class Modules(unittest.TestCase):
    def build(self, seed, how):
        return tensors.build_module(torch.nn.BatchNorm1d, [8], seed, how, "cpu", torch.float32)

    def test_equal_seeds_give_equal_modules_and_no_constants_where_wanted(self):
        a, b, plain = self.build(3, tensors.RANDOM), self.build(3, tensors.RANDOM), self.build(3, tensors.PLAIN)
        self.assertTrue(torch.equal(a.weight, b.weight))
        self.assertTrue(bool((a.weight != 1).all() and (a.bias != 0).all()))
        self.assertTrue(bool((plain.weight == 1).all()))
        c, d = self.build(3, tensors.TOUCHED), self.build(3, tensors.TOUCHED)
        self.assertTrue(torch.equal(c.weight, d.weight) and torch.equal(c.bias, d.bias))
        self.assertEqual((int((c.weight != 1).sum()), int((c.bias != 0).sum())), (1, 1))
        self.assertTrue(bool((torch.nn.init.ones_(torch.empty(3)) == 1).all()))  # put back

    def test_state_is_adopted_by_name_else_in_order_else_not(self):
        wanted = [("weight", torch.full((8,), 5.0)), ("bias", torch.full((8,), 6.0))]
        wanted += [("running_mean", torch.full((8,), 7.0)), ("running_var", torch.full((8,), 8.0))]
        module = self.build(1, tensors.PLAIN)
        self.assertEqual(tensors.adopt_state(module, wanted), "name")
        self.assertEqual(float(module.running_var[0]), 8.0)
        module = self.build(1, tensors.PLAIN)
        self.assertEqual(tensors.adopt_state(module, [(f"other{i}", t) for i, (_, t) in enumerate(wanted)]), "order")
        self.assertEqual(float(module.running_var[0]), 8.0)
        self.assertEqual(tensors.adopt_state(module, wanted[:1] + [("x", torch.zeros(9))]), "own")

    def test_values_travel(self):
        self.assertEqual(tensors.unpack(tensors.pack([1, None, {"a": (2.5, "x")}])), [1, None, {"a": (2.5, "x")}])
        flat = []
        structure = tensors.flatten((torch.zeros(1), {"k": [torch.ones(1), 3]}), flat)
        self.assertEqual((structure, len(flat)), ("(T{k:(T<int>)})", 2))


class Messages(unittest.TestCase):
    def setUp(self):
        ends = socket.socketpair()
        self.ours, self.theirs = (channel.Channel(end.detach()) for end in ends)
        for end in (self.ours, self.theirs):
            self.addCleanup(end.socket.close)

    def test_messages_and_descriptors_arrive_in_order(self):
        large = {"text": "x" * 3000000}
        sender = threading.Thread(target=self.ours.send, args=(large,))
        sender.start()
        self.assertEqual(self.theirs.receive(), large)
        sender.join()
        fd = os.memfd_create("x")
        self.addCleanup(os.close, fd)
        socket.send_fds(self.ours.socket, [b"\x02\0\0\0{}"], [fd, fd])
        self.assertEqual(self.theirs.receive(), {})
        got = [self.theirs.take_fd() for _ in range(2)]
        self.assertTrue(all(os.fstat(g).st_ino == os.fstat(fd).st_ino for g in got))
        for g in got:
            os.close(g)

    def test_the_end_and_what_is_no_message(self):
        self.ours.socket.sendall((constants.MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        with self.assertRaises(ValueError):
            self.theirs.receive()
        self.ours.socket.close()
        self.assertIsNone(self.theirs.receive())


if __name__ == "__main__":
    unittest.main()
