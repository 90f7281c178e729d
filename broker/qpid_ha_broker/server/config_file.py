"""The configuration file: YAML in, `BrokerSettings` out, and one line that names file and key when it is wrong.

Flags beat the file, the file beats the defaults. A section may be written nested (`tls: {key: K}`) or dotted
(`tls.key: K`). A configuration is read before anything is opened, so a mistake never costs a running broker.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

import yaml

from qpid_ha_broker.server.settings import (
    BrokerSettings,
    SettingsError,
    canonical_key,
    known_keys,
    secret_keys,
    unknown_key,
)

DEFAULT_CONFIG_FILE = Path("/etc/qpid-ha/qpid-ha.yaml")
COMMAND_LINE = "command line"
_LARGEST_FILE_BYTES = 1024 * 1024
_MAPPINGS = frozenset({"auto-create-arguments", "replication-rules", "ha.replication-rules"})
"""Keys whose value is a mapping of its own, not a section."""


class ConfigError(SettingsError):
    """A configuration that cannot be used; `str()` is the one line that the operator sees."""

    def __init__(self, source: Path | str, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.source = source

    def __str__(self) -> str:
        return f"{self.source}: {super().__str__()}"


def load_settings(
    config_file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> BrokerSettings:
    """The settings from flags (by dotted key), the file and the defaults. Raises ConfigError.

    `config_file` is what `--config` names, else `QPID_HA_CONFIG`, else /etc/qpid-ha/qpid-ha.yaml if that exists.
    """
    flags = {canonical_key(key): value for key, value in (flags or {}).items()}
    for key in secret_keys():
        if key in flags:
            problem = "every user of this machine can read a command line: put it into a file of mode 0600"
            raise ConfigError(COMMAND_LINE, key, f"{problem} and set {key}-file")
    _read_alone(flags, COMMAND_LINE)
    path = _find_file(config_file, environment)
    values = {} if path is None else read_config_file(path)
    source = COMMAND_LINE if path is None else path
    try:
        settings = BrokerSettings.from_values({**values, **flags})
        check_files(settings)
    except SettingsError as error:
        raise ConfigError(COMMAND_LINE if error.key in flags else source, error.key, error.problem) from None
    return settings


def read_config_file(path: Path) -> dict[str, object]:
    """{dotted key: value} of the file, each key known and each value of its kind. Raises ConfigError."""
    document = _parse_yaml(path, _read_text(path))
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(path, "", "expected keys and values such as `name: node1`")
    values: dict[str, object] = {}
    for written, value in _flatten(document, ""):
        key = canonical_key(written)
        if key in values:
            raise ConfigError(path, key, "it is there twice; take one out")
        values[key] = value
    for key in secret_keys():
        if key in values:
            try:
                check_private(key, path)
            except SettingsError as error:
                raise ConfigError(path, key, error.problem) from None
    _read_alone(values, path)
    return values


def check_files(settings: BrokerSettings) -> None:
    """Raise SettingsError for a file that cannot be used, or may be used by others: of TLS, logins, the coordinator."""
    ha, tls = settings.ha, settings.tls
    ha.read_password()
    for key, file in (
        ("tls.certificate", tls.certificate),
        ("tls.key", tls.key),
        ("tls.ca", tls.ca),
        ("sasl.users-db", settings.sasl.users_db),
    ):
        if file is not None:
            _check_readable(key, file)
    for key, file in (
        ("tls.key", tls.key),
        ("sasl.users-db", settings.sasl.users_db),
        ("ha.password-file", ha.password_file),
    ):
        if file is not None:
            check_private(key, file)
    if ha.coordinator_path is not None:
        check_unshared("ha.coordinator", ha.coordinator_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if tls.certificate is not None and tls.key is not None:
        _check_certificate(context, tls.certificate, tls.key)
    if tls.ciphers is not None:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError:
            raise SettingsError(
                "tls.ciphers", f"OpenSSL knows none of {tls.ciphers!r}; see `openssl ciphers`"
            ) from None
    if tls.ca is not None:
        try:
            context.load_verify_locations(tls.ca)
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError("tls.ca", f"{tls.ca} holds no certificate in PEM form ({_reason(error)})") from None


def _check_readable(key: str, file: Path) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise SettingsError(key, f"cannot read {file}: {error.strerror}") from None


def check_private(key: str, file: Path) -> None:
    """Raise SettingsError for a secret that every user of this machine may read or replace; its group may."""
    with contextlib.suppress(OSError):
        found = file.stat()
        if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IRWXO:
            raise SettingsError(key, f"{file} is a secret and open to all users: chmod o-rwx {file}")


def check_unshared(key: str, directory: Path) -> None:
    """Raise SettingsError for a directory in which every user of this machine may replace what the broker relies on."""
    with contextlib.suppress(OSError):
        if directory.stat().st_mode & stat.S_IWOTH:
            raise SettingsError(key, f"every user may change what is in {directory}: chmod o-w {directory}")


def _check_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """A passphrase is answered with nothing: OpenSSL would ask for it on the terminal, and wait there."""
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        problem = f"{certificate} and {key} are not a certificate in PEM form and its key without a passphrase"
        raise SettingsError("tls.certificate", f"{problem} ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def _find_file(config_file: Path | None, environment: Mapping[str, str]) -> Path | None:
    if config_file is not None:
        return config_file
    if named := environment.get("QPID_HA_CONFIG"):
        return Path(named)
    return DEFAULT_CONFIG_FILE if DEFAULT_CONFIG_FILE.exists() else None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, "", f"cannot read it: {error.strerror}") from None
    if len(content) > _LARGEST_FILE_BYTES:
        raise ConfigError(path, "", "it is over 1 MiB, which no configuration of a broker is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}", "", "it is not UTF-8 text") from None


class _StrictLoader(yaml.SafeLoader):
    """YAML without what surprises in a configuration: keys that are there twice, and references.

    A few lines of references can stand for gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(
                None, None, "references (*name) are not allowed here", self.get_mark()
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key_node, _value in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    problem = f"the key {key_node.value!r} is there twice; take one out"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _parse_yaml(path: Path, text: str) -> object:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(path)
        raise ConfigError(place, "", error.problem or error.context or "it is not YAML") from None
    except yaml.reader.ReaderError as error:
        line, column = _line_and_column(text, error.position)
        problem = f"the character U+{ord(text[error.position]):04X} is not allowed"
        raise ConfigError(f"{path}:{line}:{column}", "", problem) from None
    except ValueError as error:  # 2026-99-99 looks like a date to YAML
        raise ConfigError(path, "", f"a value looks like a date or a number but is none ({error})") from None
    except RecursionError:
        raise ConfigError(path, "", "it is nested too deeply") from None


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def _flatten(section: Mapping[object, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Dotted keys and values; an empty section is none (all its lines may be commented out)."""
    sections = {key.rpartition(".")[0] for key in known_keys()} - {""}
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in _MAPPINGS:
            yield from _flatten(value, f"{key}.") if value or key in sections else iter([(key, value)])
        elif value is not None or key not in sections:
            yield key, value


def _read_alone(values: Mapping[str, object], source: Path | str) -> None:
    """Blame the source that a wrong key or value came from, before sources are merged."""
    known = known_keys()
    for key in values:
        if key not in known:
            error = unknown_key(key, known)
            raise ConfigError(source, error.key, error.problem)
    try:
        BrokerSettings.read_values(values)
    except SettingsError as error:
        raise ConfigError(source, error.key, error.problem) from None
