#include "gpu/worker/service_thread.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "core/base/error.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kBuffer = 1 << 20;  // what the kernel asks for at most
constexpr std::chrono::seconds kPatience(1);

}  // namespace

ServiceThread::ServiceThread(GpuSession& session, Replies replies)
    : session_(session),
      replies_(std::move(replies)),
      thread_([this](std::stop_token stop) { Run(stop); }) {}

void ServiceThread::Push(Request request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
  }
  submitted_.notify_one();
}

void ServiceThread::Run(std::stop_token stop) {
  try {
    session_.context().MakeCurrent();
  } catch (const Error& error) {
    return replies_.died(error.what());
  }
  while (!stop.stop_requested()) {
    std::deque<Request> requests;
    {
      std::unique_lock lock(mutex_);
      submitted_.wait_for(lock, stop, kPatience, [this] { return !requests_.empty(); });
      requests.swap(requests_);
    }
    for (const Request& request : requests) {
      std::visit([this](const auto& one) { Serve(one); }, request);
    }
    if (!requests.empty()) continue;
    buffer_.reset();
    ReportMemory();
  }
}

void ServiceThread::Serve(const ReadBack& request) {
  Bytes reply = {request.id, 0};
  std::string_view bytes;
  try {
    bytes = Copy(request);
  } catch (const Error& error) {
    reply.error = error.code();
  }
  replies_.bytes(reply, bytes);
}

void ServiceThread::Serve(const FreeJob& request) {
  session_.slabs().Free(request.slabs);
  ReportMemory();
  Done done;
  done.id = request.id;
  replies_.freed(done);
}

std::string_view ServiceThread::Copy(const ReadBack& request) {
  const auto slab = session_.slabs().Find(request.slab);
  if (!slab) throw Error(ESTALE, "the slab is gone");
  const std::size_t size = std::min<std::size_t>(request.nbytes, kBuffer);
  if (!stream_) stream_ = std::make_unique<Stream>(session_.driver());
  if (!buffer_) buffer_ = std::make_unique<PinnedBuffer>(session_.driver(), kBuffer, -1);
  stream_->CopyToHost(buffer_->data(), slab->address() + request.offset, size);
  stream_->Synchronize();
  return {reinterpret_cast<const char*>(buffer_->data()), size};
}

void ServiceThread::ReportMemory() {
  try {
    const MemoryNow now = session_.Memory();
    if (now.free_nbytes == reported_.free_nbytes) return;
    reported_ = now;
    replies_.memory(now);
  } catch (const Error& error) {
    replies_.died(error.what());
  }
}

}  // namespace safetensorfs
