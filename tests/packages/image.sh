#!/usr/bin/env bash
# The container image: built by buildah without a daemon, from a bare Debian that mmdebstrap made, with gcc and PyTorch and
# without; what is in it runs as its user would run it.
. "$(dirname "$0")/../e2e/tap.bash"
. "$(dirname "$0")/root.bash"
if ! can_make_roots || ! command -v buildah >/dev/null; then
    skip "the container image" "needs root, mmdebstrap, bubblewrap and buildah"
    echo "1..$tap_n"
    exit 0
fi
export STORAGE=$tmp/storage BASE=localhost/debian:12 ISOLATION=chroot
b() { buildah --root "$STORAGE/images" --runroot "$STORAGE/run" --storage-driver vfs "$@"; }
base() {
    local c
    root_image bookworm && c=$(b from scratch) && b add --quiet "$c" "$roots/bookworm.tar" / && b commit --quiet "$c" $BASE && b rm "$c"
}
timed "a bare Debian 12 as an image" base
timed "make image RECOMMENDS=no" env RECOMMENDS=no tools/image kernelrl-small
tail -n 1 "$tmp/out" | sed 's/^/# /'
timed "make image" tools/image kernelrl
tail -n 1 "$tmp/out" | sed 's/^/# /'
config() { b inspect --type image --format "$1" kernelrl; }
check "it runs kernelrl" test "$(config '{{.OCIv1.Config.Entrypoint}}')" = "[kernelrl]"
check "not as root" test "$(config '{{.OCIv1.Config.User}}')" = kernelrl
check "in /work" test "$(config '{{.OCIv1.Config.WorkingDir}}')" = /work
check "and says which port a server has" test "$(config '{{.OCIv1.Config.ExposedPorts}}' | sed 's,/tcp,,')" = "map[8000:{}]"
cp tests/verify/relu.py tests/verify/answers/good.c "$given/"
of() { # IMAGE COMMAND...: runs it on the image's files, as its user; namespaces are allowed
    local root
    root=$(b mount "$(b from --pull-never "$1")")
    shift
    inside "$root" setpriv --reuid=kernelrl --regid=kernelrl --init-groups env HOME=/home/kernelrl sh -c 'cd /work && exec "$@"' - "$@"
}
check "the small one serves and samples" of kernelrl-small kernelrl sample --model models/tiny --prompt "void kernel" --max-tokens 8
refuses "it has no compiler, and says so" 1 'apt-get install gcc libc6-dev' of kernelrl-small kernelrl doctor
timed "doctor is content in the other" of kernelrl kernelrl doctor
timed "a kernel is judged in it" of kernelrl kernelrl verify --problem /given/relu.py --solution /given/good.c
check "its user may write where it starts" of kernelrl sh -c 'touch x && rm x'
b rm --all >/dev/null
b rmi --all --force >/dev/null 2>&1
echo "1..$tap_n"
