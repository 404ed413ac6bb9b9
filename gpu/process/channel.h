#pragma once

#include <chrono>
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

  /// What a side puts up with of the other.
  struct Limits {
    std::uint64_t max_body = std::uint64_t{1} << 40;  // bytes of a frame
    std::chrono::seconds send{0};                     // that a send may wait; 0: for ever
  };

  Channel(UniqueFd socket, Limits limits);

  int fd() const { return socket_.get(); }

  /// Sends a frame, of which `head` and `tail` are the body. The descriptors are copied to the
  /// other side. Throws Error: EPIPE where the other side is gone, ETIMEDOUT where it takes
  /// nothing.
  void Send(std::uint32_t kind, std::string_view head, std::string_view tail = {},
            std::span<const int> fds = {});
  /// The next frame, or nothing once the other side is gone. Throws Error (EPROTO) where it says
  /// what is no frame: nothing sensible can follow.
  std::optional<Frame> Receive();

  /// Makes the other side, and our own Receive, see an end.
  void ShutDown();

 private:
  std::mutex sending_;
  UniqueFd socket_;
  const Limits limits_;
};

}  // namespace safetensorfs
