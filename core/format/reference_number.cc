#include "core/format/reference_number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace safetensorfs {
namespace {

constexpr std::int64_t kMaxPower = 308;

// The double nearest to 10^power, for 0 to 308.
double PowerOfTen(std::int64_t power) {
  const std::string text = "1e" + std::to_string(power);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

bool IsFinite(std::uint64_t significand, std::int64_t exponent) {
  if (exponent < 0 || significand == 0) return true;
  return exponent <= kMaxPower &&
         std::isfinite(static_cast<double>(significand) * PowerOfTen(exponent));
}

}  // namespace

bool ReferenceTakesNumber(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const std::size_t mark = std::min(text.find_first_of("eE"), text.size());

  std::uint64_t significand = 0;
  std::int64_t exponent = 0;
  bool is_full = false;  // the next digit no longer fits; what follows is dropped
  bool is_fraction = false;
  for (const char c : text.substr(0, mark)) {
    if (c == '.') {
      is_fraction = true;
      // Digits that were dropped before the point do not keep those after it from being tried.
      is_full = false;
      continue;
    }
    std::uint64_t next;
    is_full = is_full || __builtin_mul_overflow(significand, 10u, &next) ||
              __builtin_add_overflow(next, static_cast<unsigned>(c - '0'), &next);
    if (is_full) {
      exponent += is_fraction ? 0 : 1;
    } else {
      significand = next;
      exponent -= is_fraction ? 1 : 0;
    }
  }
  if (mark == text.size()) return IsFinite(significand, exponent);

  std::string_view digits = text.substr(mark + 1);
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
  std::int32_t written = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), written);
  if (error == std::errc::result_out_of_range) return is_negative || significand == 0;
  return IsFinite(significand, is_negative ? exponent - written : exponent + written);
}

}  // namespace safetensorfs
