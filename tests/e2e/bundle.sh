#!/usr/bin/env bash
# `make bundle`: the folder runs from anywhere with the C library alone, and asks for none newer than 2.35.
. "$(dirname "$0")/tap.bash"
BUILD=${BUILD:-build}
check "make bundle" make --no-print-directory BUILD="$BUILD" BUNDLE_FLAGS=--without-cublaslt BUNDLE="$tmp/bundle" bundle
mv "$tmp/bundle" "$tmp/elsewhere" 2>/dev/null
b=$tmp/elsewhere
elf_files() { find "$b" -type f | while IFS= read -r f; do [ "$(head -c 4 "$f" | tr -d '\0')" = $'\x7fELF' ] && echo "$f"; done; }
versions() { # the newest C library that any file asks for
    elf_files | xargs readelf -W --version-info | grep -o 'GLIBC_[0-9][0-9.]*' | sort -uV | tail -n 1
}
newer() { printf '%s\n%s\n' GLIBC_2.35 "$1" | sort -V | tail -n 1; }
check "it holds the program, its runner, and libraries" test "$(elf_files | wc -l)" -ge 10
check "no file asks for a C library newer than 2.35" test "$(newer "$(versions)")" = GLIBC_2.35
check "and the check can fail" test "$(newer GLIBC_2.36)" != GLIBC_2.35
clean() { env -i HOME="$tmp" PATH=/usr/bin:/bin "$@"; }
loaded() { # libraries from outside the folder that are not the C library's
    local f
    for f in "$b/bin/kernelrl" "$b"/bin/*.so; do
        [ -f "$f" ] && clean ldd "$f" | awk '$2 == "=>" { print $1, $3 }'
    done | grep -v " $b/" | grep -vE '^(linux-vdso|lib(c|m|dl|rt|pthread|resolv)\.so)' | tee "$tmp/out"
}
check "all other libraries come from the folder" test -z "$(loaded)"
check "it runs" clean "$b/kernelrl" version
check "from another folder, by a relative path" sh -c "cd '$tmp' && env -i PATH=/usr/bin:/bin elsewhere/kernelrl version"
check "it finds its model" clean "$b/kernelrl" tokenize --model "$b/models/tiny" --text "void kernel"
if command -v bwrap >/dev/null; then
    check "its bubblewrap starts with its own libraries" clean "$b/bin/bwrap" --version
else
    skip "its bubblewrap starts with its own libraries" "bubblewrap is not installed"
fi
check "the licence of each library is in it" sh -c "test \$(ls '$b/licenses' | wc -l) -ge 20 && cat '$b'/licenses/libcurl4* >/dev/null"
check "it says which driver it needs" grep -qE '^- GPU: (NVIDIA driver|none)' "$b/BUNDLE.md"
# The Python package that the wheel is made of (tools/wheel): it becomes the program.
mkdir "$tmp/site packages"
cp -r python/kernelrl "$tmp/site packages/kernelrl"
module() { clean PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$tmp/site packages" python3 -m kernelrl "$@"; }
refuses "the Python package without a bundle says so" 1 'carries no program' module version
mv "$b" "$tmp/site packages/kernelrl/_bundle"
check "with one it runs" sh -c "env -i PATH=/usr/bin:/bin PYTHONPATH='$tmp/site packages' python3 -B -m kernelrl version | grep -q '^kernelrl '"
refuses "arguments and exit status are the program's" 2 'help KEY|neither a command nor a key' module help "no such key"
refuses "an unknown option" 2 'usage: tools/bundle' tools/bundle --with-everything "$tmp/x"
echo "1..$tap_n"
