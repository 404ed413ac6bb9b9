#ifndef SAFETENSORFS_TESTS_SIMULATED_CUDA_HANDLES_H_
#define SAFETENSORFS_TESTS_SIMULATED_CUDA_HANDLES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_set>
#include <vector>

namespace simulated_cuda {

class Context;
class Queue;

struct Stream {
  Context* context;
  Queue* queue;
  bool owns_queue;  // else it is the null stream's, with which blocking streams are in order
};

struct Event {
  Context* context;
  std::mutex mutex = {};
  Queue* queue = nullptr;  // of the latest record; null: never recorded
  uint64_t copies = 0;     // that the queue must have executed
};

// The objects that handles point at. None is freed, so that a stale handle is always noticed and
// never another object's. Thread-safe.
template <typename Object>
class HandleTable {
 public:
  Object* Insert(std::unique_ptr<Object> object) {
    std::lock_guard guard(mutex_);
    all_.push_back(std::move(object));
    live_.insert(all_.back().get());
    return all_.back().get();
  }

  // Null where the handle is not one.
  Object* Find(const void* handle) const {
    std::shared_lock guard(mutex_);
    auto found = live_.find(static_cast<Object*>(const_cast<void*>(handle)));
    return found == live_.end() ? nullptr : *found;
  }

  bool Remove(Object* object) {
    std::lock_guard guard(mutex_);
    return live_.erase(object) == 1;
  }

  void RemoveAllOf(const Context* context) {
    std::lock_guard guard(mutex_);
    std::erase_if(live_, [&](const Object* object) { return object->context == context; });
  }

 private:
  mutable std::shared_mutex mutex_;
  std::vector<std::unique_ptr<Object>> all_;
  std::unordered_set<Object*> live_;
};

}  // namespace simulated_cuda

#endif  // SAFETENSORFS_TESTS_SIMULATED_CUDA_HANDLES_H_
