#!/usr/bin/env bash
# The CUDA backend on the emulated device: what it owes beside its ops, with all work as late as a device may be, so that
# memory which the host overwrites too early shows.
. "$(dirname "$0")/tap.bash"
BUILD=${BUILD:-build}
test=$BUILD/test/cuda_plugin plugin=$BUILD/test/libkernelrl_cuda_emulated.so
if ! command -v g++ >/dev/null; then
    skip "the emulated device" "g++ is not installed"
    echo "1..$tap_n"
    exit 0
fi
check "it builds" make --no-print-directory BUILD="$BUILD" "$test" "$plugin"
check "it passes, all work as late as it may be" env KERNELRL_EMULATE_LATE=1 "$test" "$plugin"
echo "1..$tap_n"
