"""Starts the program that the wheel carries, in the place of this process: `kernelrl ARGUMENT...`."""
import os
import sys
from importlib.util import find_spec


def main() -> int:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bundle", "kernelrl")
    if not os.path.isfile(program):
        print(
            "kernelrl: this package carries no program: " + program + " is missing (make wheel packs one)",
            file=sys.stderr,
        )
        return 1
    # Reference values come from PyTorch: that of the Python that this package is installed in, where it has one.
    if not os.environ.get("KERNELRL_PYTHON") and sys.executable and find_spec("torch"):
        os.environ["KERNELRL_PYTHON"] = sys.executable
    sys.stdout.flush()
    os.execv(program, [program] + sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
