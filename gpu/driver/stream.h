#pragma once

#include "gpu/driver/driver.h"

namespace safetensorfs {

/// Copies that run one after the other. Neither waits for the default stream nor makes it wait.
class Stream {
 public:
  explicit Stream(const Driver& driver) : driver_(driver) {
    driver.stream_create(&stream_, CU_STREAM_NON_BLOCKING);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { driver_.stream_destroy.Try(stream_); }

  CUstream get() const { return stream_; }

  void CopyToDevice(CUdeviceptr to, const void* from, std::size_t nbytes) const {
    driver_.memcpy_to_device_async(to, from, nbytes, stream_);
  }
  void CopyToHost(void* to, CUdeviceptr from, std::size_t nbytes) const {
    driver_.memcpy_to_host_async(to, from, nbytes, stream_);
  }
  /// Returns when all that was issued has run.
  void Synchronize() const { driver_.stream_synchronize(stream_); }
  /// The same where nothing can be done about a failure.
  void TrySynchronize() const { driver_.stream_synchronize.Try(stream_); }

 private:
  const Driver& driver_;
  CUstream stream_;
};

/// A point in a stream. One that was never recorded has been reached.
class Event {
 public:
  explicit Event(const Driver& driver) : driver_(driver) {
    driver.event_create(&event_, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { driver_.event_destroy.Try(event_); }

  void Record(const Stream& stream) const { driver_.event_record(event_, stream.get()); }
  /// Whether everything before it has run. Throws DriverError.
  bool IsReached() const {
    const CUresult result = driver_.event_query.Try(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (result != CUDA_SUCCESS) driver_.event_query.Throw(result);
    return true;
  }

 private:
  const Driver& driver_;
  CUevent event_;
};

}  // namespace safetensorfs
