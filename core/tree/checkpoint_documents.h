#pragma once

#include "core/format/checkpoint.h"
#include "core/tree/document.h"

namespace safetensorfs {

/// The generated texts of a checkpoint. Each refers to it, so it must outlive them.

/// `.summary`: a table for people (name, dtype, shape, bytes) and the totals by dtype.
Document SummaryDocument(const Checkpoint& checkpoint);

/// `.index.json`: {"version":1, "sources":[{"path","nbytes","mtime_ns","inode"}],
/// "tensors":[{"name","path","dtype","shape","nbytes","source","offset"}]}. `path` is relative to
/// the folder of the file, `source` is a path of `sources`, `offset` counts bytes from its start.
Document IndexDocument(const Checkpoint& checkpoint);

/// `.metadata.json`: __metadata__ as one JSON object.
Document MetadataDocument(const Checkpoint& checkpoint);

}  // namespace safetensorfs
