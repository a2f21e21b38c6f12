#!/usr/bin/env bash
# Hosts of a farm that are cut off, stopped, or have a clock of their own, a server whose disk is full, a trainer that is
# cut off: the run goes on or waits, and ends with the weights of the undisturbed one.
. "$(dirname "$0")/../e2e/tap.bash"
. tests/faults/farm.bash
net=krl$$ address=127.0.0.1 linked=
finish() {
    farm_end
    [ -n "$linked" ] && ip netns del "$net" && ip link del "$net" 2>/dev/null
    mountpoint -q "$tmp/disk" && umount "$tmp/disk"
    rm -rf "$tmp"
}
trap finish EXIT
if ! why=$(farm_here); then
    skip "a farm" "$why"
    echo "1..$tap_n"
    exit 0
fi
farm_here
if ip netns add "$net" 2>/dev/null && ip link add "$net" type veth peer name krl0 netns "$net" 2>/dev/null; then
    linked=1 address=10.211.$((RANDOM % 256)).1
    ip addr add "$address/24" dev "$net" && ip link set "$net" up
    ip netns exec "$net" ip addr add "${address%1}2/24" dev krl0
    ip netns exec "$net" ip link set krl0 up
    ip netns exec "$net" ip link set lo up
fi
farm_begin "$address" h1 h2 h3 || exit 1
run() { # NAME [COMMAND...]: in the background
    local name=$1
    shift
    "$@" "${train[@]}" max_steps=3 verify_hosts="nats:$url" log_path="$tmp/$name" >"$tmp/$name.said" 2>&1 &
    pid=$!
}
until_lines() { # NAME N
    for ((i = 0; i < 2400; i++)); do
        [ "$(cat "$tmp/$1/verdicts.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return
        kill -0 $pid 2>/dev/null || return
        sleep 0.05
    done
}
ended() { # NAME WHAT: the run has the weights of the undisturbed one
    wait $pid
    cp "$tmp/$1.said" "$tmp/out"
    if each_place_once "$tmp/$1" 120 && same_weights "$tmp/whole" "$tmp/$1" >>"$tmp/out" 2>&1; then ok "$2"; else not_ok "$2"; fi
    rm -rf "${tmp:?}/$1"
}
farm_host h2
farm_host h3
run whole
wait $pid
check "the undisturbed run" each_place_once "$tmp/whole" 120

# ---- partitions ----
if [ -z "$linked" ]; then
    skip "a host that is cut off" "no network of our own can be made"
    skip "a trainer that is cut off" "no network of our own can be made"
else
    farm_host ip netns exec "$net" h1
    run host
    until_lines host 10
    ip link set "$net" down
    sleep 10
    ip link set "$net" up
    ended host "a host is cut off for 10 s, with leases of 2 s: others do its part, its late verdicts count no more"
    kill_host KILL 1
    run trainer ip netns exec "$net"
    until_lines trainer 10
    ip link set "$net" down
    sleep 35
    ip link set "$net" up
    ended trainer "a trainer is cut off for 35 s: it waits, and goes on"
    check "and says what it waits for" grep -qE 'waiting for [0-9]+ verdicts' "$tmp/trainer.said"
fi

# ---- a host that stands still ----
run still
until_lines still 10
kill_host STOP 2
sleep 5
kill_host CONT 2
ended still "a host stands still for 5 s: its leases go to another"

# ---- clocks ----
fake=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null | head -n 1)
if [ -z "$fake" ]; then
    skip "clocks that are years off" "no libfaketime (tools/setup faults installs it)"
else
    kill_host KILL 2
    kill_host KILL 3
    echo "+9y" >"$tmp/ahead"
    echo "-12h" >"$tmp/behind"
    faked() { # FILE: its text is what the clock is off by
        echo env LD_PRELOAD="$fake" FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1 \
            FAKETIME_TIMESTAMP_FILE="$1"
    }
    farm_host $(faked "$tmp/ahead") h2
    farm_host $(faked "$tmp/behind") h3
    run clocks
    until_lines clocks 40
    echo "+1y" >"$tmp/ahead"
    echo "+5y" >"$tmp/behind"
    ended clocks "hosts whose clocks are nine years ahead and half a day behind, and then jump: no effect"
    kill_host KILL 2
    kill_host KILL 3
    farm_host h2
    farm_host h3
fi

# ---- a full disk of the server's ----
mkdir "$tmp/disk"
if ! why=$(mount -t tmpfs -o size=1m none "$tmp/disk" 2>&1); then
    skip "a server's full disk" "no disk of our own can be mounted: $why"
else
    kill -KILL $server_pid
    wait $server_pid 2>/dev/null
    rm -rf "$farm/server/jetstream"
    mkdir "$tmp/disk/jetstream"
    ln -s "$tmp/disk/jetstream" "$farm/server/jetstream"
    farm_server
    run full
    until_lines full 10
    head -c 2m /dev/zero >"$tmp/disk/filler" 2>/dev/null
    sleep 8
    rm -f "$tmp/disk/filler"
    mount -o remount,size=64m "$tmp/disk"
    # A server that met a full disk may have closed its store: it is begun again, as a site would.
    kill -KILL $server_pid
    wait $server_pid 2>/dev/null
    farm_server
    ended full "a server's disk is full for 8 s: jobs wait, none is lost, and none gets a zero"
fi
echo "1..$tap_n"
