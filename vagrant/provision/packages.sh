#!/usr/bin/env bash
# Install the Debian packages that a machine of the lab needs. What is there already is not asked for, so a machine that
# has all of them needs no network.
#
# usage: packages.sh pacemaker|rgmanager|client [build]
#
#   pacemaker   a node with Corosync, Pacemaker, crmsh and the resource agents
#   rgmanager   a node without a resource manager: the scripts of rgmanager/ are run by hand
#   client      a machine with clients only
#   build       also what pip needs to build Proton, for `install.sh CHECKOUT`
set -euo pipefail
# shellcheck source=vagrant/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    printf 'usage: packages.sh pacemaker|rgmanager|client [build]\n' >&2
    exit 2
}

wanted() {
    printf '%s\n' python3 python3-venv libsasl2-2 libsasl2-modules iproute2 procps
    case $1 in
        pacemaker)
            printf '%s\n' sasl2-bin corosync pacemaker pacemaker-cli-utils pacemaker-resource-agents resource-agents \
                crmsh libxml2-utils
            ;;
        rgmanager) printf '%s\n' sasl2-bin iputils-arping ;;
        client) ;;
        *) usage ;;
    esac
    case ${2:-} in
        build) printf '%s\n' gcc libc6-dev python3-dev pkg-config libssl-dev libsasl2-dev ;;
        "") ;;
        *) usage ;;
    esac
}

is_installed() { [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Debian starts what it installs. Corosync and Pacemaker would make a cluster of one, which the real one inherits.
install_without_starting() {
    local policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        # shellcheck disable=SC2064  # the path of now
        trap "rm -f '$policy'" EXIT
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null ||
        die "apt-get could not install $*: see its message above"
}

[[ $# -ge 1 && $# -le 2 ]] || usage
need_root
list=$(wanted "$@")
missing=()
for package in $list; do
    is_installed "$package" || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
command -v apt-get >/dev/null || die "these packages are missing, and this is no Debian to install them on: ${missing[*]}"
say "installing ${missing[*]}"
apt-get update -qq </dev/null || say "apt-get update failed; going on with the package lists that are here"
install_without_starting "${missing[@]}"
