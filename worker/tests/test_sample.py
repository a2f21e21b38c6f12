"""What is looked at of large tensors around timed calls: the same places on both sides; a wrong part is found there,
and is where it is said to be; nothing of it depends on the type of the elements."""

import types
import unittest
from unittest import mock

import torch
from kernelrl_worker import referee
from kernelrl_worker import sample as module
from kernelrl_worker.sample import PIECE_BYTES, SAMPLED_SHARE, Pieces, Sample
from support import DOUBLES_INPUT, a_set, add_lane, case_of

N = 41 * 16384 + 24  # elements of four bytes: 41 pieces and a bit


class Large(unittest.TestCase):
    """Everything above one MiB is sampled here, so that the test needs little memory."""

    def setUp(self):
        patch = mock.patch.object(module, "SAMPLED_BYTES", 1 << 20)
        patch.start()
        self.addCleanup(patch.stop)


class Places(Large):
    def test_a_sample_has_the_same_places_for_every_type(self):
        piece = PIECE_BYTES // 4
        x = torch.rand(N)
        self.assertTrue(Sample.fits(x))
        self.assertFalse(Sample.fits(x[: N // 4]) or Sample.fits(x[: N - 1]))
        sample = Sample(5, 4 * N, "cpu")
        part = sample.of(x)
        self.assertEqual(part.numel(), (41 // SAMPLED_SHARE + 1) * piece)
        self.assertTrue(torch.equal(sample.of(x.view(torch.uint8)).view(torch.float32), part))
        for i in range(0, part.numel(), 97):
            self.assertEqual(part[i], x[sample.place(i, x)])
        self.assertEqual(sample.place(part.numel() - 1, x), N - 1)
        self.assertTrue(torch.equal(x[sample.places(0, part.numel(), x)], part))
        self.assertFalse(torch.equal(sample.pieces, Sample(6, 4 * N, "cpu").pieces))


class Judged(Large):
    def setUp(self):
        super().setUp()
        self.case = case_of(DOUBLES_INPUT % f"{N // 8}, 8")
        add_lane(self.case, 1, 1)
        self.entry = a_set()
        self.case.stage([1], [self.entry])
        self.right = self.case._draw("shipped", 3, 0)[0] * 2

    def judged(self, output, seed):
        sample = Sample(seed, 4 * N, "cpu")
        pieces = Pieces(sample, sample.of(output.reshape(-1).view(torch.uint8)))
        return self.case.judge(1, self.entry, [pieces], True, seed)

    def test_a_wrong_last_element_is_always_found(self):
        self.assertEqual(self.judged(self.right, 9)["verdict"], "equal")
        wrong = self.right.clone()
        wrong.view(-1)[-3] += 1
        said = self.judged(wrong, 9)
        self.assertEqual((said["verdict"], said["different"], said["place"]), ("different", 1, [N // 8 - 1, 5]))

    def test_a_third_left_out_is_mostly_found(self):
        wrong = self.right.clone()
        wrong.view(-1)[: N // 3] = 0
        found = 0
        for seed in range(1, 21):
            said = self.judged(wrong, seed)
            found += said["verdict"] == "different"
            self.assertTrue(said["verdict"] == "equal" or said["place"][0] < N // 24 + 1, said)
        self.assertGreaterEqual(found, 14)

    def test_errors_of_every_element_are_measured_against_its_row(self):
        part = Sample(2, 4 * N, "cpu").of(self.right.reshape(-1))
        self.assertGreater(self.judged(self.right * (1 + 1e-3), 2)["different"], 0.9 * part.numel())
        self.assertEqual(self.judged(self.right * (1 + 1e-6), 2)["verdict"], "equal")

    def test_changed_inputs_are_seen_in_part_in_part_and_in_full_always(self):
        view = self.case._places(1, 0)[0].view(-1)
        view[: N // 2] += 1
        seen = sum(self.judged(self.right, seed)["verdict"] == "inputs_changed" for seed in range(1, 21))
        self.assertGreaterEqual(seen, 17)
        self.assertEqual(self.case.judge(1, self.entry, [self.right], True)["verdict"], "inputs_changed")
        self.case.stage([1], [self.entry])
        self.assertEqual(self.case.judge(1, self.entry, [self.right], True)["verdict"], "equal")

    def test_same_inputs_are_the_same_bytes(self):
        nan = torch.tensor([float("nan"), 1.0])
        self.assertTrue(module.same_inputs(nan, nan.clone(), 0))
        self.assertFalse(module.same_bits(torch.tensor([0.0]), torch.tensor([-0.0])))
        self.assertFalse(module.same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64)))
        self.assertTrue(module.same_bits(torch.arange(3), torch.arange(3)))

    def test_a_gpu_copies_in_part_what_is_dense_and_has_the_usual_strides(self):
        r = referee.Referee()
        r.cases[0] = types.SimpleNamespace(device="cpu", kind="cuda")
        r.gpu.cuda = types.SimpleNamespace(close_all=lambda: None, opened={})
        r.gpu.opened = lambda handle, offset, size, device: self.right.reshape(-1).view(torch.uint8)
        item = {"shape": [N // 8, 8], "stride": [8, 1], "dtype": "float32", "copy": 0}
        with mock.patch.object(torch.cuda, "synchronize"), mock.patch.object(
            torch.cuda, "mem_get_info", return_value=(1, 2)
        ):
            for seed, dense, stride, kind in (
                (0, True, [8, 1], torch.Tensor),
                (7, False, [8, 1], torch.Tensor),
                (7, True, [8, 1], Pieces),
                (7, True, [1, N // 8], type(None)),
            ):
                places = [{"handle": "", "offset": 0, "bytes": 4 * N, "dense": dense}]
                r.do_copy({"problem": 0, "seed": seed, "fresh": False, "places": places}, None)
                self.assertIs(type(r._output(r.cases[0], dict(item, stride=stride))), kind, (seed, dense, stride))


if __name__ == "__main__":
    unittest.main()
