#include "gpu/process/message.h"

#include <cerrno>
#include <cstring>
#include <type_traits>

#include "core/base/error.h"

namespace safetensorfs {
namespace {

class Writer {
 public:
  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (Add(fields), ...);
  }
  std::string bytes;

 private:
  void AddRaw(const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
  }
  template <typename T>
  void Add(const T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      AddRaw(&value, sizeof value);
    } else {
      Visit(value, *this);
    }
  }
  void Add(const std::string& text) {
    Add(std::uint64_t{text.size()});
    bytes += text;
  }
  template <typename T>
  void Add(const std::vector<T>& values) {
    Add(std::uint64_t{values.size()});
    if constexpr (std::is_trivially_copyable_v<T>) {
      AddRaw(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) Add(value);
    }
  }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest(bytes) {}
  template <typename... Fields>
  void operator()(Fields&... fields) {
    (Take(fields), ...);
  }
  std::string_view rest;

 private:
  void TakeRaw(void* out, std::size_t size) {
    if (size > rest.size()) throw Error(EPROTO, "a message is cut");
    if (size > 0) std::memcpy(out, rest.data(), size);
    rest.remove_prefix(size);
  }
  template <typename T>
  void Take(T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      TakeRaw(&value, sizeof value);
    } else {
      Visit(value, *this);
    }
  }
  std::uint64_t TakeCount(std::size_t least_size) {
    std::uint64_t count = 0;
    Take(count);
    if (count > rest.size() / least_size) throw Error(EPROTO, "a message is cut");
    return count;
  }
  void Take(std::string& text) {
    text.resize(TakeCount(1));
    TakeRaw(text.data(), text.size());
  }
  template <typename T>
  void Take(std::vector<T>& values) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      values.resize(TakeCount(sizeof(T)));
      TakeRaw(values.data(), values.size() * sizeof(T));
    } else {
      values.resize(TakeCount(sizeof(std::uint64_t)));  // a text's size at least
      for (T& value : values) Take(value);
    }
  }
};

// The fields of each message that is not plain bytes, for both directions.
template <typename M, typename T>
concept Is = std::is_same_v<std::remove_const_t<M>, T>;

template <Is<Sources> M>
void Visit(M& m, auto& fields) {
  fields(m.paths);
}
template <Is<LoadJob> M>
void Visit(M& m, auto& fields) {
  fields(m.id, m.is_one_of_several, m.slabs, m.transfers);
}
template <Is<VerifyJob> M>
void Visit(M& m, auto& fields) {
  fields(m.id, m.transfers);
}
template <Is<FreeJob> M>
void Visit(M& m, auto& fields) {
  fields(m.id, m.slabs);
}
template <Is<Hello> M>
void Visit(M& m, auto& fields) {
  fields(m.error, m.reason, m.pid, m.pid_start_ticks, m.pid_namespace, m.euid);
}
template <Is<Done> M>
void Visit(M& m, auto& fields) {
  fields(m.id, m.error, m.reason, m.handles, m.no_export, m.is_difference, m.tensor, m.byte);
}
template <Is<Lost> M>
void Visit(M& m, auto& fields) {
  fields(m.reason);
}
template <Is<DeviceFacts> M>
void Visit(M& m, auto& fields) {
  fields(m.uuid, m.product, m.pci_bus, m.no_export, m.total_nbytes);
}
template <Is<Probed> M>
void Visit(M& m, auto& fields) {
  fields(m.reason, m.devices);
}

}  // namespace

template <typename Message>
std::string Encode(const Message& message) {
  Writer writer;
  writer(message);
  return std::move(writer.bytes);
}

template <typename Message>
Message Decode(std::string_view bytes, std::string_view* rest) {
  Message message;
  Reader reader(bytes);
  reader(message);
  if (rest != nullptr) *rest = reader.rest;
  return message;
}

#define SAFETENSORFS_MESSAGE(M)          \
  template std::string Encode(const M&); \
  template M Decode(std::string_view, std::string_view*);
SAFETENSORFS_MESSAGE(Sources)
SAFETENSORFS_MESSAGE(LoadJob)
SAFETENSORFS_MESSAGE(VerifyJob)
SAFETENSORFS_MESSAGE(FreeJob)
SAFETENSORFS_MESSAGE(ReadBack)
SAFETENSORFS_MESSAGE(Hello)
SAFETENSORFS_MESSAGE(JobProgress)
SAFETENSORFS_MESSAGE(Done)
SAFETENSORFS_MESSAGE(Bytes)
SAFETENSORFS_MESSAGE(MemoryNow)
SAFETENSORFS_MESSAGE(Lost)
SAFETENSORFS_MESSAGE(Probed)
SAFETENSORFS_MESSAGE(std::uint64_t)
#undef SAFETENSORFS_MESSAGE

}  // namespace safetensorfs
