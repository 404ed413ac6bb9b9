#include "core/format/header_json.h"

#include <nlohmann/json.hpp>

#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/format/header_window.h"
#include "core/format/json_error.h"
#include "core/format/reference_number.h"

namespace safetensorfs {
namespace {

// serde_json's recursion limit of 128 refuses the 128th open bracket.
constexpr int kMaxDepth = 127;

constexpr char kJsonTerm[] = " (InvalidHeaderDeserialization)";

// The SAX events of a header. Values go straight into the Header: no DOM.
class HeaderHandler {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit HeaderHandler(Header& header) : header_(header) {}

  const std::string& problem() const { return problem_; }

  bool null() {
    if (where_ == Where::kTop && in_metadata_key_) return true;
    return Scalar("null");
  }
  bool boolean(bool value) { return Scalar(value ? "true" : "false"); }
  // nlohmann calls a number signed only if it was written with a minus sign: -0 included.
  bool number_integer(number_integer_t value) {
    return Scalar(value == 0 ? "-0" : std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) {
    if (ReferenceTakesNumber(text)) return Scalar(text);
    problem_ =
        "header holds the number " + Printable(text, 60) + ", which is out of range" + kJsonTerm;
    return false;
  }
  bool binary(binary_t&) { return Scalar("binary"); }

  bool number_unsigned(number_unsigned_t value) {
    if (where_ == Where::kShape) {
      header_.shapes.push_back(value);
      ++tensor_.rank;
      return true;
    }
    if (where_ == Where::kOffsets) {
      if (offsets_ == 2) return Fail("data_offsets must be two numbers, holds more");
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return Scalar(std::to_string(value));
  }

  bool string(string_t& value) {
    if (where_ == Where::kMetadata) {
      // The parser clears its buffer before it uses it again: it may be taken.
      header_.metadata.Add(metadata_key_, std::move(value));
      return true;
    }
    if (where_ == Where::kTensor && field_ == Field::kDtype) {
      const auto dtype = ParseDtype(value);
      if (!dtype) return Fail("unknown dtype " + Quoted(value));
      tensor_.dtype = *dtype;
      return true;
    }
    return Scalar(skipped_ > 0 ? "" : Quoted(value));
  }

  bool start_object(std::size_t) {
    if (!Enter()) return false;
    if (Skips()) return true;
    if (where_ == Where::kStart) {
      where_ = Where::kTop;
      return true;
    }
    if (where_ == Where::kTop) {
      where_ = in_metadata_key_ ? Where::kMetadata : Where::kTensor;
      if (!in_metadata_key_) StartTensor();
      return true;
    }
    return Wrong("an object");
  }

  bool start_array(std::size_t) {
    if (!Enter()) return false;
    if (Skips()) return true;
    if (where_ == Where::kTensor && field_ == Field::kShape) {
      where_ = Where::kShape;
      return true;
    }
    if (where_ == Where::kTensor && field_ == Field::kOffsets) {
      where_ = Where::kOffsets;
      return true;
    }
    return Wrong("an array");
  }

  bool key(string_t& name) {
    if (skipped_ > 0) return true;
    if (where_ == Where::kTop) {
      in_metadata_key_ = name == "__metadata__";
      if (in_metadata_key_) {
        if (seen_metadata_) return Fail("__metadata__ is given twice");
        seen_metadata_ = true;
      } else {
        tensor_ = {};
        // A header of 100,000,000 bytes fits both fields.
        tensor_.name_offset = header_.names.size() & ((std::uint64_t{1} << 37) - 1);
        tensor_.name_size = name.size() & ((1u << 27) - 1);
        header_.names += name;
      }
    } else if (where_ == Where::kMetadata) {
      metadata_key_ = std::move(name);
    } else {
      return Select(name);
    }
    return true;
  }

  bool end_object() {
    Leave();
    if (skipped_ > 0) {
      --skipped_;
    } else if (where_ == Where::kTensor) {
      if (seen_ != kAllFields) return Fail("has no " + std::string(MissingField()));
      header_.tensors.push_back(tensor_);
      where_ = Where::kTop;
    } else if (where_ == Where::kMetadata) {
      where_ = Where::kTop;
    }
    return true;
  }

  bool end_array() {
    Leave();
    if (skipped_ > 0) {
      --skipped_;
    } else {
      if (where_ == Where::kOffsets && offsets_ != 2) {
        return Fail("data_offsets must be two numbers, holds " + std::to_string(offsets_));
      }
      where_ = Where::kTensor;
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) {
    problem_ = "header is not valid JSON at byte " + std::to_string(position) + ": " +
               JsonErrorDetail(error.what()) + kJsonTerm;
    return false;
  }

 private:
  enum class Where { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum class Field : unsigned { kUnknown = 0, kDtype = 1, kShape = 2, kOffsets = 4 };
  static constexpr unsigned kAllFields = 7;

  static std::string_view NameOf(Field field) {
    switch (field) {
      case Field::kDtype:
        return "dtype";
      case Field::kShape:
        return "shape";
      case Field::kOffsets:
        return "data_offsets";
      case Field::kUnknown:
        break;
    }
    return "";
  }

  std::string_view MissingField() const {
    for (const Field field : {Field::kDtype, Field::kShape, Field::kOffsets}) {
      if ((seen_ & static_cast<unsigned>(field)) == 0) return NameOf(field);
    }
    return "";
  }

  void StartTensor() {
    tensor_.shape_offset = static_cast<std::uint32_t>(header_.shapes.size());
    seen_ = 0;
    offsets_ = 0;
    field_ = Field::kUnknown;
  }

  bool Select(const std::string& name) {
    field_ = Field::kUnknown;
    for (const Field field : {Field::kDtype, Field::kShape, Field::kOffsets}) {
      if (name == NameOf(field)) field_ = field;
    }
    const auto bit = static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) return Fail("gives " + name + " twice");
    seen_ |= bit;
    return true;
  }

  bool Enter() {
    if (++depth_ <= kMaxDepth) return true;
    problem_ = "header nests deeper than " + std::to_string(kMaxDepth) + " levels" + kJsonTerm;
    return false;
  }
  void Leave() { --depth_; }

  // True, and one level deeper, inside the value of a field that nobody asks for.
  bool Skips() {
    if (skipped_ == 0 && !(where_ == Where::kTensor && field_ == Field::kUnknown)) return false;
    ++skipped_;
    return true;
  }

  // A value that is neither wanted nor a container: fine in an unknown field, wrong elsewhere.
  bool Scalar(const std::string& value) {
    if (skipped_ > 0 || (where_ == Where::kTensor && field_ == Field::kUnknown)) return true;
    return Wrong(value);
  }

  bool Wrong(const std::string& value) {
    switch (where_) {
      case Where::kStart:
        problem_ = "header must be a JSON object, is " + value + kJsonTerm;
        return false;
      case Where::kTop:
        if (!in_metadata_key_) return Fail("must be an object, is " + value);
        problem_ = "__metadata__ must be an object, is " + value + kJsonTerm;
        return false;
      case Where::kMetadata:
        problem_ =
            "__metadata__ " + Quoted(metadata_key_) + " must be a string, is " + value + kJsonTerm;
        return false;
      case Where::kShape:
        return Fail("shape holds " + value + ", must be integers from 0 to 2^64-1");
      case Where::kOffsets:
        return Fail("data_offsets hold " + value + ", must be integers from 0 to 2^64-1");
      case Where::kTensor:
        break;
    }
    const char* rule =
        field_ == Field::kDtype ? " must be a string, is " : " must be an array, is ";
    return Fail(std::string(NameOf(field_)) + rule + value);
  }

  bool Fail(const std::string& rule) {
    problem_ = in_metadata_key_ || where_ == Where::kStart
                   ? rule + kJsonTerm
                   : "tensor " + Quoted(header_.name(tensor_)) + ": " + rule + kJsonTerm;
    return false;
  }

  Header& header_;
  std::string problem_;
  Where where_ = Where::kStart;
  Field field_ = Field::kUnknown;
  unsigned seen_ = 0;     // Fields of the present tensor
  unsigned offsets_ = 0;  // numbers in its data_offsets
  int depth_ = 0;
  int skipped_ = 0;
  bool in_metadata_key_ = false;
  bool seen_metadata_ = false;
  std::string metadata_key_;
  TensorInfo tensor_ = {};
};

// What nlohmann's parser would let through: it skips a byte order mark, takes NUL for the end of
// the input, and sees no bytes that are not UTF-8 outside of strings.
std::string CheckText(const SourceFile& source, std::uint64_t offset, std::uint64_t size) {
  Utf8Validator utf8;
  std::string problem;
  std::uint64_t at = 0;
  HeaderWindow text(source, offset, size);
  if (text.window().starts_with("\xEF\xBB\xBF")) {
    problem = std::string("header starts with a byte order mark") + kJsonTerm;
  }
  for (; !text.at_end(); text.SkipWindow()) {
    const std::string_view window = text.window();
    if (!utf8.Feed(window)) break;
    const std::size_t nul = problem.empty() ? window.find('\0') : window.npos;
    if (nul != window.npos) {
      problem = "header holds a NUL byte at byte " + std::to_string(at + nul) + kJsonTerm;
    }
    at += window.size();
  }
  if (!utf8.Finish()) {
    return "header is not UTF-8 at byte " + std::to_string(utf8.position()) + " (InvalidHeader)";
  }
  return problem;
}

}  // namespace

std::string ReadHeaderJson(const SourceFile& source, std::uint64_t offset, std::uint64_t size,
                           Header& header) {
  if (std::string problem = CheckText(source, offset, size); !problem.empty()) return problem;
  HeaderWindow window(source, offset, size);
  HeaderHandler handler(header);
  const bool parsed = nlohmann::json::sax_parse(HeaderIterator(window), HeaderIterator(), &handler);
  return parsed ? std::string() : handler.problem();
}

}  // namespace safetensorfs
