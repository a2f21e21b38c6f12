#!/usr/bin/env bash
# tools/setup on machines that are not this one: programs of the same name, first in PATH, play their part.
. "$(dirname "$0")/tap.bash"
mkdir "$tmp/bin" "$tmp/here"
chmod 755 "$tmp" "$tmp/bin"
for t in bash awk grep sed id mktemp rm tail fold paste dirname true python3; do # all that a bare machine has
    ln -s "$(command -v $t)" "$tmp/here/$t"
done
fake() { # NAME SCRIPT
    printf '#!/bin/sh\n%s\n' "$2" >"$tmp/bin/$1"
    chmod 755 "$tmp/bin/$1"
}
setup() { env -u KERNELRL_PYTHON PATH="$tmp/bin:$tmp/here" tools/setup "$@" 2>&1 | tee "$tmp/said"; }
set -o pipefail # setup's status, not tee's
fake id 'echo 65534'

fake dpkg-query 'echo "install ok installed"'
check "nothing to do when all is installed" setup test
check "and nothing said" test -e "$tmp/said" -a ! -s "$tmp/said"
fake dpkg-query 'exit 1'
refuses "no root, no sudo: the list, and exit status 1" 1 '^ +apt-get install -y .* gcc make .*bubblewrap' setup
check "building and running needs no test package" sh -c "grep -q gcc '$tmp/said' && ! grep -qE 'cmocka|clang' '$tmp/said'"
refuses "make test needs more" 1 'apt-get install -y .*libcmocka-dev zstd clang ' setup test
fake dpkg-query 'case $3 in bubblewrap) exit 1 ;; *) echo "install ok installed" ;; esac'
refuses "only what is missing is listed" 1 'apt-get install -y --no-install-recommends bubblewrap$' setup test
fake sudo "echo \"\$@\" >>'$tmp/calls'"
check "with sudo it installs" setup
check "by apt-get" sh -c "grep -qx 'apt-get update' '$tmp/calls' &&
    grep -qx 'apt-get install -y --no-install-recommends bubblewrap' '$tmp/calls'"
fake sudo 'echo "E: no network"; exit 100'
refuses "a failing apt-get is shown" 1 'E: no network' setup
check "with its command" grep -q 'sudo apt-get install -y --no-install-recommends bubblewrap' "$tmp/said"
rm "$tmp/bin/dpkg-query"
check "not Debian: goes on" setup
check "and lists what it wants" grep -q libjansson-dev "$tmp/said"
echo "1..$tap_n"
