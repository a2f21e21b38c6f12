"""Prints the rows of a Parquet file as JSON lines. Exit status 3: this Python has no pyarrow."""

import json
import sys

try:
    import pyarrow.parquet
except ImportError:
    sys.exit(3)


def main():
    with pyarrow.parquet.ParquetFile(sys.argv[1]) as table:
        for batch in table.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                # What JSON does not have (dates, bytes) is of no use to a problem: its text will do.
                sys.stdout.write(json.dumps(row, default=str) + "\n")


main()
