#!/usr/bin/env bash
# Make the cluster's secrets, once: the password of the brokers among themselves, and Corosync's key.
#
# usage: keys.sh DIRECTORY
#
# What is there already stays. Run it in one place (with Vagrant that is your own machine), and hand the directory to
# every node, readable by root only: configure.sh and cluster.sh take the secrets from there (environment variable KEYS).
set -euo pipefail
umask 077

[[ $# -eq 1 ]] || {
    printf 'usage: keys.sh DIRECTORY\n' >&2
    exit 2
}
directory=$1
mkdir -p "$directory"
chmod 700 "$directory"

# make NAME COMMAND...: the command's output becomes the file, whole or not at all.
make() {
    local path=$directory/$1
    shift
    [[ ! -s $path ]] || return 0
    "$@" >"$path.new"
    mv "$path.new" "$path"
    printf 'keys.sh: made %s\n' "$path" >&2
}

random_text() { od -An -v -tx1 -N 24 /dev/urandom | tr -d ' \n'; }
random_bytes() { dd if=/dev/urandom bs=256 count=1 2>/dev/null; }

make replicator.password random_text
make corosync.authkey random_bytes
