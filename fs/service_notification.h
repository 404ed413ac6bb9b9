#pragma once

namespace safetensorfs {

/// Tells a service manager that waits at NOTIFY_SOCKET that this service is ready, as sd_notify(3)
/// describes. Does nothing without one.
void NotifyReady();

}  // namespace safetensorfs
