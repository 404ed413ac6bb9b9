#pragma once

#include <string>

#include "core/format/source_file.h"

namespace safetensorfs {

/// Says what a file that is not safetensors plainly is, by its first bytes: a Git LFS pointer, an
/// HTML or XML page, ZIP, pickle, GGUF, gzip, JSON or zeros, and what to do about it. Empty where
/// it is nothing of the kind.
std::string DescribeForeignFormat(const SourceFile& source);

}  // namespace safetensorfs
