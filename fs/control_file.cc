#include "fs/control_file.h"

#include "core/base/process.h"

namespace safetensorfs {
namespace {

// A write or flush that the kernel waits for.
class FuseControlRequest : public ControlRequest {
 public:
  // `reply` answers the request, once, with a positive errno or 0.
  FuseControlRequest(fuse_req_t request, std::function<void(int error)> reply)
      : request_(request), reply_(std::move(reply)), thread_(fuse_req_ctx(request)->pid) {}

  void Watch(std::function<void()> interrupted) override {
    interrupted_ = std::move(interrupted);
    fuse_req_interrupt_func(
        request_,
        [](fuse_req_t, void* self) { static_cast<FuseControlRequest*>(self)->interrupted_(); },
        this);
  }

  bool WantsToEnd() override { return safetensorfs::WantsToEnd(thread_); }

  void Reply(int error) override {
    // After this no callback runs any more, so this object may go.
    fuse_req_interrupt_func(request_, nullptr, nullptr);
    reply_(error);
  }

  bool IsKilled() override { return IsDyingOfSignal(thread_); }

  pid_t pid() const override { return ProcessOf(thread_); }

 private:
  fuse_req_t request_;
  std::function<void(int)> reply_;
  pid_t thread_;
  std::function<void()> interrupted_;
};

// What is left when nobody waits any more.
class NobodysRequest : public ControlRequest {
 public:
  void Watch(std::function<void()>) override {}
  bool WantsToEnd() override { return false; }
  bool IsKilled() override { return false; }
  void Reply(int) override {}
  pid_t pid() const override { return 0; }
};

}  // namespace

void ControlHandle::Write(fuse_req_t request, std::string text, std::uint64_t offset) {
  const std::size_t size = text.size();
  {
    const std::lock_guard lock(mutex_);
    writer_ = ProcessOf(fuse_req_ctx(request)->pid);
  }
  auto reply = [this, request, offset, size](int error) {
    SetPosition(offset + (error == 0 ? size : 0));
    if (error == 0) {
      fuse_reply_write(request, size);
    } else {
      fuse_reply_err(request, error);
    }
  };
  service_.Write(session_, std::move(text),
                 std::make_unique<FuseControlRequest>(request, std::move(reply)));
}

void ControlHandle::Flush(fuse_req_t request) {
  const pid_t process = ProcessOf(fuse_req_ctx(request)->pid);
  bool is_writer;
  {
    const std::lock_guard lock(mutex_);
    is_writer = process == writer_;
  }
  if (!is_writer) {
    fuse_reply_err(request, 0);
    return;
  }
  service_.Close(session_, std::make_unique<FuseControlRequest>(
                               request, [request](int error) { fuse_reply_err(request, error); }));
}

void ControlHandle::Release() { service_.Close(session_, std::make_unique<NobodysRequest>()); }

void ControlHandle::SetPosition(std::uint64_t position) {
  const std::lock_guard lock(mutex_);
  written_to_ = position;
  next_from_start_ = 0;
}

std::string ControlHandle::Read(std::uint64_t offset, std::size_t size) {
  const std::lock_guard lock(mutex_);
  const bool is_from_start =
      offset < written_to_ || (next_from_start_ != 0 && offset == next_from_start_);
  std::string part = session_->report(is_from_start ? offset : offset - written_to_, size);
  next_from_start_ = is_from_start ? offset + part.size() : 0;
  return part;
}

std::uint64_t ControlHandles::Add(std::shared_ptr<ControlHandle> handle) {
  const std::lock_guard lock(mutex_);
  handles_.emplace(next_, std::move(handle));
  return next_++;
}

std::shared_ptr<ControlHandle> ControlHandles::Find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto at = handles_.find(number);
  return at == handles_.end() ? nullptr : at->second;
}

void ControlHandles::Remove(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  handles_.erase(number);
}

}  // namespace safetensorfs
