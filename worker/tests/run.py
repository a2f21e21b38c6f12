#!/usr/bin/env python3
"""worker/tests/run.py [NAME...]: the worker's unit tests (test_*.py, unittest) as TAP; with names only those whose
"file.class.test" contains one of them. They need PyTorch and no GPU. The Python is KERNELRL_PYTHON, else the first of
./.venv/bin/python, python3 and /usr/bin/python3 that has torch; where none has, everything is skipped."""

import os
import shutil
import subprocess
import sys
import traceback
import unittest

TESTS = os.path.dirname(os.path.abspath(__file__))
HOME = os.path.dirname(os.path.dirname(TESTS))


def python_with_torch():
    """The Python that the verifier would take; None where there is none."""
    given = os.environ.get("KERNELRL_PYTHON")
    for name in [given] if given else [os.path.join(HOME, ".venv/bin/python"), "python3", "/usr/bin/python3"]:
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", "import torch"], capture_output=True).returncode == 0:
            return path
    return None


class Tap(unittest.TestResult):
    """One line a test, written as it ends."""

    def __init__(self):
        super().__init__()
        self.failed = 0

    def line(self, word, test, more=""):
        print(f"{word} {self.testsRun} - {test.id()}{more}", flush=True)

    def addSuccess(self, test):
        self.line("ok", test)

    def addSkip(self, test, reason):
        self.line("ok", test, f" # SKIP {reason}")

    def addFailure(self, test, error):
        self.failed += 1
        self.line("not ok", test)
        for text in "".join(traceback.format_exception(*error)).splitlines():
            print(f"# {text}")

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        """A test with subtests has one line of its own only when all of them succeed; each that fails has one."""
        if error:
            self.addFailure(subtest, error)


def each(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def main():
    sys.path[:0] = [os.path.join(HOME, "worker"), TESTS]
    found = unittest.defaultTestLoader.discover(TESTS, top_level_dir=TESTS)
    wanted = [t for t in each(found) if not sys.argv[1:] or any(n in t.id() for n in sys.argv[1:])]
    result = Tap()
    unittest.TestSuite(wanted).run(result)
    print(f"1..{result.testsRun}")
    sys.exit(1 if result.failed or not wanted else 0)


if __name__ == "__main__":
    try:
        import torch  # noqa: F401
    except ImportError:
        python = python_with_torch()
        if not python:
            print("ok 1 - the worker's unit tests # SKIP no Python with PyTorch\n1..1")
            sys.exit(0)
        os.execv(python, [python, "-B", *sys.argv])
    main()
