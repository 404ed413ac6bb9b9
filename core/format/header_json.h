#pragma once

#include <string>

#include "core/format/header.h"
#include "core/format/source_file.h"

namespace safetensorfs {

/// Reads the JSON of a header, `size` bytes at `offset`, into `header`: syntax and types (rules 4
/// to 8), not the layout of the data. Returns the first problem with the reference's term, or an
/// empty string. Throws Error where the file cannot be read.
std::string ReadHeaderJson(const SourceFile& source, std::uint64_t offset, std::uint64_t size,
                           Header& header);

}  // namespace safetensorfs
