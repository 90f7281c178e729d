#!/usr/bin/env bash
# Configure Corosync on this node, and start the cluster where systemd can.
#
# Environment:
#   CLUSTER_NODES   all nodes, the same on each: "node1=10.77.0.11 node2=10.77.0.12 node3=10.77.0.13"
#   TOKEN           milliseconds without a sign of life after which a node is suspected (default 1000); a dead one is
#                   replaced after about 2.2 times that
#   KEYS            the directory that keys.sh made (default /etc/qpid-ha-keys)
set -euo pipefail
# shellcheck source=vagrant/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

nodes() {
    local pair id=0
    for pair in $CLUSTER_NODES; do
        id=$((id + 1))
        printf '    node {\n        ring0_addr: %s\n        name: %s\n        nodeid: %d\n    }\n' \
            "${pair#*=}" "${pair%%=*}" "$id"
    done
}

corosync_conf() {
    local -a pairs
    read -ra pairs <<<"$CLUSTER_NODES"
    cat <<CONF
# Written by ${0##*/}; the same on each node.
totem {
    version: 2
    cluster_name: qpid-ha
    transport: knet
    token: ${TOKEN:-1000}
    # As long with many nodes as with few.
    token_coefficient: 0
    crypto_cipher: aes256
    crypto_hash: sha256
}
nodelist {
$(nodes)
}
quorum {
    provider: corosync_votequorum
    two_node: $((${#pairs[@]} == 2))
}
logging {
    to_logfile: yes
    logfile: /var/log/corosync/corosync.log
    to_syslog: no
    timestamp: hires
}
CONF
}

start_cluster() {
    if [[ $1 == changed ]]; then
        systemctl stop pacemaker corosync
    fi
    systemctl enable --quiet corosync pacemaker
    systemctl start corosync || die "corosync did not start: journalctl -u corosync"
    systemctl start pacemaker || die "pacemaker did not start: journalctl -u pacemaker"
}

need CLUSTER_NODES
[[ ${TOKEN:-1000} =~ ^[1-9][0-9]*$ ]] || die "TOKEN: '$TOKEN' is not a number of milliseconds"
[[ -d /etc/corosync ]] || die "corosync is not installed (packages.sh does that)"
[[ -s $keys/corosync.authkey ]] || die "$keys/corosync.authkey is missing: keys.sh makes it"
need_root

know_the_nodes "$CLUSTER_NODES"
state=same
if put_file /etc/corosync/authkey 0400 root <"$keys/corosync.authkey"; then state=changed; fi
if corosync_conf | put_file /etc/corosync/corosync.conf 0644 root; then state=changed; fi
if has_systemd; then
    start_cluster "$state"
elif [[ $state == changed ]]; then
    say "wrote /etc/corosync/corosync.conf; without systemd, starting corosync and pacemakerd is up to you"
fi
