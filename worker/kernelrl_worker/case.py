"""A problem as answers with a class ModelNew meet it, in one precision on one device.

A case draws inputs, knows the right outputs, and judges those of an answer. A set of inputs is (family, seed, parameter
set). It is made again whenever it is wanted, so that problems of any size fit. Expected outputs are kept while there is
room. There are two parameter sets: 0 as the module initialises it, with one element of each constant changed in
hardened scoring, and 1 with other parameters, none of them constant.
"""

import contextlib
import functools
import inspect
import time

import torch

from kernelrl_worker import compare, cupti, families, problem, scaling, selfjail, tensors
from kernelrl_worker.constants import (
    FAMILY_PROBE,
    FAMILY_SCALED,
    FAMILY_SHIPPED,
    FAMILY_TOUCHED,
    NOISE_MOST,
    REFERENCE_LANE,
    WORD_DIFFERENT,
    WORD_EQUAL,
    WORD_INPUTS_CHANGED,
    WORD_NOT_FINITE,
)
from kernelrl_worker.problem import ProblemError, clones
from kernelrl_worker.sample import Pieces, SampledScales, same_bits, same_inputs, unravel
from kernelrl_worker.staging import DrawInto, is_alone, is_at

KEEP_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}  # expected outputs that are kept take no more
REST_BYTES = 1 << 30  # nor do these and float64 models on a GPU while there is nothing to judge
DOUBLE_BYTES = {"cpu": 2 << 30, "cuda": 16 << 30}  # float64 is tried on inputs and outputs of no more than this
# A family on which the reference itself is this far from float64 says nothing about an answer.
BAD_NOISE = {"cpu": NOISE_MOST, "cuda": 1e-2}
# A reference is random when two runs on the same inputs differ by this many tolerances, and by this error at least.
RANDOM, RANDOM_LEAST = 2, 1e-2
SEARCH_SECONDS = 5.0  # the search for the factor of `scaled` takes no longer
SEARCH_ELEMENTS = 1 << 24  # and looks at no more elements of an output
FAMILY_KEY, TOUCH_KEY, STATE_KEY = 0xFA311, 0x70C4, 0x5EED  # streams of random numbers beside that of a set's seed


class Case:
    def __init__(self, request):
        self.device = request["device"]
        self.kind = self.device.split(":")[0]
        self.dtype = tensors.PRECISIONS[request["precision"]]
        self.cpu_inputs = request["cpu_inputs"] or self.kind == "cpu"
        self.file_name = f"<problem {id(self):x}>"
        self.lanes, self.kept, self.kept_bytes = {}, {}, 0
        self.staged = {}  # inputs that lie in the reference's lane
        self.surveyed = {}  # (family, parameter set): whether it may be used, and the Limits of the outputs
        self.scaling = None  # scaling.Scaling, as soon as it was looked for
        self.probes = {}  # (parameter set, seed): input, place and value
        self.touches = {}  # parameter set: [(input, value that showed)]
        try:
            self._load(request)
        except ProblemError:
            raise
        except Exception as error:
            raise ProblemError(problem.explain(error, self.file_name)) from error

    def _load(self, request):
        seeds = request["init_seeds"]
        problem.seed_all(seeds[0])
        module = problem.load(request["code"], self.file_name)
        self.get_inputs = module.get_inputs
        problem.seed_all(seeds[0])
        self.init = problem.init_inputs(module)
        self.models, self.states = [], []
        for which, seed in enumerate(seeds):
            how = tensors.RANDOM if which > 0 else request["constants"]
            model = tensors.build_module(module.Model, self.init, seed, how, self.device, self.dtype)
            if how == tensors.RANDOM:
                self._disturb(model, seed)
            elif how == tensors.TOUCHED:
                problem.touch_constants(model, seed ^ STATE_KEY)
            self.models.append(model)
            self.states.append([t.clone() for t in list(model.parameters()) + list(model.buffers())])
        self.doubles = [problem.Double(model) for model in self.models]
        self._describe(seeds[0])
        # The reference can read such a file. Some libraries would tell an answer that it does not exist.
        hidden = selfjail.unreadable_model(request["code"]) if selfjail.becomes_nobody() else None
        if hidden:
            raise ProblemError(f"answers run as nobody, who cannot read {hidden}: chmod -R a+rX the model's folder")

    @staticmethod
    def _disturb(model, seed):
        """Changes parameters that are constant although random initialisers were asked for, and running statistics."""
        problem.seed_all(seed ^ STATE_KEY)
        with torch.no_grad():
            for parameter in model.parameters():
                if problem.is_constant(parameter):
                    noise = torch.randn(parameter.shape, dtype=torch.float32).to(parameter)
                    parameter.add_(0.25 * noise * max(abs(float(parameter.reshape(-1)[0])), 0.1))
            problem.disturb_statistics(model)

    # ---- what the problem is ----

    def _describe(self, seed):
        values = self._draw(FAMILY_SHIPPED, seed ^ 1, 0)
        self.inputs_layout = tensors.Layout()
        self.values = []
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                self.inputs_layout.add(value, f"input {index}")
                self.values.append(None)
            else:
                self.values.append(value)
        self.params_layout = tensors.Layout()
        for name, t in tensors.state_of(self.models[1]):
            self.params_layout.add(t, name)
        before = clones(values)
        problem.seed_all(seed ^ 2)
        seeded = self._generators()
        outputs, self.structure = self._run(0, values, seed ^ 2)
        # A forward that draws numbers is random, even where they do not show in these outputs.
        draws = any(not torch.equal(a, b) for a, b in zip(seeded, self._generators()))
        if not outputs:
            raise ProblemError("forward() returns no tensor")
        self.mutates = any(isinstance(b, torch.Tensor) and not same_bits(a, b) for a, b in zip(values, before))
        starts = {v.data_ptr() for v in values if isinstance(v, torch.Tensor)}
        self.aliases = any(o.data_ptr() in starts for o in outputs)
        again, _ = self._run(0, before, seed ^ 3)
        self.random = draws or any(self._differs_too_much(a, b) for a, b in zip(outputs, again))
        self.outputs = [self._output_item(o) for o in outputs]
        self.output_bytes = [o.numel() * o.element_size() for o in outputs]
        self.kernels = self._kernels(values, seed)

    @staticmethod
    def _differs_too_much(a, b):
        tolerance = max(RANDOM * compare.TOLERANCE.get(a.dtype, 0.0), RANDOM_LEAST)
        return compare.compare(a, b, tolerance, None)["different"] > 0

    @staticmethod
    def _output_item(o):
        """What the verifier is told of an output. overlapping: elements share memory in the reference's own output, so
        they may do so in an answer's."""
        span = 1 + sum((n - 1) * s for n, s in zip(o.shape, o.stride())) if o.layout == torch.strided else o.numel()
        return {
            "dtype": tensors.DTYPE_NAMES.get(o.dtype, str(o.dtype)),
            "shape": list(o.shape),
            "overlapping": o.layout == torch.strided and o.numel() > span,
        }

    def _generators(self):
        return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(self.device)] if self.kind == "cuda" else [])

    def _kernels(self, values, seed):
        """The names of the kernels that the reference launches on a GPU."""
        if self.kind != "cuda":
            return []
        try:
            trace = cupti.Trace()
        except (OSError, RuntimeError):
            return []
        self._run(0, clones(values), seed)
        torch.cuda.synchronize()
        return sorted({record[0] for record in trace.stop() if record[0] is not None})

    def native_spec(self):
        """The interface of a native answer (docs/formats.md, "Spec"), or None where a type has no place in it. Its
        parameters and buffers are the parameters and floating-point buffers that both sides share."""
        names = [p for p in inspect.signature(self.models[0].forward).parameters]
        names += [f"in{i}" for i in range(len(names), len(self.values))]
        inputs = iter(self.inputs_layout.items)
        args = []
        for name, value in zip(names, self.values):
            if value is None:
                item = next(inputs)
                args.append({"name": name, "role": "input", "type": item["dtype"], "shape": item["shape"]})
            elif isinstance(value, (bool, int, float)):
                kind = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
                args.append({"name": name, "role": "input", "type": kind, "shape": [], "scalar": True})
            else:
                return None
        parameters = {n for n, _ in self.models[0].named_parameters()}
        for role, wanted in (("param", True), ("buffer", False)):
            for item in self.params_layout.items:
                if (item["name"] in parameters) == wanted:
                    args.append({"name": item["name"], "role": role, "type": item["dtype"], "shape": item["shape"]})
        for i, item in enumerate(self.outputs):
            name = "out" if len(self.outputs) == 1 else f"out{i}"
            args.append({"name": name, "role": "output", "type": item["dtype"], "shape": item["shape"]})
        for arg in args:
            dtype = tensors.DTYPES.get(arg["type"])
            if dtype not in tensors.SPEC_NAMES:
                return None
            arg["type"] = tensors.SPEC_NAMES[dtype]
        return {"args": args}

    # ---- inputs ----

    def _draw(self, family, seed, param_set, into=()):
        """The inputs of a set on the device, in the problem's precision; integers stay what they are. Some inputs may
        come to lie in the tensors `into`, which may be written to in any case."""
        problem.seed_all(seed)
        with contextlib.ExitStack() as stack:
            if not self.cpu_inputs:
                stack.enter_context(torch.device(self.device))
            if into and family != FAMILY_PROBE:
                stack.enter_context(DrawInto(into))
            values = problem.check_list(self.get_inputs())
        values = [self._placed(v) if isinstance(v, torch.Tensor) else v for v in values]
        if family == FAMILY_SHIPPED:
            return values
        if family == FAMILY_TOUCHED:
            generator = torch.Generator().manual_seed(seed ^ TOUCH_KEY)
            alone = functools.partial(is_alone, values=values, views=into)
            return families.touch(values, self.touches.get(param_set), generator, alone)
        generator = torch.Generator(device=self.device).manual_seed(seed ^ FAMILY_KEY)
        if family == FAMILY_PROBE:
            return self._probe(values, param_set, seed, generator)
        signs = families.Signs(generator)
        alone = [is_alone(v, values, into) for v in values]
        return [families.change(v, family, signs, a, self.scaling, seed) for v, a in zip(values, alone)]

    def _placed(self, value):
        if value.is_floating_point():
            value = value.to(self.dtype)
        value = value.detach().to(self.device)
        return value.contiguous() if value.numel() and not tensors.is_dense(value) else value

    def _probe(self, values, param_set, seed, generator):
        """One element of one input, chosen at random, is changed until the output notices."""
        key = (param_set, seed)
        if key not in self.probes:
            self.probes[key] = self._find_probe(values, param_set, seed, generator)
        if self.probes[key] is None:
            return values
        pick, place, value = self.probes[key]
        values[pick] = values[pick].clone()
        values[pick][place] = value
        return values

    def _find_probe(self, values, param_set, seed, generator):
        candidates = [i for i, v in enumerate(values) if families.is_float(v) and v.numel() > 0]
        if not candidates:
            return None
        pick = candidates[int(torch.randint(len(candidates), (1,), generator=generator, device=self.device))]
        at, value = self._shows(values, param_set, seed, generator, pick)
        return None if value is None else (pick, tuple(unravel(at, values[pick].shape)), value)

    def _shows(self, values, param_set, seed, generator, pick):
        """An element of input `pick`, and a value that moves the reference's output there; None where none does."""
        at = int(torch.randint(values[pick].numel(), (1,), generator=generator, device=self.device))

        def outputs_for(x):
            return self._run(param_set, clones([x if i == pick else v for i, v in enumerate(values)]), seed)[0]

        return at, families.value_that_shows(values[pick], at, outputs_for(values[pick]), outputs_for)

    def _find_touches(self, param_set, seed):
        """Which inputs can be touched, and with which values."""
        values = self._draw(FAMILY_SHIPPED, seed, param_set)
        generator = torch.Generator(device=self.device).manual_seed(seed ^ TOUCH_KEY)
        shows = lambda pick: self._shows(values, param_set, seed, generator, pick)[1]
        self.touches[param_set] = families.find_touches(values, shows)

    # ---- the reference ----

    def _run(self, param_set, values, seed):
        """(outputs, structure). The values may be changed; the model is left as it was."""
        problem.seed_all(seed)
        model, flat = self.models[param_set], []
        with torch.no_grad():
            structure = tensors.flatten(model(*values), flat)
        flat = [t.detach() for t in flat]
        if any(True for _ in model.buffers()):
            flat = [t.clone() for t in flat]
            problem.restore(list(model.parameters()) + list(model.buffers()), self.states[param_set])
        return flat, structure

    def _limits(self, family, values, outputs, param_set, seed):
        """How each output is judged on such inputs (compare.limits_of)."""
        draws = [(values, outputs, seed)]
        for index in range(1, compare.draws_wanted(outputs) + 1):
            other = problem.another_seed(seed, index) >> 11
            drawn = self._draw(family, other, param_set)
            draws.append((drawn, self._run(param_set, clones(drawn), other)[0], other))

        def exact(*draw):
            return self._exact(param_set, *draw)

        def shaken(inputs, mine, which):
            if self._is_big(inputs, mine):  # there is no room for them
                return [None]
            return [self._run(param_set, [problem.shaken(v) for v in inputs], which)[0]]

        return compare.limits_of(draws, exact, shaken)

    def _is_big(self, values, outputs):
        size = sum(v.numel() * v.element_size() for v in list(values) + outputs if isinstance(v, torch.Tensor))
        return size > DOUBLE_BYTES[self.kind]

    def _exact(self, param_set, values, outputs, seed):
        """The float64 model's outputs; None where it cannot run or has no room."""
        double = self.doubles[param_set]
        if not double.ready() or self._is_big(values, outputs):
            return None
        exact = self._run_double(double, values, seed)
        if exact is None:
            double.give_up()
            problem.give_back()
        return exact

    def _run_double(self, double, values, seed):
        """Its outputs; None where it fails. Room is made for it once."""

        def collect(result):
            flat = []
            tensors.flatten(result, flat)
            return [t.clone() for t in flat] if double.buffers else flat

        for again in (True, False):
            try:
                return double.run(values, seed, collect)
            except Exception as error:
                again = again and problem.lacks_room(error)
            if not again:
                return None
            self.forget()
        return None

    def find_scaling(self, seed):
        """Finds the factor of the family `scaled`."""
        end = time.perf_counter() + SEARCH_SECONDS
        self.scaling = scaling.Scaling()

        def outputs_for(one, which):
            self.scaling = one or scaling.Scaling()
            family = FAMILY_SCALED if one else FAMILY_SHIPPED
            values = self._draw(family, problem.another_seed(seed, which) >> 11, 0)
            return values, self._run(0, clones(values), seed)[0]

        def run(one, which):
            try:
                outputs = outputs_for(one, which)[1]
            except Exception as error:
                if problem.lacks_room(error) or isinstance(error, ProblemError):
                    raise
                return None
            return [o if o.numel() <= SEARCH_ELEMENTS else o.reshape(-1)[:SEARCH_ELEMENTS].clone() for o in outputs]

        def stands(one):
            values, mine = outputs_for(one, 0)
            exact = self._exact(0, values, mine, seed)
            return exact is not None and all(
                compare.limit_of([(a, b)]).noise <= BAD_NOISE[self.kind]
                for a, b in zip(mine, exact)
                if a.is_floating_point()
            )

        self.scaling = scaling.find_scaling(run, stands, lambda: time.perf_counter() > end)

    def _same_time(self, values, seed):
        """Whether the reference takes as long on these as on shipped inputs."""

        def seconds(of):
            given = clones(of)
            self._settle()
            start = time.perf_counter()
            self._run(0, given, seed)
            self._settle()
            return time.perf_counter() - start

        return scaling.same_time(seconds, values, self._draw(FAMILY_SHIPPED, seed, 0))

    def forget(self):
        """Drops what can be made again."""
        self.kept, self.kept_bytes = {}, 0
        problem.give_back()

    def rest(self):
        """Drops what can be made again, and float64 models, where they are large: others may need the room."""
        if self.kind == "cuda" and self.kept_bytes + sum(d.bytes() for d in self.doubles) > REST_BYTES:
            self.kept, self.kept_bytes = {}, 0
            for double in self.doubles:
                double.forget()

    def survey(self, wanted_families, seed, wanted, timed):
        """Says of each (family, parameter set) whether it may be used, by the clock where `timed`, until `wanted` of
        them may."""
        result = []
        for family, param_set in wanted_families:
            if sum(r["usable"] for r in result) >= wanted:
                break
            key = (family, param_set)
            if family == FAMILY_SCALED and param_set == 0 and not timed and not self._known_scaling(seed).blind:
                result.append({"usable": False})  # there are scaled inputs on the other parameters
                continue
            if key not in self.surveyed:
                self.surveyed[key] = self._survey_one(family, param_set, seed)
            usable = self.surveyed[key][0]
            if usable and timed and family == FAMILY_SCALED:
                usable = self._same_time(self._draw(family, seed, param_set), seed)
            result.append({"usable": usable})
        if self.kind == "cuda":
            torch.cuda.empty_cache()  # others need the room more
        return result

    def _known_scaling(self, seed):
        """How inputs are scaled. It is found out once, because that takes some calls."""
        if self.scaling is None:
            self.find_scaling(seed)
        return self.scaling

    def _survey_one(self, family, param_set, seed):
        """(whether the family may be used, the Limits of the outputs)"""
        if family == FAMILY_TOUCHED:
            self._find_touches(param_set, seed)
            if not self.touches[param_set]:
                return False, []
        if family == FAMILY_SCALED:
            self._known_scaling(seed)
        values = self._draw(family, seed, param_set)
        outputs, _ = self._run(param_set, clones(values), seed)
        finite = all(bool(torch.isfinite(o).all()) for o in outputs if o.is_floating_point())
        if finite:
            limits = self._limits(family, values, outputs, param_set, seed)
        else:
            limits = [compare.Limit(o.dtype) for o in outputs]
        if self.doubles[param_set].lost and families.FAMILIES[family].far:
            return False, limits
        shipped = family == FAMILY_SHIPPED and param_set == 0
        trusted = all(limit.noise <= BAD_NOISE[self.kind] for limit in limits)
        return shipped or (finite and trusted), limits

    def limit(self, which, index, dtype):
        """How output `index` of a set is judged."""
        _, limits = self.surveyed.get((which["family"], which["param_set"]), (True, []))
        return limits[index] if index < len(limits) else compare.Limit(dtype)

    def expected(self, which):
        """(inputs, outputs, scales of the outputs) of a set. They are kept while there is room, because every answer to
        the problem meets them."""
        key = (which["family"], which["seed"], which["param_set"])
        if key in self.kept:
            return self.kept[key]
        there = key in self.staged
        values = self.staged[key] if there else self._draw(*key)
        given = clones(values) if self.mutates else values
        outputs, _ = self._run(which["param_set"], given, which["forward_seed"])
        scales = [compare.Scales(o, self.limit(which, i, o.dtype)) for i, o in enumerate(outputs)]
        kept = list(values) + outputs + [s.rows for s in scales]
        size = sum(t.numel() * t.element_size() for t in kept if isinstance(t, torch.Tensor))
        if self.kept_bytes + size <= KEEP_BYTES[self.kind]:
            if there:  # the lane will hold others
                values = clones(values)
                outputs = clones(outputs) if self.aliases else outputs
            self.kept[key] = (values, outputs, scales)
            self.kept_bytes += size
        return values, outputs, scales

    # ---- lanes: the memory of one process that runs an answer or the reference ----

    def stage(self, lanes, slots):
        """Writes sets into the same slots of each lane. Each set is drawn once."""
        self.staged = {}
        for entry in slots:
            key = (entry["family"], entry["seed"], entry["param_set"])
            places = [self._places(lane, entry["slot"]) for lane in lanes]
            values = self.kept[key][0] if key in self.kept else self._draw(*key, into=places[0])
            inputs = [v for v in values if isinstance(v, torch.Tensor)]
            for item, value in zip(self.inputs_layout.items, inputs):
                if list(value.shape) != item["shape"]:
                    raise ProblemError(f"{item['name']} changes its shape from call to call")
            # What has been drawn to where another input belongs comes out of the way first.
            for i, view in enumerate(places[0]):
                if self.lanes[lanes[0]].holds(inputs[i]) and not is_at(inputs[i], view):
                    inputs[i] = inputs[i].clone()
            for views in places:
                for value, view in zip(inputs, views):
                    if not is_at(value, view):
                        view.copy_(value)
            if lanes[0] == REFERENCE_LANE and not self.mutates:  # no answer can write there
                views = iter(places[0])
                self.staged[key] = [next(views) if isinstance(v, torch.Tensor) else v for v in values]
        self._settle()

    def _places(self, lane, slot):
        """Where the inputs of a slot lie."""
        memory = self.lanes[lane]
        return [memory.view(item, memory.slot_base + slot * memory.slot_stride) for item in self.inputs_layout.items]

    def write_params(self, lane):
        memory = self.lanes[lane]
        for which, model in enumerate(self.models):
            for item, (_, value) in zip(self.params_layout.items, tensors.state_of(model)):
                memory.view(item, which * self.params_layout.bytes).copy_(value)
        self._settle()

    def _settle(self):
        if self.kind == "cuda":
            torch.cuda.synchronize()

    # ---- verdicts ----

    def intact(self, lane, entry, values, seed):
        """Whether the answer has left its inputs as they were. seed: large ones are looked at in part; 0: in full."""
        originals = [v for v in values if isinstance(v, torch.Tensor)]
        return all(same_inputs(a, b, seed) for a, b in zip(self._places(lane, entry["slot"]), originals))

    def judge(self, lane, entry, got, hardened, seed=0):
        """Compares the outputs of a call (tensors or Pieces) with the expected ones of its set."""
        values, wanted, scales = self.expected(entry)
        if not self.mutates and not self.intact(lane, entry, values, seed):
            return {"verdict": WORD_INPUTS_CHANGED}
        worst = {"verdict": WORD_EQUAL, "max_error": 0.0}
        shipped = entry["family"] == FAMILY_SHIPPED and entry["param_set"] == 0
        for index, (want, have) in enumerate(zip(wanted, got)):
            tolerance = self.limit(entry, index, want.dtype).tolerance(want.dtype) if hardened else None
            compatible = compare.TOLERANCE.get(want.dtype, 0.0) if shipped or not hardened else None
            scale, flat, looked_at = scales[index], want, want
            if isinstance(have, Pieces):
                flat = want.reshape(-1)
                looked_at, have, sample = have.sample.of(flat), have.content.view(want.dtype), have.sample
                scale = SampledScales(scale, functools.partial(sample.places, flat=flat))
            result = compare.compare(looked_at, have, tolerance, compatible, scale)
            if result["different"]:
                first = result["first"] if flat is want else sample.place(result["first"], flat)
                result["verdict"] = WORD_NOT_FINITE if result["not_finite"] else WORD_DIFFERENT
                result["output"] = index
                result["elements"] = looked_at.numel()
                result["place"] = unravel(first, want.shape)
                return result
            if isinstance(result["max_error"], float):
                worst["max_error"] = max(worst["max_error"], result["max_error"])
        return worst
