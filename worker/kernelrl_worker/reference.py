"""The reference side of verification: problems in KernelBench's format, run on secret inputs.

A problem is a Python module with `Model`, `get_inputs()` and `get_init_inputs()`. For each one the worker reports the
interface a native answer implements (`load`), and then fills input sets in memory shared with the verifier (`fill`):
the inputs, and what the model makes of them. `time` runs eager PyTorch on sets that are there.

The model stays in training mode and runs without gradients, as KernelBench does it. There are two parameter sets: 0 as
the module initialises it, 1 with the same module's parameters shuffled and disturbed, so that no answer can rely on
biases being zero, scales being one, or values seen before.
"""

import copy
import gc
import inspect
import linecache
import mmap
import os
import random
import sys
import time
import traceback
import types

import torch

from kernelrl_worker import compare
from kernelrl_worker import scaling as scalings
from kernelrl_worker.constants import (
    FAMILY_SCALED,
    FAMILY_SHIPPED,
    FAMILY_SIGNED,
    FAMILY_TOUCHED,
)

TYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.bool: "bool",
}
# Types outside the ABI and what they become.
CASTS = {
    torch.float64: torch.float32,
    torch.int32: torch.int64,
    torch.int16: torch.int64,
    torch.int8: torch.int64,
    torch.uint8: torch.int64,
}
TOUCH_FACTORS = (10.0, 300.0, 1e4, 1e6)  # how large one changed element is tried, in sizes of its input
# A forward that is slower is not run again and again to see what shows; nor, beyond the second, in float64.
SLOW_SECONDS, TOO_SLOW_SECONDS = 0.25, 2.5
RANDOM = 10  # times the tolerance that two runs on the same inputs may be apart
SEARCH_SECONDS = 3.0  # for the factor of `scaled`


class ProblemError(Exception):
    """The problem itself cannot be used; the message is for its author."""


class NoRoom(Exception):
    """A GPU's memory is used up, which others use as well: nobody's fault."""


def seed_all(seed):
    random.seed(seed)
    if torch.cuda.is_initialized():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)  # the same, but that it keeps no list of calls for a device to come
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def explain(error, file_name):
    """One line: the exception, and the problem's own line it came from."""
    text = f"{type(error).__name__}: {error}".strip()
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file_name]
    return f"line {lines[-1]}: {text}" if lines else text


def supported(tensor):
    tensor = tensor.detach()
    if tensor.dtype in CASTS:
        tensor = tensor.to(CASTS[tensor.dtype])
    if tensor.dtype not in TYPES:
        raise ProblemError(f"tensors of type {tensor.dtype} are not supported")
    return tensor.contiguous()


def is_symmetric(tensor):
    return (
        tensor.dim() >= 2
        and tensor.shape[-1] == tensor.shape[-2]
        and bool(torch.equal(tensor, tensor.transpose(-1, -2)))
    )


def random_signs(tensor):
    """Flips the sign of each element at random: symmetric around zero, and the zeros of a triangular, diagonal or
    masked operand stay where they are. A symmetric matrix stays symmetric."""
    count = tensor.numel()
    # Eight signs of a random byte: one random number for each takes four times as long.
    octets = torch.randint(0, 256, ((count + 7) // 8, 1), dtype=torch.uint8)
    bits = (octets >> torch.arange(8, dtype=torch.uint8)) & 1
    signs = bits.flatten()[:count].view(tensor.shape).to(tensor.dtype).mul_(2).sub_(1)
    if is_symmetric(tensor):
        upper = torch.triu(signs)
        signs = upper + torch.triu(signs, 1).transpose(-1, -2)
    return tensor * signs


def outputs_of(result):
    """The model's result as a flat list of tensors."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)) and result and all(isinstance(r, torch.Tensor) for r in result):
        return list(result)
    raise ProblemError(f"forward() returns {type(result).__name__}; a tensor or a tuple of tensors is needed")


def is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def shaken(value):
    """Inputs that differ in their last bits."""
    if not is_float(value):
        return value.clone() if isinstance(value, torch.Tensor) else value
    return value * (1 + (torch.randint(0, 3, value.shape) - 1).to(value.dtype) * torch.finfo(value.dtype).eps)


def another_seed(seed, index):
    return (seed + index * 0x9E3779B97F4A7C15) % 2**63


class Region:
    """Memory shared with the verifier, and tensors that view it."""

    def __init__(self, fd, size):
        self.map = mmap.mmap(fd, size)
        os.close(fd)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.map.madvise(mmap.MADV_HUGEPAGE)  # filled once, from end to end: few page faults instead of many
            except OSError:
                pass

    def view(self, offset, shape, dtype):
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.map, dtype=dtype, count=count, offset=offset).view(shape)


class Problem:
    timed_last = None  # the one that keeps copies of inputs

    def __init__(self, code, param_seeds):
        self.file_name = f"<problem {id(self):x}>"
        self.region = None
        try:
            self._load(code, param_seeds)
        except ProblemError:
            raise
        except Exception as error:
            raise ProblemError(explain(error, self.file_name)) from error

    def _load(self, code, param_seeds):
        module = types.ModuleType("kernelrl_problem")
        module.__file__ = self.file_name
        linecache.cache[self.file_name] = (len(code), None, code.splitlines(True), self.file_name)
        sys.modules[module.__name__] = module  # dataclasses and typing look their module up
        seed_all(param_seeds[0])
        exec(compile(code, self.file_name, "exec"), module.__dict__)
        for name in ("Model", "get_inputs"):
            if not hasattr(module, name):
                raise ProblemError(f"defines no {name}")
        self.get_inputs = module.get_inputs
        init_inputs = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
        seed_all(param_seeds[0])
        if isinstance(init_inputs, dict):
            model = module.Model(**init_inputs)
        else:
            model = module.Model(*init_inputs)
        if self._has_double(model):
            model.float()
        self.models = [model, self._disturbed(model, param_seeds[1])]
        self.doubles = [None, None]
        self.double_buffers = [[], []]
        self.touches = None  # inputs, and values of an element that show
        self.scaling = scalings.Scaling()
        self.initial = [[b.detach().clone() for _, b in m.named_buffers()] for m in self.models]
        self._describe(param_seeds)

    @staticmethod
    def _has_double(model):
        return any(p.dtype == torch.float64 for p in model.parameters())

    @staticmethod
    def _disturbed(model, seed):
        """A copy whose parameters have the same distribution but other values. Vectors (biases, scales) get noise as
        well, since they often start as constants, and running statistics move away from 0 and 1."""
        other = copy.deepcopy(model)
        seed_all(seed)
        with torch.no_grad():
            for parameter in other.parameters():
                flat = parameter.detach().reshape(-1)
                parameter.copy_(flat[torch.randperm(flat.numel())].view_as(parameter))
                if parameter.dim() <= 1 and parameter.is_floating_point():
                    parameter.add_(torch.randn_like(parameter) * 0.25)
            for name, buffer in other.named_buffers():
                if name.endswith("running_mean"):
                    buffer.add_(torch.randn_like(buffer) * 0.25)
                elif name.endswith("running_var"):
                    buffer.mul_(1 + 0.5 * torch.rand_like(buffer))
        return other

    def _inputs(self, family, seed, scaling=None):
        scaling = scaling or self.scaling
        seed_all(seed)
        values = self.get_inputs()
        if not isinstance(values, (list, tuple)):
            raise ProblemError(f"get_inputs() returns {type(values).__name__}; a list is needed")
        result = []
        for value in values:
            if isinstance(value, torch.Tensor):
                value = supported(value)
                if value.is_floating_point() and family == FAMILY_SIGNED:
                    value = random_signs(value)
                elif value.is_floating_point() and family == FAMILY_SCALED:
                    value = (random_signs(value) if scaling.signs else value) * scaling.factor_for(seed)
            elif not isinstance(value, (bool, int, float)):
                raise ProblemError(f"an input of type {type(value).__name__} is not supported")
            result.append(value)
        if family == FAMILY_TOUCHED:
            if self.touches is None:
                self._find_touches(result)
            self._touch(result)
        return result

    def _find_touches(self, inputs):
        """Which inputs have elements that move the reference's output when they are changed, and how large they are
        then. Whoever leaves out a part of the elements is told by them from who has looked at all."""
        self.touches = []
        start = time.perf_counter()
        base, _ = self._run(inputs, 0)
        if time.perf_counter() - start > SLOW_SECONDS:
            return
        for index, value in enumerate(inputs):
            if len(self.touches) < compare.MOST_TOUCHED and is_float(value) and value.numel():
                size = self._size_that_shows(inputs, index, base)
                if size:
                    self.touches.append((index, size))

    def _size_that_shows(self, inputs, index, base):
        """0: none does."""
        value = inputs[index]
        at = int(torch.randint(value.numel(), (1,)))
        scale = compare.rms_of(value) or 1.0
        for factor in TOUCH_FACTORS:
            if factor * scale > torch.finfo(value.dtype).max / 100:
                return 0
            changed = value.clone()
            changed.view(-1)[at] = factor * scale
            outputs, _ = self._run([changed if i == index else v for i, v in enumerate(inputs)], 0)
            for a, b in zip(base, outputs):
                if not a.is_floating_point() or a.numel() == 0:
                    continue
                if not bool(torch.isfinite(b).all()):
                    return 0
                if compare.largest_error(a, b) > compare.SHOWS * compare.TOLERANCE[a.dtype]:
                    return factor * scale
        return 0

    def _touch(self, inputs):
        """One element, anywhere, is changed."""
        if self.touches:
            index, size = self.touches[int(torch.randint(len(self.touches), (1,)))]
            inputs[index] = inputs[index].clone()
            inputs[index].view(-1)[int(torch.randint(inputs[index].numel(), (1,)))] = size

    def _restore(self, param_set):
        with torch.no_grad():
            for buffer, value in zip(self.models[param_set].buffers(), self.initial[param_set]):
                buffer.copy_(value)

    def _run(self, inputs, param_set):
        """The outputs for private copies of the inputs, and the buffers afterwards; the model is left as it was."""
        copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
        with torch.no_grad():
            outputs = [supported(t) for t in outputs_of(self.models[param_set](*copies))]
            outputs = [t.clone() for t in outputs]
            buffers = [b.detach().clone() for b in self.models[param_set].buffers()]
        self._restore(param_set)
        return outputs, buffers

    def _describe(self, seeds):
        inputs = self._inputs(FAMILY_SHIPPED, seeds[0] ^ 1)
        seed_all(seeds[0] ^ 2)
        outputs, buffers = self._run(inputs, 0)
        seed_all(seeds[0] ^ 3)
        again, _ = self._run(inputs, 0)
        for first, second in zip(outputs, again):
            same = torch.equal(first, second) or (
                first.is_floating_point()
                and not compare.compare(first, second, RANDOM * compare.TOLERANCE[first.dtype], None)["different"]
            )
            if not same:
                raise ProblemError("forward() is random: two runs on the same input differ (dropout in training mode?)")
        names = [
            p.name
            for p in inspect.signature(self.models[0].forward).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        names += [f"in{i}" for i in range(len(names), len(inputs))]
        self.args = []
        for name, value in zip(names, inputs):
            if isinstance(value, torch.Tensor):
                self._add(name, "input", value)
            else:
                kind = "bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f32"
                self.args.append({"name": name, "role": "input", "type": kind, "shape": [], "scalar": True})
        self.n_inputs = len(inputs)
        for name, parameter in self.models[0].named_parameters():
            self._add(name, "param", supported(parameter))
        self.mutated = []
        for (name, _), before, after in zip(self.models[0].named_buffers(), self.initial[0], buffers):
            self.mutated.append(not torch.equal(before, after))
            self._add(name, "buffer", supported(before), self.mutated[-1])
        for i, output in enumerate(outputs):
            self._add("out" if len(outputs) == 1 else f"out{i}", "output", output)

    def _add(self, name, role, tensor, mutated=False):
        arg = {"name": name, "role": role, "type": TYPES[tensor.dtype], "shape": list(tensor.shape)}
        if mutated:
            arg["mutated"] = True
        self.args.append(arg)

    def _exact(self, inputs, param_set, seed):
        """What changes of the buffers and the outputs in float64; None where that cannot run."""
        if self.doubles[param_set] is None:
            try:
                self.doubles[param_set] = copy.deepcopy(self.models[param_set]).double()
                self.double_buffers[param_set] = [b.clone() for b in self.doubles[param_set].buffers()]
            except Exception:
                self.doubles[param_set] = False
        model = self.doubles[param_set]
        if not model:
            return None
        wide = [v.double() if is_float(v) else v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
        try:
            with torch.no_grad():
                seed_all(seed)
                outputs = [t.clone() for t in outputs_of(model(*wide))]
                buffers = [b.clone() for b, changed in zip(model.buffers(), self.mutated) if changed]
                for buffer, value in zip(model.buffers(), self.double_buffers[param_set]):
                    buffer.copy_(value)
            return buffers + outputs
        except Exception:
            self.doubles[param_set] = False  # it asks for float32 somewhere
            return None

    def _results(self, inputs, param_set, seed):
        """What changes of the buffers, and the outputs."""
        seed_all(seed)
        outputs, buffers = self._run(inputs, param_set)
        return [supported(b) for b, changed in zip(buffers, self.mutated) if changed] + outputs

    def _limits(self, family, inputs, results, param_set, seed):
        """How each result is judged, by how far the float32 reference itself is from float64 on these inputs: where a
        sum cancels or an exponential is steep, no float32 kernel can come closer. Where float64 cannot run, by what the
        inputs' last bits change."""
        draws = [(inputs, results, seed)]
        if any(r.is_floating_point() and r.numel() < compare.ROW_ELEMENTS for r in results):
            for index in range(1, compare.MORE_DRAWS + 1):
                other = another_seed(seed, index)
                values = self._inputs(family, other)
                draws.append((values, self._results(values, param_set, other), other))
        pairs, known = [[] for _ in results], True
        for values, mine, which in draws:
            true = self._exact(values, param_set, which) if known else None
            known = true is not None
            others = (
                [true] if known else [self._results([shaken(v) for v in values], param_set, which) for _ in range(2)]
            )
            for other in others:
                for pair, a, b in zip(pairs, mine, other):
                    pair.append((a, b if a.dtype == torch.float32 else None))
        return [compare.limit_of(p, known) for p in pairs]

    def find_scaling(self, seed):
        """The factor of the family `scaled`."""
        end = time.perf_counter() + SEARCH_SECONDS

        def run(scaling, which):
            try:
                values = self._inputs(FAMILY_SCALED if scaling else FAMILY_SHIPPED, another_seed(seed, which), scaling)
                return self._results(values, 0, seed)
            except ProblemError:
                raise
            except Exception:
                return None

        def stands(scaling):
            values = self._inputs(FAMILY_SCALED, seed, scaling)
            mine, true = self._results(values, 0, seed), self._exact(values, 0, seed)
            return true is not None and all(
                compare.limit_of([(a, b)]).noise <= compare.TOLERANCE.get(a.dtype, 0)
                for a, b in zip(mine, true)
                if a.dtype == torch.float32
            )

        self.scaling = scalings.find_scaling(run, stands, lambda: time.perf_counter() > end)

    def _same_time(self, inputs, seed):
        """Whether the reference takes no longer on these than on shipped inputs; a few looks, for others disturb."""
        shipped = self._inputs(FAMILY_SHIPPED, seed)

        def best(values):
            seconds = []
            for _ in range(3):
                copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
                start = time.perf_counter()
                with torch.no_grad():
                    self.models[0](*copies)
                seconds.append(time.perf_counter() - start)
            self._restore(0)
            return min(seconds)

        def alike():
            usual, these = best(shipped), best(inputs)
            return max(usual, these) <= scalings.SAME_TIME * min(usual, these) + 5e-6

        return any(alike() for _ in range(4))

    # ---- shared memory ----

    def attach(self, fd, size, layout):
        """layout: byte offsets. An argument's `input`, `param` and `output` offset is -1 where it has none."""
        self.region = Region(fd, size)
        self.layout = layout
        self.views = {}
        self.copies = []
        for param_set in range(2):
            base = layout["param_base"] + param_set * layout["param_stride"]
            tensors = [supported(p) for p in self.models[param_set].parameters()]
            tensors += [supported(b) for b in self.initial[param_set]]
            for index, tensor in enumerate(tensors):
                offset = layout["param"][self.n_inputs + index]
                self.region.view(base + offset, tensor.shape, tensor.dtype).copy_(tensor)

    def _write_inputs(self, base, inputs):
        """Inputs into a set. Returns them as they lie there: forward() may change the ones it is given."""
        stored = []
        for arg, offset, value in zip(self.args, self.layout["input"], inputs):
            if isinstance(value, torch.Tensor):
                if list(value.shape) != arg["shape"]:
                    raise ProblemError(f"input {arg['name']} changes its shape from call to call")
                view = self.region.view(base + offset, value.shape, value.dtype)
                view.copy_(value)
                stored.append(view)
            else:
                dtype = torch.float64 if arg["type"] == "f32" else torch.int64
                self.region.view(base + offset, [1], dtype).copy_(torch.tensor([value], dtype=dtype))
                stored.append(value)
        return stored

    def fill(self, index, family, seed, param_set, with_noise):
        """Writes input set `index` and the reference's outputs for it. With noise, also returns whether all outputs are
        finite, whether the clock may run on such inputs, and for each result compare.Limit's figures."""
        base = self.layout["set_base"] + index * self.layout["set_stride"]
        self.views.pop(index, None)
        inputs = self._inputs(family, seed)
        if len(inputs) != self.n_inputs:
            raise ProblemError("get_inputs() returns another number of inputs each time")
        stored = self._write_inputs(base, inputs)
        seed_all(seed)
        start = time.perf_counter()
        with torch.no_grad():
            outputs = [supported(t) for t in outputs_of(self.models[param_set](*inputs))]
        seconds = time.perf_counter() - start
        # Outputs may lie in buffers: everything is copied before the buffers are put back.
        buffers = [b.detach().clone() for b in self.models[param_set].buffers()]
        results = [supported(b) for b, changed in zip(buffers, self.mutated) if changed] + outputs
        slots = [(a, o) for a, o in zip(self.args, self.layout["output"]) if o >= 0]
        written = []
        for (arg, offset), value in zip(slots, results):
            if list(value.shape) != arg["shape"] or TYPES[value.dtype] != arg["type"]:
                raise ProblemError(f"output {arg['name']} changes its shape or type from call to call")
            view = self.region.view(base + self.layout["input_stride"] + offset, value.shape, value.dtype)
            view.copy_(value)
            written.append(view)
        self._restore(param_set)
        if not with_noise:
            return {}
        finite = all(bool(torch.isfinite(v).all()) for v in written if v.is_floating_point())
        if finite and seconds < TOO_SLOW_SECONDS:
            limits = self._limits(family, stored, written, param_set, seed)
        else:
            limits = [compare.limit_of([(v, None)], False) for v in written]
        # Only float64 says how far the reference is to be trusted where one element is unlike the others.
        known = isinstance(self.doubles[param_set], torch.nn.Module)
        usable = family != FAMILY_TOUCHED or (bool(self.touches) and known)
        timed = usable and (
            family != FAMILY_SCALED or (self.scaling.blind and param_set == 0 and self._same_time(stored, seed))
        )
        return {
            "finite": finite and usable,
            "timed": timed,
            "limits": [[limit.noise, limit.floor, limit.typical] for limit in limits],
        }

    def _stored(self, index):
        """The inputs of a set that was filled, as they lie there. Views are kept: making one takes longer than copying
        a small tensor."""
        if index not in self.views:
            layout = self.layout
            base = layout["set_base"] + index * layout["set_stride"]
            inputs = []
            for arg, offset in list(zip(self.args, layout["input"]))[: self.n_inputs]:
                if arg.get("scalar"):
                    dtype = torch.float64 if arg["type"] == "f32" else torch.int64
                    value = self.region.view(base + offset, [1], dtype).item()
                    inputs.append(bool(value) if arg["type"] == "bool" else value)
                else:
                    dtype = next(d for d, name in TYPES.items() if name == arg["type"])
                    inputs.append(self.region.view(base + offset, arg["shape"], dtype))
            self.views[index] = inputs
        return self.views[index]

    @staticmethod
    def forget_copies():
        if Problem.timed_last is not None:
            Problem.timed_last.copies = []
        Problem.timed_last = None

    def _copies(self, call, index):
        """Copies of a set's inputs for the call of that number. Its memory is kept, as a stage's is: new memory takes
        longer than copying. The model gets a view of that memory, whose shape it may change in place."""
        stored = self._stored(index)
        if call == len(self.copies):
            self.copies.append([torch.empty_like(v) if isinstance(v, torch.Tensor) else v for v in stored])
        mine = self.copies[call]
        return [m.copy_(v).view_as(v) if isinstance(v, torch.Tensor) else v for m, v in zip(mine, stored)]

    def time(self, sets, repeat):
        """Seconds for one eager forward per set, after copies of the inputs were made, as the answer gets them."""
        model = self.models[0]
        if Problem.timed_last is not self:
            Problem.forget_copies()
            Problem.timed_last = self
        calls = [self._copies(call, index) for call, index in enumerate(sets)]
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad():
                if repeat == 0:  # warm-up: first calls build what later ones reuse
                    model(*calls[0])
                start = time.perf_counter_ns()
                for inputs in calls:
                    model(*inputs)
                seconds = (time.perf_counter_ns() - start) * 1e-9
        finally:
            if collecting:
                gc.enable()
        self._restore(0)
        return seconds


class Service:
    """Problems by the number the verifier gave them."""

    def __init__(self):
        self.problems = {}
        self.referee = None
        # PyTorch's own objects never go away: left out, they no longer cost 0.1 s at each collection.
        gc.collect()
        gc.freeze()

    def handle(self, request, channel):
        op = request["op"]
        if op.startswith("module_"):
            if self.referee is None:
                from kernelrl_worker import referee  # noqa: PLC0415  (backend c does without)

                self.referee = referee.Referee()
            return self.referee.handle(op[len("module_") :], request, channel)
        if op == "load":
            problem = Problem(request["code"], request["param_seeds"])
            self.problems[request["problem"]] = problem
            return {"spec": {"args": problem.args}}
        if op == "drop":
            self.problems.pop(request["problem"], None)
            Problem.forget_copies()
            gc.collect()
            return {}
        problem = self.problems[request["problem"]]
        if op == "attach":
            problem.attach(channel.take_fd(), request["bytes"], request["layout"])
        try:
            if op == "attach":
                if request["families"]:
                    problem.find_scaling(request["seed"])
                return {"blind": problem.scaling.blind}
            if op == "fill":
                return {
                    "sets": [
                        problem.fill(s["set"], s["family"], s["seed"], s["param_set"], request["noise"])
                        for s in request["sets"]
                    ]
                }
            if op == "time":
                return {"seconds": problem.time(request["sets"], request["round"])}
        except ProblemError:
            raise
        except Exception as error:
            raise ProblemError(explain(error, problem.file_name)) from error
        raise ValueError(f"unknown request {op!r}")
