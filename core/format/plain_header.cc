#include "core/format/plain_header.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safetensorfs {
namespace {

// A member longer than this is not plain.
constexpr std::size_t kWindow = 256 * 1024;

// Text of which every member of the outermost object is looked at in one piece.
class MemberWindow {
 public:
  MemberWindow(const SourceFile& source, std::uint64_t offset, std::uint64_t size)
      : source_(source), next_(offset), left_(size), buffer_(kWindow) {}

  // What follows what was taken, as much of it as fits.
  std::string_view Fill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    const std::size_t size = std::min<std::uint64_t>(left_, kWindow - end_);
    source_.Read(next_, {buffer_.data() + end_, size});
    next_ += size;
    left_ -= size;
    end_ += size;
    return {buffer_.data(), end_};
  }
  void Take(std::size_t size) { begin_ += size; }
  bool holds_the_end() const { return left_ == 0; }

 private:
  const SourceFile& source_;
  std::uint64_t next_;
  std::uint64_t left_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

// Takes tokens from the front of a text. Each returns false, also at the end of the text, where it
// finds something else.
class PlainScanner {
 public:
  explicit PlainScanner(std::string_view text)
      : at_(text.data()), end_(text.data() + text.size()) {}

  const char* position() const { return at_; }
  bool at_end() const { return at_ == end_; }

  void SkipBlanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n')) ++at_;
  }
  bool Take(char c) {
    SkipBlanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool TakeString(std::string_view& text) {
    if (!Take('"')) return false;
    const auto* const quote =
        static_cast<const char*>(std::memchr(at_, '"', static_cast<std::size_t>(end_ - at_)));
    if (quote == nullptr) return false;
    text = {at_, quote};
    at_ = quote + 1;
    // Without branches, so that the compiler looks at many bytes at once.
    bool is_plain = true;
    for (const char c : text) is_plain &= c >= ' ' && c <= '~' && c != '\\';
    return is_plain;
  }
  bool TakeNumber(std::uint64_t& value) {
    SkipBlanks();
    const char* const begin = at_;
    value = 0;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') {
      value = value * 10 + static_cast<std::uint64_t>(*at_++ - '0');
    }
    // 19 digits may be too many, and the end of the text may be in the middle of them.
    const std::ptrdiff_t digits = at_ - begin;
    return digits > 0 && digits < 19 && at_ != end_ && (*begin != '0' || digits == 1);
  }

 private:
  const char* at_;
  const char* end_;
};

// One member of the header's object.
class MemberReader {
 public:
  explicit MemberReader(Header& header) : header_(header) {}

  // False, with nothing added, where it is not plain or not whole.
  bool Read(PlainScanner& scanner) {
    std::string_view name;
    if (!scanner.TakeString(name) || !scanner.Take(':') || !scanner.Take('{')) return false;
    return name == "__metadata__" ? ReadMetadata(scanner) : ReadTensor(scanner, name);
  }

 private:
  bool ReadMetadata(PlainScanner& scanner) {
    if (std::exchange(has_metadata_, true)) return false;
    std::vector<std::pair<std::string_view, std::string_view>> entries;
    if (!scanner.Take('}')) {
      do {
        auto& [key, value] = entries.emplace_back();
        if (!scanner.TakeString(key) || !scanner.Take(':') || !scanner.TakeString(value)) {
          return false;
        }
      } while (scanner.Take(','));
      if (!scanner.Take('}')) return false;
    }
    for (const auto& [key, value] : entries) header_.metadata.Add(key, std::string(value));
    return true;
  }

  bool ReadTensor(PlainScanner& scanner, std::string_view name) {
    TensorInfo tensor = {};
    const std::size_t shapes = header_.shapes.size();
    tensor.shape_offset = static_cast<std::uint32_t>(shapes);
    if (!ReadFields(scanner, tensor)) {
      header_.shapes.resize(shapes);
      return false;
    }
    // A header of 100,000,000 bytes fits both fields.
    tensor.name_offset = header_.names.size() & ((std::uint64_t{1} << 37) - 1);
    tensor.name_size = name.size() & ((1u << 27) - 1);
    header_.names += name;
    header_.tensors.push_back(tensor);
    return true;
  }

  bool ReadFields(PlainScanner& scanner, TensorInfo& tensor) {
    bool has_dtype = false;
    bool has_shape = false;
    bool has_offsets = false;
    do {
      std::string_view field;
      if (!scanner.TakeString(field) || !scanner.Take(':')) return false;
      if (field == "dtype") {
        std::string_view dtype;
        if (std::exchange(has_dtype, true) || !scanner.TakeString(dtype)) return false;
        const auto parsed = ParseDtype(dtype);
        if (!parsed) return false;
        tensor.dtype = *parsed;
      } else if (field == "shape") {
        if (std::exchange(has_shape, true) || !ReadShape(scanner, tensor)) return false;
      } else if (field == "data_offsets") {
        if (std::exchange(has_offsets, true) || !scanner.Take('[') ||
            !scanner.TakeNumber(tensor.begin) || !scanner.Take(',') ||
            !scanner.TakeNumber(tensor.end) || !scanner.Take(']')) {
          return false;
        }
      } else {
        return false;
      }
    } while (scanner.Take(','));
    return scanner.Take('}') && has_dtype && has_shape && has_offsets;
  }

  bool ReadShape(PlainScanner& scanner, TensorInfo& tensor) {
    if (!scanner.Take('[')) return false;
    if (scanner.Take(']')) return true;
    do {
      std::uint64_t dimension;
      if (!scanner.TakeNumber(dimension)) return false;
      header_.shapes.push_back(dimension);
      ++tensor.rank;
    } while (scanner.Take(','));
    return scanner.Take(']');
  }

  Header& header_;
  bool has_metadata_ = false;
};

}  // namespace

bool ReadPlainHeader(const SourceFile& source, std::uint64_t offset, std::uint64_t size,
                     Header& header) {
  MemberWindow window(source, offset, size);
  MemberReader reader(header);
  bool is_first = true;
  while (true) {
    const std::string_view text = window.Fill();
    PlainScanner scanner(text);
    const char* taken = text.data();
    while (true) {
      // Before the first member stands the bracket, before each other a comma.
      if (!scanner.Take(is_first ? '{' : ',')) break;
      if (!reader.Read(scanner)) {
        scanner = PlainScanner({taken, text.data() + text.size()});
        break;
      }
      is_first = false;
      taken = scanner.position();
    }
    if (taken == text.data()) {
      // No whole member in all that fits: the end, or nothing that is read here.
      if (is_first || !window.holds_the_end() || !scanner.Take('}')) return false;
      scanner.SkipBlanks();
      return scanner.at_end();
    }
    window.Take(static_cast<std::size_t>(taken - text.data()));
  }
}

}  // namespace safetensorfs
