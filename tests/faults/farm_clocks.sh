#!/usr/bin/env bash
# Hosts of a farm that stand still, and hosts and a trainer whose clocks are ten years ahead or behind, and jump: the run
# ends with the weights of the undisturbed one.
. "$(dirname "$0")/../e2e/tap.bash"
. tests/faults/farm.bash
trap 'farm_end; rm -rf "$tmp"' EXIT
fake=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null | head -n 1)
faked() { # FILE: its text is what the clock is off by
    echo env LD_PRELOAD="$fake" FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1 \
        FAKETIME_TIMESTAMP_FILE="$1"
}
if ! why=$(farm_here); then
    skip "hosts that stand still, clocks that are wrong" "$why"
else
    farm_here
    farm_begin 127.0.0.1 h1 h2 h3 || exit 1
    farm_host h1
    farm_host h2
    run whole
    wait $pid
    check "the undisturbed run" each_place_once "$tmp/whole" 80

    run still
    until_lines still 5
    kill_host STOP 2
    sleep 5
    kill_host CONT 2
    ended still "a host stands still for 5 s, with leases of 2 s: they go to another"

    if [ -z "$fake" ]; then
        skip "clocks that are years off" "no libfaketime (tools/setup faults installs it)"
    else
        kill_host KILL 1
        kill_host KILL 2
        echo "+10y" >"$tmp/ahead"
        echo "-10y" >"$tmp/behind"
        farm_host $(faked "$tmp/ahead") h2
        farm_host $(faked "$tmp/behind") h3
        run clocks $(faked "$tmp/behind")
        until_lines clocks 20
        echo "-3y" >"$tmp/ahead"
        echo "+10y" >"$tmp/behind"
        ended clocks "two hosts and the trainer are ten years ahead or behind, and their clocks jump by 13 and 20 years"
        check "those hosts judged" grep -q 'connected to' "$tmp/h2.log" "$tmp/h3.log"
    fi
fi
echo "1..$tap_n"
