#include "gpu/worker/read_back.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "core/base/error.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kBuffer = 1 << 20;  // what the kernel asks for at most
constexpr std::chrono::seconds kPatience(1);

}  // namespace

ReadBackThread::ReadBackThread(const GpuSession& session, BytesReply reply, MemoryReport report)
    : session_(session),
      reply_(std::move(reply)),
      report_(std::move(report)),
      thread_([this](std::stop_token stop) { Run(stop); }) {}

void ReadBackThread::Submit(const ReadBack& request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  submitted_.notify_one();
}

void ReadBackThread::Run(std::stop_token stop) {
  session_.context().MakeCurrent();
  while (!stop.stop_requested()) {
    std::deque<ReadBack> requests;
    {
      std::unique_lock lock(mutex_);
      submitted_.wait_for(lock, stop, kPatience, [this] { return !requests_.empty(); });
      requests.swap(requests_);
    }
    for (const ReadBack& request : requests) Serve(request);
    if (!requests.empty()) continue;
    buffer_.reset();
    ReportMemory();
  }
}

void ReadBackThread::Serve(const ReadBack& request) {
  Bytes reply = {request.id, 0};
  std::string_view bytes;
  try {
    bytes = Copy(request);
  } catch (const Error& error) {
    reply.error = error.code();
  }
  reply_(reply, bytes);
}

std::string_view ReadBackThread::Copy(const ReadBack& request) {
  const auto slab = session_.slabs().Find(request.slab);
  if (!slab) throw Error(ESTALE, "the slab is gone");
  const std::size_t size = std::min<std::size_t>(request.nbytes, kBuffer);
  if (!stream_) stream_ = std::make_unique<Stream>(session_.driver());
  if (!buffer_) buffer_ = std::make_unique<PinnedBuffer>(session_.driver(), kBuffer, -1);
  stream_->CopyToHost(buffer_->data(), slab->address() + request.offset, size);
  stream_->Synchronize();
  return {reinterpret_cast<const char*>(buffer_->data()), size};
}

void ReadBackThread::ReportMemory() {
  try {
    const MemoryNow now = session_.Memory();
    if (now.free_nbytes == reported_.free_nbytes) return;
    reported_ = now;
    report_(now);
  } catch (const Error&) {
    // A job will meet it too, and says so.
  }
}

}  // namespace safetensorfs
