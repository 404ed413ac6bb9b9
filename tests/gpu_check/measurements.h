#pragma once

#include <cstddef>
#include <string>

#include "gpu/driver/context.h"

namespace safetensorfs {

/// A GPU used by this process itself.
struct Gpu {
  explicit Gpu(int ordinal) : driver(watch), context((driver.init(0), driver), ordinal) {}

  CallWatch watch;
  Driver driver;
  Context context;
};

// Each prints lines of JSON and throws Error. Times are in seconds.

/// Copies from host memory, {"kind", "streams", "slot_nbytes", "bytes_per_second"}, each for this
/// long; `kind` is "registered", "allocated" or "pageable", or "to host" for the other direction.
/// Then what pinning costs: {"kind", "pin_nbytes", "pin_seconds"}.
void MeasureCopies(int ordinal, double seconds);

/// Reads a file with this many threads, as a load does but without copies: {"bytes_per_second"}.
void MeasureReads(const std::string& path, std::size_t threads);

/// Holds a context: {"start_seconds", "free_nbytes", "total_nbytes"}. Then, for each line of stdin,
/// {"free_nbytes", "total_nbytes"}: after "take N" with N bytes more allocated, after "give" with
/// none, else as it is.
void HoldContext(int ordinal);

/// Allocates and exports slabs: {"allocate_seconds", "export_seconds", "handles"}; waits for a line
/// of stdin and frees them: {"free_seconds"}.
void HoldSlabs(int ordinal, std::size_t nbytes, std::size_t count);

/// Opens and closes slabs of another process, whose handles are the lines of stdin:
/// {"open_seconds", "close_seconds"}.
void OpenSlabs(int ordinal);

}  // namespace safetensorfs
