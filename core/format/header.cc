#include "core/format/header.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/text.h"
#include "core/format/foreign_format.h"
#include "core/format/header_json.h"
#include "core/format/plain_header.h"

namespace safetensorfs {
namespace {

std::uint64_t LoadLittleEndian64(std::span<const char, 8> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// Collects what is wrong with one file, each line beginning with its path.
class Reporter {
 public:
  Reporter(const SourceFile& source, Problems& problems)
      : source_(source), problems_(problems), first_(problems.size()) {}

  void Add(const std::string& text) {
    if (count() == kMaxProblems) Push("more problems follow; the first 100 are shown");
    if (count() < kMaxProblems) Push(text);
  }
  std::size_t count() const { return problems_.size() - first_; }

 private:
  void Push(const std::string& text) {
    problems_.push_back({Fault::kInvalid, Printable(source_.path()) + ": " + text});
  }

  const SourceFile& source_;
  Problems& problems_;
  std::size_t first_;
};

std::string DtypeAndShape(const Header& header, const TensorInfo& tensor) {
  std::string out(InfoOf(tensor.dtype).name);
  out += ' ';
  AppendShape(header.shape(tensor), out);
  return Printable(out, 300);
}

// Rule 10: what the data of one tensor must look like, given where the one before it ends.
std::string CheckTensor(const Header& header, const TensorInfo& tensor,
                        std::uint64_t previous_end) {
  const std::string offsets =
      "data_offsets [" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) + ")";
  if (tensor.end < tensor.begin) return offsets + " end before they begin (InvalidOffset)";
  if (tensor.begin != previous_end) {
    const char* kind =
        tensor.begin > previous_end ? " leave a hole after " : " overlap what ends at ";
    return offsets + kind + "byte " + std::to_string(previous_end) + " of the data (InvalidOffset)";
  }
  std::uint64_t bits = 1;
  bool fits = true;
  for (const std::uint64_t dimension : header.shape(tensor)) {
    fits = fits && !__builtin_mul_overflow(bits, dimension, &bits);
  }
  fits = fits && !__builtin_mul_overflow(bits, InfoOf(tensor.dtype).bits, &bits);
  if (!fits) {
    return DtypeAndShape(header, tensor) + " needs more than 2^64-1 bits (ValidationOverflow)";
  }
  if (bits % 8 != 0) {
    return DtypeAndShape(header, tensor) + " needs " + std::to_string(bits) +
           " bits, not whole bytes (MisalignedSlice)";
  }
  if (tensor.nbytes() != bits / 8) {
    return offsets + " hold " + ByteCount(tensor.nbytes()) + ", " + DtypeAndShape(header, tensor) +
           " needs " + std::to_string(bits / 8) + " (TensorInvalidInfo)";
  }
  return {};
}

// Rule 9. The reference keeps the last of two entries: readers that disagree on what a file holds
// are a known attack, and the format's text forbids it.
void CheckNames(Header& header, Reporter& reporter) {
  const auto name_of = [&header](std::uint32_t i) { return header.name(header.tensors[i]); };
  header.lookup.Build(
      static_cast<std::uint32_t>(header.tensors.size()), name_of,
      [&](std::uint32_t, std::uint32_t again) {
        reporter.Add("tensor " + Quoted(name_of(again)) + " is given twice (DuplicateName)");
      });
}

void CheckLayout(const Header& header, std::uint64_t file_size, Reporter& reporter) {
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : header.tensors) {
    const std::string problem = CheckTensor(header, tensor, end);
    if (!problem.empty()) {
      reporter.Add("tensor " + Quoted(header.name(tensor)) + ": " + problem);
    }
    end = std::max(end, tensor.end);
  }
  if (reporter.count() > 0) return;
  const std::uint64_t held = file_size - header.data_offset;
  if (end > held) {
    reporter.Add("truncated: header and tensors need " + std::to_string(header.data_offset + end) +
                 " bytes, the file has " + std::to_string(file_size) + ", " +
                 ByteCount(end - held) + " missing; still downloading? (MetadataIncompleteBuffer)");
  } else if (end < held) {
    reporter.Add(ByteCount(held - end) + " after the last tensor, which ends at byte " +
                 std::to_string(header.data_offset + end) + " of " + std::to_string(file_size) +
                 " (MetadataIncompleteBuffer)");
  }
}

// Rules 1 to 3: the eight bytes of N. Returns the problem, or an empty string.
std::string CheckSize(const SourceFile& source, std::uint64_t& header_size) {
  if (source.size() < 8) {
    return "holds " + ByteCount(source.size()) +
           ", a safetensors file starts with 8 (HeaderTooSmall)";
  }
  std::array<char, 8> bytes;
  source.Read(0, bytes);
  header_size = LoadLittleEndian64(bytes);
  if (header_size > kMaxHeaderSize) {
    return "header of " + std::to_string(header_size) + " bytes is over the format's " +
           std::to_string(kMaxHeaderSize) + " (HeaderTooLarge)";
  }
  if (header_size > source.size() - 8) {
    return "truncated: header of " + std::to_string(header_size) + " bytes ends at byte " +
           std::to_string(header_size + 8) + ", the file has " + std::to_string(source.size()) +
           ", " + ByteCount(header_size + 8 - source.size()) +
           " missing at least; still downloading? (InvalidHeaderLength)";
  }
  return {};
}

}  // namespace

std::optional<Header> ReadHeader(const SourceFile& source, Problems& problems) {
  Reporter reporter(source, problems);
  Header header;
  std::uint64_t header_size = 0;
  std::string problem = CheckSize(source, header_size);
  if (problem.empty() && !ReadPlainHeader(source, 8, header_size, header)) {
    header = {};
    problem = ReadHeaderJson(source, 8, header_size, header);
  }
  if (!problem.empty()) {
    const std::string format = DescribeForeignFormat(source);
    reporter.Add(format.empty() ? problem : format + "; " + problem);
    return std::nullopt;
  }
  header.data_offset = 8 + header_size;
  header.metadata.Finish();
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  CheckNames(header, reporter);
  if (reporter.count() == 0) CheckLayout(header, source.size(), reporter);
  if (reporter.count() > 0) return std::nullopt;
  return header;
}

}  // namespace safetensorfs
