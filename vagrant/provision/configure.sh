#!/usr/bin/env bash
# Write the configuration of this node's broker, and what it needs to log in at the others.
#
# Environment:
#   NODE_NAME       the broker's name; with Pacemaker, the node's name there
#   BROKERS_URL     where the brokers reach each other, such as amqp://10.77.0.11:5672,10.77.0.12:5672
#   PUBLIC_URL      where clients find the cluster: the virtual IP (left out: the brokers' own addresses)
#   COORDINATOR     pacemaker (the default), file:/DIRECTORY or none
#   LISTEN          default amqp://0.0.0.0:5672: every address, the virtual one too, which comes and goes
#   NODE_ADDRESS    if given, has to be in BROKERS_URL: a typing error there would keep this node out of the cluster
#   MIN_IN_SYNC, BACKUP_TIMEOUT    as in the configuration, when the defaults (1, 10s) do not do
#   ALLOW_ANONYMOUS default true: clients need no password, as befits a lab; false lets nobody in but the brokers
#   KEYS            the directory that keys.sh made (default /etc/qpid-ha-keys)
set -euo pipefail
# shellcheck source=vagrant/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly replicator=replicator

# Where a broker of this machine looks for its users: saslpasswd2 by itself leaves the domain out.
realm() {
    local name full
    name=$(hostname)
    full=$(hostname --fqdn 2>/dev/null || true)
    [[ $name == *.* || $full != *.* ]] || name=$full
    printf '%s\n' "${name,,}"
}

# Whoever may come in as the replicator may read and change everything: root's and the broker's business.
write_secrets() {
    local new
    put_file "$etc/replicator.password" 0640 "$user" <"$keys/replicator.password" || true
    new=$(mktemp -d "$etc/sasl.XXXXXX")
    saslpasswd2 -p -c -u "$(realm)" -f "$new/users.sasldb" "$replicator" <"$keys/replicator.password" ||
        die "saslpasswd2 could not make a user"
    chown "root:$user" "$new/users.sasldb"
    chmod 0640 "$new/users.sasldb"
    mv -f "$new/users.sasldb" "$etc/users.sasldb"
    rmdir "$new"
}

configuration() {
    cat <<YAML
# Written by ${0##*/}.
name: $NODE_NAME
data-dir: /var/lib/qpid-ha
listen: [$(quoted "${LISTEN:-amqp://0.0.0.0:5672}")]
control-socket: /run/qpid-ha/$NODE_NAME.sock
ha:
  cluster: true
  brokers-url: $BROKERS_URL
YAML
    [[ -z ${PUBLIC_URL:-} ]] || printf '  public-url: %s\n' "$PUBLIC_URL"
    [[ -z ${MIN_IN_SYNC:-} ]] || printf '  min-in-sync: %s\n' "$MIN_IN_SYNC"
    [[ -z ${BACKUP_TIMEOUT:-} ]] || printf '  backup-timeout: %s\n' "$BACKUP_TIMEOUT"
    cat <<YAML
  coordinator: ${COORDINATOR:-pacemaker}
  # The brokers log in at each other as this user, with a mechanism that does not show the password.
  username: $replicator
  password-file: $etc/replicator.password
  mechanism: SCRAM-SHA-256
sasl:
  users-db: $etc/users.sasldb
  allow-anonymous: ${ALLOW_ANONYMOUS:-true}
# Who can reach the broker may use it: a lab. See docs/security.md before you do so elsewhere.
acl:  # clients use queues and exchanges, and administer nothing
  rules: [allow $replicator administer, allow all all]
YAML
}

# a,b -> "a", "b": an IPv6 address has brackets, which mean something in YAML.
quoted() { printf '"%s"' "${1//,/\", \"}"; }

need NODE_NAME BROKERS_URL
[[ -z ${NODE_ADDRESS:-} || "$BROKERS_URL," == *[/,]"$NODE_ADDRESS"[:,]* ]] ||
    die "BROKERS_URL ($BROKERS_URL) does not name this node's address $NODE_ADDRESS"
[[ -s $keys/replicator.password ]] || die "$keys/replicator.password is missing: keys.sh makes it"
need_root
getent group "$user" >/dev/null || die "there is no group $user: run install.sh first"
command -v saslpasswd2 >/dev/null || die "saslpasswd2 is missing: install sasl2-bin (packages.sh does that)"

install -d -m 0750 -g "$user" "$etc"
write_secrets
if configuration | put_file "$etc/qpid-ha.yaml" 0640 "$user"; then
    say "wrote $etc/qpid-ha.yaml; a broker that runs takes it at its next start"
fi
