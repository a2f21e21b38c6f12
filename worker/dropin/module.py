# flake8: noqa: F821
# ---- below: ModelNew in a module's place ----------------------------------------------------------------------------


class _Adopted:
    """ModelNew with the parameters and buffers of the module whose place it takes."""

    def __init__(self, module, problem):
        made = problem.get_init_inputs() if hasattr(problem, "get_init_inputs") else []
        self.new = ModelNew(**made) if isinstance(made, dict) else ModelNew(*made)  # noqa: F821
        self.new.to(_DEVICE)
        theirs = [dict(module.named_parameters()), dict(module.named_buffers())]
        for owner in self.new.modules():
            for kind, own in (("_parameters", owner._parameters), ("_buffers", owner._buffers)):
                for name, value in list(own.items()):
                    path = next((p for p, m in self.new.named_modules() if m is owner), "")
                    full = f"{path}.{name}" if path else name
                    there = theirs[kind == "_buffers"].get(full)
                    if value is not None and there is not None and there.shape == value.shape:
                        own[name] = there

    def __call__(self, module, inputs):
        self.new.train(module.training)
        return self.new(*inputs)


def _shapes_of(module, problems):
    try:
        adopted = _Adopted(module, problems[0])
    except Exception:
        return None
    shapes = {}
    for problem in problems:
        values = [v.to(_DEVICE) if isinstance(v, torch.Tensor) else v for v in problem.get_inputs()]
        shapes[_signature(values)] = adopted
    return shapes
