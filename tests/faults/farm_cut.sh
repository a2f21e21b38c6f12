#!/usr/bin/env bash
# Hosts of a farm, and a trainer, whose network is cut: others do a host's part; a trainer samples until max_staleness is
# used up, waits, says so, and goes on. The weights are those of the undisturbed run.
. "$(dirname "$0")/../e2e/tap.bash"
. tests/faults/farm.bash
net=krl$$ linked=
finish() {
    farm_end
    [ -n "$linked" ] && ip netns del "$net" && ip link del "$net" 2>/dev/null
    rm -rf "$tmp"
}
trap finish EXIT
if ! why=$(farm_here); then
    skip "a farm whose network is cut" "$why"
elif ! { ip netns add "$net" && ip link add "$net" type veth peer name krl0 netns "$net"; } 2>"$tmp/why"; then
    skip "a farm whose network is cut" "no network of our own can be made: $(head -n 1 "$tmp/why")"
    ip netns del "$net" 2>/dev/null
else
    farm_here
    linked=1 address=10.211.$(($$ % 256)).1
    ip addr add "$address/24" dev "$net" && ip link set "$net" up
    ip netns exec "$net" ip addr add "${address%1}2/24" dev krl0
    ip netns exec "$net" ip link set krl0 up
    ip netns exec "$net" ip link set lo up
    farm_begin "$address" h1 h2 h3 || exit 1
    more=(max_staleness=1)
    farm_host h2
    farm_host h3
    run whole
    wait $pid
    check "the undisturbed run" each_place_once "$tmp/whole" 80

    farm_host ip netns exec "$net" h1
    run host
    until_lines host 5
    ip link set "$net" down
    sleep 10
    ip link set "$net" up
    ended host "a host is cut off for 10 s, with leases of 2 s: others do its part, its late verdicts count no more"
    kill_host KILL 1

    run trainer ip netns exec "$net"
    until_lines trainer 5
    ip link set "$net" down
    for ((i = 0; i < 1200; i++)); do # 30 s of waiting, behind what is sampled meanwhile
        grep -qE 'waiting for [0-9]+ verdicts' "$tmp/trainer.said" && break
        sleep 0.2
    done
    cp "$tmp/trainer.said" "$tmp/said"
    says() { # REGEX
        cp "$tmp/said" "$tmp/out"
        grep -qE "$1" "$tmp/said"
    }
    check "a trainer that is cut off says what it waits for" says 'waiting for [0-9]+ verdicts.*, for 3[0-9] s: '
    check "it has sampled the next step meanwhile" says 'and [0-9]+ of batches that were sampled ahead'
    ip link set "$net" up
    ended trainer "and goes on when the network is there again"
fi
echo "1..$tap_n"
