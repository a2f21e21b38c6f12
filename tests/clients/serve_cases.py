"""Cases of a client against a server, as TAP: functions with the decorator @case, run in their order by run()."""

import sys
import traceback

CASES = []


def case(name):
    def keep(function):
        CASES.append((name, function))
        return function

    return keep


def run():
    failed = 0
    for number, (name, function) in enumerate(CASES, 1):
        try:
            function()
            print(f"ok {number} - {name}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {number} - {name}")
            for line in traceback.format_exc().splitlines()[-12:]:
                print(f"# {line[:2000]}", flush=True)
    print(f"1..{len(CASES)}")
    sys.exit(1 if failed else 0)


def equal(got, want):
    assert got == want, f"{got!r}, expected {want!r}"


def raises(kind, function, *words):
    """The error that the call ends with; its message has the words."""
    try:
        got = function()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} does not stand in: {error}"
        return error
    raise AssertionError(f"{kind.__name__} expected, got {got!r}")
