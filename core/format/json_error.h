#pragma once

#include <string>

namespace safetensorfs {

/// The detail of a parser's message, on one line and without the library's prefixes.
std::string JsonErrorDetail(const char* what);

}  // namespace safetensorfs
