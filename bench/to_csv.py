#!/usr/bin/env python3
"""JSON objects, one a line, to CSV with a column for every key that occurs. Usage: bench/to_csv.py MACHINE < LINES
MACHINE, what the figures were measured on, is the first line, behind a "#"."""
import csv
import json
import sys


def main():
    rows = [json.loads(line) for line in sys.stdin if line.strip()]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    print("# " + " ".join(sys.argv[1:]))
    out = csv.DictWriter(sys.stdout, keys, lineterminator="\n")
    out.writeheader()
    for row in rows:
        out.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    main()
