"""TRL: a reward function for GRPOTrainer, and its data set."""

from typing import Any, Callable, List, Optional, Sequence

from kernelrl import Client, reward_of, tasks


def reward(client: Client, name: str = "kernelrl", **fields: Any) -> Callable[..., List[Optional[float]]]:
    """A reward function. The data set has a column `problem`. fields: of a request (docs/verdict-service.md).

    An answer without a verdict gets None, which TRL leaves out. What share of the answers is correct, and the like, is
    logged."""

    def judged(
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        problem: Sequence[str],
        log_metric: Optional[Callable[[str, float], None]] = None,
        **_columns: Any,
    ) -> List[Optional[float]]:
        replies = [c if isinstance(c, str) else "".join(m["content"] for m in c) for c in completions]
        asked = zip(problem, replies, completion_ids)
        jobs = client.verify_many([tasks.ask(p, r, tokens=len(ids), **fields) for p, r, ids in asked])
        there = [tasks.numbers(job) for job in jobs if job["verdict"]]
        if log_metric:
            log_metric(f"{name}/missing", 1 - len(there) / len(jobs))
            for kind in there[0] if there else ():
                log_metric(f"{name}/{kind}", sum(one[kind] for one in there) / len(there))
        return [reward_of(job) for job in jobs]

    judged.__name__ = name  # TRL names its metrics by it
    return judged


def dataset(client: Client, keys: Optional[Sequence[str]] = None, **query: str) -> Any:
    """A datasets.Dataset with the columns prompt (messages) and problem. Arguments as tasks.rows."""
    import datasets  # TRL brings it

    return datasets.Dataset.from_list(list(tasks.rows(client, keys, **query)))
