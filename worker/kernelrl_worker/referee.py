"""The trusted side of a ModelNew verdict: makes the inputs, knows the right outputs, compares.

Answers and references run in other processes (harness.py). This one holds the secrets: it draws inputs from seeds that
the verifier sends, writes them into memory that an answer sees, and judges what the verifier (or, on a GPU, the
answer's allocator) shows it. A set of inputs is (family, seed, parameter set): made again whenever it is wanted, so
that problems of any size fit; expected outputs are kept while there is room.

Families of inputs. `shipped` is what get_inputs draws. The others change its floating-point elements: `signed` flips
signs at random, `scaled` and `small` also multiply by 3 and 0.01 (`scaled` by what makes the outputs of two draws
differ, where the problem's own inputs and 3 do not), `negated` takes the negative, `offset` adds 50 to what
is not zero, `unit` draws values next to 1 of both signs, `spikes` makes a few elements a hundred times as large, of
either sign, `probe` changes one element by so much that the reference's output must change, and asks for that change.
`touched` changes one element, in any place, by as much as was found to show in some place: in timed calls, where nobody
has time to find out for each.
"""

import contextlib
import copy
import ctypes
import functools
import gc
import inspect
import os
import resource
import time

import torch

from kernelrl_worker import compare, cupti, reference, selfjail, tensors
from kernelrl_worker import scaling as scalings
from kernelrl_worker.constants import (
    FAMILY_NEGATED,
    FAMILY_OFFSET,
    FAMILY_PROBE,
    FAMILY_SCALED,
    FAMILY_SHIPPED,
    FAMILY_SIGNED,
    FAMILY_SMALL,
    FAMILY_SPIKES,
    FAMILY_TOUCHED,
    FAMILY_UNIT,
    NOISE_MOST,
    REFERENCE_LANE,
    WORD_DIFFERENT,
    WORD_EQUAL,
    WORD_INPUTS_CHANGED,
    WORD_NOT_FINITE,
    WORD_UNREACHABLE,
)
from kernelrl_worker.sample import Pieces, Sample, SampledScales, same_bits, same_inputs, unravel
from kernelrl_worker.staging import DrawInto, is_alone, is_at
from kernelrl_worker.tensors import Fault

KEEP_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}  # expected outputs
REST_BYTES = 1 << 30  # of a GPU, of expected outputs and of float64 models, while there is nothing to judge
DOUBLE_BYTES = {"cpu": 2 << 30, "cuda": 16 << 30}  # of inputs and outputs that float64 is tried on
# A family on which the reference itself is this far from float64 says nothing about an answer.
BAD_NOISE = {"cpu": NOISE_MOST, "cuda": 1e-2}
MOST_OPEN = 64  # blocks of an answer's memory
REST_SLACK_S, REST_WAIT_S = 300e-6, 1.0  # what more than usual a small piece of work may take; how long others may
OFFSET = 50  # far from zero for data of size one: variances and differences that cancel lose half their digits
RANDOM, RANDOM_LEAST = 2, 1e-2  # times the tolerance, and error, that two runs on the same inputs may be apart
SEARCH_SECONDS = 5.0  # for the factor of `scaled`
SEARCH_ELEMENTS = 1 << 24  # of an output that are looked at for that


def lacks_room(error):
    """Whether this was for want of a GPU's memory, which others use too: no fault of a problem's."""
    return any(t in str(error) for t in ("CUDA out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "_STATUS_ALLOC_FAILED"))


def give_back():
    """What the allocator keeps for later, to the GPU."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Case:
    """One problem in one precision on one device."""

    def __init__(self, request):
        self.device = request["device"]
        self.kind = self.device.split(":")[0]
        self.dtype = tensors.PRECISIONS[request["precision"]]
        self.cpu_inputs = request["cpu_inputs"] or self.kind == "cpu"
        self.file_name = f"<problem {id(self):x}>"
        self.lanes, self.kept, self.kept_bytes = {}, {}, 0
        self.staged = {}  # inputs that lie in the reference's lane
        self.surveyed = {}  # (family, parameter set): may it be used, limits (compare.Limit) of the outputs
        self.scaling = None  # scaling.Scaling, once it was looked for
        self.doubles = [None, None]
        self.probes = {}  # (parameter set, seed): input, place and value
        self.touches = {}  # parameter set: inputs and values that showed
        try:
            self._load(request)
        except Fault:
            raise
        except Exception as error:
            raise Fault(reference.explain(error, self.file_name)) from error

    def _load(self, request):
        tensors.seed_everything(request["init_seeds"][0])
        module = tensors.load_code(request["code"], "kernelrl_problem", self.file_name)
        for name in ("Model", "get_inputs"):
            if not hasattr(module, name):
                raise Fault(f"defines no {name}")
        self.get_inputs = module.get_inputs
        tensors.seed_everything(request["init_seeds"][0])
        self.init = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
        self.models, self.states = [], []
        for which, seed in enumerate(request["init_seeds"]):
            model = tensors.build_module(module.Model, self.init, seed, which > 0, self.device, self.dtype)
            if which > 0:
                self._disturb(model, seed)
            self.models.append(model)
            self.states.append([t.clone() for t in list(model.parameters()) + list(model.buffers())])
        self._describe(request["init_seeds"][0])
        # The reference could; an answer would be told, by some libraries, that there is no such file.
        hidden = selfjail.unreadable_model(request["code"]) if selfjail.becomes_nobody() else None
        if hidden:
            raise Fault(f"answers run as nobody, who cannot read {hidden}: chmod -R a+rX the model's folder")

    @staticmethod
    def _disturb(model, seed):
        """Parameters that are constant all the same, and running statistics, which nothing initialises at random."""
        tensors.seed_everything(seed ^ 0x5EED)
        with torch.no_grad():
            for parameter in model.parameters():
                flat = parameter.detach().reshape(-1)
                if parameter.is_floating_point() and flat.numel() and bool((flat == flat[0]).all()):
                    noise = torch.randn(parameter.shape, dtype=torch.float32).to(parameter)
                    parameter.add_(0.25 * noise * max(abs(float(flat[0])), 0.1))
            for name, buffer in model.named_buffers():
                if name.endswith("running_mean"):
                    buffer.add_(0.25 * torch.randn(buffer.shape).to(buffer))
                elif name.endswith("running_var"):
                    buffer.mul_(1 + 0.5 * torch.rand(buffer.shape).to(buffer))

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
        before = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]
        tensors.seed_everything(seed ^ 2)
        seeded = self._generators()
        outputs, self.structure = self._run(0, values, seed ^ 2)
        # It draws numbers: they may not show in these outputs, and in others all the same.
        draws = any(not torch.equal(a, b) for a, b in zip(seeded, self._generators()))
        if not outputs:
            raise Fault("forward() returns no tensor")
        self.mutates = any(isinstance(b, torch.Tensor) and not same_bits(a, b) for a, b in zip(values, before))
        starts = {v.data_ptr() for v in values if isinstance(v, torch.Tensor)}
        self.aliases = any(o.data_ptr() in starts for o in outputs)
        again, _ = self._run(0, before, seed ^ 3)
        self.random = draws or any(
            compare.compare(a, b, max(RANDOM * compare.TOLERANCE.get(a.dtype, 0.0), RANDOM_LEAST), None)["different"]
            > 0
            for a, b in zip(outputs, again)
        )
        self.outputs = [
            {
                "dtype": tensors.DTYPE_NAMES.get(o.dtype, str(o.dtype)),
                "shape": list(o.shape),
                # Elements share memory in the reference's own output, so that they may in an answer's.
                "overlapping": o.layout == torch.strided
                and o.numel() > 1 + sum((n - 1) * s for n, s in zip(o.shape, o.stride())),
            }
            for o in outputs
        ]
        self.output_bytes = [o.numel() * o.element_size() for o in outputs]
        self.kernels = self._kernels(values, seed)

    def _generators(self):
        return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(self.device)] if self.kind == "cuda" else [])

    def _kernels(self, values, seed):
        """Names of the kernels that the reference launches on a GPU."""
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
        """The interface of a native answer (docs/formats.md, "Spec"), or None where a type has no place in it.
        Parameters and floating-point buffers are those that both sides share."""
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
            if dtype not in reference.TYPES:
                return None
            arg["type"] = reference.TYPES[dtype]
        return {"args": args}

    # ---- inputs ----

    def _draw(self, family, seed, param_set, into=()):
        """Inputs of a set on the device, in the problem's precision; integers stay what they are. Some of them may come
        to lie in the tensors `into`, which may be written to in any case."""
        tensors.seed_everything(seed)
        with contextlib.ExitStack() as stack:
            if not self.cpu_inputs:
                stack.enter_context(torch.device(self.device))
            if into and family != FAMILY_PROBE:
                stack.enter_context(DrawInto(into))
            values = self.get_inputs()
        if not isinstance(values, (list, tuple)):
            raise Fault(f"get_inputs() returns {type(values).__name__}; a list is needed")
        result = []
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.is_floating_point():
                    value = value.to(self.dtype)
                value = value.detach().to(self.device)
                if value.numel() and not tensors.is_dense(value):
                    value = value.contiguous()
            result.append(value)
        if family != FAMILY_SHIPPED:
            generator = torch.Generator(device=self.device).manual_seed(seed ^ 0xFA311)
            if family == FAMILY_PROBE:
                result = self._probe(result, param_set, seed, generator)
            elif family == FAMILY_TOUCHED:
                result = self._touch(result, param_set, seed, into)
            else:
                fresh = [is_alone(v, result, into) for v in result]
                scaling = (self.scaling or scalings.Scaling()) if family == FAMILY_SCALED else None
                result = [self._change(v, family, generator, f, scaling, seed) for v, f in zip(result, fresh)]
        return result

    def _change(self, x, family, generator, fresh=False, scaling=None, seed=0):
        """fresh: nobody else has x, it may be written to. scaling: of the family `scaled`."""
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.numel() == 0:
            return x
        symmetric = reference.is_symmetric(x)

        def mirrored(t):
            return torch.triu(t) + torch.triu(t, 1).transpose(-1, -2) if symmetric else t

        if family in (FAMILY_SIGNED, FAMILY_SCALED, FAMILY_SMALL, FAMILY_UNIT, FAMILY_OFFSET, FAMILY_NEGATED):
            # In place: of gigabytes there is seldom room for many, and each pass takes milliseconds.
            x = x if fresh else x.clone()
            if family == FAMILY_NEGATED:
                return x.neg_()
            zero = x == 0 if family in (FAMILY_UNIT, FAMILY_OFFSET) else None
            signs = torch.randint(0, 2, x.shape, generator=generator, device=x.device, dtype=torch.int8)
            signs = mirrored(signs.mul_(2).sub_(1))
            if family == FAMILY_UNIT:
                x.mul_(0.01).add_(1)
            if not scaling or scaling.signs:
                x.mul_(signs)
            if family == FAMILY_SCALED:
                x.mul_((scaling or scalings.Scaling()).factor_for(seed))
            elif family == FAMILY_SMALL:
                x.mul_(0.01)
            elif family == FAMILY_OFFSET:
                x.add_(OFFSET)
            return x if zero is None else x.masked_fill_(zero, 0)
        if family == FAMILY_SPIKES:
            if x.is_contiguous() and not symmetric:
                return self._spikes(x if fresh else x.clone(), generator)
            chosen = torch.rand(x.shape, generator=generator, device=x.device) < min(0.5, 8 / x.numel() + 1e-4)
            signs = torch.randint(0, 2, x.shape, generator=generator, device=x.device, dtype=torch.int8) * 2 - 1
            return torch.where(mirrored(chosen.to(torch.int8)).bool(), (x * 100 + 1) * mirrored(signs), x)
        raise Fault(f"unknown family {family}")

    @staticmethod
    def _spikes(x, generator):
        """In place. An element that is chosen twice gets the same value twice, whichever comes last."""
        flat = x.view(-1)
        count = int(min(0.5, 8 / x.numel() + 1e-4) * x.numel()) + 1
        key = torch.randint(1 << 20, (1,), generator=generator, device=x.device)
        at = torch.randint(x.numel(), (count,), generator=generator, device=x.device)
        signs = 1 - 2 * (((at + key) * 0x9E3779B1 >> 16) & 1)
        flat[at] = (flat[at] * 100 + 1) * signs.to(x.dtype)
        return x

    def _probe(self, values, param_set, seed, generator):
        """One element of one input, chosen at random, changed until the output notices."""
        if (param_set, seed) in self.probes:
            pick, place, value = self.probes[param_set, seed]
            if pick is not None:
                values[pick] = values[pick].clone()
                values[pick][place] = value
            return values
        self.probes[param_set, seed] = (None, None, None)
        candidates = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) and v.is_floating_point()]
        candidates = [i for i in candidates if values[i].numel() > 0]
        if not candidates:
            return values
        pick = candidates[int(torch.randint(len(candidates), (1,), generator=generator, device=self.device))]
        found = self._shows(values, param_set, seed, generator, pick)
        if found is None:
            return values
        place, value = found
        self.probes[param_set, seed] = (pick, place, value)
        values[pick] = values[pick].clone()
        values[pick][place] = value
        return values

    def _shows(self, values, param_set, seed, generator, pick):
        """A place of an input and a value that moves the reference's output; None where none does."""
        x = values[pick]
        at = int(torch.randint(x.numel(), (1,), generator=generator, device=self.device))
        base, _ = self._run(param_set, clones(values), seed)
        scale = compare.rms_of(x) or 1.0
        for factor in (10.0, 300.0, 1e4, 1e6):
            if factor * scale > torch.finfo(x.dtype).max / 100:
                break
            changed = x.clone()
            place = tuple(int(i) for i in unravel(at, x.shape))
            changed[place] = scale * factor
            outputs, _ = self._run(param_set, clones([changed if i == pick else v for i, v in enumerate(values)]), seed)
            moved = 0.0
            for a, b in zip(base, outputs):
                if a.is_floating_point():
                    if not bool(torch.isfinite(b).all()):
                        return None
                    moved = max(moved, compare.largest_error(a, b) / compare.TOLERANCE[a.dtype])
            if moved > compare.SHOWS:
                return place, scale * factor
        return None

    def _find_touches(self, param_set, seed):
        """Which inputs can be touched, and with which values."""
        values = self._draw(FAMILY_SHIPPED, seed, param_set)
        generator = torch.Generator(device=self.device).manual_seed(seed ^ 0x70C4)
        found = {}
        for pick, value in enumerate(values):
            if len(found) < compare.MOST_TOUCHED and reference.is_float(value) and value.numel():
                shows = self._shows(values, param_set, seed, generator, pick)
                if shows:
                    found[pick] = shows[1]
        self.touches[param_set] = sorted(found.items())

    def _touch(self, values, param_set, seed, into):
        """One element, anywhere, with a value that has shown in some place of that input."""
        if not self.touches.get(param_set):
            return values
        generator = torch.Generator().manual_seed(seed ^ 0x70C4)  # on the CPU: nobody waits for a GPU to say the place
        which = int(torch.randint(len(self.touches[param_set]), (1,), generator=generator))
        pick, value = self.touches[param_set][which]
        x = values[pick]
        at = int(torch.randint(x.numel(), (1,), generator=generator))
        x = x if is_alone(x, values, into) else x.clone()
        x[tuple(int(i) for i in unravel(at, x.shape))] = value
        return [x if i == pick else v for i, v in enumerate(values)]

    # ---- the reference ----

    def _restore(self, param_set):
        with torch.no_grad():
            model = self.models[param_set]
            for t, saved in zip(list(model.parameters()) + list(model.buffers()), self.states[param_set]):
                t.copy_(saved)

    def _run(self, param_set, values, seed):
        """(outputs, structure); the values may be changed, the model is left as it was."""
        tensors.seed_everything(seed)
        flat = []
        with torch.no_grad():
            structure = tensors.flatten(self.models[param_set](*values), flat)
        flat = [t.detach() for t in flat]
        if any(True for _ in self.models[param_set].buffers()):
            flat = [t.clone() for t in flat]
            self._restore(param_set)
        return flat, structure

    def _limits(self, family, values, outputs, param_set, seed):
        """How each output is judged on such inputs, by how far the reference is from float64; where that cannot run, by
        what the inputs' last bits change."""
        draws = [(values, outputs, seed)]
        if any(o.is_floating_point() and o.numel() < compare.ROW_ELEMENTS for o in outputs):
            for index in range(1, compare.MORE_DRAWS + 1):
                other = reference.another_seed(seed, index) >> 11
                drawn = self._draw(family, other, param_set)
                draws.append((drawn, self._run(param_set, clones(drawn), other)[0], other))
        pairs, known = [[] for _ in outputs], True
        for drawn, mine, which in draws:
            exact = self._exact_if_room(drawn, mine, param_set, which) if known else None
            known = exact is not None
            others = [exact]
            if not known:
                others = [self._shaken(drawn, mine, param_set, which)]
            for other in others:
                for index, pair in enumerate(pairs):
                    pair.append((mine[index], other[index] if other else None))
        return [compare.limit_of(p, known) for p in pairs]

    def _exact_if_room(self, values, outputs, param_set, seed):
        if self.doubles[param_set] is None:
            try:
                self.doubles[param_set] = copy.deepcopy(self.models[param_set]).double()
            except Exception:
                self.doubles[param_set] = False
        if not self.doubles[param_set] or self._is_big(values, outputs):
            return None
        exact = self._exact(values, param_set, seed)
        if exact is None:  # asks for one type somewhere, or there is no room
            self.doubles[param_set] = False
            give_back()
        return exact

    def _is_big(self, values, outputs):
        size = sum(v.numel() * v.element_size() for v in list(values) + outputs if isinstance(v, torch.Tensor))
        return size > DOUBLE_BYTES[self.kind]

    def _shaken(self, values, outputs, param_set, seed):
        """The outputs for inputs that differ in their last bits; None where there is no room for them."""
        if self._is_big(values, outputs):
            return None
        return self._run(param_set, [reference.shaken(v) for v in values], seed)[0]

    def find_scaling(self, seed):
        """The factor of the family `scaled`: one that tells problems apart whose own inputs hardly change their
        outputs."""
        end = time.perf_counter() + SEARCH_SECONDS
        self.scaling = scalings.Scaling()

        def outputs_for(scaling, which):
            self.scaling = scaling or scalings.Scaling()
            family = FAMILY_SCALED if scaling else FAMILY_SHIPPED
            values = self._draw(family, reference.another_seed(seed, which) >> 11, 0)
            return values, self._run(0, clones(values), seed)[0]

        def run(scaling, which):
            try:
                outputs = outputs_for(scaling, which)[1]
            except Exception as error:
                if lacks_room(error) or isinstance(error, Fault):
                    raise
                return None
            return [o if o.numel() <= SEARCH_ELEMENTS else o.reshape(-1)[:SEARCH_ELEMENTS].clone() for o in outputs]

        def stands(scaling):
            values, mine = outputs_for(scaling, 0)
            exact = self._exact_if_room(values, mine, 0, seed)
            return exact is not None and all(
                compare.limit_of([(a, b)]).noise <= BAD_NOISE[self.kind]
                for a, b in zip(mine, exact)
                if a.is_floating_point()
            )

        self.scaling = scalings.find_scaling(run, stands, lambda: time.perf_counter() > end)

    def _same_time(self, values, seed):
        """Whether the reference takes no longer on these than on shipped inputs; a few looks, for others disturb."""
        shipped = self._draw(FAMILY_SHIPPED, seed, 0)

        def best(of):
            seconds = []
            for _ in range(3):
                given = clones(of)
                self._settle()
                start = time.perf_counter()
                self._run(0, given, seed)
                self._settle()
                seconds.append(time.perf_counter() - start)
            return min(seconds)

        def alike():
            usual, these = best(shipped), best(values)
            return max(usual, these) <= scalings.SAME_TIME * min(usual, these) + 5e-6

        return any(alike() for _ in range(4))

    def _exact(self, values, param_set, seed):
        """The float64 model's outputs; None where it cannot run. Room is made for it once."""
        for again in (True, False):
            try:
                wide = [
                    v.double() if reference.is_float(v) else v.clone() if isinstance(v, torch.Tensor) else v
                    for v in values
                ]
                tensors.seed_everything(seed)
                exact = []
                with torch.no_grad():
                    tensors.flatten(self.doubles[param_set](*wide), exact)
                return exact
            except Exception as error:
                again = again and lacks_room(error)
            wide = exact = None
            if not again:
                return None
            self.forget()
        return None

    def forget(self):
        """Drops what can be made again."""
        self.kept, self.kept_bytes = {}, 0
        give_back()

    def rest(self):
        """The same, and float64 models, where they are large."""
        sizes = [t.numel() * t.element_size() for m in self.doubles if m for t in m.state_dict().values()]
        if self.kind == "cuda" and self.kept_bytes + sum(sizes) > REST_BYTES:
            self.kept, self.kept_bytes = {}, 0
            self.doubles = [m if m is False else None for m in self.doubles]

    def survey(self, families, seed, wanted, timed):
        """For each (family, parameter set): may it be used, by the clock where `timed`. Until `wanted` may."""
        result = []
        for family, param_set in families:
            if sum(r["usable"] for r in result) >= wanted:
                break
            key = (family, param_set)
            if key not in self.surveyed:
                self.surveyed[key] = self._survey_one(family, param_set, seed)
            usable = self.surveyed[key][0]
            if usable and timed and family == FAMILY_SCALED:
                usable = self._same_time(self._draw(family, seed, param_set), seed)
            result.append({"usable": usable})
        if self.kind == "cuda":
            torch.cuda.empty_cache()  # others need the room more
        return result

    def _survey_one(self, family, param_set, seed):
        if family == FAMILY_TOUCHED:
            self._find_touches(param_set, seed)
            if not self.touches[param_set]:
                return False, []
        if family == FAMILY_SCALED:
            if self.scaling is None:
                self.find_scaling(seed)
            if param_set == 0 and not self.scaling.blind:
                return False, []
        values = self._draw(family, seed, param_set)
        outputs, _ = self._run(param_set, clones(values), seed)
        finite = all(bool(torch.isfinite(o).all()) for o in outputs if o.is_floating_point())
        limits = (
            self._limits(family, values, outputs, param_set, seed)
            if finite
            else [compare.Limit(o.dtype) for o in outputs]
        )
        # Far from the problem's own scale only float64 says how far the reference itself is to be trusted.
        if self.doubles[param_set] is False and family in (FAMILY_OFFSET, FAMILY_SPIKES, FAMILY_SCALED, FAMILY_TOUCHED):
            return False, limits
        shipped = family == FAMILY_SHIPPED and param_set == 0
        trusted = all(limit.noise <= BAD_NOISE[self.kind] for limit in limits)
        return shipped or (finite and trusted), limits

    def limit(self, which, index, dtype):
        """How output `index` of a set is judged."""
        _, limits = self.surveyed.get((which["family"], which["param_set"]), (True, []))
        return limits[index] if index < len(limits) else compare.Limit(dtype)

    def expected(self, which):
        """(inputs, outputs, scales of the outputs) of a set; kept while there is room, because every answer to the
        problem meets it."""
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
            if there:  # for as long as the lane holds it
                values = clones(values)
                outputs = clones(outputs) if self.aliases else outputs
            self.kept[key] = (values, outputs, scales)
            self.kept_bytes += size
        return values, outputs, scales

    # ---- lanes: the memory of one process that runs an answer or the reference ----

    def stage(self, lanes, slots):
        """Writes sets into the same slots of each lane; drawn once."""
        self.staged = {}
        for entry in slots:
            key = (entry["family"], entry["seed"], entry["param_set"])
            places = [self._places(lane, entry["slot"]) for lane in lanes]
            values = self.kept[key][0] if key in self.kept else self._draw(*key, into=places[0])
            inputs = [v for v in values if isinstance(v, torch.Tensor)]
            for item, value in zip(self.inputs_layout.items, inputs):
                if list(value.shape) != item["shape"]:
                    raise Fault(f"{item['name']} changes its shape from call to call")
            # What has been drawn to where another belongs comes out of the way first.
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

    def intact(self, lane, entry, values, seed):
        """True when the answer has left its inputs as they were. seed: large ones are looked at in part; 0: in full."""
        originals = [v for v in values if isinstance(v, torch.Tensor)]
        return all(same_inputs(a, b, seed) for a, b in zip(self._places(lane, entry["slot"]), originals))

    def judge(self, lane, entry, got, hardened, seed=0):
        """Compares outputs (tensors or Pieces) with a set's expected ones."""
        values, wanted, scales = self.expected(entry)
        if not self.mutates and not self.intact(lane, entry, values, seed):
            return {"verdict": WORD_INPUTS_CHANGED}
        worst = {"verdict": WORD_EQUAL, "max_error": 0.0}
        shipped = entry["family"] == FAMILY_SHIPPED and entry["param_set"] == 0
        for index, (want, have) in enumerate(zip(wanted, got)):
            base = compare.TOLERANCE.get(want.dtype, 0.0)
            tolerance = self.limit(entry, index, want.dtype).tolerance(want.dtype) if hardened else None
            scale, flat, looked_at = scales[index], want, want
            if isinstance(have, Pieces):
                flat = want.reshape(-1)
                looked_at, have, sample = have.sample.of(flat), have.content.view(want.dtype), have.sample
                scale = SampledScales(scale, functools.partial(sample.places, flat=flat))
            result = compare.compare(looked_at, have, tolerance, base if shipped or not hardened else None, scale)
            if result["different"]:
                first = result["first"] if flat is want else sample.place(result["first"], flat)
                finite = not result["not_finite"]
                result["verdict"] = WORD_DIFFERENT if finite else WORD_NOT_FINITE
                result["output"] = index
                result["elements"] = looked_at.numel()
                result["place"] = [int(i) for i in unravel(first, want.shape)]
                return result
            if isinstance(result["max_error"], float):
                worst["max_error"] = max(worst["max_error"], result["max_error"])
        return worst


def compat_seeds():
    """KernelBench's seeds of correctness trials."""
    generator = torch.Generator().manual_seed(42)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(64)]


def clones(values):
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


class Referee:
    """Cases by the number the verifier gave them."""

    def __init__(self):
        self.cases = {}
        self.cuda = None
        self.tick, self.usual_s = None, 1.0  # a small piece of work, and what it takes at best
        self.watched = []
        self.looks, self.roomy = 0, False
        self.scratch = None  # memory larger than a GPU's cache
        self.copies = []  # outputs of an answer on a GPU; None where there was nothing to copy
        self.result = None  # memory into which the verifier copies a CPU answer's outputs

    def handle(self, op, request, channel):
        text = self._attempt(op, request, channel)
        if isinstance(text, str) and op != "judge":  # which has used up what it was given, and tries by itself
            self.make_room()
            text = self._attempt(op, request, channel)
        if isinstance(text, str):
            raise reference.NoRoom(text)
        return text

    def _attempt(self, op, request, channel):
        """The reply; text, where the GPU has no room for it."""
        try:
            return getattr(self, "do_" + op)(request, channel)
        except Fault as error:
            if lacks_room(error):
                return str(error)
            raise reference.ProblemError(str(error)) from error
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            case = self.cases.get(request.get("problem"))
            text = reference.explain(error, case.file_name if case else "")
            if lacks_room(error):
                return text
            raise reference.ProblemError(text) from error

    def make_room(self):
        """Drops whatever can be made again."""
        for case in self.cases.values():
            case.forget()
        self.scratch = None
        give_back()

    def do_rest(self, _request, _channel):
        """There is nothing to judge for a while: others may need the memory. Says how much is kept."""
        for case in self.cases.values():
            case.rest()
        self.copies = []
        self.scratch = self.tick = None  # small ones that would hold on to the large blocks they were cut from
        give_back()
        return {"held_bytes": torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0}

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
        if self.cuda:
            torch.cuda.empty_cache()
        return {}

    def do_device(self, request, _):
        """What the GPU is. Also the sign that this process works on one, where address space says nothing."""
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
        """How much of the GPU's memory nobody has, beside what this process can do without."""
        self.do_let_go(None, None)
        self.make_room()
        free, total = torch.cuda.mem_get_info() if torch.cuda.is_initialized() else (0, 0)
        return {"free_bytes": free, "total_bytes": total}

    def do_lane(self, request, channel):
        """Makes or takes the memory of a lane: two parameter sets, then the slots."""
        case = self.cases[request["problem"]]
        size = request["bytes"]
        if case.kind == "cpu":
            memory = tensors.Memory.from_fd(channel.take_fd(), size)
            reply = {}
        else:
            if self.cuda is None:
                torch.cuda.init()
                torch.zeros(1, device=case.device)
                self.cuda = tensors.Cuda()
            pointer = self.cuda.allocate(size)
            memory = tensors.Memory(pointer, size, case.device)
            memory.pointer = pointer
            handle, offset, _ = self.cuda.export(pointer)
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
            self.cuda.free(pointer)

    def do_unlane(self, request, _):
        case = self.cases.get(request["problem"])
        memory = case.lanes.pop(request["lane"], None) if case else None
        if memory:
            case.staged = {}
        if memory:
            self._free(memory)
        if self.cuda:
            self.cuda.close_all()
        return {}

    def do_survey(self, request, _):
        case = self.cases[request["problem"]]
        return {
            "families": case.survey(
                [tuple(f) for f in request["families"]], request["seed"], request["wanted"], request["timed"]
            )
        }

    def do_stage(self, request, _):
        """Writes inputs. `timed`: both processes stand still, and what they have left on the device must not take part
        in the turns that follow: neither what is still running, nor what has waited there for these inputs. `watch`:
        blocks of the answer's memory, in which nothing may change until its call (do_watch)."""
        case = self.cases[request["problem"]]
        guarded = request["timed"] and case.kind == "cuda"
        rested = not guarded or self._comes_to_rest(case.device)
        seed = int.from_bytes(os.urandom(6), "little")
        self.watched = [(s[2], s[1], seed, self._sum(s[2], s[1], seed, case.device)) for s in request["watch"]]
        case.stage(request["lanes"], request["slots"])
        rested = rested and (not guarded or self._comes_to_rest(case.device))
        if guarded:
            self._flush(case.device)
        return {"busy": not rested}

    def _comes_to_rest(self, device):
        """False when the device goes on working for others: it takes turns between processes, and a small piece of work
        waits for a millisecond or two then. One that does not wait is proof of rest; what makes a few of them slow (a
        driver that is busy, a processor that is elsewhere) passes."""
        if self.tick is None:
            self.tick = torch.zeros(1, device=device)
        begun = time.perf_counter()
        while True:
            start = time.perf_counter()
            self.tick.add_(1)
            torch.cuda.synchronize()
            end = time.perf_counter()
            self.usual_s = min(self.usual_s, end - start)
            if end - start < self.usual_s + REST_SLACK_S:
                return True
            if end - begun > REST_WAIT_S:
                return False

    def do_at_rest(self, request, _):
        return {"busy": not self._comes_to_rest(self.cases[request["problem"]].device)}

    def _sum(self, handle, size, seed, device):
        """Of a block's contents, of a large one's pieces; None where it cannot be opened."""
        flat = self._opened(handle, 0, size, device)
        if flat is not None and Sample.fits(flat):
            flat = Sample(seed, size, device).of(flat)
        return None if flat is None else int(flat[: size // 8 * 8].view(torch.int64).sum())

    def do_watch(self, request, _):
        """Whether watched memory has changed meanwhile."""
        device = self.cases[request["problem"]].device
        changed = any(self._sum(*block, device) != before for *block, before in self.watched)
        self.watched = []
        self._keep_open()
        return {"changed": changed}

    def do_drain(self, request, _):
        """A write over the device's cache, behind everything that the device has been given."""
        self._flush(self.cases[request["problem"]].device)
        return {}

    def _flush(self, device):
        if self.scratch is None:
            size = 2 * getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20)
            self.scratch = torch.empty(size, dtype=torch.uint8, device=device)
        self.scratch.fill_(7)
        torch.cuda.synchronize()

    def do_result(self, request, channel):
        self.result = tensors.Memory.from_fd(channel.take_fd(), request["bytes"])
        return {}

    def _opened(self, handle, offset, size, device):
        """A piece of an answer's memory as bytes; None when it is not all there."""
        try:
            base = self.cuda.open(handle)
            if offset < 0 or offset + size > self.cuda.extent(base):
                return None
            return tensors.gpu_bytes(base + offset, size, device)
        except (RuntimeError, ValueError, ctypes.ArgumentError):
            return None

    def do_copy(self, request, _):
        """An answer's outputs as they are now; it stands still. With a seed, pieces of those that are large and lie in
        memory as one expects."""
        device = self.cases[request["problem"]].device
        if request["fresh"]:
            self.cuda.close_all()
        self.copies, known = [], dict(self.cuda.opened)
        for place in request["places"]:
            flat = self._opened(place["handle"], place["offset"], place["bytes"], device)
            if flat is not None and request["seed"] and place["dense"] and Sample.fits(flat):
                sample = Sample(request["seed"], place["bytes"], device)
                self.copies.append(Pieces(sample, sample.of(flat)))
            else:
                self.copies.append(None if flat is None else flat.clone())
        flat = None
        torch.cuda.synchronize()
        handles = [place["handle"].partition(":")[0] for place in request["places"]]
        kept = any(h in known and self.cuda.opened.get(h) == known[h] for h in handles)
        self._keep_open()
        return {"kept": kept}

    def _keep_open(self):
        """Opening an answer's memory is work for the driver, which everybody waits for, so what was opened stays open
        until the answer ends: where there is room, because a block that is open here is not free there."""
        self.looks += 1
        if self.looks % 16 == 1:
            free, total = torch.cuda.mem_get_info()
            self.roomy = free > total // 4
        if not self.roomy or len(self.cuda.opened) > MOST_OPEN:
            self.cuda.close_all()

    def do_let_go(self, _request, _channel):
        """The answer ends."""
        if self.cuda:
            self.cuda.close_all()
        return {}

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
            flat = self._opened(item.get("handle") or "", item.get("offset") or 0, size, case.device)
        if isinstance(flat, Pieces):
            strides = zip(shape, stride, tensors.contiguous(shape))
            return flat if all(n == 1 or s == usual for n, s, usual in strides) else None
        if flat is None or flat.numel() < size or flat.data_ptr() % tensors.element_size(dtype):
            return None
        return flat[:size].view(dtype).as_strided(shape, stride)

    @staticmethod
    def _judge(case, request, entry, got):
        """None: there was no room."""
        try:
            return case.judge(request["lane"], entry, got, request["hardened"], request["seed"])
        except RuntimeError as error:
            if lacks_room(error):
                return None
            raise

    def do_judge(self, request, _):
        """Calls of an answer, each with the set it was made on and where its outputs are to be seen."""
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
            self._keep_open()
        return {"verdicts": verdicts}
