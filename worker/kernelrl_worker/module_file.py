"""What `kernelrl optimize FILE.py` makes faster: module_file.py FILE [NAME]. Prints one JSON object: `module`, the
name of the class, and `shapes`, each with `label`, `weight` and `code`, a problem in KernelBench's form: the file's own
text, and behind it what it lacks of that form. Each is run once, so that whatever is wrong with it is said here.

A file may be a KernelBench problem (Model, get_inputs, get_init_inputs), or have

    class ANY(nn.Module)     the module; of several the last one, or the one called NAME
    get_inputs, example_inputs
                             a function that returns the inputs of forward(), or (example_inputs) the inputs themselves:
                             others of their shapes, types and ranges are drawn then
    get_init_inputs, init_inputs
                             what the class is made with: a function or a list; nothing when it is missing
    shapes                   a list of dicts: keyword arguments of that function, and "weight"

Exit status 3: no torch. 1: the last line on standard error says what is wrong."""

import ast
import json
import math
import sys

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit(3)

DRAW = """
def _draw_like(value):
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        spread = value.std() if value.numel() > 1 else 1.0
        return torch.randn(value.shape).mul(spread).add(value.mean()).to(value.dtype)
    low, high = int(value.min()), int(value.max())
    return torch.randint(low, high + 1, value.shape).to(value.dtype)
"""


class Wrong(Exception):
    """The message is for the file's author."""


def explain(error, name):
    lines = []
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == name:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"line {lines[-1]}: {text}" if lines else text


def run(code, name):
    """The names that the code defines."""
    try:
        tree = ast.parse(code, name)
    except SyntaxError as error:
        raise Wrong(f"line {error.lineno}: {error.msg}: {(error.text or '').strip()[:80]}") from error
    names = {"__name__": "kernelrl_problem", "__file__": name}
    try:
        exec(compile(tree, name, "exec"), names)
    except (Exception, SystemExit) as error:
        raise Wrong(explain(error, name)) from error
    return names


def is_module(value):
    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == "kernelrl_problem"


def module_of(names, wanted):
    mine = [key for key, value in names.items() if is_module(value) and value.__name__ == key]
    if wanted:
        if wanted not in mine:
            raise Wrong(f"module: no class {wanted}(nn.Module); there is {', '.join(mine) or 'none'}")
        return wanted
    if "Model" in names:
        return "Model"
    if not mine:
        raise Wrong("no class that is an nn.Module")
    return mine[-1]


def shapes_of(names):
    shapes = names.get("shapes", [{}])
    if callable(shapes):
        shapes = shapes()
    if not isinstance(shapes, (list, tuple)) or not shapes or not all(isinstance(s, dict) for s in shapes):
        raise Wrong("shapes: expected a list of dicts, the keyword arguments of get_inputs()")
    return [dict(s) for s in shapes]


def adapter(names, module, shape):
    """The lines behind the file's own text that make it a KernelBench problem of this shape."""
    lines = []
    if module != "Model":
        lines.append(f"class Model({module}):\n    pass\n\n")
    if "get_inputs" in names:
        maker = "get_inputs" if shape else None
    elif "example_inputs" not in names:
        raise Wrong("no get_inputs() and no example_inputs: say what forward() gets")
    elif callable(names["example_inputs"]):
        maker = "example_inputs"
    else:
        if shape:
            raise Wrong("shapes: example_inputs must be a function that takes them, or be called get_inputs()")
        if "torch" not in names:
            lines.append("import torch")
        lines.append(DRAW)
        values = names["example_inputs"]
        listed = "example_inputs" if isinstance(values, (list, tuple)) else "[example_inputs]"
        lines.append(f"def get_inputs():\n    return [_draw_like(value) for value in {listed}]\n")
        maker = None
    if maker:
        arguments = ", ".join(f"{key}={value!r}" for key, value in shape.items())
        lines.append(f"_inputs_of = {maker}\n\n\ndef get_inputs():\n    inputs = _inputs_of({arguments})")
        lines.append("    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]\n")
    if "get_init_inputs" not in names:
        given = "init_inputs" if "init_inputs" in names else "[]"
        call = given + "()" if callable(names.get("init_inputs")) else given
        lines.append(f"def get_init_inputs():\n    return {call}\n")
    return "\n".join(lines)


def try_once(code, name, label):
    """Makes the module and calls it, as a verdict will."""
    names = run(code, name)
    what = f"shape {label}: " if label else ""
    try:
        made = names["get_init_inputs"]()
    except Exception as error:
        raise Wrong(f"get_init_inputs(): {explain(error, name)}") from error
    try:
        model = names["Model"](**made) if isinstance(made, dict) else names["Model"](*made)
    except Exception as error:
        raise Wrong(f"the module cannot be made: {explain(error, name)} (get_init_inputs)") from error
    try:
        inputs = names["get_inputs"]()
    except Exception as error:
        raise Wrong(f"{what}get_inputs(): {explain(error, name)}") from error
    if not isinstance(inputs, (list, tuple)):
        raise Wrong(f"{what}get_inputs(): expected a list of inputs, got {type(inputs).__name__}")
    try:
        with torch.no_grad():
            output = model(*inputs)
    except Exception as error:
        raise Wrong(f"{what}forward(): {explain(error, name)}") from error
    outputs = output if isinstance(output, (list, tuple)) else [output]
    if not outputs or not all(isinstance(o, torch.Tensor) for o in outputs):
        raise Wrong(f"{what}forward() returns {type(output).__name__}: a tensor, or a tuple of tensors, can be judged")


def describe(path, wanted):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    names = run(text, path)
    module = module_of(names, wanted)
    out = []
    for shape in shapes_of(names):
        weight = shape.pop("weight", 1.0)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight <= 0:
            raise Wrong(f"shapes: weight: expected a number above 0, got {weight!r}")
        label = ", ".join(f"{key}={value!r}" for key, value in shape.items())
        added = adapter(names, module, shape)
        code = text if not added else f"{text.rstrip()}\n\n\n{added.rstrip()}\n"
        try_once(code, path, label)
        out.append({"label": label, "weight": float(weight), "code": code})
    return {"module": module, "shapes": out}


def main():
    try:
        found = describe(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    except (Wrong, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
