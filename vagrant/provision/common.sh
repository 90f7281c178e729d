# shellcheck shell=bash
# What the provisioning scripts share; they source it. They run on virtual machines, and in network namespaces
# without systemd and without a network: so nothing here needs either.
# shellcheck disable=SC2034  # the names below are read by those that source this

readonly prefix=/opt/qpid-ha
readonly etc=/etc/qpid-ha
readonly user=qpid-ha
readonly share=$prefix/share/qpid-ha
readonly keys=${KEYS:-/etc/qpid-ha-keys}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$@"
    exit 1
}

need_root() { [[ $EUID -eq 0 ]] || die "run this as root"; }

# need NAME...: these environment variables have to say something.
need() {
    local name
    for name in "$@"; do
        [[ -n ${!name:-} ]] || die "the environment variable $name is missing; see the head of $0"
    done
}

has_systemd() { [[ -d /run/systemd/system ]]; }

# put_file PATH MODE GROUP: standard input becomes the file, all at once, so that nobody reads half of it. Succeeds
# when the file is another one than before.
put_file() {
    local path=$1 mode=$2 group=$3 new
    new=$(mktemp "$path.XXXXXX")
    cat >"$new"
    chmod "$mode" "$new"
    chown "root:$group" "$new"
    if cmp -s "$new" "$path"; then
        mv -f "$new" "$path" # the mode may have been wrong
        return 1
    fi
    mv -f "$new" "$path"
}

# know_the_nodes "NAME=ADDRESS ...": names in /etc/hosts, for people; the cluster itself uses addresses.
know_the_nodes() {
    local pair
    for pair in $1; do
        [[ $pair == ?*=?* ]] || die "CLUSTER_NODES: '$pair' is not NAME=ADDRESS"
        grep -qsF "${pair#*=} ${pair%%=*}" /etc/hosts || printf '%s %s\n' "${pair#*=}" "${pair%%=*}" >>/etc/hosts
    done
}
