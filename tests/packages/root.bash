# Helpers for the tests of packages: bare Debians to install things in. Sourced after tests/e2e/tap.bash; needs root.
#
# A root is a folder that mmdebstrap fills: the required packages, apt, and passwd, which is not required in Debian 13.
# Commands run in it with file systems of their own, so that nothing outside changes; the network is shared, for apt. What
# apt has fetched, and the folders as they are when new, are kept below build/roots.
roots=$PWD/build/roots
mkdir -p "$roots"
can_make_roots() { [ "$(id -u)" = 0 ] && command -v mmdebstrap >/dev/null && command -v bwrap >/dev/null; }

root_image() { # SUITE: makes build/roots/SUITE.tar, unless there is one of this week
    local tar=$roots/$1.tar
    if [ -z "$(find "$tar" -mtime -7 2>/dev/null)" ]; then
        mmdebstrap --quiet --mode=root --variant=apt --include=passwd --format=tar "$1" "$tar.part" && mv "$tar.part" "$tar"
    fi
}

root_new() { # SUITE FOLDER: unpacks a bare Debian, with an ordinary user named user, and apt's lists fetched
    (
        flock 9 # two tests may want the same one
        root_image "$1"
    ) 9>"$roots/$1.lock" || return 1
    mkdir -p "$2" "$roots/archives-$1" && tar --extract --file="$roots/$1.tar" --directory="$2" --exclude='./dev/*' || return 1
    echo "$1" >"$2.suite"
    inside "$2" sh -c 'useradd --create-home --shell /bin/sh user && { apt-get update || apt-get update; }' >"$2/var/log/new" 2>&1
}

# Runs a command in the root, as its root; /given is a folder for what the test gives, or takes. /proc is the machine's:
# over one of its own, made by bubblewrap, no jail could mount another.
given=$tmp/given
mkdir -p "$given"
inside() { # ROOT COMMAND...
    local root=$1 archives=()
    if [ -f "$root.suite" ]; then archives=(--bind "$roots/archives-$(cat "$root.suite")" /var/cache/apt/archives); fi
    shift
    bwrap --bind "$root" / --dev-bind /dev /dev --bind /proc /proc --perms 1777 --tmpfs /tmp --dir /given --bind "$given" /given \
        "${archives[@]}" --ro-bind /etc/resolv.conf /etc/resolv.conf --die-with-parent --clearenv \
        --setenv PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv HOME /root --setenv LANG C.UTF-8 \
        --setenv DEBIAN_FRONTEND noninteractive --chdir /root "$@"
}
as_user() { # ROOT COMMAND...: the same as the ordinary user, in its home folder
    local root=$1
    shift
    inside "$root" setpriv --reuid=user --regid=user --init-groups env HOME=/home/user sh -c 'cd && exec "$@"' - "$@"
}
install_in() { # ROOT OPTION OR PACKAGE...: what apt said is in the root's /var/log/apt-said
    local root=$1
    shift
    ( # apt locks the folder of what it has fetched, which another test may use now
        flock 9
        inside "$root" sh -c 'apt-get install -y "$@" >>/var/log/apt-said 2>&1 || { tail -n 5 /var/log/apt-said; exit 1; }' - "$@"
    ) 9>"$roots/archives-$(cat "$root.suite").lock"
}
files_of() { # ROOT: every file but the journals of the package manager, the cache of the loader, and the user's own
    (cd "$1" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp -o -path ./given -o -path ./home -o -path ./var/log \
        -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache \) -prune -o -printf '%p %y %m %l\n') | sort
}
# The demo in little: both evaluations of 48 problems, and one step of training.
small_demo="demo max_steps=1 batch_size=2 group_size=2 eval_samples=1 generated_problems=0 num_correct_trials=1"
timed() { # NAME COMMAND...: a check that says how long it took
    local begin=$SECONDS
    check "$@"
    echo "# took $((SECONDS - begin)) s"
}
says() { # NAME REGEX: a check of what the command of the check in front of it printed
    if grep -qE "$2" "$tmp/out"; then ok "$1"; else not_ok "$1"; fi
}
