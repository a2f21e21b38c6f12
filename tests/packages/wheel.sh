#!/usr/bin/env bash
# The Python wheel: built in two folders, looked at by auditwheel and twine, installed by an ordinary user in a bare Debian
# 12 and a bare Debian 13, used there, and removed.
. "$(dirname "$0")/../e2e/tap.bash"
. "$(dirname "$0")/root.bash"
if ! can_make_roots || [ ! -x .venv-packages/bin/auditwheel ]; then
    skip "the wheel" "needs root, mmdebstrap, bubblewrap and tools/setup packages"
    echo "1..$tap_n"
    exit 0
fi
# Two checkouts at places of different length: their paths would show. The second one is compiled without a cache, which
# would give back what the first one has made.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
KERNELRL_COMMIT=$(git describe --always --dirty)
export SOURCE_DATE_EPOCH KERNELRL_COMMIT
build_in() { # FOLDER
    tools/source_tree "$1" && make --no-print-directory -C "$1" -j"$(nproc)" wheel
}
timed "make wheel" build_in "$tmp/one"
CCACHE_DISABLE=1 timed "make wheel, elsewhere" build_in "$tmp/another place of the same sources"
whl=$(echo "$tmp"/one/build/wheel/*.whl)
[ -f "$whl" ] || { echo "1..$tap_n" && exit 1; }
check "two builds give the same bytes" cmp "$whl" "$tmp/another place of the same sources/build/wheel/$(basename "$whl")"
name=$(basename "$whl")
tag=${name#*-py3-none-} tag=${tag%.whl}
echo "# $name: $(($(stat -c %s "$whl") / 1024)) KiB, sha256 $(sha256sum <"$whl" | cut -c1-16)"
check "at most 40 MB" test "$(stat -c %s "$whl")" -le 40000000
.venv-packages/bin/auditwheel show "$whl" >"$tmp/audit" 2>&1
tr '\n' ' ' <"$tmp/audit" | grep -oE 'is consistent with the following platform tag: "[^"]*"' | sed 's/^/# auditwheel: /'
check "auditwheel finds it fit for its tag" sh -c "tr '\n' ' ' <'$tmp/audit' | grep -q 'following platform tag: \"$tag\"'"
.venv-packages/bin/twine check --strict "$whl" >"$tmp/twine" 2>&1
sed 's/^/# twine: /' "$tmp/twine"
check "twine finds nothing" grep -q PASSED "$tmp/twine"
older() { .venv-packages/bin/pip download --quiet --no-deps --no-index --only-binary :all: --find-links "$(dirname "$whl")" \
    --platform "$1" --dest "$tmp/got" kernelrl; }
check "pip takes it for its C library" older "$tag"
refuses "not for an older one" 1 'No matching distribution' older manylinux_2_31_x86_64
cp "$whl" tests/verify/relu.py tests/verify/answers/good.c "$given/"

# ---- in a bare Debian: python3-venv is all that is added at first ----
try_in() { # SUITE NUMBER
    local r=$tmp/$1 venv="/home/user/a plâce/venv" krl
    krl="$venv/bin/kernelrl"
    timed "a bare Debian $2" root_new "$1" "$r"
    timed "python3-venv" install_in "$r" --no-install-recommends python3-venv
    timed "Debian $2: pip install kernelrl-*.whl" as_user "$r" sh -c \
        'python3 -m venv "$1" && "$1/bin/pip" install --quiet --no-index "/given/$2"' - "$venv" "$name"
    check "pip check" as_user "$r" "$venv/bin/pip" check
    as_user "$r" find "$venv" -name 'bin' -prune -o -type f -printf '%p %s %m\n' | sort >"$tmp/files.before"
    check "it runs" as_user "$r" "$krl" version
    check "as a module, too" as_user "$r" "$venv/bin/python" -m kernelrl version
    refuses "doctor names gcc" 1 'apt-get install gcc libc6-dev' as_user "$r" "$krl" doctor
    says "and PyTorch" 'pip install torch setuptools'
    says "its own bubblewrap works" '^sandbox .* works'
    # shellcheck disable=SC2086
    refuses "the demo names both at once" 1 'install gcc and libc6-dev.*pip install torch setuptools' as_user "$r" "$krl" $small_demo log_path=/tmp/x
    timed "Debian $2: what they name" install_in "$r" gcc libc6-dev python3-torch python3-setuptools libopenblas0-pthread
    timed "now doctor is content" as_user "$r" "$krl" doctor
    sed -n -E 's/^(python|compiler|sandbox) /# &/p' "$tmp/out"
    says "with the system's PyTorch" '^python +/usr/bin/python3 '
    # shellcheck disable=SC2086
    timed "Debian $2: the demo, in little" as_user "$r" "$krl" $small_demo log_path=/home/user/run
    says "has both tables" '^greedy .48 held-out problems'
    check "a kernel is judged" as_user "$r" sh -c '"$1" verify --problem /given/relu.py --solution /given/good.c --no-measure' - "$krl"
    inside "$r" chmod -R a-w "/home/user/a plâce"
    check "in folders that nobody may write to" as_user "$r" sh -c 'cd /tmp && "$1" plan --config configs/quickstart.yaml' - "$krl"
    inside "$r" chmod -R u+w "/home/user/a plâce"
    as_user "$r" find "$venv" -name 'bin' -prune -o -type f -printf '%p %s %m\n' | sort >"$tmp/files.after"
    check "nothing was written there" diff "$tmp/files.before" "$tmp/files.after"
    check "a second environment beside it" as_user "$r" sh -c 'python3 -m venv two && two/bin/pip install --quiet --no-index "/given/$1" &&
        two/bin/kernelrl version && "$2" version' - "$name" "$krl"
    # A torch in the environment is the one that is asked: this one says so and fails.
    as_user "$r" sh -c 'd=$(echo two/lib/python*/site-packages) && mkdir $d/torch && echo "raise SystemExit(\"the torch of two\")" >$d/torch/__init__.py'
    refuses "PyTorch of the environment comes first" 1 'the torch of two' as_user "$r" two/bin/kernelrl doctor
    check "pip uninstall" as_user "$r" "$venv/bin/pip" uninstall --quiet --yes kernelrl
    check "leaves nothing" test -z "$(find "$r/home/user/a plâce" -iname '*kernelrl*')"
    rm -rf "$r"
}
try_in bookworm 12
try_in trixie 13
echo "1..$tap_n"
