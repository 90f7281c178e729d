#!/usr/bin/env bash
# Make a machine with clients know the cluster. (install.sh has brought Proton: /opt/qpid-ha/bin/python has it.)
#
# Environment:
#   CLUSTER_NODES   as for cluster.sh
#   CLIENT_URL      where clients find the cluster, such as amqp://10.77.0.50:5672
set -euo pipefail
# shellcheck source=vagrant/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

need_root
need CLUSTER_NODES CLIENT_URL
[[ -x $prefix/bin/python ]] || die "there is no $prefix: run install.sh first"
know_the_nodes "$CLUSTER_NODES"
install -d -m 0755 /etc/profile.d
put_file /etc/profile.d/qpid-ha.sh 0644 root <<PROFILE || true
# Written by ${0##*/}: what clients started by hand connect to.
export QPID_HA_URL='$CLIENT_URL'
PROFILE
