"""What a running broker reads again when it is told to: the files of TLS, and its access control list."""

from __future__ import annotations

import contextlib
import logging

from qpid_ha_broker.access.audit import AuditChannel, AuditedAct, AuditResult, Caller
from qpid_ha_broker.server.control.access_rules import AccessRules
from qpid_ha_broker.server.control.administration import check_parameters
from qpid_ha_broker.server.control.audit_log import AuditLog
from qpid_ha_broker.server.control.control import REFUSED, ControlError, Method
from qpid_ha_broker.server.runtime.engines import Engines
from qpid_ha_config.errors import SettingsError

log = logging.getLogger("broker")


class ReloadedFiles:
    """The promise: a file that cannot be used changes nothing."""

    def __init__(self, engines: Engines, access: AccessRules, audit: AuditLog) -> None:
        self.engines = engines
        self.access = access
        self.audit = audit

    def methods(self) -> dict[str, Method]:
        """Of the control socket."""
        return {"reload-tls": self.reload_tls, **self.access.methods()}

    def reload_tls(self, params: dict[str, object]) -> object:
        """`Engines.reload_tls` for an operator. Raises ControlError when the files cannot be used."""
        check_parameters("reload-tls", params)
        certificate = self.engines.certificate
        try:
            listeners = self.engines.reload_tls()
        except SettingsError as error:
            log.error("the files of TLS were not read again, and the ones in use stay: %s", error)
            raise ControlError(REFUSED, str(error), {"key": error.key}) from None
        log.info("the files of TLS were read again, for %d listeners", listeners)
        return {"listeners": listeners, "certificate": None if certificate is None else str(certificate)}

    def reload(self) -> None:
        """SIGHUP: all of them, each for itself; the log says what cannot be used."""
        self.audit.reopen()
        for name, reload in (("reload-tls", self.reload_tls), ("reload-acl", self.access.reload)):
            result = AuditResult.REFUSED
            with contextlib.suppress(ControlError):
                reload({})
                result = AuditResult.DONE
            self.audit.record(AuditedAct(Caller(AuditChannel.SIGNAL), name, {}, result))
