#include "core/format/foreign_format.h"

#include "core/format/header.h"
#include "tests/catch.h"
#include "tests/unit/temporary_folder.h"

namespace safetensorfs {
namespace {

std::string ProblemWith(const std::string& bytes) {
  const TemporaryFolder folder;
  const SourceFile source(folder.Write("m", bytes));
  Problems problems;
  CHECK_FALSE(ReadHeader(source, problems));
  return problems.front().text.substr(source.path().size() + 2);
}

}  // namespace

TEST_CASE("A file that is plainly something else says what it is") {
  CHECK(ProblemWith("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n")
            .starts_with("is a Git LFS pointer to a file of 548105171 bytes, not the file itself: "
                         "run `git lfs pull`; "));
  CHECK(ProblemWith("\n <!DOCTYPE html><html>").starts_with("is an HTML page"));
  CHECK(ProblemWith("<html><head></head></html>").starts_with("is an HTML page"));
  CHECK(ProblemWith("<?xml version=\"1.0\"?><Error/>").starts_with("is an XML document"));
  CHECK(ProblemWith("PK\x03\x04 and so on").starts_with("is a ZIP archive"));
  CHECK(ProblemWith("\x80\x02}q\x01(X\x05").starts_with("is a Python pickle"));
  CHECK(ProblemWith(std::string("\x80\x04\x95\x40\0\0\0\0\0\0\0}", 12))
            .starts_with("is a Python pickle"));
  CHECK(ProblemWith("GGUF\x03 and so on").starts_with("is a GGUF file"));
  CHECK(ProblemWith("\x1F\x8B\x08 and so on").starts_with("is gzip-compressed"));
  CHECK(ProblemWith(std::string(10'000, '\0')).starts_with("holds only zeros"));
  CHECK(ProblemWith("{\"weight_map\": {}}").starts_with("is a JSON text"));
}

TEST_CASE("A real header with the first bytes of a pickle is no pickle") {
  CHECK(ProblemWith(LittleEndian64(0x280) + std::string(0x280, 'x')).starts_with("header is not"));
}

}  // namespace safetensorfs
