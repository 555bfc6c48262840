// Drops XGrammar's warnings from stderr: they quote a client's grammar, and the client gets the message anyway.
// Python-free.
#pragma once

#include <cstddef>
#include <streambuf>
#include <string_view>

namespace weft {

// Whether a message is one of XGrammar's warnings: "[12:34:56] …/file.cc:78: Warning: …".
bool is_xgrammar_warning(std::string_view text);

// A stream buffer for std::cerr that drops XGrammar's warnings. XGrammar writes each warning with one call.
class Hushed : public std::streambuf {
 public:
  explicit Hushed(std::streambuf *out) : out_(out) {}

 protected:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char *text, std::streamsize size) override;
  int sync() override;

 private:
  std::streambuf *out_;
};

// Installs a `Hushed` buffer for the rest of the process. Later calls do nothing.
void hush_xgrammar();

}  // namespace weft
