#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace safetensorfs {

/// A word of a line of the control language.
struct ControlWord {
  std::string text;          // without its quotes
  std::vector<bool> quoted;  // as long as text: the bytes that stood in quotes or after a backslash
};

/// Splits a line, without its newline, into words as bash does, so that whatever `printf %q` writes
/// comes back as it was:
///
///   'text'     all as it stands
///   "text"     backslash quotes $ ` " and itself only; $ and ` mean nothing here
///   $'text'    \a \b \e \E \f \n \r \t \v \\ \' \" \?, \NNN (octal), \xHH, \uHHHH, \UHHHHHHHH, \cX
///   \c         that character
///   # text     a comment, where a word would begin
///
/// Blanks are space, tab and newline; a carriage return that ends the line counts as one. Other
/// characters that mean something to a shell ($ ` ; & | < > ( ) { } ~) are plain. Unlike bash,
/// which ends the text there, $'\0' is a NUL byte: names may hold it.
///
/// Throws Error (EINVAL) that names the column, counted in characters from 1: a quote that is not
/// closed, a backslash at the end, a NUL byte, a \u that is no character. Thread-safe.
std::vector<ControlWord> SplitWords(std::string_view line);

}  // namespace safetensorfs
