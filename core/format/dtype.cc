#include "core/format/dtype.h"

#include <array>

namespace safetensorfs {
namespace {

// NumPy has no BF16 or 8-bit floats: the void types are what ml_dtypes writes and views back.
constexpr std::array<DtypeInfo, kDtypeCount> kDtypes = {{
    {"BOOL", 8, "|b1"},        {"F4", 4, "|u1"},          {"F6_E2M3", 6, "|u1"},
    {"F6_E3M2", 6, "|u1"},     {"U8", 8, "|u1"},          {"I8", 8, "|i1"},
    {"F8_E5M2", 8, "|V1"},     {"F8_E4M3", 8, "|V1"},     {"F8_E8M0", 8, "|V1"},
    {"F8_E4M3FNUZ", 8, "|V1"}, {"F8_E5M2FNUZ", 8, "|V1"}, {"I16", 16, "<i2"},
    {"U16", 16, "<u2"},        {"F16", 16, "<f2"},        {"BF16", 16, "<V2"},
    {"I32", 32, "<i4"},        {"U32", 32, "<u4"},        {"F32", 32, "<f4"},
    {"C64", 64, "<c8"},        {"F64", 64, "<f8"},        {"I64", 64, "<i8"},
    {"U64", 64, "<u8"},
}};

}  // namespace

const DtypeInfo& InfoOf(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

std::optional<Dtype> ParseDtype(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

}  // namespace safetensorfs
