#!/usr/bin/env bash
# Full disks around a farm: the server's, the run's, and that of a host which judges for real. Jobs wait, the run ends
# with a message and goes on exactly, and no answer is called bad because a disk is full.
. "$(dirname "$0")/../e2e/tap.bash"
. tests/faults/farm.bash
disk=$tmp/disk
finish() {
    farm_end
    mountpoint -q "$disk" && umount "$disk"
    cp $tmp/*.said $tmp/*.log /tmp/pool.said/; rm -rf "$tmp"
}
trap finish EXIT
mkdir "$disk"
if ! why=$(farm_here); then
    skip "full disks around a farm" "$why"
elif ! why=$(mount -t tmpfs -o size=300m none "$disk" 2>&1); then
    skip "full disks around a farm" "no disk of our own can be mounted: $why"
else
    farm_here
    farm_begin 127.0.0.1 h1 h2 || exit 1
    farm_host h1
    farm_host h2
    run whole
    wait $pid
    check "the undisturbed run" each_place_once "$tmp/whole" 80

    mkdir "$disk/jetstream"
    kill_server
    rm -rf "$farm/server/jetstream"
    ln -s "$disk/jetstream" "$farm/server/jetstream"
    farm_server
    run full
    until_lines full 5
    head -c 400m /dev/zero >"$disk/filler" 2>/dev/null
    sleep 8
    rm -f "$disk/filler"
    # A server that met a full disk may have closed its store: it is begun again, as a site would.
    kill_server
    farm_server
    ended full "the server's disk is full for 8 s: jobs wait, none is lost, and none gets a zero"

fi
