#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "core/format/source_file.h"

namespace safetensorfs {

/// A range of a file, one window of it in memory at a time. Reads by pread(2): a mapping would turn
/// a file that shrinks meanwhile into SIGBUS.
class HeaderWindow {
 public:
  /// Throws Error where the file cannot be read, as Advance does.
  HeaderWindow(const SourceFile& source, std::uint64_t offset, std::uint64_t size)
      : source_(source), next_(offset), left_(size), buffer_(kWindow) {
    Refill();
  }

  bool at_end() const { return cursor_ == end_; }
  char current() const { return *cursor_; }
  void Advance() {
    if (++cursor_ == end_) Refill();
  }
  /// All that the window holds at present; SkipWindow goes on to the next.
  std::string_view window() const { return {cursor_, end_}; }
  void SkipWindow() { Refill(); }

 private:
  static constexpr std::size_t kWindow = 256 * 1024;

  void Refill() {
    const std::size_t size = left_ < kWindow ? static_cast<std::size_t>(left_) : kWindow;
    source_.Read(next_, {buffer_.data(), size});
    next_ += size;
    left_ -= size;
    cursor_ = buffer_.data();
    end_ = cursor_ + size;
  }

  const SourceFile& source_;
  std::uint64_t next_;
  std::uint64_t left_;
  std::vector<char> buffer_;
  const char* cursor_ = nullptr;
  const char* end_ = nullptr;
};

/// The input iterator that nlohmann's parser reads a HeaderWindow through. Default-constructed: the
/// end.
class HeaderIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  HeaderIterator() = default;
  explicit HeaderIterator(HeaderWindow& window) : window_(&window) {}

  char operator*() const { return window_->current(); }
  HeaderIterator& operator++() {
    window_->Advance();
    return *this;
  }
  HeaderIterator operator++(int) {
    HeaderIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const HeaderIterator& other) const { return is_end() == other.is_end(); }
  bool operator!=(const HeaderIterator& other) const { return !(*this == other); }

 private:
  bool is_end() const { return window_ == nullptr || window_->at_end(); }

  HeaderWindow* window_ = nullptr;
};

}  // namespace safetensorfs
