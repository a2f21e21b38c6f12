"""NeMo-Gym: rows of a data set. The server itself is the resources server, so nothing else is needed."""

from typing import Any, Dict, Iterator, Optional, Sequence

from kernelrl import Client, tasks


def rows(
    client: Client, keys: Optional[Sequence[str]] = None, fields: Optional[Dict[str, Any]] = None, **query: str
) -> Iterator[Dict[str, Any]]:
    """A row for each problem, a line of JSON each in NeMo-Gym's data sets. fields: of each request for a verdict
    (docs/verdict-service.md). Further arguments as tasks.rows."""
    for row in tasks.rows(client, keys, **query):
        yield {
            "responses_create_params": {"input": row["prompt"]},
            "verifier_metadata": {"problem": row["problem"], **(fields or {})},
        }
