#include "core/control/control_script.h"

#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kBufferUnit = 512;

// FUSE passes a long write on in requests of 256 pages, of which the first may begin anywhere.
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMinLongRequest = 256 * kPage - kPage;

}  // namespace

std::vector<std::string> ScriptBuffer::Write(std::string_view text) {
  request_total_ += text.size();
  const bool is_long = text.size() > kMinLongRequest;
  const bool cut = is_long || request_total_ % kBufferUnit == 0;
  if (!is_long) request_total_ = 0;
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    const std::string_view piece = text.substr(0, newline);
    if (!waiting_.empty() && waiting_.size() + piece.size() > kMaxWaiting) {
      waiting_ = {};
      throw Error(EINVAL, "a line of more than " + Grouped(kMaxWaiting) +
                              " bytes, in several writes: split it into several commands");
    }
    waiting_ += piece;
    if (newline == text.npos && cut) break;
    lines.push_back(std::exchange(waiting_, {}));
    text.remove_prefix(newline == text.npos ? text.size() : newline + 1);
  }
  return lines;
}

std::optional<std::string> ScriptBuffer::Close() {
  if (waiting_.empty()) return std::nullopt;
  return std::exchange(waiting_, {});
}

}  // namespace safetensorfs
