#!/usr/bin/env bash
# Load configurations of docs/pacemaker.md into the cluster. Run it on one node.
#
# usage: resources.sh TITLE...     such as: resources.sh properties virtual-ip
#
# A TITLE is that of a block of the page that begins with ```crmsh title="TITLE": what the page shows is what is run.
# All blocks are loaded at once. A second time changes nothing.
#
# Environment:
#   VIRTUAL_IP    address and prefix length, in place of the page's 10.0.0.100/24
#   NODES         how many nodes have to be online before (default 3)
#   WAIT          how many seconds to wait for them (default 120)
#   DOCS          the page, if it is neither in this checkout nor installed
set -euo pipefail
# shellcheck source=vagrant/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly example=10.0.0.100/24
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

find_docs() {
    local candidate
    for candidate in ${DOCS:-"$here/../../docs/pacemaker.md" "$share/docs/pacemaker.md"}; do
        [[ ! -f $candidate ]] || {
            printf '%s\n' "$candidate"
            return
        }
    done
    die "pacemaker.md is not found; say in DOCS where it is"
}

block() {
    awk -v opening="\`\`\`crmsh title=\"$2\"" '
        $0 == opening { inside = found = 1; next }
        /^```/        { inside = 0 }
        inside
        END           { exit !found }' "$1"
}

with_our_address() {
    local wanted=${VIRTUAL_IP:-$example}
    sed -e "s#${example//./\\.}#$wanted#g" -e "s#ip=10\\.0\\.0\\.100#ip=${wanted%/*}#g" \
        -e "s#cidr_netmask=24#cidr_netmask=${wanted#*/}#g"
}

is_ready() {
    local seen
    seen=$(crm_mon --one-shot --output-as=xml 2>/dev/null) || return 1
    [[ $seen == *'with_quorum="true"'* ]] &&
        [[ $(grep -c '<node name=.* online="true".* pending="false"' <<<"$seen") -ge ${NODES:-3} ]]
}

await_cluster() {
    local limit=$((SECONDS + ${WAIT:-120}))
    until is_ready; do
        [[ $SECONDS -lt $limit ]] ||
            die "after ${WAIT:-120} s there are not ${NODES:-3} nodes online with quorum: see crm_mon -1"
        sleep 0.2
    done
}

[[ $# -ge 1 ]] || {
    printf 'usage: resources.sh TITLE...\n' >&2
    exit 2
}
[[ ${VIRTUAL_IP:-$example} == ?*/?* ]] || die "VIRTUAL_IP: '$VIRTUAL_IP' is not ADDRESS/PREFIX"
docs=$(find_docs)
configuration=$(mktemp)
trap 'rm -f "$configuration"' EXIT
for title in "$@"; do
    block "$docs" "$title" >>"$configuration" || die "$docs has no block \`\`\`crmsh title=\"$title\""
done
with_our_address <"$configuration" >"$configuration.ours"
mv "$configuration.ours" "$configuration"
await_cluster
crm configure load update "$configuration" || die "crm did not take the configuration: see its message above"
