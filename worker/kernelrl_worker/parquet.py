"""Prints the rows of a Parquet file as JSON lines: parquet.py FILE [COLUMN,COLUMN...]. Exit status 3: no pyarrow."""

import json
import sys

try:
    import pyarrow.parquet
except ImportError:
    sys.exit(3)


def main():
    with pyarrow.parquet.ParquetFile(sys.argv[1]) as table:
        columns = None
        if len(sys.argv) > 2:
            columns = [name for name in sys.argv[2].split(",") if name in table.schema_arrow.names]
        for batch in table.iter_batches(batch_size=256, columns=columns):
            for row in batch.to_pylist():
                # What JSON does not have (dates, bytes) is of no use to a problem: its text will do.
                sys.stdout.write(json.dumps(row, default=str) + "\n")


main()
