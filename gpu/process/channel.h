#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"

namespace safetensorfs {

/// A message between the daemon and a process that uses the GPU: a kind, bytes and descriptors.
struct Frame {
  std::uint32_t kind = 0;
  std::string body;
  std::vector<UniqueFd> fds;
};

/// One end of a socket pair that carries frames. Any thread may send; one receives.
class Channel {
 public:
  /// Descriptors that one frame may carry.
  static constexpr std::size_t kMaxFds = 128;
  /// Bytes that one may have: plans of millions of tensors, not what a broken sender announces.
  static constexpr std::uint64_t kMaxBody = std::uint64_t{1} << 30;

  explicit Channel(UniqueFd socket);

  int fd() const { return socket_.get(); }

  /// Sends a frame, of which `head` and `tail` are the body. The descriptors are copied to the
  /// other side. Throws Error (EPIPE) where the other side is gone or takes nothing for seconds.
  void Send(std::uint32_t kind, std::string_view head, std::string_view tail = {},
            std::span<const int> fds = {});
  /// The next frame, or nothing once the other side is gone or says what is no frame.
  std::optional<Frame> Receive();

  /// Makes the other side, and our own Receive, see an end.
  void ShutDown();

 private:
  std::mutex sending_;
  UniqueFd socket_;
};

}  // namespace safetensorfs
