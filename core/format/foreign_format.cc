#include "core/format/foreign_format.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace safetensorfs {
namespace {

std::string Lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// "size 548105171" of a Git LFS pointer.
std::string LfsSize(std::string_view text) {
  const std::size_t at = text.find("\nsize ");
  if (at == text.npos) return {};
  const std::string_view digits = text.substr(at + 6);
  const std::size_t end = digits.find_first_not_of("0123456789");
  return std::string(digits.substr(0, std::min<std::size_t>(end, 20)));
}

}  // namespace

std::string DescribeForeignFormat(const SourceFile& source) {
  std::string head(std::min<std::uint64_t>(source.size(), 4096), '\0');
  source.Read(0, head);
  if (head.empty()) return {};

  if (head.starts_with("version https://git-lfs.github.com/spec/")) {
    const std::string size = LfsSize(head);
    return "is a Git LFS pointer" + (size.empty() ? "" : " to a file of " + size + " bytes") +
           ", not the file itself: run `git lfs pull`";
  }
  if (head.starts_with("PK\x03\x04")) return "is a ZIP archive, as torch.save writes";
  // The first bytes of a real header are its length: nothing below is one within the limit.
  const bool is_header = head.size() >= 8 && head[4] == 0 && head[5] == 0 && head[6] == 0 &&
                         head[7] == 0 && static_cast<unsigned char>(head[3]) < 6;
  if (!is_header && head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) {
    return "is a Python pickle, as torch.save wrote before 1.6";
  }
  if (head.starts_with("GGUF")) return "is a GGUF file";
  if (head.starts_with("\x1F\x8B")) return "is gzip-compressed: decompress it first";
  if (head.find_first_not_of('\0') == head.npos) {
    return "holds only zeros in its first " + std::to_string(head.size()) +
           " bytes: a download that never began, or lost blocks";
  }
  const std::string text = Lower(head.substr(0, 512));
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start == text.npos) return {};
  const std::string_view word = std::string_view(text).substr(start);
  if (word.starts_with("<!doctype html") || word.starts_with("<html")) {
    return "is an HTML page, perhaps a login or error page of the download";
  }
  if (word.starts_with("<?xml") || word.starts_with("<error>")) {
    return "is an XML document, perhaps an error of the download";
  }
  if (!is_header && start == 0 && word.starts_with("{")) {
    return "is a JSON text; an index is named *.safetensors.index.json";
  }
  return {};
}

}  // namespace safetensorfs
