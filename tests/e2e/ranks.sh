#!/usr/bin/env bash
# Ranks over each MPI that there is: every call between them, a rank that fails, dies or stops.
. "$(dirname "$0")/tap.bash"
BUILD=${BUILD:-build}
program=$BUILD/test/library/ranks
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
check "the program is built" make --no-print-directory BUILD="$BUILD" "$program"
check "without a launcher there is one rank" bash -c '[ "$("$1")" = "1 ranks over self" ]' - "$program"
found=
for mpi in openmpi mpich; do
    if ! command -v mpirun.$mpi >/dev/null || [ ! -f "$BUILD/libkernelrl_$mpi.so" ]; then
        skip "ranks over $mpi" "its mpirun or our plugin for it is not there (tools/setup ranks)"
        continue
    fi
    found=$mpi
    run() { # RANKS ARGUMENT...
        local ranks=$1
        shift
        case $mpi in
        openmpi) timeout 60 mpirun.openmpi --oversubscribe --bind-to none -n "$ranks" "$@" ;;
        mpich) timeout 60 mpirun.mpich -n "$ranks" "$@" ;;
        esac
    }
    for ranks in 2 3; do
        check "$ranks ranks over $mpi: every call" bash -c \
            "$(declare -f run); mpi=$mpi; run $ranks $program | tee '$tmp/said' && grep -q '^$ranks ranks over ' '$tmp/said'"
    done
    run 3 "$program" fail 1 >"$tmp/fail" 2>&1
    check "$mpi: a failure of one is everybody's, with its message" bash -c \
        "[ $? != 0 ] && [ \$(grep -c 'rank 1: the disk is full' '$tmp/fail') = 2 ]"
    run 3 "$program" die 1 >"$tmp/die" 2>&1
    check "$mpi: a rank that is killed ends the job" test $? != 0
    for stopped in 1 0; do
        begin=$SECONDS
        run 3 "$program" stop $stopped 2 >"$tmp/stop" 2>&1
        check "$mpi: rank $stopped stops, the others end in time and say so" bash -c \
            "[ $? != 0 ] && [ $((SECONDS - begin)) -lt 14 ] && grep -q 'rank $stopped on .* is lost: not heard of for' '$tmp/stop'"
    done
done
if [ -n "$found" ]; then
    check "a plugin that is none is named" bash -c \
        "KERNELRL_MPI=/no/plugin.so OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 $program 2>&1 | grep -q 'ranks: cannot load /no/plugin.so'"
fi
check "where there is no plugin, what to do is said" bash -c \
    "KERNELRL_MPI=none OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 $program 2>&1 | grep -q 'tools/setup ranks'"
echo "1..$tap_n"
