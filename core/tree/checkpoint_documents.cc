#include "core/tree/checkpoint_documents.h"

#include <algorithm>
#include <array>

#include "core/base/text.h"

namespace safetensorfs {
namespace {

// Texts with a row per tensor have one more at either end.
std::uint64_t RowsAround(std::uint64_t count) { return count + 2; }

std::size_t CountCharacters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

void AppendPadded(std::string_view text, std::size_t width, std::string& out) {
  const std::size_t characters = CountCharacters(text);
  out += text;
  out.append(width > characters ? width - characters : 0, ' ');
}

void AppendRight(std::string_view text, std::size_t width, std::string& out) {
  out.append(width > text.size() ? width - text.size() : 0, ' ');
  out += text;
}

std::string ShapeText(const Checkpoint& checkpoint, std::uint32_t tensor) {
  std::string out;
  AppendShape(checkpoint.index.shape(tensor), out);
  return out;
}

struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t nbytes = 0;
};

class Summary {
 public:
  explicit Summary(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    const TensorIndex& index = checkpoint.index;
    for (std::uint32_t i = 0; i < index.size(); ++i) {
      // Names that are longer than this stick out: a few must not widen the table for all.
      name_width_ = std::max(name_width_, std::min<std::size_t>(index.name(i).size(), 64));
      shape_width_ =
          std::max(shape_width_, std::min<std::size_t>(ShapeText(checkpoint, i).size(), 32));
      for (Total* total : {&totals_[index[i].dtype], &total_}) {
        total->tensors += 1;
        total->nbytes += index[i].nbytes;
      }
    }
  }

  void Render(std::uint64_t row, std::string& out) const {
    if (row == 0) {
      RenderRow("name", "dtype", "shape", "bytes", out);
    } else if (row <= checkpoint_.index.size()) {
      const auto tensor = static_cast<std::uint32_t>(row - 1);
      RenderRow(Printable(checkpoint_.index.name(tensor)), checkpoint_.index.dtype(tensor).name,
                ShapeText(checkpoint_, tensor), Grouped(checkpoint_.index[tensor].nbytes), out);
    } else {
      RenderTotals(out);
    }
  }

 private:
  static constexpr std::size_t kDtypeWidth = 11;  // F8_E4M3FNUZ

  void RenderRow(std::string_view name, std::string_view dtype, std::string_view shape,
                 std::string_view nbytes, std::string& out) const {
    AppendPadded(name, name_width_, out);
    out += "  ";
    AppendPadded(dtype, kDtypeWidth, out);
    out += "  ";
    AppendPadded(shape, shape_width_, out);
    out += "  ";
    AppendRight(nbytes, Grouped(total_.nbytes).size(), out);
    out += '\n';
  }

  void RenderTotal(std::string_view dtype, std::string_view tensors, std::string_view nbytes,
                   std::string& out) const {
    AppendPadded(dtype, kDtypeWidth, out);
    out += "  ";
    AppendRight(tensors, std::max<std::size_t>(7, Grouped(total_.tensors).size()), out);
    out += "  ";
    AppendRight(nbytes, std::max<std::size_t>(5, Grouped(total_.nbytes).size()), out);
    out += '\n';
  }

  void RenderTotals(std::string& out) const {
    out += '\n';
    RenderTotal("dtype", "tensors", "bytes", out);
    for (std::size_t i = 0; i < totals_.size(); ++i) {
      if (totals_[i].tensors == 0) continue;
      RenderTotal(InfoOf(static_cast<Dtype>(i)).name, Grouped(totals_[i].tensors),
                  Grouped(totals_[i].nbytes), out);
    }
    RenderTotal("total", Grouped(total_.tensors), Grouped(total_.nbytes), out);
  }

  const Checkpoint& checkpoint_;
  std::size_t name_width_ = 4;
  std::size_t shape_width_ = 5;
  std::array<Total, kDtypeCount> totals_;
  Total total_;
};

// Of a time that a file system made up it may be any number, but no overflow.
std::int64_t NanosecondsOf(const timespec& time) {
  std::int64_t nanoseconds = 0;
  const bool fits = !__builtin_mul_overflow(time.tv_sec, 1'000'000'000, &nanoseconds) &&
                    !__builtin_add_overflow(nanoseconds, time.tv_nsec, &nanoseconds);
  return fits ? nanoseconds : 0;
}

void RenderSources(const Checkpoint& checkpoint, std::string& out) {
  out += "{\"version\":1,\n\"sources\":[";
  for (std::size_t i = 0; i < checkpoint.sources.size(); ++i) {
    const SourceFile& source = checkpoint.sources[i];
    const struct stat& status = source.status();
    out += i == 0 ? "\n{\"path\":" : ",\n{\"path\":";
    AppendJsonString(source.path(), out);
    out += ",\"nbytes\":" + std::to_string(source.size());
    out += ",\"mtime_ns\":" + std::to_string(NanosecondsOf(status.st_mtim));
    out += ",\"inode\":" + std::to_string(status.st_ino) + "}";
  }
  out += "],\n\"tensors\":[\n";
}

void RenderIndexRow(const Checkpoint& checkpoint, std::uint64_t row, std::string& out) {
  const TensorIndex& index = checkpoint.index;
  if (row == 0) return RenderSources(checkpoint, out);
  if (row > index.size()) {
    out += "]}\n";
    return;
  }
  const auto tensor = static_cast<std::uint32_t>(row - 1);
  out += "{\"name\":";
  AppendJsonString(index.name(tensor), out);
  out += ",\"path\":";
  AppendJsonString(index.FileName(tensor), out);
  out += ",\"dtype\":\"";
  out += index.dtype(tensor).name;
  out += "\",\"shape\":";
  AppendShape(index.shape(tensor), out);
  out += ",\"nbytes\":" + std::to_string(index[tensor].nbytes) + ",\"source\":";
  AppendJsonString(checkpoint.source_of(tensor).path(), out);
  out += ",\"offset\":" + std::to_string(index[tensor].offset);
  out += row == index.size() ? "}\n" : "},\n";
}

void RenderMetadataRow(const Checkpoint& checkpoint, std::uint64_t row, std::string& out) {
  if (row == 0) {
    out += "{\n";
  } else if (row > checkpoint.metadata.size()) {
    out += "}\n";
  } else {
    AppendJsonString(checkpoint.metadata.key(row - 1), out);
    out += ": ";
    AppendJsonString(checkpoint.metadata.value(row - 1), out);
    out += row == checkpoint.metadata.size() ? "\n" : ",\n";
  }
}

}  // namespace

Document SummaryDocument(const Checkpoint& checkpoint) {
  return Document(RowsAround(checkpoint.index.size()), [&checkpoint] {
    return [summary = Summary(checkpoint)](std::uint64_t row, std::string& out) {
      summary.Render(row, out);
    };
  });
}

Document IndexDocument(const Checkpoint& checkpoint) {
  return Document(RowsAround(checkpoint.index.size()), [&checkpoint] {
    return [&checkpoint](std::uint64_t row, std::string& out) {
      RenderIndexRow(checkpoint, row, out);
    };
  });
}

Document MetadataDocument(const Checkpoint& checkpoint) {
  return Document(RowsAround(checkpoint.metadata.size()), [&checkpoint] {
    return [&checkpoint](std::uint64_t row, std::string& out) {
      RenderMetadataRow(checkpoint, row, out);
    };
  });
}

}  // namespace safetensorfs
