#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safetensorfs {

/// Turns the write(2)s of one descriptor into lines, which end at newlines and nowhere else: quotes
/// do not carry a line on. Not thread-safe: the writes of one descriptor have an order.
///
/// A last line without a newline counts, as `printf 'load cpu h.*' > .control` writes it; but
/// programs write through buffers that they flush when full, in the middle of a line. So where a
/// write's length is a multiple of 512, which all their sizes are, or so long that the kernel has
/// cut it (over 1 MiB less a page), and it does not end in a newline, its tail waits for the next
/// write, or for the close if there is none.
class ScriptBuffer {
 public:
  /// Bytes that may wait for the rest of their line before the next write: a thousand names of the
  /// longest sort, or a hundred thousand of 160 bytes. What one write holds always fits.
  static constexpr std::size_t kMaxWaiting = 16u << 20;

  /// The lines that this write completes, in order, without their newlines. Throws Error (EINVAL)
  /// if the line that waits has become longer than kMaxWaiting; it is dropped then.
  std::vector<std::string> Write(std::string_view text);

  /// The line that waits, if one does; the descriptor has been closed.
  std::optional<std::string> Close();

 private:
  std::string waiting_;
  std::size_t request_total_ = 0;  // bytes of a write(2) so far, where the kernel passes on parts
};

}  // namespace safetensorfs
