#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/dtype.h"
#include "core/format/metadata.h"
#include "core/format/name_lookup.h"
#include "core/format/problem.h"
#include "core/format/source_file.h"

namespace safetensorfs {

/// One tensor of a header. Names and shapes lie in the Header's two pools: a header may hold
/// millions of them.
struct TensorInfo {
  std::uint64_t name_offset : 37;  // bytes into Header::names
  std::uint64_t name_size : 27;    // bytes; headers end at 100,000,000
  std::uint64_t begin;             // data_offsets: bytes from the end of the header
  std::uint64_t end;
  std::uint32_t shape_offset;  // elements into Header::shapes
  std::uint32_t rank;
  Dtype dtype;

  std::uint64_t nbytes() const { return end - begin; }
};

/// What the header of one safetensors file says; every rule of the format holds for it.
struct Header {
  std::uint64_t data_offset = 0;    // bytes from the start of the file to the data: 8 + N
  std::vector<TensorInfo> tensors;  // sorted by (begin, end)
  std::string names;
  std::vector<std::uint64_t> shapes;
  Metadata metadata;
  NameLookup lookup;  // of tensors by name

  std::string_view name(const TensorInfo& tensor) const {
    return std::string_view(names).substr(tensor.name_offset, tensor.name_size);
  }
  std::span<const std::uint64_t> shape(const TensorInfo& tensor) const {
    return std::span(shapes).subspan(tensor.shape_offset, tensor.rank);
  }
};

/// The largest header the reference implementation accepts, in bytes.
inline constexpr std::uint64_t kMaxHeaderSize = 100'000'000;

/// Reads and checks the header of `source`, by the reference implementation's rules and in its
/// order (safetensors 0.8; differences: a tensor name given twice, an entry spelled as an array and
/// a dtype spelled as an object are refused). On problems, adds them and returns nothing: one for
/// a header that cannot be read as such, else one for every tensor that breaks a rule, up to 100.
/// Each names the reference's error, e.g. "(InvalidOffset)". The header is read in windows, so
/// memory is what the Header itself holds. Throws Error where the file cannot be read.
std::optional<Header> ReadHeader(const SourceFile& source, Problems& problems);

}  // namespace safetensorfs
