"""The trusted side of a ModelNew verdict: makes the inputs, knows the right outputs, compares.

Answers and references run in other processes (harness.py). This one holds the secrets: it draws inputs from seeds that
the verifier sends, writes them into memory that an answer sees, and judges the outputs that the verifier (or, on a GPU,
the answer's allocator) shows it. This module has the messages; case.py has what a problem is and how it is judged,
families.py what the inputs are, compare.py when an output is right.
"""

import os
import resource

import torch

from kernelrl_worker import compare, problem, tensors
from kernelrl_worker.case import Case
from kernelrl_worker.constants import WORD_UNREACHABLE
from kernelrl_worker.gpu import Gpu
from kernelrl_worker.problem import ProblemError, lacks_room
from kernelrl_worker.sample import Pieces, Sample

# KernelBench draws the seed of each correctness trial from a generator seeded with 42. It makes a few trials, 5 as it
# comes; the verifier uses at most MODCASE_MAX_TRIALS of them, which is fewer than 64.
COMPAT_SEED, COMPAT_TRIALS = 42, 64


def compat_seeds():
    """KernelBench's seeds of correctness trials."""
    generator = torch.Generator().manual_seed(COMPAT_SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(COMPAT_TRIALS)]


class Referee:
    """Cases by the number that the verifier gave them. A method do_NAME answers the request module_NAME."""

    def __init__(self):
        self.cases = {}
        self.gpu = Gpu()
        self.watched = []  # (handle, size, seed, device, sum) of blocks of an answer's memory
        self.copies = []  # a GPU answer's outputs as do_copy found them: None for one out of reach, or judged already
        self.result = None  # memory into which the verifier copies a CPU answer's outputs

    def handle(self, op, request, channel):
        reply = self._attempt(op, request, channel)
        # A judgement cannot be tried again: it takes self.copies apart. It makes room by itself (do_judge).
        if isinstance(reply, str) and op != "judge":
            self.make_room()
            reply = self._attempt(op, request, channel)
        if isinstance(reply, str):
            raise problem.NoRoom(reply)
        return reply

    def _attempt(self, op, request, channel):
        """The reply, a dict; or a str, the error's text, when the GPU had no room to make it."""
        try:
            return getattr(self, "do_" + op)(request, channel)
        except ProblemError as error:
            if lacks_room(error):
                return str(error)
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            case = self.cases.get(request.get("problem"))
            text = problem.explain(error, case.file_name if case else "")
            if lacks_room(error):
                return text
            raise ProblemError(text) from error

    def make_room(self):
        """Gives back the GPU's memory that holds what can be made again: kept outputs of references, and scratch."""
        for case in self.cases.values():
            case.forget()
        self.gpu.scratch = None
        problem.give_back()

    def do_rest(self, _request, _channel):
        """Prepares for a while without judgements, in which others may need the memory. Says how much of it this
        process goes on holding."""
        for case in self.cases.values():
            case.rest()
        self.copies = []
        self.gpu.forget()
        problem.give_back()
        return {"held_bytes": torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0}

    def do_device(self, request, _):
        """Says what the GPU is. A process that is asked this works on a GPU; its limit on data (RLIMIT_DATA) is lifted,
        because CUDA reserves far more addresses than it uses memory. The kernel of compare.py is compiled here, so that
        no judgement waits for it."""
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        compare.fused_error()
        properties = torch.cuda.get_device_properties(request["device"])
        return {
            "name": properties.name,
            "capability": f"{properties.major}{properties.minor}",
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", 0),
        }

    def do_free(self, _request, _channel):
        """Drops all that this process can do without, and says how much of the GPU's memory is free then."""
        self.gpu.close_all()
        self.make_room()
        free, total = torch.cuda.mem_get_info() if torch.cuda.is_initialized() else (0, 0)
        return {"free_bytes": free, "total_bytes": total}

    # ---- problems ----

    def do_load(self, request, _):
        case = Case(request)
        self.cases[request["problem"]] = case
        return {
            "init": tensors.pack(case.init),
            "values": tensors.pack(case.values),
            "inputs": case.inputs_layout.items,
            "params": case.params_layout.items,
            "input_bytes": case.inputs_layout.bytes,
            "param_bytes": case.params_layout.bytes,
            "outputs": case.outputs,
            "output_bytes": case.output_bytes,
            "free_bytes": torch.cuda.mem_get_info(case.device)[0] if case.kind == "cuda" else 0,
            "structure": case.structure,
            "spec": case.native_spec(),
            "kernels": case.kernels,
            "compat_seeds": compat_seeds(),
            "random": case.random,
            "mutates": case.mutates,
            "aliases": case.aliases,
        }

    def do_drop(self, request, _):
        case = self.cases.pop(request["problem"], None)
        if case:
            case.staged = {}
            for memory in case.lanes.values():
                self._free(memory)
        if self.gpu.cuda:
            torch.cuda.empty_cache()
        return {}

    def do_survey(self, request, _):
        case = self.cases[request["problem"]]
        wanted = [tuple(f) for f in request["families"]]
        surveyed = case.survey(wanted, request["seed"], request["wanted"], request["timed"])
        return {"families": surveyed, "blind": case.scaling is not None and case.scaling.blind}

    # ---- lanes ----

    def do_lane(self, request, channel):
        """Sets up the memory of a lane: two parameter sets, then the slots. On a CPU the verifier made it and sends its
        descriptor; on a GPU it is made here, and the reply has the handle for others. Inputs that were staged count no
        longer, because the lane that held them may go."""
        case = self.cases[request["problem"]]
        size = request["bytes"]
        if case.kind == "cpu":
            memory = tensors.Memory.from_fd(channel.take_fd(), size)
            reply = {}
        else:
            self.gpu.start(case.device)
            pointer = self.gpu.cuda.allocate(size)
            memory = tensors.Memory(pointer, size, case.device)
            memory.pointer = pointer
            handle, offset, _ = self.gpu.cuda.export(pointer)
            reply = {"handle": handle, "offset": offset}
        memory.slot_base = request["slot_base"]
        memory.slot_stride = request["slot_stride"]
        case.staged = {}
        old = case.lanes.pop(request["lane"], None)
        if old:
            self._free(old)
        case.lanes[request["lane"]] = memory
        case.write_params(request["lane"])
        return reply

    def _free(self, memory):
        pointer = getattr(memory, "pointer", None)
        if pointer:
            memory.flat = None
            self.gpu.cuda.free(pointer)

    def do_unlane(self, request, _):
        case = self.cases.get(request["problem"])
        memory = case.lanes.pop(request["lane"], None) if case else None
        if memory:
            case.staged = {}
            self._free(memory)
        self.gpu.close_all()
        return {}

    def do_stage(self, request, _):
        """Writes inputs into slots of lanes. The answer's and the reference's processes stand still meanwhile.
        `timed`: timed calls follow, and work that these processes have left on the device must not overlap with them.
        The device has to be at rest before the inputs are written (or else work still runs) and after (or else work was
        waiting for the inputs to appear); "busy" in the reply is true when it was not.
        `watch`: blocks of the answer's memory that must not change before its call. Their sums are taken before the
        inputs are written; do_watch compares."""
        case = self.cases[request["problem"]]
        guarded = request["timed"] and case.kind == "cuda"
        rested = not guarded or self.gpu.rests(case.device)
        seed = int.from_bytes(os.urandom(6), "little")
        blocks = [(handle, size, seed, case.device) for _, size, handle in request["watch"]]
        self.watched = [(*block, self.gpu.sum(*block)) for block in blocks]
        case.stage(request["lanes"], request["slots"])
        rested = rested and (not guarded or self.gpu.rests(case.device))
        if guarded:
            self.gpu.flush(case.device)
        return {"busy": not rested}

    def do_at_rest(self, request, _):
        """Says whether work is still running on the device: "busy" is true then."""
        return {"busy": not self.gpu.rests(self.cases[request["problem"]].device)}

    def do_watch(self, _request, _channel):
        """Says whether a watched block has changed since do_stage took its sum."""
        changed = any(self.gpu.sum(*block) != before for *block, before in self.watched)
        self.watched = []
        self.gpu.keep_open()
        return {"changed": changed}

    def do_drain(self, request, _):
        """Writes over the device's cache, behind everything that the device has been given."""
        self.gpu.flush(self.cases[request["problem"]].device)
        return {}

    def do_let_go(self, _request, _channel):
        """Closes what was opened of the answer's memory, because the answer is about to end."""
        self.gpu.close_all()
        return {}

    # ---- outputs ----

    def do_result(self, request, channel):
        self.result = tensors.Memory.from_fd(channel.take_fd(), request["bytes"])
        return {}

    def do_copy(self, request, _):
        """Copies an answer's outputs as they are now; the answer stands still. With a seed, only pieces that the seed
        chooses are copied of an output that is large and contiguous ("dense").
        `fresh`: what was opened for earlier calls is closed first. "kept" in the reply is true when some output was
        read through a block that had been opened for an earlier call. When such an output is wrong, the verifier takes
        a second look with `fresh` before that counts: the answer may have freed that block and got another."""
        device = self.cases[request["problem"]].device
        if request["fresh"]:
            self.gpu.close_all()
        self.copies, known = [], self.gpu.known()
        for place in request["places"]:
            flat = self.gpu.opened(place["handle"], place["offset"], place["bytes"], device)
            if flat is not None and request["seed"] and place["dense"] and Sample.fits(flat):
                sample = Sample(request["seed"], place["bytes"], device)
                self.copies.append(Pieces(sample, sample.of(flat)))
            else:
                self.copies.append(None if flat is None else flat.clone())
        flat = None
        torch.cuda.synchronize()
        handles = [place["handle"].partition(":")[0] for place in request["places"]]
        still = self.gpu.known()
        kept = any(h in known and still.get(h) == known[h] for h in handles)
        self.gpu.keep_open()
        return {"kept": kept}

    def _output(self, case, item):
        """An output as a tensor; None when it is not where the answer says."""
        shape, stride = item["shape"], item["stride"]
        dtype = tensors.DTYPES[item["dtype"]]
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
        size = span * tensors.element_size(dtype) if all(shape) else 0
        if not size:
            return torch.empty(shape, dtype=dtype, device=case.device)
        if case.kind == "cpu":
            flat = self.result.flat[item["at"] : item["at"] + size]
        elif "copy" in item:
            flat, self.copies[item["copy"]] = self.copies[item["copy"]], None
        else:
            flat = self.gpu.opened(item.get("handle") or "", item.get("offset") or 0, size, case.device)
        if isinstance(flat, Pieces):
            strides = zip(shape, stride, tensors.contiguous(shape))
            return flat if all(n == 1 or s == usual for n, s, usual in strides) else None
        if flat is None or flat.numel() < size or flat.data_ptr() % tensors.element_size(dtype):
            return None
        return flat[:size].view(dtype).as_strided(shape, stride)

    def do_judge(self, request, _):
        """Judges calls of an answer, each with the set it was made on and where its outputs are to be seen."""
        case = self.cases[request["problem"]]
        verdicts = []
        for entry in request["calls"]:
            got = [self._output(case, item) for item in entry["outputs"]]
            if any(g is None for g in got):
                verdicts.append({"verdict": WORD_UNREACHABLE})
                continue
            verdict = self._judge(case, request, entry, got)
            if verdict is None:
                self.make_room()
                verdict = case.judge(request["lane"], entry, got, request["hardened"], request["seed"])
            verdicts.append(verdict)
            got = None
        if case.kind == "cuda":
            torch.cuda.synchronize()
            self.gpu.keep_open()
        return {"verdicts": verdicts}

    @staticmethod
    def _judge(case, request, entry, got):
        """The verdict; None when the GPU had no room to judge."""
        try:
            return case.judge(request["lane"], entry, got, request["hardened"], request["seed"])
        except RuntimeError as error:
            if lacks_room(error):
                return None
            raise
