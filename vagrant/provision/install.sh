#!/usr/bin/env bash
# Install qpid-ha into /opt/qpid-ha, and put its parts where the system looks for them.
#
# usage: install.sh SOURCE
#
# SOURCE is a directory of wheels (qpid-ha's and those of all that it needs: `pip wheel --wheel-dir DIRECTORY CHECKOUT`
# makes them), and then nothing is downloaded; or a checkout, and then pip gets and builds what it needs.
# Nothing is started or enabled. The same source a second time changes nothing.
set -euo pipefail
# shellcheck source=vagrant/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    printf 'usage: install.sh SOURCE   (a checkout, or a directory of wheels)\n' >&2
    exit 2
}

has_wheels() { compgen -G "$1/qpid_ha-*.whl" >/dev/null; }

# What the source holds, to see whether it is installed already.
fingerprint() {
    local -a files
    if has_wheels "$1"; then
        files=("$1"/*.whl)
    else
        mapfile -d '' -t files < <(cd "$1" && find "$PWD"/{agent,broker,client,config,contrib,docs,kernel,ocf,pipeline,rgmanager,systemd} \
            "$PWD"/{setup.cfg,setup.py,pyproject.toml} -type f -not -name '_kernel.*' -not -path '*/__pycache__/*' -not -path '*.egg-info/*' -print0 | sort -z)
    fi
    sha256sum "${files[@]}" | sha256sum
}

install_python_packages() {
    local source=$1
    [[ -x $prefix/bin/python ]] || python3 -m venv "$prefix" ||
        die "cannot make $prefix: is python3-venv installed? (packages.sh does that)"
    if has_wheels "$source"; then
        "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$source" \
            --force-reinstall qpid-ha || die "pip could not install qpid-ha from the wheels in $source"
    else
        "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "$source" ||
            die "pip could not install $source; without a network, give a directory of wheels"
    fi
    [[ -d $share ]] || die "the package brought no $share: is $source a complete build?"
}

# A Proton without Cyrus SASL looks the same until the brokers cannot log in at each other.
check_proton() {
    "$prefix/bin/python" -c 'import sys, proton; sys.exit(not proton.SASL.extended())' ||
        die "this Proton was built without SASL: install libsasl2-dev, build its wheel again (pip --no-cache-dir)"
}

link_commands() {
    local name
    for name in qpidd qpid-ha qpid-ha-agent; do
        ln -sfn "$prefix/bin/$name" "/usr/local/bin/$name"
    done
}

make_user() {
    if command -v systemd-sysusers >/dev/null; then
        install -D -m 644 "$share/systemd/qpid-ha.sysusers" /etc/sysusers.d/qpid-ha.conf
        systemd-sysusers /etc/sysusers.d/qpid-ha.conf
    elif ! getent passwd "$user" >/dev/null; then
        useradd --system --user-group --home-dir /var/lib/qpid-ha --shell /usr/sbin/nologin "$user"
    fi
    # The broker itself records generations in the CIB, which is open to this group.
    if getent group haclient >/dev/null; then usermod --append --groups haclient "$user"; fi
}

make_directories() {
    if command -v systemd-tmpfiles >/dev/null; then
        install -D -m 644 "$share/systemd/qpid-ha.tmpfiles" /etc/tmpfiles.d/qpid-ha.conf
        systemd-tmpfiles --create /etc/tmpfiles.d/qpid-ha.conf
    else
        install -d -m 0750 -g "$user" "$etc"
        install -d -m 0750 -o "$user" -g "$user" /var/lib/qpid-ha /var/log/qpid-ha
        install -d -m 0755 -o "$user" -g "$user" /run/qpid-ha
    fi
}

install_system_parts() {
    local script
    install -D -m 755 "$share/ocf/qpid-ha" /usr/lib/ocf/resource.d/qpid-ha/qpid-ha
    for script in "$share"/rgmanager/qpidd*; do
        install -D -m 755 -t /usr/local/lib/qpid-ha "$script"
    done
    install -D -m 644 "$share/systemd/qpid-ha.uidgid" /etc/corosync/uidgid.d/qpid-ha
    install -D -m 644 "$share/systemd/qpidd.service" /etc/systemd/system/qpidd.service
    if has_systemd; then systemctl daemon-reload; fi
}

[[ $# -eq 1 ]] || usage
need_root
[[ -d $1 ]] || die "$1 is no directory"
source=$(cd "$1" && pwd)
has_wheels "$source" || [[ -f $source/setup.cfg ]] || die "$source is neither a checkout nor has it a wheel of qpid-ha"

found=$(fingerprint "$source")
if [[ ! -f $prefix/installed || $(<"$prefix/installed") != "$found" ]]; then
    rm -f "$prefix/installed"
    install_python_packages "$source"
    check_proton
    printf '%s\n' "$found" >"$prefix/installed"
fi
link_commands
make_user
make_directories
install_system_parts
say "$("$prefix/bin/qpidd" --version) is in $prefix"
