#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/header.h"
#include "core/format/name_lookup.h"

namespace safetensorfs {

/// The tensors of a checkpoint, of one file or of all its shards, numbered 0 to size()-1 in the
/// order of shards and of offsets. Built once (Add, then Finish); then immutable and thread-safe.
class TensorIndex {
 public:
  struct Entry {
    std::uint64_t name_offset : 37;
    std::uint64_t name_size : 27;
    std::uint64_t offset;  // bytes from the start of the source file
    std::uint64_t nbytes;
    std::uint32_t shape_offset;
    std::uint32_t rank;
    std::uint32_t source : 24;  // number of the file in its checkpoint
    std::uint32_t dtype : 8;
  };

  /// Takes the tensors of `header`, the file number `source`, for which `listed` is true (all where
  /// it is empty; indexed as header.tensors). Throws Error (EFBIG) past 2^32-1 tensors or 128 GiB
  /// of names.
  void Add(std::uint32_t source, Header header, const std::vector<bool>& listed = {});
  /// Makes the lookup tables. Names are known to differ.
  void Finish();

  std::uint32_t size() const { return static_cast<std::uint32_t>(entries_.size()); }
  const Entry& operator[](std::uint32_t tensor) const { return entries_[tensor]; }
  std::string_view name(std::uint32_t tensor) const {
    const Entry& entry = entries_[tensor];
    return std::string_view(names_).substr(entry.name_offset, entry.name_size);
  }
  std::span<const std::uint64_t> shape(std::uint32_t tensor) const {
    const Entry& entry = entries_[tensor];
    return std::span(shapes_).subspan(entry.shape_offset, entry.rank);
  }
  const DtypeInfo& dtype(std::uint32_t tensor) const {
    return InfoOf(static_cast<Dtype>(entries_[tensor].dtype));
  }

  /// The file name of a tensor, see file_name.h; at most kMaxFileName bytes.
  std::string FileName(std::uint32_t tensor) const;
  std::optional<std::uint32_t> FindName(std::string_view name) const;
  std::optional<std::uint32_t> FindFile(std::string_view file_name) const;

 private:
  void NameLongOnes();

  std::vector<Entry> entries_;
  std::string names_;
  std::vector<std::uint64_t> shapes_;
  NameLookup lookup_;
  // Only names too long for a file are kept as file names.
  std::map<std::string, std::uint32_t, std::less<>> long_files_;
  std::map<std::uint32_t, std::string> long_names_;
};

}  // namespace safetensorfs
