#include "core/format/tensor_index.h"

#include <set>
#include <string>
#include <vector>

#include "core/format/file_name.h"
#include "tests/catch.h"

namespace safetensorfs {
namespace {

Header HeaderOf(const std::vector<std::string>& names) {
  Header header;
  header.data_offset = 100;
  for (const std::string& name : names) {
    TensorInfo tensor = {};
    tensor.name_offset = header.names.size() & 0xFFFFFFFF;
    tensor.name_size = name.size() & 0xFFFFFF;
    tensor.begin = header.tensors.size() * 4;
    tensor.end = tensor.begin + 4;
    tensor.shape_offset = static_cast<std::uint32_t>(header.shapes.size());
    tensor.rank = 1;
    tensor.dtype = Dtype::kF32;
    header.names += name;
    header.shapes.push_back(1);
    header.tensors.push_back(tensor);
  }
  return header;
}

TensorIndex IndexOf(const std::vector<std::string>& names) {
  TensorIndex index;
  index.Add(0, HeaderOf(names));
  index.Finish();
  return index;
}

}  // namespace

TEST_CASE("Every tensor is found by its file name, and names built to collide do not") {
  const std::string base(250, 'x');
  std::vector<std::string> names = {"",
                                    "a",
                                    "a/b",
                                    "a%2Fb",
                                    "%2F",
                                    "/",
                                    "%empty",
                                    ".",
                                    "..",
                                    "%2E.",
                                    ".status",
                                    "%00",
                                    std::string("\0", 1),
                                    "\x01\n",
                                    base,
                                    base + "1",
                                    base + "2",
                                    std::string(300, '/'),
                                    std::string(10'000, '%')};
  // A name that looks like the file name of a long one.
  names.push_back(ShortenedName(base + "1", 0));
  const TensorIndex index = IndexOf(names);
  std::set<std::string> files;
  for (std::uint32_t i = 0; i < index.size(); ++i) {
    const std::string file = index.FileName(i);
    INFO(file);
    CHECK(file.size() <= kMaxFileName);
    CHECK(file.find('/') == file.npos);
    CHECK(file[0] != '.');
    CHECK(files.insert(file).second);
    CHECK(index.FindFile(file) == i);
    CHECK(index.FindName(names[i]) == i);
  }
  CHECK_FALSE(index.FindFile("b"));
  CHECK_FALSE(index.FindFile(base + "1"));
  CHECK_FALSE(index.FindFile("%41"));
  CHECK_FALSE(index.FindFile("x%~0123456789abcdef"));
}

TEST_CASE("Only listed tensors are taken, and offsets count from the start of the file") {
  TensorIndex index;
  index.Add(0, HeaderOf({"a", "b"}), {true, false});
  index.Add(1, HeaderOf({"c", "d"}), {false, true});
  index.Finish();
  REQUIRE(index.size() == 2);
  CHECK(index.name(0) == "a");
  CHECK(index.name(1) == "d");
  CHECK(index[1].source == 1);
  CHECK(index[1].offset == 104);
  CHECK(index[1].nbytes == 4);
  CHECK(index.shape(1).size() == 1);
  CHECK_FALSE(index.FindName("b"));
}

TEST_CASE("An index without tensors finds nothing") {
  const TensorIndex index = IndexOf({});
  CHECK(index.size() == 0);
  CHECK_FALSE(index.FindName(""));
  CHECK_FALSE(index.FindFile("%empty"));
}

}  // namespace safetensorfs
