#include "core/format/npy_header.h"

namespace safetensorfs {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kMagicAndVersion = 8;
constexpr std::uint64_t kMaxVersion1 = 65535;
constexpr std::string_view kBeforeDescr = "{'descr': '";
constexpr std::string_view kBeforeShape = "', 'fortran_order': False, 'shape': ";
constexpr std::string_view kAfterShape = ", }";

// What follows the magic string and the version, for a dictionary of this size.
struct Layout {
  std::uint64_t length_bytes;
  std::uint64_t length;  // of the dictionary, padding and newline
};

Layout LayOut(std::uint64_t dict_size) {
  for (const std::uint64_t length_bytes : {2, 4}) {
    const std::uint64_t before = kMagicAndVersion + length_bytes;
    const std::uint64_t total = (before + dict_size + 1 + kAlignment - 1) / kAlignment * kAlignment;
    if (length_bytes == 4 || total - before <= kMaxVersion1) return {length_bytes, total - before};
  }
  return {};
}

std::uint64_t DigitsOf(std::uint64_t value) {
  std::uint64_t digits = 1;
  while (value >= 10) {
    value /= 10;
    ++digits;
  }
  return digits;
}

std::uint64_t TupleSize(std::span<const std::uint64_t> shape) {
  std::uint64_t size = shape.size() == 1 ? 3 : 2;
  for (const std::uint64_t dimension : shape) size += DigitsOf(dimension);
  return size + (shape.empty() ? 0 : 2 * (shape.size() - 1));
}

// Types of less than a byte are shown as their packed bytes.
std::span<const std::uint64_t> ShownShape(Dtype dtype, std::span<const std::uint64_t> shape,
                                          const std::uint64_t& nbytes) {
  return InfoOf(dtype).bits < 8 ? std::span<const std::uint64_t>(&nbytes, 1) : shape;
}

void AppendTuple(std::span<const std::uint64_t> shape, std::string& out) {
  out += '(';
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  out += shape.size() == 1 ? ",)" : ")";
}

}  // namespace

std::string NpyHeader(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t nbytes) {
  std::string dict(kBeforeDescr);
  dict += InfoOf(dtype).descr;
  dict += kBeforeShape;
  AppendTuple(ShownShape(dtype, shape, nbytes), dict);
  dict += kAfterShape;

  const Layout layout = LayOut(dict.size());
  std::string out("\x93NUMPY", 6);
  out += layout.length_bytes == 2 ? '\x01' : '\x02';
  out += '\0';
  for (std::uint64_t i = 0; i < layout.length_bytes; ++i) {
    out += static_cast<char>(layout.length >> (8 * i) & 0xFF);
  }
  out += dict;
  out.append(layout.length - dict.size() - 1, ' ');
  out += '\n';
  return out;
}

std::uint64_t NpyHeaderSize(Dtype dtype, std::span<const std::uint64_t> shape,
                            std::uint64_t nbytes) {
  const std::uint64_t dict = kBeforeDescr.size() + InfoOf(dtype).descr.size() +
                             kBeforeShape.size() + TupleSize(ShownShape(dtype, shape, nbytes)) +
                             kAfterShape.size();
  const Layout layout = LayOut(dict);
  return kMagicAndVersion + layout.length_bytes + layout.length;
}

}  // namespace safetensorfs
