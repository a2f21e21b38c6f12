#!/usr/bin/env bash
# The adapters of python/kernelrl in the frameworks that they are for. A Python has each: FRAMEWORK_PYTHON of the
# environment (TRL_PYTHON, VERL_PYTHON, ...), since they cannot all be installed together, else KERNELRL_PYTHON.
. "$(dirname "$0")/../e2e/tap.bash"
for part in trl:trl verl:verl verifiers:verifiers skyrl:skyrl_gym openenv:openenv tinker:tinker_cookbook \
    nemo_gym:nemo_gym; do
    name=${part%:*} module=${part#*:} own=${name^^}_PYTHON
    python=${!own:-${KERNELRL_PYTHON:-python3}}
    if ! "$python" -c "import importlib.metadata, importlib.util; assert importlib.util.find_spec('$module')" 2>/dev/null; then
        skip "$name" "$python has no $module"
        continue
    fi
    check "$name: a right, a wrong, an empty and a missing answer; the example of the documents" \
        "$python" tests/clients/frameworks.py "$name" "$KRL"
done
echo "1..$tap_n"
