#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text.h"

namespace safetensorfs {

/// A JSON object on a line of stdout.
class JsonLine {
 public:
  JsonLine& Add(std::string_view name, std::uint64_t value) {
    return AddJson(name, std::to_string(value));
  }
  JsonLine& AddSeconds(std::string_view name, double value) { return AddJson(name, Digits(value)); }
  JsonLine& AddSeconds(std::string_view name, const std::vector<double>& values) {
    std::string json;
    for (const double value : values) json += (json.empty() ? "" : ",") + Digits(value);
    return AddJson(name, "[" + json + "]");
  }
  JsonLine& AddText(std::string_view name, std::string_view value) {
    std::string json;
    AppendJsonString(value, json);
    return AddJson(name, json);
  }
  /// A value that is JSON already.
  JsonLine& AddJson(std::string_view name, std::string_view json) {
    text_ += text_.empty() ? "{" : ",";
    AppendJsonString(name, text_);
    text_ += ":";
    text_ += json;
    return *this;
  }

  void Print() const {
    std::puts((text_ + "}").c_str());
    std::fflush(stdout);
  }

 private:
  static std::string Digits(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
  }

  std::string text_;
};

}  // namespace safetensorfs
