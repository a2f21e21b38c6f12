# flake8: noqa: F821
# ---- below: how the code above takes a module's place ---------------------------------------------------------------
#
#     import best
#     n = best.patch(model)      # modules of `model` that are computed by the faster code from here on
#     best.unpatch(model)
#
# A module is taken when its class has the name below, its parameters have the same names, shapes and types, and the
# faster code gives what its own forward() gives on inputs drawn here (check=False: without that). What it was not made
# for goes to the module's own forward() all the same: other shapes, types and devices of inputs, gradients, and, where
# the module acts differently then, evaluation in the place of training.

import copy  # noqa: E402
import inspect  # noqa: E402
import types  # noqa: E402

import torch  # noqa: E402

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
_MODAL = (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd)


def _problem(code):
    """The names of a problem's code; its inputs say what the faster code was made for."""
    module = types.ModuleType("kernelrl_problem")
    exec(compile(code, "<problem>", "exec"), module.__dict__)
    return module


def _signature(values):
    """What inputs have in common with others that the same code can take."""
    return tuple((tuple(v.shape), v.dtype, v.device.type) if isinstance(v, torch.Tensor) else type(v) for v in values)


def _parameters(module):
    named = list(module.named_parameters()) + list(module.named_buffers())
    return [(name, tuple(t.shape), t.dtype) for name, t in named]


def _is_modal(module):
    return any(isinstance(m, _MODAL) for m in module.modules())


def _flat(output):
    return list(output) if isinstance(output, (tuple, list)) else [output]


def _agrees(got, want):
    for a, b in zip(_flat(got), _flat(want)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if not b.is_floating_point():
            if not torch.equal(a, b):
                return False
            continue
        t = _TOLERANCE.get(b.dtype, 1e-4)
        scale = b.float().square().mean().sqrt().item() or 1.0
        error = (a.float() - b.float()).abs() / (scale + b.float().abs())
        if not bool((error <= t).all()):
            return False
    return len(_flat(got)) == len(_flat(want))


class _Faster:
    """forward() of one patched module."""

    def __init__(self, module, shapes):
        self.module = module
        self.original = module.forward
        self.modal = _is_modal(module)
        self.shapes = shapes  # by signature
        self.names = [
            p.name
            for p in inspect.signature(self.original).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self.calls = self.taken = 0

    def wants_gradients(self, inputs):
        if not torch.is_grad_enabled():
            return False
        tensors = [v for v in inputs if isinstance(v, torch.Tensor)] + list(self.module.parameters())
        return any(t.requires_grad for t in tensors)

    def __call__(self, *inputs, **named):
        self.calls += 1
        inputs = list(inputs)
        for name in self.names[len(inputs) :]:
            if name not in named:
                break
            inputs.append(named.pop(name))
        run = None if named else self.shapes.get(_signature(inputs))
        if run is None or self.wants_gradients(inputs) or (self.modal and not self.module.training):
            return self.original(*inputs, **named)
        self.taken += 1
        return run(self.module, inputs)


def _checked(module, shapes, problems):
    """Whether the faster code gives what forward() gives, for every shape; neither may change the module's state."""
    before = copy.deepcopy(module.state_dict())
    try:
        with torch.no_grad():
            for problem in problems:
                inputs = [v.to(_DEVICE) if isinstance(v, torch.Tensor) else v for v in problem.get_inputs()]
                run = shapes.get(_signature(inputs))
                if run is None:
                    return False
                twin = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
                want = module.forward(*inputs)
                module.load_state_dict(before)
                got = run(module, twin)
                module.load_state_dict(before)
                if not _agrees(got, want):
                    return False
        return True
    except Exception:
        return False
    finally:
        module.load_state_dict(before)


def patch(model, check=True):
    """Lets the faster code compute every module in `model` that it fits, `model` itself included; returns how many."""
    problems = [_problem(code) for code in PROBLEMS]
    made = problems[0].get_init_inputs() if hasattr(problems[0], "get_init_inputs") else []
    example = problems[0].Model(**made) if isinstance(made, dict) else problems[0].Model(*made)
    wanted = _parameters(example)
    patched = 0
    for module in list(model.modules()):
        if type(module).__name__ != MODULE or _parameters(module) != wanted or hasattr(module, "_kernelrl"):
            continue
        training = module.training
        shapes = _shapes_of(module, problems)
        if check and shapes is not None:
            module.train(True)
            if not _checked(module, shapes, problems):
                shapes = None
            module.train(training)
        if not shapes:
            continue
        faster = _Faster(module, shapes)
        object.__setattr__(module, "_kernelrl", faster)
        object.__setattr__(module, "forward", faster)
        patched += 1
    return patched


def unpatch(model):
    """Every module computes by itself again; returns how many did not."""
    n = 0
    for module in model.modules():
        if hasattr(module, "_kernelrl"):
            object.__delattr__(module, "forward")
            object.__delattr__(module, "_kernelrl")
            n += 1
    return n
