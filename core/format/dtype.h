#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace safetensorfs {

/// The element types of the format (safetensors 0.8, `Dtype`). Spelled as in a header.
enum class Dtype : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

inline constexpr int kDtypeCount = 22;

struct DtypeInfo {
  std::string_view name;   // in headers, xattrs and tables
  unsigned bits;           // of one element
  std::string_view descr;  // NumPy's type string for .npy; sub-byte types as packed bytes
};

const DtypeInfo& InfoOf(Dtype dtype);

/// Case-sensitive, no aliases.
std::optional<Dtype> ParseDtype(std::string_view name);

}  // namespace safetensorfs
