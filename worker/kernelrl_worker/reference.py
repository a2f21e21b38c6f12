"""The reference side of verdicts on answers in C: problems that are run on secret inputs.

For each problem the worker reports the interface that an answer in C implements (`load`), and then fills input sets in
memory shared with the verifier (`fill`): the inputs, and what the model makes of them. `time` runs eager PyTorch on
sets that are there.

There are two parameter sets: 0 as the module initialises it (touched: with one element of each constant changed), 1
with the same parameters shuffled and disturbed, so that no answer can rely on biases being zero, scales being one, or
values seen before. The families of inputs that are used here are `shipped`, `signed`, `touched`, `scaled` and `spikes`
(families.py).
"""

import copy
import gc
import inspect
import time

import torch

from kernelrl_worker import compare, families, problem, scaling, tensors
from kernelrl_worker.constants import FAMILY_SCALED, FAMILY_SHIPPED, FAMILY_SPIKES, FAMILY_TOUCHED
from kernelrl_worker.problem import ProblemError, clones, seed_all

# Types that an answer in C cannot have, and what they become.
CASTS = {
    torch.float64: torch.float32,
    torch.int32: torch.int64,
    torch.int16: torch.int64,
    torch.int8: torch.int64,
    torch.uint8: torch.int64,
}
# A forward that is slower is not run again and again to see what shows; nor, beyond the second, in float64.
SLOW_SECONDS, TOO_SLOW_SECONDS = 0.25, 2.5
RANDOM = 10  # two runs on the same inputs may differ by so many tolerances
SEARCH_SECONDS = 3.0  # the search for the factor of `scaled` takes no longer
SHAKEN_RUNS = 2  # how often inputs are changed in their last bits where float64 cannot run


def supported(tensor):
    tensor = tensor.detach()
    if tensor.dtype in CASTS:
        tensor = tensor.to(CASTS[tensor.dtype])
    if tensor.dtype not in tensors.SPEC_NAMES:
        raise ProblemError(f"tensors of type {tensor.dtype} are not supported")
    return tensor.contiguous()


def outputs_of(result):
    """The model's result as a flat list of tensors."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)) and result and all(isinstance(r, torch.Tensor) for r in result):
        return list(result)
    raise ProblemError(f"forward() returns {type(result).__name__}; a tensor or a tuple of tensors is needed")


class Problem:
    timed_last = None  # the problem that keeps copies of inputs

    def __init__(self, code, param_seeds, touched=False):
        self.file_name = f"<problem {id(self):x}>"
        try:
            self._load(code, param_seeds, touched)
        except ProblemError:
            raise
        except Exception as error:
            raise ProblemError(problem.explain(error, self.file_name)) from error

    def _load(self, code, param_seeds, touched):
        seed_all(param_seeds[0])
        module = problem.load(code, self.file_name)
        self.get_inputs = module.get_inputs
        init_inputs = problem.init_inputs(module)
        seed_all(param_seeds[0])
        if isinstance(init_inputs, dict):
            model = module.Model(**init_inputs)
        else:
            model = module.Model(*init_inputs)
        if self._has_double(model):
            model.float()
        if touched:
            problem.touch_constants(model, param_seeds[0])
        self.models = [model, self._disturbed(model, param_seeds[1])]
        self.doubles = [problem.Double(m) for m in self.models]
        self.touches = None  # [(input, value of an element that shows)], as soon as they were looked for
        self.scaling = scaling.Scaling()
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
            problem.disturb_statistics(other)
        return other

    def _inputs(self, family, seed, scale=None):
        """The inputs of a set. scale: of the family `scaled`; None: the problem's own."""
        seed_all(seed)
        result = []
        for value in problem.check_list(self.get_inputs()):
            if isinstance(value, torch.Tensor):
                value = supported(value)
                if families.FAMILIES[family].change:
                    value = families.change(value, family, families.QuickSigns, False, scale or self.scaling, seed)
            elif not isinstance(value, (bool, int, float)):
                raise ProblemError(f"an input of type {type(value).__name__} is not supported")
            result.append(value)
        if family == FAMILY_TOUCHED:
            if self.touches is None:
                self._find_touches(result)
            result = families.touch(result, self.touches)
        return result

    def _find_touches(self, inputs):
        """Finds out which inputs have elements that move the reference's output when they are changed."""
        self.touches = []
        start = time.perf_counter()
        base, _ = self._run(inputs, 0)
        if time.perf_counter() - start > SLOW_SECONDS:
            return

        def shows(index):
            at = int(torch.randint(inputs[index].numel(), (1,)))
            outputs_for = lambda x: self._run([x if i == index else v for i, v in enumerate(inputs)], 0)[0]
            return families.value_that_shows(inputs[index], at, base, outputs_for)

        self.touches = families.find_touches(inputs, shows)

    def _restore(self, param_set):
        problem.restore(self.models[param_set].buffers(), self.initial[param_set])

    def _run(self, inputs, param_set):
        """The outputs for private copies of the inputs, and the buffers afterwards; the model is left as it was."""
        with torch.no_grad():
            outputs = [supported(t) for t in outputs_of(self.models[param_set](*clones(inputs)))]
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
        arg = {"name": name, "role": role, "type": tensors.SPEC_NAMES[tensor.dtype], "shape": list(tensor.shape)}
        if mutated:
            arg["mutated"] = True
        self.args.append(arg)

    def _exact(self, inputs, param_set, seed):
        """What changes of the buffers and the outputs in float64; None where that cannot run."""
        double = self.doubles[param_set]
        if not double.ready():
            return None

        def collect(result):
            outputs = [t.clone() for t in outputs_of(result)]
            return [b.clone() for b, changed in zip(double.model.buffers(), self.mutated) if changed] + outputs

        try:
            return double.run(inputs, seed, collect)
        except Exception:
            double.give_up()
            return None

    def _results(self, inputs, param_set, seed):
        """What changes of the buffers, and the outputs."""
        seed_all(seed)
        outputs, buffers = self._run(inputs, param_set)
        return [supported(b) for b, changed in zip(buffers, self.mutated) if changed] + outputs

    def _limits(self, family, inputs, results, param_set, seed):
        """How each result is judged on such inputs (compare.limits_of). Only float32 results are measured."""
        draws = [(inputs, results, seed)]
        for index in range(1, compare.draws_wanted(results) + 1):
            other = problem.another_seed(seed, index)
            values = self._inputs(family, other)
            draws.append((values, self._results(values, param_set, other), other))

        def measured(mine, others):
            return [b if a.dtype == torch.float32 else None for a, b in zip(mine, others)]

        def exact(values, mine, which):
            true = self._exact(values, param_set, which)
            return None if true is None else measured(mine, true)

        def shaken(values, mine, which):
            once = lambda: self._results([problem.shaken(v) for v in values], param_set, which)
            return [measured(mine, once()) for _ in range(SHAKEN_RUNS)]

        return compare.limits_of(draws, exact, shaken)

    def find_scaling(self, seed):
        """Finds the factor of the family `scaled`."""
        end = time.perf_counter() + SEARCH_SECONDS

        def run(one, which):
            try:
                family = FAMILY_SCALED if one else FAMILY_SHIPPED
                values = self._inputs(family, problem.another_seed(seed, which), one)
                return self._results(values, 0, seed)
            except ProblemError:
                raise
            except Exception:
                return None

        def stands(one):
            values = self._inputs(FAMILY_SCALED, seed, one)
            mine, true = self._results(values, 0, seed), self._exact(values, 0, seed)
            return true is not None and all(
                compare.limit_of([(a, b)]).noise <= compare.TOLERANCE.get(a.dtype, 0)
                for a, b in zip(mine, true)
                if a.dtype == torch.float32
            )

        self.scaling = scaling.find_scaling(run, stands, lambda: time.perf_counter() > end)

    def _same_time(self, inputs, seed):
        """Whether the reference takes as long on these as on shipped inputs."""

        def seconds(values):
            copies = clones(values)
            start = time.perf_counter()
            with torch.no_grad():
                self.models[0](*copies)
            end = time.perf_counter()
            self._restore(0)
            return end - start

        return scaling.same_time(seconds, inputs, self._inputs(FAMILY_SHIPPED, seed))

    # ---- shared memory ----

    def attach(self, fd, size, layout):
        """Takes the memory that is shared with the verifier. layout: byte offsets. An argument's `input`, `param` and
        `output` offset is -1 where it has none."""
        self.memory = tensors.Memory.from_fd(fd, size, huge=True)
        self.layout = layout
        self.views = {}
        self.copies = []
        for param_set in range(2):
            base = layout["param_base"] + param_set * layout["param_stride"]
            state = [supported(p) for p in self.models[param_set].parameters()]
            state += [supported(b) for b in self.initial[param_set]]
            for index, tensor in enumerate(state):
                offset = layout["param"][self.n_inputs + index]
                self.memory.array(base + offset, tensor.shape, tensor.dtype).copy_(tensor)

    def _write_inputs(self, base, inputs):
        """Writes inputs into a set. Returns them as they lie there: forward() may change the ones it is given."""
        stored = []
        for arg, offset, value in zip(self.args, self.layout["input"], inputs):
            if isinstance(value, torch.Tensor):
                if list(value.shape) != arg["shape"]:
                    raise ProblemError(f"input {arg['name']} changes its shape from call to call")
                view = self.memory.array(base + offset, value.shape, value.dtype)
                view.copy_(value)
                stored.append(view)
            else:
                dtype = torch.float64 if arg["type"] == "f32" else torch.int64
                self.memory.array(base + offset, [1], dtype).copy_(torch.tensor([value], dtype=dtype))
                stored.append(value)
        return stored

    def fill(self, index, family, seed, param_set, with_noise):
        """Writes input set `index` and the reference's outputs for it. With noise, also returns whether all outputs are
        finite, whether the clock may run on such inputs, and for each result the figures of its Limit."""
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
            if list(value.shape) != arg["shape"] or tensors.SPEC_NAMES[value.dtype] != arg["type"]:
                raise ProblemError(f"output {arg['name']} changes its shape or type from call to call")
            view = self.memory.array(base + self.layout["input_stride"] + offset, value.shape, value.dtype)
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
        # Only float64 says how far the reference is to be trusted where elements are unlike the others.
        known = self.doubles[param_set].model is not None
        usable = known or family not in (FAMILY_TOUCHED, FAMILY_SPIKES)
        usable = usable and (family != FAMILY_TOUCHED or bool(self.touches))
        timed = usable
        if usable and param_set == 0 and family in (FAMILY_SCALED, FAMILY_SPIKES):
            timed = self._same_time(stored, seed)
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
                    value = self.memory.array(base + offset, [1], dtype).item()
                    inputs.append(bool(value) if arg["type"] == "bool" else value)
                else:
                    inputs.append(self.memory.array(base + offset, arg["shape"], tensors.SPEC_TYPES[arg["type"]]))
            self.views[index] = inputs
        return self.views[index]

    @staticmethod
    def forget_copies():
        if Problem.timed_last is not None:
            Problem.timed_last.copies = []
        Problem.timed_last = None

    def _copies(self, call, index):
        """Copies of a set's inputs for the call of that number. The memory of the copies is kept, because new memory
        takes longer than copying. The model gets a view of that memory, whose shape it may change in place."""
        stored = self._stored(index)
        if call == len(self.copies):
            self.copies.append([torch.empty_like(v) if isinstance(v, torch.Tensor) else v for v in stored])
        mine = self.copies[call]
        return [m.copy_(v).view_as(v) if isinstance(v, torch.Tensor) else v for m, v in zip(mine, stored)]

    def time(self, sets, repeat):
        """Seconds for one eager forward per set, after copies of the inputs were made, as they are for the answer."""
        model = self.models[0]
        if Problem.timed_last is not self:
            Problem.forget_copies()
            Problem.timed_last = self
        calls = [self._copies(call, index) for call, index in enumerate(sets)]
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad():
                if repeat == 0:  # warm-up: a first call builds what later calls use again
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
