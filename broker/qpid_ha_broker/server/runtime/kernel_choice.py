"""Whether the compiled kernel is used: what the setting `kernel` wants, and what was built."""

from __future__ import annotations

from qpid_ha_broker.amqp.wire.batches import fits
from qpid_ha_config.errors import SettingsError
from qpid_ha_kernel import Kernel, NoKernel, load


def choose_kernel(wanted: str) -> Kernel | NoKernel:
    """For the setting's `auto`, `off` or `required`. Raises SettingsError where it is required and is not there."""
    if wanted == "off":
        return NoKernel("the setting kernel is off")
    kernel = load()
    if isinstance(kernel, Kernel) and not fits(kernel):
        kernel = NoKernel("it was built for another release of Proton; install qpid-ha again")
    if wanted == "required" and isinstance(kernel, NoKernel):
        raise SettingsError("kernel", f"it is required, but {kernel.reason}; or set it to auto")
    return kernel


def describe(kernel: Kernel | NoKernel) -> str:
    """For logs and `qpidd --check`."""
    if isinstance(kernel, NoKernel):
        return f"batches of messages are handled in Python: {kernel.reason}"
    return "batches of messages are handled by the compiled kernel"
