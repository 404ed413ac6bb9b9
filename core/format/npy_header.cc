#include "core/format/npy_header.h"

namespace safetensorfs {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMagicAndVersion = 8;
constexpr std::size_t kMaxVersion1 = 65535;

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
  std::string dict =
      "{'descr': '" + std::string(InfoOf(dtype).descr) + "', 'fortran_order': False, 'shape': ";
  AppendTuple(InfoOf(dtype).bits < 8 ? std::span<const std::uint64_t>(&nbytes, 1) : shape, dict);
  dict += ", }";

  std::size_t length_bytes = 2;
  const auto padded_total = [&] {
    const std::size_t total = kMagicAndVersion + length_bytes + dict.size() + 1;
    return (total + kAlignment - 1) / kAlignment * kAlignment;
  };
  if (padded_total() - kMagicAndVersion - length_bytes > kMaxVersion1) length_bytes = 4;
  const std::size_t length = padded_total() - kMagicAndVersion - length_bytes;

  std::string out("\x93NUMPY", 6);
  out += length_bytes == 2 ? '\x01' : '\x02';
  out += '\0';
  for (std::size_t i = 0; i < length_bytes; ++i) out += static_cast<char>(length >> (8 * i) & 0xFF);
  out += dict;
  out.append(length - dict.size() - 1, ' ');
  out += '\n';
  return out;
}

}  // namespace safetensorfs
