"""SkyRL-gym (0.4): an environment of one or more turns.

skyrl_gym.register(id="kernelrl", entry_point="kernelrl.for_skyrl:KernelEnv")
"""

from typing import Any, Dict, Optional

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from kernelrl import tasks


class KernelEnv(BaseTextEnv):
    """env_config: `url` and `key` of the server (else KERNELRL_URL, KERNELRL_API_KEY), `fields` of each request.
    extras: the row's `reward_spec` with `ground_truth`, the key of the problem; `max_turns`, 1 unless said."""

    def __init__(self, env_config: Any = None, extras: Optional[Dict[str, Any]] = None) -> None:
        super().__init__()
        config, row = dict(env_config or {}), extras or {}
        self.client = tasks.client_at(config.get("url"), config.get("key"))
        self.fields = dict(config.get("fields") or {})
        self.problem = row["reward_spec"]["ground_truth"]
        self.max_turns = int(row.get("max_turns", 1))
        self.metrics: Dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Judges one answer. Raises NoVerdict where the verdict is missing."""
        self.turns += 1
        job = self.client.verify(self.problem, action, extract=True, **self.fields)
        reward, self.metrics = tasks.paid(job), tasks.numbers(job)
        done = self.turns >= self.max_turns
        observations = [] if done else [{"role": "user", "content": tasks.feedback(job)}]
        return BaseTextEnvStepOutput(
            observations=observations, reward=reward, done=done, metadata={"verdict": job["verdict"]}
        )

    def get_metrics(self) -> Dict[str, Any]:
        """Of the last answer."""
        return self.metrics
