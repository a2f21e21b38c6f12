"""verifiers (0.4): a taskset, `vf-eval kernelrl_env` (verifiers takes no name with a dot)."""

from typing import Any, Dict, Iterator, List, Optional

import verifiers.v1 as vf

from kernelrl import tasks


class KernelTaskConfig(vf.TaskConfig):
    url: Optional[str] = None
    """The server of verdicts; unless said, KERNELRL_URL."""
    key: Optional[str] = None
    fields: Dict[str, Any] = {}
    """Further fields of each request (docs/verdict-service.md): config, backend, options."""


class KernelConfig(vf.TasksetConfig):
    split: str = "train"
    keys: List[str] = []
    """Which problems; unless said, all of the split."""
    query: Dict[str, str] = {}
    """How prompts are made: config, backend, source."""
    task: KernelTaskConfig = KernelTaskConfig()


class KernelData(vf.TaskData):
    problem: str


class KernelTask(vf.Task[KernelData, vf.State, KernelTaskConfig]):
    @vf.reward(weight=1.0)
    async def kernelrl(self, trace: vf.Trace) -> float:
        """Raises where there is no verdict: the rollout counts as failed then, and not as bad."""
        many = tasks.async_client_at(self.config.url, self.config.key)
        job = await many.verify(self.data.problem, trace.last_reply, extract=True, **self.config.fields)
        reward = tasks.paid(job)
        trace.info["kernelrl"] = job["verdict"]
        for name, value in tasks.numbers(job).items():
            trace.record_metric(name, value)
        return reward


class KernelTaskset(vf.Taskset[KernelTask, KernelConfig]):
    def load(self) -> Iterator[KernelTask]:
        client = tasks.client_at(self.config.task.url, self.config.task.key)
        split = None if self.config.keys else self.config.split
        for row in tasks.rows(client, self.config.keys, split, **self.config.query):
            system, user = (message["content"] for message in row["prompt"])
            data = KernelData(name=row["problem"], prompt=user, system_prompt=system, problem=row["problem"])
            yield KernelTask(data, self.config.task)
