#include "core/format/tensor_attributes.h"

#include "core/base/text.h"

namespace safetensorfs {
namespace {

std::optional<std::string> Value(const Checkpoint& checkpoint, std::uint32_t tensor,
                                 std::string_view attribute) {
  const TensorIndex& index = checkpoint.index;
  if (attribute == kTensorAttributes[0]) return std::string(index.name(tensor));
  if (attribute == kTensorAttributes[1]) return std::string(index.dtype(tensor).name);
  if (attribute == kTensorAttributes[2]) {
    std::string shape;
    AppendShape(index.shape(tensor), shape);
    return shape;
  }
  if (attribute == kTensorAttributes[3]) return std::to_string(index[tensor].nbytes);
  if (attribute == kTensorAttributes[4]) return checkpoint.source_of(tensor).path();
  if (attribute == kTensorAttributes[5]) return std::to_string(index[tensor].offset);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> TensorAttribute(const Checkpoint& checkpoint, std::uint32_t tensor,
                                           std::string_view attribute) {
  std::optional<std::string> value = Value(checkpoint, tensor, attribute);
  if (value && value->size() > kMaxAttributeSize) return std::nullopt;
  return value;
}

}  // namespace safetensorfs
