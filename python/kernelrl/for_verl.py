"""verl: a custom reward function and the rows of its data set.

custom_reward_function.path=.../kernelrl/for_verl.py custom_reward_function.name=compute_score
The server is KERNELRL_URL with KERNELRL_API_KEY, or `url` and `key` of custom_reward_function.reward_kwargs.
"""

from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from kernelrl import Client, tasks


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Optional[Dict[str, Any]] = None,
    url: Optional[str] = None,
    key: Optional[str] = None,
    **fields: Any,
) -> Dict[str, float]:
    """The score of one answer to the problem `ground_truth`, and numbers to log. fields: of a request.

    verl knows no missing score. Where there is no verdict after the server's three tries, this raises NoVerdict."""
    wanted = {name: fields[name] for name in ("config", "backend", "options", "tokens") if name in fields}
    if isinstance(wanted.get("options"), Mapping):  # it comes as verl's own kind of mapping
        wanted["options"] = dict(wanted["options"])
    job = tasks.client_at(url, key).verify(ground_truth, solution_str, extract=True, **wanted)
    return {"score": tasks.paid(job), **tasks.numbers(job)}


def rows(client: Client, keys: Optional[Sequence[str]] = None, **query: str) -> Iterator[Dict[str, Any]]:
    """Rows as verl's parquet files have them. Arguments as tasks.rows."""
    for index, row in enumerate(tasks.rows(client, keys, **query)):
        yield {
            "data_source": "kernelrl",
            "prompt": row["prompt"],
            "ability": "kernels",
            "reward_model": {"style": "rule", "ground_truth": row["problem"]},
            "extra_info": {"index": index, "split": row["split"], "problem": row["problem"]},
        }
