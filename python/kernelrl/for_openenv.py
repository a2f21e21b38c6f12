"""OpenEnv (0.10): an environment and its server, `uvicorn kernelrl.for_openenv:app`.

A reset names the problem: {"problem": "level1/1_ReLU"}; without one the seed draws it among those of training.
"""

import random
import uuid
from typing import Any, Dict, List, Optional

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

from kernelrl import tasks


class KernelAction(Action):
    code: str
    """A model's whole reply, with the kernel in it."""


class KernelObservation(Observation):
    problem: str = ""
    messages: List[Dict[str, str]] = []
    """What the model is shown; empty when the episode is over."""
    verdict: Optional[Dict[str, Any]] = None


class KernelEnvironment(Environment[KernelAction, KernelObservation, State]):
    """Asks the server KERNELRL_URL with KERNELRL_API_KEY."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.client = tasks.client_at()
        self.problem, self.turns = "", 1
        self._state = State()

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **given: Any) -> KernelObservation:
        """given: problem (its key), turns (1 unless said)."""
        self.problem = given.get("problem") or self._draw(seed)
        self.turns = int(given.get("turns", 1))
        self._state = State(episode_id=episode_id or uuid.uuid4().hex, step_count=0)
        return KernelObservation(problem=self.problem, messages=self.client.prompt(self.problem))

    def _draw(self, seed: Optional[int]) -> str:
        keys = [problem["key"] for problem in self.client.problems() if problem["split"] == "train"]
        return random.Random(seed).choice(keys)

    def step(self, action: KernelAction, timeout_s: Optional[float] = None, **_given: Any) -> KernelObservation:
        """Judges one answer. Raises where the verdict is missing: the client gets an error then, and no reward."""
        if not self.problem:
            raise RuntimeError("reset comes before step")
        self._state.step_count += 1
        job = self.client.verify(self.problem, action.code, extract=True)
        done = self._state.step_count >= self.turns
        return KernelObservation(
            problem=self.problem,
            messages=[] if done else [{"role": "user", "content": tasks.feedback(job)}] if job["verdict"] else [],
            done=done,
            reward=tasks.paid(job),
            metadata=tasks.numbers(job),
            verdict=job["verdict"],
        )

    @property
    def state(self) -> State:
        return self._state


app = create_fastapi_app(KernelEnvironment, KernelAction, KernelObservation, max_concurrent_envs=64)
