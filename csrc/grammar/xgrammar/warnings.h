// Keeps XGrammar's warnings from the terminal: they repeat what a client sent, which is told to that client.
// Python-free.
#pragma once

#include <cstddef>
#include <streambuf>
#include <string_view>

namespace weft {

// Whether a message is one of XGrammar's warnings: "[12:34:56] …/file.cc:78: Warning: …".
bool is_xgrammar_warning(std::string_view text);

// What std::cerr writes to, without XGrammar's warnings. XGrammar writes each with one call.
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

// From now on, for the process; once.
void hush_xgrammar();

}  // namespace weft
