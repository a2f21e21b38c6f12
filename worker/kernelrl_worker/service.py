"""The requests of the verifier to the reference worker (docs/formats.md, "Worker protocol")."""

import gc

from kernelrl_worker.problem import ProblemError, explain
from kernelrl_worker.reference import Problem


class Service:
    """Problems of answers in C, by the number that the verifier gave them. Requests `module_...` go to the referee."""

    def __init__(self):
        self.problems = {}
        self.referee = None
        # PyTorch's own objects never go away. When they are left out, a collection is 0.1 s faster.
        gc.collect()
        gc.freeze()

    def handle(self, request, channel):
        op = request["op"]
        if op.startswith("module_"):
            if self.referee is None:
                from kernelrl_worker import referee  # answers in C do without

                self.referee = referee.Referee()
            return self.referee.handle(op[len("module_") :], request, channel)
        if op == "load":
            problem = Problem(request["code"], request["param_seeds"], request["touched"])
            self.problems[request["problem"]] = problem
            return {"spec": {"args": problem.args}}
        if op == "drop":
            self.problems.pop(request["problem"], None)
            Problem.forget_copies()
            gc.collect()
            return {}
        if op not in ("attach", "fill", "time"):
            raise ValueError(f"unknown request {op!r}")
        problem = self.problems[request["problem"]]
        if op == "attach":
            problem.attach(channel.take_fd(), request["bytes"], request["layout"])
        try:
            return self._ask(problem, op, request)
        except ProblemError:
            raise
        except Exception as error:
            raise ProblemError(explain(error, problem.file_name)) from error

    @staticmethod
    def _ask(problem, op, request):
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
        return {"seconds": problem.time(request["sets"], request["round"])}
