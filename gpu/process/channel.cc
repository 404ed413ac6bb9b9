#include "gpu/process/channel.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/text.h"

namespace safetensorfs {
namespace {

struct FrameHeader {
  std::uint32_t kind;
  std::uint32_t fd_count;
  std::uint64_t size;
};

union Control {
  cmsghdr align;
  std::array<char, CMSG_SPACE(sizeof(int) * Channel::kMaxFds)> bytes;
};

[[noreturn]] void ThrowUnsent(int code) {
  if (code == EAGAIN) throw Error(ETIMEDOUT, "the process that uses the GPU takes nothing");
  throw Error(EPIPE, "the process that uses the GPU is gone");
}

void AttachFds(msghdr& message, Control& control, std::span<const int> fds) {
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

void TakeFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
}

// Fills `out`; false where the other side is gone. Descriptors come with the first byte.
bool ReceiveAll(int socket, void* out, std::size_t size, std::vector<UniqueFd>* fds) {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    iovec part = {at, size};
    Control control;
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fds != nullptr) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = control.bytes.size();
    }
    const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    if (fds != nullptr) TakeFds(message, *fds);
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

Channel::Channel(UniqueFd socket, Limits limits) : socket_(std::move(socket)), limits_(limits) {
  const timeval timeout = {limits_.send.count(), 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}

void Channel::Send(std::uint32_t kind, std::string_view head, std::string_view tail,
                   std::span<const int> fds) {
  FrameHeader header = {kind, static_cast<std::uint32_t>(fds.size()), head.size() + tail.size()};
  std::array<iovec, 3> parts = {{{&header, sizeof header},
                                 {const_cast<char*>(head.data()), head.size()},
                                 {const_cast<char*>(tail.data()), tail.size()}}};
  Control control;
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (!fds.empty()) AttachFds(message, control, fds);

  const std::lock_guard lock(sending_);
  while (message.msg_iovlen > 0) {
    ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int code = errno;
      // Half a frame may be under way: nothing sensible can follow it.
      ShutDown();
      ThrowUnsent(code);
    }
    message.msg_control = nullptr;
    message.msg_controllen = 0;
    while (message.msg_iovlen > 0 && static_cast<std::size_t>(n) >= message.msg_iov->iov_len) {
      n -= static_cast<ssize_t>(message.msg_iov->iov_len);
      ++message.msg_iov;
      --message.msg_iovlen;
    }
    if (message.msg_iovlen > 0) {
      message.msg_iov->iov_base = static_cast<char*>(message.msg_iov->iov_base) + n;
      message.msg_iov->iov_len -= static_cast<std::size_t>(n);
    }
  }
}

std::optional<Frame> Channel::Receive() {
  Frame frame;
  FrameHeader header;
  if (!ReceiveAll(socket_.get(), &header, sizeof header, &frame.fds)) return std::nullopt;
  frame.kind = header.kind;
  // The descriptors that a process may have are used up: they were dropped on the way.
  if (frame.fds.size() != header.fd_count) throw Error(EPROTO, "descriptors were lost");
  if (header.size > limits_.max_body) {
    throw Error(EPROTO, "a frame of " + Grouped(header.size) + " bytes");
  }
  frame.body.resize(header.size);
  if (!ReceiveAll(socket_.get(), frame.body.data(), frame.body.size(), nullptr)) {
    return std::nullopt;
  }
  return frame;
}

void Channel::ShutDown() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace safetensorfs
